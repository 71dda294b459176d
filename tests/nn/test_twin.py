"""A twin shares the parameters, differs in the parts named, and leaves the original alone."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.nn.reference import redraw, some_images
from vitrail.nn import SILENT, AnyRecord, Attention, Record, ViT, ViTConfig, in_bf16, twin

CONFIG = ViTConfig(image_size=16, patch_size=8, classes=5, width=24, depth=2, heads=3, registers=1, activation="relu")


class FrozenNorm(nn.Module):
    """LayerNorm whose deviation is a constant to the gradient."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, tokens: Tensor) -> Tensor:
        deviation = (tokens.var(dim=-1, unbiased=False, keepdim=True) + self.eps).sqrt().detach()
        return (tokens - tokens.mean(dim=-1, keepdim=True)) / deviation * self.weight + self.bias


class ConservativeAttention(nn.Module):
    """Attention whose weights are constants to the gradient: the kernel runs on detached queries and keys."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: Tensor, record: AnyRecord = SILENT) -> Tensor:
        queries, keys, values = self.attention.project(tokens)
        attended = F.scaled_dot_product_attention(queries.detach(), keys.detach(), values)
        record.keep_attention(queries, keys, values, attended, None)
        return self.attention.proj(attended.transpose(1, 2).flatten(2))


CONSERVATIVE = {nn.LayerNorm: FrozenNorm, Attention: ConservativeAttention}


@pytest.fixture
def network() -> ViT:
    network = ViT(CONFIG)
    redraw(network)
    return network.eval()


def conserved(network: ViT) -> tuple[Tensor, Tensor]:
    """The logits, and what gradient times input distributes over the tokens."""
    record = Record("tokens", gradients=True)
    logits = network(some_images(3, 3, 16, 16), record)[:, 2]
    (gradient,) = torch.autograd.grad(logits.sum(), record["tokens"])
    return logits.detach(), (record["tokens"] * gradient).sum(dim=(1, 2)).detach()


def test_parameters_are_shared_and_answers_are_equal(network: ViT):
    other = twin(network, CONSERVATIVE)
    images = some_images(2, 3, 16, 16)
    torch.testing.assert_close(other(images), network(images), rtol=1e-5, atol=1e-5)
    assert {id(parameter) for parameter in other.parameters()} == {id(parameter) for parameter in network.parameters()}
    assert isinstance(other, ViT)
    assert other.config == network.config
    with torch.no_grad():
        network.head.bias += 3.0
    torch.testing.assert_close(other(images), network(images), rtol=1e-5, atol=1e-5)


def test_the_original_is_left_alone(network: ViT):
    modules, images = dict(network.named_modules()), some_images(2, 3, 16, 16)
    kinds, before = {name: type(module) for name, module in modules.items()}, network(images)
    other = twin(network, {Attention: ConservativeAttention})
    other.train()
    other.blocks[0] = nn.Identity()
    other.head = nn.Identity()
    other.cls_token = other.reg_token = None
    other.norm.bias = nn.Parameter(torch.ones(CONFIG.width))
    other.register_buffer("seen", torch.ones(1))
    assert dict(network.named_modules()) == modules
    assert {name: type(module) for name, module in network.named_modules()} == kinds
    assert not network.training
    assert "seen" not in dict(network.named_buffers())
    assert torch.equal(network(images), before)


def test_only_the_named_class_is_replaced_and_each_place_gets_its_own(network: ViT):
    other = twin(network, {nn.LayerNorm: FrozenNorm})
    assert sum(isinstance(module, FrozenNorm) for module in other.modules()) == 2 * CONFIG.depth + 1
    assert not any(isinstance(module, nn.LayerNorm) for module in other.modules())
    assert sum(isinstance(module, Attention) for module in other.modules()) == CONFIG.depth
    assert twin(network, {}) is not network


def test_a_class_is_matched_exactly():
    class Special(nn.LayerNorm):
        """Not the class that is named."""

    network = nn.Sequential(nn.LayerNorm(4), Special(4))
    other = twin(network, {nn.LayerNorm: FrozenNorm})
    assert [type(module) for module in other] == [FrozenNorm, Special]
    assert type(twin(nn.LayerNorm(4), {nn.LayerNorm: FrozenNorm})) is FrozenNorm


@pytest.mark.parametrize("training", [True, False])
def test_replacements_come_in_the_mode_of_the_network(network: ViT, training: bool):
    network.train(training)
    network.norm.train(not training)
    other = twin(network, {nn.LayerNorm: lambda norm: nn.Sequential(norm, nn.Dropout(0.5))})
    replaced = [module for module in other.modules() if isinstance(module, nn.Sequential)]
    assert [module.training for module in replaced] == [training] * 4 + [not training]
    assert all(part.training == module.training for module in replaced for part in module)
    assert network.training == training
    assert network.norm.training == (not training)


def test_with_constant_deviations_and_weights_the_logit_is_conserved(network: ViT):
    """Without biases what remains is piecewise linear, so gradient times input sums to the logit exactly."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    logits, distributed = conserved(twin(network, CONSERVATIVE))
    assert logits.abs().min() > 0.05
    torch.testing.assert_close(distributed, logits, rtol=1e-4, atol=1e-4)
    for parts in ({}, {nn.LayerNorm: FrozenNorm}, {Attention: ConservativeAttention}):
        with pytest.raises(AssertionError):  # either part alone does not conserve
            torch.testing.assert_close(conserved(twin(network, parts))[1], logits, rtol=1e-4, atol=1e-4)


def test_a_twin_is_recorded_like_the_original(network: ViT):
    other, images = twin(network, CONSERVATIVE), some_images(2, 3, 16, 16)
    records = [Record(), Record()]
    for one, record in zip((network, other), records, strict=True):
        one(images, record)
    assert list(records[0]) == list(records[1])
    torch.testing.assert_close(records[1]["blocks.1.attention"], records[0]["blocks.1.attention"], rtol=1e-4, atol=1e-5)


def test_training_the_twin_trains_the_original(network: ViT):
    other, images = twin(network, {nn.LayerNorm: FrozenNorm}), some_images(2, 3, 16, 16)
    before = network(images).detach()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(images).square().sum().backward()
    optimizer.step()
    assert not torch.allclose(network(images), before)
    torch.testing.assert_close(network(images), other(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"distillation_token": True},
        {"class_token": False, "pooling": "mean"},
        {"registers": 2, "activation": "quick_gelu"},
    ],
)
def test_in_bf16_a_network_answers_as_autocast_has_it(more: dict[str, Any]):
    """By any thread, its own weights left alone, and the weights of matrices rounded once."""
    torch.manual_seed(0)
    network = ViT(ViTConfig(image_size=32, patch_size=8, classes=7, width=48, depth=3, heads=3, **more)).eval()
    redraw(network)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    images, half = some_images(3, 3, 32, 32), in_bf16(network)
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        with torch.autocast("cpu", torch.bfloat16):
            wanted = network(images)
        found = pool.submit(half, images).result()
        full = network(images)
    assert torch.equal(found, wanted)
    assert 0 < float((found - full).abs().max() / full.abs().max()) < 0.05
    assert {name: weight.dtype for name, weight in half.named_parameters() if "norm" in name or weight.ndim == 3} == {
        name: torch.float32 for name, weight in network.named_parameters() if "norm" in name or weight.ndim == 3
    }
    assert half.head.weight.dtype == half.patch_embed.proj.weight.dtype == torch.bfloat16
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
    assert all(weight.requires_grad for weight in network.parameters())
    with torch.no_grad():
        assert torch.equal(network(images), full)
