"""Attention Grad-CAM: a head that raises the class and one that lowers it, in closed form; nothing left."""

from itertools import pairwise

import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain import attention_grad_cam, raw_attention

ONE_HEAD = PLAIN.from_dict({**vars(PLAIN), "heads": 1})


def test_with_one_head_it_is_raw_attention_or_nothing() -> None:
    """One head has one weight: the map is its attention times a number, or zero where that is negative."""
    network, images = make_network(ONE_HEAD).double(), make_images(ONE_HEAD, 8).double()
    raw = raw_attention(network, images).values.flatten(1)
    for target in range(4):
        attribution = attention_grad_cam(network, images, target)
        for values, weights, notes in zip(attribution.values.flatten(1), raw, attribution.notes, strict=True):
            fraction = values / weights
            assert fraction.max() - fraction.min() <= 1e-10 * fraction.max()
            assert notes == (() if values.any() else ("no signal",))
    opposite = attention_grad_cam(network, images, lambda logits: -logits[:, 3]).values.flatten(1)
    assert ((opposite > 0).any(dim=1) != (attribution.values.flatten(1) > 0).any(dim=1)).all()


def test_the_layer_reaches_the_map() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 4)
    maps = [attention_grad_cam(network, images, torch.arange(4), layer=layer).values for layer in (0, 1, -1)]
    assert torch.equal(maps[2], attention_grad_cam(network, images, torch.arange(4), layer=2).values)
    assert all((one - two).abs().max() > 1e-4 for one, two in pairwise(maps))
