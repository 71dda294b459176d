"""What methods that look at pixels share: versions of an image in batches, masked or on a path; gradients by pixels.

A batch of versions is (m, b, ...): m versions of each of b images. Images and versions do not mix in the network,
so the gradient of a sum over them is each one's own.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import check_count
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import ForwardPass, to_float64
from vitrail.explain.methods.table import MethodLike
from vitrail.explain.scores.perturb import AnyFill, Masks, fill_of, measure_masked
from vitrail.explain.target import refuse_constant
from vitrail.nn.embedding import Size
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images
from vitrail.tasks.target import ChosenTarget

_DROWNED = 16  # units in the last place of the largest answer, within which a map is rounding alone


def by_patch(pixels: Images, grid: Size) -> Float[Tensor, "b rows columns"]:
    """The sum over each patch's pixels and channels.

    Args:
        pixels: One number per pixel and channel, (b, c, h, w).
        grid: (rows, columns) of patches.
    """
    rows, columns = grid
    height, width = pixels.shape[2] // rows, pixels.shape[3] // columns
    return pixels.unflatten(3, (columns, width)).unflatten(2, (rows, height)).sum(dim=(1, 3, 5))


def gradients_of(numbers: Float[Tensor, "*m b"], *by: Tensor) -> tuple[Tensor, ...]:
    """d numbers / d each, of the sum over all numbers, in at least float32; no parameter's `.grad` is touched.

    Raises:
        UsageError: If a target function gives numbers that do not depend on the logits.
    """
    refuse_constant(numbers)
    return tuple(wide(each) for each in torch.autograd.grad(numbers.sum(), by, materialize_grads=True))


def gradients_at(
    network: nn.Module, versions: Float[Tensor, "m b *x"], chosen: ChosenTarget
) -> Float[Tensor, "m b *x"]:
    """The gradient of the explained number by the pixels of each version."""
    with torch.enable_grad():
        pixels = versions.detach().flatten(0, 1).clone().requires_grad_()
        numbers = chosen(network(pixels).unflatten(0, versions.shape[:2]))
        return gradients_of(numbers, pixels)[0].unflatten(0, versions.shape[:2])


def chunks(images: int, versions: int, batch_size: int) -> Iterator[tuple[slice, slice]]:
    """Which images and which of their versions run together, at most `batch_size` of both multiplied.

    Raises:
        UsageError: If the batch size is not at least 1.
    """
    check_count("batch_size", batch_size, 64)
    for first in range(0, images, batch_size):
        which = slice(first, min(first + batch_size, images))
        together = max(1, batch_size // (which.stop - which.start))
        for start in range(0, versions, together):
            yield which, slice(start, min(start + together, versions))


def masked_numbers(forward: ForwardPass, masks: Masks, fill: AnyFill, batch_size: int) -> Float[Tensor, "m b"]:
    """The explained number of every image under every mask: exact, for methods go on with differences of these.

    The fill decides what the answer means. A flat patch is no absence of evidence: no network was trained on it, and a
    part of what the logit does is its surprise. None is right for all networks; each image's own mean colour is the
    default, and `vitrail.explain.scores` has others, such as patches of other images (drawn once, for all masks).

    Args:
        forward: A pass of the images, with what is explained of them.
        masks: (m, rows, columns), the same for all images, so that none depends on its batch; see `scores/perturb.py`.
        fill: See `fill_of`.
        batch_size: How many masked images run at once.

    Returns:
        (m, b), in float64, on the CPU.

    Raises:
        UsageError: If the fill does not fit the images, or the batch size is not at least 1.
    """
    images = forward.pixels.detach()
    filled = fill_of(fill).make(images, forward.patch, 1, 0)
    masks = masks[:, None].to(images.device)
    return to_float64(measure_masked(forward.network, images, forward.chosen, masks, filled, ("logit",), batch_size)[0])


def attribution_of_numbers(
    values: Float[Tensor, "b rows columns"], found: Float[Tensor, "m b"], forward: ForwardPass, method: MethodLike
) -> Attribution:
    """An attribution of values made of numbers under masks; differences by rounding alone are noted as no signal."""
    values = values.to(wide(forward.logit))
    noise = _DROWNED * torch.finfo(forward.logit.dtype).eps * found.abs().amax(dim=0)
    return forward.attribution(values, method, drowned=to_float64(values).abs().amax(dim=(1, 2)) <= noise)
