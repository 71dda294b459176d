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

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError, nearest
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import ACTIVATIONS, MLP, STANDARD, Parts, own
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import grid_of
from vitrail.nn.networks import NetworkConfig, build, evaluating, example_inputs
from vitrail.nn.record import Queries, Tokens, attention_weights
from vitrail.nn.vit import MeanOfPatches
from vitrail.own import OWN, contract, demand


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


class SwiGLU(nn.Module):
    """W2 (act(a) * b) with (a, b) = W1 x: "GLU variants improve Transformer" (2020), equation 6, as DINOv2's giant.

    Args:
        width: Numbers per token, d.
        hidden: Numbers behind the gate; the first map makes twice as many.
        activation: Of the gate.
        dropout: Probability of dropping a number, after each linear map.
        bias: Whether both maps have a bias.
    """

    def __init__(
        self, width: int, hidden: int, activation: Callable[[], nn.Module], dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden, bias=bias)
        self.act = activation()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width, bias=bias)
        self.gate_detached = False

    def forward(self, tokens: Tokens) -> Tokens:
        """Map every token by itself."""
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        gate = self.act(gate)
        return self.drop(self.fc2(self.drop((gate.detach() if self.gate_detached else gate) * value)))

    def detached(self) -> nn.Module:
        """Its gate is a constant to the gradient."""
        form = copy.copy(self)
        form.gate_detached = True
        return form


class AttentionPooling(nn.Module):
    """Pooling: a learnt query attends to the patches; then an MLP with its norm ("Set Transformer", 2019), as SigLIP.

    Args:
        config: Of the network; it says the heads, the size of the MLP and its activation.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, config.width), std=config.width**-0.5))
        self.attn = Attention(config.width, config.heads, config.head_width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config.width, config.mlp_width, ACTIVATIONS[config.activation])

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b d"]:
        """What the query reads in the patches."""
        read = self.attn.join(self.attn.attend(*self._projected(tokens, prefix)))
        return (read + self.mlp(self.norm(read)))[:, 0]

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """How much each token counts: the weights of the query, as the mean over the heads."""
        queries, keys, _ = self._projected(tokens, prefix)
        weights = attention_weights(queries, keys).mean(dim=1)[:, 0]
        return torch.cat([weights.new_zeros(len(tokens), prefix), weights], dim=1)

    def _projected(self, tokens: Tokens, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
        """The query's queries, the patches' keys and values: by one map as a whole, so that another can wrap it."""
        queries, _, _ = self.attn.project(self.query.expand(len(tokens), -1, -1))
        _, keys, values = self.attn.project(tokens[:, prefix:])
        return queries, keys, values

    def detached(self) -> nn.Module:
        """Itself: it is linear as soon as its parts are held."""
        return self


class MeanThenNorm(nn.Module):
    """Pooling: the mean of the patch tokens, and then a norm; the network's last norm is left out."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.mean = MeanOfPatches()
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b d"]:
        """The normalised mean of what follows the prefix."""
        return self.norm(self.mean(tokens, prefix))

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """How much each token counts: every patch alike."""
        return self.mean.token_weights(tokens, prefix)

    def detached(self) -> nn.Module:
        """Itself: it is linear as soon as its norm is."""
        return self


class ClassAndMean(nn.Module):
    """Pooling: the class token and the mean of the patches side by side, 2 d numbers, as DINOv2's classifiers read."""

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b two_d"]:
        """Class token, then mean."""
        return torch.cat([tokens[:, 0], tokens[:, prefix:].mean(dim=1)], dim=1)

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """How much each token counts: one half at the class token, the rest at all patches alike."""
        weights = tokens.new_zeros(tokens.shape[:2], dtype=torch.promote_types(tokens.dtype, torch.float32))
        weights[:, 0] = 0.5
        weights[:, prefix:] = 0.5 / (tokens.shape[1] - prefix)
        return weights

    def detached(self) -> nn.Module:
        """Itself: it is linear."""
        return self


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
            problem = f"this network has a {slot} of your own, called '{name.removeprefix(OWN)}'"
            raise UsageError(problem, f"vitrail.nn.Parts({slot}=...) with the one that it was trained with")
        if not name.startswith(OWN) and name not in TABLE.get(slot, {}):
            known = [f"{one}={other}" for one in TABLE for other in TABLE[one]]
            raise UsageError(
                f"this version knows no {slot} called '{name}'", nearest(f"{slot}={name}", known) or "a newer vitrail"
            )
        if part is not own and (called := names_of(given)[slot]) != name:
            raise UsageError(f"the {slot} of this network is {name}, but {called} was passed", f"{slot}: {name}")
        found[slot] = part if part is not own else TABLE[slot][name]
    idle = [slot.name for slot in fields(given) if getattr(given, slot.name) is not own and slot.name not in names]
    if idle:
        raise UsageError(f"parts replace {idle[0]}, but this network has the standard one", f"no {idle[0]} in parts")
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
            demand(isinstance(part, nn.Module), f"it returned {type(part).__name__}, which is not a module")
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
    demand(isinstance(given, Tensor), f"it returned {type(given).__name__}, which is not a tensor")
    demand(
        wanted is None or tuple(given.shape) == wanted, f"it returned the shape {tuple(given.shape)}, expected {wanted}"
    )
    demand(bool(given.isfinite().all()), "it returned non-finite numbers for an input of zeros")
