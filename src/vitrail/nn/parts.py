"""Parts: what they say beyond `forward`, those that bear a name, and whether a network's parts keep their contracts.

A part is made by a callable in a slot of `Parts` (`blocks.py`). What explanations need to know of a part, they ask it:

    every part     detached() -> module                   how it is held fixed, see `twin.py`
    pooling        token_weights(tokens, prefix)          how much each token counts in what was pooled, (b, n), rows
                                                          that sum to 1
    attention      join(attended) -> tokens               what its heads add, linear in what they attended (b, k, n, e);
                   record.keep_attention(...)             in its `forward`, so that its weights can be read
    any            start_weights()                        draws its start weights; others keep what they were made with

A part that does not say what a method asks is refused by that method, in words; training and all other methods work.

Parts that a family of networks needs have a name here. `config.json` stores a slot by that name, and every verb opens
it. Parts of a person's own are stored as `own:` and what they are called, and are passed in again where a model is
loaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError, nearest
from vitrail.nn.blocks import STANDARD, Parts, own
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import grid_of
from vitrail.nn.family_parts import (
    AttentionPooling,
    ClassAndMean,
    MeanThenNorm,
    NormedPatchEmbedding,
    SwiGLU,
)
from vitrail.nn.networks import NetworkConfig, build, example_inputs
from vitrail.nn.record import Queries, Tokens
from vitrail.nn.twin import evaluating
from vitrail.own import OWN, contract, demand


@runtime_checkable
class WeighsTokens(Protocol):
    """A pooling that says how much each token counts."""

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """Rows that sum to 1, for the tokens behind the last norm."""
        ...


@runtime_checkable
class JoinsHeads(Protocol):
    """An attention that says what its heads add."""

    def join(self, attended: Queries) -> Tokens:
        """What is added to the tokens; linear in what each head attended, with a constant."""
        ...


# What stands beside these is a field of the configuration itself
TABLE: dict[str, dict[str, Callable[..., Any]]] = {
    "embedding": {"normed": NormedPatchEmbedding},
    "embed_norm": {"layer": lambda c: nn.LayerNorm(c.width, eps=c.norm_eps)},
    "norm": {"rms": lambda c: nn.RMSNorm(c.width, eps=c.norm_eps)},
    "last_norm": {"none": lambda c: nn.Identity()},
    "mlp": {"swiglu": lambda c, activation: SwiGLU(c.width, c.mlp_width, activation, c.dropout, c.mlp_bias)},
    "pooling": {
        "attention": AttentionPooling,
        "mean_then_norm": MeanThenNorm,
        "class_and_mean": lambda c: ClassAndMean(),
    },
    "head": {"of_two": lambda c: nn.Linear(2 * c.width, c.classes, bias=c.head_bias)},
}


CONTRACTS = {  # of parts that do not give the shape they get
    "embedding": "a module: images (b, c, h, w) -> tokens (b, patches, width), or ids (b, n) -> (b, n, width)",
    "positions": "a tensor (1, tokens, width), or None",
    "pooling": "a module: (tokens (b, n, d), prefix) -> (b, d)",
    "head": "a module: (b, d) -> logits (b, classes)",
}


def names_of(parts: Parts) -> dict[str, str]:
    """What is stored of parts: for each slot that is given, its name in the table, or `own:` and what it is called."""
    names = {}
    for slot in fields(parts):
        part = getattr(parts, slot.name)
        if part is not own:
            known = [name for name, make in TABLE.get(slot.name, {}).items() if make is part]
            names[slot.name] = known[0] if known else OWN + getattr(part, "__name__", type(part).__name__)
    return names


def parts_of(names: Mapping[str, str], given: Parts = STANDARD) -> Parts:
    """The parts that were stored by these names.

    Args:
        names: As `names_of` gave them.
        given: Parts of one's own, for the slots whose part is not in the table.

    Raises:
        UsageError: A name is unknown, a part of one's own is not given, or one is given for another slot.
    """
    found: dict[str, Callable[..., Any]] = {}
    for slot, name in names.items():
        part = getattr(given, slot, own)
        if name.startswith(OWN) and part is own:
            problem = f"this network has a {slot} of a person's own, called '{name.removeprefix(OWN)}'"
            raise UsageError(problem, f"vitrail.nn.Parts({slot}=...) with the one that it was trained with")
        if not name.startswith(OWN) and name not in TABLE.get(slot, {}):
            known = [f"{one}={other}" for one in TABLE for other in TABLE[one]]
            raise UsageError(
                f"this version knows no {slot} called '{name}'", nearest(f"{slot}={name}", known) or "a newer vitrail"
            )
        if part is not own and (called := names_of(given)[slot]) != name:
            raise UsageError(f"the {slot} of this network is {name}, and {called} is given", f"{slot}: {name}")
        found[slot] = part if part is not own else TABLE[slot][name]
    idle = [slot.name for slot in fields(given) if getattr(given, slot.name) is not own and slot.name not in names]
    if idle:
        raise UsageError(f"parts have {idle[0]}, and this network has the standard one", f"no {idle[0]} in parts")
    return replace(STANDARD, **found)


def check_parts(config: NetworkConfig, parts: Parts) -> None:
    """Build a network of these parts, run it once on zeros, and hold what each part does against its contract.

    Args:
        config: Of the network.
        parts: Those that are not the network's own are looked at.

    Raises:
        UsageError: A part cannot be made, fails, or gives another shape than its contract or what is not finite; names
            the part.
    """
    watched: list[nn.Module] = []
    chosen = {slot.name: getattr(parts, slot.name) for slot in fields(parts)}
    trials = {slot: _tried(slot, make, parts, watched) for slot, make in chosen.items() if make is not own}
    try:
        network = build(config, replace(parts, **trials))
        with evaluating(network), torch.no_grad():
            network(*example_inputs(network, 2))
    finally:
        for part in watched:
            vars(part).pop("forward", None)


def _tried(slot: str, make: Callable[..., Any], parts: Parts, watched: list[nn.Module]) -> Callable[..., Any]:
    """Makes the same part, which then looks at itself whenever it is called."""
    name = names_of(parts)[slot].removeprefix(OWN)
    keeps, gets = f"the {slot} {name}", "config, activation" if slot == "mlp" else "config"
    wanted = (
        f"{slot}=lambda {gets}: ..., which makes {CONTRACTS.get(slot, 'a module: tokens (b, n, d) -> the same shape')}"
    )

    def made(config: Any, *more: Any) -> Any:
        with contract(keeps, wanted):
            part = make(config, *more)
            if slot == "positions":
                if part is not None:
                    _hold(part, (1, config.tokens, config.width))
                return part
            demand(isinstance(part, nn.Module), f"it made {type(part).__name__}, and no module")
        forward = part.forward

        def looked_at(inputs: Tensor, *others: Any, **named: Any) -> Any:
            with contract(keeps, wanted):
                given = forward(inputs, *others, **named)
                _hold(given, _shape(slot, config, inputs, parts))
            return given

        part.forward = looked_at
        watched.append(part)
        return part

    return made


def _shape(slot: str, config: Any, inputs: Tensor, parts: Parts) -> tuple[int, ...] | None:
    """What a part gives for these inputs; None where that is not said."""
    match slot:
        case "embedding" if isinstance(config, ViTConfig):
            rows, columns = grid_of((inputs.shape[2], inputs.shape[3]), config.patch)
            return inputs.shape[0], rows * columns, config.width
        case "embedding":
            return *inputs.shape, config.width
        case "pooling":
            return (inputs.shape[0], config.width) if parts.head is own else None
        case "head":
            return (inputs.shape[0], config.classes) if config.classes else None
        case "activation" if parts.mlp is not own:
            return None  # only that MLP knows
    return tuple(inputs.shape)


def _hold(given: Any, wanted: tuple[int, ...] | None) -> None:
    demand(isinstance(given, Tensor), f"it gave {type(given).__name__}, and no tensor")
    demand(wanted is None or tuple(given.shape) == wanted, f"it gave {tuple(given.shape)}, and not {wanted}")
    demand(bool(given.isfinite().all()), "it gave numbers that are not finite for an input of zeros")
