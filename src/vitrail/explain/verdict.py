"""How far to trust a map: two questions, and the verdict, a pure function of their answers.

    held = trust(model, images, attribution)
    held.verdict           ("supported", "cannot tell", ...)
    held.sentence(0, "7")  what masking the highest-ranked patches of image 0 does, beside masking random ones

    evidence    Is the explained number exceptional among images that hold no evidence? Of two kinds of these, the one
                that reaches it more often counts. And are the odds of the class many times as high (`evidence.py`)?
    faithful    Does masking what the map names change that number more than masking what random maps name does
                (`scores/faithfulness.py`)? p = (1 + random maps with at least that change) / (1 + random maps).

A number that is neither a class nor a similarity has no scale on which its rise would be large or small. Networks that
are half shuffled raise such numbers above those of all composites in two of five photographs, so "weak" is the most
that a map of one gets.

Either alone is not enough. A scrambled network does react to what a map of it names, so its maps are faithful, to
nothing; and evidence says that there is something to find, not that the map found it. A random map of an image is
faithful at 0.05 in one of 20 cases, for any network; a network that has learnt nothing finds numbers exceptional at
0.05 about as often, and some that are half shuffled more often. The figures behind the limits are in
benchmarks/explain.md, the rules that failed in benchmarks/LOG.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.arguments import check_kind, typed
from vitrail.data.background import FEW
from vitrail.errors import UsageError, check_index
from vitrail.explain.attribution import NO_SIGNAL, NOT_FINITE, Attribution, caveats
from vitrail.explain.evidence import EVIDENCE, Evidence, check_background, composite_logits, find_evidence, n_distinct
from vitrail.explain.forward import Grid, WithGrid, check_explainable, with_grid
from vitrail.explain.scores.faithfulness import (
    FAITHFUL,
    STEPS,
    Drops,
    MaskedImages,
    check_attribution,
    check_masks,
    mean_drops,
    measure_drops,
    measure_true_masks,
)
from vitrail.explain.scores.perturb import at_a_time, compute_logits, from_background, in_precision, own_patches
from vitrail.explain.target import Target, choose_target, codec_of
from vitrail.jobs.precision import Precision, PrecisionOption, choose_precision_for
from vitrail.model import Model
from vitrail.nn.vit import Images
from vitrail.pages.image_views import TrustView
from vitrail.tasks.target import FUNCTION, TINY, OfLogits, Unit
from vitrail.text import ShortRepr, number, percent_in_words, times_words

Verdict = Literal["supported", "supported, tiny", "weak", "no better than random", "cannot tell"]
Kind = Literal["composites", "surrogates"]

WEAK = 0.20
BESIDE = 15  # images of the background on which a precision is chosen, too
VISIBLE = 0.05  # difference of probabilities that a sentence speaks of
_CARRY = "there is evidence, and the patches that the map highlights carry it"
TEN_OTHERS = "at least ten background images are needed (--background DIR, in Python background=)"

_NO_LEAST = "; how large an effect must be is not known for such a number"
_REACHED: dict[Kind, str] = {
    "composites": ": composites of other images' patches reach the value",
    "surrogates": " beyond colours and smoothness: noise of the same colours and smoothness reaches the value",
}


def verdict(
    evidence: float | None,
    faithful: float | None,
    distinct: int,
    kind: Kind = "composites",
    effect: float | None = None,
    least: float | None = None,
    unit: Unit | None = "nats",
    drop: float | None = None,
) -> tuple[Verdict, str]:
    """The verdict and the reason for it, in plain words.

    Args:
        evidence: p of the first question; None where unknown.
        faithful: p of the second; None for a map without signal, which names nothing, and where nothing was tested.
        distinct: How many different background images fill masked patches. With none, a change may come from the fill
            itself; with few, it is not known what is exceptional: the verdict is "cannot tell".
        kind: Of the images without evidence, those that reached the number more often; for the reason.
        effect: By how much the log-odds of the class, or the cosine, lie above those of the middle composite.
        least: The least of it; None where none is known, as for a function: then "weak" is the best.
        unit: Of both.
        drop: How much more the number drops in the map's order than in that of random maps.
    """
    if distinct == 0:
        why = "there are no background images to fill masked patches with, so a change may come from the fill"
        return "cannot tell", f"{why}; {TEN_OTHERS}"
    if evidence is None:
        few = f"{distinct} different background image{'s are' if distinct > 1 else ' is'} too few"
        return "cannot tell", f"{few} to measure how the network scores images without evidence; {TEN_OTHERS}"
    if evidence > EVIDENCE:
        return "cannot tell", f"no evidence found{_REACHED[kind]} too often ({_p(evidence, EVIDENCE)})"
    if least is not None and not (effect is not None and effect >= least):
        return "cannot tell", f"no evidence found, because {_too_small(effect, least, unit)}"
    if faithful is None:
        return "cannot tell", "the map gives all patches the same value"
    if faithful <= FAITHFUL and least is None:
        return "weak", f"{_CARRY}, but how large an effect must be is known only for classes and similarities"
    tiny = 0.0 if unit is None else TINY[unit] * (least or 0.0) if unit == "data" else TINY[unit]
    if faithful <= FAITHFUL and drop is not None and drop < tiny:
        drops = f"the explained value drops by only {drop:.1g} more"
        by = f"{drops} than in the order of random maps (the limit is {tiny:.3g})"
        return "supported, tiny", f"{_CARRY}, but only just: {by}"
    if faithful <= FAITHFUL:
        return "supported", _CARRY
    if faithful <= WEAK:
        return "weak", f"there is evidence, but {_as_good(faithful)}"
    return "no better than random", _as_good(faithful)


def _too_small(effect: float | None, least: float, unit: Unit | None) -> str:
    """Why an effect is none, in words."""
    theirs = "of a composite of other images' patches"
    if unit == "cosine":
        raised = "not known to be" if effect is None else f"{effect:.2f}"
        return f"the cosine is {raised} above that {theirs} (the limit is {least:.2f})"
    if unit == "data":
        raised = "not known to be" if effect is None else number(effect, 3)
        return f"the number is {raised} beyond that {theirs} (the limit is {number(least, 3)})"
    raised = "not known to be" if effect is None else f"only {times_words(effect)}"
    return f"the odds are {raised} those {theirs} (the limit is {times_words(least)})"


def _as_good(p: float) -> str:
    return f"random maps do as well too often ({_p(p, FAITHFUL)})"


def _p(p: float, limit: float) -> str:
    """A p above its limit, which must not read like the limit."""
    return f"p = {p:.2f}, the limit is {limit:g}" if round(p, 2) > limit else f"p = {p:.3f}, the limit is {limit:g}"


@dataclass(frozen=True, eq=False, repr=False)
class Trust(ShortRepr):
    """How far to trust each map of an attribution: the verdict, and what both tests found; one entry for each image.

    Attributes:
        verdict: "supported", "supported, tiny", "weak", "no better than random" or "cannot tell".
        reason: Why, in plain words.
        evidence: Whether the images hold evidence.
        drops: What masking patches did; nothing where the test ended with an image that holds no evidence, and
            `faithful` is nan also for a map without signal.
        oracle: (b,), the score of the true mask; None without a mask, nan where one is empty.
        passes: (b,), forward passes of the image for this verdict: as it is, of surrogates, and masked in the order of
            the map and of random maps. All maps of an image share the first two.
        before: (b,), the target's probability, for a contrast that among the two classes; nan for a function, and for
            a network of one output.
        fill: What replaced masked patches.
        precision: In which the passes of the test were computed.
    """

    verdict: tuple[Verdict, ...]
    reason: tuple[str, ...]
    evidence: Evidence
    drops: Drops
    oracle: Float[Tensor, "b"] | None
    passes: Int[Tensor, "b"]
    before: Float[Tensor, "b"]
    fill: str
    precision: Precision

    def view(self, image: int, name: str, among: str = "", sure: float | None = None) -> TrustView:
        """What a page shows of one image: words, numbers, and None for what is not known; see `sentence`."""
        image = check_index("image", image, len(self.verdict))
        values = {**vars(self), **vars(self.drops), **vars(self.evidence), "evidence": self.evidence.p}
        names = [each.name for each in fields(TrustView) if each.name in values]
        shown: dict[str, Any] = {each: _plain_of_image(values[each], image) for each in names}
        shown["random"] = shown["random"] or ()
        return TrustView(**shown, sentence=self.sentence(image, name, among, sure))

    def sentence(self, image: int, name: str, among: str = "", sure: float | None = None) -> str:
        """What masking patches of one image does to what is called `name`, and the verdict, for people.

        It has the probability where that shows what the verdict means, and the score, which decided, where it does
        not: a sure network can lose much of its score and be as sure as before. Of what the probability is stands
        behind it as `among`, such as " of the two" for a contrast. The answer may have been computed in another
        precision: `sure` is its probability, which stands beside the sentence.
        """
        word = self.verdict[image := check_index("image", image, len(self.verdict))]
        if word == "cannot tell":
            return f"Cannot tell: {self.reason[image]}."
        drops = self.drops
        before, after, chance = (float(each[image]) for each in (self.before, drops.masked, drops.masked_random))
        shown = chance - after >= VISIBLE  # False for nan, too
        if not shown or word == "no better than random":
            own, random = float(drops.score[image]), float(drops.random[image].nanmean())
            is_class = not math.isnan(before)
            what, places = (f"the logit of {name}", 1) if is_class else (name, 2)
            moves = "lowers"
            if not is_class and name.startswith("-"):
                moves, what = "raises", name[1:]
            lost, at_random = (write_apart(each, own, random, least=places) for each in (own, random))
            unknown = _NO_LEAST if word == "weak" and self.evidence.minimum_effect[image].isnan() else ""
            return (
                f"Masking patches in the map's order {moves} {what} by {lost} on average, in the order of random maps "
                f"by {at_random}{unknown}: {word}."
            )
        count = int(drops.patches[image])
        highest = "the highest-ranked patch" if count == 1 else f"the {count} highest-ranked patches"
        random = "a random patch" if count == 1 else f"{count} random patches"
        moves, first = "drops" if after < before else "takes", percent_in_words(sure or before)
        return (
            f"Masking {highest} {moves} {name} from {first} to {percent_in_words(after)}{among}; "
            f"masking {random} leaves {percent_in_words(chance)}: {word}."
        )


def _plain_of_image(values: Any, image: int) -> Any:
    """What one image has of them, None for what is not known; what is no sequence concerns all images."""
    match values:
        case tuple():
            return values[image]
        case Tensor():
            own = values[image].tolist()
            if isinstance(own, list):
                return tuple(value for value in own if value == value) or None
            return own if own == own else None
    return values


def write_apart(value: float, *beside: float, least: int = 1) -> str:
    """A number with as many decimals as tell it from those beside it: so many at least, and at most four."""
    low, high = min(beside), max(beside)
    places = next((places for places in range(least, 4) if round(low, places) < round(high, places)), 4)
    return f"{round(value, places) + 0.0:.{places}f}"  # + 0.0 for zero without a sign


@runtime_checkable
class Explainable(Protocol):
    """A network, and images whose patches fill masked ones; `vitrail.Model` is one."""

    @property
    def network(self) -> nn.Module:
        """In eval mode."""

    @property
    def background_images(self) -> Float[Tensor, "r c h w"] | None:
        """Background images as the network reads them; None where the model carries none."""


def network_and_background(
    model: object, background: Float[Tensor, "r c h w"] | None = None
) -> tuple[nn.Module, Float[Tensor, "r c h w"] | None]:
    """What is explained, and the background: the one that is passed, which a network by itself needs, or the model's.

    Raises:
        UsageError: There is no network, or a network alone.
    """
    if isinstance(model, nn.Module) and background is not None:
        return model, background
    if not isinstance(model, Explainable):
        problem = f"model must have a network and a background (background_images), got {type(model).__name__}"
        raise UsageError(problem, "vitrail.load(folder); or background= with images as the network reads them")
    return model.network, model.background_images if background is None else background


@dataclass(frozen=True, eq=False)
class TrustOptions:
    """How maps are tested; `trust` documents each field."""

    background: Float[Tensor, "r c h w"] | None = None
    masks: Bool[Tensor, "b rows columns"] | None = None
    precision: PrecisionOption = "auto"
    seed: int = 0
    full: bool = False


@typed
@torch.inference_mode(False)
@torch.no_grad()
def trust(
    model: Explainable | nn.Module,
    images: Images,
    attribution: Attribution,
    *,
    background: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    function: OfLogits | None = None,
    precision: PrecisionOption = "auto",
    seed: int = 0,
    full: bool = False,
) -> Trust:
    """Score an attribution, compare it with random maps, and say how far to trust it.

    A clear image takes 175 forward passes: 1 as it is, 29 for evidence, 120 for random maps and 25 for the
    map; a further map of it 145; one without evidence 1, or 30 and more. Composites of the background take 499, once
    for a network, and are stored (`evidence.py`).

    Args:
        model: A network in eval mode with its background; or any network by itself, with `background`.
        images: (b, c, h, w), the images that the attribution explains, as the network reads them.
        attribution: What a method returned for these images.
        background: Images whose patches fill masked ones, as the network reads them (`model.tensor(files)`, of the same
            kind as those explained); the model's own when None. With fewer than ten that differ the verdict is "cannot
            tell"; with none, patches of the same image replace masked ones.
        masks: True on the patches that hold the evidence, where that is known.
        function: The function that was explained, for an attribution whose target is one.
        precision: Of the forward passes: "fp32", "bf16", or "auto" for bf16 where it is faster and gives the same
            classes (timed once for a model, and stored).
        seed: Decides random maps and fills.
        full: Test the maps of images without evidence, too, which changes no verdict.

    Returns:
        One verdict for each image, and the numbers behind it, on the CPU.

    Raises:
        UsageError: If attribution, images, masks or background do not fit each other.
    """
    check_kind("images", images, Tensor, "model.tensor(['photo.jpg']), the images as the network reads them")
    wanted = "what a method returned for these images, or Attribution.of_pixels(numbers, images, model)"
    check_kind("attribution", attribution, Attribution, wanted)
    if len(attribution) != len(images):
        problem = f"the attribution explains {len(attribution)} images, but {len(images)} were passed"
        raise UsageError(problem, "the images that the attribution explains")
    has_grid = isinstance(network_and_background(model, background)[0], WithGrid)
    grid = None if has_grid else (attribution.values.shape[-2], attribution.values.shape[-1])
    options = TrustOptions(background, masks, precision, seed, full)
    return prepare(model, images, target_of(attribution, function), options, grid=grid).evaluate(attribution)


@torch.inference_mode(False)
@torch.no_grad()
def prepare(
    model: Explainable | nn.Module,
    images: Images,
    target: Target,
    options: TrustOptions = TrustOptions(),
    *,
    grid: Grid = None,
    logits: Float[Tensor, "b v"] | None = None,
) -> "PreparedTest":
    """Do what all maps of these images have in common; errors are those of `trust`.

    Args:
        model: A network in eval mode with its background, or any network.
        images: (b, c, h, w).
        target: What the maps explain.
        options: How they are tested.
        grid: (rows, columns) of patches; the network's own when None.
        logits: Of the images as they are, where a pass in fp32 gave them already.
    """
    network, used = network_and_background(model, options.background)
    whole, without = with_grid(network, grid, images), None
    check_explainable(whole, images, False)
    if images.dim() != 4:
        raise UsageError(
            f"a test masks patches of images (b, c, h, w), but these have the shape {tuple(images.shape)}",
            "images, not the patches that they are cut into",
        )
    if not len(images):
        raise UsageError("there is no image to test", "images of at least one image")
    check_masks(whole.grid(images), len(images), options.masks)
    if used is not None:
        whose = "the model's background" if options.background is None else "a background"
        check_background(used, images.shape[1:], whose)
        used = used.to(images)
    fill = own_patches() if used is None else from_background(used)
    precision = precision_for(model, images) if options.precision == "auto" else options.precision
    network = in_precision(whole, precision)
    if logits is None or precision != "fp32":
        logits = compute_logits(network, len(images), images.__getitem__, at_a_time(images))
    chosen = choose_target(logits, target, codec_of(model))
    masked = MaskedImages(network, images, chosen, logits, fill, options.seed)
    distinct = 0 if used is None else n_distinct(used)
    if used is not None and distinct >= FEW:
        stored = model.composites if isinstance(model, Model) else None
        without = composite_logits(whole, used, options.seed, precision, stored)
        masked = replace(masked, chosen=chosen.on_side(logits, without))
    evidence = find_evidence(masked, without, distinct)
    tested = torch.full_like(evidence.found, True) if options.full else evidence.found
    oracle = None if options.masks is None else measure_true_masks(options.masks, masked, tested)
    return PreparedTest(masked, evidence, tested, oracle, distinct, precision, without)


def target_of(attribution: Attribution, function: OfLogits | None = None) -> Target:
    """What an attribution explains; where it is a function, that has to be passed again.

    Raises:
        UsageError: If a function is missing, or one is passed for an attribution that explains a class.
    """
    if bool((attribution.target == FUNCTION).any()) and function is None:
        problem = "the attribution explains a function, which was not passed"
        raise UsageError(problem, "function=..., the one that was explained")
    if function is not None and not bool((attribution.target == FUNCTION).all()):
        raise UsageError("the attribution explains a class, but a function was passed", "trust without function=")
    if function is not None:
        return function
    return attribution.target if attribution.contrast is None else (attribution.target, attribution.contrast)


def precision_for(model: Explainable | nn.Module, images: Images) -> Precision:
    """The precision that "auto" stands for: timed on an image and the model's background, if no choice is stored.

    Args:
        model: Anything but a `vitrail.Model` stays as it is.
        images: Of which the first is taken.
    """
    if not isinstance(model, Model):
        return "fp32"
    background = model.background_images
    beside = images[:0] if background is None else background[:BESIDE].to(images)
    return choose_precision_for(model, torch.cat([images[:1], beside])).precision


@dataclass(frozen=True, eq=False)
class PreparedTest:
    """What all maps of the same images and target are tested with; made by `prepare`.

    Attributes:
        masked: The images, what is explained of them, and what their patches are masked with.
        evidence: Whether the images hold evidence.
        tested: (b,), whether maps of an image are tested: where there is evidence, or where all are.
        oracle: (b,), the drop when the true patches are masked first; nan where nothing is tested, None where they are
            not known.
        distinct: How many different background images there are.
        precision: Of the passes.
        without: (count, v), of the composites; None where evidence is unknown.
    """

    masked: MaskedImages
    evidence: Evidence
    tested: Bool[Tensor, "b"]
    oracle: Float[Tensor, "b"] | None
    distinct: int
    precision: Precision
    without: Float[Tensor, "count v"] | None

    @property
    def ended(self) -> Bool[Tensor, "b"]:
        """Whether no evidence was found in an image, so that no map of it is tested, and the verdict stands without."""
        return ~self.tested & ~self.evidence.p.isnan()

    def select(self, images: list[int]) -> "PreparedTest":
        """The same of some of the images."""
        masked = self.masked.select(torch.tensor(images, device=self.masked.images.device))
        oracle = None if self.oracle is None else self.oracle[images]
        return replace(
            self, masked=masked, evidence=self.evidence.select(images), tested=self.tested[images], oracle=oracle
        )

    def counting(self, maps: int, bump: bool, progress: Callable[[int, int], None]) -> "PreparedTest":
        """The same, with the passes of its tests counted, where they are done when they are counted: on a processor."""
        if self.masked.images.device.type != "cpu":
            return self
        tested = self.masked.select(self.tested.nonzero()[:, 0])
        network = tested.counting(maps, maps > 1, bump, progress).network
        return replace(self, masked=replace(self.masked, network=network))

    @torch.inference_mode(False)
    @torch.no_grad()
    def bump(self) -> Float[Tensor, "b"]:
        """What a map that looks at nothing drops, on the CPU, nan where untested; it takes 25 passes.

        It is a Gaussian in the middle of the grid, whose standard deviation is a quarter of it each way.
        """
        rows, columns = (torch.linspace(-2, 2, count).to(self.masked.before) for count in self.masked.grid)
        values = torch.exp(-(rows[:, None] ** 2 + columns**2) / 2)
        return mean_drops(values.expand(len(self.tested), -1, -1), self.masked, self.tested).cpu()

    @torch.inference_mode(False)
    @torch.no_grad()
    def evaluate(self, attribution: Attribution, areas: bool = False) -> Trust:
        """Mask patches in the order of a map and of random maps, and say how far to trust the map.

        Args:
            attribution: What a method returned for these images.
            areas: Whether deletion and insertion are measured as well: 14 more passes.

        Raises:
            UsageError: If the attribution is not of these images, or explains something else.
        """
        check_attribution(attribution, self.masked)
        hidden = self.masked.hidden(self.without) if areas else None
        drops = measure_drops(attribution.values, self.masked, self.tested, hidden)
        notes = [{*own, *seen} for own, seen in zip(attribution.notes, caveats(attribution.values), strict=True)]
        silent = torch.tensor([bool({NO_SIGNAL, NOT_FINITE} & some) for some in notes], device="cpu")
        drops = replace(drops, faithful=drops.faithful.masked_fill(silent, torch.nan))
        found, beyond = self.evidence, drops.score - drops.random.nanmean(dim=1)
        kinds: list[Kind] = ["surrogates" if count else "composites" for count in found.surrogates.tolist()]
        known = map(_none_for_nan, (found.p, drops.faithful, found.effect, found.minimum_effect, beyond))
        verdicts: list[tuple[Verdict, str]] = [
            ("cannot tell", "the map has non-finite values (NaN or infinity)")
            if NOT_FINITE in some
            else verdict(p, rank, self.distinct, kind, effect, least, found.effect_unit, drop)
            for some, kind, p, rank, effect, least, drop in zip(notes, kinds, *known, strict=True)
        ]
        return Trust(
            verdict=tuple(word for word, _ in verdicts),
            reason=tuple(why for _, why in verdicts),
            evidence=found,
            drops=drops,
            oracle=None if self.oracle is None else self.oracle.cpu(),
            passes=1 + found.surrogates + STEPS * (drops.random_maps + STEPS * (drops.random_maps > 0)),
            before=self.masked.chosen.probability(self.masked.logits).cpu(),
            fill=self.masked.fill.name,
            precision=self.precision,
        )


def _none_for_nan(values: Float[Tensor, "b"]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
