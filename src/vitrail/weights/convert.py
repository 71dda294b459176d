"""A foreign network becomes ours: its tensors by the rules of its family, and the proof that both answer alike.

converted = convert(module)                    a live network of timm, transformers, torchvision or vit-pytorch
converted = from_tensors(tensors, assume, where)    tensors of a file, and what the user states beside them
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import DataError, UsageError, VitrailError, counted, some_of
from vitrail.nn import STANDARD, ViT
from vitrail.nn.blocks import initialise
from vitrail.nn.networks import evaluating
from vitrail.nn.vit import OWN
from vitrail.runtime import whole_fp32
from vitrail.weights.assume import hint_for
from vitrail.weights.family import ELSE, HEAD, SHOWN, WRAPPERS, Facts, Family, is_of, renamed, sources, why_not
from vitrail.weights.google import GOOGLE
from vitrail.weights.probe import network_of, probe
from vitrail.weights.published import GAP, LOUDNESS, gap_of
from vitrail.weights.timm import TIMM
from vitrail.weights.torchvision import TORCHVISION
from vitrail.weights.transformers import TRANSFORMERS
from vitrail.weights.vit_pytorch import FIRST_FORM, VIT_PYTORCH

FAMILIES: tuple[Family, ...] = (TIMM, TRANSFORMERS, TORCHVISION, GOOGLE, VIT_PYTORCH, FIRST_FORM)


QUIET = 0.01  # two answers that lie closer, relative to the largest number, say little of what makes them
SEED = 0
HEADS = "head.", "head_dist."
SHARED = ("norm_eps", "activation")  # what no tensor says, and a family may have alike in all members


@dataclass(frozen=True, eq=False)
class Converted:
    """A network made of foreign tensors, and how it was made.

    Attributes:
        network: In eval mode.
        family: Whose names the tensors bore.
        facts: What the tensors' names say, a live module, a configuration or the caller.
        used: Their tensors that are ours now.
        skipped: Their tensors that no answer depends on, with why.
        assumed: What nobody stated and was taken for granted, in sentences.
        changed: What is not as it was there, by name: a `head` that was made anew.
        gap: How far the answers of both lie apart, relative to the largest number; None without a live network.
    """

    network: ViT
    family: str
    facts: Facts
    used: tuple[str, ...]
    skipped: Mapping[str, str]
    assumed: tuple[str, ...]
    gap: float | None = None
    changed: Mapping[str, str] = field(default_factory=dict)


def family_of(names: Sequence[str], where: str) -> Family:
    """The family that tensors of these names belong to.

    Raises:
        DataError: If none knows them, or more than one does.
    """
    found = [family for family in FAMILIES if is_of(family, names)]
    if len(found) != 1:
        known = ", ".join(family.name for family in FAMILIES)
        those = "of several families at once" if found else "of no family known here"
        problem = f"{where}: its tensors are {those}: {some_of(sorted(names), 3)}"
        raise DataError(problem, f"the weights of a ViT of {known}; {ELSE}")
    return found[0]


def from_tensors(
    tensors: Mapping[str, Tensor],
    assume: Facts,
    where: str,
    config: Mapping[str, Any] | None = None,
    any_head: bool = False,
) -> Converted:
    """A network with these tensors.

    Args:
        tensors: Under the names of one of the families; they are not changed.
        assume: Fields of `ViTConfig` that tensors do not say, and `pooling`: above what the family and `config` say.
        where: The file, for messages.
        config: A `config.json` that lies beside it: what it says the network is made of has to be there.
        any_head: Whether the head may be another than that says, or none.

    Raises:
        DataError: If the tensors are of no family, do not fit each other or the configuration, or are not finite.
        UsageError: If something has to be stated; names it.
    """
    named = config and (config.get("model_type") or config.get("architecture"))
    kind = config and f" (config.json says {named or 'nothing'})"
    if why := why_not(named, tensors):
        raise DataError(f"{where}{kind or ''}: it has {why}, and is no plain ViT", ELSE)
    family = family_of(list(tensors), f"{where}{kind or ''}")
    try:
        stated = None if config is None else family.of_config(config)
    except DataError as error:
        raise DataError(f"{where}: {error.problem}", error.hint) from error
    if config is not None and stated is None:
        problem = f"{where}{kind}: the tensors bear names of {family.name}, which that is not"
        raise DataError(problem, f"weights and config.json of one plain ViT; {ELSE}")
    stated = {name: value for name, value in (stated or {}).items() if not (any_head and name in HEAD)}
    return _converted(family, tensors, assume, stated, where)


def _converted(family: Family, tensors: Mapping[str, Tensor], assume: Facts, stated: Facts, where: str) -> Converted:
    tensors = family.unstacked(tensors)
    names = renamed(family, tensors, where)
    beside = {name: value for name, value in stated.items() if name not in SHOWN}
    known = {**family.of_tensors(tensors), **beside, **assume}
    facts = {**family.assumed, **known}
    granted = [name for name in SHARED if name in family.assumed and name not in known]
    first, second = (names.tensors.get(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    gated = first is not None and second is not None and first.shape[0] == 2 * second.shape[-1]
    if "norm_pre.weight" in names.tensors or gated:  # CLIP's and SwiGLU's are of several kinds
        for name in granted:
            del facts[name]
    network, assumed = probe(family.completed(names.tensors, facts), facts, stated, where)
    if granted:
        each = ", ".join(f"{name} {facts[name]}" for name in granted)
        assumed.append(f"{each}, as {family.source or f'{family.name} has it'}")
    return Converted(network, family.name, known, names.used, names.skipped, tuple(assumed))


def convert(module: nn.Module, assume: Facts | None = None) -> Converted:
    """The network of a live module, proved to answer as it does.

    Args:
        module: Of timm, transformers, torchvision or vit-pytorch; it is left as it was.
        assume: What it does not say of itself; see `from_tensors`.

    Raises:
        UsageError: If the module is of no family.
        DataError: If it has what no plain ViT has, or the answers differ; nothing is returned then.
    """
    if not isinstance(module, nn.Module):
        raise _not_live(module)
    where, tensors = type(module).__name__, module.state_dict()
    name = f"{type(module).__module__}.{where}"
    if others := [key for key, value in tensors.items() if not isinstance(value, Tensor)]:
        problem = f"{name} holds {others[0]}, which is no tensor: it is quantised, or keeps more than its numbers"
        raise UsageError(problem, "the network as it was before that")
    if any(tensor.is_meta for tensor in tensors.values()):
        problem = f"{name} is on the meta device, where tensors have no numbers to convert"
        raise UsageError(problem, "module.load_state_dict(tensors, assign=True) first, with tensors that have numbers")
    published: Any = getattr(module, "pretrained_cfg", None)
    architecture = published.get("architecture") if isinstance(published, Mapping) else None
    if why := why_not(architecture or where, tensors):
        raise UsageError(f"{name} has {why}, and is no plain ViT", ELSE)
    for family in FAMILIES:
        try:
            facts = family.of_module(module)
        except VitrailError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # another one of the same name
            made = f"is made otherwise than a plain ViT of {family.name} ({type(error).__name__}: {error})"
            raise UsageError(f"{name} {made}", f"its state dict as a file; {ELSE}") from error
        if facts is not None and is_of(family, list(tensors)):
            break
    else:
        known = ", ".join(family.name for family in FAMILIES)
        raise UsageError(f"{name} is no plain ViT of {known}", f"one of these, as a live module; {ELSE}")

    def taken_over(live: nn.Module) -> Converted:
        own = {name: tensor.detach().cpu().clone() for name, tensor in live.state_dict().items()}
        return _converted(family, own, {**facts, **(assume or {})}, {}, where)

    converted, spread = prove(taken_over(module), family.logits, module)
    if spread < QUIET:  # a head of zeros, or blocks that are scaled to nothing, would hide whatever is wrong
        loud = _redrawn(module)
        if prove(taken_over(loud), family.logits, loud)[1] < QUIET:
            problem = f"{where} answers all images alike, whatever its numbers: nothing can be proved of it"
            raise DataError(problem, "a plain ViT; docs/weights.md lists what opens")
    return converted


@torch.no_grad()
def _redrawn(module: nn.Module) -> nn.Module:
    """A copy with other numbers, so large that all of them matter."""
    other, drawn = copy.deepcopy(module).float(), torch.Generator().manual_seed(SEED)
    for parameter in other.parameters():
        std = 1.2 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
        parameter.copy_(torch.randn(parameter.shape, generator=drawn) * std)
    return other


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside what torch puts around one: for several devices, an average over training, a compiled one."""
    while isinstance(module, nn.Module) and type(module).__module__.startswith("torch."):
        inside = dict(module.named_children())
        if len(inside) != 1 or f"{next(iter(inside))}." not in WRAPPERS:
            break
        (module,) = inside.values()
    return module


def _not_live(given: object) -> UsageError:
    """The error for what is no live network, with what opens it."""
    if isinstance(given, str | Path):
        return UsageError(f"a live network is converted, got the name '{given}'", f"vitrail.load({str(given)!r})")
    if isinstance(given, Mapping):
        problem = f"a live network is converted, got {counted(len(given), 'entry', 'entries')} by name"
        return UsageError(problem, "vitrail.load(file) with the file of that state dict, or the module itself")
    problem = f"a live network is converted, got {type(given).__name__}"
    return UsageError(problem, "a torch.nn.Module; or vitrail.load(name) for a name or a file")


def with_head(converted: Converted, classes: int) -> Converted:
    """The same for so many classes: a head of another size is made anew, as that of a fresh network: of zeros.

    Args:
        converted: A network with any head, or with none.
        classes: How many it is to tell apart; 0 for no head: the network answers what one would read.

    Raises:
        UsageError: There is to be no head, and the one that is there reads more than a token's numbers.
    """
    old = converted.network
    if classes == old.config.classes:
        return converted
    if not classes and old.parts.head is not STANDARD.head:
        problem = f"classes 0 leaves out the head, which reads more than the {old.config.width} numbers of a token"
        raise UsageError(problem, f"{hint_for(classes=old.config.classes)}, or another number for a new head")
    config = replace(old.config, classes=classes, head_bias=True)
    made = old.parts.over(OWN, config)
    tensors = {name: tensor for name, tensor in old.state_dict().items() if not name.startswith(HEADS)}
    for name in ("head", "head_dist") if config.distillation_token else ("head",):
        head = made.head()
        initialise(head)
        tensors |= {f"{name}.{key}": tensor for key, tensor in head.state_dict().items()}
    family = next(family for family in FAMILIES if family.name == converted.family)
    gone = sources(family, converted.used, HEADS)
    why, head = "of the head, which is left out as asked", "none, as asked"
    if classes:
        these = counted(classes, "class", "classes")
        why = "of the head for which a new one is made"
        head = f"made anew of zeros for {these}: untrained, all its answers are alike"
    left = f"; that of {old.config.classes} outputs is left out" if old.config.classes else ""
    return replace(
        converted,
        network=network_of(config, old.parts, tensors),
        facts={**converted.facts, "projection": False, "numbers": "", "names": ()},
        used=tuple(name for name in converted.used if name not in gone),
        skipped={**converted.skipped, **dict.fromkeys(gone, why)},
        changed={**converted.changed, "head": f"{head}{left}"},
        gap=None,
    )


@torch.no_grad()
def prove(
    converted: Converted, theirs: Callable[[nn.Module, Tensor], Tensor], module: nn.Module
) -> tuple[Converted, float]:
    """The same, with the gap between its answers and those of the live network, the larger of two images.

    A network of another precision answers as a copy in fp32, which its tensors have here.

    Returns:
        And how far the answers to the two images lie apart: where that is nothing, a small gap proves nothing.

    Raises:
        DataError: If the gap is above `GAP`, or either answer is not finite.
    """
    if any(parameter.dtype != torch.float32 for parameter in module.parameters()):
        module = copy.deepcopy(module).float()
    device, config = next(module.parameters()).device, converted.network.config
    images = torch.randn(len(LOUDNESS), config.channels, *config.image, generator=torch.Generator().manual_seed(SEED))
    images *= torch.tensor(LOUDNESS)[:, None, None, None]
    try:
        with whole_fp32(), evaluating(module):
            wanted = theirs(module, images.to(device)).float().cpu()
    except (AttributeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0][:200]
        problem = f"{type(module).__name__} does not answer images alone ({type(error).__name__}: {why})"
        raise DataError(problem, "the part of it that reads images, such as its vision_model") from error
    except RuntimeError as error:
        why = str(error).partition("\n")[0][:200]
        size = ", ".join(map(str, (1, config.channels, *config.image)))
        problem = f"{type(module).__name__} does not answer images of the size that it says ({why})"
        raise DataError(problem, f"module(torch.zeros({size})), which has to answer before it is converted") from error
    with whole_fp32():  # where the same kernels answer
        found = converted.network.to(device)(images.to(device)).cpu()
    converted.network.cpu()
    if wanted.shape != found.shape:
        problem = f"it answers {tuple(wanted.shape)}, and its tensors make a network that answers {tuple(found.shape)}"
        raise DataError(f"{type(module).__name__}: {problem}", "a plain ViT whose answer is its head's")
    gap = gap_of(found, wanted)
    if not gap <= GAP:
        problem = f"the converted network answers otherwise: the gap is {gap:.1e}, at most {GAP:.0e} is allowed"
        raise DataError(f"{type(module).__name__}: {problem}", "a plain ViT; docs/weights.md lists what opens")
    return replace(converted, gap=gap), gap_of(wanted[:1], wanted[1:])
