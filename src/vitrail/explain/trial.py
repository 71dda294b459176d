"""Maps put to the test: how far to trust each.

    held = trust(model, images, heat)
    held.verdict           ("supported", "cannot tell", ...)
    held.sentence(0, "7")  what covering the brightest squares of picture 0 does, beside covering random ones

First the pictures are asked for evidence, whatever a map says; where none is found no map can be trusted, and the test
ends there unless it is to be `full`. Then squares are covered in steps, in the order of the map, up to half of all, and
the fall of the explained number is averaged over the steps. The map and its random twins go through the same covers
(`falls.py`). A map that none of 24 twins equals is faithful, one that two equal is not; where one does, 25
more decide, of which none may. Of maps that are as random as their twins 4.98 % pass.

Several maps of the same pictures and the same target share all but the map itself: `begin` a trial once, and let it
`judge` each of them, as `compare` does.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.evidence import FEWEST, Evidence, different, find_evidence
from vitrail.explain.falls import STEPS, Ends, Falls, MaskedImages, falls_of
from vitrail.explain.heat import NO_SIGNAL, NOT_FINITE, Heat, aim_of, caveats
from vitrail.explain.perturb import at_a_time, explained, logits_of, measured
from vitrail.explain.readout import check
from vitrail.explain.scores.fill import donor, own_patches
from vitrail.explain.target import Aim, OfLogits
from vitrail.explain.verdict import Kind, Precision, Trust, Verdict, verdict
from vitrail.explain.without_evidence import kept_composites
from vitrail.nn import ViT, in_bf16
from vitrail.nn.vit import Images


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
    precision: Precision = "fp32",
    seed: int = 0,
    full: bool = False,
) -> Trust:
    """Score a heat, compare it with random maps, and say how far to trust it.

    A clear picture takes 175 forward passes: 1 as it is, 29 to ask it for evidence, 120 for random maps and 25 for the
    map; a further map of it 145; one without evidence 1, or 30 and more. Composites of the references take 499, once
    for a network, and are kept (`without_evidence.py`).

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w), the pictures that the heat explains, as the network reads them.
        heat: What a method returned for these pictures.
        references: Pictures that lend their patches, as the network reads them (`model.tensor(files)`, of the same kind
            as those explained); the model's own when None. With fewer than ten that differ the verdict is "cannot
            tell"; with none, patches of the same picture cover squares.
        masks: True on the patches that hold the evidence, where that is known.
        function: The function that was explained, for a heat whose target is one.
        precision: "bf16" runs the scores' forward passes in bfloat16, several times as fast where the processor has it.
        seed: Decides random maps and covers.
        full: Test the maps of pictures without evidence, too, which changes no verdict.

    Returns:
        One verdict for each picture, and the numbers behind it, on the CPU.

    Raises:
        UsageError: If heat, images, masks or references do not fit each other.
    """
    trial = begin(
        model,
        images,
        aim_of(heat, function),
        references=references,
        masks=masks,
        precision=precision,
        seed=seed,
        full=full,
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
    precision: Precision = "fp32",
    seed: int = 0,
    full: bool = False,
) -> "Trial":
    """Do what all maps of these pictures have in common. Arguments and errors are those of `trust`.

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w).
        aim: What the maps explain.
        references: Pictures that lend their patches.
        masks: True on the patches that hold the evidence.
        precision: Of the passes.
        seed: Decides random maps and covers.
        full: Test all maps.
    """
    check_model(model)
    check(model.network, images, False)
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
    network, many = in_precision(model.network, precision), 0 if lent is None else different(lent)
    masked = MaskedImages(network, images, aim, fill, seed)
    logits = logits_of(network, len(images), images.__getitem__, at_a_time(images))
    without = None
    if lent is not None and many >= FEWEST:
        without = kept_composites(model.network, network, images, lent, seed, precision)
    evidence = find_evidence(network, images, aim, lent, seed, logits=logits, without=without)
    before = explained(logits, aim)
    tested = torch.full_like(evidence.found, True) if full else evidence.found
    return Trial(
        masked=masked,
        before=before,
        share=explained(logits, aim, "probability"),
        evidence=evidence,
        tested=tested,
        oracle=None if masks is None else _fall_of(masks, masked, before, tested),
        references=many,
        precision=precision,
        logits=logits,
        without=without,
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """What all maps of the same pictures and target are tested with; made by `begin`.

    Attributes:
        masked: The pictures, what is explained of them, and what their squares are masked with.
        before: (b,), the explained number of the pictures as they are.
        share: (b,), the target's probability; nan where a function is explained.
        evidence: Whether the pictures hold evidence.
        tested: (b,), whether maps of a picture are tested: where there is evidence, or where all are.
        oracle: (b,), the fall when the true squares are covered first; nan where nothing is tested, None where they are
            not known.
        references: How many different pictures lend patches.
        precision: Of the passes.
        logits: (b, v), of the pictures as they are.
        without: (count, v), of the composites; None where the question of evidence could not be asked.
    """

    masked: MaskedImages
    before: Float[Tensor, "b"]
    share: Float[Tensor, "b"]
    evidence: Evidence
    tested: Bool[Tensor, "b"]
    oracle: Float[Tensor, "b"] | None
    references: int
    precision: Precision
    logits: Float[Tensor, "b v"]
    without: Float[Tensor, "count v"] | None

    @cached_property
    def ends(self) -> Ends:
        """Where the curves of deletion and insertion begin and end: composites are images with all patches masked."""
        masked = self.masked
        seen = explained(self.logits, masked.aim, masked.measure)
        if self.without is None:
            fills = masked.fill.make(masked.images, masked.patch, STEPS, masked.seed)
            every = torch.ones((1, 1, *masked.grid), dtype=torch.bool, device=seen.device)
            found = measured(masked.network, masked.images, masked.aim, every, fills, (masked.measure,))
            return Ends(seen, found[0].mean(dim=0))
        of_each = self.without[:, None].expand(-1, len(seen), -1)
        return Ends(seen, explained(of_each, masked.aim, masked.measure).mean(dim=0))

    @torch.inference_mode(False)
    @torch.no_grad()
    def falls(self, heat: Heat, areas: bool = False) -> Falls:
        """Cover squares in the order of a map and of its random twins.

        Args:
            heat: What a method returned for these pictures.
            areas: Whether deletion and insertion are measured as well: 14 more passes.

        Raises:
            UsageError: If the heat is not of these pictures, or explains something else.
        """
        _check_heat(heat, self.masked)
        return falls_of(heat.values, self.masked, self.before, self.tested, self.ends if areas else None)

    def judge(self, heat: Heat, falls: Falls | None = None) -> Trust:
        """Say how far to trust a map; `falls` are its own, where they are at hand. Errors are those of `falls`."""
        falls = self.falls(heat) if falls is None else falls
        notes = [{*said, *seen} for said, seen in zip(heat.notes, caveats(heat.values), strict=True)]
        faithful = _rank(falls, notes)
        beyond = falls.paired - falls.random.nanmedian(dim=1).values
        said = self._say(notes, faithful, beyond)
        return Trust(
            verdict=tuple(word for word, _ in said),
            reason=tuple(why for _, why in said),
            score=falls.score,
            interval=falls.interval,
            random=falls.random,
            paired=falls.paired,
            oracle=None if self.oracle is None else self.oracle.cpu(),
            evidence=self.evidence.p,
            effect=self.evidence.effect,
            least_effect=self.evidence.least,
            effect_unit=self.evidence.unit,
            faithful=faithful,
            twins=falls.twins,
            before=self.share.cpu(),
            covered=falls.covered,
            covered_random=falls.covered_random,
            squares=falls.squares,
            composites=self.evidence.composites,
            surrogates=self.evidence.surrogates,
            fill=self.masked.fill.name,
            precision=self.precision,
        )

    def _say(
        self, notes: list[set[str]], faithful: Float[Tensor, "b"], beyond: Float[Tensor, "b"]
    ) -> list[tuple[Verdict, str]]:
        """The verdict on each picture's map, and why."""
        found = self.evidence
        kinds: list[Kind] = ["surrogates" if asked else "composites" for asked in found.surrogates.tolist()]
        asked = zip(
            *(notes, _known(found.p), _known(faithful), kinds, _known(found.effect), _known(beyond)), strict=True
        )
        return [
            ("cannot tell", "the map holds values that are no numbers")
            if NOT_FINITE in said
            else verdict(p, rank, self.references, kind, effect, found.least, found.unit, fall)
            for said, p, rank, kind, effect, fall in asked
        ]


def _fall_of(
    masks: Bool[Tensor, "b rows columns"], masked: MaskedImages, before: Tensor, tested: Bool[Tensor, "b"]
) -> Float[Tensor, "b"]:
    """The mean fall when the true squares are masked first; nan where a mask is empty, or nothing is tested."""
    falls = torch.full_like(before, torch.nan)
    images = (tested & masks.flatten(1).any(dim=1).cpu()).nonzero()[:, 0].to(before.device)
    if len(images):
        some, first = masked.select(images), masks.to(before)[images.to(masks.device)]
        numbers, _ = some.measured(some.masks(first[None]), some.fills(first))
        falls[images] = (before[images] - numbers[:, 0]).mean(dim=0)
    return falls


def _rank(falls: Falls, notes: list[set[str]]) -> Float[Tensor, "b"]:
    """p of "is the map faithful?": its place among its random twins, in float64; nan untested, or without a signal."""
    p = (1 + falls.as_good).double() / (1 + falls.twins)
    silent = torch.tensor([bool({NO_SIGNAL, NOT_FINITE} & said) for said in notes], device="cpu")
    return p.masked_fill(silent | (falls.twins == 0), torch.nan)


def _known(values: Float[Tensor, "b"]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def check_masks(grid: tuple[int, int], pictures: int, masks: Tensor | None) -> None:
    """Refuse masks that are not one number for each patch of each picture."""
    if masks is not None and tuple(masks.shape) != (pictures, *grid):
        raise UsageError(
            f"masks must be one number per patch, {(pictures, *grid)}, got {tuple(masks.shape)}",
            "masks on the grid of patches",
        )


def _check_heat(heat: Heat, masked: MaskedImages) -> None:
    wanted, aim = (len(masked.images), *masked.grid), masked.aim
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
