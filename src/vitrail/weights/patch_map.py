"""The patch map in its two forms: a convolution, and a linear map of flattened patches. Weights go both ways.

A convolution whose stride is its kernel and a linear map of each patch are the same map; their weights differ in the
order of the numbers of one patch, the slowest axis first (c channels, h rows, w columns of the patch):

    order    means                             who
    c h w    channels first, then by rows      convolutions (timm, torchvision, `PatchEmbedding`), D0
    h w c    by rows, channels last            D3 and vit-pytorch
    w h c    by columns, channels last         D4

D0 to D4 are the founding documents. The biases of the two forms are the same numbers. In which order the patches
stand in the sequence is another question: everywhere here by rows, in D4 by columns (`Patchify` of `lessons/parts.py`).
"""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from vitrail.errors import DataError, UsageError
from vitrail.nn.embedding import Size

Flattening = Literal["c h w", "h w c", "w h c"]


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
