"""Is there evidence at all? An image against two kinds of images that hold none.

    composites    put together of patches of many other images, each at its own place. Patch by patch they look like
                  the real thing, and show nothing, or pieces at most (`without_evidence` keeps the worst of them away).
    surrogates    of the image's own colours and smoothness, with nothing arranged (`surrogates`).

An image holds evidence when the explained number is exceptional among both: each kind makes up for what the other
lacks. A trained network knows patches like those of composites, and is not led astray by them as it may be by noise.
But patches of many images share no brightness, no colour and no smoothness, and a network that has learnt nothing
answers to just these: among composites alone, 40 to 65 % of photographs held "evidence" for networks with random
weights (benchmarks/LOG.md). Surrogates share them with the image.

Each kind gives a p = (1 + those whose number is as high) / (1 + all); the larger one decides. An image without
evidence is as high where its number for the class is, or for the class that stands at the same rank: the highest is
compared with the highest, since it was chosen among all, the second with the second. The class alone is not enough: of
a thousand classes, six in ten of those at ranks 101 to 200 of a photograph pass that (benchmarks/LOG.md).

Rare is not much. A network whose blocks are shuffled gives its favourite of a thousand classes a probability of a
tenth, and some photographs raise that by a trifle that no composite reaches. So an image must also have an effect: its
odds of the class, over those of the middle composite, are at least as many times as high as there are classes; of many
classes that takes a blind guess to even odds. Of an ImageNet network that is 1,000 times, and its photographs raise
them 700,000 times (the median); with half of its blocks shuffled, three times (benchmarks/LOG.md).

One class rather than another needs more than the one: there has to be evidence for it by itself, as above, and the
difference of the two has to be exceptional, too. A composite reaches it by its own difference of these classes, or of
those at the same two ranks.

How alike two images are has an effect of its own: the cosine of their features lies a quarter or more above the median
composite's. A network that is half shuffled finds any two images alike, so a photograph's cosine may be exceptional
there, and is hardly higher. Any other number has no scale on which a rise would be large or small: only the rank
counts, and the verdict on a map of it is "weak" at best.

Background images are few, and a new image is like none of them. If every patch adds its own to the number, with
variance s over all images, then composites of r background images have s (r - 1) / r around their mean, and a new image
has s (r + 1) / r around it. So the composites' numbers are spread out by the root of (r + 1) / (r - 1) before they are
compared. Below ten of them that correction is larger than a tenth, and too rough to build on.

Surrogates are an image's own, and are made in rounds, only as long as their number leaves it open on which side of the
limit the image stands. Of images that are like their surrogates, 5.1 % pass the limit of 5 % in this way, however many
rounds it takes (a test counts it exactly).

Composites serve all images of a network, so all of them are made at once, and stored:

    RUN/model/composites.safetensors               of a trained model, beside its background
    ~/.cache/vitrail/composites/KEY.safetensors    of all others: of a background of one's own, of another precision

In a file their logits have a name made of all that decides them (`key_of`): the network and its numbers, the
background, the size of the images, the seed and the precision. What is stored of anything else has another name, and is
never taken. The name in the cache is made of torch and of the processor or GPU as well; what a model carries is the
same wherever it is opened.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitrail.data.background import FEW, patchwork
from vitrail.data.tensor_files import read_tensors, write_tensors
from vitrail.errors import DataError, UsageError
from vitrail.explain.forward import WithGrid
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.scores.chance import in_order_of, turn_phases
from vitrail.explain.scores.faithfulness import MaskedImages
from vitrail.explain.scores.perturb import (
    Precision,
    at_a_time,
    compute_logits,
    from_background,
    in_precision,
    keys_of,
    seed_of,
    stream,
)
from vitrail.io import user_cache
from vitrail.jobs.precision import choose_precision_for
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.nn.networks import weights_hash
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images
from vitrail.runtime import device_name
from vitrail.tasks.target import ChosenTarget, Unit
from vitrail.text import ShortRepr

EVIDENCE = 0.05  # the limit of p
SURROGATES = (29, 59, 119, 239, 499)  # after each round
RARE = (0, 0, 1, 5, 24)  # so few of them that are as high are the end of it: the number is exceptional
OFTEN = (3, 4, 7, 18, 25)  # and so many: it is not
COMPOSITES = 499  # of a network, once
MOST_OF_TRAINING, PASSES = 0.1, 3  # composites of a training's passes; of these, for a sample
CHOSEN = 16  # background images by which a precision is chosen
REPLACED = 0.1  # fraction of a background image's patches


@dataclass(frozen=True, eq=False, repr=False)
class Evidence(ShortRepr):
    """Whether images hold evidence; one entry for each, on the CPU.

    Attributes:
        p: (b,), of "is there evidence?", the larger of both; nan where unknown.
        composites: (b,), with how many composites each was compared; 0 where with none.
        surrogates: (b,), with how many surrogates; 0 where composites alone settled it.
        effect: (b,), by how much the image raises the log-odds of the class, or the cosine of a similarity, over the
            median composite; nan of any other number, and where unknown.
        minimum_effect: (b,), from how much on there is evidence; nan where only the rank counts.
        effect_unit: Of both; None where there is none.
        reached: (b,), how many of the images of the last kind that it was compared with are as high.
        reached_itself: (b,), how many of these by the explained class itself, and not only by the one at its rank.
    """

    p: Float[Tensor, "b"]
    composites: Int[Tensor, "b"]
    surrogates: Int[Tensor, "b"]
    effect: Float[Tensor, "b"]
    minimum_effect: Float[Tensor, "b"]
    effect_unit: Unit | None
    reached: Int[Tensor, "b"]
    reached_itself: Int[Tensor, "b"]

    @property
    def found(self) -> Bool[Tensor, "b"]:
        """Whether there is evidence: the number is exceptional, and the effect no smaller than the least."""
        return (self.p <= EVIDENCE) & large_enough(self.effect, self.minimum_effect)

    def select(self, images: Sequence[int]) -> "Evidence":
        """The same of some of the images."""
        return replace(self, **{name: each[images] for name, each in vars(self).items() if isinstance(each, Tensor)})


def large_enough(effect: Float[Tensor, "b"], least: Float[Tensor, "b"]) -> Bool[Tensor, "b"]:
    """Whether each effect reaches its least one; what is not finite does not, unless there is none."""
    return least.isnan() | (effect >= least)


@torch.no_grad()
def find_evidence(masked: MaskedImages, without: Float[Tensor, "count v"] | None, distinct: int) -> Evidence:
    """Find out of each image whether it holds evidence for what is explained.

    Args:
        masked: The images, whose seed decides the surrogates.
        without: Logits of composites; None where there are too few background images for them: the answer is unknown.
        distinct: Of how many images the composites are put together.
    """
    logits, chosen = masked.logits, masked.chosen
    nothing = torch.zeros(len(logits), dtype=torch.long, device="cpu")
    if without is None:
        unknown = torch.full(nothing.shape, torch.nan, dtype=torch.float64, device="cpu")
        return Evidence(unknown, nothing, nothing, unknown, unknown, None, nothing, nothing)
    above, itself = as_high(logits, chosen, without, distinct), chosen.as_high_itself(wide(logits), without, distinct)
    p = (1 + above).double() / (1 + len(without))
    effect, composites = chosen.effect(logits, without), torch.full_like(nothing, len(without))
    least = torch.as_tensor(math.nan if chosen.least is None else chosen.least, dtype=torch.float64, device="cpu")
    least = least.expand(len(logits)).clone()
    found = Evidence(p, composites, nothing, effect, least, chosen.unit, above, itself.sum(dim=0).cpu())
    some = found.found.nonzero()[:, 0]
    if len(some):  # they are held against surrogates, too
        above, itself, found.surrogates[some] = _among_surrogates(masked.select(some.to(logits.device)))
        found.reached[some], found.reached_itself[some] = above, itself
        found.p[some] = torch.maximum((1 + above).double() / (1 + found.surrogates[some]), p[some])
    return found


def _among_surrogates(masked: MaskedImages) -> tuple[Int[Tensor, "b"], Int[Tensor, "b"], Int[Tensor, "b"]]:
    """How many surrogates of each image are as high, how many of these by the class itself, and of how many.

    In each round all open images share one queue.
    """
    images, logits, chosen = masked.images, masked.logits, masked.chosen
    keys, at_once = keys_of(images), at_a_time(images)
    above, itself, compared = (torch.zeros(len(images), dtype=torch.long, device="cpu") for _ in range(3))
    pending, before = list(range(len(images))), 0
    first = [keys.index(key) for key in keys]  # an image that is asked for several labels has its surrogates once
    for round_, count in enumerate(SURROGATES):

        def drawn(image: int, first: int = before, last: int = count) -> Iterator[Tensor]:
            for number in range(first, last, at_once):
                some = min(at_once, last - number)
                yield from surrogates(images[image], some, seed_of(masked.seed, "surrogates", number), keys[image])

        drawing = list(dict.fromkeys(first[image] for image in pending))
        queue = chain.from_iterable(map(drawn, drawing))
        found = compute_logits(
            masked.network,
            len(drawing) * (count - before),
            lambda some, queue=queue: torch.stack(list(islice(queue, len(some)))),
            at_once,
        )
        of = dict(zip(drawing, found.chunk(len(drawing)), strict=True))
        for image in pending:
            theirs = of[first[image]]
            one = slice(image, image + 1)
            above[image] += int(as_high(logits[one], chosen.select(one), theirs))
            itself[image] += int(chosen.select(one).as_high_itself(wide(logits[one]), theirs, None).sum())
            compared[image] = count
        pending, before = [image for image in pending if not is_decided(int(above[image]), round_)], count
        if not pending:
            break
    return above, itself, compared


def as_high(
    logits: Float[Tensor, "b v"], chosen: ChosenTarget, without: Float[Tensor, "count v"], distinct: int | None = None
) -> Int[Tensor, "b"]:
    """How many images without evidence reach each image's number; on the CPU.

    Args:
        logits: Of the images.
        chosen: What is explained of them.
        without: Logits of images that hold no evidence.
        distinct: Of how many images they are put together; None where they are not.
    """
    return chosen.as_high(wide(logits), without, distinct).sum(dim=0).cpu()


def is_decided(above: int, round_: int) -> bool:
    """Whether so many surrogates that are as high, after so many rounds, are the end of it."""
    return above <= RARE[round_] or above >= OFTEN[round_]


@torch.no_grad()
def surrogates(image: Float[Tensor, "c h w"], count: int, seed: int, key: int) -> Float[Tensor, "count c h w"]:
    """Images with the colours and the smoothness of an image, in which nothing is arranged.

    The phases of an image's Fourier transform hold what stands where; the amplitudes hold how smooth it is. A
    surrogate keeps the amplitudes and draws the phases anew, the same turn for all channels, so that colours stay
    together. Then the image's own values are put back in the order of the result: brightness, contrast and every grey
    value are the image's (Theiler, Eubank, Longtin, Galdrikian and Farmer, "Testing for nonlinearity in time series:
    the method of surrogate data", Physica D 1992). The maps that a map is compared with are made alike
    (`scores/chance.py`).

    Measured on photographs, digits and planted images: putting the values back once is enough. Refining by turns, as
    random maps are refined, changed nothing in what networks answer to them, and cost five times as much.

    Args:
        image: As the network reads it.
        count: How many.
        seed: Decides the phases, with the key.
        key: Of the image, see `keys_of`.

    Returns:
        (count, c, h, w): each channel of each holds exactly the values of that channel of the image.
    """
    random, full = stream(seed, "surrogates", key), wide(image)  # no Fourier transform is made in half precision
    noise = torch.randn((count, 1, *image.shape[1:]), generator=random, device="cpu").to(full)
    return in_order_of(turn_phases(full, noise), image.flatten(1).sort(dim=1).values.expand(count, -1, -1))


# ---- composites, and a background without evidence


def check_background(background: Any, size: Sequence[int], whose: str = "a background") -> None:
    """Refuse what is no finite images of this size (c, h, w) as a network reads them."""
    if not isinstance(background, Tensor):
        found = type(background).__name__
    else:
        is_finite = bool(background.isfinite().all())
        found = f"{background.dtype} of shape {tuple(background.shape)}{'' if is_finite else ' with NaN or infinity'}"
        fits = background.dim() == 4 and tuple(background.shape[1:]) == tuple(size)
        if fits and is_finite and background.is_floating_point():
            return
    wanted = f"finite floating-point images of shape (r, {', '.join(map(str, size))})"
    problem = f"{whose} must be {wanted}, as the network reads images, got {found}"
    raise UsageError(problem, "background=model.tensor(images), which converts files")


def n_distinct(background: Float[Tensor, "r c h w"]) -> int:
    """How many of the background images are not copies of another."""
    return len(set(keys_of(background)))


@torch.no_grad()
def composites_of(
    network: WithGrid, background: Float[Tensor, "r c h w"], seed: int, numbers: Sequence[int] = range(COMPOSITES)
) -> Float[Tensor, "count v"]:
    """Logits of images put together of patches of background images.

    Args:
        network: In eval mode.
        background: As the network reads them.
        seed: The same seed gives the same composites.
        numbers: Which ones.
    """
    rows, columns = network.grid(background)
    patch = (background.shape[2] // rows, background.shape[3] // columns)
    fill = from_background(background)

    def make(some: Tensor) -> Images:
        return fill.make(background[:1], patch, len(some), seed_of(seed, "composites", numbers[int(some[0])]))[:, 0]

    return compute_logits(network, len(numbers), make, at_a_time(background))


def key_of(network: ViT, background: Float[Tensor, "r c h w"], seed: int, precision: Precision) -> str:
    """All that decides the logits of composites, as a name.

    Args:
        network: In fp32, whatever the precision: with its numbers, and all that it is built of.
        background: As the network reads it.
        seed: Of the composites.
        precision: In which the network is computed.
    """
    content = background.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return _digest(
        network=weights_hash(network),
        config=repr(network.config),
        parts=repr(network),
        background=hashlib.sha256(content).hexdigest(),
        size=list(background.shape[1:]),
        dtype=str(background.dtype),
        count=COMPOSITES,
        seed=seed,
        precision=precision,
    )


def _digest(**values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def composite_logits(
    network: WithGrid,
    background: Float[Tensor, "r c h w"],
    seed: int,
    precision: Precision,
    stored: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "count v"]:
    """Logits of the composites of a background: those that are stored, or computed now and stored from then on.

    Args:
        network: In eval mode, in fp32. Of one that is no ViT nothing is stored, since its weights do not tell what its
            code makes of them.
        background: Whose patches they are put together of, as the network reads it.
        seed: Of the composites.
        precision: In which the network is computed.
        stored: What a model carries, see `Model.composites`.
    """
    if not isinstance(network, ViT):
        return composites_of(in_precision(network, precision), background, seed)
    key, device = key_of(network, background, seed, precision), background.device
    name = _digest(key=key, torch=torch.__version__, machine=device_name(device))
    file = user_cache() / "composites" / f"{name}.safetensors"
    found = (stored or {}).get(key)
    with suppress(DataError, OSError, KeyError):
        found = read_tensors(file, "")[key] if found is None else found
    if found is None or len(found) != COMPOSITES:
        found = composites_of(in_precision(network, precision), background, seed)
        with suppress(OSError):  # no home, or a full disk: they are computed again next time
            write_tensors(file, {key: found})
    return found.to(device)


@torch.no_grad()
def with_composites(model: Model, samples: int) -> Model:
    """A trained model that carries what it answers to composites, so that no verdict computes that again.

    It is in the precision that is chosen for verdicts (`vitrail.jobs.precision`), and for the seed that they have.

    Args:
        model: With its network in eval mode. Without a background, or with one of too few images, it is returned as
            it is.
        samples: How many went through the network in training, forward and backward, which is about three passes each.
            Where composites would be more than a tenth of that, the model is returned as it is, whatever the machine;
            the first verdict computes them then.
    """
    network, background = model.network, model.background_images
    if model.background is None or background is None or not isinstance(network, ViT) or n_distinct(background) < FEW:
        return model
    if MOST_OF_TRAINING * PASSES * samples < COMPOSITES:
        return model
    precision = choose_precision_for(model, background[:CHOSEN]).precision
    made = composites_of(in_precision(network, precision), background, 0)
    return replace(model, composites={key_of(network, background, 0, precision): made.cpu()})


def without_evidence(
    network: ViT, images: Float[Tensor, "r c h w"], background: UInt8[Tensor, "r c h w"], seed: int = 0
) -> UInt8[Tensor, "r c h w"]:
    """The background, with the patches that the network's explanation names replaced by those of others.

    Background images are put together of patches of many training images, each at its own place. Some of these patches
    still show a piece of what the network looks for, and a test against such images finds less evidence than there is.
    So the tenth of the patches of each background image that the network's own explanation names is replaced: another
    image's patch, from the same place, stands there instead. It is done once, by the trained network, and stored; a
    network whose weights are scrambled later meets the same background, and is not helped by a choice that another
    network made.

    Args:
        network: In eval mode, trained.
        images: The background as the network reads them.
        background: The same, values 0..255.
        seed: Decides which image stands in.

    Returns:
        As many images; every patch is still where it stood in a training image.
    """
    if len(background) < 2:  # a patch needs another to stand in for it
        return background
    values = torch.cat([generic_attention(network, some).values for some in images.split(at_a_time(images))]).cpu()
    _, rows, columns = values.shape
    flat = values.flatten(1)
    first = flat.argsort(dim=1, descending=True)[:, : max(1, round(REPLACED * rows * columns))]
    named = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, first, True)
    named &= flat > flat.amin(dim=1, keepdim=True)  # a map without signal names nothing
    random, whose = stream(seed, "lending"), torch.arange(len(named), device="cpu")[:, None].repeat(1, rows * columns)
    for patch in range(rows * columns):
        clean = (~named[:, patch]).nonzero()[:, 0]
        for one in named[:, patch].nonzero()[:, 0].tolist() if len(clean) else ():
            whose[one, patch] = clean[torch.randint(len(clean), (1,), generator=random, device="cpu")]
    return patchwork(background, whose.unflatten(1, (rows, columns)).to(background.device))
