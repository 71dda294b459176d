"""Parts that families of networks need beside the paper's; `parts.py` gives each its name."""

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import Attention
from vitrail.nn.blocks import ACTIVATIONS, MLP
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import grid_of
from vitrail.nn.record import Tokens, attention_weights
from vitrail.nn.vit import MeanOfPatches


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
        self.held = False

    def forward(self, tokens: Tokens) -> Tokens:
        """Map every token by itself."""
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        gate = self.act(gate)
        return self.drop(self.fc2(self.drop((gate.detach() if self.held else gate) * value)))

    def detached(self) -> nn.Module:
        """Its gate is a constant to the gradient."""
        form = copy.copy(self)
        form.held = True
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
        read = self.attn.join(self.attn.attend(*self._asked(tokens, prefix)))
        return (read + self.mlp(self.norm(read)))[:, 0]

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """How much each token counts: the weights of the query, as the mean over the heads."""
        queries, keys, _ = self._asked(tokens, prefix)
        weights = attention_weights(queries, keys).mean(dim=1)[:, 0]
        return torch.cat([weights.new_zeros(len(tokens), prefix), weights], dim=1)

    def _asked(self, tokens: Tokens, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
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
