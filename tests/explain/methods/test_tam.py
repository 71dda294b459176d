"""TAM: steps and layers, that a probability would vanish, and that the walk ends where it is told."""

import torch

from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain import raw_attention, tam
from vitrail.nn import Record


def test_without_a_walk_it_is_raw_attention_times_the_last_gradient() -> None:
    network, images, record = make_network(PLAIN).double(), make_images(PLAIN).double(), Record(gradients=True)
    gradient = record.gradient(network(images, record)[:, 1].sum(), "blocks.2")["blocks.2"]
    weights = gradient.clamp(min=0).mean(dim=1)[:, 0, 1:].unflatten(1, (3, 5))
    wanted = raw_attention(network, images).values * weights
    assert (tam(network, images, 1, steps=1, first_layer=-1).values - wanted).abs().max() <= 1e-12


def test_a_third_of_the_layers_is_left_out() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    assert torch.equal(tam(network, images, 1).values, tam(network, images, 1, first_layer=1, steps=20).values)
    for other in ({"first_layer": 0}, {"first_layer": 2}, {"steps": 1}, {"steps": 2}):
        assert (tam(network, images, 1, **other).values - tam(network, images, 1).values).abs().max() > 1e-5


def test_the_top_class_is_that_of_the_whole_image() -> None:
    """A darker image may have another top class; what is explained does not change on the way."""
    network, images = make_network(PLAIN), make_images(PLAIN, 16)
    top = network(images).argmax(dim=1)
    assert (network(images / 20).argmax(dim=1) != top).any()
    assert torch.equal(tam(network, images).values, tam(network, images, top).values)


def test_a_sure_network_is_still_explained() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    with torch.no_grad():
        network.head.weight.mul_(200.0)
    logits = network(images)
    assert logits.softmax(dim=1).amax(dim=1).min() > 0.999
    top = logits.argmax(dim=1)
    sure = tam(network, images, steps=1).values
    probability = tam(network, images, lambda rows: rows.softmax(dim=1).gather(1, top[:, None])[:, 0], steps=1).values
    assert sure.max() > 1e-2
    assert probability.max() < 1e-3 * sure.max()
