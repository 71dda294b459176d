"""Faults of converters, planted into our side of a conversion of timm's networks, and how `convert` meets them.

A network is asked in three states: fresh, as its library makes it, when LayerScale, head or positions may hide nearly
everything; quiet, where what is added is small and an epsilon shows; loud, where attention is all but saturated.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.errors import must_raise
from tests.weights.families import NETWORK
from tests.weights.redraw import redrawn
from vitrail.errors import DataError
from vitrail.weights import convert as conversion
from vitrail.weights.family import Family, Tensors
from vitrail.weights.published import GAP

STATES = "fresh", "quiet", "loud"
SEEN = 10 * GAP  # what every fault has to change


@dataclass(frozen=True)
class Fault:
    """What is wrong in the conversion of a network of timm.

    Attributes:
        tensors: Those of ours that differ, from all of ours.
        facts: What is stated otherwise.
        parts: Functions that are replaced: the module or class, the name, and what makes the wrong of the right one.
        name: Of the network in timm.
        arguments: Of the network, above those of all.
        without: Tensors of ours that are lost.
    """

    tensors: Callable[[Tensors], Mapping[str, Tensor]] = lambda tensors: {}
    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = ()
    name: str = "vit_tiny_patch16_224"
    arguments: tuple[tuple[str, Any], ...] = ()
    without: tuple[str, ...] = ()


def plant(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """Put it into the families and into our parts, until the patch ends."""

    def planted(family: Family) -> Family:
        def of_module(module: nn.Module) -> Any:
            facts = family.of_module(module)
            return None if facts is None else {**facts, **fault.facts}

        def completed(tensors: Tensors, facts: Any) -> Tensors:
            found = family.completed(tensors, facts)
            changed = {**found, **fault.tensors(found)}
            return {name: tensor for name, tensor in changed.items() if name not in fault.without}

        return replace(family, of_module=of_module, completed=completed)

    patch.setattr(conversion, "FAMILIES", tuple(map(planted, conversion.FAMILIES)))
    for owner, name, wrong in fault.parts:
        patch.setattr(owner, name, wrong(getattr(owner, name)))


class Peers:
    """The half of a proof that no fault of ours changes, once for all faults.

    Attributes:
        drawn: Redrawn copies, by module and loudness, and our names that the parameters had.
        resized: Copies for images of another size, and whether that can be.
        answers: By module, or copy, and size of the images.
    """

    def __init__(self) -> None:
        self.drawn: dict[tuple[nn.Module, float], tuple[Any, nn.Module]] = {}
        self.resized: dict[nn.Module, tuple[Any, bool, nn.Module]] = {}
        self.answers: dict[tuple[nn.Module, Any], Tensor] = {}

    def share(self, patch: pytest.MonkeyPatch) -> None:
        redraw = conversion.redraw

        def redraw_once(module: nn.Module, used: Any, loud: float) -> nn.Module:
            names, found = self.drawn.get((module, loud), (None, module))
            if names != used:
                found = redraw(module, used, loud)
                self.drawn[module, loud] = dict(used), found
            return found

        def shared(family: Family) -> Family:
            def at_size(module: nn.Module, size: Any) -> bool:
                if self.resized.get(module, ((),))[0] != size:
                    one = copy.deepcopy(module)
                    self.resized[module] = size, family.at_size(one, size), one
                return self.resized[module][1]

            def logits(module: nn.Module, images: Tensor) -> Tensor:
                if (module, images.shape) not in self.answers:
                    _, _, one = self.resized.get(module, ((), False, module))
                    self.answers[module, images.shape] = family.logits(one, images)
                return self.answers[module, images.shape]

            return replace(family, at_size=at_size, logits=logits)

        patch.setattr(conversion, "redraw", redraw_once)
        patch.setattr(conversion, "FAMILIES", tuple(map(shared, conversion.FAMILIES)))


PEERS = Peers()


@torch.no_grad()
def in_state(module: nn.Module, state: str) -> nn.Module:
    """The module as it is, or redrawn, with values at which little or much shows."""
    if state == "fresh":
        return module.eval()
    redrawn(module)
    for name, parameter in module.named_parameters():
        if state == "quiet" and not (parameter.ndim == 1 and name.endswith("weight")):
            parameter.mul_(0.01)
        if state == "loud" and ("qkv" in name or "q_proj" in name or "k_proj" in name):
            parameter.mul_(2.0)
    return module


@cache
def network(name: str, arguments: tuple[tuple[str, Any], ...], state: str) -> nn.Module:
    """One of timm, which is converted without a fault: a clean one is never refused."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: Any = timm.create_model(name, **{**NETWORK, "img_size": 64, "num_classes": 10, **dict(arguments)})
    module = in_state(made, state)
    assert max(gaps_of(module)) < GAP
    return module


@contextmanager
def proofs() -> Iterator[list[tuple[float, float]]]:
    """Each proof in the block: its gap, and how much it shows; see `prove`."""
    found, prove = list[tuple[float, float]](), conversion.prove

    def kept(*given: Any, **how: Any) -> Any:
        proved, seen = prove(*given, **how)
        found.append((proved.gap or 0.0, seen))
        return proved, seen

    with pytest.MonkeyPatch.context() as here:
        here.setattr(conversion, "prove", kept)
        yield found


def gaps_of(module: nn.Module) -> list[float]:
    """How far both answers lie apart, in each proof: as it is, and redrawn. None is refused."""
    with pytest.MonkeyPatch.context() as here, proofs() as found:
        here.setattr(conversion, "GAP", float("inf"))
        conversion.convert_network(module)
    return [gap for gap, _ in found]


def assert_refused(module: nn.Module, what: str) -> list[float]:
    """With the fault that is planted, nothing before the proof sees it; the proof does, on redrawn weights alone.

    Returns:
        The gaps of both proofs.
    """
    gaps = gaps_of(module)
    assert gaps[1] > SEEN, (what, gaps)
    with must_raise(DataError):
        conversion.convert_network(module)
    return gaps


def assert_caught(fault: Fault, what: str, states: Sequence[str] = STATES[1:]) -> bool:
    """Refused in these states of its network; and in a fresh one moves the proof by more than ten times its bound.

    Returns:
        Whether a fresh network hides it, so that the first proof alone would pass it.
    """
    with pytest.MonkeyPatch.context() as here:
        modules = [network(fault.name, fault.arguments, state) for state in ("fresh", *states)]
        PEERS.share(here)
        plant(fault, here)
        before, redrawn_gap = gaps_of(modules[0])
        assert redrawn_gap > SEEN, (what, redrawn_gap)
        for module in modules[1:]:
            with must_raise(DataError):
                conversion.convert_network(module)
    return before < GAP
