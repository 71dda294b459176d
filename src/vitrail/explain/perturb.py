"""The engine that masks patches and runs the network again: (image, mask, fill), in one queue of full batches.

    hidden = ranks_of(values, draws, seed, keys_of(images)) < 10         # (m, b, rows, columns), the ten largest
    filled = fill.make(images, patch, draws, seed)                       # (m, b, c, h, w), what stands in their place
    (numbers,) = measure_masked(network, images, chosen, hidden, filled)     # (m, b), of the explained class

Whatever masks patches uses it: the verdict, deletion and insertion and their like, occlusion, RISE, KernelSHAP. They
differ in which masks they make (`scores/fill.py` has what fills them) and in what they make of the numbers. A mask is
True where a patch is hidden; one of numbers from 0 (seen) to 1 (hidden) mixes image and fill.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.forward import check_eval
from vitrail.explain.methods.method import check_count
from vitrail.explain.scores.fill import stream
from vitrail.explain.target import FUNCTION, ChosenTarget
from vitrail.nn import ViT, in_bf16
from vitrail.nn.embedding import Size
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images

VALUES = 3_000_000  # of the images that are made and go through the network at a time: 19 of 3 x 224 x 224

Precision = Literal["fp32", "bf16"]
Measure = Literal["centred", "logit", "probability", "top-1"]
Masks = Bool[Tensor, "*m gh gw"] | Float[Tensor, "*m gh gw"]


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


def in_precision(network: ViT, precision: Precision) -> ViT:
    """The network as it is, or a copy that multiplies in bfloat16."""
    if precision not in get_args(Precision):
        raise UsageError(
            f"precision must be auto, {' or '.join(get_args(Precision))}, got '{precision}'", "precision='auto'"
        )
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


def logits_of(
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
    shape = torch.broadcast_shapes(masks.shape[:-2], fills.shape[:-3], images.shape[:1])
    patch = (images.shape[2] // masks.shape[-2], images.shape[3] // masks.shape[-1])

    def make(some: Tensor) -> Tensor:
        at = torch.unravel_index(some.to(images.device), shape)
        return composite(images[at[-1]], _taken(fills, at, 3), _taken(masks, at, 2), patch)

    found = []
    for some, logits in batches_of_logits(
        network, shape.numel(), make, at_a_time(images) if batch_size is None else batch_size
    ):
        of = chosen.select((some % len(images)).to(chosen.target.device) if len(images) else slice(0))
        found.append(torch.stack([explained_number(logits, of, measure) for measure in measures]))
    return torch.cat(found, dim=1).view(len(measures), *shape)


def _taken(values: Tensor, at: Sequence[Tensor], inner: int) -> Tensor:
    """Entries of a tensor whose axes but for the `inner` last ones broadcast."""
    outer = values.shape[:-inner]
    return values[tuple(one * (size > 1) for one, size in zip(at[len(at) - len(outer) :], outer, strict=True))]


def explained_number(
    logits: Float[Tensor, "*m b v"], chosen: ChosenTarget, measure: Measure = "centred"
) -> Float[Tensor, "*m b"]:
    """The number that is explained, in at least float32.

    Args:
        logits: Of the same images; axes may stand before them.
        chosen: What is explained of them.
        measure: "logit", the target's own number; "centred", the same, where a class's logit counts from the mean of
            all logits (softmax does not change when a constant is added to all, so a logit by itself means nothing; a
            difference of two does, and a function is taken as it is); "probability" of the class, of a contrast that
            of the first among the two, nan of a function and of a network with one output; "top-1", 1 where the class
            has the largest logit.
    """
    logits = wide(logits)
    match measure:
        case "logit":
            return chosen.of(logits)
        case "centred":
            return chosen.of(centred(logits, chosen))
        case "top-1":
            return (logits.argmax(dim=-1) == chosen.target).to(logits)
    if has_no_probability(logits, chosen):
        return torch.full(logits.shape[:-1], torch.nan, device=logits.device)
    return chosen.of(logits.softmax(dim=-1)) if chosen.contrast is None else chosen.of(logits).sigmoid()


def centred(logits: Float[Tensor, "*m b v"], chosen: ChosenTarget) -> Float[Tensor, "*m b v"]:
    """Logits from where the target counts them: from their mean where one class stands alone."""
    alone = chosen.contrast is None and chosen.function is None and logits.shape[-1] > 1
    return logits - logits.mean(dim=-1, keepdim=True) if alone else logits


def has_no_probability(logits: Float[Tensor, "*m b v"], chosen: ChosenTarget) -> bool:
    """Whether a function of the logits is explained, or there is no second output."""
    return chosen.function is not None or bool((chosen.target == FUNCTION).any()) or logits.shape[-1] == 1
