"""What a plain ViT is: one frozen value, complete and checked, and the table of the published sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitrail.errors import UsageError, check_fields, check_keys, parse_size
from vitrail.nn.attention import head_dim_of
from vitrail.nn.embedding import Size, grid_of, height_and_width, sinusoids, sinusoids_2d
from vitrail.nn.rotary import Rotary

Pooling = Literal["class", "mean"]

# letter: (width, depth, heads, mlp_dim)
SIZES: dict[str, tuple[int, int, int, int]] = {
    "Ti": (192, 12, 3, 768),  # "Training data-efficient image transformers" (DeiT, 2021), table 1
    "S": (384, 12, 6, 1536),  # the same
    "B": (768, 12, 12, 3072),  # "An image is worth 16x16 words" (ViT, 2020), table 1
    "L": (1024, 24, 16, 4096),  # the same
    "H": (1280, 32, 16, 5120),  # the same
    "g": (1408, 40, 16, 6144),  # "Scaling vision transformers" (2021), table 2
}


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A plain Vision Transformer, in the paper's terms.

    `head_dim` and `mlp_dim` may be left open (None), and stay open: `dataclasses.replace(config, width=384)` follows
    the new width. The sizes that the network is built with are `head_width` and `mlp_width`.

    Attributes:
        image_size: (height, width) in pixels; one number means a square.
        patch_size: (height, width) of a patch in pixels; one number means a square.
        channels: Channels of an image.
        classes: Length of the logits; 0 for a network without a head, which returns the pooled features.
        width: Numbers per token, D.
        depth: Number of blocks, L.
        heads: Attention heads per block, k.
        head_dim: Numbers per head, D_h; None stands for width / heads.
        mlp_dim: Numbers in the middle of the MLP, D_mlp; None stands for 4 x width.
        class_token: Whether a class token stands in front of the patches.
        distillation_token: Whether a distillation token with a head of its own follows it (DeiT).
        registers: Number of register tokens behind those.
        pooling: What the head reads: the class token, or the mean of the patch tokens.
        positions: Learned, sinusoidal (1-D, over all tokens), sinusoidal-2d (over the grid), or none.
        position_resize: The rule that resizes positions to another grid; see `RESIZE_RULES` in `embedding.py`.
        activation: Of the MLP.
        embed_bias: Whether the patch map has a bias.
        qkv_bias: Whether queries, keys and values have a bias.
        out_bias: Whether the output map of attention has a bias.
        mlp_bias: Whether both maps of the MLP have a bias.
        head_bias: Whether the head has a bias.
        rotary: How queries and keys are turned by the places of their patches; None for no rotation.
        layer_scale: Initial factors of LayerScale; 0 for no LayerScale.
        dropout: Probability after the embedding, the output map of attention and both maps of the MLP.
        embedding_dropout: Probability after the embedding; None stands for `dropout`.
        attention_dropout: Probability of dropping an attention weight.
        stochastic_depth: Probability of skipping a branch in the last block; grows linearly from 0 in the first.
        norm_eps: The epsilon of LayerNorm.
    """

    image_size: int | Size = 224
    patch_size: int | Size = 16
    channels: int = 3
    classes: int = 1000
    width: int = 768
    depth: int = 12
    heads: int = 12
    head_dim: int | None = None
    mlp_dim: int | None = None
    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    pooling: Pooling = "class"
    positions: Literal["learned", "sinusoidal", "sinusoidal-2d", "none"] = "learned"
    position_resize: Literal["timm", "transformers", "dinov2", "torchvision"] = "timm"
    activation: Literal["gelu", "relu", "gelu_tanh", "quick_gelu", "silu"] = "gelu"
    embed_bias: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    head_bias: bool = True
    rotary: Rotary | None = None
    layer_scale: float = 0.0
    dropout: float = 0.0
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        """Turn one side into a square, and refuse an invalid configuration."""
        noise = ("dropout", "embedding_dropout", "attention_dropout", "stochastic_depth")
        check_fields(self, may_be_zero=("classes", "registers"), below_one=noise)
        for name in ("image_size", "patch_size"):
            object.__setattr__(self, name, height_and_width(getattr(self, name)))
        head_dim_of(self.width, self.heads, self.head_dim)  # refuses heads that do not divide the width
        if self.pooling == "class" and not self.class_token:
            raise UsageError("pooling='class' needs a class token, but class_token is False", "pooling='mean'")
        if self.positions == "sinusoidal":
            sinusoids(1, self.width)  # refuses a width that does not fit
        if self.positions == "sinusoidal-2d":
            sinusoids_2d((1, 1), self.width)
        grid_of(self.image, self.patch)

    @classmethod
    def from_size(
        cls, size: str, *, classes: int = 1000, image_size: int | Size = 224, channels: int = 3
    ) -> "ViTConfig":
        """A row of the table: `"B/16"` is size B with patches of 16 x 16 pixels, `"S/14x7"` of 14 x 7.

        For anything else, `dataclasses.replace(ViTConfig.from_size(...), ...)`.

        Raises:
            UsageError: If the size is not in the table; offers the nearest that is.
        """
        letter, sides = parse_size(size, SIZES)
        row: dict[str, Any] = dict(zip(("width", "depth", "heads", "mlp_dim"), SIZES[letter], strict=True))
        return cls(image_size=image_size, patch_size=(sides[0], sides[-1]), channels=channels, classes=classes, **row)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ViTConfig":
        """The inverse of `dataclasses.asdict`, also after a way through JSON.

        Raises:
            UsageError: If a key is unknown.
        """
        check_keys(cls, values)
        made = {"rotary": Rotary.from_dict(values["rotary"])} if isinstance(values.get("rotary"), Mapping) else {}
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()} | made)  # pyrefly: ignore

    @property
    def head_width(self) -> int:
        """Numbers per head, also where `head_dim` is left open."""
        return head_dim_of(self.width, self.heads, self.head_dim)

    @property
    def mlp_width(self) -> int:
        """Numbers in the middle of the MLP, also where `mlp_dim` is left open."""
        return 4 * self.width if self.mlp_dim is None else self.mlp_dim

    @property
    def image(self) -> Size:
        """(height, width) of an image in pixels."""
        return height_and_width(self.image_size)

    @property
    def patch(self) -> Size:
        """(height, width) of a patch in pixels."""
        return height_and_width(self.patch_size)

    @property
    def grid(self) -> Size:
        """(rows, columns) of patches."""
        return grid_of(self.image, self.patch)

    @property
    def prefix(self) -> int:
        """Number of tokens in front of the patches."""
        return int(self.class_token) + int(self.distillation_token) + self.registers

    @property
    def tokens(self) -> int:
        """Number of tokens: the prefix and the patches."""
        return self.prefix + self.grid[0] * self.grid[1]
