"""Is there evidence at all? A picture against two kinds of pictures that hold none.

    composites    put together of patches of many other pictures, each at its own place. Patch by patch they look like
                  the real thing, and show nothing, or pieces at most (`without_evidence` keeps the worst of them away).
    surrogates    of the picture's own colours and smoothness, with nothing arranged (`surrogates`).

A picture holds evidence when the explained number is exceptional among both: each kind makes up for what the other
lacks. A trained network knows patches like those of composites, and is not led astray by them as it may be by noise.
But patches of many pictures share no brightness, no colour and no smoothness, and a network that has learnt nothing
answers to just these: among composites alone, 40 to 65 % of photographs held "evidence" for networks with random
weights (benchmarks/LOG.md). Surrogates share them with the picture.

Each kind gives a p = (1 + those whose number is as high) / (1 + all); the larger one decides. A picture without
evidence is as high where its number for the class is, or for the class that stands at the same rank: the highest is
compared with the highest, since it was chosen among all, the second with the second. The class alone is not enough: of
a thousand classes, six in ten of those at ranks 101 to 200 of a photograph pass that (benchmarks/LOG.md).

References are few, and a new picture is like none of them. If every patch adds its own to the number, with variance s
over all pictures, then composites of r references have s (r - 1) / r around their mean, and a new picture has
s (r + 1) / r around it. So the composites' numbers are spread out by the root of (r + 1) / (r - 1) before they are
compared. Below ten references that correction is larger than a tenth, and too rough to build on.

Both are asked in rounds, until so many leave little doubt on which side of the limit a picture stands. Of pictures like
the others, 5.1 % pass a limit of 5 % in this way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.readout import wide
from vitrail.explain.scores.fill import Fill, donor, keys_of, logits_in_chunks, seed_of, stream
from vitrail.explain.scores.random_maps import in_order_of, turned
from vitrail.explain.target import Aim
from vitrail.explain.verdict import EVIDENCE
from vitrail.nn import ViT
from vitrail.nn.vit import Images

FEWEST = 10  # references
COMPOSITES = (99, 199, 299, 399, 499)  # after each round; they serve all pictures of a call
SURROGATES = (59, 119, 239, 499)  # after each round; each picture has its own
DOUBT = 0.05  # chance of a number as low, or as high, at the limit itself, up to which a round is the last
VALUES = 3_000_000  # of the pictures that are made and go through the network at a time: 19 of 3 x 224 x 224
SHARE = 0.1  # of a reference's squares, those that an explanation names, are not lent
REFERENCES_AT_A_TIME = 16  # that are explained


@dataclass(frozen=True, eq=False)
class Evidence:
    """Whether pictures hold evidence; one entry for each, on the CPU.

    Attributes:
        p: (b,), the larger of both; nan where it could not be asked.
        composites: (b,), with how many composites each was compared; 0 where it could not be asked.
        surrogates: (b,), with how many surrogates; 0 where composites alone reached it too often.
    """

    p: Float[Tensor, "b"]
    composites: Int[Tensor, "b"]
    surrogates: Int[Tensor, "b"]


def at_a_time(images: Images) -> int:
    """How many pictures of this size go through a network together: at most 64, fewer where they are large."""
    return max(1, min(64, VALUES // images.shape[1:].numel()))


def explained(logits: Float[Tensor, "*m b v"], aim: Aim) -> Float[Tensor, "*m b"]:
    """The number that is scored: the aim's, where a class's logit counts from the mean of all logits.

    Softmax does not change when a constant is added to all logits, so a logit by itself says nothing; a difference of
    two does, and a function of the caller's is taken as it is.
    """
    return aim.of(_counted(logits, aim))


def _counted(logits: Float[Tensor, "*m b v"], aim: Aim) -> Float[Tensor, "*m b v"]:
    """Logits from where the aim counts them: from their mean where one class stands alone."""
    alone = aim.rather_than is None and aim.function is None and logits.shape[-1] > 1
    return logits - logits.mean(dim=-1, keepdim=True) if alone else logits


def different(references: Float[Tensor, "r c h w"]) -> int:
    """How many of the references are not copies of another."""
    return len(set(keys_of(references)))


@torch.no_grad()
def find_evidence(
    network: ViT, images: Images, aim: Aim, lent: Float[Tensor, "r c h w"] | None, seed: int = 0
) -> Evidence:
    """Ask of each picture whether it holds evidence for what is explained.

    Args:
        network: In eval mode.
        images: (b, c, h, w), as the network reads them.
        aim: What is explained of them.
        lent: References that lend their patches. With fewer than ten that differ, the question is not asked.
        seed: Decides composites and surrogates.
    """
    nothing = torch.zeros(len(images), dtype=torch.long, device="cpu")
    references = 0 if lent is None else different(lent)
    if lent is None or references < FEWEST:
        return Evidence(torch.full(nothing.shape, torch.nan, dtype=torch.float64, device="cpu"), nothing, nothing)
    logits = wide(logits_in_chunks(network, images[None], at_a_time(images))[0])
    p, composites = _among_composites(network, images, logits, aim, lent, references, seed)
    surrogates_asked = nothing.clone()
    for picture in (p <= EVIDENCE).nonzero()[:, 0].tolist():
        one = slice(picture, picture + 1)
        own, count = _among_surrogates(network, images[one], logits[one], aim.select(one), seed)
        p[picture], surrogates_asked[picture] = max(own, float(p[picture])), count
    return Evidence(p, composites, surrogates_asked)


def _among_composites(
    network: ViT, images: Images, logits: Tensor, aim: Aim, lent: Tensor, references: int, seed: int
) -> tuple[Float[Tensor, "b"], Int[Tensor, "b"]]:
    fill, without = donor(lent), logits[:0]
    p = torch.ones(len(images), dtype=torch.float64, device="cpu")
    asked = torch.zeros(len(images), dtype=torch.long, device="cpu")
    open_ = torch.ones_like(p, dtype=torch.bool)
    for count in COMPOSITES:
        more = composites_of(network, images, fill, range(len(without), count), seed)
        without = torch.cat([without, more])
        above = as_high(logits, aim, without, references)
        p, asked = torch.where(open_, ranked(above, count), p), torch.where(open_, count, asked)
        open_ = open_ & ~settled(above, count)
        if not open_.any():
            break
    return p, asked


def _among_surrogates(network: ViT, image: Images, logits: Tensor, aim: Aim, seed: int) -> tuple[float, int]:
    key, above, asked = keys_of(image)[0], torch.zeros(1, dtype=torch.long, device="cpu"), 0
    for count in SURROGATES:
        while asked < count:
            some = min(at_a_time(image[:1]), count - asked)
            made = surrogates(image[0], some, seed_of(seed, "surrogates", asked), key)
            above = above + as_high(logits, aim, wide(logits_in_chunks(network, made[None], len(made))[0]))
            asked += len(made)
        if bool(settled(above, asked)):
            break
    return float(ranked(above, asked)), asked


@torch.no_grad()
def composites_of(
    network: ViT, images: Images, fill: Fill, numbers: Sequence[int], seed: int
) -> Float[Tensor, "count v"]:
    """Logits of pictures put together of patches, of the size of `images`; the same for all of them.

    Args:
        network: In eval mode.
        images: Any pictures of that size.
        fill: One that is in distribution: its fillers are the pictures.
        numbers: Which ones.
        seed: The same seed gives the same composites.
    """
    assert fill.in_distribution
    rows, columns = network.grid(images)
    patch = (images.shape[2] // rows, images.shape[3] // columns)
    parts = []
    for first in range(0, len(numbers), at_a_time(images)):
        some = numbers[first : first + at_a_time(images)]
        made = fill.make(images[:1], patch, len(some), seed_of(seed, "composites", some[0]))
        parts.append(wide(logits_in_chunks(network, made, len(some))[:, 0]))
    return torch.cat(parts)


def as_high(
    logits: Float[Tensor, "b v"], aim: Aim, without: Float[Tensor, "count v"], references: int | None = None
) -> Int[Tensor, "b"]:
    """How many pictures without evidence reach each picture's number; on the CPU.

    Args:
        logits: Of the pictures.
        aim: What is explained of them.
        without: Logits of pictures that hold no evidence.
        references: Of how many pictures they are put together; None where they are not.
    """
    own = explained(logits, aim)
    if aim.function is not None:
        theirs = aim.of(without)[:, None].expand(-1, len(logits))  # (count, b)
    else:
        counted, against = _counted(without, aim), 0.0 if aim.rather_than is None else without[:, aim.rather_than]
        place = (logits > logits.gather(1, aim.target[:, None])).sum(dim=1)  # 0 of the highest
        at_its_rank = counted.sort(dim=1, descending=True).values[:, place]
        theirs = torch.maximum(counted[:, aim.target], at_its_rank) - against
    if references is not None:
        mean = theirs.mean(dim=0)
        theirs = mean + (theirs - mean) * ((references + 1) / (references - 1)) ** 0.5
    return (~(theirs < own)).sum(dim=0).cpu()  # what is no number counts as high


def ranked(above: Int[Tensor, "b"], count: int) -> Float[Tensor, "b"]:
    """p of so many out of `count` that reach the picture's number."""
    return (1 + above).double() / (1 + count)


def settled(above: Int[Tensor, "b"], count: int) -> Bool[Tensor, "b"]:
    """Whether so few, or so many, of `count` are rare where the share is the limit itself."""
    few, many = _bounds(count)
    return (above <= few) | (above >= many)


@cache
def _bounds(count: int) -> tuple[int, int]:
    """The most that are rarely that few, and the least that are rarely that many; rare is a chance of `DOUBT`."""
    below, few, many = 0.0, -1, count + 1
    for number in range(count + 1):
        chance = math.comb(count, number) * EVIDENCE**number * (1 - EVIDENCE) ** (count - number)
        if 1 - below <= DOUBT:
            many = number
            break
        below += chance
        if below <= DOUBT:
            few = number
    return few, many


@torch.no_grad()
def surrogates(image: Float[Tensor, "c h w"], count: int, seed: int, key: int) -> Float[Tensor, "count c h w"]:
    """Pictures with the colours and the smoothness of a given picture, in which nothing is arranged.

    The phases of a picture's Fourier transform hold what stands where; the amplitudes hold how smooth it is. A
    surrogate keeps the amplitudes and draws the phases anew, the same turn for all channels, so that colours stay
    together. Then the picture's own values are put back in the order of the result: brightness, contrast and every grey
    value are the picture's (Theiler, Eubank, Longtin, Galdrikian and Farmer, "Testing for nonlinearity in time series:
    the method of surrogate data", Physica D 1992). The maps that a map is compared with are made alike
    (`scores/random_maps.py`).

    Measured on photographs, digits and planted pictures: putting the values back once is enough. Refining by turns, as
    random maps are refined, changed nothing in what networks say of them, and cost five times as much.

    Args:
        image: As the network reads it.
        count: How many.
        seed: Decides the phases, with the key.
        key: Of the picture, see `keys_of`.

    Returns:
        (count, c, h, w): each channel of each holds exactly the values of that channel of the picture.
    """
    random, full = stream(seed, "surrogates", key), wide(image)  # no Fourier transform is made in half precision
    noise = torch.randn((count, 1, *image.shape[1:]), generator=random, device="cpu").to(full)
    return in_order_of(turned(full, noise), image.flatten(1).sort(dim=1).values.expand(count, -1, -1))


def without_evidence(
    network: ViT, images: Float[Tensor, "r c h w"], references: UInt8[Tensor, "r c h w"], seed: int = 0
) -> UInt8[Tensor, "r c h w"]:
    """The references, with the patches that the network's explanation names replaced by those of others.

    References are put together of patches of many training pictures, each at its own place. Some of these patches still
    show a piece of what the network looks for, and a test against such pictures finds less evidence than there is. So
    the tenth of the squares of each reference that the network's own explanation names is not lent: another reference's
    patch, from the same place, stands there instead. It is done once, by the trained network, and stored; a network
    whose weights are scrambled later meets the same references, and is not helped by a choice that another network
    made.

    Args:
        network: In eval mode, trained.
        images: The references as the network reads them.
        references: The same, values 0..255.
        seed: Decides which reference stands in.

    Returns:
        As many references; every patch is still where it stood in a training picture.
    """
    if len(references) < 2:  # a patch needs another to stand in for it
        return references
    values = torch.cat([generic_attention(network, some).values for some in images.split(REFERENCES_AT_A_TIME)]).cpu()
    _, rows, columns = values.shape
    flat = values.flatten(1)
    first = flat.argsort(dim=1, descending=True)[:, : max(1, round(SHARE * rows * columns))]
    named = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, first, True)
    named &= flat > flat.amin(dim=1, keepdim=True)  # a map without signal names nothing
    lent, (down, across) = references.clone(), (references.shape[2] // rows, references.shape[3] // columns)
    random = stream(seed, "lending")
    for square in range(rows * columns):
        clean = (~named[:, square]).nonzero()[:, 0]
        if not len(clean):
            continue
        row, column = divmod(square, columns)
        place = (..., slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across))
        for reference in named[:, square].nonzero()[:, 0].tolist():
            other = int(clean[torch.randint(len(clean), (1,), generator=random, device="cpu")])
            lent[reference][place] = references[other][place]
    return lent
