"""Grad-CAM and HiResCAM: which layers can be asked for, and which answer nothing."""

import re

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.errors import UsageError
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
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_every_layer_answers_or_says_why_not(method, config) -> None:
    network, images = make_network(config), make_images(config)
    dead = {"blocks.2.mlp", "blocks.2.output"} if config.pooling == "class" else set()
    for layer in layers_of(network):
        if layer in dead:
            says = rf"no gradient reaches the patch tokens of {layer}.*tokens to blocks.2.norm1\ntry: "
            with pytest.raises(UsageError, match=says + "layer='blocks.2.norm1'"):
                method(network, images, layer=layer)
        else:
            assert method(network, images, layer=layer).values.shape == (2, 3, 5)
    assert not {"norm1", "tokens"} & {layer.rpartition(".")[2] for layer in dead}


def test_a_dead_picture_is_not_the_layers_fault() -> None:
    """A head of zeros: no layer has a gradient, so the map is empty and says so."""
    network = make_network(PLAIN)
    with torch.no_grad():
        network.head.weight.zero_()
    for method in (grad_cam, hires_cam):
        heat = method(network, make_images(PLAIN))
        assert not heat.values.any()
        assert heat.notes == (("no signal",), ("no signal",))


@both
@pytest.mark.parametrize("layer", ["blocks.3.norm1", "blocks.2.nrm1", "blocks.2.attention", "pooled", "", "*", 2])
@pytest.mark.usefixtures("as_a_user")
def test_a_layer_that_does_not_exist(method, layer) -> None:
    says = f"layer must be tokens or blocks.0..2 with .input, .norm1, .mlp or .output, got {layer!r}"
    with pytest.raises(UsageError, match=re.escape(says) + "\ntry: layer='(blocks|tokens)"):
        method(make_network(PLAIN), make_images(PLAIN), layer=layer)


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
    heat = hires_cam(network.eval(), images, 1, layer="blocks.2.output")
    assert (heat.values.sum(dim=(1, 2)) - (heat.logit - network.head.bias[1].detach())).abs().max() <= 1e-12


def test_cut_at_zero() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 32)
    assert grad_cam(network, images, 1).values.min() == 0
    assert hires_cam(network, images, 1).values.min() < 0
