"""Faults of converters, each planted into our side of a conversion: the proof refuses every one of them.

A fault of the network is a wrong rule, a wrong fact or a wrong part, in networks that are fresh, quiet and loud
(`planting.py`). Wrong rules stand in the families of the other libraries, too. None touches the biases of the keys,
which softmax ignores where nothing is rotated. Faults of preprocessing are planted on images: those of
`test_source_preprocessing.py`.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.errors import must_raise
from tests.weights.families import HEADS, ROWS
from tests.weights.planting import Fault, assert_caught, assert_refused, in_state, network, plant
from vitrail.errors import DataError
from vitrail.nn import attention, embedding, parts, vit
from vitrail.nn.blocks import EncoderBlock
from vitrail.nn.record import SILENT
from vitrail.weights import convert as conversion
from vitrail.weights.family import Family, NameRule, Tensors
from vitrail.weights.files import read_weights
from vitrail.weights.google import GOOGLE
from vitrail.weights.published import GAP


def each(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    """A change of all tensors whose name ends so."""
    return lambda tensors: {name: change(tensor) for name, tensor in tensors.items() if name.endswith(part)}


def ordered(*order: int) -> Callable[[Tensors], Tensors]:
    return each(".attn.qkv.weight", lambda qkv: torch.cat([qkv.chunk(3)[part] for part in order]))


def by_heads(qkv: Tensor) -> Tensor:
    """Queries, keys and values of a head side by side, as some libraries keep them."""
    return qkv.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten(0, 2)


def shifted(tensors: Tensors) -> Tensors:
    """Registers in front of the class token."""
    prefix = torch.cat([tensors["reg_token"], tensors["cls_token"]], dim=1)
    return {"cls_token": prefix[:, :1], "reg_token": prefix[:, 1:]}


def turned(tensors: Tensors) -> Tensors:
    """Positions by columns instead of by rows."""
    front, patches = tensors["pos_embed"][:, :1], tensors["pos_embed"][:, 1:]
    side = round(patches.shape[1] ** 0.5)
    return {"pos_embed": torch.cat([front, patches.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)], dim=1)}


def swapped_blocks(tensors: Tensors) -> Tensors:
    other = {"blocks.0.": "blocks.1.", "blocks.1.": "blocks.0."}
    return {other[name[:9]] + name[9:]: tensor for name, tensor in tensors.items() if name[:9] in other}


def no_position_of_class(tensors: Tensors) -> Tensors:
    found = tensors["pos_embed"].clone()
    found[:, 0] = 0
    return {"pos_embed": found}


def rolled(tensors: Tensors) -> Tensors:
    """The position of the class token behind those of the patches."""
    return {"pos_embed": tensors["pos_embed"].roll(-1, 1)}


def without_bias_of(part: int) -> Callable[[Tensors], Tensors]:
    def change(bias: Tensor) -> Tensor:
        found = [*bias.clone().chunk(3)]
        found[part] = torch.zeros_like(found[part])
        return torch.cat(found)

    return each(".attn.qkv.bias", change)


def renamed(*pairs: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    """Tensors of two parts of every block in each other's place."""
    other = {one: two for pair in pairs for one, two in (pair, pair[::-1])}

    def change(tensors: Tensors) -> Tensors:
        return {
            name.replace(f".{part}.", f".{other[part]}."): tensor
            for name, tensor in tensors.items()
            for part in other
            if f".{part}." in name and name.startswith("blocks")
        }

    return change


def by_width(right: Any) -> Any:
    """Scores divided by the root of the whole width, not of a head's."""
    return lambda queries, *given: right(queries * queries.shape[1] ** -0.5, *given)


def with_prefix(right: Any) -> Any:
    """The mean of all tokens."""
    return lambda self, tokens, prefix: tokens.mean(dim=1)


def last_token(right: Any) -> Any:
    return lambda self, tokens, prefix: tokens[:, -1]


def without_its_mlp(right: Any) -> Any:
    return lambda self, tokens, prefix: self.attn.join(self.attn.attend(*self._project(tokens, prefix)))[:, 0]


def all_pooled(right: Any) -> Any:
    """A learnt query that reads prefix tokens, too, or leaves out the first patch where there are none."""
    return lambda self, tokens, prefix: right(self, tokens, prefix - 1 if prefix else 1)


def gate_last(right: Any) -> Any:
    """The activation on the values, not on the gate."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        return self.fc2(gate * self.act(value))

    return forward


def norms_behind(right: Any) -> Any:
    """Post-norm blocks."""

    def forward(self: Any, tokens: Tensor, *others: Any, **named: Any) -> Tensor:
        tokens = tokens + self.norm1(self.mix(tokens, SILENT))
        return tokens + self.norm2(self.transform(tokens, SILENT))

    return forward


def half_a_patch(right: Any) -> Any:
    """Patches of an image that is shifted by half of one."""
    return lambda self, images: right(self, images.roll(self.proj.kernel_size[0] // 2, 2))


DINOV2, DEIT = "vit_small_patch14_reg4_dinov2", "deit_tiny_distilled_patch16_224"
CLIP, SIGLIP = "vit_base_patch32_clip_quickgelu_224", "vit_base_patch16_siglip_224"
OF_DINOV2: Any = {"name": DINOV2, "arguments": (("img_size", 56),)}
OF_GIANT: Any = {"name": "vit_giant_patch14_dinov2", "arguments": (("img_size", 56),)}
OF_CLIP: Any = {"name": CLIP, "arguments": (("img_size", 128), ("num_classes", 16))}
OF_MEAN: Any = {"arguments": (("global_pool", "avg"),)}
OF_SIGLIP: Any = {"name": SIGLIP, "arguments": (("num_classes", 0),)}
NORM = "norm.weight", "norm.bias"
FAULTS = {
    "queries and keys swapped": Fault(ordered(1, 0, 2)),
    "keys, values, queries": Fault(ordered(1, 2, 0)),
    "queries, keys and values by heads": Fault(each(".attn.qkv.weight", by_heads)),
    "the queries' bias dropped": Fault(without_bias_of(0)),
    "the values' bias dropped": Fault(without_bias_of(2)),
    "an output bias dropped": Fault(each("blocks.1.attn.proj.bias", torch.zeros_like)),
    "heads": Fault(facts={"heads": 4}),
    "scores by the width of the network": Fault(parts=((attention, "attend", by_width),)),
    "patches transposed": Fault(each("patch_embed.proj.weight", lambda kernel: kernel.transpose(2, 3))),
    "patches by half a patch": Fault(parts=((embedding.PatchEmbedding, "forward", half_a_patch),)),
    "blue first": Fault(each("patch_embed.proj.weight", lambda kernel: kernel.flip(1))),
    "tanh GELU": Fault(facts={"activation": "gelu_tanh"}),
    "quick GELU": Fault(facts={"activation": "quick_gelu"}),
    "epsilon 1e-12": Fault(facts={"norm_eps": 1e-12}),
    "epsilon 1e-5": Fault(facts={"norm_eps": 1e-5}),
    "norms behind their branches": Fault(parts=((EncoderBlock, "forward", norms_behind),)),
    "norms of a block swapped": Fault(renamed(("norm1", "norm2"))),
    "last norm skipped": Fault(without=NORM),
    "norm before the blocks skipped": Fault(without=("norm_pre.weight", "norm_pre.bias"), **OF_CLIP),
    "the norm behind the mean skipped": Fault(
        facts={"pooling": "mean"}, without=("pool.norm.weight", "pool.norm.bias"), **OF_MEAN
    ),
    "LayerScale dropped": Fault(each(".gamma", torch.ones_like), **OF_DINOV2),
    "LayerScales swapped": Fault(renamed(("ls1", "ls2")), **OF_DINOV2),
    "registers before the class token": Fault(shifted, **OF_DINOV2),
    "positions without those of the prefix": Fault(rolled, **OF_DINOV2),
    "no position of the class token": Fault(no_position_of_class),
    "the position of the class token last": Fault(rolled),
    "positions by columns": Fault(turned),
    "transformers' rule for positions": Fault(facts={"position_resize": "transformers"}),
    "torchvision's rule for positions": Fault(facts={"position_resize": "torchvision"}),
    "DINOv2's rule for positions": Fault(facts={"position_resize": "dinov2"}, **OF_DINOV2),
    "blocks swapped": Fault(swapped_blocks),
    "gate and values swapped": Fault(each(".mlp.fc1.weight", lambda fc1: fc1.roll(len(fc1) // 2, 0)), **OF_GIANT),
    "the gate's activation on the values": Fault(parts=((parts.SwiGLU, "forward", gate_last),), **OF_GIANT),
    "mean of patches for the class token": Fault(facts={"pooling": "mean"}),
    "the last token for the class token": Fault(parts=((vit.ClassToken, "forward", last_token),)),
    "mean of all tokens": Fault(parts=((vit.MeanOfPatches, "forward", with_prefix),), **OF_MEAN),
    "attention pooling without its MLP": Fault(
        parts=((parts.AttentionPooling, "forward", without_its_mlp),), **OF_SIGLIP
    ),
    "attention pooling of other tokens": Fault(parts=((parts.AttentionPooling, "forward", all_pooled),), **OF_SIGLIP),
    "head transposed": Fault(each("head.weight", lambda head: head.T), arguments=(("num_classes", 48),)),
    "classes in reverse": Fault(each("head.weight", lambda head: head.flip(0))),
    "a head's bias dropped": Fault(each("head.bias", torch.zeros_like)),
    "only the first of two heads": Fault(
        lambda tensors: {"head_dist.weight": tensors["head.weight"], "head_dist.bias": tensors["head.bias"]}, name=DEIT
    ),
    "only the class token's head": Fault(
        facts={"distillation_token": False}, without=("head_dist.weight", "head_dist.bias"), name=DEIT
    ),
}


HIDDEN = {  # by fresh networks: of weights that start at zero or alike, and at no other size
    "the queries' bias dropped",
    "the values' bias dropped",
    "an output bias dropped",
    "a head's bias dropped",
    "norms of a block swapped",
    "LayerScales swapped",
    "the gate's activation on the values",  # behind a LayerScale of 1e-5
    "transformers' rule for positions",
    "torchvision's rule for positions",
    "DINOv2's rule for positions",
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_proof_refuses_it(name: str) -> None:
    assert assert_caught(FAULTS[name], name) == (name in HIDDEN)


def test_a_faint_image_shows_what_a_loud_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epsilon, where tokens are as large as the image makes them."""
    fault = FAULTS["epsilon 1e-12"]
    module: Any = copy.deepcopy(network(fault.name, fault.arguments, "loud"))
    with torch.no_grad():
        for parameter in (module.patch_embed.proj.bias, module.pos_embed, module.cls_token):
            parameter.zero_()
        for block in module.blocks:
            block.attn.proj.bias.zero_()
    assert conversion.convert_network(module).gap < GAP
    monkeypatch.setattr(conversion, "redraw", lambda module, used, loud: copy.deepcopy(module))
    monkeypatch.setattr(conversion, "QUIET", 0.0)
    plant(fault, monkeypatch)
    with must_raise(DataError):
        conversion.convert_network(module)
    monkeypatch.setattr(conversion, "LOUDNESS", (1.0, 1.0))
    assert conversion.convert_network(module).gap < GAP


# ---- the rules of the other families


def reading(ours: str, axes: int, change: Callable[[Tensor], Tensor]) -> Callable[[Family], Family]:
    """A family that reads tensors wrongly: those with so many axes of which ours begin so."""

    def planted(family: Family) -> Family:
        def wrong(rule: NameRule) -> NameRule:
            def read(theirs: Sequence[Tensor]) -> Tensor:
                found = rule.read(theirs)
                return change(found) if found.ndim == axes else found

            return rule._replace(read=read) if rule.ours.startswith(ours) else rule

        return replace(family, rules=tuple(map(wrong, family.rules)))

    return planted


def in_order(*order: int) -> Callable[[Tensor], Tensor]:
    return lambda qkv: torch.cat([qkv.chunk(3)[part] for part in order])


def without_last_norm(family: Family) -> Family:
    rules = [rule._replace(ours=f"pre_{rule.ours}") if rule.ours.startswith("norm.") else rule for rule in family.rules]
    lost = {"pre_norm.weight", "pre_norm.bias"}
    return replace(
        family,
        rules=tuple(rules),
        completed=lambda tensors, facts: {name: tensor for name, tensor in tensors.items() if name not in lost},
    )


def rows_and_columns(table: Tensor) -> Tensor:
    front = table.shape[1] % 4  # of these small grids, with 16 patches
    patches = table[:, front:].unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)
    return torch.cat([table[:, :front], patches], dim=1)


def antialiased(family: Family) -> Family:
    """timm's rule in the place of theirs: seen where images of another size are compared."""

    def of_module(module: nn.Module) -> Any:
        facts = family.of_module(module)
        return None if facts is None else {**facts, "position_resize": "timm"}

    return replace(family, of_module=of_module)


RULES: dict[str, Callable[[Family], Family]] = {
    "queries and keys swapped": reading("blocks.#.attn.qkv", 2, in_order(1, 0, 2)),
    "values first": reading("blocks.#.attn.qkv", 2, in_order(2, 0, 1)),
    "the kernel of attention's output transposed": reading("blocks.#.attn.proj", 2, lambda one: one.T),
    "patches transposed": reading("patch_embed.proj", 4, lambda one: one.transpose(2, 3)),
    "blue first": reading("patch_embed.proj", 4, lambda one: one.flip(1)),
    "a bias missing": reading("blocks.#.mlp.fc2", 1, torch.zeros_like),
    "norms swapped": lambda family: replace(
        family, rules=tuple(rule._replace(ours=NORMS.get(rule.ours, rule.ours)) for rule in family.rules)
    ),
    "positions by columns": reading("pos_embed", 3, rows_and_columns),
    "the last norm missing": without_last_norm,
}
NORMS = {
    f"blocks.#.norm{one}.{kind}": f"blocks.#.norm{3 - one}.{kind}" for one in (1, 2) for kind in ("*", "weight", "bias")
}
LIVE = "transformers ViT", "transformers DINOv2", "transformers CLIP", "torchvision"
FILES = "Google google-research/vision_transformer", "Google big_vision"


@pytest.mark.parametrize("row", LIVE)
def test_a_wrong_rule_is_refused_by_the_proof(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _ = ROWS[row].make(tmp_path)
    rules = {**RULES, "timm's rule for positions": antialiased}
    clean = conversion.convert_network(in_state(module, "quiet"))
    assert clean.gap < GAP
    (family,) = (family for family in conversion.FAMILIES if family.name == clean.family)
    for name, wrong in rules.items():
        with monkeypatch.context() as here:
            here.setattr(conversion, "FAMILIES", (wrong(family),))
            assert_refused(module, name)


@pytest.mark.parametrize("row", FILES)
@torch.no_grad()
def test_a_wrong_rule_is_seen_beside_the_source(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's files have no live network; timm reads them by code of its own."""
    module, file = ROWS[row].make(tmp_path)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    theirs, tensors = module(images), read_weights(file)

    def gap() -> float:
        ours = conversion.from_tensors(tensors, {}, "a file").network(images)
        return float((ours - theirs).abs().max() / theirs.abs().max())

    assert gap() < GAP
    for name, wrong in RULES.items():
        with monkeypatch.context() as here:
            here.setattr(conversion, "FAMILIES", (wrong(GOOGLE),))
            assert gap() > 2 * GAP, name


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_another_precision_is_no_fault(kind: torch.dtype) -> None:
    module = copy.deepcopy(network("vit_tiny_patch16_224", (), "loud")).to(kind)
    assert conversion.convert_network(module).gap < GAP / 4
    assert {parameter.dtype for parameter in module.parameters()} == {kind}
