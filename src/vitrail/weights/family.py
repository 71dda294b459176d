"""A family of foreign ViTs: the names of its tensors, and what its modules and its `config.json` state beside them.

A rule says which of a family's tensors make one of ours. `#` stands for the number of a block, `*` for `weight` and
`bias`, which may each be missing:

    Rule("blocks.#.attn.qkv.*", ("layers.#.q_proj.*", "layers.#.k_proj.*", "layers.#.v_proj.*"))

Where several rules make the same tensor of ours, a file has the tensors of one. A tensor without a rule is an error: a
network without one of its parts would give logits, but wrong ones.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import DataError, Hint, counted, some_of
from vitrail.nn.blocks import ACTIVATIONS
from vitrail.nn.embedding import Size

Tensors = dict[str, Tensor]
Facts = Mapping[str, Any]  # what is stated of a network: fields of ViTConfig, `pooling`, and those of `USUAL`

HEADS = "head.*", "head_dist.*"  # ours
WRAPPERS = "_orig_mod.", "module.", "model.", "_orig_mod."  # torch.compile's, of many devices or averages, Lightning's
COUNT = "n_averaged"  # torch's average over training has it beside the weights
BESIDE = {  # regular expressions of what trainings keep beside a network, with why it is left out
    COUNT: "counts what was averaged",
    r"(criterion|(\w+_)?loss(es|_\w+)?|(\w+_)?metrics?|(train|val|valid|test)_\w+)\..+": "of a loss or a metric",
}


def stack_tensors(theirs: Sequence[Tensor]) -> Tensor:
    """One below the other, such as queries, keys and values, or a gate and its values; one tensor as it is."""
    return theirs[0] if len(theirs) == 1 else torch.cat(list(theirs))


def split_tensor(ours: Tensor, count: int) -> Sequence[Tensor]:
    """The way back from `stack_tensors`, of parts of one size."""
    return ours.tensor_split(count)


class NameRule(NamedTuple):
    """Which tensors of a family make one of ours, and how; and how ours becomes so many of theirs again.

    Only in files that have no tensor `without`, where that is given.
    """

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[Sequence[Tensor]], Tensor] = stack_tensors
    write: Callable[[Tensor, int], Sequence[Tensor]] = split_tensor
    without: str = ""


def rename_rules(names: Mapping[str, str], block: str = "") -> list[NameRule]:
    """Rules for tensors that differ in their names alone; with `block`, all of them inside the block of a stack.

    Args:
        names: Theirs by ours, with spaces between where a library has had several; each may hold `*`.
        block: What a family calls a block, such as `encoder.layers.#`.
    """
    theirs, ours = (f"{block}.", "blocks.#.") if block else ("", "")
    return [NameRule(ours + new, (theirs + old,)) for new, each in names.items() for old in each.split()]


@dataclass(frozen=True)
class Family:
    """How a library, or a lab, calls the tensors of its ViTs.

    Attributes:
        name: For messages.
        marks: Tensors, one of which every member has, and no other family.
        rules: All tensors that the logits depend on.
        idle: Patterns of tensors that they do not depend on (`#` is a number, `*` anything), with why, for the report.
        prefixes: What may stand before every name.
        assumed: What is the same in all members and stands in no tensor.
        source: Whose choice that is, for the report; the family's own where this is empty.
        unread: As `idle`, of tensors that other members do read, by the names of all tensors.
        unstacked: Takes tensors of several blocks apart, where a family has such; the rules are for what it gives.
        of_tensors: What its tensors show under their own names that ours no longer do.
        of_module: What a live module of the family states of itself; None where it is of another.
        of_config: What a `config.json` states; None where it is of another.
        logits: What a live module in eval mode gives for images, without a graph: what our network gives.
        at_size: Makes a live module take images of another size, where it can; gives whether it does.
        completed: Adds what the family computes rather than stores.
    """

    name: str
    marks: tuple[str, ...]
    rules: tuple[NameRule, ...]
    idle: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    assumed: Facts = field(default_factory=dict)
    source: str = ""
    unread: Callable[[Collection[str]], Mapping[str, str]] = lambda names: {}
    unstacked: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors
    of_tensors: Callable[[Mapping[str, Tensor]], Facts] = lambda tensors: {}
    of_module: Callable[[nn.Module], Facts | None] = lambda module: None
    of_config: Callable[[Mapping[str, Any]], Facts | None] = lambda config: None
    logits: Callable[[nn.Module, Tensor], Tensor] = lambda module, images: module(images)
    at_size: Callable[[nn.Module, Size], bool] = lambda module, size: False
    completed: Callable[[Tensors, Facts], Tensors] = lambda tensors, facts: tensors


class Renamed(NamedTuple):
    """Tensors under our names; of those that were used their names, and what each became; of the others with why."""

    tensors: Tensors
    used: Mapping[str, str]
    skipped: Mapping[str, str]


@cache
def pattern(text: str, rest: str = "weight|bias") -> re.Pattern[str]:
    """A name with `#` and `*` as a regular expression, which matches it whole."""
    named = re.escape(text).replace(re.escape("#"), r"(?P<number>\d{1,4})")
    return re.compile(named.replace(re.escape("*"), f"(?P<kind>{rest})"))


def fill_pattern(text: str, match: re.Match[str]) -> str:
    """A pattern as a name, for the block and kind that another pattern matched."""
    found = match.groupdict()
    return text.replace("#", found.get("number") or "#").replace("*", found.get("kind") or "*")


def strip_prefixes(names: Sequence[str], prefixes: Sequence[str]) -> dict[str, str]:
    """Names without what may stand before them, to the names as they are."""
    found: dict[str, str] = {}
    for name in names:
        short = _short(name, prefixes)
        if short in found:
            problem = f"two tensors, {found[short]} and {name}, have the same name {short}"
            raise DataError(problem, "a file of one network")
        found[short] = name
    return found


def _short(name: str, prefixes: Sequence[str]) -> str:
    for prefix in (*WRAPPERS, *prefixes, "model."):  # the last as in a live DINOv3 of transformers
        name = name.removeprefix(prefix)
    return name


def head_fronts(family: Family) -> tuple[str, ...]:
    """What the names of its heads begin with, a dot behind."""
    return tuple(rule.theirs[0].partition(".")[0] + "." for rule in family.rules if rule.ours in HEADS)


def rename_heads(family: Family, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors, with each head that a user put in the place of the family's under its name, if it is a linear map.

    Such as `model.heads = nn.Linear(..)` or `model.head = nn.Sequential(nn.Dropout(), nn.Linear(..))`.
    """
    found, known = dict(tensors), [pattern(name) for rule in family.rules for name in rule.theirs]
    known += [pattern(name, ".*") for name in family.idle]
    names = strip_prefixes(list(tensors), family.prefixes)
    new = [short for short in names if not any(each.fullmatch(short) for each in known)]
    for place in (rule.theirs[0] for rule in family.rules if rule.ours in HEADS):
        below = [short for short in new if short.startswith(f"{place.partition('.')[0]}.")]
        weight = next((short for short in below if short.endswith(".weight")), "")
        alone = weight and not {*below} - {weight, f"{weight.removesuffix('weight')}bias"}
        if alone and tensors[names[weight]].ndim == 2:
            for short in below:
                found[place.replace("*", short.rpartition(".")[2])] = found.pop(names[short])
            new = [short for short in new if short not in below]
    return found


def rename(family: Family, tensors: Mapping[str, Tensor], any_head: bool = False) -> Renamed:
    """The tensors of a family under our names.

    Args:
        family: The one of the tensors.
        tensors: By their names.
        any_head: Whether a head that is unknown is left out, since it is replaced or not wanted.

    Raises:
        DataError: If a tensor is unknown, or one of those that make one of ours is missing; lists them.
    """
    names, skipped = strip_prefixes(list(tensors), family.prefixes), dict[str, str]()
    known = {pattern(text, ".*"): why for text, why in {**family.idle, **family.unread(names.keys())}.items()}
    for idle, why in {**{re.compile(text): why for text, why in BESIDE.items()}, **known}.items():
        skipped |= {short: why for short, full in names.items() if idle.fullmatch(short) or idle.fullmatch(full)}
    skipped = {names.pop(short): why for short, why in skipped.items()}
    found: Tensors = {}
    used: dict[str, str] = {}
    lost: dict[str, str] = {}
    for rule in (rule for rule in family.rules if not any(map(pattern(rule.without).fullmatch, names))):
        for match in filter(None, map(pattern(rule.theirs[0]).fullmatch, names)):
            ours, theirs = fill_pattern(rule.ours, match), [fill_pattern(name, match) for name in rule.theirs]
            missing = [name for name in theirs if name not in names]
            if missing:
                lost.setdefault(ours, f"{theirs[0]} is there, but {some_of(missing, 5)} is missing")
                continue
            if ours in found:
                raise DataError(f"{theirs[0]} is a second {ours}", "a file of one network")
            found[ours] = rule.read([tensors[names[name]] for name in theirs])
            used |= dict.fromkeys(theirs, ours)
    if wanting := [why for ours, why in lost.items() if ours not in found]:
        raise DataError(wanting[0], "the whole file")
    left = {short: full for short, full in names.items() if short not in used}
    heads = {
        full: "of the head, which is not read" for short, full in left.items() if short.startswith(head_fronts(family))
    }
    skipped |= heads if any_head else {}
    if left and not (any_head and len(heads) == len(left)):
        these, hint = counted(len(left), "tensor does", "tensors do"), Hint(text=f"the weights of a plain ViT; {ELSE}")
        if len(heads) == len(left):  # of several layers
            live = f"module.{min(left).partition('.')[0]} = torch.nn.Identity(), for features"
            hint = Hint(
                {"assume": {"classes": 0}}, text="for features", python=f"{live}; of a file assume={{'classes': 0}}"
            )
        raise DataError(f"{these} not belong to a plain ViT of {family.name}: {some_of([*left.values()], 5)}", hint)
    return Renamed(found, {names[short]: ours for short, ours in used.items()}, skipped)


def names_back(rules: Sequence[NameRule], tensors: Mapping[str, Tensor]) -> Tensors:
    """Our tensors under the names of a family: `rename` backwards, by the first rule that makes each.

    Args:
        rules: Of one member of the family, whose files have the names of some.
        tensors: By our names.

    Raises:
        DataError: If no rule makes a tensor; names it.
    """
    found: Tensors = {}
    for ours, tensor in tensors.items():
        matching = ((rule, match) for rule in rules if (match := pattern(rule.ours).fullmatch(ours)))
        rule, match = next(matching, (None, None))
        if rule is None or match is None:
            raise DataError(f"that library has no tensor for {ours}", "to='onnx', which keeps every part")
        parts = rule.write(tensor, len(rule.theirs))
        found |= {fill_pattern(name, match): part for name, part in zip(rule.theirs, parts, strict=True)}
    return found


def side_of(value: Any) -> Any:
    """A size of a square as its side, of another rectangle as a tuple; any other value as it is."""
    if not isinstance(value, tuple | list):
        return value
    return value[0] if [*value] == [*value[:1]] * 2 else tuple(value)


# What a config.json states of a network and its tensors have to show, under the names of `ViTConfig` and these
USUAL: Mapping[str, Any] = {  # of a ViT of which nothing else is stated
    "channels": 3,
    "class_token": True,
    "other_tokens": 0,  # registers, and a distillation token
    "positions": "learned",
    "embed_bias": True,
    "qkv_bias": True,
    "key_bias": True,  # where queries and values have one
    "out_bias": True,
    "mlp_bias": True,
    "layer_scale": False,
    "embed_norm": False,
    "last_norm": True,
    "gated_mlp": False,
}
HEAD = ("classes", "head_bias")  # which a configuration states where it is that of a classifier
SHOWN = frozenset((*USUAL, "width", "depth", "mlp_dim", *HEAD))


# Transformers for images that are no plain ViT, and why
ELSE = "docs/weights.md lists what opens, and what to use for the rest"
ROTARY, LEARNT, WINDOWS = "rotary positions of another kind", "rotary positions that are learnt", "windows"
NORMS, GROUPS, RELATIVE = "norms behind its branches", "fewer keys than queries", "relative position bias"
BEHIND = "norms that may be behind its parts, as in EVA-CLIP's enormous network (no tensor shows it)"
GIANT = 1408, 40  # width and depth of EVA-CLIP's, which opens
SEQUENCES, CONVOLUTIONS = "patches in sequences of any length", "convolutions in the place of attention"
ADAPTERS = "adapters that are not merged into its weights"
USE = {  # where a network of the same name opens
    SEQUENCES: "one of a fixed image size, such as hf:google/siglip2-base-patch16-224",
    CONVOLUTIONS: "a ViT, such as hf:facebook/dinov3-vits16-pretrain-lvd1689m",
    LEARNT: "the axial one, such as timm:vit_small_patch16_rope_224",
    BEHIND: "its folder with timm's config.json, or vitrail.convert(module)",
    NORMS: "a smaller one, such as timm:eva02_large_patch14_clip_336",
    ADAPTERS: "model = model.merge_and_unload() of PEFT first, then model itself or model.state_dict()",
}
NETWORKS = {  # part of the name that a library gives a network, or its class
    r"convnext": CONVOLUTIONS,
    r"rope_mixed": LEARNT,
    r"eva_?02_enormous": NORMS,
    r"sapiens": GROUPS,
    r"(?<![a-z])rope(?![a-z]|_(reg|ape|224))": ROTARY,
    r"swin|samvit": WINDOWS,
    r"beit|data2vec|relpos": RELATIVE,
    r"naflex|siglip2": SEQUENCES,
}
TENSORS = {  # part of the name of a tensor
    r"\.(base_layer|lora_(A|B|embedding_[AB]|magnitude_vector))(\.|$)": ADAPTERS,
    r"(^|\.)rope\.freqs$": LEARNT,
    r"(^|[._])rope([._](?!embeddings\.|embed\.periods$|freqs_(cos|sin)$)|$)": ROTARY,
    r"rotary|(?<!rope_embeddings\.)inv_freq": ROTARY,
    r"(layers|features|stages)\.\d+\.(blocks\.)?\d+\..*relative_position_bias_table": WINDOWS,
    r"relative_position_bias|(^|\.)rel_pos": RELATIVE,
}


def why_not(network: object, tensors: Collection[str] = ()) -> str:
    """What a network of this name, or with tensors of these names, has that no plain ViT has; empty where nothing."""
    name = str(network or "").lower()
    for part, why in NETWORKS.items():
        if re.search(part, name):
            return why
    return next((why for part, why in TENSORS.items() if any(re.search(part, each) for each in tensors)), "")


def why_not_bare(tensors: Mapping[str, Tensor]) -> str:
    """What tensors without a configuration may be of, where names and shapes do not show it; empty where nothing.

    Norms follow the parts of timm's vit_*_rpn_*, and those of EVA-CLIP's enormous network, whose tensors are those of
    EVA-CLIP's giant one but for their number and size.
    """
    shapes = {name[max(0, name.find("blocks.0.")) :]: each.shape for name, each in tensors.items()}
    pooled, scaled = any(name.endswith("fc_norm.weight") for name in shapes), "blocks.0.gamma_1" in shapes
    rpn = pooled and not scaled and not any(name.endswith(("cls_token", "attn.qkv.bias")) for name in shapes)
    ends = "attn.q_bias", "mlp.fc1.weight", "mlp.fc2.weight"
    bias, first, second = (tuple(shapes.get(f"blocks.0.{end}", ())) for end in ends)
    depth = sum(name.endswith(".attn.q_bias") for name in tensors)
    plain = bool(bias and first) and first == second[::-1] and not scaled
    return BEHIND if rpn or (plain and (*bias, depth) != GIANT) else ""


def instead_of(why: str) -> str:
    """What to use in the place of a network that `why_not` refuses, for a hint."""
    return "; ".join(filter(None, (USE.get(why), ELSE)))


ALIKE = 1e-6  # absolute; the two forms of GELU differ by 4e-4


def activation_of(foreign: Callable[[Tensor], Tensor]) -> str:
    """The name of an activation, found by its values.

    Raises:
        DataError: If none does.
    """
    points = torch.linspace(-6, 6, 97)
    with torch.no_grad():
        theirs = foreign(points.clone())
        for name, make in ACTIVATIONS.items():
            if float((make()(points.clone()) - theirs).abs().max()) < ALIKE:
                return name
    kind = getattr(foreign, "__name__", type(foreign).__name__)
    raise DataError(f"the activation {kind} is not one of {', '.join(ACTIVATIONS)}", "a network with one of these")
