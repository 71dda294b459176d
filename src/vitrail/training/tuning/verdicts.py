"""Whether a network looks at the thing: how many of its explanations of held-out images are supported by a test.

Two networks that are right as often may be so for different reasons; this counts, of the same images, for how many the
map of `generic_attention` for the answer is `supported` (`vitrail.explain.trust`), for each of the two.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.dataset import Split
from vitrail.data.images import Images
from vitrail.errors import DataError
from vitrail.explain import generic_attention, trust
from vitrail.explain.verdict import Precision
from vitrail.explain.without_evidence import COMPOSITES
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.tasks.task import wilson_interval
from vitrail.text import percent
from vitrail.training.prepared import Prepared

COUNT = 24
MOST_SECONDS = 60.0  # that are spent without being asked for
PASSES = 200  # forward passes for each image, about; composites come once for each network
TOGETHER = 8


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on the explanations of some images.

    Attributes:
        counts: How many have each verdict.
        images: All of them.
    """

    counts: Mapping[str, int]
    images: int

    @property
    def supported(self) -> int:
        """Images whose explanation is supported."""
        return self.counts.get("supported", 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the interval is that of the share that is supported."""
        interval = list(wilson_interval(self.supported, self.images))
        return {"supported": self.supported, "images": self.images, "interval": interval, "counts": dict(self.counts)}

    @property
    def words(self) -> str:
        """In a sentence."""
        low, high = (percent(each, 0) for each in wilson_interval(self.supported, self.images))
        return f"{self.supported} of {self.images} explanations supported (95 %: {low} to {high})"


def wanted(prepared: Prepared, asked: int | None) -> tuple[int, str]:
    """How many images are explained by each network, and a sentence where that is none because it takes long.

    Args:
        prepared: The run; its seconds of a step say how long a pass takes.
        asked: By a person; None leaves it to the time that it takes.
    """
    settings, model = prepared.settings, prepared.model
    if settings.initial is None or settings.fits_head or model.background is None:
        return 0, ""
    if asked is not None:
        return asked, ""
    alone = prepared.step_seconds * prepared.processes
    each = alone / settings.optimization.batch_size / 3  # a forward pass is a third of a step
    seconds = 2 * (COUNT * PASSES + COMPOSITES) * each
    if seconds <= MOST_SECONDS and not settings.optimization.max_time:
        return COUNT, ""
    return 0, f"--verdicts {COUNT} would test {COUNT} explanations of each network, in about {seconds / 60:.0f} min"


def verdicts_of(model: Model, split: Split, count: int, precision: Precision = "fp32") -> Verdicts:
    """The verdicts of a model's own answers on some images, evenly spread over a split.

    Args:
        model: With its background.
        split: Held-out images.
        count: How many; all where there are fewer.
        precision: Of the passes that test a map, as the run was trained in.
    """
    inputs, network = split.samples.inputs, model.network
    assert isinstance(inputs, Images)
    assert isinstance(network, ViT)
    places = np.unique(np.linspace(0, len(inputs) - 1, min(count, len(inputs))).astype(int))
    opened = []
    for place in places.tolist():
        try:
            opened.append(inputs.open(place))
        except (DataError, OSError):  # told where it was left out
            continue
    found: Counter[str] = Counter()
    for first in range(0, len(opened), TOGETHER):
        images = model.tensor(opened[first : first + TOGETHER])
        with torch.enable_grad():
            heat = generic_attention(network, images)
        found.update(trust(model, images, heat, precision=precision).verdict)
    return Verdicts(found, len(opened))


def compare_verdicts(
    model: Model,
    networks: Mapping[str, nn.Module],
    split: Split,
    count: int,
    precision: Precision,
    say: Callable[[str], None],
) -> dict[str, Verdicts]:
    """The same images explained by each network, by name; says what each had."""
    found = {}
    for name, network in networks.items():
        found[name] = verdicts_of(replace(model, network=network.eval()), split, count, precision)
        say(f"{name}: {found[name].words}")
    return found
