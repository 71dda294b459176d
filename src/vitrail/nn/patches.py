"""Images cut into their patches, and patches joined to images.

Axes: b batch, p patches row by row, c channels, h w pixels, ph pw pixels of a patch.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.nn.embedding import Size, grid_of


def cut_patches(images: Float[Tensor, "b c h w"], patch_size: Size) -> Float[Tensor, "b p c ph pw"]:
    """The patches of images, row by row.

    Raises:
        UsageError: As `grid_of`.
    """
    rows, columns = grid_of((images.shape[2], images.shape[3]), patch_size)
    cut = images.unflatten(3, (columns, patch_size[1])).unflatten(2, (rows, patch_size[0]))  # b c gh ph gw pw
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def join_patches(patches: Float[Tensor, "b p c ph pw"], grid: Size) -> Float[Tensor, "b c h w"]:
    """The images of patches that stand row by row on a grid: what `cut_patches` undoes."""
    (rows, columns), (count, _, channels, height, width) = grid, patches.shape
    laid = patches.unflatten(1, grid).permute(0, 3, 1, 4, 2, 5)
    return laid.reshape(count, channels, rows * height, columns * width)
