"""Images with known truth: the digit is where the mask says, as it was, and everything else is shuffled."""

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from sklearn.datasets import load_digits

from tests.data.lab import digit_patches
from vitrail.data.dataset import labels_of
from vitrail.data.images import ArrayImages
from vitrail.data.readers.idx import read_digits
from vitrail.data.sets.planted import PLANTED, Planted, Variant, plant, planted_digits

SIDE = 6
CLASSES = tuple("0123456789")
variants = st.sampled_from(list(PLANTED))
grids = st.sampled_from([(4, 4), (1, 3), (3, 1), (2, 5), (5, 2)])


def pool(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Digits that are told by their grey values alone, and cannot be a shuffle of themselves by chance: m, 6, 6."""
    values = np.random.default_rng(0).permuted(np.tile(np.arange(SIDE**2, dtype=np.uint8), (count, 1)), axis=1)
    return (values + 5 * np.arange(count, dtype=np.uint8)[:, None]).reshape(count, SIDE, SIDE), np.arange(count) % 10


def cells_of(made: Planted) -> np.ndarray:
    """(n, cells, side, side), counted along the rows."""
    rows, columns = made.grid
    cut = [
        made.pixels[:, row * made.side : (row + 1) * made.side, column * made.side : (column + 1) * made.side]
        for row in range(rows)
        for column in range(columns)
    ]
    return np.stack(cut, axis=1)


def in_a_row(cell: np.ndarray) -> bytes:
    """What stays the same when pixels are shuffled."""
    return np.sort(cell, axis=None).tobytes()


def check_cells(made: Planted, digits: np.ndarray, labels: np.ndarray) -> None:
    """Where nothing is added to pixels: planted cells show a digit of the label, all others a digit's pixels only."""
    whole = {digit.tobytes(): int(label) for digit, label in zip(digits, labels, strict=True)}
    shuffled = {in_a_row(digit) for digit in digits}
    for cells, places, shown in zip(cells_of(made), made.cells, made.labels, strict=True):
        for number, cell in enumerate(cells):
            if number in places:
                assert whole[cell.tobytes()] == shown[list(places).index(number)]
            else:
                assert cell.tobytes() not in whole
                assert in_a_row(cell) in shuffled


@settings(deadline=None, max_examples=25)
@given(variants, grids, st.integers(0, 1000))
def test_a_digit_stands_in_its_cell_and_shuffled_ones_beside_it(
    variant: Variant, grid: tuple[int, int], seed: int
) -> None:
    digits, labels = pool()
    assume(grid[0] * grid[1] > PLANTED[variant])
    made = plant(digits, labels, 12, variant=variant, grid=grid, noise=0.0, seed=seed)
    assert made.pixels.shape == (12, grid[0] * SIDE, grid[1] * SIDE)
    assert (made.pixels.dtype, made.labels.dtype, made.cells.dtype) == (np.uint8, np.int64, np.int64)
    assert made.labels.shape == made.cells.shape == (12, PLANTED[variant])
    assert (made.grid, made.side) == (grid, SIDE)
    assert ((made.cells >= 0) == (made.labels >= 0)).all()
    assert (made.cells >= 0).all() or variant == "count"
    assert (made.cells < grid[0] * grid[1]).all()
    check_cells(made, digits, labels)


def test_a_digit_that_is_moved_or_a_cell_left_as_it_was_would_be_noticed() -> None:
    digits, labels = pool()
    made = plant(digits, labels, 12, grid=(2, 3), noise=0.0)
    faults = (
        Planted(made.pixels[:, :, ::-1], made.labels, made.cells, made.grid, made.side),
        Planted(made.pixels, made.labels, (made.cells + 1) % 6, made.grid, made.side),
        Planted(made.pixels, (made.labels + 1) % 10, made.cells, made.grid, made.side),
    )
    for fault in faults:
        with pytest.raises((AssertionError, KeyError)):
            check_cells(fault, digits, labels)


def test_two_digits_are_of_two_classes_in_two_cells() -> None:
    digits, labels = pool()
    made = plant(digits, labels, 500, variant="double", grid=(1, 3), noise=0.0)
    assert (made.labels[:, 0] != made.labels[:, 1]).all()
    assert (made.cells[:, 0] != made.cells[:, 1]).all()
    assert set(made.labels.flatten().tolist()) == set(range(10))
    assert set(made.cells.flatten().tolist()) == set(range(3))


def test_as_many_digits_as_are_counted_from_none_to_four() -> None:
    """Chi-square of 4 degrees of freedom: above 23.5 with p = 1e-4. What is not there has no box."""
    made = plant(*pool(), 2000, variant="count", grid=(2, 3))
    there = made.cells >= 0
    counts = np.bincount(there.sum(axis=1), minlength=5)
    assert len(counts) == 5
    assert ((counts - 400) ** 2 / 400).sum() < 23.5
    areas = np.diff(made.boxes().reshape(2000, 4, 2, 2), axis=2).prod(axis=(2, 3))
    np.testing.assert_array_equal(areas, SIDE**2 * there)


def test_nothing_is_planted_in_empty_ones() -> None:
    made = planted_digits("test", 7, "empty")
    assert made.labels.shape == made.cells.shape == (7, 0)
    assert digit_patches(made, 4).shape == (7, 0, 8, 8)


def test_every_cell_is_taken_alike() -> None:
    """Chi-square of 15 degrees of freedom: above 45 with p = 1e-4."""
    counts = np.bincount(planted_digits("test", 2000).cells[:, 0], minlength=16)
    assert ((counts - 125) ** 2 / 125).sum() < 45


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["single", "double"]), grids, st.sampled_from([1, 2, 3, 6, (2, 3), (6, 1)]))
def test_masks_are_exact(variant: Variant, grid: tuple[int, int], patch: int | tuple[int, int]) -> None:
    """Spread to pixels, a mask is its cell and nothing else."""
    made = plant(*pool(), 5, variant=variant, grid=grid)
    height, width = (patch, patch) if isinstance(patch, int) else patch
    masks = digit_patches(made, patch)
    assert masks.shape == (5, PLANTED[variant], grid[0] * SIDE // height, grid[1] * SIDE // width)
    pixels = masks.repeat(height, axis=2).repeat(width, axis=3)
    for image, place in np.ndindex(made.cells.shape):
        wanted = np.zeros(pixels.shape[2:], dtype=bool)
        row, column = divmod(int(made.cells[image, place]), grid[1])
        wanted[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE] = True
        np.testing.assert_array_equal(pixels[image, place], wanted)


def test_the_same_seed_gives_the_same_images_and_another_others() -> None:
    one, same, other = (planted_digits("test", 20, seed=seed) for seed in (3, 3, 4))
    for name in ("pixels", "labels", "cells"):
        np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
        assert (getattr(one, name) != getattr(other, name)).any()
    assert (planted_digits("validation", 20, seed=3).cells != one.cells).any()
    assert (planted_digits("test", 20, "double", seed=3).cells[:, :1] != one.cells).any()


def test_noise_is_of_the_strength_that_is_asked_for() -> None:
    digits, labels = np.full((2, 8, 8), 128, np.uint8), np.array([0, 1])
    made = plant(digits, labels, 200, noise=10.0)
    assert made.pixels.std() == pytest.approx(10.0, rel=0.02)
    assert made.pixels.mean() == pytest.approx(128, abs=0.2)
    bright = plant(np.full((2, 8, 8), 255, np.uint8), labels, 50, noise=25.5)  # nothing flows over
    assert bright.pixels.min() > 100
    assert (bright.pixels == 255).mean() > 0.4


def test_splits_have_no_digit_in_common() -> None:
    """Planted cells hold digits of their own split, for all 1,797 of scikit-learn."""
    raw = load_digits()
    numbers: dict[bytes, set[int]] = {}
    for number, image in enumerate(np.rint(raw.images * 255 / 16).astype(np.uint8)):
        numbers.setdefault(image.tobytes(), set()).add(number)
    seen: dict[str, set[int]] = {}
    for split, part in read_digits().splits.items():
        assert isinstance(part.inputs, ArrayImages)
        made = plant(part.inputs.pixels, labels_of(part), 300, noise=0.0)
        shown = cells_of(made)[np.arange(300), made.cells[:, 0]]
        found = [min(numbers[cell.tobytes()]) for cell in shown]
        np.testing.assert_array_equal(raw.target[found], made.labels[:, 0])
        seen[split] = set(found)
        assert seen[split] <= set(part.inputs.numbers)
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]
