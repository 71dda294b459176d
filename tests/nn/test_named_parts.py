"""Parts that families need: their held forms give the same bits and are linear, their weights are what they pool with,
they keep the contracts of parts, and they are stored by name.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.nn.reference import explicit_weights, redraw, some_images
from vitrail.data.preprocessing import Preprocessing
from vitrail.explain.methods.conservative import balance_sheet
from vitrail.model import Model, load, save
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.parts import AttentionPooling, ClassAndMean, MeanThenNorm, SwiGLU, check_parts, names_of, parts_of
from vitrail.nn.twin import detached
from vitrail.nn.vit import ClassToken, MeanOfPatches
from vitrail.tasks import Classes

CONFIG = ViTConfig(image_size=(16, 24), patch_size=8, classes=5, width=24, depth=2, heads=3, registers=1)
FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "SwiGLU": ({"activation": "silu", "mlp_dim": 20}, {"mlp": "swiglu"}),
    "attention pooling": ({"class_token": False, "pooling": "mean", "registers": 0}, {"pooling": "attention"}),
    "mean, then norm": ({"pooling": "mean"}, {"pooling": "mean_then_norm", "last_norm": "none"}),
    "class and mean": ({}, {"pooling": "class_and_mean", "head": "of_two"}),
    "quick GELU, norm before the blocks": ({"activation": "quick_gelu"}, {"embed_norm": "layer"}),
    "SiLU": ({"activation": "silu"}, {}),
}
every_form = pytest.mark.parametrize("name", FORMS)


def made(name: str) -> ViT:
    fields, names = FORMS[name]
    network = ViT(replace(CONFIG, **fields), parts_of(names))
    redraw(network)
    return network.eval()


def gap(network: ViT) -> float:
    balance = balance_sheet(network.double(), some_images(2, 3, 16, 24).double(), torch.tensor([2, 0]))
    return float((balance.gap / balance.logit).abs().max())


@every_form
def test_the_held_form_gives_the_same_bits_and_the_sheet_closes(name: str, as_a_user: None) -> None:
    network = made(name)
    images = some_images(2, 3, 16, 24)
    assert torch.equal(detached(network)(images), network(images))
    assert gap(network) < 1e-10


@pytest.mark.parametrize(("name", "kind"), [("SwiGLU", SwiGLU), ("attention pooling", nn.LayerNorm), ("SiLU", nn.SiLU)])
def test_a_part_that_is_not_held_leaves_a_gap(
    name: str, kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch, as_a_user: None
) -> None:
    monkeypatch.setattr(kind, "detached", lambda self: self, raising=False)
    assert gap(made(name)) > 1e-3


def test_weights_of_poolings_are_what_the_gradient_says() -> None:
    tokens = some_images(2, 1, 8, 24)[:, 0].requires_grad_()  # (b, n, d), two of them no patches
    held = detached(MeanThenNorm(CONFIG))
    for pooling, linear in (
        (ClassToken(), ClassToken()),
        (MeanOfPatches(), MeanOfPatches()),
        (ClassAndMean(), ClassAndMean()),
        (MeanThenNorm(CONFIG), held.mean),
    ):
        (gradient,) = torch.autograd.grad(linear(tokens, 2).sum(), tokens)
        shares = gradient.mean(dim=2) / gradient.mean(dim=2).sum(dim=1, keepdim=True)
        torch.testing.assert_close(pooling.token_weights(tokens, 2), shares)


def test_weights_of_attention_pooling_are_those_of_its_query() -> None:
    pooling = AttentionPooling(CONFIG)
    redraw(pooling)
    tokens, width = some_images(2, 1, 8, 24)[:, 0], CONFIG.width
    weight, bias = pooling.attn.qkv.weight, pooling.attn.qkv.bias
    asks = (pooling.query.expand(2, -1, -1) @ weight[:width].T + bias[:width]).unflatten(2, (3, 8)).transpose(1, 2)
    keys = tokens[:, 2:] @ weight[width : 2 * width].T + bias[width : 2 * width]
    wanted = explicit_weights(asks, keys.unflatten(2, (3, 8)).transpose(1, 2)).mean(dim=1)[:, 0]
    found = pooling.token_weights(tokens, 2)
    torch.testing.assert_close(found[:, 2:].double(), wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))
    assert (found[:, :2] == 0).all()
    assert found.std() > 0.01


@every_form
def test_it_keeps_its_contract_and_is_stored_by_name(name: str, tmp_path: Path) -> None:
    names = FORMS[name][1]
    network = made(name)
    check_parts(network.config, network.parts)
    assert names_of(network.parts) == names
    save(Model(network, Preprocessing((16, 24)), Classes(tuple("abcde"))), tmp_path)
    again, images = load(tmp_path).network, some_images(2, 3, 16, 24)
    assert again.config == network.config
    assert torch.equal(again(images), network(images))
