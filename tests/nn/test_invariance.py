"""Images do not mix, and any grid of patches works."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from tests.nn.reference import redraw, some_images
from vitrail.nn import STANDARD, Parts, ViT, ViTConfig, features

SMALL = ViTConfig(image_size=(16, 24), patch_size=8, classes=5, width=24, depth=3, heads=3)
FORMS = {
    "class token": SMALL,
    "registers": replace(SMALL, registers=4),
    "distilled": replace(SMALL, distillation_token=True),
    "mean of patches": replace(SMALL, pooling="mean", class_token=False),
    "LayerScale, relu": replace(SMALL, layer_scale=0.1, activation="relu"),
    "Ti/16": ViTConfig.from_size("Ti/16", image_size=48, classes=10),
    "S/16": ViTConfig.from_size("S/16", image_size=32, classes=10),
}


def built(config: ViTConfig, parts: Parts = STANDARD) -> ViT:
    network = ViT(config, parts)
    redraw(network)
    return network.eval()


def must_not_mix(network: Callable[[Tensor], Tensor], images: Tensor) -> None:
    """Each image's logits: the same bits with other neighbours, and 1e-5 from those it gets alone."""
    with torch.no_grad():
        together = network(images)
        strangers = some_images(*images.shape, seed=7) * 3
        strangers[-1] = float("nan")
        for index in range(len(images)):
            others = strangers.roll(index, 0).clone()
            others[index] = images[index]
            assert torch.equal(network(others)[index], together[index])
            assert (network(images[index : index + 1])[0] - together[index]).abs().max() <= 1e-5
    assert together.std(dim=0).min() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_logits_do_not_depend_on_the_neighbours(form: str):
    config = FORMS[form]
    must_not_mix(built(config), some_images(4, 3, *config.image))


class NormOverTheBatch(nn.Module):
    """A planted fault: a norm whose mean runs over the images too."""

    def forward(self, tokens: Tensor) -> Tensor:
        return (tokens - tokens.nanmean()) / tokens.std(dim=-1, keepdim=True)


def test_a_network_that_mixes_images_is_found():
    with pytest.raises(AssertionError):
        must_not_mix(built(SMALL, Parts(norm=lambda config: NormOverTheBatch())), some_images(4, 3, 16, 24))


NARROW = ViTConfig(image_size=(4, 9), patch_size=(2, 3), channels=1, classes=3, width=8, depth=1, heads=2, registers=1)
POSITIONS = ["learned", "sinusoidal", "sinusoidal-2d", "none"]


@pytest.fixture(scope="module")
def narrow() -> dict[str, ViT]:
    return {positions: built(replace(NARROW, positions=positions)) for positions in POSITIONS}


@pytest.mark.parametrize("positions", POSITIONS)
@settings(deadline=None, max_examples=8)
@given(grid=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_any_grid_of_1_to_40_patches_works(narrow: dict[str, ViT], positions: str, grid: tuple[int, int]):
    network = narrow[positions]
    images = some_images(2, 1, grid[0] * 2, grid[1] * 3)
    with torch.no_grad():
        logits, described = network(images), features(network, images)
    assert network.grid(images) == grid
    assert logits.shape == (2, 3)
    assert logits.isfinite().all()
    assert described.patches.shape == (2, *grid, 8)
    alone = network(images[:1])[0]
    assert (alone - logits[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("grid", [(40, 40), (1, 40), (40, 1), (1, 1)])
def test_the_corners_of_that_range_work_with_gradients(narrow: dict[str, ViT], positions: str, grid: tuple[int, int]):
    images = some_images(1, 1, grid[0] * 2, grid[1] * 3).requires_grad_()
    (gradient,) = torch.autograd.grad(narrow[positions](images).sum(), images)
    assert gradient.isfinite().all()
    assert (gradient.unfold(2, 2, 2).unfold(3, 3, 3).abs().sum(dim=(0, 1, 4, 5)) > 0).all()  # every patch counts


def test_without_positions_patches_may_change_places_and_with_them_they_may_not():
    images = some_images(1, 1, 4, 9)
    exchanged = torch.cat([images[..., 3:6], images[..., :3], images[..., 6:]], dim=-1)
    for positions in POSITIONS:
        network = built(replace(NARROW, positions=positions))
        same = torch.allclose(network(images), network(exchanged), atol=1e-5)
        assert same == (positions == "none"), positions
