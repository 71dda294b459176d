"""Where the evidence of an image is known to lie: masks of images, on the grid of patches."""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.data.images import NamedImage
from vitrail.errors import DataError
from vitrail.model import Model


def mask_patches(images: Sequence[NamedImage], model: Model) -> Bool[Tensor, "b rows columns"] | None:
    """True where most of a patch is evidence; None where an image has no mask.

    Args:
        images: With masks of their own sizes, which go where the images go: they are resized and cut alike.
        model: Whose preprocessing and patches.

    Raises:
        DataError: If the evidence of an image fills the most of no patch.
    """
    if any(one.mask is None for one in images):
        return None
    plain = dataclasses.replace(
        model.preprocessing, channels=1, mean=(0.5,), std=(0.5,), background=(0, 0, 0), interpolation="bilinear"
    )
    height, width = model.network.config.patch
    masks = []
    for one in images:
        assert one.mask is not None
        pixels = (plain.to_uint8(one.mask)[0] > 127).float()
        rows, columns = pixels.shape[0] // height, pixels.shape[1] // width
        masks.append(pixels.reshape(rows, height, columns, width).mean(dim=(1, 3)) > 0.5)
        if not masks[-1].any():
            raise DataError(
                f"the evidence that the mask of {one.name} names fills the most of no patch of {width} x {height} "
                "pixels",
                "no masks, or masks with larger areas",
            )
    return torch.stack(masks).to(model.device)
