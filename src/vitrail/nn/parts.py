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
from vitrail.nn.record import Queries, Record, Tokens
from vitrail.nn.twin import evaluating
from vitrail.nn.vit import ViT

OWN = "own:"  # in front of the name of a part that is not in the table


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


class NormedPatchEmbedding(nn.Module):
    """The patch map between two norms: flattened patches, LayerNorm, linear map, LayerNorm, as in vit-pytorch.

    Args:
        config: Of the network.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        numbers = config.channels * config.patch[0] * config.patch[1]
        self.patch_size = config.patch
        self.norm_patches = nn.LayerNorm(numbers, eps=config.norm_eps)
        self.proj = nn.Linear(numbers, config.width, bias=config.embed_bias)
        self.norm_tokens = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """Tokens in reading order; the numbers of a patch stand by rows, channels last."""
        height, width = self.patch_size
        rows, columns = grid_of((images.shape[2], images.shape[3]), self.patch_size)
        cut = images.unflatten(3, (columns, width)).unflatten(2, (rows, height)).permute(0, 2, 4, 3, 5, 1)
        return self.norm_tokens(self.proj(self.norm_patches(cut.flatten(3).flatten(1, 2))))

    def detached(self) -> nn.Module:
        """Itself: it is linear as soon as its norms are."""
        return self


# Poolings, positions and activations that bear a name are fields of the configuration itself
TABLE: dict[str, dict[str, Callable[..., Any]]] = {
    "embedding": {"normed": NormedPatchEmbedding},
    "embed_norm": {"layer": lambda c: nn.LayerNorm(c.width, eps=c.norm_eps)},
    "norm": {"rms": lambda c: nn.RMSNorm(c.width, eps=c.norm_eps)},
    "activation": {"silu": lambda c: nn.SiLU()},
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
            raise UsageError(
                f"this network has a {slot} of a person's own, called '{name.removeprefix(OWN)}'",
                f"in Python: vitrail.load(path, parts=Parts({slot}={name.removeprefix(OWN)}))",
            )
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


@torch.no_grad()
def check_parts(network: ViT) -> None:
    """Run a network once, on two images of zeros, and hold what its parts give against their contracts.

    Raises:
        UsageError: A part gives another shape than its contract, or what is not finite; names the part.
    """
    config, record = network.config, Record()
    weights = next(network.parameters())
    images = torch.zeros(2, config.channels, *config.image, dtype=weights.dtype, device=weights.device)
    tokens, width = config.tokens, config.width
    grid = config.grid
    embedded = network.patch_embed(images)
    _must_be("embedding", network.patch_embed, embedded, (2, grid[0] * grid[1], width))
    if network.pos_embed is not None:
        _must_be("positions", network.pos_embed, network.pos_embed, (1, tokens, width))
    failed = None
    with evaluating(network):
        try:
            network(images, record)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:  # told below, by its part
            failed = error
    found = [("embed_norm", network.norm_pre, "blocks.0.input", (2, tokens, width))]
    for index, block in enumerate(network.blocks):
        found += [
            ("norm", block.norm1, f"blocks.{index}.norm1", (2, tokens, width)),
            ("attention", block.attn, f"blocks.{index}.attn_out", (2, tokens, width)),
            ("mlp", block.mlp, f"blocks.{index}.mlp", (2, tokens, width)),
        ]
    found += [("pooling", network.pool, "pooled", (2, width))]
    found += [("head", network.head, "logits", (2, config.classes))] if config.classes else []
    for slot, part, name, wanted in found:
        if name not in record:
            raise UsageError(
                f"{slot} {type(part).__name__} fails: {type(failed).__name__}: {str(failed).partition(chr(10))[0]}",
                f"{slot} as the docstring of vitrail.nn.Parts says it",
            ) from failed
        _must_be(slot, part, record[name], wanted)


def _must_be(slot: str, part: object, found: Tensor, wanted: tuple[int, ...]) -> None:
    name = type(part).__name__
    if tuple(found.shape) != wanted:
        raise UsageError(f"{slot} {name} gives {tuple(found.shape)}, and its contract is {wanted}", f"another {slot}")
    if not found.isfinite().all():
        raise UsageError(f"{slot} {name} gives numbers that are not finite for an image of zeros", f"another {slot}")
