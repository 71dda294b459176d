"""The Vision Transformer: "An image is worth 16x16 words" (Dosovitskiy et al., 2020).

    tokens = encode(images)     embed: patches, prefix tokens, positions (equation 1); then the blocks (2 and 3)
    logits = readout(tokens)    norm, pooling, head (equation 4)

Read with it: `attention.py`, `embedding.py`, `blocks.py`, `config.py`. Axes: b batch, c channels, h w pixels, gh gw
grid, n tokens, d width. Parameters have timm's names.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError, check_kinds
from vitrail.nn.blocks import BLOCK, STANDARD, EncoderBlock, Parts, initialise
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import PatchEmbedding, Size, grid_of, resize_positions, sinusoids, sinusoids_2d
from vitrail.nn.record import SILENT, AnyRecord, Tokens
from vitrail.nn.rotary import RotaryPositions, Turn

Images = Float[Tensor, "b c h w"]


class ClassToken(nn.Module):
    """Pooling: the class token, which is always the first."""

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b d"]:
        """The first token."""
        return tokens[:, 0]

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """The weight of each token in the pooled vector: 1 at the first."""
        whole = tokens.new_ones(tokens.shape[0], 1, dtype=torch.promote_types(tokens.dtype, torch.float32))
        return F.pad(whole, (0, tokens.shape[1] - 1))


class MeanOfPatches(nn.Module):
    """Pooling: the mean of the patch tokens; prefix tokens are left out."""

    def forward(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b d"]:
        """The mean of the tokens after the prefix."""
        return tokens[:, prefix:].mean(dim=1)

    def token_weights(self, tokens: Tokens, prefix: int) -> Float[Tensor, "b n"]:
        """The weight of each token in the pooled vector: equal for all patches."""
        even = torch.ones_like(tokens[:, prefix:, 0], dtype=torch.promote_types(tokens.dtype, torch.float32))
        return F.pad(even / even.shape[1], (prefix, 0))


def zero_head(config: ViTConfig) -> nn.Module:
    """A linear map that starts at zero: a fresh network gives every class the same probability."""
    head = nn.Linear(config.width, config.classes, bias=config.head_bias) if config.classes else nn.Identity()
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head


POOLINGS: dict[str, Callable[[], nn.Module]] = {"class": ClassToken, "mean": MeanOfPatches}
POSITIONS: dict[str, Callable[[ViTConfig], Tensor | None]] = {
    "learned": lambda c: nn.Parameter(nn.init.normal_(torch.empty(1, c.tokens, c.width), std=0.02)),
    "sinusoidal": lambda c: sinusoids(c.tokens, c.width)[None],
    "sinusoidal-2d": lambda c: F.pad(sinusoids_2d(c.grid, c.width), (0, 0, c.prefix, 0))[None],
    "none": lambda c: None,
}
VIT_PARTS = replace(
    BLOCK,
    embedding=lambda c: PatchEmbedding(c.channels, c.width, c.patch, c.embed_bias),
    positions=lambda c: POSITIONS[c.positions](c),
    rotary=lambda c: RotaryPositions(c.rotary, c.head_width, c.prefix) if c.rotary else None,
    embed_norm=lambda c: nn.Identity(),
    last_norm=BLOCK.norm,
    pooling=lambda c: POOLINGS[c.pooling](),
    head=zero_head,
)


class ViT(nn.Module):
    """A Vision Transformer; `ViT(config)(images)` gives logits (b, classes), never probabilities.

    Args:
        config: What to build.
        parts: Parts of your own; the others are the paper's.
    """

    pos_embed: Tensor | None

    def __init__(self, config: ViTConfig, parts: Parts = STANDARD) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        made, depth = parts.over(VIT_PARTS, config), config.depth

        def tokens(count: int) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(1, count, config.width)) if count else None

        self.patch_embed = made.embedding()
        self.cls_token = tokens(int(config.class_token))
        self.dist_token = tokens(int(config.distillation_token))
        self.reg_token = tokens(config.registers)
        self.drop = nn.Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.rotary = made.rotary()
        self.norm_pre = made.embed_norm()
        rates = (config.stochastic_depth * index / max(1, depth - 1) for index in range(depth))
        self.blocks = nn.ModuleList(EncoderBlock(config, parts, rate) for rate in rates)
        self.norm = made.last_norm()
        self.pool = made.pooling()
        self.head = made.head()
        self.head_dist = made.head() if config.distillation_token else None
        initialise(self)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=0.02)
        add = self.register_parameter if isinstance(table := made.positions(), nn.Parameter) else self.register_buffer
        add("pos_embed", table)

    def forward(self, images: Images, record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """Logits of images that went through the model's preprocessing.

        Args:
            images: (b, c, h, w). Any size that the patches divide: positions are resized to its grid.
            record: Where to keep intermediates; nothing by default.

        Raises:
            UsageError: If the channels or the size do not fit.
        """
        return self.readout(self.encode(images, record), record)

    def encode(self, images: Images, record: AnyRecord = SILENT) -> Tokens:
        """The tokens after the last block: `embed`, then all blocks."""
        return self.run_blocks(self.embed(images, record), record, rotation=self.rotation(self.grid(images)))

    def embed(self, images: Images, record: AnyRecord = SILENT) -> Tokens:
        """Equation 1, kept as `tokens`: patches, prefix tokens in front, positions added; then a norm where one is."""
        positions = self.positions(self.grid(images))
        tokens = self.patch_embed(images)
        prefix = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        tokens = torch.cat([*(token.expand(images.shape[0], -1, -1) for token in prefix), tokens], dim=1)
        if positions is not None:
            tokens = tokens + positions
        tokens = self.drop(tokens)
        record.keep("tokens", tokens)
        return self.norm_pre(tokens)

    def run_blocks(
        self, tokens: Tokens, record: AnyRecord = SILENT, first: int = 0, stop: int | None = None, rotation: Turn = None
    ) -> Tokens:
        """Equations 2 and 3: blocks `first` to `stop` - 1 (to the last when None); keeps `blocks.0.*` and on.

        Raises:
            UsageError: If the network has rotary positions, and the rotation of the tokens' grid is not passed.
        """
        given = {} if rotation is None else {"rotation": rotation}  # blocks of your own may know none
        if self.rotary is not None and not given:
            raise UsageError("the blocks of this network turn queries and keys", "rotation=network.rotation(grid)")
        for index in range(len(self.blocks))[first:stop]:
            tokens = self.blocks[index](tokens, record.at(f"blocks.{index}"), **given)
        return tokens

    def readout(self, tokens: Tokens, record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """Equation 4: norm, pooling, head; works on the tokens after any block.

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

    def positions(self, grid: Size) -> Float[Tensor, "1 n d"] | None:
        """The positions for a grid, which are added to the tokens; None where there are none."""
        return resize_positions(self.pos_embed, self.config.prefix, self.config.grid, grid, self.config.position_resize)

    def rotation(self, grid: Size) -> Turn:
        """What turns queries and keys in every block, for a grid; None where the network has no rotary positions."""
        return None if self.rotary is None else self.rotary(grid, next(self.parameters()))

    def grid(self, images: Images) -> Size:
        """(rows, columns) of patches in these images.

        Raises:
            UsageError: If the channels are not the network's, or the patches do not divide the size.
        """
        check_kinds(images=(images, Tensor))
        if images.dim() != 4 or images.shape[1] != self.config.channels:
            problem = f"images must be (b, {self.config.channels}, h, w), got {tuple(images.shape)}"
            raise UsageError(problem, "model.preprocessing(image), which converts any file to what is expected here")
        return grid_of((images.shape[2], images.shape[3]), self.config.patch)
