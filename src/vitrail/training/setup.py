"""Everything that a training needs, from what was asked for; of a run that goes on, from what it stored.

    options, a configuration file and a recipe -> Settings -> Prepared, with the measured choices

Both go through `build`: the same settings and data make the same start weights.
"""

import copy
import math
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from vitrail.data.batches import Batch
from vitrail.data.dataset import Dataset
from vitrail.data.readers import is_named
from vitrail.errors import DataError, UsageError, counted, some_of
from vitrail.features.neighbours import NEIGHBOURS
from vitrail.io import other_out
from vitrail.model import Model, load
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.twin import evaluating
from vitrail.runtime import free_memory, pick_device, threads_set
from vitrail.text import percent
from vitrail.training.asked import Asked
from vitrail.training.contracts import guarded, rehearse
from vitrail.training.distill.objective import with_teacher
from vitrail.training.distill.request import teacher_of
from vitrail.training.distributed.group import ALONE, Group
from vitrail.training.evaluate import batches_of
from vitrail.training.events import Listen
from vitrail.training.execution import halved, in_memory, pick_micro_batches, pick_precision, step_seconds, work_of
from vitrail.training.options import TrainOptions
from vitrail.training.prepared import (
    Prepared,
    build,
    open_data,
    rare_notes,
    shortened,
)
from vitrail.training.recipes import counts_of
from vitrail.training.resolve import check_same, longest_read, refuse_idle_data, replayed, resolve
from vitrail.training.run import RunFolder
from vitrail.training.schedule import seconds_of
from vitrail.training.settings import Execution, Settings, image_config, read_yaml, settings_from_dict
from vitrail.training.tuning.candidates import AUTO, with_source
from vitrail.training.tuning.initial import (
    check_begun,
    check_keeps,
    freeze_or_adapt,
    open_source,
    rate_for,
    start_network,
)
from vitrail.training.tuning.probe import probe

Timed = TypeVar("Timed")

FEW = 16  # images that are timed to say how long a probe takes
MANY, LONG = 1_000, 60.0  # images, and seconds, from which on that is said


def new_run(asked: Asked, listen: Listen, dry: bool = False, processes: Group = ALONE) -> Prepared:
    """Everything a new run needs: data, settings, model and the measured choices; says each choice to `listen`.

    Args:
        asked: What was asked for.
        listen: Gets every event.
        dry: Only to say what would be trained: a probe that takes long is left out.
        processes: That will train together; this one measures.
    """
    data, options, given, own = asked.data, asked.options, asked.given, asked.own
    root = options.data_root or (Path(given["data_root"]) if given.get("data_root") else None)
    seed = int(given.get("split_seed", 0) if options.split_seed is None else options.split_seed)
    task = options.task if options.task != "auto" else given.get("task", "auto")
    if options.task != "auto" and given.get("task", options.task) != options.task:
        raise UsageError(
            f"{options.config} is of the task {given['task']}, --task says {options.task}", f"--task {given['task']}"
        )
    counts = counts_of(data, options.recipe, given)
    dataset, learnt = open_data(data, task, root, seed, counts, str(given.get("separator", "")), own)
    refuse_idle_data(asked, dataset)
    asked = with_source(asked, dataset, learnt, listen)
    options = asked.options
    source, doubts = open_source(asked, dataset.train.inputs)
    settings, notes = resolve(asked, dataset, learnt, source)
    how = replayed(options, settings.execution, given)
    request = None if asked.request is None else asked.request.completed(given)
    settings = settings if request is None else request.applied(settings)
    device = torch.device(settings.execution.device)
    memory = free_memory(device) * (processes.machines if device.type == "cpu" else processes.world)
    settings, teacher = teacher_of(settings, request, dataset, new=True)
    notes = (*doubts, *notes, *rare_notes(dataset, learnt.column))
    for sentence in (*dataset.notes, *notes):
        listen(sentence)
    network = None if source is None else _started(source, settings)
    prepared = build(settings, dataset, learnt, listen, own, network)
    with threads_set(settings.execution.threads):
        if network is not None:
            expected = _probe_seconds(prepared, network)
            _check_time(prepared, expected, asked.began)
            if dry and expected > LONG:
                rate = "" if options.probe else "; the learning rate may change with what it finds"
                note = f"the probe, about {math.ceil(expected / 60)} min, is left out of a dry run{rate}"
                prepared = replace(prepared, notes=(*prepared.notes, note))
            else:
                prepared = _probed(prepared, network, listen, expected)
            if options.lr is None and "learning_rate" not in given.get("optimization", {}):
                prepared = _at_rate(prepared)
            freeze_or_adapt(network, settings)
        prepared = with_teacher(prepared, request, teacher, True, listen)
        more: list[str] = []
        if options.accumulate is None and "accumulate" not in given.get("optimization", {}):
            prepared, more = _in_micro_batches(prepared, memory)
        if settings.fits_head:
            execution, whole, seconds = prepared.settings.execution, 1.0, 0.0
        else:
            listen("timing a few steps")
            width = vars(image_config(settings.network) or settings.network)["width"]
            network, objective = prepared.network, prepared.objective

            def trial(batch: Batch) -> tuple[Execution, list[str], float]:
                rehearse(prepared.model, objective, batch, settings.own)
                return pick_precision(settings.execution, how.precision, width, network, batch, objective)

            with guarded(prepared.settings.own):
                prepared, (execution, said, seconds), whole, smaller = timed(prepared, trial)
            more = [*more, *smaller, *said]
    for sentence in (*more, *shortened(prepared.notes)):
        listen(sentence)
    settings = replace(prepared.settings, execution=execution)
    notes = (*dataset.notes, *notes, *more, *prepared.notes)
    measured = seconds * whole
    return replace(prepared, settings=settings, notes=notes, micro_batch_seconds=measured, processes=processes.world)


def timed(prepared: Prepared, time: Callable[[Batch], Timed]) -> tuple[Prepared, Timed, float, list[str]]:
    """What is found on a few samples: as many as there is memory for.

    Returns:
        The same, in smaller micro-batches where memory ran out; what was found, how many times its samples a
        micro-batch is, and a sentence where they are smaller.
    """
    said: list[str] = []
    while True:
        batch, whole = prepared.trial()
        found = in_memory(partial(time, batch), prepared.network)
        if found is not None:
            return prepared, found, whole, said
        smaller, settings = halved(prepared.settings.optimization, 0), prepared.settings
        optimization, said = replace(settings.optimization, accumulate=smaller.accumulate), [smaller.why]
        prepared = replace(prepared, settings=replace(settings, optimization=optimization))


def _started(source: Model, settings: Settings) -> ViT:
    """The network that a training starts from."""
    assert isinstance(source.network, ViT)
    assert isinstance(settings.network, ViTConfig)
    torch.manual_seed(settings.seed)
    return start_network(source.network, settings.network)


def _probe_seconds(prepared: Prepared, network: ViT) -> float:
    """About what a probe takes, as one small batch says; 0 where nobody wants to know."""
    images = len(prepared.data) + len(prepared.validation)
    if not prepared.settings.optimization.max_time and images < MANY:
        return 0.0
    start = time.perf_counter()
    batch = next(prepared.validation.in_order(FEW))
    with evaluating(network), torch.no_grad():
        network(batch.inputs)
    return (time.perf_counter() - start) * images / max(1, len(batch))


def _check_time(prepared: Prepared, expected: float, began: float) -> None:
    """Refuse a limit that is over before the probe is there."""
    limit, need = prepared.settings.optimization.max_time, time.perf_counter() - began + expected
    if limit and need > limit:
        images = len(prepared.data) + len(prepared.validation)
        problem = f"--max-time {limit:g}s is over before a probe of {images:,} images is there, in about {need:.0f} s"
        raise UsageError(problem, f"--max-time {math.ceil(need / 20)}m")


def _probed(prepared: Prepared, network: ViT, listen: Listen, expected: float) -> Prepared:
    """The same, whose network's head is the probe's, and what that is worth in a sentence."""
    images = len(prepared.data) + len(prepared.validation)
    about = f" of {images:,} images (about {expected / 60:.0f} min)" if expected > LONG else ""
    listen(f"computing features{about}, for a linear probe")
    train, settings = prepared.data, prepared.settings
    if settings.augmentation.crops:  # else images are read as an evaluation sees them
        train = batches_of(prepared.model, prepared.dataset.train, settings.execution.workers)
    found = probe(network, train, prepared.validation)
    words = [percent(share) for share in (found.neighbours, found.accuracy)]
    said = f"{NEIGHBOURS}-NN {words[0]}, linear probe {words[1]} of {counted(found.images, 'validation image')}"
    goal = "" if settings.fits_head else ": tuning has to beat that"
    return replace(prepared, probed=found, notes=(*prepared.notes, f"{said}{goal}"))


def _at_rate(prepared: Prepared) -> Prepared:
    """The same with the learning rate that its probe asks for."""
    settings, probed = prepared.settings, prepared.probed
    if probed is None or settings.fits_head:
        return prepared
    optimization, said = rate_for(settings.optimization, probed)
    settings = replace(settings, optimization=optimization)
    return replace(prepared, settings=settings, notes=(*prepared.notes, said))


def _in_micro_batches(prepared: Prepared, memory: int) -> tuple[Prepared, list[str]]:
    """The same with each batch in as many micro-batches as the memory asks for, and a sentence where that is many."""
    settings = prepared.settings
    work = work_of(settings.network, longest_read(prepared.dataset))
    parts, notes = pick_micro_batches(work, settings.optimization, memory, prepared.beside)
    settings = replace(settings, optimization=replace(settings.optimization, accumulate=parts))
    return replace(prepared, settings=settings), notes


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
