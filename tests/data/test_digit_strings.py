"""Strings of digits: what is held out is held out, and images show their strings."""

import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.data.lab import open_set
from vitrail.data.dataset import Counts, pixels_of
from vitrail.data.readers.idx import mnist_in_three
from vitrail.data.sets import digit_strings
from vitrail.data.sets.digit_strings import (
    GAP,
    HEIGHT,
    LAYOUT,
    MOST_DIGITS,
    RAISED,
    WIDTH,
    StringImages,
    digits_of_split,
    make_strings,
    sort_digits,
    string_images,
)
from vitrail.errors import DataError

SPLITS = ("train", "validation", "test")


# Strings to be sorted


def test_no_string_that_is_tested_was_ever_trained_on() -> None:
    """Whatever the seeds: a string belongs to one split by itself."""
    made = {split: make_strings(3000, split, seed=seed) for seed, split in enumerate(SPLITS)}
    sets = {split: set(strings) for split, strings in made.items()}
    assert all(len(strings) == 3000 for strings in made.values())
    assert len(sets["validation"]) == len(sets["test"]) == 3000
    assert not sets["train"] & sets["validation"]
    assert not sets["train"] & sets["test"]
    assert not sets["validation"] & sets["test"]
    for split, strings in sets.items():
        assert set(digits_of_split(sorted(strings))) == {split}
    assert set(make_strings(500, "test", seed=5)) != set(make_strings(500, "test", seed=6))


@settings(deadline=None)
@given(st.lists(st.text(alphabet="0123456789", min_size=1, max_size=18), min_size=1, max_size=20))
def test_a_string_s_split_does_not_depend_on_its_company(strings: list[str]) -> None:
    assert digits_of_split(strings) == [digits_of_split([string])[0] for string in strings]
    assert [sorted(one) == list(other) for one, other in zip(strings, sort_digits(strings), strict=True)]


def test_training_has_short_strings_and_equal_digits() -> None:
    """Else a network is wrong on the easiest inputs, and no average shows it."""
    made = make_strings(10_000, "train")
    lengths = np.bincount([len(string) for string in made], minlength=11)
    assert lengths[1:].min() > 800  # those of 1 and 2 are all here, of the others 80 %
    assert {string for string in made if len(string) == 1} == set("0123456789")
    assert sum(len(string) > 4 and len(set(string)) == 1 for string in made) > 300
    assert {len(string) for string in make_strings(2000, "test")} == set(range(3, 11))


def test_leading_zeros_count() -> None:
    """Else 7 and 07 were one string to the hash: over many, their splits differ."""
    sevens = [f"{'0' * zeros}{number}" for number in range(1, 40) for zeros in range(4)]
    pairs = np.array(digits_of_split(sevens)).reshape(-1, 4)
    assert (pairs != pairs[:, :1]).any()


def test_too_few_strings_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digit_strings, "TURNS", 5)
    with pytest.raises(DataError, match="5,000"):
        make_strings(5000, "test", longest=2)


# Strings to be read on images


@pytest.fixture(scope="module")
def maker() -> StringImages:
    """Ten digits that are squares, each of its own grey."""
    pixels = np.zeros((10, 28, 28), np.uint8)
    pixels[:, 4:24, 4:24] = np.arange(10)[:, None, None] * 20 + 40
    return StringImages(pixels, np.arange(10), seed=3)


def made(maker: StringImages, count: int, epoch: int = 0) -> tuple[np.ndarray, tuple[str, ...]]:
    """The first images of an epoch, and their texts."""
    samples = maker.make(np.arange(count), epoch)
    return pixels_of(samples), samples.columns["text"].values


def lefts_of(image: np.ndarray) -> np.ndarray:
    """Where the box of each square begins: 4 pixels before its ink, which no other square's touches."""
    columns = np.flatnonzero(image.any(axis=0))
    return columns[np.diff(columns, prepend=-2) > 1] - 4


def test_images_show_their_strings(maker: StringImages) -> None:
    pixels, texts = made(maker, 400, epoch=2)
    assert pixels.shape == (400, HEIGHT, WIDTH)
    for row in range(400):
        lefts = lefts_of(pixels[row])
        assert len(lefts) == len(texts[row])
        assert 0 <= lefts[0] <= lefts[-1] + 28 <= WIDTH
        gaps = np.diff(lefts) - 28
        assert (abs(gaps) <= GAP).all()
        greys = [(int(pixels[row, HEIGHT // 2, left + 14]) - 40) // 20 for left in lefts]
        assert "".join(map(str, greys)) == texts[row]
        top = int(np.flatnonzero(pixels[row, :, lefts[0] + 14])[0])
        assert abs(top - 4 - (HEIGHT - 28) // 2) <= RAISED
        assert (pixels[row] > 0).sum() == 400 * len(lefts)  # margins overlap, ink does not


def test_lengths_are_uniform_and_epochs_differ(maker: StringImages) -> None:
    pixels, texts = made(maker, 5000)
    counts = np.bincount([len(text) for text in texts], minlength=MOST_DIGITS + 1)
    assert counts[0] == 0
    assert (abs(counts[1:] - 1000) < 130).all()
    again, other = made(maker, 5000), made(maker, 5000, epoch=1)
    assert again[1] == texts
    np.testing.assert_array_equal(again[0], pixels)
    assert sum(one == two for one, two in zip(texts, other[1], strict=True)) < 500
    some = pixels_of(maker.make(np.array([17, 4])))
    np.testing.assert_array_equal(some, pixels[[17, 4]])  # a function of the id alone


def test_the_layout_that_runs_state_is_that_of_the_images(maker: StringImages) -> None:
    pixels, texts = made(maker, 4000)
    lengths, lefts = [len(text) for text in texts], [lefts_of(image) for image in pixels]
    gaps = [gap - 28 for row in lefts for gap in np.diff(row)]
    tops = [int(np.flatnonzero(image[:, row[0] + 14])[0]) - 6 for image, row in zip(pixels, lefts, strict=True)]
    assert {
        "canvas": list(pixels.shape[1:]),
        "digit": [28, 28],
        "digits": [min(lengths), max(lengths)],
        "gap": [min(gaps), max(gaps)],
        "raised": [min(tops), max(tops)],
        "drawn": "uniformly",
    } == LAYOUT


def hashes(pixels: np.ndarray) -> set[bytes]:
    """One for each image; those of MNIST all differ within its files."""
    return {hashlib.sha256(np.ascontiguousarray(image)).digest() for image in pixels}


def ink(image: np.ndarray) -> np.ndarray:
    """The smallest rectangle with all that is not black."""
    rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
    return image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def published(root: Path, name: str) -> np.ndarray:
    """The images of one of MNIST's files, read by hand."""
    (file,) = [path for path in root.rglob(f"{name}-images*") if path.is_file()]
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)


def check_held_out(root: Path) -> None:
    """The digits that strings are made of, against MNIST's own files: what is tested was never learnt from."""
    train, test = (hashes(published(root, name)) for name in ("train", "t10k"))
    makers = string_images(mnist_in_three(root), 0, Counts())
    ours = {name: hashes(maker.pixels) for name, maker in makers.items()}
    assert not ours["train"] & ours["validation"], "validation digits are learnt from"
    assert not ours["train"] & ours["test"], "test digits are learnt from"
    assert not ours["validation"] & ours["test"], "test digits are chosen on"
    assert ours["test"] == test, "the test has other digits than MNIST's test"
    assert ours["train"] | ours["validation"] == train
    assert [len(makers[name].labels) for name in SPLITS] == [55_000, 5_000, 10_000]


def check_made_of_their_own(root: Path) -> None:
    """Images of a single digit, of which there are some in each split: their ink is that of a digit of the split."""
    makers = string_images(mnist_in_three(root), 0, Counts())
    inks = {name: hashes_of_ink(maker.pixels) for name, maker in makers.items()}
    source = open_set("mnist-strings", root, counts=Counts(train=300, validation=50, test=60))
    for name, other in (("validation", "train"), ("test", "train"), ("test", "validation")):
        samples = source.splits[name]
        single = [
            row for row, text in enumerate(samples.column("text").take(np.arange(len(samples)))) if len(text) == 1
        ]
        found = hashes_of_ink([np.asarray(samples.inputs.open(row).convert("L")) for row in single])
        assert len(single) > 5
        assert found <= inks[name]
        assert not found & inks[other]


def hashes_of_ink(images: Iterable[np.ndarray]) -> set[bytes]:
    """One for each, of its ink and the shape of it."""
    cut = (ink(image) for image in images)
    return {hashlib.sha256(f"{part.shape}".encode() + part.tobytes()).digest() for part in cut}


def test_no_digit_of_mnist_stands_in_two_splits(mnist_root: Path) -> None:
    check_held_out(mnist_root)
    check_made_of_their_own(mnist_root)


@pytest.mark.parametrize("split", ["validation", pytest.param("test", marks=pytest.mark.soak)])
def test_digits_in_two_splits_would_be_seen(split: str, mnist_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults: validation, or the test, made of what is learnt from."""

    class Mixed(StringImages):
        """A maker that takes the digits of the training split, whichever it is asked for."""

        def __init__(self, pixels: np.ndarray, labels: np.ndarray, seed: int, number: int, count: int) -> None:
            learnt.setdefault("train", (pixels, labels))
            mine = learnt["train"] if SPLITS[number] == split else (pixels, labels)
            super().__init__(*mine, seed, number, count)

    learnt: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    monkeypatch.setattr(digit_strings, "StringImages", Mixed)
    with pytest.raises(AssertionError):
        check_held_out(mnist_root)
