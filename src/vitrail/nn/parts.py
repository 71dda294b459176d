"""Parts: what they may have beyond `forward`, those with a name, and the check of their contracts.

A part is made by a callable in a slot of `Parts` (`blocks.py`). What explanations need to know of a part, they ask it:

    every part     detached() -> module                   its detached form, see `twin.py`
    pooling        token_weights(tokens, prefix)          the weight of each token in the pooled vector, (b, n), rows
                                                          that sum to 1
    attention      join(attended) -> tokens               what its heads add, linear in their outputs (b, k, n, e), at
                                                          least in its detached form;
                   record.keep_attention(...)             in its `forward`, so that its weights can be read
    any            start_weights()                        draws its initial weights; others keep those of `__init__`

A method that needs what a part does not have refuses it; training and all other methods work.

The parts of families of networks have a name here. `config.json` stores a slot by that name, and every verb opens it.
Parts of your own are stored as `own:` and their name, and are passed again where a model is loaded.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.arguments import OWN_PART, contract, demand
from vitrail.errors import UsageError, nearest
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import ACTIVATIONS, BLOCK, MLP, STANDARD, Parts, default
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import grid_of
from vitrail.nn.networks import NetworkConfig, build_network, evaluating, example_inputs
from vitrail.nn.record import Queries, Tokens, attention_weights
from vitrail.nn.rotary import QueryKeyValue, Rotation
from vitrail.nn.vit import MeanOfPatches


class NormedPatchEmbedding(nn.Module):
    """The patch map between two norms: flattened patches, LayerNorm, linear map, LayerNorm, as in vit-pytorch.

    Args:
        config: Of the network.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        values = config.channels * config.patch[0] * config.patch[1]
        self.patch_size = config.patch
        self.norm_patches = nn.LayerNorm(values, eps=config.norm_eps)
        self.proj = nn.Linear(values, config.width, bias=config.embed_bias)
        self.norm_tokens = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """Tokens in reading order; a patch is flattened by rows, channels last."""
        height, width = self.patch_size
        rows, columns = grid_of((images.shape[2], images.shape[3]), self.patch_size)
        cut = images.unflatten(3, (columns, width)).unflatten(2, (rows, height)).permute(0, 2, 4, 3, 5, 1)
        return self.norm_tokens(self.proj(self.norm_patches(cut.flatten(3).flatten(1, 2))))


class RMSPatchEmbedding(nn.Module):
    """The patch map with an RMSNorm behind it, as in AIMv2 ("Multimodal autoregressive pre-training", 2024).

    Args:
        config: Of the network.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.channels, config.width, config.patch, config.patch, bias=config.embed_bias)
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """Tokens in reading order."""
        return self.norm(self.proj(images).flatten(2).transpose(1, 2))


class SwiGLU(nn.Module):
    """W2 (act(a) * b) with (a, b) = W1 x: "GLU variants improve Transformer" (2020), equation 6, as DINOv2's giant.

    Args:
        width: Numbers per token, d.
        hidden: Numbers after the gate; the first map makes twice as many.
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
        self.norm: nn.Module = nn.Identity()
        self.fc2 = nn.Linear(hidden, width, bias=bias)
        self.gate_detached = False

    def forward(self, tokens: Tokens) -> Tokens:
        """Map every token on its own."""
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        gate = self.act(gate)
        return self.drop(self.fc2(self.norm(self.drop((gate.detach() if self.gate_detached else gate) * value))))

    def detached(self) -> nn.Module:
        """Its gate is a constant to the gradient."""
        form = copy.copy(self)
        form.gate_detached = True
        return form


class AttentionPooling(nn.Module):
    """Pooling: a learnt query attends to the patches; then an MLP with its norm ("Set Transformer", 2019), as SigLIP.

    Args:
        config: Of the network, for the heads, the size of the MLP and its activation.
        heads: The network's when None.
        hidden: Numbers in the middle of the MLP, the network's when None; 0 for no MLP and no norm before it.
        of_all: Whether the query attends to the tokens in front of the patches, too.
    """

    def __init__(
        self, config: ViTConfig, heads: int | None = None, hidden: int | None = None, of_all: bool = False
    ) -> None:
        super().__init__()
        width, size = config.width, config.head_width if heads is None else config.width // heads
        hidden = config.mlp_width if hidden is None else hidden
        self.query = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, width), std=width**-0.5))
        self.attn = Attention(width, heads or config.heads, size, qkv_bias=hidden > 0 or config.qkv_bias)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if hidden else None
        self.mlp = MLP(width, hidden, ACTIVATIONS[config.activation]) if hidden else None
        self.of_all = of_all

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b d"]:
        """What the query attends to in the patches, then the MLP where there is one."""
        read = self.attn.join(self.attn.attend(*self._project(tokens, prefix)))
        return (read if self.mlp is None else read + self.mlp(self.norm(read)))[:, 0]  # pyrefly: ignore

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """The weight of each token: the query's attention weights, as the mean over the heads."""
        queries, keys, _ = self._project(tokens, prefix)
        weights = attention_weights(queries, keys).mean(dim=1)[:, 0]
        return torch.cat([weights.new_zeros(tokens.shape[0], tokens.shape[1] - weights.shape[1]), weights], dim=1)

    def _project(self, tokens: Tokens, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
        """The query's queries, keys and values of what it reads: by one map as a whole, so that another can wrap it."""
        queries, _, _ = self.attn.project(self.query.expand(tokens.shape[0], -1, -1))
        _, keys, values = self.attn.project(tokens if self.of_all else tokens[:, prefix:])
        return queries, keys, values


class MeanThenNorm(nn.Module):
    """Pooling: the mean of the patch tokens, then a norm; the network's last norm is left out."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.mean = MeanOfPatches()
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b d"]:
        """The normalised mean of the tokens after the prefix."""
        return self.norm(self.mean(tokens, prefix))

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """The weight of each token: equal for all patches."""
        return self.mean.token_weights(tokens, prefix)


class ClassAndMean(nn.Module):
    """Pooling: the class token and the mean of the patches side by side, 2 d numbers, as DINOv2's classifiers."""

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b two_d"]:
        """Class token, then mean."""
        return torch.cat([tokens[:, 0], tokens[:, prefix:].mean(dim=1)], dim=1)

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """The weight of each token: one half at the class token, the rest equally at the patches."""
        weights = tokens.new_zeros(tokens.shape[:2], dtype=torch.promote_types(tokens.dtype, torch.float32))
        weights[:, 0] = 0.5
        weights[:, prefix:] = 0.5 / (tokens.shape[1] - prefix)
        return weights


@runtime_checkable
class WeighsTokens(Protocol):
    """A pooling that gives the weight of each token."""

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """Rows that sum to 1, for the tokens after the last norm."""


@runtime_checkable
class JoinsHeads(Protocol):
    """An attention that gives what its heads add."""

    def join(self, attended: Queries) -> Tokens:
        """What is added to the tokens; affine in the output of each head, at least in its detached form."""


def attention_with(norm: str = "", key_bias: bool = True, attended_norm: bool = False) -> Callable[[Any], Attention]:
    """Makes an attention with norms inside, or without a bias of keys.

    Args:
        norm: Of each head's queries, and of its keys: `layer`, `rms`, or none ("Scaling vision transformers to 22
            billion parameters", 2023, section 2.2).
        key_bias: Whether keys have a bias where queries have one.
        attended_norm: Whether what all heads attended passes a LayerNorm ("EVA-CLIP", 2023).
    """

    def make(config: Any) -> Attention:
        part, eps = BLOCK.attention(config), config.norm_eps
        if config.qkv_bias and not key_bias:
            part.qkv = QueryKeyValue(config.width, part.qkv.out_features)
        if norm:
            kind = nn.LayerNorm if norm == "layer" else nn.RMSNorm
            part.q_norm, part.k_norm = kind(part.head_dim, eps=eps), kind(part.head_dim, eps=eps)
        if attended_norm:
            part.norm = nn.LayerNorm(part.heads * part.head_dim, eps=eps)
        return part

    return make


def swiglu(config: Any, activation: Callable[[], nn.Module]) -> SwiGLU:
    """A gated MLP of the configuration's sizes."""
    return SwiGLU(config.width, config.mlp_width, activation, config.dropout, config.mlp_bias)


def normed_swiglu(config: Any, activation: Callable[[], nn.Module]) -> SwiGLU:
    """A gated MLP with a LayerNorm before its last map ("EVA-02", 2023, section 2.1)."""
    part = swiglu(config, activation)
    part.norm = nn.LayerNorm(config.mlp_width, eps=config.norm_eps)
    return part


# All other variants are fields of the configuration itself
TABLE: dict[str, dict[str, Callable[..., Any]]] = {
    "embedding": {"normed": NormedPatchEmbedding, "rms": RMSPatchEmbedding},
    "embed_norm": {"layer": lambda c: nn.LayerNorm(c.width, eps=c.norm_eps)},
    "norm": {"rms": lambda c: nn.RMSNorm(c.width, eps=c.norm_eps)},
    "last_norm": {"none": lambda c: nn.Identity()},
    "attention": {
        "no_key_bias": attention_with(key_bias=False),
        "attended_norm": attention_with(key_bias=False, attended_norm=True),
        "qk_norm": attention_with("layer"),
        "qk_rms_norm": attention_with("rms"),
    },
    "mlp": {"swiglu": swiglu, "normed_swiglu": normed_swiglu},
    "pooling": {
        "attention": AttentionPooling,
        "attention_to_all": lambda c: AttentionPooling(c, heads=8, hidden=4 * c.width, of_all=True),
        "attention_alone": lambda c: AttentionPooling(c, hidden=0, of_all=True),
        "mean_then_norm": MeanThenNorm,
        "class_and_mean": lambda c: ClassAndMean(),
    },
    "head": {"of_two": lambda c: nn.Linear(2 * c.width, c.classes, bias=c.head_bias)},
}


CONTRACTS = {  # of parts whose output has another shape than their input
    "embedding": "a module: images (b, c, h, w) -> tokens (b, patches, width), or ids (b, n) -> (b, n, width)",
    "positions": "a tensor (1, tokens, width), or None",
    "rotary": "a module: (grid, like) -> a vitrail.nn.Rotation of all tokens; or None",
    "pooling": "a module: (tokens (b, n, d), prefix) -> (b, d)",
    "head": "a module: (b, d) -> logits (b, classes)",
}


def names_of(parts: Parts) -> dict[str, str]:
    """What is stored of parts that are not standard, by position: the name in the table, or `own:` and its own name."""
    names = {}
    for slot in fields(parts):
        part = getattr(parts, slot.name)
        if part is not default:
            known = [name for name, make in TABLE.get(slot.name, {}).items() if make is part]
            names[slot.name] = known[0] if known else OWN_PART + getattr(part, "__name__", type(part).__name__)
    return names


def parts_of(names: Mapping[str, str], passed: Parts = STANDARD) -> Parts:
    """The parts that were stored by these names.

    Args:
        names: As `names_of` gave them.
        passed: Parts of your own, for the slots whose part is not in the table.

    Raises:
        UsageError: A name is unknown, a part of your own is not passed, or one is passed for another slot.
    """
    found: dict[str, Callable[..., Any]] = {}
    for slot, name in names.items():
        part = getattr(passed, slot, default)
        if name.startswith(OWN_PART) and part is default:
            problem = f"this network has a {slot} of your own, called '{name.removeprefix(OWN_PART)}'"
            raise UsageError(problem, f"vitrail.nn.Parts({slot}=...) with the one that it was trained with")
        if not name.startswith(OWN_PART) and name not in TABLE.get(slot, {}):
            known = [f"{one}={other}" for one in TABLE for other in TABLE[one]]
            problem = f"this version knows no {slot} called '{name}'"
            raise UsageError(problem, nearest(f"{slot}={name}", known) or "a newer vitrail")
        if part is not default and (called := names_of(passed)[slot]) != name:
            raise UsageError(f"the {slot} of this network is {name}, but {called} was passed", f"{slot}: {name}")
        found[slot] = part if part is not default else TABLE[slot][name]
    idle = [name for name, part in vars(passed).items() if part is not default and name not in names]
    if idle:
        raise UsageError(f"parts replace {idle[0]}, but this network has the standard one", f"no {idle[0]} in parts")
    return replace(STANDARD, **found)


def check_parts(config: NetworkConfig, parts: Parts) -> None:
    """Build a network of these parts, run it once on zeros, and check the output of each part against its contract.

    Args:
        config: Of the network.
        parts: Those that are not the network's own are checked.

    Raises:
        UsageError: A part cannot be made, fails, or gives another shape than its contract or non-finite values; names
            the part.
    """
    chosen = {slot.name: getattr(parts, slot.name) for slot in fields(parts)}
    trials = {slot: _watch(slot, make, parts) for slot, make in chosen.items() if make is not default}
    network = build_network(config, replace(parts, **trials))
    with evaluating(network), torch.no_grad():
        network(*example_inputs(network, 2))


def _watch(slot: str, make: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Makes the same part, whose output is checked at every call."""
    name = names_of(parts)[slot].removeprefix(OWN_PART)
    whose, gets = f"the {slot} {name}", "config, activation" if slot == "mlp" else "config"
    makes = CONTRACTS.get(slot, "a module: tokens (b, n, d) -> the same shape")
    wanted = f"{slot}=lambda {gets}: ..., which makes {makes}"

    def made(config: Any, *more: Any) -> Any:
        with contract(whose, wanted):
            part = make(config, *more)
            if slot == "positions":
                if part is not None:
                    _check(part, (1, config.tokens, config.width))
                return part
            if slot == "rotary" and part is None:
                return part
            demand(isinstance(part, nn.Module), f"it returned {type(part).__name__}, which is not a module")
        part = copy.copy(part)  # what was returned may be a part of other networks, too
        forward = part.forward

        def checked(inputs: Any, *others: Any, **named: Any) -> Any:
            with contract(whose, wanted):
                output = forward(inputs, *others, **named)
                if slot == "rotary":
                    demand(isinstance(output, Rotation), f"it returned {type(output).__name__}, which is no Rotation")
                    for each in output[:2]:
                        _check(each, (config.tokens, config.head_width))
                else:
                    _check(output, _shape(slot, config, inputs, parts))
            return output

        part.forward = checked
        return part

    return made


def _shape(slot: str, config: Any, inputs: Tensor, parts: Parts) -> tuple[int, ...] | None:
    """The shape of a part's output for these inputs; None where its contract leaves it open."""
    match slot:
        case "embedding" if isinstance(config, ViTConfig):
            rows, columns = grid_of((inputs.shape[2], inputs.shape[3]), config.patch)
            return inputs.shape[0], rows * columns, config.width
        case "embedding":
            return *inputs.shape, config.width
        case "pooling":
            return (inputs.shape[0], config.width) if parts.head is default else None
        case "head":
            return (inputs.shape[0], config.classes) if config.classes else None
        case "activation" if parts.mlp is not default:
            return None  # which only that MLP knows
    return tuple(inputs.shape)


def _check(output: Any, shape: tuple[int, ...] | None) -> None:
    demand(isinstance(output, Tensor), f"it returned {type(output).__name__}, which is not a tensor")
    found = tuple(output.shape)
    demand(shape is None or found == shape, f"it returned the shape {found}, expected {shape}")
    demand(bool(output.isfinite().all()), "it returned non-finite values for an input of zeros")
