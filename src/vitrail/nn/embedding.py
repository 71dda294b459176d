"""From pixels to tokens: the grid of patches, the patch map, and positions.

"An image is worth 16x16 words" (2020), equation 1: an image is cut into patches, each is mapped linearly to a token,
and every token gets its position added. The tokens in front of the patches are parameters of the ViT itself.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import Hint, UsageError, check_option
from vitrail.nn.record import Tokens

Size = tuple[int, int]


def height_and_width(size: int | Size | list) -> Size:
    """Height and width of a size; one number means a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def grid_of(image_size: Size, patch_size: Size) -> Size:
    """Rows and columns of patches in an image of (height, width) pixels.

    Raises:
        UsageError: If the patches do not divide the image; names the nearest sizes that work.
    """
    if all(pixels >= patch and pixels % patch == 0 for pixels, patch in zip(image_size, patch_size, strict=True)):
        return image_size[0] // patch_size[0], image_size[1] // patch_size[1]
    down = [max(1, pixels // patch) * patch for pixels, patch in zip(image_size, patch_size, strict=True)]
    up = [max(1, math.ceil(pixels / patch)) * patch for pixels, patch in zip(image_size, patch_size, strict=True)]
    (image, patch, *sizes) = (f"{height}x{width}" for height, width in (image_size, patch_size, down, up))
    problem = f"an image of {image} pixels (height x width) cannot be cut into patches of {patch}"
    fitting = f"a size that is a multiple of the patch: {' or '.join(dict.fromkeys(sizes))}"
    more = "" if up == down else f"or {sizes[1]}"
    raise UsageError(problem, Hint({"image_size": tuple(down)}, text=more, python=fitting))


class PatchEmbedding(nn.Module):
    """Cuts images into patches and maps each to a token: a convolution whose stride is its kernel.

    Args:
        channels: Channels of the image, c.
        width: Numbers per token, d.
        patch_size: (height, width) of a patch in pixels.
        bias: Whether the map has a bias.
    """

    def __init__(self, channels: int, width: int, patch_size: Size, bias: bool = True) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, kernel_size=patch_size, stride=patch_size, bias=bias)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """Tokens in reading order: left to right, then down."""
        return self.proj(images).flatten(2).transpose(1, 2)

    def start_weights(self) -> None:
        """Normal weights, cut at two standard deviations, of variance 1 / (inputs of a patch); the bias is zero."""
        uncut = self.proj.weight[0].numel() ** -0.5 / 0.87962566  # the standard deviation of a normal cut at 2
        nn.init.trunc_normal_(self.proj.weight, std=uncut, a=-2 * uncut, b=2 * uncut)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)


def sinusoids(length: int, width: int) -> Float[Tensor, "length d"]:
    """Fixed positions of "Attention is all you need", section 3.5: sin and cos of pos / 10000^(2i/d), in turn.

    Raises:
        UsageError: If `width` is odd: every frequency has a sine and a cosine.
    """
    if width % 2:
        raise UsageError(f"sinusoidal positions need an even width, got {width}", f"a width of {width + 1}")
    frequencies = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def sinusoids_2d(grid: Size, width: int) -> Float[Tensor, "p d"]:
    """Fixed positions in the plane: one half of the numbers gives the row, the other the column (MoCo v3, 2021).

    Raises:
        UsageError: If 4 does not divide `width`: two axes, each with sines and cosines.
    """
    if width % 4:
        nearest = f"a width of {max(4, width // 4 * 4)} or {(width // 4 + 1) * 4}"
        raise UsageError(f"two-dimensional sinusoidal positions need a width divisible by 4, got {width}", nearest)
    rows, columns = (sinusoids(length, width // 2) for length in grid)
    plane = [rows[:, None].expand(*grid, -1), columns[None].expand(*grid, -1)]
    return torch.cat(plane, dim=-1).flatten(0, 1)


# Each library resizes positions to another grid by its own rule: the results differ by up to 0.07
RESIZE_RULES = {"timm": {"antialias": True}, "transformers": {}, "dinov2": {}, "torchvision": {"align_corners": True}}


def resize_positions(
    positions: Float[Tensor, "1 n d"] | None, prefix: int, old: Size, new: Size, rule: str = "timm"
) -> Float[Tensor, "1 m d"] | None:
    """Resize positions from one grid to another by bicubic interpolation; the same grid gives the same tensor.

    The patches' positions are read as an image of `old` (rows, columns) and resized to exactly `new`; positions of the
    prefix tokens are untouched. Computed in float32.

    Args:
        positions: Positions of the prefix tokens, then of the patches in reading order; None stays None.
        prefix: Number of prefix tokens.
        old: Their grid.
        new: The new grid.
        rule: A key of `RESIZE_RULES`.
    """
    check_option("rule", rule, rule in RESIZE_RULES, f"one of {', '.join(RESIZE_RULES)}", "timm")
    if positions is None or old == new:
        return positions
    front, patches = positions[:, :prefix], positions[:, prefix:]
    plane = patches.float().unflatten(1, old).permute(0, 3, 1, 2)
    scale = [(side + 0.1) / own for side, own in zip(new, old, strict=True)] if rule == "dinov2" else None
    plane = F.interpolate(plane, None if scale else new, scale, mode="bicubic", **RESIZE_RULES[rule])  # pyrefly: ignore
    return torch.cat([front, plane.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)], dim=1)
