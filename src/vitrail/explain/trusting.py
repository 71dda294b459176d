"""A map with the number that says how far to trust it.

    held = trust(model, images, heat)
    held.verdict           ("supported", "cannot tell", ...)
    held.sentence(0, "7")  what covering the brightest squares of picture 0 does, beside covering random ones

Squares are covered in steps, from the one that the map names first to half of all, and the fall of the explained number
is averaged over the steps. The map, its random twins and the true mask go through the same covers (`steps.py`).
"""

import copy
import math
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.evidence import Evidence, at_a_time, explained, find_evidence
from vitrail.explain.heat import NO_SIGNAL, NOT_FINITE, Heat
from vitrail.explain.readout import check, wide
from vitrail.explain.scores.fill import donor, logits_in_chunks, own_patches
from vitrail.explain.scores.random_maps import random_maps as random_maps_like
from vitrail.explain.scores.streams import keys_of
from vitrail.explain.steps import CoveredPictures, probability
from vitrail.explain.target import FUNCTION, Aim, OfLogits
from vitrail.explain.tested import Trust
from vitrail.explain.verdict import Verdict, verdict
from vitrail.nn import ViT
from vitrail.nn.vit import Images

Precision = Literal["fp32", "bf16"]

LEAST = {"random_maps": 39, "draws": 10}


@runtime_checkable
class Explainable(Protocol):
    """A network, and pictures that lend their patches; `vitrail.Model` is one."""

    @property
    def network(self) -> ViT:
        """In eval mode."""
        ...

    @property
    def donors(self) -> Float[Tensor, "r c h w"] | None:
        """Reference pictures as the network reads them; None where the model carries none."""
        ...


@torch.inference_mode(False)
@torch.no_grad()
def trust(
    model: Explainable,
    images: Images,
    heat: Heat,
    *,
    references: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    function: OfLogits | None = None,
    evidence: Evidence | None = None,
    random_maps: int = LEAST["random_maps"],
    draws: int = LEAST["draws"],
    precision: Precision = "fp32",
    seed: int = 0,
) -> Trust:
    """Score a heat, compare it with random maps, and say how far to trust it.

    It takes draws x (random_maps + draws) forward passes for each picture (490 as it stands), 59 to 499 to ask a
    picture for evidence, and 99 to 499 once for all pictures.

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w), the pictures that the heat explains, as the network reads them.
        heat: What a method returned for these pictures.
        references: Pictures that lend their patches, as the network reads them; the model's own when None. With
            fewer than ten the verdict is "cannot tell"; with none, patches of the same picture cover squares.
        masks: True on the patches that hold the evidence, where that is known.
        function: The function that was explained, for a heat whose target is one.
        evidence: What `find_evidence` returned for these pictures and this target, when several heats share it.
        random_maps: Random maps for each map, at least 39.
        draws: Steps, each with a cover of its own, and covers for the interval; at least 10.
        precision: "bf16" runs the scores' forward passes in bfloat16, several times as fast where the processor has it.
        seed: Decides random maps and covers.

    Raises:
        UsageError: If a number is too small, or heat, images, masks or references do not fit each other.
    """
    network = model.network
    check(network, images, False)
    _check_numbers({"random_maps": random_maps, "draws": draws})
    _check_fit(network.grid(images), len(images), heat, masks, function)
    lent = model.donors if references is None else references
    fill = own_patches() if lent is None else donor(lent)
    aim = Aim(heat.target, heat.rather_than, function)
    network = in_precision(network, precision)
    found = find_evidence(network, images, aim, lent, seed) if evidence is None else evidence
    covering = CoveredPictures(network, images, aim, fill, draws, seed)
    return _tested(covering, heat, masks, random_maps, found, 0 if lent is None else len(lent))


@torch.no_grad()
def evidence_for(
    model: Explainable,
    images: Images,
    heat: Heat,
    references: Float[Tensor, "r c h w"] | None = None,
    function: OfLogits | None = None,
    precision: Precision = "fp32",
    seed: int = 0,
) -> Evidence:
    """What `trust` takes as `evidence`, for several heats of the same pictures and target. See `trust`."""
    lent = model.donors if references is None else references
    network = in_precision(model.network, precision)
    return find_evidence(network, images, Aim(heat.target, heat.rather_than, function), lent, seed)


def _fall_of(masks: Bool[Tensor, "b rows columns"], covering: CoveredPictures, before: Tensor) -> Float[Tensor, "b"]:
    """The mean fall when the true squares are covered first; nan where a mask is empty."""
    falls = (before - covering.paired(masks.to(before)[None])[0]).mean(dim=0)[0]
    return falls.masked_fill(~masks.flatten(1).any(dim=1).to(falls.device), torch.nan)


def in_precision(network: ViT, precision: Precision) -> ViT:
    """The network, or a copy with weights of half the digits: as exact as bf16 autocast here, and faster."""
    if precision not in get_args(Precision):
        raise UsageError(f"precision is {' or '.join(get_args(Precision))}, not '{precision}'", "precision='bf16'")
    return network if precision == "fp32" else copy.deepcopy(network).bfloat16()


def _tested(
    covering: CoveredPictures, heat: Heat, masks: Tensor | None, random_maps: int, found: Evidence, references: int
) -> Trust:
    """Cover squares in the order of each map, of its random twins and of the truth, and say what came of it."""
    logits = wide(logits_in_chunks(covering.network, covering.images[None], at_a_time(covering.images))[0])
    before = explained(logits, covering.aim)
    twins = random_maps_like(heat.values, random_maps, covering.seed, keys_of(covering.images))
    numbers, shares = covering.paired(twins.to(heat.values))
    random = (before - numbers).mean(dim=0).T.contiguous()  # (b, maps)
    own, by_step = covering.by_draw(heat.values)  # (draws, steps, b) each
    paired = (before - own.diagonal().T).mean(dim=0)
    faithful = _rank(heat, paired, random)
    score, interval = _mean_and_interval((before - own).mean(dim=1))
    covered, chance = by_step.mean(dim=0), shares.mean(dim=1)  # (steps, b) each
    told = (chance - covered)[: covering.few].nan_to_num().argmax(dim=0)[None]
    said = _say(heat, found, faithful, references)
    return Trust(
        verdict=tuple(word for word, _ in said),
        reason=tuple(why for _, why in said),
        score=score,
        interval=interval,
        random=random,
        paired=paired,
        oracle=None if masks is None else _fall_of(masks, covering, before),
        evidence=found.p,
        faithful=faithful,
        before=probability(logits, covering.aim),
        covered=covered.gather(0, told)[0],
        covered_random=chance.gather(0, told)[0],
        squares=torch.tensor(covering.steps, device=told.device)[told[0]],
        composites=found.composites,
        surrogates=found.surrogates,
        fill=covering.fill.name,
    )


def _rank(heat: Heat, own: Float[Tensor, "b"], random: Float[Tensor, "b maps"]) -> Float[Tensor, "b"]:
    """p of "is the map faithful?": the place of its score among those of its random twins; nan without a signal."""
    p = (1 + (~(random < own[:, None])).sum(dim=1)).double() / (1 + random.shape[1])
    silent = [bool({NO_SIGNAL, NOT_FINITE} & set(notes)) for notes in heat.notes]
    return p.masked_fill(torch.tensor(silent, device=p.device), torch.nan)


def _mean_and_interval(scores: Float[Tensor, "draws b"]) -> tuple[Float[Tensor, "b"], Float[Tensor, "b 2"]]:
    """The mean over draws and its 95 % interval, by Student's t."""
    mean, half = scores.mean(dim=0), _t_97_5(len(scores)) * scores.std(dim=0) / len(scores) ** 0.5
    return mean, torch.stack([mean - half, mean + half], dim=1)


def _say(heat: Heat, found: Evidence, faithful: Float[Tensor, "b"], references: int) -> list[tuple[Verdict, str]]:
    """The verdict on each picture's map, and why."""
    asked = zip(heat.notes, _known(found.p), _known(faithful), found.surrogates.tolist(), strict=True)
    return [
        ("cannot tell", "the map holds values that are no numbers")
        if NOT_FINITE in notes
        else verdict(evidence, rank, references, "surrogates" if surrogates else "composites")
        for notes, evidence, rank, surrogates in asked
    ]


def _known(values: Float[Tensor, "b"]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _t_97_5(count: int) -> float:
    """The 97.5 % point of Student's t with count - 1 degrees of freedom, to 0.1 % (Cornish-Fisher)."""
    z, freedom = 1.959964, count - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _check_numbers(given: dict[str, int]) -> None:
    for name, number in given.items():
        if number < LEAST[name]:
            raise UsageError(f"{name} must be at least {LEAST[name]}, got {number}", f"{name}={LEAST[name]}")


def _check_fit(
    grid: tuple[int, int], pictures: int, heat: Heat, masks: Tensor | None, function: OfLogits | None
) -> None:
    if not pictures:
        raise UsageError("there is no picture to test", "images of at least one picture")
    wanted = (pictures, *grid)
    if tuple(heat.values.shape) != wanted:
        raise UsageError(
            f"the heat has the shape {tuple(heat.values.shape)}, these pictures have {wanted}",
            "the pictures that the heat was made of",
        )
    if masks is not None and tuple(masks.shape) != wanted:
        raise UsageError(
            f"masks must be one number per patch, {wanted}, got {tuple(masks.shape)}",
            "masks on the grid of patches",
        )
    if bool((heat.target == FUNCTION).any()) != (function is not None):
        problem = "explains a class, and a function is given" if function else "explains a function, which is not given"
        raise UsageError(f"the heat {problem}", "function=... exactly when the target was a function")
