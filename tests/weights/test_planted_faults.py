"""Twenty faults of converters, each planted into our side of a conversion: the proof refuses every one of them.

A fault of the network is a wrong rule or a wrong fact, on redrawn weights, and on a *quiet* redraw whose tokens are a
hundred times smaller: only there a wrong epsilon shows. Wrong rules stand in the families of the other libraries, too;
their rules of positions in `test_families.py`. None touches the biases of the keys, which softmax ignores.
Faults of preprocessing are planted on images: those of `test_source_preprocessing.py`.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.errors import must_raise
from tests.weights.families import HEADS, NETWORK, ROWS
from tests.weights.redraw import redrawn
from vitrail.errors import DataError
from vitrail.weights import convert as conversion
from vitrail.weights.family import Family, NameRule, Tensors
from vitrail.weights.files import read_weights
from vitrail.weights.google import GOOGLE
from vitrail.weights.published import GAP
from vitrail.weights.timm import TIMM

PLAIN = "vit_tiny_patch16_224"
QKV = "blocks.{}.attn.qkv"


@dataclass(frozen=True)
class Fault:
    """What is done to tensors under our names, or to facts, of a network of timm."""

    tensors: Callable[[Tensors], Mapping[str, Tensor]] = lambda tensors: {}
    facts: Mapping[str, Any] | None = None
    name: str = PLAIN
    arguments: Mapping[str, Any] | None = None
    without: tuple[str, ...] = ()
    quiet_only: bool = False


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


DINOV2 = {"name": "vit_small_patch14_reg4_dinov2", "arguments": {"img_size": 56, "num_classes": 10}}
FAULTS = {
    "queries and keys swapped": Fault(ordered(1, 0, 2)),
    "keys, values, queries": Fault(ordered(1, 2, 0)),
    "queries, keys and values by heads": Fault(each(".attn.qkv.weight", by_heads)),
    "patches transposed": Fault(each("patch_embed.proj.weight", lambda kernel: kernel.transpose(2, 3))),
    "blue first": Fault(each("patch_embed.proj.weight", lambda kernel: kernel.flip(1))),
    "tanh GELU": Fault(facts={"activation": "gelu_tanh"}),
    "quick GELU": Fault(facts={"activation": "quick_gelu"}),
    "epsilon 1e-12": Fault(facts={"norm_eps": 1e-12}, quiet_only=True),
    "epsilon 1e-5": Fault(facts={"norm_eps": 1e-5}, quiet_only=True),
    "LayerScale dropped": Fault(each(".gamma", torch.ones_like), **DINOV2),
    "last norm skipped": Fault(without=("norm.weight", "norm.bias")),
    "registers before the class token": Fault(shifted, **DINOV2),
    "no position of the class token": Fault(no_position_of_class),
    "positions by columns": Fault(turned),
    "head transposed": Fault(each("head.weight", lambda head: head.T), arguments={"num_classes": 48}),
    "classes in reverse": Fault(each("head.weight", lambda head: head.flip(0))),
    "an output bias dropped": Fault(each("blocks.1.attn.proj.bias", torch.zeros_like)),
    "heads": Fault(facts={"heads": 4}),
    "norm before the blocks skipped": Fault(
        name="vit_base_patch32_clip_quickgelu_224",
        arguments={"img_size": 128, "num_classes": 16},
        without=("norm_pre.weight", "norm_pre.bias"),
    ),
    "blocks swapped": Fault(swapped_blocks),
    "gate and values swapped": Fault(
        each(".mlp.fc1.weight", lambda fc1: fc1.roll(len(fc1) // 2, 0)), name="vit_giant_patch14_dinov2",
        arguments={"img_size": 56},
    ),
    "mean of patches for the class token": Fault(facts={"pooling": "mean"}),
    "only the first of two heads": Fault(
        lambda tensors: {"head_dist.weight": tensors["head.weight"], "head_dist.bias": tensors["head.bias"]},
        name="deit_tiny_distilled_patch16_224",
    ),
}  # fmt: skip


def planted(fault: Fault) -> Any:
    """timm's family with the fault in it."""

    def of_module(module: nn.Module) -> Any:
        facts = TIMM.of_module(module)
        return None if facts is None else {**facts, **(fault.facts or {})}

    def completed(tensors: Tensors, facts: Any) -> Tensors:
        changed = {**tensors, **fault.tensors(tensors)}
        return {name: tensor for name, tensor in changed.items() if name not in fault.without}

    return replace(TIMM, of_module=of_module, completed=completed)


def made(fault: Fault, quiet: bool) -> nn.Module:
    arguments = {**NETWORK, "img_size": 64, "num_classes": 10, **(fault.arguments or {})}
    module: Any = redrawn(timm.create_model(fault.name, **arguments))
    embedding = [module.patch_embed.proj.weight, module.patch_embed.proj.bias, module.pos_embed]
    with torch.no_grad():
        for parameter in (*embedding, module.cls_token, module.reg_token, getattr(module, "dist_token", None)):
            if parameter is not None and quiet:
                parameter.mul_(0.01)
    return module


@pytest.mark.parametrize("name", FAULTS)
def test_the_proof_refuses_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    for quiet in (False, True):
        module = made(fault, quiet)
        assert conversion.convert_network(module).gap < GAP / 10  # a clean one is never refused
        with monkeypatch.context() as here:
            here.setattr(conversion, "FAMILIES", (planted(fault),))
            here.setattr(conversion, "GAP", float("inf"))
            gap = conversion.convert_network(module).gap  # nothing before the proof sees it
            here.setattr(conversion, "GAP", GAP)
            if quiet or not fault.quiet_only:
                assert gap > 2 * GAP
                with must_raise(DataError):
                    conversion.convert_network(module)


def test_a_faint_image_shows_what_a_loud_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epsilon, where tokens are as large as the image makes them."""
    fault = FAULTS["epsilon 1e-12"]
    module: Any = made(fault, quiet=False)
    with torch.no_grad():
        for parameter in (module.patch_embed.proj.bias, module.pos_embed, module.cls_token):
            parameter.zero_()
        for block in module.blocks:
            block.attn.proj.bias.zero_()
    assert conversion.convert_network(module).gap < GAP
    monkeypatch.setattr(conversion, "redraw", lambda module, used, loud: copy.deepcopy(module))
    monkeypatch.setattr(conversion, "QUIET", 0.0)
    monkeypatch.setattr(conversion, "FAMILIES", (planted(fault),))
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


def parts(*order: int) -> Callable[[Tensor], Tensor]:
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


KINDS = "*", "weight", "bias"
RULES: dict[str, Callable[[Family], Family]] = {
    "queries and keys swapped": reading("blocks.#.attn.qkv", 2, parts(1, 0, 2)),
    "values first": reading("blocks.#.attn.qkv", 2, parts(2, 0, 1)),
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
    clean = conversion.convert_network(module)
    (family,) = (family for family in conversion.FAMILIES if family.name == clean.family)
    for name, plant in RULES.items():
        with monkeypatch.context() as here:
            here.setattr(conversion, "FAMILIES", (plant(family),))
            here.setattr(conversion, "GAP", float("inf"))
            assert (conversion.convert_network(module).gap or 0) > 2 * GAP, name
            here.setattr(conversion, "GAP", GAP)
            with must_raise(DataError):
                conversion.convert_network(module)


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
    for name, plant in RULES.items():
        with monkeypatch.context() as here:
            here.setattr(conversion, "FAMILIES", (plant(GOOGLE),))
            assert gap() > 2 * GAP, name


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_another_precision_is_no_fault(kind: torch.dtype) -> None:
    module = made(FAULTS["heads"], quiet=False).to(kind)
    assert conversion.convert_network(module).gap < GAP / 10
    assert {parameter.dtype for parameter in module.parameters()} == {kind}
