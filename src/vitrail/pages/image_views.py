"""What the page of an explanation shows, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8

from vitrail.text import ShortRepr, number, percent, rounded

Function = Literal["similarity", "number", "token"]
Explains = Literal["class", "contrast"] | Function
"""What a map explains: a class, one rather than another, how alike two images are, a number, a generated token."""

RENAMED = {  # fields of a `TrustView`, in JSON
    "evidence": "evidence_p",
    "faithful": "faithful_p",
    "before": "probability_unmasked",
    "masked": "probability_masked",
    "masked_random": "probability_masked_random",
}
LEFT_OUT = ("random", "reached", "reached_itself")  # of JSON
UNCERTAIN = ("cannot tell", "no better than random")  # verdicts whose maps are drawn pale


@dataclass(frozen=True, repr=False)
class TrustView(ShortRepr):
    """How far to trust one map: the fields of `vitrail.explain.Trust` for one image, None for what is not known.

    Args:
        sentence: What masking patches does, with the verdict, in plain words.
        score: As the other drops None where the test ended with the image, which holds no evidence (--full goes on).
        random: The drop for each random map; empty where none was made.
        fill: What replaced masked patches, by the names of the table in `trust.html`.
        precision: The same for all maps of a report.
        reached: How many images without evidence are as high: surrogates where there were some, else composites.
        reached_itself: How many of these for the explained class itself, and not only for one of theirs.
    """

    verdict: str
    reason: str
    sentence: str
    score: float | None
    interval: tuple[float, float] | None
    random: tuple[float, ...]
    oracle: float | None
    evidence: float | None
    effect: float | None
    minimum_effect: float | None
    effect_unit: str | None
    faithful: float | None
    random_maps: int
    passes: int
    before: float | None
    masked: float | None
    masked_random: float | None
    patches: int
    composites: int
    surrogates: int
    fill: str
    precision: str
    reached: int = 0
    reached_itself: int = 0

    @property
    def rank(self) -> int | None:
        """One more than the random maps that do as well under the same fills, so that a tie counts against a map.

        None for a map without signal, whose order is drawn by lot.
        """
        return None if self.faithful is None else round(self.faithful * (1 + self.random_maps))

    @property
    def random_mean(self) -> float | None:
        """The mean drop of the random maps; None where none was made."""
        return sum(self.random) / len(self.random) if self.random else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, under the same names, but for these.

        rank                      one more than the random maps that do as well
        random_mean               the mean of `random`, which is left out, as are `reached` and `reached_itself`
        evidence_p, faithful_p    `evidence` and `faithful`
        probability_unmasked, probability_masked, probability_masked_random
                                  `before`, `masked` and `masked_random`
        """
        values = {RENAMED.get(name, name): value for name, value in asdict(self).items() if name not in LEFT_OUT}
        return {**values, "rank": self.rank, "random_mean": self.random_mean}


@dataclass(frozen=True)
class AreasView:
    """Areas under two curves of the target's probability (of what is no class, its number), of a map and at random.

    Args:
        deletion: Patches masked in the map's order, from none to all: lower is better.
        insertion: Patches shown in the map's order: higher is better.
        random_deletion: Deletion of random maps, the mean.
        random_insertion: Insertion of random maps, the mean.
    """

    deletion: float
    insertion: float
    random_deletion: float
    random_insertion: float


@dataclass(frozen=True, repr=False)
class ReplacedView(ShortRepr):
    """What stood in some patches of an image when a map was tested, and what became of what is explained.

    Args:
        mask: Which patches were replaced.
        patches: What stood there, clear elsewhere.
        value: The target's probability then (of what has none, its number), in the mean of the test.
        shown: The same with these very patches.
    """

    mask: Bool[np.ndarray, "rows columns"]
    patches: UInt8[np.ndarray, "h w 4"]
    value: float
    shown: float


@dataclass(frozen=True, repr=False)
class AttributionView(ShortRepr):
    """One map over one image.

    Args:
        method: Name of the method, such as `generic_attention`.
        title: The same for people, such as `Generic attention`.
        target: Name of the class whose logit is explained, or of what is explained where it is no class.
        logit: The number that is explained: that class's logit, its difference to the other's, a cosine,
            or a number of the model's.
        values: One number per patch, in the method's own unit; (0, 0) where no map was made: no evidence.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give another map.
        notes: Caveats that the method itself found.
        contrast: Name of the class that the target is held against; None where it stands alone.
        trust: How far to trust it; None where that was not tested.
        parts: What the explained number is the sum of, in words, in its unit; empty where the method has no sum.
        areas: Deletion and insertion, where maps are compared; None elsewhere.
        seconds: What the map took; None where it was not measured.
        function: What the target is where it is no class.
        about: What the method does and what it leaves out, in one paragraph; empty where that is unknown.
        cost: How many passes of the network it takes, in words; None where that was not measured.
        replaced: The image with the highest-ranked patches replaced, and with as many random ones; None where that was
            not tested.
        half: The first patches that carry half of the drop of what is explained; None where nothing is replaced.
        in_data: The number itself, where `logit` is how far one of the data lies from the mean of training.
        sinks: Which patches are sinks, whose values say little of what lies there; None where that is not known.
    """

    method: str
    title: str
    target: str
    logit: float
    values: Float[np.ndarray, "rows columns"]
    signed: bool
    class_specific: bool
    notes: tuple[str, ...] = ()
    contrast: str | None = None
    trust: TrustView | None = None
    parts: tuple[tuple[str, float], ...] = ()
    areas: AreasView | None = None
    seconds: float | None = None
    function: Function | None = None
    about: str = ""
    cost: str | None = None
    replaced: tuple[ReplacedView, ReplacedView] | None = None
    half: Bool[np.ndarray, "rows columns"] | None = None
    in_data: float | None = None
    sinks: Bool[np.ndarray, "rows columns"] | None = None

    @property
    def decisive_sinks(self) -> tuple[int, int]:
        """Of the patches that are outlined or replaced, how many are sinks, and how many there are."""
        if self.sinks is None or self.half is None or self.replaced is None:
            return 0, 0
        decisive = self.half | self.replaced[0].mask
        return int((decisive & self.sinks).sum()), int(decisive.sum())

    @property
    def explains(self) -> Explains:
        """A class, one class rather than another, or what `function` says."""
        return self.function or ("class" if self.contrast is None else "contrast")

    @property
    def lowers(self) -> bool:
        """Whether what is explained is what lowers a number."""
        return self.function == "number" and self.target.startswith("-")

    @property
    def named(self) -> str:
        """What is explained, without the minus of what lowers it."""
        return self.target[self.lowers :]

    @property
    def beside_mean(self) -> str:
        """How far a number of the data lies on which side of the mean of training, in words."""
        above = (self.logit >= 0) != self.lowers
        return f"{self.write(abs(self.logit))} {'above' if above else 'below'} the average in training"

    def write(self, value: float) -> str:
        """A value of what is explained that is no probability; of data with the digits that its interval leaves."""
        if self.in_data is None:
            return number(value, 3)
        return rounded(value, None if self.trust is None else self.trust.minimum_effect)

    @property
    def pale(self) -> bool:
        """Whether its colours would show more than is known."""
        return self.trust is not None and self.trust.verdict in UNCERTAIN

    def to_dict(self, overlay: str | None = None) -> dict[str, Any]:
        """Plain values, for JSON, under the same names, with those of `areas`, which are null where it is None.

        Args:
            overlay: The file with its overlay, where one was written.
        """
        areas = dict.fromkeys(each.name for each in fields(AreasView)) if self.areas is None else asdict(self.areas)
        plain = ("method", "explains", "target", "contrast", "logit", "signed", "class_specific", "cost", "seconds")
        return {
            **{name: getattr(self, name) for name in plain},
            "values": self.values.tolist() if self.values.size else None,
            "notes": list(self.notes),
            "parts": dict(self.parts) or None,
            "overlay": overlay,
            **areas,
            "trust": None if self.trust is None else self.trust.to_dict(),
        }


@dataclass(frozen=True)
class Sureness:
    """How often a model was right when it was about as sure, in an evaluation.

    Args:
        low: Of the probability of its answers that are counted.
        high: The same.
        right: How many of them were right.
        images: Of how many.
        interval: The 95 % interval (Wilson) of the fraction that is right.
        split: What the samples are called.
        note: What else to know of them; may be empty.
        of: What each of them is: an image, a label or class of an image, or a number, right within its interval.
        off: Of numbers the mean absolute error.
    """

    low: float
    high: float
    right: int
    images: int
    interval: tuple[float, float]
    split: str
    note: str = ""
    of: Literal["image", "label", "class", "number"] = "image"
    off: float | None = None


@dataclass(frozen=True)
class BesideView:
    """What to know of an answer besides its maps.

    Args:
        fingerprint: Of the image: BLAKE2b of its file with 16 bytes, in hexadecimal digits; empty where it has none.
        bump: The drop of a bump in the middle, which looks at nothing, tested as the maps are; None where untested.
        sureness: How often the model is right when it is this sure; None where that is not known.
        learnt: Whether the model was trained on this very image, as far as that is known.
        nearest: The nearest training images, each a `vitrail.features.similar.Neighbour`.
    """

    fingerprint: str = ""
    bump: float | None = None
    sureness: Sureness | None = None
    learnt: bool = False
    nearest: Sequence[Any] = ()


@dataclass(frozen=True)
class MadeView:
    """When a page was made, and with what.

    Args:
        date: In ISO 8601, with the time zone.
        versions: Of libraries, by name.
        weights: A hash of the network's weights, as a run has it in `evaluation.json`.
        near: Among which images the nearest were looked for, or why none stand here, in words; may be empty.
    """

    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""
    near: str = ""


@dataclass(frozen=True, repr=False)
class ImageView(ShortRepr):
    """One image, the model's answer, and the maps that explain it.

    Args:
        name: Where the image comes from, such as a file name.
        image: (h, w) or (h, w, 3) uint8, as the model saw it, before normalisation.
        true_label: Its true class, where known.
        top: The likeliest classes with their probabilities in [0, 1], best first.
        attributions: The maps.
        answer: The model's answer in words, where it is not the first of `top`; else empty.
        other: Another image that its maps speak of, as `image`, and its name; None where there is none.
        beside: What else to know of the answer.
        summary: What the first of its maps shows and what not, in plain sentences; empty where nothing is to be said.
        labels: Where several labels are explained, the same for each by itself; else empty.
        limits: From which probability on each label is predicted; empty where an answer is the likeliest class.
        unexplained: How many labels are predicted of it and not explained.
        besides: What else the model answers that no map explains, and how that is asked for; may be empty.
    """

    name: str
    image: UInt8[np.ndarray, "h w *channels"]
    true_label: str | None
    top: list[tuple[str, float]]
    attributions: list[AttributionView]
    answer: str = ""
    other: tuple[str, UInt8[np.ndarray, "h w *channels"]] | None = None
    beside: BesideView = BesideView()
    summary: tuple[str, ...] = ()
    labels: tuple["ImageView", ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    unexplained: int = 0
    besides: str = ""

    @property
    def left(self) -> str:
        """That labels are not explained, in a sentence; empty where all are."""
        more = f"{self.unexplained} more {'is' if self.unexplained == 1 else 'are'} not explained here"
        return f"Of these labels {more}; --top-labels all explains all." if self.unexplained else ""

    @property
    def by_label(self) -> tuple["ImageView", ...]:
        """For each of several labels the image with what explains it; else the image itself."""
        return self.labels or (self,)

    @property
    def second(self) -> str | None:
        """The likeliest class or label of those that are not explained; None where no class by itself is."""
        first = {each.target for each in self.attributions if each.explains == "class"}
        return next((name for name, _ in self.top if name not in first), None) if first else None

    def facts(self) -> dict[str, Any]:
        """What stands below its maps, as plain values, for JSON."""
        near = [{"file": one.name, "label": one.label, "distance": one.distance} for one in self.beside.nearest]
        sure = None if self.beside.sureness is None else asdict(self.beside.sureness)
        return {**vars(self.beside), "sureness": sure, "nearest": near, "second": self.second}

    @property
    def predicted(self) -> str:
        """What the model says: its answer in words, else the likeliest class."""
        return self.answer or (self.top[0][0] if self.top else "")

    def sure_of(self, view: AttributionView) -> float | None:
        """The probability of what a map explains, of the answer where it stands there, else of the test; or None."""
        tested = None if view.trust is None else view.trust.before
        return dict(self.top).get(view.target, tested) if view.contrast is None and tested is not None else tested

    @property
    def drawn(self) -> bool:
        """Whether it has maps; one of several images that holds no evidence has none."""
        return all(each.values.size for each in self.attributions)

    @property
    def one_scale(self) -> bool:
        """Whether its maps share one colour scale, of each patch's fraction of its map's total: several methods do."""
        return len({each.method for each in self.attributions}) > 1


@dataclass(frozen=True)
class Rates:
    """Of how many images the explanations are supported.

    Args:
        name: Of the method; of the rates of a class, the class (or what else was explained).
        supported: How many; a tiny effect is none.
        images: Of how many.
        interval: The 95 % interval (Wilson) of the fraction that is supported.
        counts: How many images have each verdict, the best first.
        classes: The same for each class, the smallest fraction first.
        title: Of the method, for people.
        bounded: Whether no map could be supported, since no least effect of what was explained is known.
    """

    name: str
    supported: int
    images: int
    interval: tuple[float, float]
    counts: Mapping[str, int]
    classes: tuple["Rates", ...] = ()
    title: str = ""
    bounded: bool = False

    @property
    def words(self) -> str:
        """In a sentence."""
        if self.bounded:
            weak = self.counts.get("weak", 0)
            found = f"{weak} of {self.images} explanations {'is' if weak == 1 else 'are'} weak"
            return f"{found}, the best that is possible: no least effect is known"
        low, high = (percent(each, 0) for each in self.interval)
        verb = "is" if self.supported == 1 else "are"
        return f"{self.supported} of {self.images} explanations {verb} supported (95 %: {low} to {high})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "method": self.name,
            **self.numbers(),
            "per_class": {each.name: each.numbers() for each in self.classes},
        }

    def numbers(self) -> dict[str, Any]:
        """The numbers alone, without names and classes."""
        return {
            "supported": self.supported,
            "images": self.images,
            "interval": list(self.interval),
            "counts": self.counts,
        }
