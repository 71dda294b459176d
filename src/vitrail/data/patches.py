"""The patch transform: a picture as a sequence of flattened patches, and back, without loss.

    patchify = Patchify((7, 7))
    patches = patchify(pictures)                    # (b, 3, 28, 28) -> (b, 16, 147)
    pictures = patchify.inverse(patches, (28, 28))  # the same bits

A network with the parts `vitrail.nn.PATCHIFIED` reads such batches. Two orders are told apart: in which order the
patches stand in the sequence (`order`), and in which order the numbers of one patch stand (`flattening`, the table in
`vitrail/weights/patch_map.py`). Networks, their positions and their explanations go by rows.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Shaped
from torch import Tensor

from vitrail.errors import UsageError, nearest

Size = tuple[int, int]
Channels = Literal["first", "last"]
Order = Literal["rows", "columns"]
Flattening = Literal["c h w", "h w c", "w h c"]

AXES = ("c", "h", "w")  # of one patch, as the cut below leaves them


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
        pairs = list(zip(image_size, self.patch, strict=True))
        if all(pixels >= side and pixels % side == 0 for pixels, side in pairs):
            return image_size[0] // self.patch[0], image_size[1] // self.patch[1]
        down = [max(1, pixels // side) * side for pixels, side in pairs]
        up = [max(1, math.ceil(pixels / side)) * side for pixels, side in pairs]
        sizes = " or ".join(dict.fromkeys(f"{height}x{width}" for height, width in (down, up)))
        raise UsageError(
            f"a picture of {image_size[0]}x{image_size[1]} pixels (height x width) cannot be cut into patches of "
            f"{self.patch[0]}x{self.patch[1]}",
            f"a size that the patches divide: {sizes}",
        )


_ONE = "picture[None] for a grey picture without a channel axis"
