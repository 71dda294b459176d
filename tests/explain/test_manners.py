"""What every method leaves as it was, and what it refuses; a new row of `METHODS` inherits all of it."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.explain.left import same, state_of, with_gradients
from tests.explain.reference import PLAIN, make_images, make_network
from tests.explain.refused import must_refuse
from tests.explain.suite import (
    STANDARD_PARTS,
    WITHOUT_WEIGHTS,
    differentiates,
    every_method,
    every_method_and_variant,
)
from vitrail.explain import Method, rollout
from vitrail.nn import MLP, STANDARD, ViTConfig
from vitrail.nn.blocks import BLOCK


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor) -> Tensor:
        return tokens.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise OSError("planted: backward")


# ---- what it leaves


@pytest.mark.usefixtures("as_a_user")
@every_method_and_variant
def test_network_and_images_are_left_as_found(method: Method, config: ViTConfig) -> None:
    network, images = with_gradients(make_network(config)), make_images(config).requires_grad_()
    before, pixels, version = state_of(network), images.detach().clone(), images._version
    attribution = method.function(network, images, 1)
    assert same(before, state_of(network))
    assert torch.equal(images.detach(), pixels)
    assert (images._version, images.grad, images.requires_grad, images.grad_fn) == (version, None, True, None)
    assert not attribution.values.requires_grad
    frozen = method.function(network.requires_grad_(False), images, 1).values
    assert torch.equal(attribution.values, frozen)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_a_changed_network_would_be_noticed() -> None:
    """The comparison above can fail: each of these is something that a careless method does."""
    network = with_gradients(make_network(PLAIN))
    before = state_of(network)
    assert same(before, state_of(network))
    network.blocks[0].attn.drop.train()
    assert not same(before, state_of(network))
    network.eval()
    parameters = list(network.parameters())
    parameters[1].grad.add_(1e-3)
    assert not same(before, state_of(network))
    parameters[1].grad.sub_(1e-3)
    before = state_of(network)
    parameters[2].grad = torch.zeros_like(parameters[2])
    assert not same(before, state_of(network))
    parameters[2].grad = None
    parameters[0].requires_grad_()
    assert not same(before, state_of(network))
    parameters[0].requires_grad_(False)
    handle = network.blocks[1].register_forward_hook(lambda *_: None)
    assert not same(before, state_of(network))
    handle.remove()
    network.blocks[1].attn.weights = 1
    assert not same(before, state_of(network))


@pytest.mark.usefixtures("as_a_user")
@every_method
@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_network_is_left_as_found_after_a_failure(method: Method, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = with_gradients(make_network(PLAIN)), make_images(PLAIN)
    before, whole = state_of(network), MLP.forward

    def failing(mlp: MLP, tokens: Tensor) -> Tensor:  # every gradient of a class passes the last block's
        if fails == "forward":
            raise OSError("planted: forward")
        return FailingBackward.apply(whole(mlp, tokens))

    expected = pytest.raises(OSError, match=f"planted: {fails}")
    with monkeypatch.context() as patch, expected if fails == "forward" or differentiates(method) else nullcontext():
        patch.setattr(MLP, "forward", failing)
        method.function(network, images)
    assert same(before, state_of(network))
    assert method.function(network, images).values.isfinite().all()


@pytest.mark.usefixtures("as_a_user")
@every_method
def test_any_grad_mode(method: Method) -> None:
    network = make_network(PLAIN)
    plain = method.function(network, make_images(PLAIN)).values
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            inside = method.function(network, make_images(PLAIN)).values  # the images, too, are made in this mode
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert torch.equal(inside, plain), context
        assert not inside.is_inference(), context


# ---- what it refuses


@every_method
def test_a_wrong_target_is_a_usage_error_that_names_the_range(method: Method) -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 3)
    outside = (4, -1, 10**9, torch.tensor([0, 1, 4]), torch.tensor([-1, 0, 0]))
    no_index = (torch.tensor([True, False, True]), torch.tensor([0.0, 1.0, 2.0]))
    no_shape = (torch.tensor([0, 1]), torch.tensor([[0, 1, 2]]))
    for target in (*outside, *no_index, *no_shape):
        with must_refuse("0..3"):
            method.function(network, images, target)
    with must_refuse(f"0..{PLAIN.width - 1}", PLAIN.width):  # without a head, of the features
        method.function(make_network(replace(PLAIN, classes=0)), images, PLAIN.width)


@every_method
def test_a_function_that_does_not_depend_on_the_logits_is_a_usage_error(method: Method) -> None:
    """Not frozen parameters or a run without a graph; without gradients it is no error, and nothing is found."""
    network, images = make_network(PLAIN).requires_grad_(False), make_images(PLAIN)

    def constant(logits: Tensor) -> Tensor:
        return torch.ones(len(logits))

    if differentiates(method):
        with must_refuse("function", "logits"):
            method.function(network, images, constant)
        assert method.function(network, images, lambda logits: logits[:, 1]).values.any()
    elif method.class_specific:
        assert method.function(network, images, constant).notes == (("no signal",),) * 2


def test_a_function_may_change_its_logits_in_place() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    twice = rollout(network, images, lambda logits: logits.mul_(2)[:, 1])
    torch.testing.assert_close(twice.logit, 2 * rollout(network, images, 1).logit)


@every_method
def test_training_mode_is_a_usage_error(method: Method) -> None:
    network = make_network(PLAIN)
    with must_refuse("training mode") as caught:
        method.function(network.train(), make_images(PLAIN))
    assert str(caught.value.hint) == "network.eval()"
    assert network.training
    network.eval().blocks[1].attn.drop.train()
    with must_refuse("blocks.1.attn.drop"):
        method.function(network, make_images(PLAIN))


@every_method
def test_images_that_cannot_be_read_are_a_usage_error(method: Method) -> None:
    """Of another size, of other channels, and with non-finite values: the top class would be the first."""
    network, images = make_network(PLAIN), make_images(PLAIN, 3)
    with must_refuse("12x11"):
        method.function(network, torch.zeros(1, 2, 12, 11))
    with must_refuse("(b, 2, h, w)"):
        method.function(network, torch.zeros(1, 3, 12, 10))
    images[1, 0, 0, 0] = torch.nan
    with must_refuse("1 of 3"):
        method.function(network, images, 1)
    images[2, 0, 0, 0] = torch.inf
    with must_refuse("1 of 3", "1 more"):
        method.function(network, images)


@every_method
def test_foreign_parts_that_cannot_be_read_are_refused(method: Method) -> None:
    class Largest(nn.Module):
        def forward(self, tokens: Tensor, prefix: int) -> Tensor:
            return tokens.amax(dim=1)

    class Silent(nn.Module):
        def forward(self, tokens: Tensor, record: object) -> Tensor:
            return tokens

    attentions: Iterator[nn.Module] = iter([*(BLOCK.attention(PLAIN) for _ in range(2)), Silent()])
    pooled = make_network(PLAIN, parts=replace(STANDARD, pooling=lambda _: Largest()))
    silent = make_network(PLAIN, parts=replace(STANDARD, attention=lambda _: next(attentions)))
    if method.name in WITHOUT_WEIGHTS:
        assert method.function(pooled, make_images(PLAIN)).values.isfinite().all()
        layer = {"layer": "blocks.1.norm1"} if "cam" in method.name else {}  # the last attention moves nothing here
        assert method.function(silent, make_images(PLAIN), 1, **layer).values.isfinite().all()
        return
    if method.name == "attcat":  # which asks attention for its weights, and the pooling for none
        assert method.function(pooled, make_images(PLAIN)).values.isfinite().all()
    else:
        with must_refuse("Largest"):
            method.function(pooled, make_images(PLAIN))
    with must_refuse("Silent", "blocks.2.attn") if method.name in STANDARD_PARTS else must_refuse("blocks.2"):
        method.function(silent, make_images(PLAIN))
