"""What the pixel methods share: sums over patches, layouts and chunks."""

import torch
from hypothesis import given, settings, strategies as st

from lessons.parts import Patchify
from vitrail.explain.methods.pixels import by_patch, chunks
from vitrail.explain.scores.perturb import like_images


@settings(deadline=None, max_examples=25)
@given(grid=st.tuples(st.integers(1, 4), st.integers(1, 4)), patch=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_patches_are_summed_as_patchify_cuts_them(grid: tuple[int, int], patch: tuple[int, int]) -> None:
    size = (2, 3, grid[0] * patch[0], grid[1] * patch[1])
    images = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = Patchify(patch)(images).sum(dim=2).unflatten(1, grid)
    assert (by_patch(images, grid) - wanted).abs().max() <= 1e-12


@settings(deadline=None)
@given(images=st.integers(0, 9), versions=st.integers(0, 9), batch_size=st.integers(1, 30))
def test_chunks_mask_everything_once(images: int, versions: int, batch_size: int) -> None:
    seen = torch.zeros(images, versions)
    for which, some in chunks(images, versions, batch_size):
        assert seen[which, some].numel() <= batch_size
        seen[which, some] += 1
    assert seen.eq(1).all()


def test_one_number_for_each_channel_is_not_one_for_each_column() -> None:
    """As many columns as channels: a plain broadcast would paint stripes."""
    images = torch.zeros(1, 3, 3, 3)
    spread = like_images("fill", [1.0, 2.0, 3.0], images)
    assert spread[0, :, 0, 0].tolist() == [1.0, 2.0, 3.0]
    assert spread[0, 1].eq(2.0).all()
