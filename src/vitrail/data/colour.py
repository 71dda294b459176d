"""The colour operations of TrivialAugment (Müller and Hutter, 2021, the wide table), on batches.

Each image gets its own operation and strength. Images are float32 on the scale 0..255, of any channel count.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "n c h w"]
Strengths = Float[Tensor, "n 1 1 1"]


def _grey(images: Images) -> Float[Tensor, "n 1 h w"]:
    """Luma by ITU-R 601 for three channels, the mean for any other count."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True)


def _brightness(images: Images, strength: Strengths) -> Images:
    return images * (1 + 0.99 * strength)


def _contrast(images: Images, strength: Strengths) -> Images:
    middle = _grey(images).mean(dim=(2, 3), keepdim=True)
    return middle + (images - middle) * (1 + 0.99 * strength)


def _saturation(images: Images, strength: Strengths) -> Images:
    grey = _grey(images)
    return grey + (images - grey) * (1 + 0.99 * strength)


def _sharpness(images: Images, strength: Strengths) -> Images:
    if min(images.shape[2:]) < 3:
        return images
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]], device=images.device) / 13
    channels = images.shape[1]
    soft = images.clone()
    soft[..., 1:-1, 1:-1] = F.conv2d(images, kernel.expand(channels, 1, 3, 3), groups=channels)
    return soft + (images - soft) * (1 + 0.99 * strength)


def _posterize(images: Images, strength: Strengths) -> Images:
    step = torch.exp2((strength.abs() * 6).round())  # from 8 bits down to 2
    return (images / step).floor() * step


def _solarize(images: Images, strength: Strengths) -> Images:
    return torch.where(images >= 255 * (1 - strength.abs()), 255 - images, images)


def _autocontrast(images: Images, strength: Strengths) -> Images:
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) * (255 / (high - low).clamp(min=1e-3)), images)


def _equalize(images: Images, strength: Strengths) -> Images:
    """Pillow's rule, in whole numbers: a channel with fewer than 255 pixels below its top level stays as it is."""
    levels = images.round().clamp(0, 255).long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    top = counts.gather(2, levels.amax(dim=2, keepdim=True))
    step = (levels.shape[2] - top) // 255
    darker = counts.cumsum(dim=2) - counts
    table = ((darker + step // 2) // step.clamp(min=1)).clamp(0, 255)
    spread = table.gather(2, levels).unflatten(2, images.shape[2:]).to(images.dtype)
    return torch.where(step[..., None] > 0, spread, images)


_BY_NAME: dict[str, Callable[[Images, Strengths], Images]] = {
    "brightness": _brightness,
    "colour": _saturation,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
COLOUR_OPERATIONS = tuple(_BY_NAME)


def change_colours(images: Images, operations: Sequence[str], strengths: Float[Tensor, " n"]) -> Images:
    """Apply to each image its operation; a name that is no colour operation leaves the image as it is.

    Args:
        images: (n, c, h, w), 0..255.
        operations: One name for each image.
        strengths: (n,) from -1 to 1; 0 changes nothing where the operation has a strength.
    """
    images = images.clone()
    for name, operation in _BY_NAME.items():
        rows = [row for row, wanted in enumerate(operations) if wanted == name]
        if rows:
            images[rows] = operation(images[rows], strengths[rows, None, None, None]).clamp(0, 255)
    return images
