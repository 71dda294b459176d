"""Who computes a job over many images, as it was typed, and how far it is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.cli.args import Job, Weights
from vitrail.cli.output import console, warn
from vitrail.cli.weights import said
from vitrail.jobs.on_ray import Cluster, check_ray
from vitrail.jobs.opening import Opening, identity_of
from vitrail.jobs.parts import Progress
from vitrail.model import Model


def cluster_of(typed: Job, threads: int | None) -> Cluster | None:
    """The workers that were asked for; None where this process computes.

    Raises:
        UsageError: Ray is missing, or another one than is wanted.
    """
    if typed.ray is None:
        return None
    check_ray()
    return Cluster(typed.ray, typed.workers, threads or 1, typed.deadline, warn)


def opening_of(run: str, typed: Weights, model: Model) -> Opening:
    """What workers load a model by that this process has loaded."""
    path = Path(run).expanduser()
    where = str(path.resolve()) if path.exists() else run
    return Opening(where, model.device.type, said(typed), identity_of(model))


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """A bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TimeRemainingColumn

    with Bar(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console(True), transient=True) as bar:
        line = bar.add_task("images", total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)
