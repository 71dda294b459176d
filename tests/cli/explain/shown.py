"""The images that `vitrail explain` shows of what is named, for tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

import vitrail
from vitrail.cli.args import Explain
from vitrail.cli.explain import open_images, read_samples
from vitrail.data.images import NamedImage
from vitrail.explain.reporting.plan import Opener, ReportPlan
from vitrail.runs.beside import RunKnowledge


def shown_of(
    model: vitrail.Model,
    run: str | Path,
    name: object,
    count: int,
    notify: Callable[[str], object] = lambda sentence: None,
) -> tuple[Sequence[NamedImage], Sequence[Opener]]:
    """The images, and all that may fill their masked patches."""
    samples, numbers = read_samples(model, Explain(run=str(run), images=(str(name),), count=count), notify)
    shown, _, others = open_images(samples, numbers, model, ReportPlan(model, (), RunKnowledge(model)), notify)
    return shown, others
