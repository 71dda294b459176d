"""Of how many images an explanation is supported: for all of them, and for each class, with intervals.

A single verdict speaks of one image. Whether a network looks at the thing, and for which classes it does not, only many
images tell; and of these the ones whose map is not to be trusted are the ones to look at first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.explain.reporting.explained import ExplainedImage
from vitrail.pages.views import ClassRate, RateView
from vitrail.tasks.task import wilson_interval
from vitrail.text import percent

SUPPORTED = "supported"
ORDER = ("no better than random", "cannot tell", "weak", "supported, tiny", SUPPORTED)  # the worst first


@dataclass(frozen=True)
class Rates:
    """The verdicts on one method's attributions of some images.

    Attributes:
        method: Its title.
        counts: How many images have each verdict.
        classes: The same of the images for which each class (or other thing) was explained.
    """

    method: str
    counts: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """How many were tested."""
        return sum(self.counts.values())

    @property
    def supported(self) -> int:
        """Images whose attribution is supported; a tiny effect is none."""
        return self.counts.get(SUPPORTED, 0)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval (Wilson) of the fraction that is supported."""
        return wilson_interval(self.supported, self.images)

    @property
    def words(self) -> str:
        """In a sentence."""
        low, high = (percent(each, 0) for each in self.interval)
        return f"{self.supported} of {self.images} explanations supported (95 %: {low} to {high})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the interval is that of the fraction that is supported."""
        found = {"method": self.method, **_plain(self.counts)}
        return {**found, "per_class": {name: _plain(counts) for name, counts in self.classes.items()}}

    def view(self) -> RateView:
        """The same for a page."""
        rows = [ClassRate(name, each["supported"], each["images"], each["interval"]) for name, each in self._rows()]
        others = {name: self.counts[name] for name in reversed(ORDER) if self.counts.get(name)}
        return RateView(self.method, self.supported, self.images, self.interval, others, tuple(rows))

    def _rows(self) -> list[tuple[str, dict[str, Any]]]:
        """The classes, those with the smallest fraction first."""
        rows = [(name, _plain(counts)) for name, counts in self.classes.items()]
        return sorted(rows, key=lambda row: (row[1]["supported"] / row[1]["images"], -row[1]["images"], row[0]))


def _plain(counts: Mapping[str, int]) -> dict[str, Any]:
    supported, images = counts.get(SUPPORTED, 0), sum(counts.values())
    interval = list(wilson_interval(supported, images))
    return {"supported": supported, "images": images, "interval": interval, "counts": dict(counts)}


def rates_of(images: Sequence[ExplainedImage]) -> tuple[Rates, ...]:
    """The rates of each method; none where nothing was tested.

    Args:
        images: Explained by the same methods.
    """
    if not images or any(each is None for one in images for each in one.trust):
        return ()
    found = []
    for place, first in enumerate(images[0].view.attributions):
        counts, classes = Counter[str](), dict[str, Counter[str]]()
        for one in images:
            view, verdict = one.view.attributions[place], one.verdicts[place]
            assert verdict is not None
            counts[verdict] += 1
            classes.setdefault(view.target, Counter())[verdict] += 1
        found.append(Rates(first.title, dict(counts), {name: dict(each) for name, each in sorted(classes.items())}))
    return tuple(found)


def least_trusted_first(images: Sequence[ExplainedImage]) -> list[ExplainedImage]:
    """The images in the order in which they are to be looked at; of equals in the order in which they were given."""

    def rank(one: ExplainedImage) -> float:
        return sum(ORDER.index(each) for each in one.verdicts if each is not None)

    return sorted(images, key=rank)
