"""Which tokens are read out, what is put on the grid, and that opening a run does not change it (T1)."""

from dataclasses import replace

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, explicit, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain import METHODS
from vitrail.explain.forward import forward_pass, on_grid, readout_of
from vitrail.nn import ViTConfig


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("gradients", [False, True])
def test_opening_a_run_does_not_change_it(config: ViTConfig, gradients: bool) -> None:
    """T1: the same bits with and without; the weights are those of an explicit softmax, and their rows sum to 1."""
    network, images = make_network(config), make_images(config)
    logits = network(images)
    forward = forward_pass(network, images, None, "blocks.*.attention", "logits", gradients=gradients)
    assert torch.equal(forward.record["logits"], logits)
    assert torch.equal(forward.logit, logits.amax(dim=1))
    assert forward.logit.requires_grad is gradients
    slow, weights = explicit(network, images)
    assert (slow - logits).abs().max() <= 1e-5
    layers = [layer.weights(range(2), range(config.prefix + 15)) for layer in forward.layers()]
    for layer, wanted in zip(layers, weights, strict=True):
        assert (layer - wanted).abs().max() <= 1e-5
        assert (layer.sum(dim=-1) - 1).abs().max() <= 1e-6
        assert not layer.requires_grad


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [
        ("class-1", {0: 1.0}),
        ("class-2-distilled", {0: 0.5, 1: 0.5}),
        ("class-5-registers", {0: 1.0}),
        ("class-5-distilled", {0: 0.5, 1: 0.5}),
        ("mean-0", dict.fromkeys(range(15), 1 / 15)),
        ("mean-1", dict.fromkeys(range(1, 16), 1 / 15)),
        ("mean-2-register", dict.fromkeys(range(2, 17), 1 / 15)),
        ("mean-5-distilled", {1: 0.5} | dict.fromkeys(range(5, 20), 1 / 30)),
    ],
)
def test_who_is_read_out(variant: str, wanted: dict[int, float]) -> None:
    config = VARIANTS[variant]
    rows = readout_of(make_network(config), torch.randn(2, config.prefix + 15, config.width))
    assert torch.equal(rows[0], rows[1])
    assert rows.shape == (2, config.prefix + 15)
    readout = rows[0]
    read = readout.nonzero()[:, 0].tolist()
    assert dict(zip(read, readout[read].tolist(), strict=True)) == pytest.approx(wanted)
    assert readout.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_the_readout_is_what_the_logits_really_read(config: ViTConfig) -> None:
    """Behind the last block, a logit reacts to these tokens and to no other."""
    network = make_network(config)
    tokens = torch.randn(1, config.prefix + 15, config.width, requires_grad=True)
    network.readout(tokens)[0, 1].backward()
    assert tokens.grad is not None
    assert torch.equal(tokens.grad[0].abs().sum(dim=1) > 0, readout_of(network, tokens.detach())[0] > 0)


@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
def test_the_grid_shows_patches_in_reading_order(prefix: int) -> None:
    row = torch.cat([torch.full((2, prefix), -1.0), torch.arange(6.0).expand(2, 6)], dim=1)
    assert on_grid(row, prefix, (2, 3)).tolist() == [[[0, 1, 2], [3, 4, 5]]] * 2


def test_weights_made_in_inference_mode() -> None:
    """What needs no gradient works; what does is refused."""
    with torch.inference_mode():
        network = make_network(PLAIN)
    images = make_images(PLAIN)
    assert forward_pass(network, images, None, "blocks.*.attention").logit.isfinite().all()
    with must_refuse("inference_mode"):
        forward_pass(network, images, None, "blocks.*.attention", gradients=True)


@pytest.mark.usefixtures("as_a_user")
def test_what_the_shape_check_would_catch_first() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    for method in METHODS.values():
        with must_refuse("images", torch.uint8):
            method.function(network, images.to(torch.uint8))
        with must_refuse("0..3", torch.float32):
            method.function(network, images, 1.5)


def test_positions_of_any_kind() -> None:
    for positions in ("learned", "sinusoidal", "none"):
        network = make_network(replace(PLAIN, positions=positions))
        assert forward_pass(network, make_images(PLAIN), 0, "blocks.*.attention").grid == (3, 5)
