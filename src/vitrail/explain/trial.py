"""Maps put to the test: how far to trust each.

    held = trust(model, images, heat)
    held.verdict           ("supported", "cannot tell", ...)
    held.sentence(0, "7")  what covering the brightest squares of picture 0 does, beside covering random ones

Squares are covered in steps, from the one that the map names first to half of all, and the fall of the explained number
is averaged over the steps. The map, its random twins and the true mask go through the same covers
(`covered_pictures.py`). Several maps of the same pictures and the same target share all but the map itself: `begin` a
trial once, and let it `judge` each of them, as `compare` does.
"""

import math
from dataclasses import dataclass
from typing import Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.covered_pictures import CoveredPictures, probability
from vitrail.explain.evidence import Evidence, different, explained, find_evidence
from vitrail.explain.heat import NO_SIGNAL, NOT_FINITE, Heat, aim_of, caveats
from vitrail.explain.readout import check, wide
from vitrail.explain.scores.fill import donor, keys_of, logits_in_chunks, own_patches
from vitrail.explain.scores.random_maps import random_maps as random_maps_like
from vitrail.explain.target import Aim, OfLogits
from vitrail.explain.verdict import Kind, Precision, Trust, Verdict, verdict
from vitrail.explain.without_evidence import at_a_time
from vitrail.nn import ViT, in_bf16
from vitrail.nn.vit import Images

LEAST = {"random_maps": 39, "draws": 10}


@runtime_checkable
class Explainable(Protocol):
    """A network, and pictures that lend their patches; `vitrail.Model` is one."""

    @property
    def network(self) -> ViT:
        """In eval mode."""
        ...

    @property
    def background_images(self) -> Float[Tensor, "r c h w"] | None:
        """Reference pictures as the network reads them; None where the model carries none."""
        ...


def check_model(model: Explainable) -> None:
    """Refuse what has no network and no references, such as a bare network."""
    if not isinstance(model, Explainable):
        problem = (
            f"a model is wanted, with its network and its references (background_images), got {type(model).__name__}"
        )
        raise UsageError(problem, "vitrail.load(folder)")


def in_precision(network: ViT, precision: Precision) -> ViT:
    """The network as it is, or a copy that multiplies in bfloat16."""
    if precision not in get_args(Precision):
        raise UsageError(f"precision is {' or '.join(get_args(Precision))}, not '{precision}'", "precision='bf16'")
    return network if precision == "fp32" else in_bf16(network)


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
    random_maps: int = LEAST["random_maps"],
    draws: int = LEAST["draws"],
    precision: Precision = "fp32",
    seed: int = 0,
) -> Trust:
    """Score a heat, compare it with random maps, and say how far to trust it.

    It takes draws x (random_maps + draws) forward passes for each picture (490 as it stands, 10 more with a mask), up
    to 499 to ask a picture for evidence, and 99 to 499 once for all pictures.

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w), the pictures that the heat explains, as the network reads them.
        heat: What a method returned for these pictures.
        references: Pictures that lend their patches, as the network reads them (`model.tensor(files)`, of the same kind
            as those explained); the model's own when None. With fewer than ten that differ the verdict is "cannot
            tell"; with none, patches of the same picture cover squares.
        masks: True on the patches that hold the evidence, where that is known.
        function: The function that was explained, for a heat whose target is one.
        random_maps: Random maps for each map, at least 39.
        draws: Steps, each with a cover of its own, and covers for the interval; at least 10.
        precision: "bf16" runs the scores' forward passes in bfloat16, several times as fast where the processor has it.
        seed: Decides random maps and covers.

    Returns:
        One verdict for each picture, and the numbers behind it, on the CPU.

    Raises:
        UsageError: If a number is too small, or heat, images, masks or references do not fit each other.
    """
    trial = begin(
        model,
        images,
        aim_of(heat, function),
        references=references,
        masks=masks,
        random_maps=random_maps,
        draws=draws,
        precision=precision,
        seed=seed,
    )
    return trial.judge(heat)


@torch.inference_mode(False)
@torch.no_grad()
def begin(
    model: Explainable,
    images: Images,
    aim: Aim,
    *,
    references: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    random_maps: int = LEAST["random_maps"],
    draws: int = LEAST["draws"],
    precision: Precision = "fp32",
    seed: int = 0,
) -> "Trial":
    """Do what all maps of these pictures have in common. Arguments and errors are those of `trust`.

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w).
        aim: What the maps explain.
        references: Pictures that lend their patches.
        masks: True on the patches that hold the evidence.
        random_maps: For each map.
        draws: Steps, and covers.
        precision: Of the passes.
        seed: Decides random maps and covers.
    """
    check_model(model)
    check(model.network, images, False)
    _check_numbers({"random_maps": random_maps, "draws": draws})
    if images.dim() != 4:
        raise UsageError(
            f"a test covers squares of pictures (b, c, h, w), and these have the shape {tuple(images.shape)}",
            "pictures, and not the patches that they were cut into",
        )
    if not len(images):
        raise UsageError("there is no picture to test", "images of at least one picture")
    if len(aim.target) != len(images):
        raise UsageError(
            f"the heat is of {len(aim.target)} pictures, and these are {len(images)}",
            "the pictures that the heat was made of",
        )
    check_masks(model.network.grid(images), len(images), masks)
    lent = model.background_images if references is None else references
    if references is None and lent is not None and lent.shape[1:] != images.shape[1:]:
        raise UsageError(
            f"the model's references are {tuple(lent.shape[1:])}, and these pictures {tuple(images.shape[1:])}",
            "references= with pictures of their size, as the network reads them",
        )
    fill = own_patches() if lent is None else donor(lent)
    network = in_precision(model.network, precision)
    covering = CoveredPictures(network, images, aim, fill, draws, seed)
    logits = wide(logits_in_chunks(network, images[None], at_a_time(images))[0])
    before = explained(logits, aim)
    return Trial(
        covering=covering,
        before=before,
        share=probability(logits, aim),
        evidence=find_evidence(network, images, aim, lent, seed),
        oracle=None if masks is None else _fall_of(masks, covering, before),
        references=0 if lent is None else different(lent),
        random_maps=random_maps,
        precision=precision,
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """What all maps of the same pictures and target are tested with; made by `begin`.

    Attributes:
        covering: The pictures, what is explained of them, and what covers their squares.
        before: (b,), the explained number of the pictures as they are.
        share: (b,), the target's probability; nan where a function is explained.
        evidence: Whether the pictures hold evidence.
        oracle: (b,), the fall when the true squares are covered first; None where they are not known.
        references: How many different pictures lend patches.
        random_maps: How many random twins each map gets.
        precision: Of the passes.
    """

    covering: CoveredPictures
    before: Float[Tensor, "b"]
    share: Float[Tensor, "b"]
    evidence: Evidence
    oracle: Float[Tensor, "b"] | None
    references: int
    random_maps: int
    precision: Precision

    @torch.inference_mode(False)
    @torch.no_grad()
    def judge(self, heat: Heat) -> Trust:
        """Cover squares in the order of a map and of its random twins, and say how far to trust it.

        Raises:
            UsageError: If the heat is not of these pictures, or explains something else.
        """
        covering = self.covering
        _check_heat(heat, covering)
        twins = random_maps_like(heat.values, self.random_maps, covering.seed, keys_of(covering.images))
        twins = twins.to(heat.values)
        numbers, shares = covering.paired(twins)
        random = (self.before - numbers).mean(dim=0)  # (maps, b)
        own, by_step = covering.by_draw(heat.values)  # (draws, steps, b) each
        paired = (self.before - own.diagonal().T).mean(dim=0)
        score, interval = _mean_and_interval((self.before - own).mean(dim=1))
        covered, chance = by_step.mean(dim=0), shares.mean(dim=1)  # (steps, b) each
        told = (chance - covered)[: covering.few].nan_to_num().argmax(dim=0)[None]
        as_good = ~(random < paired) | covering.alike(twins, heat.values)  # what is no number, or equal, counts against
        notes = [{*said, *seen} for said, seen in zip(heat.notes, caveats(heat.values), strict=True)]
        faithful = _rank(as_good.cpu(), notes)
        said = self._say(notes, faithful)
        return Trust(
            verdict=tuple(word for word, _ in said),
            reason=tuple(why for _, why in said),
            score=score.cpu(),
            interval=interval.cpu(),
            random=random.T.contiguous().cpu(),
            paired=paired.cpu(),
            oracle=None if self.oracle is None else self.oracle.cpu(),
            evidence=self.evidence.p,
            effect=self.evidence.effect,
            least_effect=self.evidence.least,
            effect_unit=self.evidence.unit,
            faithful=faithful,
            before=self.share.cpu(),
            covered=covered.gather(0, told)[0].cpu(),
            covered_random=chance.gather(0, told)[0].cpu(),
            squares=torch.tensor(covering.steps, device="cpu")[told[0].cpu()],
            composites=self.evidence.composites,
            surrogates=self.evidence.surrogates,
            fill=covering.fill.name,
            precision=self.precision,
        )

    def _say(self, notes: list[set[str]], faithful: Float[Tensor, "b"]) -> list[tuple[Verdict, str]]:
        """The verdict on each picture's map, and why."""
        found = self.evidence
        kinds: list[Kind] = ["surrogates" if asked else "composites" for asked in found.surrogates.tolist()]
        asked = zip(notes, _known(found.p), _known(faithful), kinds, _known(found.effect), strict=True)
        return [
            ("cannot tell", "the map holds values that are no numbers")
            if NOT_FINITE in said
            else verdict(p, rank, self.references, kind, effect, found.least, found.unit)
            for said, p, rank, kind, effect in asked
        ]


def _fall_of(masks: Bool[Tensor, "b rows columns"], covering: CoveredPictures, before: Tensor) -> Float[Tensor, "b"]:
    """The mean fall when the true squares are covered first; nan where a mask is empty."""
    falls = (before - covering.paired(masks.to(before)[None])[0]).mean(dim=0)[0]
    return falls.masked_fill(~masks.flatten(1).any(dim=1).to(falls.device), torch.nan)


def _rank(as_good: Bool[Tensor, "maps b"], notes: list[set[str]]) -> Float[Tensor, "b"]:
    """p of "is the map faithful?": its place among its random twins, in float64; nan without a signal."""
    p = (1 + as_good.sum(dim=0)).double() / (1 + len(as_good))
    silent = [bool({NO_SIGNAL, NOT_FINITE} & said) for said in notes]
    return p.masked_fill(torch.tensor(silent, device="cpu"), torch.nan)


def _mean_and_interval(scores: Float[Tensor, "draws b"]) -> tuple[Float[Tensor, "b"], Float[Tensor, "b 2"]]:
    """The mean over draws and its 95 % interval, by Student's t."""
    mean, half = scores.mean(dim=0), _t_97_5(len(scores)) * scores.std(dim=0) / len(scores) ** 0.5
    return mean, torch.stack([mean - half, mean + half], dim=1)


def _t_97_5(count: int) -> float:
    """The 97.5 % point of Student's t with count - 1 degrees of freedom, to 0.1 % (Cornish-Fisher)."""
    z, freedom = 1.959964, count - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _known(values: Float[Tensor, "b"]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _check_numbers(given: dict[str, int]) -> None:
    for name, number in given.items():
        if number < LEAST[name]:
            raise UsageError(f"{name} must be at least {LEAST[name]}, got {number}", f"{name}={LEAST[name]}")


def check_masks(grid: tuple[int, int], pictures: int, masks: Tensor | None) -> None:
    """Refuse masks that are not one number for each patch of each picture."""
    if masks is not None and tuple(masks.shape) != (pictures, *grid):
        raise UsageError(
            f"masks must be one number per patch, {(pictures, *grid)}, got {tuple(masks.shape)}",
            "masks on the grid of patches",
        )


def _check_heat(heat: Heat, covering: CoveredPictures) -> None:
    wanted, aim = (len(covering.images), *covering.grid), covering.aim
    if tuple(heat.values.shape) != wanted:
        raise UsageError(
            f"the heat has the shape {tuple(heat.values.shape)}, these pictures have {wanted}",
            "the pictures that the heat was made of",
        )
    against = (heat.rather_than, aim.rather_than)
    same = all(one is None for one in against) or all(one is not None for one in against)
    for given, asked in ((heat.target, aim.target), against):
        same = same and (given is None or asked is None or torch.equal(given.cpu(), asked.cpu()))
    if not same:
        raise UsageError("the heat explains another target than the trial", "a trial for each target")
