"""Where the evidence of images is known to lie: as an image, and as patches of the grid."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool
from PIL import Image
from torch import Tensor

from vitrail.data.columns import EVIDENCE, Samples
from vitrail.data.images import NamedImage
from vitrail.data.masks import box_mask
from vitrail.errors import DataError
from vitrail.explain.reporting.plan import patch_of
from vitrail.model import Model


def known_mask(samples: Samples, index: int, image: Image.Image, model: Model) -> Image.Image | None:
    """Where the evidence of a sample is known to lie; None where it is not known, or a box would cut a patch.

    Args:
        samples: A column of which may hold boxes.
        index: Of the sample.
        image: Its image.
        model: What reads it: an image that is scaled has no mask.
    """
    if EVIDENCE not in samples.columns:
        return None
    (boxes,), (height, width) = samples.column(EVIDENCE).take(np.array([index])), patch_of(model)
    fits = not (boxes % np.array([height, width, height, width])).any()
    size = (image.height, image.width)
    return box_mask(boxes, size) if fits and size == tuple(model.preprocessing.size) else None


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
        model.preprocessing, channels=1, mean=(0.5,), std=(0.5,), pad_value=(0, 0, 0), interpolation="bilinear"
    )
    height, width = patch_of(model)
    masks = []
    for one in images:
        assert one.mask is not None
        pixels = (plain.to_uint8(one.mask)[0] > 127).float()
        masks.append(F.avg_pool2d(pixels[None], (height, width))[0] > 0.5)
        if not masks[-1].any():
            raise DataError(
                f"the evidence in the mask of {one.name} does not fill most of any patch of {width} x {height} pixels",
                "no masks, or masks with larger areas",
            )
    return torch.stack(masks).to(model.device)
