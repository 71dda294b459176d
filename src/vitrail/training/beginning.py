"""How a run begins: anew from what was asked for, or where it stopped from what it stored."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.data.source import open_source, reopen_source
from vitrail.errors import DataError
from vitrail.training.asked import check_same, differences, precision_is_open
from vitrail.training.classifier import Prepared
from vitrail.training.distilling import Lesson, hired, taught
from vitrail.training.events import Listen, Reading
from vitrail.training.execution import free_memory, pick_device, pick_precision, step_seconds
from vitrail.training.options import TrainOptions
from vitrail.training.preparation import Preparation
from vitrail.training.prepare import Progress, build, in_parts, resolve, shortened
from vitrail.training.run import RunFolder
from vitrail.training.settings import read_yaml, settings_from_dict


def begin(
    data: str, options: TrainOptions, given: dict[str, Any], listen: Listen, lesson: Lesson | None = None
) -> Prepared:
    """Everything a new run needs: data, settings, model and the measured choices; says each choice to `listen`."""
    root = options.data_root or (Path(given["data_root"]) if given.get("data_root") else None)
    seed = given.get("split_seed", 0) if options.split_seed is None else options.split_seed
    source = open_source(data, root, int(seed))
    settings, notes = resolve(data, options, given, source)
    settings = settings if lesson is None else lesson.applied(settings)
    memory = free_memory(torch.device(settings.execution.device))
    teacher = hired(settings, lesson, source.classes, new=True)
    for sentence in (*source.notes, *notes):
        listen(sentence)
    progress = _heard_by(listen)
    prepared = build(settings, source, progress)
    asked = "auto" if precision_is_open(options, given) else settings.execution.precision
    with threads_set(settings.execution.threads):
        prepared = taught(prepared, lesson, teacher, True, progress)
        prepared, parts = in_parts(prepared, options, given, memory)
        listen("timing a few steps")
        batch, whole = prepared.trial()
        execution, more, seconds = pick_precision(
            settings.execution, asked, settings.network, prepared.network, batch, prepared.objective
        )
    more = [*parts, *more]
    for sentence in (*more, *shortened(prepared.notes)):
        listen(sentence)
    settings = replace(prepared.settings, execution=execution)
    said = (*source.notes, *notes, *more, *prepared.notes)
    return replace(prepared, settings=settings, notes=said, part_seconds=seconds * whole)


def time_part(prepared: Preparation, network: nn.Module) -> float:
    """Seconds of forward and backward of one part of a batch, from a timed trial; no weight moves."""
    batch, whole = prepared.trial()
    precision = prepared.settings.execution.precision
    return whole * step_seconds(copy.deepcopy(network), batch, prepared.objective, precision)


def go_on(
    folder: RunFolder, data: str, options: TrainOptions, listen: Listen, lesson: Lesson | None = None
) -> Prepared:
    """Everything that a run which exists needs to go on: its own settings, and the same data.

    Raises:
        UsageError: If the options ask for anything else than the run was started with.
        DataError: If the data has changed.
    """
    settings = settings_from_dict(read_yaml(folder.config), str(folder.config))
    stored = folder.read_data()
    changed = differences(settings, data, options, stored["root"])
    check_same(changed if lesson is None else [*changed, *lesson.differences(settings)], folder.path)
    pick_device(settings.execution.device)
    if options.workers is not None:  # the one choice that cannot change a bit of the result
        settings = replace(settings, execution=replace(settings.execution, workers=options.workers))
    root = stored["root"] if options.data_root is None else str(options.data_root)
    source = reopen_source(settings.data, root, settings.split_seed)
    if stored.get("fingerprint") != source.fingerprint:
        raise DataError(
            f"{settings.data} has changed since {folder.path} was started", "the data as it was, or another --out"
        )
    teacher = hired(settings, lesson, source.classes, new=False)
    prepared = build(settings, source, _heard_by(listen))
    with threads_set(settings.execution.threads):
        prepared = taught(prepared, lesson, teacher, False, _heard_by(listen))
    return replace(prepared, notes=tuple(dict.fromkeys([*stored.get("notes", ()), *stored.get("skipped", ())])))


def _heard_by(listen: Listen) -> Progress:
    """What reports on reading, to a listener."""
    return lambda what, done, whole: listen(Reading(what, done, whole))


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Torch's threads for the time of a run."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
