"""What only the lessons need: patches as data, networks that read them, queries, keys and values in any order.

    patchify = Patchify((7, 7))
    patches = patchify(pictures)                    # (b, 3, 28, 28) -> (b, 16, 147)
    pictures = patchify.inverse(patches, (28, 28))  # the same bits

Two orders are told apart: in which order the patches stand in the sequence (`order`), and in which order the numbers of
one patch stand (`flattening`). Networks, their positions and their explanations go by rows.

A convolution whose stride is its kernel and a linear map of each flattened patch are the same map; their weights differ
in the order of the numbers of one patch, the slowest axis first (c channels, h rows, w columns of the patch), and their
biases are the same numbers:

    order    means                             who
    c h w    channels first, then by rows      convolutions (timm, torchvision, `PatchEmbedding`), D0
    h w c    by rows, channels last            D3 and vit-pytorch
    w h c    by columns, channels last         D4

D0 to D4 are the founding documents.

A fused map of queries, keys and values gives 3 x heads x head_dim numbers at once. Which is which is a matter of the
order of its rows, the slowest axis first, said as in einops:

    qkv head dim    timm, torchvision, vit-pytorch and `vitrail.nn.Attention`: all queries, all keys, all values
    head dim qkv    D3 (a founding document): the query, key and value of one number side by side
    head qkv dim    GPT-NeoX and BLOOM: head by head

and the other three. Rows of separate maps stand in the order (head dim), head by head.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from jaxtyping import Float, Shaped
from torch import Tensor, cat, nn

from vitrail.errors import DataError, UsageError, nearest
from vitrail.nn import SILENT, AnyRecord, Parts, PatchEmbedding, ViT, ViTConfig, grid_of

Size = tuple[int, int]
Channels = Literal["first", "last"]
Order = Literal["rows", "columns"]
Flattening = Literal["c h w", "h w c", "w h c"]
QkvOrder = Literal["qkv head dim", "qkv dim head", "head qkv dim", "head dim qkv", "dim qkv head", "dim head qkv"]

AXES = ("c", "h", "w")  # of one patch, as the cut below leaves them
OURS: QkvOrder = "qkv head dim"


@dataclass(frozen=True)
class Patchify:
    """Cuts pictures into flattened patches; `inverse` puts them together again.

    Attributes:
        patch_size: (height, width) of a patch in pixels; one number means a square.
        channels: Where the channel axis of a picture stands: first (c, h, w) or last (h, w, c).
        order: Of the patches: "rows" is reading order, "columns" goes down before it goes to the right.
        flattening: Of the numbers of one patch, the slowest axis first.
    """

    patch_size: int | Size
    channels: Channels = "first"
    order: Order = "rows"
    flattening: Flattening = "c h w"

    def __post_init__(self) -> None:
        """Make a pair of `patch_size`, and refuse words that are not known."""
        for name, kind in (("channels", Channels), ("order", Order), ("flattening", Flattening)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                words = ", ".join(f"'{word}'" for word in known)
                hint = f"{name}={nearest(str(value), known) or known[0]!r}"
                raise UsageError(f"{name} must be one of {words}, got {value!r}", hint)
        sides = (self.patch_size,) * 2 if isinstance(self.patch_size, int) else tuple(self.patch_size)
        if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
            wanted = "whole pixels, one number or (height, width), at least 1"
            raise UsageError(f"patch_size must be {wanted}, got {self.patch_size!r}", "patch_size=7")
        object.__setattr__(self, "patch_size", sides)

    @property
    def patch(self) -> Size:
        """(height, width) of a patch in pixels."""
        height, width = self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size,) * 2
        return height, width

    def __call__(self, pictures: Shaped[Tensor, "*b x y z"]) -> Shaped[Tensor, "*b p n"]:
        """The patches of a picture or of a batch, n = channels x height x width of a patch.

        Args:
            pictures: (c, h, w) or (b, c, h, w), with `channels="last"` (h, w, c) or (b, h, w, c); any dtype.

        Raises:
            UsageError: If it is neither a picture nor a batch, or the patches do not divide height or width.
        """
        if pictures.dim() not in (3, 4):
            axes = "c, h, w" if self.channels == "first" else "h, w, c"
            raise UsageError(f"a picture must be ({axes}), a batch (b, {axes}), got {tuple(pictures.shape)}", _ONE)
        if self.channels == "last":
            pictures = pictures.movedim(-1, -3)
        rows, columns = self.grid((pictures.shape[-2], pictures.shape[-1]))
        height, width = self.patch
        cut = pictures.unflatten(-1, (columns, width)).unflatten(-3, (rows, height))  # ... c gh h gw w
        cut = cut.movedim((-4, -2), (-5, -4))  # ... gh gw c h w
        if self.order == "columns":
            cut = cut.transpose(-5, -4)
        first = cut.dim() - 3
        inside = [first + AXES.index(axis) for axis in self.flattening.split()]
        return cut.permute(*range(first), *inside).flatten(-3).flatten(-3, -2)

    def inverse(self, patches: Shaped[Tensor, "*b p n"], image_size: Size) -> Shaped[Tensor, "*b x y z"]:
        """The pictures that `patches` were cut from, bit for bit.

        Args:
            patches: (p, n) or (b, p, n).
            image_size: (height, width) of the pictures, which the patches alone do not tell.

        Raises:
            UsageError: If there are not as many patches, or numbers in a patch, as fit the size.
        """
        (rows, columns), (height, width) = self.grid(image_size), self.patch
        fits = patches.dim() in (2, 3) and patches.shape[-2] == rows * columns
        if not fits or patches.shape[-1] == 0 or patches.shape[-1] % (height * width):
            raise UsageError(
                f"a picture of {image_size[0]}x{image_size[1]} pixels has {rows * columns} patches of {height * width} "
                f"numbers for each channel, got {tuple(patches.shape)}",
                "the patch_size and the image_size that the patches were cut with",
            )
        sides = {"c": patches.shape[-1] // (height * width), "h": height, "w": width}
        order = self.flattening.split()
        grid = (rows, columns) if self.order == "rows" else (columns, rows)
        cut = patches.unflatten(-1, tuple(sides[axis] for axis in order)).unflatten(-4, grid)
        first = cut.dim() - 3
        cut = cut.permute(*range(first), *(first + order.index(axis) for axis in AXES))
        if self.order == "columns":
            cut = cut.transpose(-5, -4)
        pictures = cut.movedim((-5, -4), (-4, -2)).flatten(-2).flatten(-3, -2)
        return pictures if self.channels == "first" else pictures.movedim(-3, -1)

    def grid(self, image_size: Size) -> Size:
        """(rows, columns) of patches in a picture of (height, width) pixels.

        Raises:
            UsageError: If the patches do not divide height or width; names sizes that work.
        """
        return grid_of(image_size, self.patch)


_ONE = "picture[None] for a grey picture without a channel axis"


class LinearPatchEmbedding(nn.Module):
    """Cuts pictures into patches, flattens each and maps it linearly: the map of `PatchEmbedding` in another form.

    The weights of one become those of the other by `convolution_to_linear` and `linear_to_convolution`.

    Args:
        channels: Channels of the picture, c.
        width: Numbers per token, d.
        patch_size: (height, width) of a patch in pixels.
        bias: Whether the map has a bias.
        flattening: Order of the numbers of one patch.
    """

    def __init__(
        self, channels: int, width: int, patch_size: Size, bias: bool = True, flattening: Flattening = "h w c"
    ) -> None:
        super().__init__()
        self.patchify = Patchify(patch_size, flattening=flattening)
        self.proj = nn.Linear(channels * patch_size[0] * patch_size[1], width, bias=bias)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b p d"]:
        """Tokens in reading order: left to right, then down."""
        return self.proj(self.patchify(images))

    def start_weights(self) -> None:
        """Those of a `PatchEmbedding`."""
        PatchEmbedding.start_weights(self)

    def detached(self) -> nn.Module:
        """Itself: it is linear."""
        return self


def flattening_axes(flattening: Flattening) -> tuple[int, int, int]:
    """The axes of a patch (c, h, w) in the order in which they are flattened, the slowest first.

    Raises:
        UsageError: If it is not one of the table above.
    """
    known = get_args(Flattening)
    if flattening not in known:
        names = ", ".join(f"'{name}'" for name in known)
        raise UsageError(f"patches are flattened in one of {names}, got '{flattening}'", "'c h w', as a convolution")
    first, second, third = (["c", "h", "w"].index(axis) for axis in flattening.split())
    return first, second, third


def convolution_to_linear(weight: Float[Tensor, "d c h w"], flattening: Flattening) -> Float[Tensor, "d x"]:
    """The weight of the linear map of patches that are flattened in this order.

    Args:
        weight: Of the convolution.
        flattening: Order of the numbers of one patch that the linear map reads.

    Raises:
        UsageError: If the order is not in the table above.
    """
    return weight.permute(0, *(1 + axis for axis in flattening_axes(flattening))).flatten(1)


def linear_to_convolution(
    weight: Float[Tensor, "d x"], patch_size: Size, flattening: Flattening
) -> Float[Tensor, "d c h w"]:
    """The weight of the convolution; the inverse of `convolution_to_linear`.

    Args:
        weight: Of the linear map.
        patch_size: (height, width) of a patch in pixels.
        flattening: Order of the numbers of one patch that the linear map reads.

    Raises:
        DataError: If the numbers of a patch are not channels x height x width.
        UsageError: If the order is not in the table above.
    """
    axes, (height, width) = flattening_axes(flattening), patch_size
    numbers = weight.shape[1]
    if numbers == 0 or numbers % (height * width):
        raise DataError(
            f"a map of {numbers} numbers does not read patches of {height}x{width} pixels",
            f"a patch whose height x width divides {numbers}",
        )
    sides = (numbers // (height * width), height, width)
    back = [1 + axes.index(axis) for axis in range(3)]
    return weight.unflatten(1, tuple(sides[axis] for axis in axes)).permute(0, *back).contiguous()


class PatchReader(nn.Module):
    """D4's network, which reads batches of flattened patches: a ViT whose patch map is linear, behind the inverse cut.

    Args:
        config: Of the ViT, `self.vit`; explanations are asked of it, with `self.pictures(patches)`.
        flattening: Order of the numbers of one patch.
    """

    def __init__(self, config: ViTConfig, flattening: Flattening = "c h w") -> None:
        super().__init__()
        self.patchify = Patchify(config.patch, flattening=flattening)
        self.vit = ViT(
            config,
            Parts(embedding=lambda c: LinearPatchEmbedding(c.channels, c.width, c.patch, c.embed_bias, flattening)),
        )

    def forward(self, patches: Float[Tensor, "b p x"], record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """Logits of pictures that come as patches.

        Raises:
            UsageError: If there are not as many patches, or numbers in a patch, as the configuration says.
        """
        return self.vit(self.pictures(patches), record)

    def pictures(self, patches: Float[Tensor, "b p x"]) -> Float[Tensor, "b c h w"]:
        """The pictures that the patches were cut from."""
        return self.patchify.inverse(patches, self.vit.config.image)


class Separate(NamedTuple):
    """The weights of three maps, or their biases."""

    queries: Tensor
    keys: Tensor
    values: Tensor


def reorder(fused: Tensor, heads: int, given: QkvOrder, wanted: QkvOrder = OURS) -> Tensor:
    """The same fused map with its rows in another order.

    Args:
        fused: Weight (3 x heads x head_dim, d) or bias (3 x heads x head_dim,).
        heads: Number of heads.
        given: QkvOrder of its rows.
        wanted: QkvOrder of the rows of what comes back.

    Raises:
        DataError: If its rows are not 3 x heads x head_dim.
        UsageError: If an order is not known.
    """
    rows = fused.shape[0]
    if heads < 1 or rows == 0 or rows % (3 * heads):
        raise DataError(
            f"a fused map of {rows} rows does not hold queries, keys and values of {heads} heads",
            f"a number of heads that divides {rows} / 3",
        )
    lengths = {"qkv": 3, "head": heads, "dim": rows // (3 * heads)}
    before, after = _axes(given), _axes(wanted)
    split = fused.unflatten(0, tuple(lengths[axis] for axis in before))
    rest = range(3, split.dim())
    return split.permute(*(before.index(axis) for axis in after), *rest).flatten(0, 2)


def split(fused: Tensor, heads: int, order: QkvOrder = OURS) -> Separate:
    """One fused map as three: rows of queries, keys and values, each (heads x head_dim, ...).

    Args:
        fused: Weight or bias of the fused map.
        heads: Number of heads.
        order: QkvOrder of its rows.

    Raises:
        DataError: If its rows are not 3 x heads x head_dim.
        UsageError: If the order is not known.
    """
    return Separate(*reorder(fused, heads, order).chunk(3))


def fuse(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    order: QkvOrder = OURS,
) -> Tensor:
    """Three maps as one; the inverse of `split`.

    Args:
        queries: Weight or bias of the map to the queries, rows in the order (head dim).
        keys: The same of the keys.
        values: The same of the values.
        heads: Number of heads.
        order: QkvOrder of the rows of the fused map.

    Raises:
        DataError: If the three differ in shape, or their rows are not heads x head_dim.
        UsageError: If the order is not known.
    """
    shapes = [tuple(part.shape) for part in (queries, keys, values)]
    if len(set(shapes)) != 1:
        raise DataError(
            f"queries, keys and values must be alike, got {', '.join(map(str, shapes))}", "maps of one block"
        )
    return reorder(cat([queries, keys, values]), heads, OURS, order)


def _axes(order: QkvOrder) -> list[str]:
    known = get_args(QkvOrder)
    if order not in known:
        names = ", ".join(f"'{name}'" for name in known)
        raise UsageError(f"the order must be one of {names}, got '{order}'", f"'{nearest(str(order), known) or OURS}'")
    return str(order).split()
