"""Saliency and input x gradient: contrasts, and functions of the logits."""

import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.methods.input_x_gradient import input_x_gradient
from vitrail.explain.methods.saliency import saliency


def test_a_contrast_is_the_difference_of_two_signed_maps() -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    both = input_x_gradient(network, images, (2, 0))
    apart = input_x_gradient(network, images, 2).values - input_x_gradient(network, images, 0).values
    assert (both.values - apart).abs().max() <= 1e-12
    assert both.target.tolist() == [2, 2, 2]
    turned = saliency(network, images, (0, 2)).values
    assert (saliency(network, images, (2, 0)).values - turned).abs().max() <= 1e-12  # sizes know no sign


def test_a_function_of_the_logits() -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    for method in (saliency, input_x_gradient):
        half = method(network, images, lambda logits: logits[:, 1] / 2)
        assert (2 * half.values - method(network, images, 1).values).abs().max() <= 1e-12


def test_a_black_image_has_no_input_x_gradient() -> None:
    images = make_images(PLAIN)
    images[1] = 0
    attribution = input_x_gradient(make_network(PLAIN), images)
    assert attribution.notes == ((), ("no signal",))
    assert not attribution.values[1].any()
    assert saliency(make_network(PLAIN), images).notes == ((), ())


def test_numbers_do_not_add_up_to_the_logit() -> None:
    """What sets input x gradient apart from the methods that keep the sum."""
    network, images = make_network(PLAIN), make_images(PLAIN, 16)
    attribution = input_x_gradient(network, images, 1)
    at_zero = network(torch.zeros_like(images))[:, 1].detach()
    missing = (attribution.values.sum(dim=(1, 2)) - (attribution.logit - at_zero)).abs() / (
        attribution.logit - at_zero
    ).abs()
    assert missing.median() > 0.1


def test_more_evidence_of_a_patch_is_not_more_than_its_pixels() -> None:
    """An image ten times as bright has another gradient, and ten times the pixels: nothing is rescaled."""
    network = make_network(PLAIN.from_dict({**vars(PLAIN), "embed_bias": True}))
    images = make_images(PLAIN)
    assert not torch.allclose(saliency(network, images).values, saliency(network, 10 * images).values)
