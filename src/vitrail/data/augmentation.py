"""Changing training images at random: `draw` makes the random numbers, `apply` uses them, on whole batches.

Every change of place (crop, shift, rotation, zoom, flip, shear) is one affine map per image, and all of them together
are one resampling. Colours follow, then erasing; mixing comes last.

Images of a batch may differ in shape. They stand at the top left of a common frame, and each image's own height and
width, its *extent*, come with them. Crops lie in the image's own extent, and what fills up the frame is never seen.

Sources: random resized crop, "Going deeper with convolutions" (2014), section 6; "TrivialAugment" (Müller and Hutter,
2021), the wide table; "Random erasing" (2017).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.plan import COLOUR, CUTTING, ERASING, GEOMETRY, EpochPlan, Ids, uniforms
from vitrail.errors import UsageError

# ---- the colour operations of TrivialAugment, on batches: each image has its own operation and strength

Images = Float[Tensor, "n c h w"]  # float32, 0..255, of any channel count
Strengths = Float[Tensor, "n 1 1 1"]
Frames = UInt8[Tensor, "n c H W"]
Extents = Int[Tensor, "n 2"]  # height and width of each image


def _grey(images: Images) -> Float[Tensor, "n 1 h w"]:
    """Luma by ITU-R 601 for three channels, the mean for any other count."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True)


def brightness(images: Images, strength: Strengths) -> Images:
    """All values times 0.01 to 1.99."""
    return images * (1 + 0.99 * strength)


def contrast(images: Images, strength: Strengths) -> Images:
    """The distance from the mean luma times 0.01 to 1.99."""
    middle = _grey(images).mean(dim=(2, 3), keepdim=True)
    return middle + (images - middle) * (1 + 0.99 * strength)


def colour(images: Images, strength: Strengths) -> Images:
    """The distance from grey times 0.01 to 1.99."""
    grey = _grey(images)
    return grey + (images - grey) * (1 + 0.99 * strength)


def sharpness(images: Images, strength: Strengths) -> Images:
    """The distance from a soft copy, 3 x 3, times 0.01 to 1.99; the frame stays."""
    if min(images.shape[2:]) < 3:
        return images
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]], device=images.device) / 13
    channels = images.shape[1]
    soft = images.clone()
    soft[..., 1:-1, 1:-1] = F.conv2d(images, kernel.expand(channels, 1, 3, 3), groups=channels)
    return soft + (images - soft) * (1 + 0.99 * strength)


def posterize(images: Images, strength: Strengths) -> Images:
    """Fewer bits: from 8 down to 2."""
    step = torch.exp2((strength.abs() * 6).round())
    return (images / step).floor() * step


def solarize(images: Images, strength: Strengths) -> Images:
    """Values from a level on are inverted."""
    return torch.where(images >= 255 * (1 - strength.abs()), 255 - images, images)


def autocontrast(images: Images, strength: Strengths) -> Images:
    """The least value of a channel becomes 0, the greatest 255."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) * (255 / (high - low).clamp(min=1e-3)), images)


def equalize(images: Images, strength: Strengths) -> Images:
    """All levels become about as frequent, by torchvision's rule, which is Pillow's: in whole numbers."""
    from torchvision.transforms.v2 import functional  # takes a second, which other trainings need not

    return functional.equalize(images.round().clamp(0, 255).byte()).to(images.dtype)


COLOUR_OPERATIONS: dict[str, Callable[[Images, Strengths], Images]] = {
    function.__name__: function
    for function in (brightness, colour, contrast, sharpness, posterize, solarize, autocontrast, equalize)
}


def change_colours(images: Images, operations: Sequence[str], strengths: Float[Tensor, " n"]) -> Images:
    """Apply to each image its operation; a name that is no colour operation leaves the image as it is.

    Args:
        images: (n, c, h, w), 0..255.
        operations: One name for each image.
        strengths: (n,) from -1 to 1; 0 changes nothing where the operation has a strength.
    """
    images = images.clone()
    for name, operation in COLOUR_OPERATIONS.items():
        rows = [row for row, wanted in enumerate(operations) if wanted == name]
        if rows:
            images[rows] = operation(images[rows], strengths[rows, None, None, None]).clamp(0, 255)
    return images


# ---- all that may happen to an image

PLACE_OPERATIONS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = ("identity", *PLACE_OPERATIONS, *COLOUR_OPERATIONS)

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What may happen to a training image; the default changes nothing.

    Attributes:
        crop_scale: Random resized crop: smallest and largest fraction of the image's area.
        crop_ratio: Smallest and largest width / height of the crop, in units of that of the result.
        shift: Largest shift, as a fraction of the side.
        rotate: Largest rotation in degrees, either way.
        zoom: Smallest and largest zoom.
        flip: Probability of a left-right flip.
        trivial_augment: TrivialAugment: one operation, at a random strength, for each image.
        random_erasing: Probability that a box is painted over.
        mixup: Alpha of mixup; 0 for none.
        cutmix: Alpha of CutMix; 0 for none.
        label_smoothing: Fraction of the target that goes evenly to all classes.
        fill: Grey level 0..255 for what comes from outside the image.
    """

    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (1.0, 1.0)
    shift: float = 0.0
    rotate: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    flip: float = 0.0
    trivial_augment: bool = False
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    fill: int = 128

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        fractions = dict.fromkeys(("shift", "flip", "random_erasing", "label_smoothing"), 1)
        for name, most in {**fractions, "rotate": 180, "mixup": 1e3, "cutmix": 1e3, "fill": 255}.items():
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise UsageError(f"augmentation.{name} must be from 0 to {most:g}, got {value}", f"{name}: 0")
        for name in ("crop_scale", "crop_ratio", "zoom"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf or (name == "crop_scale" and high > 1):
                raise UsageError(f"augmentation.{name} must be low and high, got {low}, {high}", f"{name}: [0.5, 1.0]")

    @property
    def words(self) -> str:
        """What training images are that images of an evaluation are not: "mixed", "augmented", both, or nothing."""
        augmented = replace(self, mixup=0.0, cutmix=0.0, label_smoothing=0.0) != Augmentation(fill=self.fill)
        return " and ".join(["mixed"] * bool(self.mixup or self.cutmix) + ["augmented"] * augmented)

    @property
    def crops(self) -> bool:
        """Whether a random part of the image is taken, so that the image is wanted whole."""
        return self.crop_scale != (1, 1) or self.crop_ratio != (1, 1)

    @property
    def moves(self) -> bool:
        """Whether any change of place can happen."""
        return self.trivial_augment or self.crops or self.zoom != (1, 1) or bool(self.shift or self.rotate or self.flip)


class Draws(NamedTuple):
    """The random numbers of a few images, one row each."""

    place: Float[Tensor, "n 2 3"]  # from places in the result to places in the image, both in [-1, 1], x first
    operation: Int[Tensor, " n"]  # index into OPERATIONS
    strength: Float[Tensor, " n"]  # of the operation, -1..1
    erased: Float[Tensor, "n 4"]  # top, left, bottom, right as fractions of the sides; an empty box erases nothing
    pasted: Float[Tensor, "n 2"]  # centre (y, x) of a CutMix box as fractions of the sides


def draw(
    augmentation: Augmentation, ids: Ids, *, seed: int, epoch: int, aspect: float = 1.0, extents: Extents | None = None
) -> Draws:
    """The random numbers for these images: a pure function of (seed, epoch, id) and of each image's own shape.

    Args:
        augmentation: What may happen.
        ids: (n,) sample ids.
        seed: Of the run.
        epoch: Counted from 0.
        aspect: Width / height of the result, so that rotations do not shear.
        extents: Each image's own (height, width) in pixels; None where all have the aspect of the result.
    """
    stretch = np.ones(len(ids))
    if extents is not None:
        high, wide = extents.numpy().astype(np.float64).T
        stretch = wide / high / aspect
    operation, strength = np.zeros(len(ids), np.int64), np.zeros(len(ids))
    if augmentation.trivial_augment:
        numbers = uniforms(ids, 2, seed=seed, epoch=epoch, stream=COLOUR)
        operation = (numbers[:, 0] * len(OPERATIONS)).astype(np.int64)
        strength = numbers[:, 1] * 2 - 1
    geometry = uniforms(ids, 9, seed=seed, epoch=epoch, stream=GEOMETRY)
    places = _places(augmentation, geometry, aspect, stretch, operation, strength)
    erased = _draw_boxes(augmentation.random_erasing, uniforms(ids, 4, seed=seed, epoch=epoch, stream=ERASING))
    pasted = uniforms(ids, 2, seed=seed, epoch=epoch, stream=CUTTING).astype(np.float32)
    return Draws(*map(torch.from_numpy, (places, operation, strength.astype(np.float32), erased, pasted)))


def _places(
    a: Augmentation, u: Numbers, aspect: float, stretch: Numbers, operation: NDArray[np.int64], strength: Numbers
) -> NDArray[np.float32]:
    """Affine maps (n, 2, 3): crop after zoom, rotation, shear and shift after flip.

    `u` (n, 9) are random numbers; `stretch` says how many times wider an image is than one of the same height and of
    the result's aspect.
    """

    def between(column: int, low: float, high: float) -> Numbers:
        return low + u[:, column] * (high - low)

    def strength_of(name: str, most: float) -> Numbers:
        return np.where(operation == OPERATIONS.index(name), strength * most, 0.0)

    # the crop: its half sides and its centre; where it does not fit in, it is cut to the nearest aspect that is allowed
    area = between(0, *a.crop_scale)
    ratio = np.exp(between(1, math.log(a.crop_ratio[0]), math.log(a.crop_ratio[1])))
    wanted = np.sqrt(np.stack([area * ratio / stretch, area / ratio * stretch], 1))
    half = np.minimum(wanted, 1.0)
    cut = wanted != half
    narrowest, widest = a.crop_ratio
    half[:, 0] = np.where(cut[:, 1], np.minimum(half[:, 0], widest * half[:, 1] / stretch), half[:, 0])
    half[:, 1] = np.where(cut[:, 0], np.minimum(half[:, 1], half[:, 0] * stretch / narrowest), half[:, 1])
    centre = (1 - half) * (u[:, 2:4] * 2 - 1) if a.crops else np.zeros_like(half)
    # what moves inside it (TrivialAugment's widest: 135 degrees, shear 0.99, a shift of 32 of 224 pixels)
    angle = np.deg2rad(between(4, -a.rotate, a.rotate)) + strength_of("rotate", math.radians(135))
    zoom = np.exp(between(5, math.log(a.zoom[0]), math.log(a.zoom[1])))
    shift = (u[:, 6:8] * 2 - 1) * (2 * a.shift)
    shift = shift + 2 * np.stack([strength_of("translate_x", 32 / 224), strength_of("translate_y", 32 / 224)], 1)
    shear_x, shear_y = strength_of("shear_x", 0.99), strength_of("shear_y", 0.99)
    cos, sin = np.cos(angle) / zoom, np.sin(angle) / zoom
    linear = np.empty((len(u), 2, 2))
    linear[:, 0, 0], linear[:, 0, 1] = cos + sin * shear_y, (sin + cos * shear_x) / aspect
    linear[:, 1, 0], linear[:, 1, 1] = (-sin + cos * shear_y) * aspect, cos - sin * shear_x
    mirrored = np.where(u[:, 8] < a.flip, -1.0, 1.0)
    linear = linear * half[:, :, None]
    linear[:, :, 0] *= mirrored[:, None]
    offset = centre - half * shift
    return np.concatenate([linear, offset[:, :, None]], axis=2).astype(np.float32)


def _draw_boxes(probability: float, numbers: Numbers) -> NDArray[np.float32]:
    """Boxes of 2 to 33 percent of the area, 0.3 to 3.3 times as wide as high."""
    area = 0.02 + 0.31 * np.where(probability > 0, numbers[:, 0] / max(probability, 1e-9), 0)
    ratio = np.exp(np.log(0.3) + numbers[:, 1] * (np.log(3.3) - np.log(0.3)))
    sides = np.minimum(np.sqrt(np.stack([area / ratio, area * ratio], 1)), 1.0)
    corner = numbers[:, 2:4] * (1 - sides)
    boxes = np.concatenate([corner, corner + sides], axis=1)
    return np.where((numbers[:, 0] < probability)[:, None], boxes, 0.0).astype(np.float32)


def apply(
    augmentation: Augmentation, pixels: Frames, draws: Draws, size: tuple[int, int], extents: Extents | None = None
) -> Images:
    """Change the images as drawn.

    Args:
        augmentation: What may happen (decides which steps run at all).
        pixels: uint8 images, (n, c, H, W).
        draws: Their random numbers.
        size: (h, w) of the result in pixels.
        extents: Each image's own (height, width) in `pixels`, at the top left, as `frames_of` has room for; None where
            they fill it.

    Returns:
        float32 images on the scale 0..255.
    """
    if extents is not None and bool((extents != torch.tensor(pixels.shape[2:])).any()):
        images = _move_in_frames(augmentation, pixels, draws, size, extents)
    else:
        images = _move(augmentation, pixels, draws.place.to(pixels.device), size)
    if augmentation.trivial_augment:
        names = [OPERATIONS[index] for index in draws.operation.tolist()]
        images = change_colours(images, names, draws.strength.to(pixels.device))
    if augmentation.random_erasing:
        images = torch.where(pixels_in_boxes(draws.erased.to(pixels.device), size), float(augmentation.fill), images)
    return images


def _move(augmentation: Augmentation, pixels: Frames, places: Float[Tensor, "n 2 3"], size: tuple[int, int]) -> Images:
    """Every change of place, as one resampling, where there is any; the fill comes from outside the frame."""
    if not augmentation.moves and tuple(pixels.shape[2:]) == size:
        return pixels.float()
    where = F.affine_grid(places, [len(pixels), pixels.shape[1], *size], align_corners=False)
    fill = float(augmentation.fill)
    images = pixels.float() - fill
    return F.grid_sample(images, where, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


def _move_in_frames(
    augmentation: Augmentation, pixels: Frames, draws: Draws, size: tuple[int, int], extents: Extents
) -> Images:
    """The same for images that do not fill their frames; those of one frame together.

    An image's frame depends on nothing but the image: so do the bits of the result, whoever else is in the batch.
    """
    frames = frames_of(extents)
    places = draws.place.clone()
    moved = torch.empty(len(pixels), pixels.shape[1], *size, device=pixels.device)
    for frame in torch.unique(frames, dim=0):
        rows = (frames == frame).all(dim=1).nonzero()[:, 0]
        (high, wide), own = frame.tolist(), extents[rows]
        some = pixels[rows.to(pixels.device), :, :high, :wide]
        if bool((own != frame).any()):  # the fill stands where the frame is empty, and places are those in the frame
            down, across = (torch.arange(side) < own[:, axis, None] for axis, side in enumerate((high, wide)))
            there = (down[:, None, :, None] & across[:, None, None, :]).to(pixels.device)
            some = torch.where(there, some, augmentation.fill)
            part = (own / frame).flip(1)  # x first
            places[rows] *= part[:, :, None]
            places[rows, :, 2] += part - 1
        moved[rows.to(pixels.device)] = _move(augmentation, some, places[rows].to(pixels.device), size)
    return moved


def frames_of(extents: Extents) -> Extents:
    """(height, width) of the frame in which each image is resampled: a square or a little more than its extent.

    The longer side is rounded up by steps of an eighth of the shorter one, so that images of many shapes have few
    frames and can be resampled together.
    """
    shorter = extents.amin(dim=1, keepdim=True)
    step = (shorter + 7) // 8
    return shorter + (extents - shorter + step - 1) // step * step


def pixels_in_boxes(boxes: Float[Tensor, "n 4"], size: tuple[int, int]) -> Tensor:
    """(n, 1, h, w), True for pixels whose centre lies in the box (top, left, bottom, right, fractions of the sides)."""
    rows = (torch.arange(size[0], device=boxes.device) + 0.5) / size[0]
    columns = (torch.arange(size[1], device=boxes.device) + 0.5) / size[1]
    top, left, bottom, right = boxes[:, :, None].unbind(1)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]


def mix(
    images: Float[Tensor, "b c h w"], partners: Float[Tensor, "b c h w"], plan: EpochPlan, pasted: Float[Tensor, "b 2"]
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, " b"]]:
    """Mix each image with its partner: blended (mixup) or with a box of the partner pasted (CutMix).

    Returns:
        The mixtures, and each image's own weight: for CutMix the fraction of pixels that really stayed.
    """
    size = (images.shape[2], images.shape[3])
    weights = torch.from_numpy(plan.weights).float().to(images.device)
    cut = torch.from_numpy(plan.cut).to(images.device)
    half = (1 - weights).clamp(min=0).sqrt()[:, None] / 2
    boxes = torch.cat([pasted.to(images.device) - half, pasted.to(images.device) + half], dim=1)
    hole = pixels_in_boxes(boxes, size) & cut[:, None, None, None]
    weights = torch.where(cut, 1 - hole.float().mean(dim=(1, 2, 3)), weights)
    blend = torch.where(cut, 1.0, weights)[:, None, None, None]
    return torch.where(hole, partners, images * blend + partners * (1 - blend)), weights
