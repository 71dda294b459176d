"""Everything that a training needs, from what was asked for.

    options, a configuration file and a recipe -> Settings -> Prepared, with the measured choices

It goes through `build`, as a run that goes on does (`stored.py`): the same settings and data make the same start
weights.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from vitrail.data.batches import Batch, Batches
from vitrail.data.columns import Codec
from vitrail.data.dataset import TRAIN, VALIDATION, Counts, Dataset, RawDataset, Samples, make_dataset, read_vocabulary
from vitrail.data.loader import open_loader
from vitrail.data.readers import read
from vitrail.errors import UsageError, counted
from vitrail.features.neighbours import NEIGHBOURS
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig, check_parts
from vitrail.nn.networks import build as build_network
from vitrail.nn.twin import evaluating
from vitrail.runtime import free_memory, threads_set
from vitrail.tasks import Task, check_column, choose_task
from vitrail.tasks.task import unit_of
from vitrail.text import percent
from vitrail.training.asked import NOTHING_OWN, Asked, Own
from vitrail.training.contracts import check_codec, check_facts, check_network, guarded, read_own, rehearse
from vitrail.training.distill.objective import with_teacher
from vitrail.training.distill.request import teacher_of
from vitrail.training.distributed.group import ALONE, Group
from vitrail.training.evaluate import batches_of
from vitrail.training.events import Listen
from vitrail.training.execution import halved, in_memory, pick_micro_batches, pick_precision, work_of
from vitrail.training.inputs import background_of, images_of, rare_notes, shortened, unreadable_notes
from vitrail.training.prepared import Prepared
from vitrail.training.recipes import counts_of
from vitrail.training.resolve import longest_read, refuse_idle_data, replayed, resolve
from vitrail.training.settings import Execution, Settings, image_config
from vitrail.training.tuning.candidates import with_source
from vitrail.training.tuning.initial import (
    freeze_or_adapt,
    open_source,
    rate_for,
    start_network,
)
from vitrail.training.tuning.probe import probe

Timed = TypeVar("Timed")

FEW = 16  # images that are timed to say how long a probe takes
MANY, LONG = 1_000, 60.0  # images, and seconds, from which on that is said


def open_data(
    data: str,
    task: str,
    root: Path | None,
    seed: int,
    counts: Counts,
    separator: str = "",
    own: Own = NOTHING_OWN,
) -> tuple[Dataset, Task]:
    """The data of a run with the task that is learnt from it.

    Args:
        data: A named set, a folder, a manifest, a file of pairs; or what an own reader knows.
        task: A name, or "auto".
        root: Where named sets lie.
        seed: Of the validation split, where the data brings none, and of samples that are made.
        counts: How many samples are made, of a set that is made.
        separator: Between two tokens of a text.
        own: A reader and a task that were passed as objects.

    Raises:
        UsageError: More than one task could be learnt, or there is none of that name.
        DataError: The data cannot be used.
    """
    raw = read_own(own.reader, data, root) if own.reader else read(data, root, split_seed=seed, counts=counts)
    if own.task is not None:
        learnt = check_column(data, raw.columns(), own.task)
    else:
        learnt = choose_task(data, raw.columns(), task)

    def learn(raw: RawDataset, splits: Mapping[str, Samples]) -> Codec:
        return (learnt.codec if own.task is None else partial(check_codec, learnt))(raw, splits, separator)

    return make_dataset(data, raw, learnt.column, learn, seed), learnt


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


def build(
    settings: Settings,
    dataset: Dataset,
    task: Task,
    listen: Listen = lambda event: None,
    own: Own = NOTHING_OWN,
    network: nn.Module | None = None,
) -> Prepared:
    """Everything that the settings and the data decide; the same call gives the same start weights.

    Args:
        settings: Of the run.
        dataset: Its data.
        task: What is learnt.
        listen: Told what is read.
        own: What was passed as an object.
        network: With the weights that the training starts from; a fresh one when None.

    Raises:
        DataError: If too many samples cannot be read.
        UsageError: A part of one's own breaks its contract; says which.
    """
    device = torch.device(settings.execution.device)
    vocabulary = read_vocabulary(dataset, settings.separator)
    if vocabulary is None:
        read_by, train, validation = images_of(settings, dataset, listen)
    else:
        read_by = vocabulary
        splits = (dataset.splits[name] for name in (TRAIN, VALIDATION))
        train, validation = (open_loader(split.inputs, vocabulary, workers=0) for split in splits)
    background, notes = background_of(settings, dataset, task, read_by, own)
    if own.parts is not None:
        check_parts(settings.network, own.parts)
    torch.manual_seed(settings.seed)
    if network is None:
        network = build_network(settings.network, own.parts) if own.network is None else own.network
    if own.network is not None:
        check_network(network)
    facts = {
        "data": settings.data,
        f"training_{unit_of(read_by)}s": len(dataset.train),
        "recipe": settings.recipe,
        "epochs": settings.optimization.epochs,
        "seed": settings.seed,
        **settings.initial_facts(),
        **settings.distillation_facts(),
    }
    if own.task is not None:
        check_facts(task, facts, read_by, settings.augmentation, dataset.train)
    facts |= task.facts(read_by, settings.augmentation, dataset.train)
    model = Model(network.to(device), read_by, dataset.codec, task, background, facts)
    data = Batches(
        train,
        dataset.train.column(task.column),
        dataset.codec,
        read_by,
        settings.augmentation,
        task.blend,
        settings.seed,
        device,
    )
    held_out = dataset.validation.column(task.column)
    with guarded(settings.own):
        objective = own.objective or task.objective(settings.augmentation)
    return Prepared(
        settings=settings,
        dataset=dataset,
        model=model,
        data=data,
        validation=Batches(validation, held_out, dataset.codec, read_by, device=device),
        objective=objective,
        notes=(*notes, *unreadable_notes(train, validation)),
    )
