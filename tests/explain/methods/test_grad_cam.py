"""Grad-CAM and HiResCAM: which layers can be asked for, and which answer nothing."""

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse_and_say_what_works
from vitrail.explain.methods.grad_cam import grad_cam, layers_of
from vitrail.explain.methods.hires_cam import hires_cam

both = pytest.mark.parametrize("method", [grad_cam, hires_cam])


@both
def test_the_default_is_what_the_last_attention_reads(method) -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    named = method(network, images, layer="blocks.2.norm1").values
    assert torch.equal(method(network, images).values, named)
    assert not torch.equal(method(network, images, layer="blocks.0.norm1").values, named)


@both
@pytest.mark.parametrize("variant", ["class-5-distilled", "mean-2-register"])
def test_every_layer_answers_or_says_why_not(method, variant) -> None:
    config = VARIANTS[variant]
    network, images = make_network(config), make_images(config)
    dead = {"blocks.2.mlp", "blocks.2.output"} if config.pooling == "class" else set()
    for layer in layers_of(network):
        if layer in dead:
            must_refuse_and_say_what_works(lambda **options: method(network, images, **options), layer, layer=layer)
        else:
            assert method(network, images, layer=layer).values.shape == (2, 3, 5)
    assert not {"norm1", "tokens"} & {layer.rpartition(".")[2] for layer in dead}


def test_a_dead_image_is_not_the_layers_fault() -> None:
    """A head of zeros: no layer has a gradient, so the map is empty and says so."""
    network = make_network(PLAIN)
    with torch.no_grad():
        network.head.weight.zero_()
    for method in (grad_cam, hires_cam):
        attribution = method(network, make_images(PLAIN))
        assert not attribution.values.any()
        assert attribution.notes == (("no signal",), ("no signal",))


def test_before_a_norm_alone_nothing_is_left_of_hires_cam() -> None:
    """A class-token network reads the patches after its last block but one through a LayerNorm only, which does not
    see how long a token is: t (d y / d t) = 0 (Euler)."""
    network, images = make_network(PLAIN), make_images(PLAIN, 4)
    for precise in (False, True):
        network, images = (network.double(), images.double()) if precise else (network, images)
        lost = hires_cam(network, images, 1, layer="blocks.2.input")
        assert lost.values.abs().max() <= 1e-4
        assert set(lost.notes) == {("no signal",)}
        kept = hires_cam(network, images, 1, layer="blocks.2.norm1")
        assert kept.values.abs().max() > 0.01
        assert set(kept.notes) == {()}


def test_behind_a_layer_that_is_linear_the_values_add_up() -> None:
    """Mean pooling without a last norm: the last block's output gives the logit less the head's bias."""
    network = make_network(VARIANTS["mean-1"]).double()
    network.norm = torch.nn.Identity()
    images = make_images(PLAIN, 3).double()
    attribution = hires_cam(network.eval(), images, 1, layer="blocks.2.output")
    assert (
        attribution.values.sum(dim=(1, 2)) - (attribution.logit - network.head.bias[1].detach())
    ).abs().max() <= 1e-12


def test_cut_at_zero() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 32)
    assert grad_cam(network, images, 1).values.min() == 0
    assert hires_cam(network, images, 1).values.min() < 0
