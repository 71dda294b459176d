"""RISE: what its map estimates, and that its masks say nothing by themselves."""

import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.explain.methods.rise import random_masks, rise, rise_of


def test_a_network_that_does_not_look_gives_nothing() -> None:
    """The paper's sum would show which patches happened to be seen more often."""
    masks = random_masks((4, 6), 50, 3, 0.5, 0).double()
    constant = torch.full((50, 2), 7.0, dtype=torch.float64)
    assert rise_of(masks, constant).abs().max() <= 1e-12
    network = make_network(PLAIN)
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.fill_(5.0)
    attribution = rise(network, make_images(PLAIN), masks=30)
    assert attribution.notes == (("no signal",), ("no signal",))


def test_independent_masks_find_what_each_patch_adds() -> None:
    """Masks of single patches, seen or not by a fair coin: the map of an additive answer tends to half of each part."""
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(60_000, 3, 4, generator=generator) < 0.5).double()
    parts = torch.randn(3, 4, generator=generator).double()
    found = (masks * parts).sum(dim=(1, 2))[:, None] + 100.0  # what all masks fraction is taken out
    assert (rise_of(masks, found)[0] - parts / 2).abs().max() < 0.05


def test_a_patch_that_no_mask_shows_gets_zero() -> None:
    masks = torch.zeros(3, 1, 2, dtype=torch.float64)
    masks[:, 0, 0] = torch.tensor([0.0, 1.0, 1.0])
    values = rise_of(masks, torch.tensor([[1.0], [4.0], [4.0]], dtype=torch.float64))
    assert values[0, 0].tolist() == [1.0, 0.0]


def test_masks_of_any_grid() -> None:
    """Of fewer patches than cells, of one patch, and of one row."""
    for grid in ((3, 5), (1, 1), (1, 9), (14, 14)):
        masks = random_masks(grid, 400, 7, 0.5, 0)
        assert masks.shape == (400, *grid)
        assert masks.min() == 0
        assert masks.max() == 1
        assert (masks.mean(dim=0) - 0.5).abs().max() < 0.12
        assert masks.std(dim=0).min() > 0.2


def test_more_masks_agree_better() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 2)

    def apart(masks: int) -> float:
        one, two = (rise(network, images, 1, masks=masks, seed=seed, batch_size=512).values for seed in (1, 2))
        return float((one - two).square().mean().sqrt())

    assert apart(1600) < 0.45 * apart(100)


def test_the_map_rolls_with_image_and_masks() -> None:
    """T15 for a method that draws: the drawn masks are rolled with the image."""
    config = VARIANTS["mean-0"].from_dict({**vars(VARIANTS["mean-0"]), "positions": "none"})
    network, images = make_network(config).double(), make_images(config).double()
    masks = random_masks((3, 5), 40, 3, 0.5, 0).double()

    def map_of(images: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        seen = masks.repeat_interleave(4, 1).repeat_interleave(2, 2)[:, None, None]
        with torch.no_grad():
            found = network((images[None] * seen).flatten(0, 1))[:, 1].unflatten(0, (40, 2))
        return rise_of(masks, found)

    before = map_of(images, masks)
    assert (rise(network, images, 1, masks=40, cells=3, fill=0.0).values - before).abs().max() <= 1e-10
    after = map_of(images.roll((4, 4), dims=(2, 3)), masks.roll((1, 2), dims=(1, 2)))
    assert (after - before.roll((1, 2), dims=(1, 2))).abs().max() <= 1e-10
