"""Patches equal cutting by hand, positions equal their closed form, and resizing equals timm's on any grid."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from tests.nn.reference import some_images
from vitrail.errors import UsageError
from vitrail.nn import PatchEmbedding, ViTConfig, grid_of, resize_positions, sinusoids, sinusoids_2d
from vitrail.nn.vit import POSITIONS

GRIDS = st.tuples(st.integers(1, 14), st.integers(1, 14))


def cut_by_hand(images: Tensor, weight: Tensor, bias: Tensor | None, rows: int, columns: int) -> Tensor:
    """Patch by patch, in reading order."""
    tokens = []
    for top in range(0, images.shape[2], rows):
        for left in range(0, images.shape[3], columns):
            patch = images[:, :, top : top + rows, left : left + columns].flatten(1)
            tokens.append(patch @ weight.flatten(1).T + (0 if bias is None else bias))
    return torch.stack(tokens, dim=1)


@settings(deadline=None, max_examples=30)
@given(
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    patch=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    channels=st.integers(1, 5),
    bias=st.booleans(),
)
def test_patches_are_those_cut_by_hand(grid: tuple[int, int], patch: tuple[int, int], channels: int, bias: bool):
    module = PatchEmbedding(channels, 7, patch, bias).double()
    images = some_images(2, channels, grid[0] * patch[0], grid[1] * patch[1]).double()
    expected = cut_by_hand(images, module.proj.weight, module.proj.bias, *patch)
    torch.testing.assert_close(module(images), expected, rtol=1e-10, atol=1e-12)
    if grid[0] * patch[0] == grid[1] * patch[1] and min(grid) > 1:
        with pytest.raises(AssertionError):  # the planted fault: columns first
            torch.testing.assert_close(module(images.mT), expected)


@settings(deadline=None)
@given(grid=st.tuples(st.integers(1, 40), st.integers(1, 40)), patch=st.tuples(st.integers(1, 32), st.integers(1, 32)))
def test_any_grid_has_a_size(grid: tuple[int, int], patch: tuple[int, int]):
    assert grid_of((grid[0] * patch[0], grid[1] * patch[1]), patch) == grid


@pytest.mark.parametrize(
    ("image", "patch", "offered"),
    [
        ((225, 224), (16, 16), "224x224 or 240x224"),
        ((30, 30), (4, 4), "28x28 or 32x32"),
        ((10, 50), (16, 16), "16x48 or 16x64"),
        ((0, 0), (16, 16), "16x16"),
        ((28, 27), (14, 7), "28x21 or 28x28"),
    ],
)
def test_a_size_that_the_patches_do_not_divide_is_an_error_with_sizes_that_work(image, patch, offered: str):
    with pytest.raises(UsageError) as raised:
        grid_of(image, patch)
    assert str(raised.value.hint).endswith(f": {offered}")
    for size in offered.split(" or "):
        height, width = map(int, size.split("x"))
        assert min(grid_of((height, width), patch)) >= 1


@pytest.mark.parametrize(("length", "width"), [(50, 8), (197, 192), (1, 2), (7, 64)])
def test_sinusoids_equal_their_closed_form(length: int, width: int):
    expected = np.zeros((length, width))
    for column in range(width):
        angle = np.arange(length) / 10_000 ** (2 * (column // 2) / width)
        expected[:, column] = np.cos(angle) if column % 2 else np.sin(angle)
    np.testing.assert_allclose(sinusoids(length, width).numpy(), expected, atol=1e-6)


def test_each_pair_of_columns_has_a_frequency_of_its_own():
    table = sinusoids(400, 16).double()
    pairs = torch.complex(table[:, 1::2], table[:, ::2])  # cos + i sin turns by the frequency at each step
    frequencies = (pairs[1:] / pairs[:-1]).angle().mean(dim=0)
    torch.testing.assert_close(frequencies, 10_000.0 ** (-torch.arange(8).double() / 8), rtol=1e-3, atol=1e-6)
    assert len({round(frequency, 6) for frequency in frequencies.tolist()}) == 8


@pytest.mark.parametrize("grid", [(3, 5), (5, 3), (1, 4), (6, 6)])
def test_sinusoids_in_the_plane_tell_rows_from_columns(grid: tuple[int, int]):
    plane = sinusoids_2d(grid, 16).unflatten(0, grid)
    rows, columns = plane[..., :8], plane[..., 8:]
    for row in range(grid[0]):
        for column in range(grid[1]):
            assert torch.equal(rows[row, column], sinusoids(grid[0], 8)[row])
            assert torch.equal(columns[row, column], sinusoids(grid[1], 8)[column])
    assert len(plane.flatten(0, 1).unique(dim=0)) == grid[0] * grid[1]
    if grid[0] == grid[1]:
        assert not torch.equal(plane, plane.transpose(0, 1))


@pytest.mark.parametrize(("width", "positions"), [(7, sinusoids), (6, sinusoids_2d), (9, sinusoids_2d)])
def test_a_width_without_room_for_sines_and_cosines_is_an_error(width: int, positions):
    with pytest.raises(UsageError):
        positions(4 if positions is sinusoids else (2, 2), width)


def test_fixed_positions_stand_where_the_tokens_stand():
    plain = {"image_size": (8, 12), "patch_size": 4, "width": 8, "heads": 2, "registers": 2}
    line = POSITIONS["sinusoidal"](ViTConfig(**plain))
    plane = POSITIONS["sinusoidal-2d"](ViTConfig(**plain))
    assert line is not None
    assert plane is not None
    assert torch.equal(line[0], sinusoids(3 + 6, 8))
    assert not plane[:, :3].any()
    assert torch.equal(plane[0, 3:], sinusoids_2d((2, 3), 8))
    assert POSITIONS["none"](ViTConfig(**plain)) is None
    assert isinstance(POSITIONS["learned"](ViTConfig(**plain)), nn.Parameter)


@settings(deadline=None, max_examples=60)
@given(old=GRIDS, new=GRIDS, prefix=st.integers(0, 5))
def test_resizing_equals_timms_and_leaves_the_prefix_alone(old: tuple[int, int], new: tuple[int, int], prefix: int):
    positions = some_images(1, 1, prefix + old[0] * old[1], 6)[0]
    ours = resize_positions(positions, prefix, old, new)
    theirs = resample_abs_pos_embed(positions, list(new), list(old), prefix)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert ours.shape == (1, prefix + new[0] * new[1], 6)
    assert torch.equal(ours[:, :prefix], positions[:, :prefix])
    if old == new:
        assert ours is positions


@pytest.mark.parametrize(("old", "new"), [((2, 6), (6, 2)), ((3, 4), (4, 3)), ((2, 6), (3, 4))])
def test_a_grid_of_as_many_patches_but_another_shape_is_resized(old: tuple[int, int], new: tuple[int, int]):
    positions = some_images(1, 1, 1 + 12, 4)[0]
    ours = resize_positions(positions, 1, old, new)
    assert ours.shape == positions.shape
    assert not torch.allclose(ours, positions)
    with pytest.raises(AssertionError):  # the planted fault: rows taken for columns
        torch.testing.assert_close(resize_positions(positions, 1, old[::-1], new), ours, rtol=0, atol=1e-4)


def test_a_constant_stays_constant_and_a_row_stays_a_row():
    constant = torch.full((1, 12, 2), 0.7)
    torch.testing.assert_close(resize_positions(constant, 0, (3, 4), (9, 5)), torch.full((1, 45, 2), 0.7))
    by_row = torch.arange(3.0)[:, None, None].expand(3, 4, 2).reshape(1, 12, 2)
    resized = resize_positions(by_row, 0, (3, 4), (6, 8)).unflatten(1, (6, 8))
    torch.testing.assert_close(resized, resized[:, :, :1].expand_as(resized))
    assert (resized[0, 1:, 0, 0] > resized[0, :-1, 0, 0]).all()


def test_shrinking_looks_at_every_position():
    """Without antialiasing a grid of 12 shrunk to 3 would skip most positions."""
    plane = torch.zeros(1, 144, 1)
    plane[0, 0] = 1.0
    shrunk = resize_positions(plane, 0, (12, 12), (3, 3))
    assert shrunk[0, 0, 0] > 1e-3
    skipped = F.interpolate(plane.view(1, 1, 12, 12), size=(3, 3), mode="bicubic", align_corners=False)
    assert abs(skipped[0, 0, 0, 0].item()) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_resizing_keeps_the_dtype_and_passes_gradients(dtype: torch.dtype):
    positions = some_images(1, 1, 1 + 12, 4)[0].to(dtype).requires_grad_()
    resized = resize_positions(positions, 1, (3, 4), (5, 2))
    assert resized.dtype == dtype
    resized.float().sum().backward()
    assert positions.grad is not None
    assert positions.grad.isfinite().all()
