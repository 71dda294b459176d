"""A foreign network becomes ours: its tensors by the rules of its family, and the proof that both give equal logits.

converted = convert(module)                         a live network of timm, transformers, torchvision or vit-pytorch
converted = from_tensors(tensors, assume, where)    tensors of a file, and what the user states beside them
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vitrail.data.tensor_files import digest_of
from vitrail.errors import DataError, UsageError, counted, located, raised_as, some_of
from vitrail.nn import STANDARD, ViT
from vitrail.nn.networks import evaluating
from vitrail.nn.twin import twin
from vitrail.runtime import whole_fp32
from vitrail.weights.adapt import HEADS, start_network
from vitrail.weights.assume import hint_for
from vitrail.weights.family import (
    ADAPTERS,
    ELSE,
    HEAD,
    SHOWN,
    WRAPPERS,
    Facts,
    Family,
    instead_of,
    rename,
    rename_heads,
    why_not,
    why_not_bare,
)
from vitrail.weights.google import GOOGLE
from vitrail.weights.infer import infer_network
from vitrail.weights.inside import Inside, find_inside, networks_in
from vitrail.weights.perception import named_as_timm
from vitrail.weights.published import GAP, LOUDNESS, logit_gap
from vitrail.weights.rotations import PUBLISHED
from vitrail.weights.timm import TIMM
from vitrail.weights.torchvision import TORCHVISION
from vitrail.weights.transformers import TRANSFORMERS
from vitrail.weights.vit_pytorch import FIRST_FORM, VIT_PYTORCH

FAMILIES: tuple[Family, ...] = (TIMM, TRANSFORMERS, TORCHVISION, GOOGLE, VIT_PYTORCH, FIRST_FORM)


QUIET = 0.01  # logits that are closer, relative to the largest, show little of what differs between them
LOUDER = 1.0, 1.4, 2.0  # factors of queries and keys, drawn again until positions matter; twice as loud, the gap of
# another implementation of attention grows from 1.5e-6 to 6.6e-5 in 40 blocks
POSITIONS = {"pos_embed": 1, "rotary": 0}  # attributes of a network: each that is there has to matter, in which image
FAINT = 0.01  # of what is added before the blocks
SEED = 0
OTHER = (AttributeError, LookupError, TypeError, ValueError)  # of a module that only has the name of a ViT
SHARED = ("norm_eps", "activation")  # what no tensor shows, and may be the same in all members of a family


@dataclass(frozen=True, eq=False)
class Converted:
    """A network made of foreign tensors, and how it was made.

    Attributes:
        network: In eval mode.
        family: The family whose names the tensors had.
        facts: What the names of the tensors show, and a live module, a configuration or the caller states.
        used: Names of the foreign tensors that are ours now, and our names of them.
        skipped: Names of those that the logits do not depend on, with why.
        assumed: What nobody stated and was assumed, in sentences.
        changed: What differs from the source, by name: a `head` that was made anew, `weights` that are one of several.
        path: Of the network in the live module, as torch names it.
        gap: The largest difference of the logits, relative to the largest logit; None without a live network.
    """

    network: ViT
    family: str
    facts: Facts
    used: Mapping[str, str]
    skipped: Mapping[str, str]
    assumed: tuple[str, ...]
    gap: float | None = None
    changed: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    @cached_property
    def digest(self) -> str:
        """A hash of the network's tensors, as they were converted."""
        return digest_of(self.network.state_dict())


def family_of(names: Sequence[str]) -> Family:
    """The family that tensors of these names belong to.

    Raises:
        DataError: If it is none of the known, or more than one.
    """
    return find_inside(FAMILIES, dict.fromkeys(names, torch.empty(0))).family


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
        assume: Fields of `ViTConfig` that tensors do not show, and `pooling`: above those of the family and `config`.
        where: The file, for messages.
        config: A `config.json` beside it: the tensors have to show what it states.
        any_head: Whether the head may be another than it states, or missing.

    Raises:
        DataError: If the tensors are of no family, do not fit each other or the configuration, or are not finite.
        UsageError: If something has to be stated; names it.
    """
    named = config and (config.get("model_type") or config.get("architecture"))
    tensors = named_as_timm(tensors)
    kind = "" if config is None else f" (config.json states {named or 'nothing'})"
    with located(f"{where}{kind}"):
        if why := why_not(named, tensors) or (not named and why_not_bare(tensors)):
            raise DataError(f"it has {why}, so it is not a plain ViT", instead_of(why))
        inside = find_inside(FAMILIES, tensors, assume.get("prefix"))
        family = inside.family
        stated = None if config is None else family.of_config(config)
        if config is not None and stated is None:
            problem = f"the tensors have the names of {family.name}, which that is not"
            raise DataError(problem, f"weights and config.json of one plain ViT; {ELSE}")
    stated = {name: value for name, value in (stated or {}).items() if not (any_head and name in HEAD)}
    with located(where):
        return _convert(inside, {**inside.facts, **assume}, stated, where, any_head)


def _convert(inside: Inside, assume: Facts, stated: Facts, where: str, any_head: bool = False) -> Converted:
    family = inside.family
    tensors = rename_heads(family, family.unstacked(inside.tensors))
    names = rename(family, tensors, any_head)
    beside = {name: value for name, value in stated.items() if name not in SHOWN}
    shown = family.of_tensors(tensors)
    known = {**shown, **beside, **assume}
    first, second = (names.tensors.get(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    gated = first is not None and second is not None and first.shape[0] == 2 * second.shape[-1]
    if published := PUBLISHED.get(known.get("rotary", "")):
        known = {"norm_eps": published.norm_eps, "activation": "silu" if gated else "gelu", **known}
    facts = {**family.assumed, **known}
    granted = [name for name in SHARED if name in family.assumed and name not in known]
    if "norm_pre.weight" in names.tensors or gated:  # CLIP's and SwiGLU's are of several kinds
        for name in granted:
            del facts[name]
    network, assumed = infer_network(family.completed(names.tensors, facts), facts, stated, where)
    if granted:
        each = ", ".join(f"{name} {facts[name]}" for name in granted)
        assumed.append(f"{each}, as {family.source or f'{family.name} has it'}")
    if "rotary" in shown and known["rotary"] is shown["rotary"]:
        pooled = ", pooling class" if known.get("pooling") == shown.get("pooling") == "class" else ""
        assumed.append(f"rotary positions of base {known['rotary'].base:g}{pooled}, as published")
    if published := [name for name in SHARED if name in shown and name not in {**beside, **assume}]:
        assumed.append(f"{', '.join(f'{name} {shown[name]}' for name in published)}, as published")
    used, skipped = ({inside.names.get(n, n): to for n, to in each.items()} for each in (names.used, names.skipped))
    said = (*inside.assumed, *assumed)
    return Converted(network, family.name, known, used, {**skipped, **inside.beside}, said, changed=inside.changed)


def convert_network(module: nn.Module, assume: Facts | None = None) -> Converted:
    """The network of a live module, proved to give the same logits, twice: with its weights, and with loud ones.

    Args:
        module: Of timm, transformers, torchvision or vit-pytorch; it is not changed.
        assume: What it does not state of itself; see `from_tensors`.

    Raises:
        UsageError: If the module is of no family.
        DataError: If it has what no plain ViT has, or the logits differ by more than `GAP`.
    """
    if not isinstance(module, nn.Module):
        called = repr(str(module)) if isinstance(module, str | Path) else "name or file"
        raise UsageError(f"module must be a live network, got {type(module).__name__}", f"vitrail.load({called})")
    where, tensors = type(module).__name__, module.state_dict()
    name = f"{type(module).__module__}.{where}"
    path, family, facts = _find_live(module, name)
    inner = f"{path}." * bool(path)
    for key, value in tensors.items():
        if not key.startswith(inner):
            continue
        if not isinstance(value, Tensor):
            problem = f"{name} contains {key}, which is not a tensor: it is quantised or has other extra state"
            raise UsageError(problem, "the network before it was quantised")
        if is_lazy(value):
            problem = f"{name} contains {key}, which has no shape before the first images"
            raise UsageError(problem, f"{where}(images) once before it is converted, or a layer with its size")
        if value.is_meta:
            problem, filled = f"{name} is on the meta device", "module.load_state_dict(tensors, assign=True) first"
            raise UsageError(f"{problem}, where tensors have no values to convert", f"{filled}, with such that have")

    def taken_over(tensors: Mapping[str, Tensor]) -> Converted:
        with located(where):
            inside = find_inside((family,), tensors, path or None)
            return replace(_convert(inside, {**facts, **(assume or {})}, {}, where), path=path)

    def answer(live: nn.Module, images: Tensor) -> Tensor:
        with suppress(NotImplementedError):  # what only holds a network need not answer itself
            return live(images)
        return family.logits(live.get_submodule(path), images)

    if any(parameter.dtype != torch.float32 for parameter in module.parameters()):  # proved in the precision of ours
        module = copy.deepcopy(module).float()
        if size := facts.get("image_size"):
            family.at_size(module.get_submodule(path), size)  # buffers keep the digits that they had
    peer = replace(family, logits=answer, at_size=lambda live, size: False) if path else family
    converted = taken_over({key: value.clone() for key, value in _values(module).items()})
    try:
        converted, _ = prove(converted, peer, module)
        for loud in LOUDER:  # a fresh head or LayerScale hides whatever is wrong behind it
            drawn = redraw(module, converted.used, loud)
            if prove(taken_over(_values(drawn)), peer, drawn, redrawn=True)[1] >= QUIET:
                return converted
    except DataError as error:
        if not path:
            raise
        raise DataError(error.problem, f"vitrail.convert({_word(path)}), the network in it") from error
    problem = f"{where} gives the same logits whatever the image or the positions, also with random, loud weights"
    raise DataError(f"{problem}, which proves nothing", "a plain ViT; docs/weights.md lists what opens")


def _values(module: nn.Module) -> Mapping[str, Tensor]:
    found = {name: each for name, each in module.state_dict().items() if isinstance(each, Tensor) and not is_lazy(each)}
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def _word(path: str) -> str:
    """A module inside of `module`, as Python names it."""
    named = all(part.isidentifier() for part in path.split("."))
    return f"module.{path}" if named else f"module.get_submodule({path!r})"


def _find_live(module: nn.Module, name: str) -> tuple[str, Family, Facts]:
    """The path of the only network in a live module, its family and what it states; the module itself has none.

    Raises:
        UsageError: There is none, or there are several; names them.
    """
    found: dict[str, tuple[Family, Facts]] = {}
    refused = ""
    for path, part in module.named_modules():
        if any(not each or path.startswith(f"{each}.") for each in found):
            continue
        published: Any = getattr(part, "pretrained_cfg", None)
        architecture = published.get("architecture") if isinstance(published, Mapping) else None
        if why := why_not(architecture or type(part).__name__, part.state_dict() if architecture or not path else ()):
            refused = refused or why
            if not path and why == ADAPTERS:  # which are in all parts of it
                break
            continue
        for family in FAMILIES:
            problem = f"{name} differs from a plain ViT of {family.name}"
            with raised_as(UsageError, problem, f"its state dict as a file; {ELSE}", OTHER):
                facts = family.of_module(part)
            if facts is not None and networks_in((family,), part.state_dict()):
                if {"text_model", "vision_model"} <= dict(part.named_children()).keys():
                    images = _word(f"{path}.vision_model".removeprefix("."))
                    problem = f"{name} reads images and texts, and gives no answer for images alone"
                    raise UsageError(problem, f"vitrail.convert({images}), its part for images")
                found[path] = family, facts
                break
    if len(found) == 1:
        return next((path, *both) for path, both in found.items())
    if found:
        first, *rest = (_word(path) for path in found)
        problem = f"{name} contains several networks: {some_of([first, *rest], 5)}"
        raise UsageError(problem, f"vitrail.convert({first}), or another")
    if refused:
        raise UsageError(f"{name} has {refused}, so it is not a plain ViT", instead_of(refused))
    known = ", ".join(family.name for family in FAMILIES)
    raise UsageError(f"{name} is not a plain ViT of {known}", f"one of these, as a live module; {ELSE}")


@torch.no_grad()
def redraw(module: nn.Module, used: Mapping[str, str] | None = None, loud: float = 1.0) -> nn.Module:
    """A copy in fp32 with random parameters, of which all matter; buffers are as they were.

    What is added before the blocks is small: an epsilon shows, and positions beside a faint image.

    Args:
        module: Ours, or one of a family.
        used: Our names of its parameters, where they are others.
        loud: Factor of queries and keys.
    """
    generator, drawn = torch.Generator().manual_seed(SEED), dict[int, Any]()
    for name, parameter in module.named_parameters():
        ours, values = (used or {}).get(name, name), torch.randn(parameter.shape, generator=generator)
        first, _, last = ours.partition(".")
        if first == "pos_embed" or first.endswith("_token") or (first == "patch_embed" and parameter.ndim == 1):
            values *= FAINT
        elif parameter.ndim < 2 or len(parameter) == 1:
            values = 0.3 * values + last.endswith("weight")
        else:
            values *= 1.2 * max(1, parameter[0].numel()) ** -0.5
        values *= loud if ".attn." in last and ".proj." not in last else 1
        drawn[id(parameter)] = nn.Parameter(values.to(parameter.device))
    return copy.deepcopy(module, drawn).float()


def unwrap(module: nn.Module) -> nn.Module:
    """The network inside torch's wrappers: those of many devices, of an average over training, of compilation."""
    while isinstance(module, nn.Module) and type(module).__module__.startswith("torch."):
        inside = dict(module.named_children())
        if len(inside) != 1 or f"{next(iter(inside))}." not in WRAPPERS:
            break
        (module,) = inside.values()
    return module


def with_head(converted: Converted, classes: int) -> Converted:
    """The same network for so many classes: a head of another size is made anew, of zeros, as in a fresh network.

    Args:
        converted: A network with any head, or with none.
        classes: Length of the logits; 0 for no head, so that the network returns features.

    Raises:
        UsageError: If the head is to be left out, and reads more than one token.
    """
    old = converted.network
    if classes == old.config.classes:
        return converted
    if not classes and old.parts.head is not STANDARD.head:
        problem = f"classes 0 leaves out the head, which reads more than one token of width {old.config.width}"
        raise UsageError(problem, hint_for({"classes": old.config.classes}, "or another number for a new head"))
    config = replace(old.config, classes=classes, head_bias=True)
    with torch.random.fork_rng(devices=[]):  # the weights that are replaced are drawn
        network = start_network(old, config).eval()
    gone = [name for name, ours in converted.used.items() if ours.partition(".")[0] in HEADS]
    why, head = "of the head, which is left out as requested", "none, as requested"
    if classes:
        these = counted(classes, "class", "classes")
        why = "of the head that a new one replaces"
        head = f"new, of zeros for {these}: untrained, so all images get the same logits"
    left = f"; that of {old.config.classes} outputs is left out" if old.config.classes else ""
    return replace(
        converted,
        network=network,
        used={name: ours for name, ours in converted.used.items() if name not in gone},
        skipped={**converted.skipped, **dict.fromkeys(gone, why)},
        changed={**converted.changed, "head": f"{head}{left}"},
        gap=None,
    )


@torch.no_grad()
def prove(converted: Converted, family: Family, module: nn.Module, redrawn: bool = False) -> tuple[Converted, float]:
    """The same, with the gap between its logits and those of the live network, the larger of two images.

    Args:
        converted: From the live network.
        family: Of the live network.
        module: The live network, in fp32.
        redrawn: Whether it is a copy with weights of which all matter, positions as well. Its images have another size
            if the family can change that, which shows how positions are resized.

    Returns:
        And the gap between the logits of the two images, or if smaller, from those without positions: where that is
        nothing, a small gap proves nothing.

    Raises:
        DataError: If the live network takes no images of the size that it states, or the gap is above `GAP`.
    """
    name, device, config = type(module).__name__, next(module.parameters()).device, converted.network.config
    (rows, columns), (height, width) = config.grid, config.patch
    other = max(2, rows // 3) * height, (columns + 1) * width  # a third of the work; one side shorter, one longer
    sizes = (other, (min(other),) * 2) if redrawn else ()  # or a square
    size = next((each for each in sizes if family.at_size(module, each)), config.image)
    images = torch.randn(len(LOUDNESS), config.channels, *size, generator=torch.Generator().manual_seed(SEED))
    images = (images * torch.tensor(LOUDNESS)[:, None, None, None]).to(device)
    hint = f"module(torch.zeros{(1, *images.shape[1:])}), which has to work"
    problem = f"{name} gives no logits for images of {size} pixels alone"
    with whole_fp32(), evaluating(module), raised_as(DataError, problem, hint, (*OTHER, RuntimeError)):
        wanted = family.logits(module, images).float()
    network, seen = converted.network.to(device), logit_gap(wanted[:1], wanted[1:])
    with whole_fp32():  # on the device whose kernels computed the others
        found = network(images)
    if wanted.shape != found.shape:
        problem = f"{name} gives logits {tuple(wanted.shape)}, but the converted network gives {tuple(found.shape)}"
        raise DataError(problem, "a plain ViT that returns what its head gives")
    gap = logit_gap(found, wanted)
    if not gap <= GAP:
        problem = f"{name}: the converted network gives other logits: the gap is {gap:.1e}, allowed is {GAP:.0e}"
        raise DataError(problem, "a plain ViT; docs/weights.md lists what opens")
    for kind, image in POSITIONS.items() if redrawn else ():
        if getattr(network, kind) is None:
            continue
        blind = twin(network, {})
        setattr(blind, kind, None)
        with whole_fp32():
            seen = min(seen, logit_gap(blind(images[[image]]), wanted[[image]]))
    network.cpu()
    return replace(converted, gap=gap), seen
