"""The sets called `planted`: what their names say is what they hold, and what cannot be meant is refused."""

import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.data.lab import digit_patches, names_of, open_set, open_split
from tests.errors import figures
from vitrail.data.dataset import Samples, labels_of, pixels_of
from vitrail.data.readers.idx import mnist_in_three, read_digits
from vitrail.data.sets import planted
from vitrail.data.sets.planted import (
    COUNTS,
    GRID,
    MOST_BYTES,
    PLANTED,
    SIDES,
    Planted,
    PlantedSet,
    parse_planted,
    plant,
    planted_digits,
    planted_images,
    read_planted,
)
from vitrail.data.sources import files_of, is_named, read, read_images
from vitrail.errors import DataError, UsageError
from vitrail.training.configuration.resolve import NOT_MEASURED, RECIPES, choose

CLASSES = tuple("0123456789")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sets of few images, most of them to train on; the splits that were made."""
    asked: list[str] = []

    def noted(chosen: PlantedSet, split: str, digits: dict[str, Samples]) -> Planted:
        asked.append(split)
        return planted_images(chosen, split, digits)

    for split, count in {"train": 40, "validation": 20, "test": 30}.items():
        monkeypatch.setitem(COUNTS, split, count)
    monkeypatch.setattr(planted, "planted_images", noted)
    return asked


def truth_of(name: str, split: str) -> Planted:
    return planted_images(parse_planted(name), split, read_digits().splits)


def part_of(digits: dict[str, Samples], split: str) -> tuple[np.ndarray, np.ndarray]:
    return pixels_of(digits[split]), labels_of(digits[split])


def test_planted_itself_is_as_it_was() -> None:
    """Digits, single, 4 x 4; the images that networks and figures in the repository were made with."""
    assert parse_planted("planted") == PlantedSet("digits", "single", GRID)
    for split in ("validation", "test"):
        made, wanted = truth_of("planted", split), planted_digits(split, COUNTS[split])
        for name in ("pixels", "labels", "cells"):
            np.testing.assert_array_equal(getattr(made, name), getattr(wanted, name))
    assert parse_planted("planted").count("train") == 120_000
    spelled_out = truth_of("planted:4x4,single,digits", "test")
    np.testing.assert_array_equal(spelled_out.pixels, wanted.pixels)


@settings(deadline=None)
@given(
    st.sampled_from([None, *SIDES]),
    st.sampled_from([None, *PLANTED]),
    st.none() | st.tuples(st.integers(1, 16), st.integers(3, 16)),
    st.randoms(),
)
def test_options_stand_in_any_order(
    digits: str | None, variant: str | None, grid: tuple | None, random: Random
) -> None:
    words = [each for each in (digits, variant, grid and f"{grid[0]}x{grid[1]}") if each]
    random.shuffle(words)
    name = f"planted:{','.join(words)}" if words else "planted"
    found = parse_planted(name)
    assert found == PlantedSet(digits or "digits", variant or "single", grid or GRID)
    side = {"digits": 8, "mnist": 28}[found.digits]
    assert found.size == (found.grid[0] * side, found.grid[1] * side)
    for split in COUNTS:
        assert 0 < found.count(split) * found.size[0] * found.size[1] <= MOST_BYTES


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("planted:duble", "'duble'", "planted:double"),
        ("planted:MNIST", "'MNIST'", "planted:mnist"),
        ("planted:3x", "'3x'", "2x3"),
        ("planted:", "''", "planted:2x3"),
        ("planted:mnist,", "''", "planted:2x3"),
        ("planted:double,empty", "double and empty", "planted:empty"),
        ("planted:2x3,3x2", "2x3 and 3x2", "planted:3x2"),
        ("planted:1x1", "1x1 has 1", "planted:2x3"),
        ("planted:0x5", "0x5 has 0", "planted:2x3"),
        ("planted:double,1x2", "1x2 has 2", "planted:double,2x3"),
        ("planted:1000x1000,mnist", "1000000", "planted:2x3,mnist"),
    ],
)
def test_what_cannot_be_meant(name: str, says: str, hint: str) -> None:
    assert is_named(name)
    with pytest.raises(UsageError) as caught:
        open_set(name)
    assert len(str(caught.value).split("\n")) == 2
    assert says in caught.value.problem
    assert hint in str(caught.value)


@pytest.mark.parametrize(("name", "planted"), [("planted:double", 2), ("planted:empty", 0), ("planted:empty,2x3", 0)])
def test_two_labels_or_none_are_there_to_be_looked_at(name: str, planted: int, few: list[str]) -> None:
    """Neither learnt nor counted: there are images to test on alone, without a label, and where their digits stand."""
    raw = read(name)
    assert list(raw.splits) == ["test"]
    assert raw.columns() == ("evidence",)
    (samples,) = read_images(name).splits.values()
    assert few == ["test", "test"]
    assert not set(samples.inputs.name(0)) & set(":,")
    boxes = samples.column("evidence").take(np.arange(30))
    assert boxes.shape == (30, planted, 4)
    np.testing.assert_array_equal(boxes, truth_of(name, "test").boxes())
    for refuse in (open_set, lambda name: open_split(name, CLASSES)):
        with pytest.raises(DataError):
            refuse(name)


def test_how_many_digits_there_are_can_be_learnt(few: list[str]) -> None:
    raw, truth = read("planted:count,2x4"), truth_of("planted:count,2x4", "validation")
    assert {*raw.splits} == {*COUNTS}
    numbers = raw.splits["validation"].column("number")
    assert numbers.names == ("count",)
    np.testing.assert_array_equal(numbers.values[:, 0], (truth.labels >= 0).sum(axis=1))


def test_mnist_is_read_where_its_digits_are_wanted() -> None:
    names = ("planted:mnist", "planted:mnist,2x3", "mnist-m", "planted", "planted:2x3", "./planted", "planteds")
    assert [files_of(name) for name in names] == ["mnist"] * 3 + [""] * 4


def test_a_rectangle_is_opened_by_any_who_ask(few: list[str]) -> None:
    source = open_set("planted:2x3")
    assert (source.name, source.root, names_of(source)) == ("planted:2x3", "scikit-learn", CLASSES)
    assert [figures(note) for note in source.notes] == [["6"]]
    assert source.train.inputs.open(3).size == (24, 16)
    assert source.train.inputs.name(3) == "planted-2x3/train/3"
    assert open_set("planted:2x3").fingerprint == source.fingerprint
    assert open_set("planted:3x2").fingerprint != source.fingerprint
    few.clear()
    evaluated = open_split("planted:2x3", CLASSES)
    assert "test" in few
    assert "train" not in few
    assert evaluated.samples.inputs.digest() == source.test.inputs.digest()
    truth = truth_of("planted:2x3", "test")
    np.testing.assert_array_equal(np.asarray(evaluated.samples.inputs.open(7)), truth.pixels[7])
    assert digit_patches(truth, 4)[7, 0].sum() == 4


def test_only_the_split_that_is_wanted_is_made(few: list[str]) -> None:
    assert len(open_split("planted", CLASSES).samples) == 30
    assert "train" not in few
    evaluated = open_split("planted", CLASSES, split="validation")
    assert "train" not in few
    made = planted_digits("validation", 20)
    np.testing.assert_array_equal(labels_of(evaluated.samples), made.labels[:, 0])
    np.testing.assert_array_equal(np.asarray(evaluated.samples.inputs.open(7)), made.pixels[7])
    assert evaluated.samples.inputs.name(7) == "planted/validation/7"
    source = open_set("planted")
    assert set(few) == set(COUNTS)
    assert (names_of(source), source.split_seed, len(source.train)) == (CLASSES, 0, 40)
    with pytest.raises(UsageError, match="validation, test, train"):
        open_split("planted", CLASSES, split="all")


def test_large_images_are_made_in_pieces(few: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is what `plant` makes of a seed of its own, and no image stands twice."""
    chosen, digits = parse_planted("planted:2x3"), read_digits().splits
    whole = planted_images(chosen, "test", digits)
    monkeypatch.setattr(planted, "AT_ONCE", 12 * 16 * 24 + 5)
    made = planted_images(chosen, "test", digits)
    assert made.pixels.shape == whole.pixels.shape == (30, 16, 24)
    assert made.labels.shape == made.cells.shape == (30, 1)
    np.testing.assert_array_equal(
        made.pixels[:12], plant(*part_of(digits, "test"), 12, grid=(2, 3), seed=list(COUNTS).index("test")).pixels
    )
    assert len({image.tobytes() for image in made.pixels}) == 30


@pytest.mark.soak
def test_mnist_is_planted(few: list[str], mnist_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own test digits for testing, others for learning and validating, in cells of 28 pixels."""
    monkeypatch.setattr(planted, "plant", lambda *given, **options: plant(*given, **options, noise=0.0))
    found = mnist_in_three(mnist_root)
    digits = found.splits
    source = open_set("planted:mnist,2x3", mnist_root)
    assert source.root == found.root
    assert source.train.inputs.open(0).size == (84, 56)
    assert {split: len(part) for split, part in digits.items()} == {
        "train": 55_000,
        "validation": 5_000,
        "test": 10_000,
    }
    named = {split: {part.inputs.name(i) for i in range(len(part))} for split, part in digits.items()}
    assert not named["train"] & named["validation"]
    for split in COUNTS:
        made = planted_images(parse_planted("planted:mnist,2x3"), split, digits)
        pixels, labels = part_of(digits, split)
        known = {image.tobytes(): int(label) for image, label in zip(pixels, labels, strict=True)}
        for image, (cell,), (label,) in zip(made.pixels, made.cells, made.labels, strict=True):
            row, column = divmod(int(cell), 3)
            assert known[image[28 * row : 28 * row + 28, 28 * column : 28 * column + 28].tobytes()] == label


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for name in ("planted", "planted:2x3"):
        with pytest.raises(UsageError, match=r"vitrail\[digits\]"):
            read_planted(name)


def test_the_recipe_follows_the_cells() -> None:
    kinds = ("ViT",)
    assert choose("auto", "planted", kinds, 120_000, 32)[0] is RECIPES["planted"]
    for name, size, patch in (
        ("planted:2x3", [16, 24], 4),
        ("planted:mnist", [112, 112], 14),
        ("planted:1x5", [8, 40], 4),
    ):
        for asked in ("auto", "planted"):
            recipe, called, _ = choose(asked, name, kinds, 120_000, min(size))
            assert (called, recipe.network["image_size"], recipe.network["patch_size"]) == ("planted", size, patch)
            assert (recipe.image_size, recipe.reached) == (size[0], NOT_MEASURED)
    assert choose("planted", "digits", kinds, 1000, 8)[0] is RECIPES["planted"]
    assert choose("mnist", "planted:2x3", kinds, 1000, 16)[0] is RECIPES["mnist"]
    assert "2x3 cells" in choose("auto", "planted:2x3", kinds, 1000, 16)[2]
