"""What methods that look at pixels share: versions of a picture in batches, gradients by pixels, one number per patch.

A batch of versions is (m, b, ...): m versions of each of b pictures. Pictures and versions do not mix in the network,
so the gradient of a sum over them is each one's own.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.readout import wide
from vitrail.explain.target import Aim, refuse_constant
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images


def by_patch(pixels: Images, grid: Size) -> Float[Tensor, "b rows columns"]:
    """The sum over each patch's pixels and channels.

    Args:
        pixels: One number per pixel and channel, (b, c, h, w).
        grid: (rows, columns) of patches.
    """
    rows, columns = grid
    height, width = pixels.shape[2] // rows, pixels.shape[3] // columns
    return pixels.unflatten(3, (columns, width)).unflatten(2, (rows, height)).sum(dim=(1, 3, 5))


def onto_pixels(patches: Float[Tensor, "m p x"], images: Images, grid: Size) -> Tensor:
    """Numbers for each patch's channels and pixels (in this order), laid out as the pictures are: (m, c, h, w)."""
    rows, columns = grid
    inside = (images.shape[1], images.shape[2] // rows, images.shape[3] // columns)
    laid = patches.unflatten(2, inside).unflatten(1, grid)  # m, rows, columns, c, height, width
    return laid.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), *images.shape[1:])


def differentiate(numbers: Float[Tensor, "*m b"], by: Tensor) -> Tensor:
    """d numbers / d by, as `gradients_of` gives it for several."""
    return gradients_of(numbers, by)[0]


def gradients_of(numbers: Float[Tensor, "*m b"], *by: Tensor) -> tuple[Tensor, ...]:
    """d numbers / d each, of the sum over all numbers; no parameter's `.grad` is touched.

    Raises:
        UsageError: If a target function gives numbers that do not depend on the logits.
    """
    refuse_constant(numbers)
    return torch.autograd.grad(numbers.sum(), by, materialize_grads=True)


def gradients_at(network: ViT, versions: Float[Tensor, "m b *x"], aim: Aim) -> Float[Tensor, "m b *x"]:
    """The gradient of the explained number by the pixels of each version, in at least float32."""
    with torch.enable_grad():
        pixels = versions.detach().flatten(0, 1).clone().requires_grad_()
        numbers = aim.of(network(pixels).unflatten(0, versions.shape[:2]))
        return wide(differentiate(numbers, pixels)).unflatten(0, versions.shape[:2])


@torch.no_grad()
def numbers_at(network: ViT, versions: Float[Tensor, "m b *x"], aim: Aim) -> Float[Tensor, "m b"]:
    """The explained number of each version."""
    return aim.of(network(versions.flatten(0, 1)).unflatten(0, versions.shape[:2]))


def chunks(pictures: int, versions: int, batch_size: int) -> Iterator[tuple[slice, slice]]:
    """Which pictures and which of their versions run together, at most `batch_size` of both multiplied.

    Raises:
        UsageError: If the batch size is not at least 1.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"batch_size must be a whole number, at least 1, got {batch_size!r}", "batch_size=64")
    for first in range(0, pictures, batch_size):
        which = slice(first, min(first + batch_size, pictures))
        together = max(1, batch_size // (which.stop - which.start))
        for start in range(0, versions, together):
            yield which, slice(start, min(start + together, versions))


def at_least(name: str, value: int, least: int, hint: str) -> None:
    """Refuse what is not a whole number of at least `least`.

    Raises:
        UsageError: Naming the option, its least value and what was given.
    """
    if type(value) is not int or value < least:
        raise UsageError(f"{name} must be a whole number, at least {least}, got {value!r}", hint)


def like_pictures(name: str, given: float | Sequence[float] | Tensor, images: Images) -> Tensor:
    """What a caller gives in place of pixels, spread to the shape of the pictures.

    Args:
        name: Of the option, for the message.
        given: A number; one for each channel; or a tensor that broadcasts to the pictures, such as another picture.
        images: (b, c, h, w).

    Raises:
        UsageError: If it does not fit the pictures.
    """
    try:
        values = torch.as_tensor(given, dtype=images.dtype, device=images.device)
        if values.shape == images.shape[1:2]:
            values = values[:, None, None]
        return values.broadcast_to(images.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = tuple(given.shape) if isinstance(given, Tensor) else given
        raise UsageError(
            f"{name} must be a number, one for each of {images.shape[1]} channels, or of the pictures' shape "
            f"{tuple(images.shape)}, got {shape!r}",
            f"{name}=0.0",
        ) from error
