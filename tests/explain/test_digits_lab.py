"""Do maps lie where the evidence is? On real digits whose place is known (lab.py), with small trained networks.

Measured for seeds 0, 1 and 2 on n = 400 pictures, of which 0.96 to 0.97 were classified right; networks of 2 blocks,
width 48, patches of 8 pixels, trained for 500 steps on one digit a picture. Pointing game (chance 0.0625):

    pooling   raw attention   rollout   generic, clamp="mean"   generic, clamp="head"
    class     0.57 to 0.94    1.00      0.46 to 0.64            0.86 to 0.96
    mean      0.77 to 0.84    1.00      0.86 to 0.90            0.99 to 1.00

Two digits in a picture, n = 327: does the class's own digit get more than the other? Raw attention and rollout are the
same for both classes, so they get exactly 0.5.

    class                               0.82 to 0.93            0.82 to 0.92
    mean                                0.93 to 0.94            0.87 to 0.90

The methods that look at pixels and tokens or cover patches, measured for seed 0 on the same pictures: the pointing game
with a class token and with mean pooling, and the two digits.

    saliency 0.99, 1.00 and 0.50, 0.49                     occlusion 1.00, 1.00 and 1.00, 1.00
    SmoothGrad 0.98, 0.97 and 0.51, 0.52 (4 samples)       RISE 1.00, 1.00 and 1.00, 1.00 (300 masks)
    input x gradient 0.51, 0.57 and 0.86, 0.94             KernelSHAP 1.00, 1.00 and 1.00, 1.00 (300 samples)
    integrated gradients 0.87, 0.96 and 0.96, 0.97         Grad-CAM 0.15, 0.37 and 0.38, 0.66
                                                           HiResCAM 0.27, 0.50 and 0.59, 0.72

The limits below are for seed 0 and stand somewhat under these: they find broken code, they do not rank methods.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.explain import lab
from tests.explain.mutants import make_copy
from tests.explain.reference import make_network
from tests.explain.suite import UNSURE, draws, quick, rough
from vitrail.explain import METHODS, Method, generic_attention, rollout
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.config import Pooling

CHANCE = 1 / lab.CELLS**2
LIMITS = {"class": (0.95, 0.30, 0.80), "mean": (0.95, 0.75, 0.95)}  # rollout, generic "mean", generic "head"


def config_of(pooling: Pooling, patch: int = 8, width: int = 48, depth: int = 2) -> ViTConfig:
    return ViTConfig(
        image_size=32,
        patch_size=patch,
        channels=1,
        classes=10,
        width=width,
        depth=depth,
        heads=4,
        mlp_dim=2 * width,
        pooling=pooling,
    )


@pytest.fixture(scope="module")
def trained() -> Callable[[Pooling], ViT]:
    """One training of some seconds for each pooling."""
    networks: dict[str, ViT] = {}

    def get(pooling: Pooling) -> ViT:
        if pooling not in networks:
            networks[pooling] = lab.train(config_of(pooling), steps=500, seed=0)
        return networks[pooling]

    return get


def right(network: ViT, count: int = 400) -> lab.Pictures:
    """Test pictures that the network classifies right."""
    pictures = lab.single(count, torch.Generator().manual_seed(99), test=True)
    with torch.no_grad():
        kept = network(pictures.images).argmax(dim=1) == pictures.classes
    assert kept.float().mean() > 0.9
    return lab.Pictures(pictures.images[kept], pictures.classes[kept], pictures.cells[kept])


def assert_limits(network: ViT, limits: tuple[float, float, float]) -> None:
    pictures = right(network)
    maps = (
        rollout(network, pictures.images).values,
        generic_attention(network, pictures.images, clamp="mean").values,
        generic_attention(network, pictures.images).values,
    )
    for values, limit in zip(maps, limits, strict=True):
        assert lab.pointing(values, pictures.cells) >= limit
        assert lab.mass(values, pictures.cells) >= 4 * CHANCE


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_maps_lie_on_the_digit(trained: Callable[[Pooling], ViT], pooling: Pooling) -> None:
    assert_limits(trained(pooling), LIMITS[pooling])


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_maps_lie_on_the_digit_with_four_patches_each(seed: int) -> None:
    """Measured, for the three seeds: rollout 0.98 to 0.99; generic 0.90 to 0.97, with clamp="mean" 0.77 to 0.93."""
    assert_limits(lab.train(config_of("class", patch=4, width=64, depth=3), steps=900, seed=seed), (0.95, 0.70, 0.85))


def test_a_transposed_map_would_be_noticed(trained: Callable[[Pooling], ViT], tmp_path: Path) -> None:
    swapped = "row[:, prefix:].unflatten(1, grid[::-1]).transpose(1, 2)"
    mutant = make_copy(tmp_path, "readout.py", "row[:, prefix:].unflatten(1, grid)", swapped)
    pictures = right(trained("mean"))
    for method in (mutant.rollout, mutant.generic_attention):
        assert lab.pointing(method(trained("mean"), pictures.images).values, pictures.cells) < 0.4


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_only_class_specific_methods_tell_two_digits_apart(trained: Callable[[Pooling], ViT], pooling: Pooling) -> None:
    """T10, on networks that were trained with one digit a picture."""
    network, pairs = trained(pooling), lab.double(400, torch.Generator().manual_seed(5))
    for method in map(quick, METHODS.values()):
        one, two = (method.function(network, pairs.images, pairs.classes[:, index]).values for index in (0, 1))
        assert torch.equal(one, two) is not method.class_specific
        share = lab.discrimination((one, two), pairs.cells)
        if method.name in UNSURE:
            assert 0.25 < share < 0.85
        else:
            assert share > 0.80 if method.class_specific else share == 0.5
    one, two = (generic_attention(network, pairs.images, pairs.classes[:, i], clamp="mean").values for i in (0, 1))
    assert lab.discrimination((one, two), pairs.cells) > 0.80


@pytest.mark.parametrize("method", [rough(method) for method in METHODS.values()], ids=METHODS)
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_noise_points_everywhere_alike(method: Method, pooling: Pooling) -> None:
    """The code itself prefers no place (T14): without positions, the largest value of noise is in any cell alike."""
    network = make_network(replace(config_of(pooling), positions="none"))
    noise = torch.randn(1600, 1, 32, 32, generator=torch.Generator().manual_seed(3))
    if draws(method):  # every four pictures get draws of their own: what is drawn once points somewhere by chance
        maps = [method.function(network, few, 1, seed=seed).values for seed, few in enumerate(noise.split(4))]
    else:
        maps = [method.function(network, noise, 1).values]
    cells = lab.by_cell(torch.cat(maps))
    tops = cells[cells.flatten(1).any(dim=1)].amax(dim=2).argmax(dim=1)  # a map of which nothing is left has no top
    expected = len(tops) / 16
    assert expected > 20
    counts = torch.bincount(tops, minlength=16)
    share = 4 if draws(method) else 1  # of the pictures that have their draws in common
    assert (counts - expected).abs().max() <= 4.6 * (share * expected) ** 0.5  # standard deviations


def test_the_lab_measures_what_it_says() -> None:
    """A perfect map scores 1, an empty preference scores chance, and the digit is where the lab says it is."""
    pictures = lab.single(300, torch.Generator().manual_seed(0), test=True)
    for side in (4, 8):
        perfect = torch.zeros(300, lab.CELLS, side // 4, lab.CELLS, side // 4)
        perfect[torch.arange(300), pictures.cells // lab.CELLS, :, pictures.cells % lab.CELLS] = 1.0
        perfect = perfect.reshape(300, side, side)
        assert lab.pointing(perfect, pictures.cells) == lab.mass(perfect, pictures.cells) == 1.0
        assert lab.mass(torch.ones(300, side, side), pictures.cells) == pytest.approx(CHANCE)
        noise = torch.rand(300, side, side, generator=torch.Generator().manual_seed(1))
        assert lab.pointing(noise, pictures.cells) == pytest.approx(CHANCE, abs=0.04)
    # real digits have dark borders left and right, shuffled ones do not
    borders = (
        pictures.images.view(300, 4, 8, 4, 8).permute(0, 1, 3, 2, 4).flatten(1, 2)[..., [0, -1]].abs().mean((2, 3))
    )
    assert (borders.argmin(dim=1) == pictures.cells).float().mean() > 0.9
