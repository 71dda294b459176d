"""The encoder block, its parts, and the two orders of norm and branch.

x <- x + Attention(LayerNorm(x))        pre-norm: "An image is worth 16x16 words" (2020), section 3.1, equations 2 and 3
x <- x + MLP(LayerNorm(x))

x <- LayerNorm(x + Attention(x))        post-norm: "Attention is all you need" (2017), section 3.1
x <- LayerNorm(x + MLP(x))
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.record import SILENT, AnyRecord


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
        self,
        width: int,
        hidden: int,
        activation: Callable[[], nn.Module],
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=bias)
        self.act = activation()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Map every token by itself."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(tokens)))))


class LayerScale(nn.Module):
    """One learnt factor per channel on what a branch adds ("Going deeper with image transformers", 2021, eq. 7)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Scale each channel."""
        return tokens * self.gamma


class StochasticDepth(nn.Module):
    """Skips a branch for a random share of the images ("Deep networks with stochastic depth", 2016).

    In training an image's branch is dropped with the given probability, and what stays is divided by the share that
    stays, so the mean is unchanged; outside training nothing happens.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, branch: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Zero whole images of the branch."""
        if not self.training or self.probability == 0.0:
            return branch
        stays = 1.0 - self.probability
        return branch * branch.new_empty(branch.shape[0], 1, 1).bernoulli_(stays) / stays


Branch = Callable[[Tensor], Tensor]
NormOrder = Callable[[Tensor, Branch, Branch], Tensor]


def pre_norm(tokens: Float[Tensor, "b n d"], norm: Branch, branch: Branch) -> Float[Tensor, "b n d"]:
    """x + branch(norm(x)): what comes in goes on unchanged; a stack ends in a norm of its own."""
    return tokens + branch(norm(tokens))


def post_norm(tokens: Float[Tensor, "b n d"], norm: Branch, branch: Branch) -> Float[Tensor, "b n d"]:
    """norm(x + branch(x)): what leaves every block is normalised, so a stack needs no last norm."""
    return norm(tokens + branch(tokens))


class EncoderBlock(nn.Module):
    """Attention then MLP, each with a norm and each added to what came in.

    Args:
        norm: Makes a norm over d numbers; called twice.
        attention: Makes the attention.
        mlp: Makes the MLP.
        scale: Makes what scales each branch (`LayerScale`, or `nn.Identity` for none); called twice.
        stochastic_depth: Probability of skipping each branch, per image.
        order: Where the norm stands: `pre_norm` or `post_norm`.
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        attention: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module],
        scale: Callable[[], nn.Module] = nn.Identity,
        stochastic_depth: float = 0.0,
        order: NormOrder = pre_norm,
    ) -> None:
        super().__init__()
        self.norm1 = norm()
        self.attn = attention()
        self.ls1 = scale()
        self.norm2 = norm()
        self.mlp = mlp()
        self.ls2 = scale()
        self.drop_path = StochasticDepth(stochastic_depth)
        self.order = order

    def forward(
        self,
        tokens: Float[Tensor, "b n d"],
        record: AnyRecord = SILENT,
        mask: Bool[Tensor, "*#b #n #n"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Run the block; keeps `input`, `norm1` (what attention reads), the attention, `attn_out`, `mlp`, `output`.

        Args:
            tokens: (b, n, d).
            record: Where to keep what happens.
            mask: True where a token may see another, as `Attention` takes it; no padding when None.
        """

        def mix(tokens: Tensor) -> Tensor:
            record.keep("norm1", tokens)
            attention = self.attn if mask is None else partial(self.attn, mask=mask)  # a ViT's may know no mask
            added = self.drop_path(self.ls1(attention(tokens, record=record)))
            record.keep("attn_out", added)
            return added

        def transform(tokens: Tensor) -> Tensor:
            added = self.drop_path(self.ls2(self.mlp(tokens)))
            record.keep("mlp", added)
            return added

        record.keep("input", tokens)
        tokens = self.order(tokens, self.norm1, mix)
        tokens = self.order(tokens, self.norm2, transform)
        record.keep("output", tokens)
        return tokens
