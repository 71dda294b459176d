"""What stands where a patch is masked: the fill.

    fill = from_background(background)                            # (r, c, h, w) images like those of training
    filled = fill.make(images, patch, draws, seed)                # (m, b, c, h, w)
    masked = composite(images, filled, mask, patch)               # (m, b, c, h, w), see `perturb.py`

A score that masks patches depends as much on what stands in their place as on the map: with a grey or a blurred
fill a map can do better than the truth itself, because grey patches are evidence too. So the fill is always named, and
the one that may be trusted is *background*: the patch of another image at the same position, which the network knows
such images by. All images here are as the network reads them, after the model's normalisation.

Every random choice comes from the seed and the draw alone, so that an image gets the same filler in every batch. Two
generators with the same seed give the same bits. So where one seed serves several uses, or several images, each draws
from a stream of its own, here and in all that is tested and scored. What draws one thing for all images takes the
seed as it is: SmoothGrad's noise, RISE's masks, KernelSHAP's sets, the weights of a scrambled network, and the noise
that a self-test looks at.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.forward import exact
from vitrail.nn.embedding import Size, grid_of
from vitrail.nn.patches import cut_patches, join_patches


def stream(seed: int, use: str, key: int = 0) -> torch.Generator:
    """A generator that depends on the seed, the use and a key; on the CPU, so that all devices see the same numbers."""
    return torch.Generator().manual_seed(seed_of(seed, use, key))


def seed_of(seed: int, use: str, key: int = 0) -> int:
    """The seed of that stream, to hand to what takes one: for the draw of a number, or for one part of a whole."""
    return zlib.crc32(f"{use} {seed} {key}".encode())


def keys_of(images: Float[Tensor, "b c h w"]) -> list[int]:
    """A number made of each image's pixels: the same for an image in every batch, another for another image."""
    return [zlib.crc32(image.contiguous().view(torch.uint8).numpy().tobytes()) for image in images.detach().cpu()]


Images = Float[Tensor, "b c h w"]
Make = Callable[[Tensor, Size, int, int], Tensor]


@dataclass(frozen=True, eq=False)
class Fill:
    """What a masked patch is replaced by.

    Attributes:
        name: What a score names as its fill: "background", "own patches", "grey", "mean", "blur".
        make: `make(images (b, c, h, w), patch (height, width), draws, seed)` gives (m, b, c, h, w), whole images to
            take masked patches from: m is `draws`, or 1 where nothing is drawn.
    """

    name: str
    make: Make


AnyFill = Fill | Literal["mean"] | float | Sequence[float] | Tensor  # what a method takes, see `fill_of`


def from_background(background: Float[Tensor, "r c h w"]) -> Fill:
    """Every patch from a random background image, at the same position.

    Args:
        background: Images of the network's size, normalised like what it reads. Each position of each draw takes its
            patch from an image of its own, so patches that were shuffled by position serve as well.

    Raises:
        UsageError: If there is no image; `make` raises it if they are not of the images' size.
    """
    if not len(background):
        raise UsageError("a background fill needs at least one background image", "a folder of images as --background")

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        if background.shape[1:] != images.shape[1:]:
            raise UsageError(
                f"the background must have the shape {tuple(images.shape[1:])} of the images, got "
                f"{tuple(background.shape[1:])}",
                "background images that went through the model's preprocessing",
            )
        cut = cut_patches(background.to(images), patch)  # r p c ph pw
        generator = stream(seed, "donor")
        size = (_positive(draws), cut.shape[1])
        chosen = torch.randint(cut.shape[0], size, generator=generator, device="cpu").to(images.device)
        picked = cut[chosen, torch.arange(cut.shape[1], device=images.device)]
        made = join_patches(picked, grid_of((images.shape[2], images.shape[3]), patch))
        return made[:, None].expand(-1, images.shape[0], -1, -1, -1)

    return Fill("background", make)


def own_patches() -> Fill:
    """Every patch from a random other position of the same image.

    For when there is no background. It is not in distribution: a patch stands where it never stood, and it may carry
    the very evidence that was to be removed.
    """

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        cut, grid = cut_patches(images, patch), grid_of((images.shape[2], images.shape[3]), patch)
        positions = cut.shape[1]
        if positions < 2:
            raise UsageError("an image of one patch has no other patches", "from_background(background)")
        generator = stream(seed, "own patches")
        away = torch.randint(1, positions, (_positive(draws), positions), generator=generator, device="cpu")
        source = ((torch.arange(positions, device="cpu") + away) % positions).to(images.device)
        return torch.stack([join_patches(cut[:, one], grid) for one in source])

    return Fill("own patches", make)


def grey(level: float | Sequence[float] | Tensor, name: str = "grey") -> Fill:
    """One colour for all; or what else is known beforehand, such as another image.

    Args:
        level: The colour in the network's own units, after normalisation, one number or one for each channel; or a
            tensor that broadcasts to the images. Middle grey is `normalise(0.5)`; 0 is the mean colour of what the
            model was normalised by; and black, `normalise(0.0)`, is what Chefer et al. (2021) mask with (they mask
            before they normalise).
        name: What a score names as its fill, "black" for instance.
    """

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        return like_images("fill", level, images)[None]

    return Fill(name, make)


def mean_of_image() -> Fill:
    """The mean colour of the image itself, channel by channel; exact for an image of one colour."""

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        return exact(images).mean(dim=(2, 3), keepdim=True).to(images).expand_as(images)[None]

    return Fill("mean", make)


def blur(std: float = 1.0) -> Fill:
    """The image itself, blurred by a Gaussian.

    Args:
        std: Standard deviation of the Gaussian, in patches; at the border its weights are shared out among the
            pixels that there are.

    Raises:
        UsageError: If the standard deviation is not above 0.
    """
    if not std > 0:
        raise UsageError(f"a blur needs a standard deviation above 0, got {std}", "blur(1.0), one patch")

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        down, across = (_gaussian(images, axis, std * patch[axis]) for axis in (0, 1))
        return (down @ images @ across.T)[None]

    return Fill("blur", make)


def fill_of(value: AnyFill) -> Fill:
    """The fill of an option: one of these, the word "mean", or what `grey` takes.

    Raises:
        UsageError: If it is another word; what it makes refuses what does not fit the images.
    """
    match value:
        case Fill():
            return value
        case "mean":
            return mean_of_image()
        case str():
            raise UsageError(f"fill must be 'mean', numbers or a tensor, got {value!r}", "fill='mean'")
    return grey(value)


def like_images(name: str, value: float | Sequence[float] | Tensor, images: Images) -> Tensor:
    """What a caller gives in place of pixels, spread to the shape of the images.

    Args:
        name: Of the option, for the message.
        value: A number; one for each channel; or a tensor that broadcasts to the images, such as another image.
        images: (b, c, h, w).

    Raises:
        UsageError: If it does not fit the images.
    """
    try:
        values = torch.as_tensor(value, dtype=images.dtype, device=images.device)
        if values.shape == images.shape[1:2]:
            values = values[:, None, None]
        return values.broadcast_to(images.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = tuple(value.shape) if isinstance(value, Tensor) else value
        raise UsageError(
            f"{name} must be a number, one for each of {images.shape[1]} channels, or of the images' shape "
            f"{tuple(images.shape)}, got {shape!r}",
            f"{name}=0.0",
        ) from error


def _gaussian(images: Images, axis: int, std: float) -> Float[Tensor, "n n"]:
    """A matrix that blurs along one axis; every row sums to 1."""
    places = torch.arange(images.shape[2 + axis], dtype=torch.float64, device="cpu")
    weights = torch.exp(-((places[:, None] - places) ** 2) / (2 * std**2))
    return (weights / weights.sum(dim=1, keepdim=True)).to(images)


def _positive(count: int) -> int:
    if count < 1:
        raise UsageError(f"draws and batch sizes must be at least 1, got {count}", "10 draws, 64 images at a time")
    return count
