"""The Vision Transformer: "An image is worth 16x16 words" (Dosovitskiy et al., 2020).

    tokens = encode(images)     embed: patches, prefix tokens, positions (equation 1); then the blocks (2 and 3)
    logits = readout(tokens)    norm, pooling, head (equation 4)

Read with it: `attention.py`, `embedding.py`, `blocks.py`. Axes: b batch, c channels, h w pixels, gh gw grid,
n tokens, d width. Parameters bear timm's names.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, EncoderBlock, LayerScale
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import (
    PatchEmbedding,
    PatchifiedEmbedding,
    Size,
    grid_of,
    resize_positions,
    sinusoids,
    sinusoids_2d,
)
from vitrail.nn.initialisation import initialise
from vitrail.nn.record import SILENT, AnyRecord

Images = Float[Tensor, "b c h w"] | Float[Tensor, "b p x"]  # pictures, or what a patch part of another kind reads

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}


class ClassToken(nn.Module):
    """Pooling: the class token, which is always the first."""

    def forward(self, tokens: Float[Tensor, "b n d"], prefix: int) -> Float[Tensor, "b d"]:
        """The first token."""
        return tokens[:, 0]


class MeanOfPatches(nn.Module):
    """Pooling: the mean of the patch tokens; prefix tokens are left out."""

    def forward(self, tokens: Float[Tensor, "b n d"], prefix: int) -> Float[Tensor, "b d"]:
        """The mean of what follows the prefix."""
        return tokens[:, prefix:].mean(dim=1)


def picture_grid(config: ViTConfig, images: Tensor) -> Size:
    """(rows, columns) of patches in pictures (b, c, h, w).

    Raises:
        UsageError: If the channels are not the network's, or the patches do not divide the size.
    """
    if images.dim() != 4 or images.shape[1] != config.channels:
        raise UsageError(
            f"images must be (b, {config.channels}, h, w), got {tuple(images.shape)}",
            "model.preprocessing(picture), which converts any file to what this network expects",
        )
    return grid_of((images.shape[2], images.shape[3]), config.patch)


def patchified_grid(config: ViTConfig, images: Tensor) -> Size:
    """(rows, columns) of patches in pictures that come as patches (b, p, x): the configuration's, in reading order.

    Raises:
        UsageError: If there are not as many patches, or numbers in a patch, as the configuration says.
    """
    (rows, columns), (height, width) = config.grid, config.patch
    wanted = (rows * columns, config.channels * height * width)
    if images.dim() != 3 or images.shape[1:] != wanted:
        pixels = f"{config.image[0]}x{config.image[1]} pixels and {config.channels} channel(s)"
        raise UsageError(
            f"patches must be (b, {wanted[0]}, {wanted[1]}), got {tuple(images.shape)}",
            f"Patchify(({height}, {width})) of vitrail.data.patches on pictures of {pixels}",
        )
    return config.grid


@dataclass(frozen=True)
class Parts:
    """What the network is made of: each part is made by a callable that gets the configuration.

    Norms and attentions are made anew for every place. Another part comes in as another callable:
    `ViT(config, Parts(norm=lambda config: nn.RMSNorm(config.width)))`. `grid` makes nothing: it tells the rows and
    columns of patches that the patch part will find in its input, and refuses an input that does not fit.
    """

    patches: Callable[[ViTConfig], nn.Module] = lambda c: PatchEmbedding(c.channels, c.width, c.patch, c.embed_bias)
    norm: Callable[[ViTConfig], nn.Module] = lambda c: nn.LayerNorm(c.width, eps=c.norm_eps)
    attention: Callable[[ViTConfig], nn.Module] = lambda c: Attention(
        c.width,
        c.heads,
        c.head_width,
        qkv_bias=c.qkv_bias,
        out_bias=c.out_bias,
        attention_dropout=c.attention_dropout,
        dropout=c.dropout,
    )
    activation: Callable[[ViTConfig], nn.Module] = lambda c: ACTIVATIONS[c.activation]()
    pooling: Callable[[ViTConfig], nn.Module] = lambda c: ClassToken() if c.pooling == "class" else MeanOfPatches()
    head: Callable[[ViTConfig], nn.Module] = lambda c: (
        nn.Linear(c.width, c.classes, bias=c.head_bias) if c.classes else nn.Identity()
    )
    grid: Callable[[ViTConfig, Tensor], Size] = picture_grid


STANDARD = Parts()
PATCHIFIED = Parts(  # for batches (b, p, x) that `vitrail.data.patches.Patchify` made
    patches=lambda c: PatchifiedEmbedding(c.channels * c.patch[0] * c.patch[1], c.width, c.embed_bias),
    grid=patchified_grid,
)


class Features(NamedTuple):
    """What the network says of a picture before the head, all after the last norm.

    Use `pooled` to search and cluster (it is what the head reads), `patches` for anything that has a place.
    """

    class_token: Float[Tensor, "b d"] | None
    patches: Float[Tensor, "b gh gw d"]
    registers: Float[Tensor, "b r d"]
    pooled: Float[Tensor, "b d"]


class ViT(nn.Module):
    """A Vision Transformer; `ViT(config)(images)` gives logits (b, classes), never probabilities.

    Args:
        config: What to build.
        parts: The callables that make its parts; the standard ones are the paper's.
    """

    pos_embed: Tensor | None

    def __init__(self, config: ViTConfig, parts: Parts = STANDARD) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        width, prefix = config.width, config.prefix

        def token(count: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(1, count, width)) if count else None

        self.patch_embed = parts.patches(config)
        self.cls_token = token(int(config.class_token))
        self.dist_token = token(int(config.distillation_token))
        self.reg_token = token(config.registers)
        if config.positions == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, prefix + config.grid[0] * config.grid[1], width))
        else:
            self.register_buffer("pos_embed", fixed_positions(config))
        self.drop = nn.Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.blocks = nn.ModuleList(self._block(index) for index in range(config.depth))
        self.norm = parts.norm(config)
        self.pool = parts.pooling(config)
        self.head = parts.head(config)
        self.head_dist = parts.head(config) if config.distillation_token else None
        initialise(self)

    def _block(self, index: int) -> EncoderBlock:
        config, parts = self.config, self.parts
        return EncoderBlock(
            norm=lambda: parts.norm(config),
            attention=lambda: parts.attention(config),
            mlp=lambda: MLP(
                config.width, config.mlp_width, lambda: parts.activation(config), config.dropout, config.mlp_bias
            ),
            scale=lambda: LayerScale(config.width, config.layer_scale) if config.layer_scale else nn.Identity(),
            stochastic_depth=config.stochastic_depth * index / max(1, config.depth - 1),
        )

    def forward(self, images: Images, record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """Logits of pictures that went through the model's preprocessing.

        Args:
            images: (b, c, h, w). Any size that the patches divide: positions are resized to its grid. A network
                with `PATCHIFIED` parts reads patches (b, p, x) instead.
            record: Where to keep what happens on the way; nothing by default.

        Raises:
            UsageError: If the channels or the size do not fit.
        """
        return self.readout(self.encode(images, record), record)

    def encode(self, images: Images, record: AnyRecord = SILENT) -> Float[Tensor, "b n d"]:
        """The tokens behind the last block: `embed`, then all blocks."""
        return self.run_blocks(self.embed(images, record), record)

    def embed(self, images: Images, record: AnyRecord = SILENT) -> Float[Tensor, "b n d"]:
        """Equation 1: patches to tokens, prefix tokens in front, positions added. Keeps `tokens`."""
        grid = self.grid(images)
        tokens = self.patch_embed(images)
        prefix = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        tokens = torch.cat([*(token.expand(images.shape[0], -1, -1) for token in prefix), tokens], dim=1)
        if self.pos_embed is not None:
            tokens = tokens + resize_positions(self.pos_embed, self.config.prefix, self.config.grid, grid)
        tokens = self.drop(tokens)
        record.keep("tokens", tokens)
        return tokens

    def run_blocks(
        self, tokens: Float[Tensor, "b n d"], record: AnyRecord = SILENT, first: int = 0, stop: int | None = None
    ) -> Float[Tensor, "b n d"]:
        """Equations 2 and 3: blocks `first` to `stop` - 1 (to the last when None); keeps `blocks.0.*` and on."""
        for index in range(len(self.blocks))[first:stop]:
            tokens = self.blocks[index](tokens, record.at(f"blocks.{index}"))
        return tokens

    def readout(self, tokens: Float[Tensor, "b n d"], record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """Equation 4: norm, pooling, head; works on the tokens behind any block.

        Keeps `pooled` and `logits`; with a distillation token also `class_logits` and `distillation_logits`.
        """
        tokens = self.norm(tokens)
        pooled = self.pool(tokens, self.config.prefix)
        record.keep("pooled", pooled)
        logits = self.head(pooled)
        if self.head_dist is not None:  # DeiT, section 4: both heads are averaged
            from_distillation = self.head_dist(tokens[:, int(self.config.class_token)])
            record.keep("class_logits", logits)
            record.keep("distillation_logits", from_distillation)
            logits = (logits + from_distillation) / 2
        record.keep("logits", logits)
        return logits

    def features(self, images: Images) -> Features:
        """Class token, patches as a grid, registers and the pooled vector, after the last norm."""
        tokens, prefix = self.norm(self.encode(images)), self.config.prefix
        return Features(
            class_token=tokens[:, 0] if self.config.class_token else None,
            patches=tokens[:, prefix:].unflatten(1, self.grid(images)),
            registers=tokens[:, prefix - self.config.registers : prefix],
            pooled=self.pool(tokens, prefix),
        )

    def grid(self, images: Images) -> Size:
        """(rows, columns) of patches in these pictures, as the parts read them.

        Raises:
            UsageError: If the pictures do not fit the network.
        """
        return self.parts.grid(self.config, images)

    def resized(self, image_size: int | Size) -> "ViT":
        """The same network for another picture size: positions resized once, everything else copied."""
        network = copy.deepcopy(self)
        config = network.config = replace(self.config, image_size=image_size)
        if self.pos_embed is not None:
            positions = resize_positions(self.pos_embed.detach(), config.prefix, self.config.grid, config.grid).clone()
            learned = isinstance(self.pos_embed, nn.Parameter)
            network.pos_embed = nn.Parameter(positions, self.pos_embed.requires_grad) if learned else positions
        return network


def fixed_positions(config: ViTConfig) -> Float[Tensor, "1 n d"] | None:
    """Positions that are not learnt: 1-D sinusoids over all tokens, 2-D ones over the grid (0 in front), or none."""
    rows, columns = config.grid
    if config.positions == "sinusoidal":
        return sinusoids(config.prefix + rows * columns, config.width)[None]
    if config.positions == "sinusoidal-2d":
        patches = sinusoids_2d(config.grid, config.width)
        return torch.cat([patches.new_zeros(config.prefix, config.width), patches])[None]
    return None
