"""The encoder block of "An image is worth 16x16 words" (2020), section 3.1, equations 2 and 3, and its parts.

x <- x + Attention(LayerNorm(x))
x <- x + MLP(LayerNorm(x))
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.record import SILENT, AnyRecord


class MLP(nn.Module):
    """Two linear maps with an activation between, applied to each token on its own.

    Args:
        width: Numbers per token, d.
        hidden: Numbers in the middle, the paper's D_mlp.
        activation: Makes the activation.
        dropout: Probability of dropping a number, after each linear map.
    """

    def __init__(self, width: int, hidden: int, activation: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = activation()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width)

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


class EncoderBlock(nn.Module):
    """Pre-norm block: attention then MLP, each on normalised tokens and each added to what came in.

    Args:
        norm: Makes a norm over d numbers; called twice.
        attention: Makes the attention.
        mlp: Makes the MLP.
        scale: Makes what scales each branch (`LayerScale`, or `nn.Identity` for none); called twice.
        stochastic_depth: Probability of skipping each branch, per image.
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        attention: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module],
        scale: Callable[[], nn.Module] = nn.Identity,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = norm()
        self.attn = attention()
        self.ls1 = scale()
        self.norm2 = norm()
        self.mlp = mlp()
        self.ls2 = scale()
        self.drop_path = StochasticDepth(stochastic_depth)

    def forward(self, tokens: Float[Tensor, "b n d"], record: AnyRecord = SILENT) -> Float[Tensor, "b n d"]:
        """Run the block; keeps `input`, `norm1`, the attention, `mlp` and `output`."""
        record.keep("input", tokens)
        normed = self.norm1(tokens)
        record.keep("norm1", normed)
        tokens = tokens + self.drop_path(self.ls1(self.attn(normed, record=record)))
        added = self.drop_path(self.ls2(self.mlp(self.norm2(tokens))))
        record.keep("mlp", added)
        tokens = tokens + added
        record.keep("output", tokens)
        return tokens
