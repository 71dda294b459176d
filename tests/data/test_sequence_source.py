"""Sequences from names and files: what is held out is held out, and what is odd is said."""

import gzip
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.mnist_strings import GAP, HEIGHT, LAYOUT, LONGEST, RAISED, WIDTH, StringMaker
from vitrail.data.sequence_source import (
    Counts,
    MadeSamples,
    PictureSamples,
    TextSamples,
    is_sequences,
    open_sequences,
    reopen_sequences,
    string_makers,
)
from vitrail.data.sort_digits import in_order, make_strings, split_of
from vitrail.errors import DataError, UsageError

SPLITS = ("train", "validation", "test")
FEW = Counts(train=300, validation=50, test=60)


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
        assert set(split_of(sorted(strings))) == {split}
    assert set(make_strings(500, "test", seed=5)) != set(make_strings(500, "test", seed=6))


@settings(deadline=None)
@given(st.lists(st.text(alphabet="0123456789", min_size=1, max_size=18), min_size=1, max_size=20))
def test_a_string_s_split_does_not_depend_on_its_company(strings: list[str]) -> None:
    assert split_of(strings) == [split_of([string])[0] for string in strings]
    assert [sorted(one) == list(other) for one, other in zip(strings, in_order(strings), strict=True)]


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
    pairs = np.array(split_of(sevens)).reshape(-1, 4)
    assert (pairs != pairs[:, :1]).any()


def test_too_few_strings_are_said() -> None:
    with pytest.raises(DataError, match="there are no 5,000 strings of at most 2 digits in the split test"):
        make_strings(5000, "test", longest=2)


@pytest.fixture(scope="module")
def maker() -> StringMaker:
    """Ten digits that are squares, each of its own grey."""
    pixels = np.zeros((10, 28, 28), np.uint8)
    pixels[:, 4:24, 4:24] = np.arange(10)[:, None, None] * 20 + 40
    return StringMaker(pixels, np.arange(10), seed=3)


def test_pictures_show_their_strings(maker: StringMaker) -> None:
    made = maker.make(np.arange(400), epoch=2)
    assert made.pixels.shape == (400, HEIGHT, WIDTH)
    for row in range(400):
        lefts = made.lefts[row][made.lefts[row] >= 0]
        assert len(lefts) == len(made.texts[row])
        assert 0 <= lefts[0] <= lefts[-1] + 28 <= WIDTH
        gaps = np.diff(lefts) - 28
        assert (abs(gaps) <= GAP).all()
        greys = [(int(made.pixels[row, HEIGHT // 2, left + 14]) - 40) // 20 for left in lefts]
        assert "".join(map(str, greys)) == made.texts[row]
        top = int(np.flatnonzero(made.pixels[row, :, lefts[0] + 14])[0])
        assert abs(top - 4 - (HEIGHT - 28) // 2) <= RAISED
        assert (made.pixels[row] > 0).sum() == 400 * len(lefts)  # margins overlap, ink does not


def test_lengths_are_uniform_and_epochs_differ(maker: StringMaker) -> None:
    made = maker.make(np.arange(5000))
    counts = np.bincount([len(text) for text in made.texts], minlength=LONGEST + 1)
    assert counts[0] == 0
    assert (abs(counts[1:] - 1000) < 130).all()
    again, other = maker.make(np.arange(5000)), maker.make(np.arange(5000), epoch=1)
    assert again.texts == made.texts
    np.testing.assert_array_equal(again.pixels, made.pixels)
    assert sum(one == two for one, two in zip(made.texts, other.texts, strict=True)) < 500
    some = maker.make(np.array([17, 4]))
    np.testing.assert_array_equal(some.pixels, made.pixels[[17, 4]])  # a function of the id alone


def test_strings_of_mnist_are_made_and_opened_again(mnist_root: Path) -> None:
    source = open_sequences("mnist-strings", mnist_root, counts=FEW)
    assert {name: len(samples) for name, samples in source.splits.items()} == {
        "train": 300,
        "validation": 50,
        "test": 60,
    }
    assert isinstance(source.train, MadeSamples)
    assert len(source.train.maker.labels) == 55_000
    assert source.reads_pictures
    assert isinstance(source.test, PictureSamples)
    again = reopen_sequences(source.name, source.root, None, source.split_seed, FEW)
    assert again.fingerprint == source.fingerprint
    moved = open_sequences("mnist-strings", mnist_root, split_seed=1, counts=FEW)
    assert moved.test is not None
    assert moved.test.texts(np.arange(60)) == source.test.texts(np.arange(60))  # the test never moves
    assert moved.train.texts(np.arange(60)) != source.train.texts(np.arange(60))


def test_the_layout_that_runs_state_is_that_of_the_pictures(maker: StringMaker) -> None:
    made = maker.make(np.arange(4000))
    lengths = [len(text) for text in made.texts]
    gaps = [gap - 28 for row in made.lefts for gap in np.diff(row[row >= 0])]
    tops = [int(np.flatnonzero(made.pixels[row, :, left + 14])[0]) - 6 for row, left in enumerate(made.lefts[:, 0])]
    assert {
        "canvas": list(made.pixels.shape[1:]),
        "digit": [28, 28],
        "digits": [min(lengths), max(lengths)],
        "gap": [min(gaps), max(gaps)],
        "raised": [min(tops), max(tops)],
        "drawn": "uniformly",
    } == LAYOUT


def hashes(pixels: np.ndarray) -> set[bytes]:
    """One for each picture; those of MNIST all differ within its files."""
    return {hashlib.sha256(np.ascontiguousarray(picture)).digest() for picture in pixels}


def ink(picture: np.ndarray) -> np.ndarray:
    """The smallest rectangle with all that is not black."""
    rows, columns = np.flatnonzero(picture.any(axis=1)), np.flatnonzero(picture.any(axis=0))
    return picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def published(root: Path, name: str) -> np.ndarray:
    """The pictures of one of MNIST's files, read by hand."""
    (file,) = [path for path in root.rglob(f"{name}-images*") if path.is_file()]
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)


def check_held_out(root: Path) -> None:
    """The digits that strings are made of, against MNIST's own files: what is tested was never learnt from."""
    train, test = (hashes(published(root, name)) for name in ("train", "t10k"))
    makers, _, _ = string_makers(root, seed=0)
    ours = {name: hashes(maker.pixels) for name, maker in makers.items()}
    assert not ours["train"] & ours["validation"], "validation digits are learnt from"
    assert not ours["train"] & ours["test"], "test digits are learnt from"
    assert not ours["validation"] & ours["test"], "test digits are chosen on"
    assert ours["test"] == test, "the test has other digits than MNIST's test"
    assert ours["train"] | ours["validation"] == train
    assert [len(makers[name].labels) for name in SPLITS] == [55_000, 5_000, 10_000]


def check_made_of_their_own(root: Path) -> None:
    """Pictures of a single digit, of which there are some in each split: their ink is that of a digit of the split."""
    makers, _, _ = string_makers(root, seed=0)
    inks = {name: hashes_of_ink(maker.pixels) for name, maker in makers.items()}
    source = open_sequences("mnist-strings", root, counts=FEW)
    for name, other in (("validation", "train"), ("test", "train"), ("test", "validation")):
        samples = source.splits[name]
        single = [row for row, text in enumerate(samples.texts(np.arange(len(samples)))) if len(text) == 1]
        found = hashes_of_ink([np.asarray(samples.pictures.open(row).convert("L")) for row in single])
        assert len(single) > 5
        assert found <= inks[name]
        assert not found & inks[other]


def hashes_of_ink(pictures: Iterable[np.ndarray]) -> set[bytes]:
    """One for each, of its ink and the shape of it."""
    cut = (ink(picture) for picture in pictures)
    return {hashlib.sha256(f"{part.shape}".encode() + part.tobytes()).digest() for part in cut}


def test_no_digit_of_mnist_stands_in_two_splits(mnist_root: Path) -> None:
    check_held_out(mnist_root)
    check_made_of_their_own(mnist_root)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_digits_in_two_splits_would_be_seen(split: str, mnist_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults: validation, or the test, made of what is learnt from."""

    class Mixed(StringMaker):
        """A maker that takes the digits of the training split, whichever it is asked for."""

        def __init__(self, pixels: np.ndarray, labels: np.ndarray, seed: int, number: int) -> None:
            learnt.setdefault("train", (pixels, labels))
            mine = learnt["train"] if SPLITS[number] == split else (pixels, labels)
            super().__init__(*mine, seed, number)

    learnt: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    monkeypatch.setattr("vitrail.data.sequence_source.StringMaker", Mixed)
    with pytest.raises(AssertionError, match="are learnt from"):
        check_held_out(mnist_root)


def test_pairs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"a{n}\t{n}b\n" for n in range(50)))
    source = open_sequences(str(path))
    assert (len(source.train), len(source.validation), source.test) == (45, 5, None)
    assert isinstance(source.train, TextSamples)
    assert source.split_seed == 0
    pairs = {**dict(zip(source.train.sources, source.train.targets, strict=True))}
    assert all(pairs[f"a{n}"] == f"{n}b" for n in range(50) if f"a{n}" in pairs)
    other = open_sequences(str(path), split_seed=1)
    assert other.fingerprint != source.fingerprint
    assert reopen_sequences(str(path), source.root, None, 0, FEW).fingerprint == source.fingerprint


def test_the_same_source_stays_on_one_side(tmp_path: Path) -> None:
    """Else what is validated was learnt: repeated lines go together."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"s{n % 20}\tt\n" for n in range(200)))
    source = open_sequences(str(path))
    assert isinstance(source.train, TextSamples)
    assert isinstance(source.validation, TextSamples)
    assert not set(source.train.sources) & set(source.validation.sources)
    assert len(source.validation) == 20


def test_a_split_column_rules(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\ttrain\nc\td\tval\ne\tf\ttest\ne\tf\ttrain\n")
    source = open_sequences(str(path))
    assert {name: len(samples) for name, samples in source.splits.items()} == {"train": 2, "validation": 1, "test": 1}
    assert source.split_seed is None
    assert source.notes == ("In more than one split: 1 source.",)


def test_pictures_with_texts(tmp_path: Path) -> None:
    rows = ["path,text"]
    for number in range(20):
        Image.fromarray(np.full((8, 20), number, np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number}")
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(rows))
    assert is_sequences(str(path))
    source = open_sequences(str(path))
    assert (len(source.train), len(source.validation)) == (18, 2)
    assert isinstance(source.train, PictureSamples)
    for index, text in enumerate(source.train.targets):
        assert source.train.name(index) == f"{text}.png"


def test_classes_are_no_sequences(tmp_path: Path) -> None:
    for name, first in (
        ("a.csv", "path,label,split"),
        ("b.csv", "path,label,text"),
        ("c.jsonl", '{"path": "x", "label": "y"}'),
    ):
        (tmp_path / name).write_text(first + "\n")
        assert not is_sequences(str(tmp_path / name))
    (tmp_path / "d.jsonl").write_text('{"path": "x.png", "text": "y"}\n')
    assert is_sequences(str(tmp_path / "d.jsonl"))
    assert is_sequences("nowhere.tsv")
    assert not is_sequences("digits")
    assert not is_sequences(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\tb\na\tb\tc\td\n", "line 2 has 4 columns"),
        ("only\n", "line 1 has 1 column$"),
        ("source\n", "line 1 has 1 column$"),
        ("text\ttarget\tsplit\n", "line 1: the split is split"),
        ("a\tb\n\tb\n", "line 2: the source is empty"),
        ("a\t\n", "line 1: the target is empty"),
        ("a\tb\tnever\n", "line 1: the split is never"),
        ("a\tb\ttrain\nc\td\n", "a split in some lines only"),
        ("source\ttarget\n", "holds no pairs"),
        ("a\tb\n", "too few samples"),
        ("a\tb\ttest\nc\td\tval\n", "no training samples"),
    ],
)
def test_a_bad_file_is_said(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        open_sequences(str(path))
    assert re.search(problem, caught.value.problem)


@pytest.mark.parametrize(
    "header",
    ["source\ttarget\n", "Source\tTarget\n", "\ufeffSOURCE\tTARGET\n", "\n source \t target \r\n"],
)
def test_a_header_is_not_learnt(header: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(header + "".join(f"a{n}\tb{n}\n" for n in range(20)), encoding="utf-8", newline="")
    source = open_sequences(str(path))
    assert (len(source.train), len(source.validation)) == (18, 2)
    assert all(source.train.name(index)[0] == "a" for index in range(18))


@pytest.mark.parametrize("line", ["source\ttargets\n", "target\tsource\n", "a0\tb0\nsource\ttarget\n"])
def test_what_only_looks_like_a_header_is_learnt(line: str, tmp_path: Path) -> None:
    """Exactly these names, in the first line: anything else is a pair, such as those of a dictionary."""
    path = tmp_path / "pairs.tsv"
    path.write_text(line + "".join(f"a{n}\tb{n}\n" for n in range(20)))
    source = open_sequences(str(path))
    assert len(source.train) + len(source.validation) == 20 + line.count("\n")


def test_a_header_with_a_split(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("Source\tTarget\tSplit\na\tb\ttrain\nc\td\tval\n")
    assert {name: len(samples) for name, samples in open_sequences(str(path)).splits.items()} == {
        "train": 1,
        "validation": 1,
    }


@pytest.mark.parametrize("header", ["path,text", "Path,Text", "PATH,TEXT", "\ufeffPath, Text"])
def test_the_header_of_a_manifest_may_be_in_capitals(header: str, tmp_path: Path) -> None:
    rows = [header]
    for number in range(20):
        Image.fromarray(np.full((8, 20), number, np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number}")
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    assert is_sequences(str(path))
    source = open_sequences(str(path))
    assert (len(source.train), len(source.validation)) == (18, 2)
    path.write_text("\n".join(rows).replace(header, "Path,path,text"), encoding="utf-8")
    assert is_sequences(str(path))
    path.write_text("\n".join(rows[1:]), encoding="utf-8")
    with pytest.raises(DataError, match=r"no column path and text; the columns are 0\.png, 0"):
        open_sequences(str(path))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        open_sequences(str(tmp_path / "no.tsv"))
    with pytest.raises(UsageError, match=r"counts.test must be a whole number, at least 1, got 0"):
        Counts(test=0)
