"""SmoothGrad: its noise goes with the image's range, and more samples agree better."""

import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.smooth_grad import smooth_grad


def test_noise_is_a_share_of_the_range() -> None:
    """A little noise hardly moves the map, and more moves it more; an image of one colour has no range."""
    network, images = make_network(PLAIN), make_images(PLAIN, 16)
    plain = saliency(network, images, 1).values
    moved = [
        float((smooth_grad(network, images, 1, noise=noise, samples=8).values - plain).abs().mean())
        for noise in (1e-4, 0.05, 0.3)
    ]
    assert moved[0] < 1e-3
    assert moved[0] < moved[1] < moved[2]
    flat = torch.full_like(images[:1], 0.7)
    assert (smooth_grad(network, flat, 1).values - saliency(network, flat, 1).values).abs().max() <= 1e-5


def test_more_samples_agree_better() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 8)

    def apart(samples: int) -> float:
        one, two = (smooth_grad(network, images, 1, samples=samples, seed=seed).values for seed in (1, 2))
        return float((one - two).abs().mean())

    assert apart(128) < 0.5 * apart(8)
