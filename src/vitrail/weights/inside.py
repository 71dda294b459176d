"""Where a network stands among the tensors of a file or of a live module, and what stands beside it.

A training keeps its network under a prefix (`model.`, `module.base_encoder.`, `teacher.backbone.`), beside losses,
metrics, projections and averages. The prefix is found by evidence: behind it a block and the patch map have the names
of one family. Of two networks of equal shapes the average is read, as DINO's and timm's own code does, and MoCo's
encoder beside its momentum encoder; any other two have to be told apart by `assume={"prefix": ..}`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vitrail.errors import DataError, UsageError, some_of
from vitrail.weights.assume import hint_for
from vitrail.weights.family import BESIDE, ELSE, HEADS, Facts, Family, Tensors, head_fronts, pattern

IN_TORCH = re.compile(r"\b_(orig_mod|fsdp_wrapped_module|checkpoint_wrapped_module)\.")  # anywhere in a name
AVERAGE = re.compile(r"(^|[._])(ema|swa|avg|averaged?|teacher|target)[._]")  # over training
MOMENTUM = re.compile(r"(^|[._])momentum[._]")  # an average that only training reads
FEW = 5  # names that are shown one by one


@dataclass(frozen=True)
class Inside:
    """A network among tensors.

    Attributes:
        family: Of its names.
        prefix: Before them.
        tensors: By the names of the family, its head among them where that stands beside the network.
        names: As they were, by those.
        beside: The other tensors, with why they are left out.
        assumed: What was assumed, in sentences.
        changed: What was chosen or left out, as in `Converted.changed`.
        facts: What its place shows.
    """

    family: Family
    prefix: str
    tensors: Tensors
    names: Mapping[str, str]
    beside: Mapping[str, str]
    assumed: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)


def networks_in(families: Sequence[Family], names: Collection[str]) -> dict[str, Family]:
    """The prefixes behind which networks stand among tensors of these names, each with its family.

    Raises:
        DataError: One is of several families.
    """
    plain = {IN_TORCH.sub("", name) for name in names}
    found: dict[tuple[str, str], Family] = {}
    for family in families:
        for mark in family.marks:
            matches = map(re.compile(f"((?:.*[./])?){pattern(mark, '.*').pattern}").fullmatch, plain)
            found |= {(match[1], family.name): family for match in matches if match}
    whole = {key: family for key, family in found.items() if _kernel(family, key[0], plain)} or found
    if len({prefix for prefix, _ in whole}) < len(whole):
        problem = f"its tensors are of several families at once: {some_of(sorted(names), 3)}"
        raise DataError(problem, f"the weights of one ViT; {ELSE}")
    return {prefix: whole[prefix, name] for prefix, name in sorted(whole)}


def _kernel(family: Family, prefix: str, names: Collection[str]) -> str:
    """The map of the patches behind a prefix; empty where there is none, as in a decoder or a reader of texts."""
    rules = (rule.theirs[0] for rule in family.rules if rule.ours.startswith("patch_embed.proj."))
    return next((name for each in rules if (name := prefix + each.replace("*", "weight")) in names), "")


def find_inside(families: Sequence[Family], tensors: Mapping[str, Tensor], prefix: str | None = None) -> Inside:
    """The network among these tensors.

    Args:
        families: That are known.
        tensors: Of a file, or of a live module.
        prefix: Of the one that is meant, where there may be several.

    Raises:
        DataError: There is none, it is of several families, or there are several and nothing shows which is meant.
        UsageError: There is none behind the prefix; names those that are.
    """
    full = {IN_TORCH.sub("", name): name for name in tensors}
    found = networks_in(families, tensors)
    if not found or len(full) < len(tensors):
        known, those = ", ".join(family.name for family in families), "of no family known here"
        problem = f"its tensors are {those if not found else 'there twice'}: {some_of(sorted(tensors), 3)}"
        problem = problem if tensors else "it contains no tensors"
        raise DataError(problem, f"the weights of a ViT of {known}; {ELSE}")
    owner = {name: max((each for each in found if name.startswith(each)), key=len, default=None) for name in full}
    blocks = {each: dict[str, Sequence[int]]() for each in found}  # of each network the shapes in its blocks
    for name, behind in owner.items():
        if behind is not None and re.search(r"\.\d", short := name.removeprefix(behind)):
            blocks[behind][short] = tensors[full[name]].shape
    chosen = _choose(blocks, prefix)
    family, others = found.pop(chosen), [*found]
    own = next((each for each in family.prefixes if re.search(rf"(^|[./]){re.escape(each)}$", chosen)), "")
    root, tops = chosen.removesuffix(own), head_fronts(family)
    around = re.sub(r"[^./]+[./]$", "", root)
    idle = {pattern(text, ".*"): why for text, why in family.idle.items()}
    known = {re.compile(text): why for text, why in BESIDE.items()} | idle
    names, beside = dict[str, str](), dict[str, str]()
    for name, behind in owner.items():
        short, near = name.removeprefix(root), name.removeprefix(around)
        belongs = short.startswith(tops) or any(each.fullmatch(short) for each in idle)
        if behind == chosen or (behind is None and own and name.startswith(root) and belongs):
            names[short] = full[name]
        elif behind is None:
            beside[full[name]] = next((why for each, why in known.items() if each.fullmatch(near)), f"not in {chosen}")
        else:
            beside[full[name]] = f"of another network, {behind}"
    assumed, changed = tuple[str, ...](), dict[str, str]()
    outside = {name: tensors[name] for name, why in beside.items() if why == f"not in {chosen}"}
    maps = [name for name, each in outside.items() if name.startswith(around) and each.ndim == 2]
    if maps and not any(short.removeprefix(own).startswith(tops) for short in names):
        kernel = full.get(_kernel(family, chosen, full))
        width = len(tensors[kernel]) if kernel else 0
        stems = [name.removesuffix("weight") for name in maps if _is_head(name, around, width, tensors)]
        if len(stems) == 1:
            stem, place = stems[0], next(rule.theirs[0] for rule in family.rules if rule.ours in HEADS)
            both = [name for name in outside if name in (f"{stem}weight", f"{stem}bias")]
            names |= {place.replace("*", name.removeprefix(stem)): name for name in both}
            beside = {name: why for name, why in beside.items() if name not in both}
            assumed = (f"its head is {stem[:-1]}, beside the network in {chosen}",)
        else:
            changed["head"] = f"none: what is beside the network in {chosen} is left out ({some_of(maps, 3)})"
    if others:
        average = prefix is None and AVERAGE.search(chosen)
        taken = f"{chosen}, a moving average that the checkpoint contains beside its weights" if average else chosen
        changed["weights"] = f"{taken}; {some_of(others, 3)} left out"
    inside = {short: tensors[name] for short, name in names.items()}
    rule = {"position_resize": "dinov2"} if "teacher" in chosen and "student" in " ".join(others) else {}  # DINO's own
    return Inside(family, chosen, inside, names, beside, assumed, changed, rule)


def _is_head(weight: str, around: str, width: int, tensors: Mapping[str, Tensor]) -> bool:
    """Whether this is the only map of a module beside the network, of as many inputs as a token has numbers."""
    module = f"{around}{weight.removeprefix(around).partition('.')[0]}."
    alone = {name for name in tensors if name.startswith(module)} <= {weight, f"{weight.removesuffix('weight')}bias"}
    return weight.endswith(".weight") and alone and tensors[weight].shape[1] == width


def _choose(blocks: Mapping[str, Mapping[str, Sequence[int]]], stated: str | None) -> str:
    """The prefix of the network that is meant, of those with these shapes in their blocks."""
    if stated is not None:
        word = IN_TORCH.sub("", f"{stated}.").strip(".")
        meant = [each for each in blocks if each.strip(".") == word]
        meant = meant or [each for each in blocks if each.startswith(word and f"{word}.")]
        if len(meant) == 1:
            return meant[0]
        problem = f"prefix {stated} is not that of one network; they are at {some_of([*map(repr, blocks)], 5)}"
        raise UsageError(problem, hint_for({"prefix": next(iter(blocks)) or "."}))
    first, *rest = blocks.values()
    if all(each == first for each in rest):
        for some in (blocks, [p for p in blocks if AVERAGE.search(p)], [p for p in blocks if not MOMENTUM.search(p)]):
            if len(some) == 1:
                return next(iter(some))
    problem = f"it contains {len(blocks)} networks, of the prefixes {some_of([*map(repr, blocks)], 5)}"
    raise DataError(problem, hint_for({"prefix": next(filter(None, blocks))}, "or that of the other"))


def left_out_words(skipped: Mapping[str, str], reasons: bool) -> str:
    """Names of tensors that are left out, many of one place and reason together; with the reasons."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, why in skipped.items():
        groups.setdefault((name.partition(".")[0], why), []).append(name)
    words = []
    for (place, why), names in groups.items():
        each = names if len(names) <= FEW else [f"{place}.*: {len(names)} tensors"]
        words += [f"{name} ({why})" if reasons else name for name in each]
    return ", ".join(words)
