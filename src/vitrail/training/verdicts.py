"""Whether a network looks at the thing: how many of its explanations of held-out images are supported by a test.

Two networks that are right as often may be so for different reasons. So at the end of a run the maps of
`generic_attention` for the network's own answers are tested (`vitrail.explain.report`), and of how many images they are
supported is counted, for all and for each class; where there are two networks, for both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from vitrail.data.dataset import Split
from vitrail.data.images import Images, NamedImage
from vitrail.errors import DataError
from vitrail.explain.reporting.explained import ExplainedImage, explained
from vitrail.explain.reporting.report import Rates, least_trusted_first, rates_of
from vitrail.explain.reporting.request import requested
from vitrail.explain.verdict import Precision
from vitrail.explain.without_evidence import COMPOSITES
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.pages.views import VerdictsView
from vitrail.training.prepared import Prepared

MODEL = "model"  # what the network of a run is called where it is the only one
COUNT = 24
MOST_SECONDS = 60.0  # that are spent without being asked for
PASSES = 200  # forward passes for each image, about; composites come once for each network
SHOWN = 12  # images on the page, those whose maps are not to be trusted first


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on the explanations of some images by one network.

    Attributes:
        rates: Of how many they are supported.
        images: What was explained.
    """

    rates: Rates
    images: tuple[ExplainedImage, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        first = [{"file": one.name, "verdict": one.verdicts[0]} for one in least_trusted_first(self.images)]
        return {**self.rates.to_dict(), "least_trusted_first": first}

    @property
    def view(self) -> VerdictsView:
        """What a page shows of it."""
        return VerdictsView(self.rates.view(), [one.view for one in least_trusted_first(self.images)[:SHOWN]])


def wanted(prepared: Prepared, asked: int | None) -> tuple[int, str]:
    """How many images are explained by each network, and a sentence where that is none although one may want some.

    Args:
        prepared: The run; its seconds of a step say how long a pass takes.
        asked: By a person; None leaves it to the time that it takes, for runs that start from weights.
    """
    settings, model = prepared.settings, prepared.model
    if settings.fits_head or asked == 0 or (asked is None and settings.initial is None):
        return 0, ""
    if model.background is None:
        return 0, "" if asked is None else "no explanation is tested: the model carries no background"
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
    inputs = split.samples.inputs
    assert isinstance(inputs, Images)
    assert isinstance(model.network, ViT)
    places = np.unique(np.linspace(0, len(inputs) - 1, min(count, len(inputs))).astype(int))
    images = []
    for place in places.tolist():
        try:
            images.append(NamedImage(inputs.name(place), inputs.open(place)))
        except (DataError, OSError):  # told where it was left out
            continue
    model, request = requested(model, precision=precision)
    found = tuple(explained(model, images, request)) if images else ()
    rates = rates_of(found) or (Rates(request.methods[0].title, {}),)
    return Verdicts(rates[0], found)


def tested(
    model: Model,
    networks: Mapping[str, nn.Module],
    split: Split,
    prepared: Prepared,
    asked: int | None,
    say: Callable[[str], None],
) -> dict[str, Verdicts]:
    """The verdicts on the same images explained by each network, by name; none where they are not wanted.

    Args:
        model: Of the run that is finished.
        networks: The probe and the tuned one; empty where the model's is the only one.
        split: Held-out images.
        prepared: The run.
        asked: How many images; None leaves it to the time that it takes.
        say: Told what each network had, or why nothing was tested.
    """
    count, words = wanted(prepared, asked)
    if words:
        say(words)
    if not count:
        return {}
    precision, found = prepared.settings.execution.precision, dict[str, Verdicts]()
    for name, network in (networks or {MODEL: model.network}).items():
        found[name] = verdicts_of(replace(model, network=network.eval()), split, count, precision)
        say(f"{name}: {found[name].rates.words}")
    return found
