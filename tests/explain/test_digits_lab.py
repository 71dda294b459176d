"""Every method where the truth is known: on a committed network with a class token, and on one that reads the mean.

Which class's digit gets more, of two in an image (T10)? Measured on 24 images that networks trained with one digit an
image had never seen, with a class token and with mean pooling:

    raw attention, rollout, head view   0.50, 0.50     occlusion             0.98, 1.00
    generic attention                   0.98, 0.94     RISE (60 masks)       0.94, 0.90
    conservative                        0.98, 0.96     KernelSHAP (512)      1.00, 0.98
    gradient rollout                    0.96, 0.96     LeGrad                0.92, 0.96
    AttCAT                              0.85, 0.83     Grad-CAM              0.85, 0.70
    TAM                                 0.73, 0.56     HiResCAM              0.85, 0.52
    attention Grad-CAM                  0.40, 0.57     saliency              0.48, 0.52
    input x gradient                    0.04, 0.25     SmoothGrad            0.54, 0.62

Pointing game of generic attention on 200 images, three networks each: with a class token 0.995 to 1.00 with
`clamp="head"` and 0.98 to 0.995 with `clamp="mean"`; with mean pooling 0.995 to 1.00 with either.

The limits stand somewhat under these: they find broken code, they do not rank methods (`benchmarks/explain.md` does).
All methods are asked with both networks in `make soak`; here a few with one.
"""

import pytest
import torch

from benchmarks.scores.agreement import class_discrimination, pointing_game
from tests.explain.planted_lab import load_planted, shown
from tests.explain.reference import make_network
from tests.explain.suite import ON_THE_LAB, UNSURE, draws, quick, rough
from vitrail.explain import METHODS, Method
from vitrail.nn import ViTConfig
from vitrail.nn.config import Pooling

pytestmark = pytest.mark.usefixtures("as_a_user")

COSTLY = {"kernel_shap", "integrated_gradients"}  # fewer images
# they say what a pixel's own grey value does, and where it is the mean grey it does nothing
OF_GREY_VALUES = {"input_x_gradient", "integrated_gradients"}


def cases(*often: str) -> list:
    """Some methods on the class-token network, and all methods on both networks in `make soak`."""
    every = [(name, kind) for name in METHODS for kind in ("class", "mean")]
    return [*((name, "class") for name in often), *(pytest.param(*one, marks=pytest.mark.soak) for one in every)]


def test_a_transposed_map_would_be_noticed() -> None:
    some, network = shown("mean-0", 60, seed=35), load_planted("mean-0").network
    for name in ("rollout", "generic_attention"):
        values = METHODS[name].function(network, some.images).values
        assert pointing_game(values, some.masks[:, 0]).mean() >= 0.85
        assert pointing_game(values.mT, some.masks[:, 0]).mean() < 0.4


@pytest.mark.parametrize(("name", "kind"), cases("generic_attention", "occlusion", "rollout"))
def test_only_class_specific_methods_tell_two_digits_apart(name: str, kind: str) -> None:
    """T10, on networks that were trained with one digit an image; by chance half of 48 answers are right."""
    method, network = quick(METHODS[name], ON_THE_LAB), load_planted(f"{kind}-0").network
    some = shown(f"{kind}-0", 24, "double", seed=35).select(slice(8 if name in COSTLY else 24))
    one, two = (method.function(network, some.images, some.labels[:, digit]).values for digit in (0, 1))
    assert torch.equal(one, two) is not method.class_specific
    fraction = float(class_discrimination(one, two, some.masks).nanmean())
    if not method.class_specific:
        assert fraction == 0.5
    elif name not in UNSURE | OF_GREY_VALUES:
        assert fraction > 0.80


def tops(method: Method, pooling: Pooling, images: int) -> tuple[torch.Tensor, int]:
    """How often each of 16 patches is the highest in maps of noise, and how many images share what is drawn.

    A method that draws gets draws of their own for every two images: what is drawn once points somewhere by chance.
    """
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        channels=1,
        classes=10,
        width=48,
        depth=2,
        heads=4,
        mlp_dim=96,
        pooling=pooling,
        positions="none",
    )
    network, together = make_network(config), 2 if draws(method) else images
    noise = torch.randn(images, 1, 32, 32, generator=torch.Generator().manual_seed(3)).split(together)
    options = [{"seed": seed} if draws(method) else {} for seed in range(len(noise))]
    maps = [method.function(network, few, 1, **some).values for few, some in zip(noise, options, strict=True)]
    values = torch.cat(maps).flatten(1)
    values = values[values.any(dim=1)]  # a map of which nothing is left has no top
    return torch.bincount(values.argmax(dim=1), minlength=16), together if draws(method) else 1


@pytest.mark.parametrize(("name", "pooling"), cases("raw_attention", "generic_attention", "saliency"))
def test_noise_points_everywhere_alike(name: str, pooling: Pooling) -> None:
    """The code itself prefers no place (T14): without positions, the largest value of noise is at any patch alike."""
    method = rough(METHODS[name])
    counts, together = tops(method, pooling, 800 if draws(method) else 1600)
    expected = float(counts.sum()) / 16
    assert expected > 20
    assert (counts - expected).abs().max() <= 4.6 * (together * expected) ** 0.5  # standard deviations
