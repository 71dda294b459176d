"""Maps put to the test: how far to trust each.

    held = trust(model, images, attribution)
    held.verdict           ("supported", "cannot tell", ...)
    held.sentence(0, "7")  what masking the brightest patches of image 0 does, beside masking random ones

First the images are asked for evidence, whatever a map says (`evidence.py`); where none is found no map can be trusted,
and the test ends there unless it is to be `full`. Then patches are masked in the order of the map, and in that of
random maps (`falls.py`). What follows from both answers says `verdict.py`.

Several maps of the same images and the same target share all but the map itself: `prepare` a test once, and let it
`evaluate` each of them, as `compare` does.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.attribution import NO_SIGNAL, NOT_FINITE, Attribution, caveats, target_of
from vitrail.explain.evidence import FEWEST, Evidence, different, find_evidence, kept_composites
from vitrail.explain.falls import Ends, Falls, MaskedImages, falls_of
from vitrail.explain.forward import check
from vitrail.explain.perturb import at_a_time, explained, logits_of
from vitrail.explain.scores.fill import from_background, own_patches
from vitrail.explain.target import ChosenTarget, OfLogits
from vitrail.explain.verdict import Kind, Precision, Trust, Verdict, verdict
from vitrail.nn import ViT, in_bf16
from vitrail.nn.vit import Images


@runtime_checkable
class Explainable(Protocol):
    """A network, and images whose patches fill masked ones; `vitrail.Model` is one."""

    @property
    def network(self) -> ViT:
        """In eval mode."""
        ...

    @property
    def background_images(self) -> Float[Tensor, "r c h w"] | None:
        """Background images as the network reads them; None where the model carries none."""
        ...


def check_model(model: Explainable) -> None:
    """Refuse what has no network and no background, such as a bare network."""
    if not isinstance(model, Explainable):
        problem = (
            f"a model is wanted, with its network and its background (background_images), got {type(model).__name__}"
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
    attribution: Attribution,
    *,
    background: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    function: OfLogits | None = None,
    precision: Precision = "fp32",
    seed: int = 0,
    full: bool = False,
) -> Trust:
    """Score an attribution, compare it with random maps, and say how far to trust it.

    A clear image takes 175 forward passes: 1 as it is, 29 to ask it for evidence, 120 for random maps and 25 for the
    map; a further map of it 145; one without evidence 1, or 30 and more. Composites of the background take 499, once
    for a network, and are kept (`without_evidence.py`).

    Args:
        model: A network in eval mode with its background.
        images: (b, c, h, w), the images that the attribution explains, as the network reads them.
        attribution: What a method returned for these images.
        background: Images whose patches fill masked ones, as the network reads them (`model.tensor(files)`, of the same
            kind as those explained); the model's own when None. With fewer than ten that differ the verdict is "cannot
            tell"; with none, patches of the same image replace masked ones.
        masks: True on the patches that hold the evidence, where that is known.
        function: The function that was explained, for an attribution whose target is one.
        precision: "bf16" runs the scores' forward passes in bfloat16, several times as fast where the processor has it.
        seed: Decides random maps and fills.
        full: Test the maps of images without evidence, too, which changes no verdict.

    Returns:
        One verdict for each image, and the numbers behind it, on the CPU.

    Raises:
        UsageError: If attribution, images, masks or background do not fit each other.
    """
    test = prepare(
        model,
        images,
        target_of(attribution, function),
        background=background,
        masks=masks,
        precision=precision,
        seed=seed,
        full=full,
    )
    return test.evaluate(attribution)


@torch.inference_mode(False)
@torch.no_grad()
def prepare(
    model: Explainable,
    images: Images,
    chosen: ChosenTarget,
    *,
    background: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    precision: Precision = "fp32",
    seed: int = 0,
    full: bool = False,
) -> "FaithfulnessTest":
    """Do what all maps of these images have in common. Arguments and errors are those of `trust`.

    Args:
        model: A network in eval mode with its background.
        images: (b, c, h, w).
        chosen: What the maps explain.
        background: Images whose patches fill masked ones.
        masks: True on the patches that hold the evidence.
        precision: Of the passes.
        seed: Decides random maps and fills.
        full: Test all maps.
    """
    check_model(model)
    check(model.network, images, False)
    if images.dim() != 4:
        raise UsageError(
            f"a test masks patches of images (b, c, h, w), and these have the shape {tuple(images.shape)}",
            "images, and not the patches that they were cut into",
        )
    if not len(images):
        raise UsageError("there is no image to test", "images of at least one image")
    if len(chosen.target) != len(images):
        raise UsageError(
            f"the attribution is of {len(chosen.target)} images, and these are {len(images)}",
            "the images that the attribution was made of",
        )
    check_masks(model.network.grid(images), len(images), masks)
    used = model.background_images if background is None else background
    if background is None and used is not None and used.shape[1:] != images.shape[1:]:
        raise UsageError(
            f"the model's background images are {tuple(used.shape[1:])}, and these images {tuple(images.shape[1:])}",
            "background= with images of their size, as the network reads them",
        )
    fill = own_patches() if used is None else from_background(used)
    network, many = in_precision(model.network, precision), 0 if used is None else different(used)
    masked = MaskedImages(network, images, chosen, fill, seed)
    logits = logits_of(network, len(images), images.__getitem__, at_a_time(images))
    without = None
    if used is not None and many >= FEWEST:
        without = kept_composites(model.network, network, images, used, seed, precision)
    evidence = find_evidence(network, images, chosen, used, seed, logits=logits, without=without)
    before = explained(logits, chosen)
    tested = torch.full_like(evidence.found, True) if full else evidence.found
    return FaithfulnessTest(
        masked=masked,
        before=before,
        probability=explained(logits, chosen, "probability"),
        evidence=evidence,
        tested=tested,
        oracle=None if masks is None else _fall_of(masks, masked, before, tested),
        distinct=many,
        precision=precision,
        logits=logits,
        without=without,
    )


@dataclass(frozen=True, eq=False)
class FaithfulnessTest:
    """What all maps of the same images and target are tested with; made by `prepare`.

    Attributes:
        masked: The images, what is explained of them, and what their patches are masked with.
        before: (b,), the explained number of the images as they are.
        probability: (b,), the target's probability; nan where a function is explained.
        evidence: Whether the images hold evidence.
        tested: (b,), whether maps of an image are tested: where there is evidence, or where all are.
        oracle: (b,), the fall when the true patches are masked first; nan where nothing is tested, None where they are
            not known.
        distinct: How many different background images there are.
        precision: Of the passes.
        logits: (b, v), of the images as they are.
        without: (count, v), of the composites; None where the question of evidence could not be asked.
    """

    masked: MaskedImages
    before: Float[Tensor, "b"]
    probability: Float[Tensor, "b"]
    evidence: Evidence
    tested: Bool[Tensor, "b"]
    oracle: Float[Tensor, "b"] | None
    distinct: int
    precision: Precision
    logits: Float[Tensor, "b v"]
    without: Float[Tensor, "count v"] | None

    @cached_property
    def ends(self) -> Ends:
        """Where the curves of deletion and insertion begin and end: composites are images with all patches masked."""
        masked = self.masked
        seen = explained(self.logits, masked.chosen, masked.measure)
        if self.without is None:
            every = torch.ones((1, 1, *masked.grid), dtype=torch.bool, device=seen.device)
            hidden = masked.measured(every, (masked.measure,))[0, :, 0]
        else:
            of_each = self.without[:, None].expand(-1, len(seen), -1)
            hidden = explained(of_each, masked.chosen, masked.measure)
        return Ends(seen, hidden.mean(dim=0))

    @torch.inference_mode(False)
    @torch.no_grad()
    def falls(self, attribution: Attribution, areas: bool = False) -> Falls:
        """Mask patches in the order of a map and of random maps.

        Args:
            attribution: What a method returned for these images.
            areas: Whether deletion and insertion are measured as well: 14 more passes.

        Raises:
            UsageError: If the attribution is not of these images, or explains something else.
        """
        _check_attribution(attribution, self.masked)
        return falls_of(attribution.values, self.masked, self.before, self.tested, self.ends if areas else None)

    def evaluate(self, attribution: Attribution, falls: Falls | None = None) -> Trust:
        """Say how far to trust a map; `falls` are its own, where they are at hand. Errors are those of `falls`."""
        falls = self.falls(attribution) if falls is None else falls
        notes = [{*own, *seen} for own, seen in zip(attribution.notes, caveats(attribution.values), strict=True)]
        silent = torch.tensor([bool({NO_SIGNAL, NOT_FINITE} & some) for some in notes], device="cpu")
        p = (1 + falls.as_good).double() / (1 + falls.random_maps)
        faithful = p.masked_fill(silent | (falls.random_maps == 0), torch.nan)
        found, beyond = self.evidence, falls.score - falls.random.nanmean(dim=1)
        kinds: list[Kind] = ["surrogates" if asked else "composites" for asked in found.surrogates.tolist()]
        known = map(_known, (found.p, faithful, found.effect, beyond))
        verdicts: list[tuple[Verdict, str]] = [
            ("cannot tell", "the map holds non-finite values (NaN or infinity)")
            if NOT_FINITE in some
            else verdict(p, rank, self.distinct, kind, effect, found.least, found.unit, fall)
            for some, kind, p, rank, effect, fall in zip(notes, kinds, *known, strict=True)
        ]
        return Trust(
            verdict=tuple(word for word, _ in verdicts),
            reason=tuple(why for _, why in verdicts),
            score=falls.score,
            interval=falls.interval,
            random=falls.random,
            oracle=None if self.oracle is None else self.oracle.cpu(),
            evidence=found.p,
            effect=found.effect,
            least_effect=found.least,
            effect_unit=found.unit,
            faithful=faithful,
            random_maps=falls.random_maps,
            before=self.probability.cpu(),
            masked=falls.masked,
            masked_random=falls.masked_random,
            patches=falls.patches,
            composites=found.composites,
            surrogates=found.surrogates,
            fill=self.masked.fill.name,
            precision=self.precision,
        )


def _fall_of(
    masks: Bool[Tensor, "b rows columns"], masked: MaskedImages, before: Tensor, tested: Bool[Tensor, "b"]
) -> Float[Tensor, "b"]:
    """The mean fall when the true patches are masked first; nan where a mask is empty, or nothing is tested."""
    falls = torch.full_like(before, torch.nan)
    images = (tested & masks.flatten(1).any(dim=1).cpu()).nonzero()[:, 0].to(before.device)
    if len(images):
        some, first = masked.select(images), masks.to(before)[images.to(masks.device)]
        (numbers,) = some.measured(some.masks(first[None])[None, :, 0], ("centred",))
        falls[images] = (before[images] - numbers).mean(dim=(0, 1))
    return falls


def _known(values: Float[Tensor, "b"]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def check_masks(grid: tuple[int, int], images: int, masks: Tensor | None) -> None:
    """Refuse masks that are not one number for each patch of each image."""
    if masks is not None and tuple(masks.shape) != (images, *grid):
        raise UsageError(
            f"masks must be one number per patch, {(images, *grid)}, got {tuple(masks.shape)}",
            "masks on the grid of patches",
        )


def _check_attribution(attribution: Attribution, masked: MaskedImages) -> None:
    wanted, chosen = (len(masked.images), *masked.grid), masked.chosen
    if tuple(attribution.values.shape) != wanted:
        raise UsageError(
            f"the attribution has the shape {tuple(attribution.values.shape)}, these images have {wanted}",
            "the images that the attribution was made of",
        )
    against = (attribution.contrast, chosen.contrast)
    same = all(one is None for one in against) or all(one is not None for one in against)
    for given, asked in ((attribution.target, chosen.target), against):
        same = same and (given is None or asked is None or torch.equal(given.cpu(), asked.cpu()))
    if not same:
        raise UsageError("the attribution explains another target than the test", "a test for each target")
