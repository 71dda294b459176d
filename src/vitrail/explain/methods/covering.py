"""What methods share that cover patches and watch the logit: what covers a patch, and the answers to many covers.

A cover is a map on the grid: 1 where the picture is seen, 0 where the filling is, and between them a mixture. Every
picture of a batch gets the same covers, so a picture's map does not depend on the batch it came in.

The filling decides what the answer means. A flat patch is no absence of evidence: no network was trained on it, and a
part of what the logit does is its surprise. None is right for all networks; `"mean"`, each picture's own mean colour,
is the default, and a tensor takes anything, also patches of other pictures (`vitrail.explain.scores` makes them).
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.heat import Heat, no_signal_where
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.pixels import chunks, like_pictures, numbers_at
from vitrail.explain.readout import Opened, exact, heat_of, wide
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

Filling = Literal["mean"] | float | Sequence[float] | Tensor

_DROWNED = 16  # units in the last place of the largest answer, within which a map is rounding alone


def filling_of(images: Images, fill: Filling) -> Images:
    """What stands in a patch that is covered, in normalised pixels.

    Args:
        images: (b, c, h, w).
        fill: `"mean"` for each picture's mean in each channel; a number; one for each channel; or a tensor that
            broadcasts to the pictures.

    Raises:
        UsageError: If it is another word or does not fit the pictures.
    """
    pictures = wide(images.detach())
    if not isinstance(fill, str):
        return like_pictures("fill", fill, pictures)
    if fill != "mean":
        raise UsageError(f"fill must be 'mean', numbers or a tensor, got {fill!r}", "fill='mean'")
    mean = exact(pictures).mean(dim=(2, 3), keepdim=True).to(pictures)  # exact for a picture of one colour
    return mean.broadcast_to(pictures.shape)


def on_pixels(covers: Float[Tensor, "m rows columns"], images: Images) -> Tensor:
    """Covers of patches as covers of pixels, (m, 1, 1, h, w)."""
    height, width = images.shape[2] // covers.shape[1], images.shape[3] // covers.shape[2]
    return covers.repeat_interleave(height, dim=1).repeat_interleave(width, dim=2)[:, None, None]


def answers(
    network: ViT,
    images: Images,
    opened: Opened,
    covers: Float[Tensor, "m rows columns"],
    fill: Filling,
    batch_size: int,
) -> Float[Tensor, "m b"]:
    """The explained number of every picture under every cover: exact, for methods go on with differences of these.

    Args:
        network: In eval mode.
        images: (b, c, h, w).
        opened: A run of these pictures, which says what is explained.
        covers: 1 where the picture is seen.
        fill: See `filling_of`.
        batch_size: How many covered pictures run at once.

    Returns:
        (m, b), in float64, on the CPU.

    Raises:
        UsageError: If the filling does not fit the pictures, or the batch size is not at least 1.
    """
    pictures, filling = wide(images.detach()), filling_of(images, fill)
    found = opened.logit.new_zeros(len(covers), len(images))
    for which, some in chunks(len(images), len(covers), batch_size):
        seen = on_pixels(covers[some].to(pictures), images)
        versions = torch.lerp(filling[None, which], pictures[None, which], seen)  # exact at 0, at 1, and of equals
        found[some, which] = numbers_at(network, versions.to(images.dtype), opened.aim.select(which))
    return exact(found)


def heat_of_answers(
    values: Float[Tensor, "b rows columns"], found: Float[Tensor, "m b"], opened: Opened, method: Method
) -> Heat:
    """A heat of values made of answers; differences that are rounding alone are noted as no signal."""
    values = values.to(wide(opened.logit))
    noise = _DROWNED * torch.finfo(opened.logit.dtype).eps * found.abs().amax(dim=0)
    notes = no_signal_where(exact(values).abs().amax(dim=(1, 2)) <= noise, values)
    return heat_of(values, opened.aim, opened.logit, method, notes)


def spread(masks: Float[Tensor, "m r s"], size: Size) -> Float[Tensor, "m height width"]:
    """Small masks stretched to a larger size, bilinear."""
    return F.interpolate(masks[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
