"""Everything that a run needs to go on: from what it stored, and the same data."""

import copy
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.dataset import Dataset
from vitrail.data.readers import is_named
from vitrail.errors import DataError, UsageError, some_of
from vitrail.io import other_out
from vitrail.model import load
from vitrail.nn import ViTConfig
from vitrail.runtime import pick_device, threads_set
from vitrail.training.asked import Asked
from vitrail.training.distill.objective import with_teacher
from vitrail.training.distill.request import teacher_of
from vitrail.training.distributed.group import ALONE, Group
from vitrail.training.events import Listen
from vitrail.training.execution import step_seconds
from vitrail.training.options import TrainOptions
from vitrail.training.prepared import Prepared
from vitrail.training.resolve import check_same, refuse_idle_data
from vitrail.training.run import RunFolder
from vitrail.training.schedule import seconds_of
from vitrail.training.settings import Settings, read_yaml, settings_from_dict
from vitrail.training.setup import build, open_data, timed
from vitrail.training.tuning.candidates import AUTO
from vitrail.training.tuning.initial import check_begun, check_keeps, freeze_or_adapt


def resume_run(folder: RunFolder, asked: Asked, listen: Listen, processes: Group = ALONE) -> Prepared:
    """Everything that a run which exists needs to go on: its own settings, and the same data.

    Raises:
        UsageError: If the options ask for anything else than the run was started with.
        DataError: If the data has changed.
    """
    settings = settings_from_dict(read_yaml(folder.config), str(folder.config))
    stored = folder.read_data(other_out(folder.path))
    if asked.options.init == AUTO and settings.initial is not None:  # whatever it was then
        asked = replace(asked, options=replace(asked.options, init=None))
    options, own = asked.options, asked.own
    wanted = raised(folder, settings, options)
    former, settings = settings if wanted != settings else None, wanted
    request = None if asked.request is None else asked.request.completed(asked.given)
    check_same(folder.path, settings, stored["root"], replace(asked, request=request))
    check_begun(folder.path, settings, asked)
    pick_device(settings.execution.device)
    if options.workers is not None:  # the one choice that cannot change a bit of the result
        settings = replace(settings, execution=replace(settings.execution, workers=options.workers))
    name = settings.data if is_named(settings.data) or own.reader is not None else stored["root"]
    root = options.data_root or Path(stored["root"])
    dataset, learnt = open_data(
        name, settings.task, root, settings.split_seed, settings.counts, settings.separator, own
    )
    refuse_idle_data(replace(asked, data=settings.data, options=replace(options, split_seed=None)), dataset)
    dataset = replace(dataset, name=settings.data)
    if stored.get("fingerprint") != dataset.fingerprint:
        starts = isinstance(settings.network, ViTConfig) and request is None and folder.model.is_dir()
        hint = f"{other_out(folder.path)}{f' --init {shlex.quote(str(folder.path))}' if starts else ''}"
        raise DataError(_changed(stored, dataset, folder), hint)
    settings, teacher = teacher_of(settings, request, dataset, new=False)
    network = None
    if settings.initial is not None:
        try:
            network = load(folder.probe).network
        except DataError as error:
            problem = f"{folder.path} started from its probe, which cannot be opened: {error.problem}"
            raise DataError(problem, other_out(folder.path)) from error
    prepared = build(settings, dataset, learnt, listen, own, network)
    freeze_or_adapt(prepared.network, settings)
    with threads_set(settings.execution.threads):
        prepared = with_teacher(prepared, request, teacher, False, listen)
        network, precision = copy.deepcopy(prepared.network), settings.execution.precision
        smaller, seconds, whole, _ = timed(
            prepared, lambda batch: step_seconds(network, batch, prepared.objective, precision)
        )
        whole *= smaller.settings.optimization.accumulate / settings.optimization.accumulate
    notes = tuple(dict.fromkeys([*stored.get("notes", ()), *stored.get("skipped", ())]))
    measured = seconds * whole
    return replace(prepared, notes=notes, micro_batch_seconds=measured, former=former, processes=processes.world)


def _changed(stored: Mapping[str, Any], dataset: Dataset, folder: RunFolder) -> str:
    """What is other in the data than when a run was started, old -> new."""
    was, now = stored["images"], {name: len(samples) for name, samples in dataset.splits.items()}
    found = [
        f"{name} {was.get(name, 0):,} -> {now.get(name, 0):,}"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    for name, new in dataset.codec.to_dict().items():
        old = stored.get(name)
        if isinstance(old, list) and isinstance(new, list) and old != new:
            other = [f"-{each}" for each in old if each not in new] + [f"+{each}" for each in new if each not in old]
            found.append(f"{name} {len(old):,} -> {len(new):,} ({some_of(other) if other else 'in another order'})")
    what = "; ".join(found) or "as many samples, with other names, contents or labels"
    return f"{dataset.name} has changed since {folder.path} was started: {what}"


def raised(folder: RunFolder, settings: Settings, options: TrainOptions) -> Settings:
    """The settings of a finished run that is asked for more epochs, or for more time; with that, for other patience.

    Raises:
        UsageError: Other patience alone, of which nothing would come.
    """
    choices = settings.optimization
    epochs, limit = max(choices.epochs, options.epochs or 0), choices.max_time
    if options.max_time is not None and limit:
        limit = max(limit, seconds_of(options.max_time))
    if not folder.evaluation.is_file():
        return settings
    wanted = replace(settings, optimization=replace(choices, epochs=epochs, max_time=limit))
    if options.patience is None or options.patience == choices.patience:
        return wanted
    if wanted == settings:
        change = f"patience: {choices.patience} -> {options.patience}"
        problem = f"{folder.path} was started with other options: {change}; it is finished, and no epoch is left"
        raise UsageError(problem, f"--epochs {2 * epochs} --patience {options.patience}")
    wanted = replace(wanted, optimization=replace(wanted.optimization, patience=options.patience))
    check_keeps(options, wanted)
    return wanted
