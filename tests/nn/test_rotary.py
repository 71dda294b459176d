"""Rotary positions and the parts that stand beside them, against timm's and a closed form; all routes in float64."""

import dataclasses
import json
import math
from typing import Any

import pytest
import timm
import torch
from timm.layers import AttentionPoolLatent
from timm.layers.pos_embed_sincos import RotaryEmbeddingCat, RotaryEmbeddingDinoV3, apply_rot_embed_cat
from torch import Tensor, nn

from tests.explain.suite import rough
from vitrail import explain
from vitrail.errors import UsageError
from vitrail.explain.methods.conservative import balance_sheet
from vitrail.nn import Record, Rotary, ViT, ViTConfig, detached, parts_of, resize_network, run_with_record
from vitrail.nn.networks import config_from_dict, config_to_dict
from vitrail.nn.parts import TABLE, check_parts
from vitrail.nn.rotary import RotaryPositions, turn
from vitrail.training.lora import adapt, adapters, merge_adapters

SMALL = ViTConfig(image_size=(24, 32), patch_size=8, classes=5, width=32, depth=3, heads=2, registers=2)
WAYS = {
    "dinov3": Rotary(),
    "dinov3 moved": Rotary(offset=0.25, base=30.0, layout="interleaved", axes="xy"),
    "eva": Rotary(coordinates="index", base=10_000.0, reference=(16, 16), layout="interleaved"),
    "perception": Rotary(
        coordinates="index", base=10_000.0, reference=(24, 20), offset=1.0, axes="xy", layout="interleaved"
    ),
    "rope-vit": Rotary(coordinates="index", base=100.0, axes="xy", layout="interleaved"),
    "index in halves": Rotary(coordinates="index", base=50.0, layout="halves"),
}


def loud(network: ViT, seed: int = 0) -> ViT:
    """In float64, with numbers so large that all of them matter."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            size = 1.2 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.4
            parameter.copy_(torch.randn(parameter.shape, generator=drawn) * size)
            if name.endswith(("norm.weight", "norm1.weight")):
                parameter.add_(1.5 if ".attn." in name else 1.0)
            if name.endswith("qkv.bias") and type(network.get_submodule(name.removesuffix(".bias"))) is not nn.Linear:
                parameter.chunk(3)[1].zero_()
    return network.double().eval()


def of_timm(rotary: Rotary, head_dim: int, grid: tuple[int, int]) -> Tensor:
    """sin and cos of timm, side by side."""
    same: dict[str, Any] = {"grid_offset": rotary.offset, "grid_indexing": rotary.axes}
    same |= {"temperature": rotary.base, "rotate_half": rotary.layout == "halves"}
    if rotary.coordinates == "centred":
        return RotaryEmbeddingDinoV3(head_dim, **same).get_embed(list(grid))
    reference = None if rotary.reference is None else list(rotary.reference)
    return RotaryEmbeddingCat(head_dim, in_pixels=False, ref_feat_shape=reference, **same).get_embed(list(grid))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_queries_are_turned_as_timm_turns_them(way: str, prefix: int) -> None:
    """Of grids that are no squares; tokens in front keep their bits."""
    rotary = WAYS[way]
    for grid in [(3, 5), (16, 16), (7, 2)]:
        vectors = torch.randn(2, 3, prefix + grid[0] * grid[1], 16, generator=torch.Generator().manual_seed(1))
        rotation = RotaryPositions(rotary, 16, prefix)(grid, vectors)
        turned = turn(vectors, rotation)
        theirs = apply_rot_embed_cat(vectors[:, :, prefix:], of_timm(rotary, 16, grid), half=rotary.layout == "halves")
        assert torch.equal(turned[:, :, :prefix], vectors[:, :, :prefix])
        assert (turned[:, :, prefix:] - theirs).abs().max() < 2e-6
        assert torch.allclose(turned.norm(dim=-1), vectors.norm(dim=-1), rtol=1e-5)
        assert (turned[:, :, prefix:] - vectors[:, :, prefix:]).abs().max() > 0.1
        half = turn(vectors.bfloat16(), RotaryPositions(rotary, 16, prefix)(grid, vectors.bfloat16()))
        assert half.dtype == torch.bfloat16
        assert torch.equal(half, turn(vectors.bfloat16().float(), rotation).bfloat16())


def test_scores_depend_on_the_way_from_patch_to_patch_alone() -> None:
    """The closed form: q turned by m times k turned by n is Re(q conj(k) exp(i (m - n) f)), the sum over the pairs."""
    rotary, grid, e = Rotary(coordinates="index", base=100.0, layout="halves"), (4, 6), 16
    query, key = torch.randn(2, e, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rotation = RotaryPositions(rotary, e, 0)(grid, query)
    scores = (turn(query.expand(1, 1, 24, e), rotation) @ turn(key.expand(1, 1, 24, e), rotation).mT)[0, 0]
    q, k = (torch.complex(*each.chunk(2)) for each in (query, key))
    for one in range(24):
        for other in range(24):
            way = (one // 6 - other // 6, one % 6 - other % 6)
            angles = torch.tensor([steps * 100.0 ** (-j / 4) for steps in way for j in range(4)], dtype=torch.float64)
            expected = (q * k.conj() * torch.polar(torch.ones_like(angles), angles)).real.sum()
            assert abs(float(scores[one, other] - expected)) < 1e-9


@pytest.mark.parametrize("part", [None, *TABLE["attention"]])
def test_every_route_closes_with_rotation_and_norms(part: str | None) -> None:
    """Records and their weights, gradients of weights, the detached form and its sum of parts: in float64, to 1e-10."""
    rotary = Rotary(coordinates="index", base=50.0, layout="interleaved", offset=1.0)
    config = dataclasses.replace(SMALL, rotary=rotary, pooling="mean")
    network = loud(ViT(config, parts_of({"attention": part} if part else {})))
    images = torch.randn(2, 3, 32, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    logits, record = run_with_record(network, images, gradients=True)
    assert torch.equal(logits, network(images))
    for block in range(3):
        kept = record.kept(f"blocks.{block}")
        assert (kept.attention @ kept.values - kept.attended).abs().max() < 1e-10
        assert (kept.attention.sum(-1) - 1).abs().max() < 1e-10
    gradient = record.gradient(logits[:, 2].sum(), "blocks.1", keep_graph=True)["blocks.1"]
    weights = record.kept("blocks.1").attention.detach().requires_grad_()
    block = network.blocks[1]
    tokens = record["blocks.1.input"] + block.ls1(block.attn.join(weights @ record.kept("blocks.1").values))
    tokens = tokens + block.mlp(block.norm2(tokens))
    rotation = network.rotation((4, 5))
    tail = network.readout(network.run_blocks(tokens, first=2, rotation=rotation))
    assert torch.allclose(tail, logits, atol=1e-10)
    (expected,) = torch.autograd.grad(tail[:, 2].sum(), weights)
    assert torch.allclose(gradient, expected, atol=1e-10)
    assert torch.equal(detached(network)(images), logits)
    sheet = balance_sheet(network, images, 2)
    assert sheet.gap.abs().max() < 1e-10 * sheet.logit.abs().max()
    without = dataclasses.replace(config, rotary=None)
    blind = ViT(without, network.parts).double().eval()
    blind.load_state_dict(network.state_dict())
    assert (blind(images) - logits).abs().max() > 1e-2 * logits.abs().max()
    with pytest.raises(UsageError):
        network.run_blocks(network.embed(images))


def test_every_method_takes_a_rotary_network() -> None:
    """Its map is finite, and that of the twin of a smaller size is of that size."""
    config = dataclasses.replace(SMALL, rotary=Rotary(), positions="none", activation="silu")
    network = loud(ViT(config, parts_of({"attention": "attended_norm", "mlp": "normed_swiglu"}))).float()
    images = torch.randn(1, 3, 24, 32, generator=torch.Generator().manual_seed(3))
    for method in map(rough, explain.METHODS.values()):
        found = method.function(network, images, 1)
        assert found.values.shape == (1, 3, 4)
        assert found.values.isfinite().all()
    other = resize_network(network, (16, 40))
    tall = torch.randn(2, 3, 16, 40)
    assert torch.equal(other(tall), network(tall))


def test_norms_and_gates_are_those_of_timm() -> None:
    """timm's blocks with the same numbers: norms of heads, of what was attended, in the gate; a gate that is packed."""
    small: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    theirs = (
        timm.models.eva.Eva(
            **small,
            num_classes=4,
            global_pool="token",
            swiglu_mlp=True,
            scale_mlp=True,
            scale_attn_inner=True,
            mlp_ratio=3,
        )
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(
                torch.randn(parameter.shape) * (parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3)
            )
    config = ViTConfig(
        image_size=32, patch_size=8, classes=4, width=32, depth=2, heads=2, mlp_dim=96, activation="silu"
    )
    config = dataclasses.replace(config, norm_eps=theirs.norm.eps)
    ours = ViT(config, parts_of({"attention": "attended_norm", "mlp": "normed_swiglu"})).double().eval()
    found = {}
    for name, tensor in theirs.state_dict().items():
        if name.endswith("q_bias"):
            place = name.removesuffix("q_bias")
            value = theirs.state_dict()[f"{place}v_bias"]
            found[f"{place}qkv.bias"] = torch.cat([tensor, torch.zeros_like(tensor), value])
        elif ".fc1_g." in name:
            found[name.replace("fc1_g", "fc1")] = torch.cat([tensor, theirs.state_dict()[name.replace("_g", "_x")]])
        elif not (name.endswith("v_bias") or ".fc1_x." in name):
            found[name] = tensor
    ours.load_state_dict(found)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert torch.allclose(ours(images), theirs(images), rtol=0, atol=1e-12)
    for norm, layer in (("qk_norm", nn.LayerNorm), ("qk_rms_norm", nn.RMSNorm)):
        attention = TABLE["attention"][norm](config).double()
        queries, keys, _ = attention.project(torch.randn(1, 5, 32, dtype=torch.float64))
        assert type(attention.q_norm) is layer
        assert torch.allclose(queries.square().mean(-1), torch.ones(1, 2, 5, dtype=torch.float64), atol=1e-3)
        assert torch.allclose(keys.square().mean(-1), torch.ones(1, 2, 5, dtype=torch.float64), atol=1e-3)


def test_a_query_that_reads_all_tokens_is_timms() -> None:
    config = dataclasses.replace(SMALL, width=32, heads=4, norm_eps=1e-6)
    pooling = TABLE["pooling"]["attention_to_all"](config).double().eval()
    theirs = AttentionPoolLatent(32, num_heads=8, mlp_ratio=4.0, norm_layer=nn.LayerNorm).double().eval()
    theirs.norm.eps = 1e-6
    own = {name: torch.randn(each.shape, dtype=torch.float64) * 0.3 for name, each in pooling.state_dict().items()}
    pooling.load_state_dict(own)
    packed = {kind: own[f"attn.qkv.{kind}"] for kind in ("weight", "bias")}
    changed = {"latent": own["query"]}
    for kind, tensor in packed.items():
        changed |= {f"q.{kind}": tensor[:32], f"kv.{kind}": tensor[32:]}
    changed |= {name.removeprefix("attn."): own[name] for name in own if ".proj." in name}
    changed |= {name: own[name] for name in own if name.startswith(("norm.", "mlp."))}
    theirs.load_state_dict(changed)
    tokens = torch.randn(2, 9, 32, dtype=torch.float64)
    assert torch.allclose(pooling(tokens, 3), theirs(tokens), atol=1e-12)
    weights = pooling.token_weights(tokens, 3)
    assert torch.allclose(weights.sum(dim=1), torch.ones(2, dtype=torch.float64))
    assert (weights[:, :3] > 0).all()
    alone = TABLE["pooling"]["attention_alone"](config).double()
    assert alone(tokens, 3).shape == (2, 32)
    assert "mlp.fc1.weight" not in alone.state_dict()


def test_a_configuration_with_rotation_survives_json_and_refuses_what_cannot_be() -> None:
    for rotary in WAYS.values():
        config = dataclasses.replace(SMALL, rotary=rotary)
        assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config
        check_parts(config, parts_of({}))
    kept = Rotary(periods=tuple(1.0 + j for j in range(4)))
    assert (
        config_from_dict(json.loads(json.dumps(config_to_dict(dataclasses.replace(SMALL, rotary=kept))))).rotary == kept
    )
    with pytest.raises(UsageError, match="head_dim=16"):
        ViT(dataclasses.replace(SMALL, head_dim=18, rotary=Rotary()))
    with pytest.raises(UsageError):
        ViT(dataclasses.replace(SMALL, rotary=Rotary(periods=(1.0, 2.0))))
    for wrong in ({"base": 1.0}, {"base": math.nan}, {"reference": (16, 16)}, {"axes": "yx"}, {"layout": "pairs"}):
        with pytest.raises(UsageError):
            Rotary(**wrong)


def test_lora_keeps_keys_without_bias() -> None:
    network = ViT(dataclasses.replace(SMALL, rotary=Rotary()), parts_of({"attention": "no_key_bias"}))
    adapt(network, 2, seed=0)
    assert len(adapters(network)) == 6
    optimizer = torch.optim.AdamW([each for each in network.parameters() if each.requires_grad], lr=0.1)
    images = torch.randn(2, 3, 24, 32)
    nn.init.normal_(network.head.weight)
    for _ in range(3):
        network(images)[:, 0].sum().backward()
        optimizer.step()
    merged = merge_adapters(network).eval()
    assert torch.allclose(merged(images), network.eval()(images), atol=1e-5)
    assert {type(block.attn.qkv) for block in merged.blocks} == {type(ViT(SMALL, network.parts).blocks[0].attn.qkv)}
    full = ViT(dataclasses.replace(SMALL, rotary=Rotary()), network.parts).train()
    optimizer = torch.optim.AdamW(full.parameters(), lr=0.1)
    full(images).logsumexp(1).sum().backward()
    optimizer.step()
    assert (full.blocks[0].attn.qkv.bias.chunk(3)[1] == 0).all()


def test_a_record_holds_queries_as_they_are_multiplied() -> None:
    network = loud(ViT(dataclasses.replace(SMALL, rotary=Rotary())))
    images = torch.randn(1, 3, 24, 32, dtype=torch.float64)
    record = Record("blocks.0.*")
    network(images, record)
    attention, rotation = network.blocks[0].attn, network.rotation((3, 4))
    plain, _, _ = attention.project(record["blocks.0.norm1"])
    assert torch.equal(record["blocks.0.queries"], turn(plain, rotation))
    assert torch.equal(record["blocks.0.queries"][:, :, :3], plain[:, :, :3])
