"""The engine that masks patches and runs the network again: (image, mask, fill), in one queue of full batches.

    fill = from_background(background)                                       # (r, c, h, w), like images of training
    filled = fill.make(images, patch, draws, seed)                           # (m, b, c, h, w), whole images
    hidden = ranks_of(values, draws, seed, keys_of(images)) < 10             # (m, b, rows, columns), the ten largest
    (numbers,) = measure_masked(network, images, chosen, hidden, filled)     # (m, b), of the explained class

Whatever masks patches uses it: the verdict, deletion and insertion and their like, occlusion, RISE, KernelSHAP. They
differ in which masks they make and in what they make of the numbers. A mask is True where a patch is hidden; one of
numbers from 0 (seen) to 1 (hidden) mixes image and fill.

A score that masks patches depends as much on what stands in their place, the *fill*, as on the map: with a grey or a
blurred fill a map can do better than the truth itself, because grey patches are evidence too. So the fill is always
named, and the one that may be trusted is *background*: the patch of another image at the same position, which the
network knows such images by. All images here are as the network reads them, after the model's normalisation.

Every random choice comes from the seed and the draw alone, so that an image gets the same filler in every batch. Two
generators with the same seed give the same bits. So where one seed serves several uses, or several images, each draws
from a stream of its own, here and in all that is tested and scored. What draws one thing for all images takes the
seed as it is: SmoothGrad's noise, RISE's masks, KernelSHAP's sets, the weights of a scrambled network, and the noise
that the sanity checks look at.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.data.background import patchwork
from vitrail.errors import UsageError, check_count
from vitrail.explain.forward import WithGrid, check_eval, to_float64
from vitrail.jobs.precision import Precision, check_precision
from vitrail.nn import in_bf16
from vitrail.nn.embedding import Size, grid_of
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images
from vitrail.tasks.target import ChosenTarget

VALUES = 3_000_000  # of the images that are made and go through the network at a time: 19 of 3 x 224 x 224

Measure = Literal["centred", "logit", "probability"]
Masks = Bool[Tensor, "*m gh gw"] | Float[Tensor, "*m gh gw"]
Make = Callable[[Tensor, Size, int, int], Tensor]


def stream(seed: int, use: str, key: int = 0) -> torch.Generator:
    """A generator that depends on the seed, the use and a key; on the CPU, so that all devices see the same numbers."""
    return torch.Generator().manual_seed(seed_of(seed, use, key))


def seed_of(seed: int, use: str, key: int = 0) -> int:
    """The seed of that stream, to hand to what takes one: for the draw of a number, or for one part of a whole."""
    return zlib.crc32(f"{use} {seed} {key}".encode())


def keys_of(images: Float[Tensor, "b c h w"]) -> list[int]:
    """A number made of each image's pixels: the same for an image in every batch, another for another image."""
    return [zlib.crc32(image.contiguous().view(torch.uint8).numpy().tobytes()) for image in images.detach().cpu()]


# ---- what stands in masked patches


@dataclass(frozen=True, eq=False)
class Fill:
    """What a masked patch is replaced by.

    Attributes:
        name: What a score names as its fill: "background", "own patches", "grey", "mean".
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
        size = draws, *grid_of((images.shape[2], images.shape[3]), patch)
        check_count("draws", draws, 10)
        whose = torch.randint(len(background), size, generator=stream(seed, "donor"), device="cpu")
        made = patchwork(background.to(images), whose.to(images.device))
        return made[:, None].expand(-1, images.shape[0], -1, -1, -1)

    return Fill("background", make)


def own_patches() -> Fill:
    """Every patch from a random other position of the same image.

    For when there is no background. It is not in distribution: a patch stands where it never stood, and it may carry
    the very evidence that was to be removed.
    """

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        positions = math.prod(grid_of((images.shape[2], images.shape[3]), patch))
        if positions < 2:
            raise UsageError("an image of one patch has no other patches", "from_background(background)")
        check_count("draws", draws, 10)
        away = torch.randint(1, positions, (draws, positions), generator=stream(seed, "own patches"), device="cpu")
        source = ((torch.arange(positions, device="cpu") + away) % positions).to(images.device)
        cut = F.unfold(images, patch, stride=patch)  # b (c ph pw) p
        return torch.stack([F.fold(cut[..., one], images.shape[2:], patch, stride=patch) for one in source])

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
        return to_float64(images).mean(dim=(2, 3), keepdim=True).to(images).expand_as(images)[None]

    return Fill("mean", make)


def fill_of(value: AnyFill) -> Fill:
    """The fill of an option: one of these, the word "mean", or what `grey` takes.

    Raises:
        UsageError: If it is another word; what it makes refuses what does not fit the images.
    """
    match value:
        case Fill():
            return value
        case str() if value == "mean":
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


# ---- masks, the queue, and the numbers that are read


def ranks_of(
    values: Float[Tensor, "b rows columns"], draws: int, seed: int, keys: Sequence[int]
) -> Int[Tensor, "m b rows columns"]:
    """The place of each patch when patches are put in order, 0 for the largest value.

    Patches of equal value come in random order, another for each draw and each image, so that a constant attribution is
    a random one. (One order for all images would not average out over them: on the digits lab, a constant attribution
    was then off by up to 0.2, where random ones are at 0 and the truth at 1, at 10 draws and any number of images.)

    Args:
        values: Attributions.
        draws: How many orders for each.
        seed: Decides the orders, with the keys.
        keys: A number for each image, see `keys_of`: it has the same order in every batch.
    """
    flat = values.flatten(1)
    random = [stream(seed, "equals", key) for key in keys]
    shuffles = [[torch.randperm(flat.shape[1], generator=one, device="cpu") for one in random] for _ in range(draws)]
    mixed = torch.stack([torch.stack(draw) for draw in shuffles]).to(flat.device)  # m b p
    order = mixed.gather(2, flat.expand(draws, -1, -1).gather(2, mixed).argsort(dim=2, descending=True, stable=True))
    places = torch.arange(flat.shape[1], dtype=torch.int32, device=flat.device).expand_as(order)
    ranks = torch.empty_like(places, memory_format=torch.contiguous_format).scatter_(2, order, places)
    return ranks.unflatten(2, values.shape[1:])


def composite(images: Images, fill: Float[Tensor, "*f c h w"], mask: Masks, patch: Size) -> Float[Tensor, "..."]:
    """Images with some patches masked, (*x, b, c, h, w).

    Args:
        images: (b, c, h, w).
        fill: (*f, b, c, h, w), what stands in masked patches.
        mask: (*m, b, gh, gw), which patches are hidden. The leading axes of fill and mask broadcast.
        patch: (height, width) in pixels; (1, 1) masks single pixels.
    """
    pixels = mask.repeat_interleave(patch[0], dim=-2).repeat_interleave(patch[1], dim=-1).unsqueeze(-3)
    if pixels.dtype == torch.bool:
        return torch.where(pixels, fill, images)
    return torch.lerp(wide(images), wide(fill), pixels.to(wide(images)))  # exact at 0, at 1, and of equals


def at_a_time(images: Images) -> int:
    """How many images of this size go through a network together: at most 64, fewer where they are large."""
    return max(1, min(64, VALUES // images.shape[1:].numel()))


def in_precision(network: WithGrid, precision: Precision) -> WithGrid:
    """The network as it is, or a copy that multiplies in bfloat16."""
    check_precision(precision, network)
    return network if precision == "fp32" else in_bf16(network)


def batches_of_logits(
    network: nn.Module, count: int, make: Callable[[Int[Tensor, "n"]], Images], batch_size: int
) -> Iterator[tuple[Int[Tensor, "n"], Float[Tensor, "n v"]]]:
    """The queue: the logits of `count` images, which are made as they are needed, in full batches.

    Args:
        network: In eval mode.
        count: How many images.
        make: Gives those with these numbers, in order; they are brought to the precision of the network's weights.
        batch_size: How many run at once.

    Yields:
        The numbers of a batch, and their logits in at least float32.

    Raises:
        UsageError: If the network is in training mode, where its answers are random, or the batch size below 1.
    """
    check_eval(network, "a score")
    check_count("batch_size", batch_size, 64)
    precision = next((weight.dtype for weight in network.parameters()), None)
    for some in torch.arange(count, device="cpu").split(batch_size):
        made = make(some)
        with torch.no_grad():
            yield some, wide(network(made if precision is None else made.to(precision)))


def compute_logits(
    network: nn.Module, count: int, make: Callable[[Int[Tensor, "n"]], Images], batch_size: int
) -> Float[Tensor, "count v"]:
    """All that the queue answers, see `batches_of_logits`."""
    return torch.cat([logits for _, logits in batches_of_logits(network, count, make, batch_size)])


@torch.no_grad()
def measure_masked(
    network: nn.Module,
    images: Images,
    chosen: ChosenTarget,
    masks: Masks,
    fills: Float[Tensor, "*f c h w"],
    measures: Sequence[Measure] = ("centred",),
    batch_size: int | None = None,
) -> Float[Tensor, "measures *x b"]:
    """What is explained of the images under each mask, with each fill.

    Args:
        network: In eval mode.
        images: (b, c, h, w).
        chosen: What is explained of them.
        masks: (*m, b, rows, columns), which patches are hidden, on any grid that divides the images.
        fills: (*f, b, c, h, w), what stands there. Leading axes of masks and fills broadcast, also b of 1.
        measures: Which forms of the number, see `explained_number`.
        batch_size: How many masked images run at once; by their size when None.

    Returns:
        (measures, *x, b): the numbers of each measure, as the leading axes broadcast.
    """
    # torch's own function imports what compiles, which takes a second
    shape = torch.Size(np.broadcast_shapes(masks.shape[:-2], fills.shape[:-3], images.shape[:1]))
    patch = (images.shape[2] // masks.shape[-2], images.shape[3] // masks.shape[-1])

    def make(some: Tensor) -> Tensor:
        at = torch.unravel_index(some.to(images.device), shape)
        return composite(images[at[-1]], _take(fills, at, 3), _take(masks, at, 2), patch)

    found = []
    for some, logits in batches_of_logits(
        network, shape.numel(), make, at_a_time(images) if batch_size is None else batch_size
    ):
        of = chosen.select((some % len(images)).to(chosen.target.device) if len(images) else slice(0))
        found.append(torch.stack([explained_number(logits, of, measure) for measure in measures]))
    return torch.cat(found, dim=1).view(len(measures), *shape)


def _take(values: Tensor, at: Sequence[Tensor], inner: int) -> Tensor:
    """Entries of a tensor whose axes but for the `inner` last ones broadcast."""
    outer = values.shape[:-inner]
    return values[tuple(one * (size > 1) for one, size in zip(at[len(at) - len(outer) :], outer, strict=True))]


def explained_number(
    outputs: Float[Tensor, "*m b v"], chosen: ChosenTarget, measure: Measure = "centred"
) -> Float[Tensor, "*m b"]:
    """The number that is explained, in at least float32.

    Args:
        outputs: Of the same images; axes may stand before them.
        chosen: What is explained of them.
        measure: "logit", the target's own number; "centred", the same from where it counts (`ChosenTarget.counted`);
            "probability" of the target.
    """
    outputs = wide(outputs)
    match measure:
        case "logit":
            return chosen(outputs)
        case "centred":
            return chosen.counted(outputs)
    return chosen.probability(outputs)
