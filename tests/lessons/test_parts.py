"""The patch transform equals cutting by hand, in every order, and its inverse gives the same bits back."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from lessons.parts import Flattening, Patchify
from vitrail.errors import UsageError

ORDERS = ("rows", "columns")
FLATTENINGS = ("c h w", "h w c", "w h c")
SIDES = st.tuples(st.integers(1, 4), st.integers(1, 4))


def by_hand(picture: Tensor, patch: tuple[int, int], order: str, flattening: Flattening) -> Tensor:
    """Number by number, with plain loops; the picture is (c, h, w)."""
    channels, height, width = picture.shape
    corners = [(top, left) for top in range(0, height, patch[0]) for left in range(0, width, patch[1])]
    if order == "columns":
        corners.sort(key=lambda corner: (corner[1], corner[0]))
    lengths = {"c": channels, "h": patch[0], "w": patch[1]}
    slow, middle, fast = flattening.split()
    patches = []
    for top, left in corners:
        numbers = []
        for i in range(lengths[slow]):
            for j in range(lengths[middle]):
                for k in range(lengths[fast]):
                    at = {slow: i, middle: j, fast: k}
                    numbers.append(picture[at["c"], top + at["h"], left + at["w"]])
        patches.append(torch.stack(numbers))
    return torch.stack(patches)


@settings(deadline=None, max_examples=60)
@given(
    grid=SIDES,
    patch=SIDES,
    channels=st.integers(1, 4),
    batch=st.sampled_from([None, 0, 1, 3]),
    axis=st.sampled_from(["first", "last"]),
    order=st.sampled_from(ORDERS),
    flattening=st.sampled_from(FLATTENINGS),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
)
def test_patches_are_those_cut_by_hand_and_come_back(grid, patch, channels, batch, axis, order, flattening, dtype):
    size = (grid[0] * patch[0], grid[1] * patch[1])
    shape = (channels, *size) if batch is None else (batch, channels, *size)
    count = int(torch.tensor(shape).prod())
    pictures = (torch.arange(count) % 251).to(dtype).reshape(shape)
    given_pictures = pictures if axis == "first" else pictures.movedim(-3, -1)
    patchify = Patchify(patch, axis, order, flattening)
    patches = patchify(given_pictures)
    if batch is None:
        assert torch.equal(patches, by_hand(pictures, patch, order, flattening))
    else:
        assert patches.shape == (batch, grid[0] * grid[1], channels * patch[0] * patch[1])
        for picture, cut in zip(pictures, patches, strict=True):
            assert torch.equal(cut, by_hand(picture, patch, order, flattening))
    again = patchify.inverse(patches, size)
    assert again.dtype == dtype
    assert torch.equal(again, given_pictures)


def test_the_fourth_documents_shape_and_order():
    """(3, 28, 28) -> (16, 147); its patches go down the columns, and so do the pixels in them."""
    pictures = torch.arange(2 * 3 * 28 * 28).reshape(2, 3, 28, 28)
    patches = Patchify(7, order="columns", flattening="w h c")(pictures)
    assert patches.shape == (2, 16, 147)
    row = torch.tensor([0, 784, 1568])  # the channels of one pixel
    second = torch.cat([7 * 28 + row, 8 * 28 + row])  # the second patch lies below the first, and begins downwards too
    assert torch.equal(patches[0, 1, :6], second)
    transposed = Patchify(7, order="rows", flattening="h w c")(pictures.mT)
    assert torch.equal(patches, transposed)


def test_the_orders_differ_and_a_wrong_one_is_seen():
    """The planted fault: patches by columns read as if they stood by rows."""
    picture = torch.arange(3 * 8 * 12).reshape(3, 8, 12)
    by_columns = Patchify(4, order="columns")
    assert not torch.equal(by_columns(picture), Patchify(4)(picture))
    assert not torch.equal(Patchify(4).inverse(by_columns(picture), (8, 12)), picture)
    for flattening in FLATTENINGS[1:]:
        other = Patchify(4, flattening=flattening)
        assert not torch.equal(Patchify(4).inverse(other(picture), (8, 12)), picture)


@pytest.mark.parametrize(
    ("shape", "patch", "offered"),
    [((3, 10, 8), 4, "8x8 or 12x8"), ((3, 8, 10), 4, "8x8 or 8x12"), ((2, 3, 3, 28), (4, 7), "4x28")],
)
def test_a_height_or_width_that_is_not_divided_is_an_error_with_sizes_that_work(shape, patch, offered):
    with pytest.raises(UsageError) as raised:
        Patchify(patch)(torch.zeros(shape))
    assert str(raised.value.hint).endswith(f": {offered}")
    assert "\n" not in raised.value.problem + str(raised.value.hint)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("shape", [(28, 28), (1, 2, 3, 28, 28), (28,)])
def test_what_is_no_picture_is_an_error(shape):
    with pytest.raises(UsageError, match="got ") as raised:
        Patchify(7)(torch.zeros(shape))
    assert str(tuple(shape)) in raised.value.problem


@pytest.mark.parametrize("shape", [(15, 147), (2, 17, 147), (16, 148), (16, 0)])
def test_patches_that_do_not_fit_the_size_are_an_error(shape):
    with pytest.raises(UsageError, match=r"16.*49"):
        Patchify(7).inverse(torch.zeros(shape), (28, 28))
    with pytest.raises(UsageError):
        Patchify(7).inverse(torch.zeros(16, 147), (28, 30))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"channels": "frist"}, "channels='first'"),
        ({"order": "column"}, "order='columns'"),
        ({"flattening": "hwc"}, "flattening='h w c'"),
        ({"patch_size": 0}, "patch_size=7"),
        ({"patch_size": (7,)}, "patch_size=7"),
        ({"patch_size": (7, 7.0)}, "patch_size=7"),
        ({"patch_size": True}, "patch_size=7"),
    ],
)
def test_an_unknown_word_is_an_error(fields, hint):
    with pytest.raises(UsageError) as raised:
        Patchify(**{"patch_size": 7, **fields})
    assert str(raised.value.hint) == hint


def test_it_is_a_value():
    assert Patchify(7) == Patchify((7, 7))
    assert hash(Patchify(7)) == hash(Patchify((7, 7)))
    assert Patchify((4, 7)).patch == (4, 7)
