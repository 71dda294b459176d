"""The encoder block, its parts, and the two orders of norm and branch.

x <- x + Attention(LayerNorm(x))        pre-norm: "An image is worth 16x16 words" (2020), section 3.1, equations 2 and 3
x <- x + MLP(LayerNorm(x))

x <- LayerNorm(x + Attention(x))        post-norm: "Attention is all you need" (2017), section 3.1
x <- LayerNorm(x + MLP(x))
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitrail.errors import check_callables, check_config
from vitrail.nn.attention import Attention
from vitrail.nn.record import SILENT, AnyRecord, Mask, Tokens
from vitrail.nn.rotary import Turn

Make = Callable[..., Any]


def default(*_: object) -> Any:
    """Stands in `Parts` for the network's own part."""
    raise AssertionError("a network fills this slot")


@dataclass(frozen=True)
class Parts:
    """Parts of your own: each is made by a callable that gets the network's configuration.

    The configuration is a `ViTConfig`, or a `SequenceConfig` whose fields have the same names. A part is made anew for
    every place, so `blocks.0` and `blocks.1` never share one. A slot that is left out has the network's own part:

        ViT(config, Parts(norm=lambda config: nn.RMSNorm(config.width)))

    `vitrail/nn/parts.py` lists what a part may have beyond `forward`, and the parts that have a name.

    Attributes:
        embedding: Images (b, c, h, w) to tokens (b, p, d), one for each patch in reading order; in a network of
            sequences ids (b, n) to tokens, called as `embedding(ids, visible)`, as `TokenEmbedding` is.
        positions: What is added to all tokens, (1, n, d): no module, but a parameter, a fixed tensor, or None.
        embed_norm: Between the embedding and the first block; the identity by default.
        norm: Of each branch; and after the last block, where `last_norm` is left out.
        last_norm: After the last block of a ViT, before pooling.
        rotary: Called as `rotary(grid, like)`; gives the `Rotation` of queries and keys. Or None.
        attention: Called as `attention(tokens, record=record)`, with a `mask` where sequences are padded, and with a
            `rotation` where there is one.
        mlp: Gets the callable of the activation, too: `mlp(config, activation)`.
        activation: Of the MLP.
        scale: Applied to the output of each branch before it is added, such as `LayerScale`.
        pooling: Called as `pooling(tokens, prefix)`, whose first `prefix` tokens are not patches; gives (b, d).
        head: From the pooled vector to logits.
    """

    embedding: Make = default
    positions: Make = default
    rotary: Make = default
    embed_norm: Make = default
    norm: Make = default
    last_norm: Make = default
    attention: Make = default
    mlp: Make = default
    activation: Make = default
    scale: Make = default
    pooling: Make = default
    head: Make = default

    __post_init__ = check_callables

    def __repr__(self) -> str:
        """The slots that are not the network's own, by name."""
        return f"Parts({', '.join(each.name for each in fields(self) if getattr(self, each.name) is not default)})"

    def over(self, standard: "Parts", config: Any) -> "Parts":
        """These, or else the standard ones, for one network: callables without arguments."""
        check_config(config)
        kept = {**vars(self), "last_norm": self.norm if self.last_norm is default else self.last_norm}
        made = {name: partial(getattr(standard, name) if own is default else own, config) for name, own in kept.items()}
        return Parts(**{**made, "mlp": partial(made["mlp"], made["activation"])})


STANDARD = Parts()  # none of your own


@runtime_checkable
class Starts(Protocol):
    """A part with an initialisation of its own; others keep the weights that they were made with."""

    def start_weights(self) -> None:
        """Draw the initial weights, in place."""


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Draw the initial weights of every part of a network, in the network's order."""
    for part in network.modules():
        if issubclass(type(part), Starts):  # pyrefly: ignore[unsafe-overlap]  # a class is looked through once
            part.start_weights()  # pyrefly: ignore[not-callable]


class MLP(nn.Module):
    """Two linear maps with an activation between, applied to each token on its own.

    Args:
        width: Numbers per token, d.
        hidden: Numbers in the middle, the paper's D_mlp.
        activation: Makes the activation.
        dropout: Probability of dropping a number, after each linear map.
        bias: Whether both maps have a bias.
    """

    def __init__(
        self, width: int, hidden: int, activation: Callable[[], nn.Module], dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=bias)
        self.act = activation()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, tokens: Tokens) -> Tokens:
        """Map every token by itself."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(tokens)))))

    def start_weights(self) -> None:
        """Xavier uniform weights; normal biases of standard deviation 1e-6."""
        for linear in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.normal_(linear.bias, std=1e-6)


class LayerScale(nn.Module):
    """One learnt factor per channel on what a branch adds ("Going deeper with image transformers", 2021, eq. 7)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, tokens: Tokens) -> Tokens:
        """Scale each channel."""
        return tokens * self.gamma


class StochasticDepth(nn.Module):
    """Skips a branch for a random fraction of the images ("Deep networks with stochastic depth", 2016).

    In training an image's branch is dropped with this probability, and the others are divided by the fraction that is
    left, so the mean is unchanged; outside training nothing happens.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = float(probability)

    def forward(self, branch: Tokens) -> Tokens:
        """Zero whole images of the branch."""
        if not self.training or self.probability == 0.0:
            return branch
        stays = 1.0 - self.probability
        return branch * branch.new_empty(branch.shape[0], 1, 1).bernoulli_(stays) / stays


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), near GELU ("Gaussian error linear units", 2016, section 2), as CLIP has it."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Each number by itself."""
        return tokens * torch.sigmoid(1.702 * tokens)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}
ACTIVATIONS |= {"gelu_tanh": partial(nn.GELU, "tanh"), "quick_gelu": QuickGELU}
BLOCK = Parts(  # the standard parts of a block, in every network
    norm=lambda c: nn.LayerNorm(c.width, eps=c.norm_eps),
    attention=lambda c: Attention(
        c.width, c.heads, c.head_width, c.qkv_bias, c.out_bias, c.attention_dropout, c.dropout
    ),
    mlp=lambda c, activation: MLP(c.width, c.mlp_width, activation, c.dropout, c.mlp_bias),
    activation=lambda c: ACTIVATIONS[c.activation](),
    scale=lambda c: LayerScale(c.width, c.layer_scale) if c.layer_scale else nn.Identity(),
)


class Branches(nn.Module):
    """The two branches of an encoder block, attention and MLP; a block adds them to the tokens in an order of its own.

    Args:
        config: Of the network.
        parts: Parts of your own.
        stochastic_depth: Probability of skipping each branch, per image.
    """

    def __init__(self, config: Any, parts: Parts = STANDARD, stochastic_depth: float = 0.0) -> None:
        super().__init__()
        made = parts.over(BLOCK, config)
        self.norm1 = made.norm()
        self.attn = made.attention()
        self.ls1 = made.scale()
        self.norm2 = made.norm()
        self.mlp = made.mlp()
        self.ls2 = made.scale()
        self.drop_path = StochasticDepth(stochastic_depth)

    def mix(self, tokens: Tokens, record: AnyRecord, mask: Mask | None = None, rotation: Turn = None) -> Tokens:
        """What attention adds; keeps what it reads as `norm1`, the attention, and `attn_out`."""
        record.keep("norm1", tokens)
        given = {name: each for name, each in (("mask", mask), ("rotation", rotation)) if each is not None}
        added = self.drop_path(self.ls1(self.attn(tokens, record=record, **given)))  # which may know neither
        record.keep("attn_out", added)
        return added

    def transform(self, tokens: Tokens, record: AnyRecord) -> Tokens:
        """What the MLP adds, kept as `mlp`."""
        added = self.drop_path(self.ls2(self.mlp(tokens)))
        record.keep("mlp", added)
        return added


class EncoderBlock(Branches):
    """Pre-norm: the residual stream is not normalised, so a stack ends in a norm of its own."""

    def forward(
        self, tokens: Tokens, record: AnyRecord = SILENT, mask: Mask | None = None, rotation: Turn = None
    ) -> Tokens:
        """Run the block; keeps `input`, what the branches keep, and `output`.

        Args:
            tokens: (b, n, d).
            record: Where to keep what happens.
            mask: True where a token may see another, as `Attention` takes it; no padding when None.
            rotation: Turns queries and keys, see `rotary.py`.
        """
        record.keep("input", tokens)
        tokens = tokens + self.mix(self.norm1(tokens), record, mask, rotation)
        tokens = tokens + self.transform(self.norm2(tokens), record)
        record.keep("output", tokens)
        return tokens


class PostNormBlock(Branches):
    """Post-norm: the output of every block is normalised, so a stack needs no last norm."""

    def forward(self, tokens: Tokens, record: AnyRecord = SILENT, mask: Mask | None = None) -> Tokens:
        """Run the block, as `EncoderBlock` does."""
        record.keep("input", tokens)
        tokens = self.norm1(tokens + self.mix(tokens, record, mask))
        tokens = self.norm2(tokens + self.transform(tokens, record))
        record.keep("output", tokens)
        return tokens
