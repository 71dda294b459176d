"""The setup of a run: a new one from its request, a resumed one from what it stored.

    new_run        Request -> Settings (`decide`) -> Prepared (`prepare_run`), with what is measured on it (`measure`)
    resume_run     config.yaml -> Settings, held against the request -> Prepared

The same settings and data make the same initial weights.
"""

import math
import time
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from vitrail.data.columns import GROUP, RawDataset
from vitrail.data.dataset import Counts, Dataset
from vitrail.data.layout import Layout
from vitrail.data.sources import format_of, is_named
from vitrail.errors import DataError, Hint, UsageError, counted, some_of
from vitrail.features.linear_probe import Enough, Probed, fit_probe
from vitrail.features.similar import NEIGHBOURS
from vitrail.io import other_out
from vitrail.model import Model, load
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.networks import evaluating
from vitrail.options import TrainOptions, parse_seconds
from vitrail.runs.contracts import guard, rehearse
from vitrail.runs.evaluate import batches_of
from vitrail.runs.folder import RunFolder, data_changes
from vitrail.runs.group import ALONE, Group
from vitrail.runs.settings import Execution, Settings, image_config, read_yaml, settings_from_dict
from vitrail.runtime import TIMED_SECONDS, free_memory, pick_device, threads_set
from vitrail.tasks import Task
from vitrail.training.budget import TIMING, Budget
from vitrail.training.configuration import refusals
from vitrail.training.configuration.rare import loss_of
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import RECIPES, longest_read, resolve
from vitrail.training.configuration.teacher import Teacher
from vitrail.training.events import Listen, Note, Reading
from vitrail.training.execution import halve, in_memory, pick_micro_batches, pick_precision, work_of
from vitrail.training.prepared import Prepared, open_data, prepare_run, rare_notes, shorten
from vitrail.training.report import verdict_passes
from vitrail.training.transfer.initial import AUTO, freeze_or_adapt, open_source, rate_for, with_source
from vitrail.training.transfer.student import teach, teacher_of
from vitrail.weights.adapt import start_network

FEW = 16  # images on which the time of a probe is estimated
CHECK_SECONDS, CHECK_PART = 4.0, 0.05  # of a quick check of the data: seconds, and the part of a limited time
EACH, HELD = 25, 100  # training images for each output, with which a probe can be fitted; and others that judge it
MANY, LONG = 1_000, 60.0  # images from which on it is estimated, and seconds from which on it is announced


def new_run(request: Request, listen: Listen, dry: bool = False, processes: Group = ALONE) -> Prepared:
    """Everything a new run needs: data, settings, model and the measured choices; each is announced to `listen`.

    Args:
        request: With the content of its configuration file.
        listen: Gets every event.
        dry: For a dry run, which leaves out a probe that takes long.
        processes: Those that will train together; this one measures.
    """
    notes = list[str]()
    note = partial(_note, listen, notes)
    settings, dataset, task, source, teacher = decide(request, listen, note)
    if request.options.check and not dry:
        _check(request, dataset, settings, listen)
    elif dry:
        note(*_straddling(dataset))
    device, network = torch.device(settings.execution.device), None
    memory = free_memory(device) * (processes.machines if device.type == "cpu" else processes.world)
    if source is not None:
        assert isinstance(settings.network, ViTConfig)
        torch.manual_seed(settings.seed)
        network = start_network(source.network, settings.network)
    prepared = prepare_run(settings, dataset, task, listen, request.own, network)
    note(*prepared.notes)
    with threads_set(settings.execution.threads):
        probed = None if network is None else _fit_probe(prepared, network, request, dry, note)
        freeze_or_adapt(prepared.network, settings)
        prepared = teach(prepared, teacher, new=True, note=note)
        settings, seconds = measure(prepared, request, probed, memory, note)
    found = {"settings": settings, "sample_seconds": seconds, "probed": probed, "processes": processes.world}
    return replace(prepared, notes=tuple(notes), **found)


def decide(
    request: Request, listen: Listen, note: Note
) -> tuple[Settings, Dataset, Task, Model | None, Teacher | None]:
    """Open the data and what the training starts from or learns from; make every choice, or refuse it.

    Args:
        request: With the content of its configuration file.
        listen: Gets the progress of `--init auto`.
        note: Gets a sentence for each choice.

    Returns:
        The settings, with the usual learning rate, micro-batches and precision where none are requested, which are
        measured later; the data and the task; the model that the training starts from, and the teacher, if there are.
    """
    refusals.check_initial(request)
    options, section, values = request.options, request.section, request.values
    root = Path(values["data_root"]) if values.get("data_root") else None
    made = RECIPES.get(request.data if options.recipe == "auto" else options.recipe)
    counts = replace(Counts() if made is None else made.counts, **section("counts"))
    name, seed, separator = values.get("task", "auto"), values.get("split_seed", 0), values.get("separator", "")
    layout = Layout(**section("layout"))
    dataset, task = open_data(request.data, name, root, seed, counts, separator, layout, request.own)
    background = task.background and values.get("background", True)
    refusals.check_known(request, dataset, task, background, bool(section("initial").get("probe")))
    request = with_source(request, dataset, task, listen)
    source, doubts = open_source(request, dataset.train.inputs)
    settings, choices = resolve(request, dataset, task, source)
    settings, teacher = teacher_of(settings, request, dataset, new=True)
    note(*dataset.notes, *doubts, *choices, *rare_notes(dataset, task.column))
    return settings, dataset, task, source, teacher


def measure(
    prepared: Prepared, request: Request, probed: Probed | None, memory: int, note: Note
) -> tuple[Settings, float]:
    """The settings with what was not requested: learning rate by the probe, micro-batches by memory, precision by time.

    Args:
        prepared: Whose network is left as it is.
        request: Of the run.
        probed: The result of the probe, if there is one.
        memory: Bytes that were free before anything was made.
        note: Gets sentences on what was chosen.

    Returns:
        The settings, and the seconds of a sample, 0 where nothing but a head is fitted.
    """
    settings, section = prepared.settings, request.section
    optimization = settings.optimization
    if probed is not None and "learning_rate" not in section("optimization") and not settings.fits_head:
        optimization, why = rate_for(optimization, probed, prepared.model.output.is_wrong)
        note(why)
    if "accumulate" not in section("optimization"):
        work = work_of(settings.network, longest_read(prepared.dataset))
        parts, sentences = pick_micro_batches(work, optimization, memory, prepared.beside)
        optimization = replace(optimization, accumulate=parts)
        note(*sentences)
    settings = replace(settings, optimization=optimization)
    if settings.fits_head:
        return settings, 0.0
    with guard(settings.own):
        return time_steps(prepared, settings, section("execution").get("precision", "auto"), note)


def _check(request: Request, dataset: Dataset, settings: Settings, listen: Listen) -> None:
    """Announce what a quick look at files shows that nobody may have looked at: named sets and shards are checked."""
    row = format_of(request.data)
    if dataset.reads_text or request.own.reader is not None or row is None or row.is_set or row.served:
        return
    from vitrail.check.check import check_quickly  # with all that looks at images, which other runs do not need

    seconds = min(CHECK_SECONDS, CHECK_PART * (settings.optimization.max_time or math.inf))
    about = request.data, settings.layout, seconds, settings.resize == "crop"
    progress = partial(Reading, "a quick check")
    for line in check_quickly(RawDataset(dataset.root, dataset.splits), *about, lambda *done: listen(progress(*done))):
        listen(line)


def _straddling(dataset: Dataset) -> list[str]:
    """A warning of groups that the data name in two of their splits, which a dry run has not looked at."""
    of = [{*samples.units()} for samples in dataset.splits.values() if GROUP in samples.columns]
    both = sorted({group for one, other in combinations(of, 2) for group in one & other})
    found = f"{counted(len(both), 'group')} in more than one split ({some_of(both, 3)}), which vitrail data check shows"
    return [f"warning: {found}"] * bool(both)


def _note(listen: Listen, notes: list[str], *sentences: str) -> None:
    """Announce sentences, and add them to the notes."""
    notes.extend(sentences)
    for sentence in shorten(sentences):
        listen(sentence)


def time_steps(prepared: Prepared, settings: Settings, precision: str, note: Note) -> tuple[Settings, float]:
    """The settings with their precision and the micro-batches for which memory suffices, and the seconds of a sample.

    Args:
        prepared: Whose network is left as it is.
        settings: Of the run.
        precision: fp32, bf16, or auto for the faster one.
        note: Gets sentences on what was chosen.
    """
    model, width = prepared.model, vars(image_config(settings.network) or settings.network)["width"]
    optimization, why = settings.optimization, list[str]()
    most = TIMING * optimization.max_time or math.inf

    def trial() -> tuple[Execution, list[str], float]:
        batch = prepared.trial(optimization)
        pair = batch.only(torch.arange(len(batch)) < 2)
        prepared.listen(f"timing passes of {len(pair)} to {counted(len(batch), prepared.unit)}, forward and backward")
        rehearse(model, prepared.objective, batch, settings.own)
        samples = batch, pair, prepared.objective
        return pick_precision(settings.execution, precision, width, model.network, *samples, most)

    while (found := in_memory(trial, model.network)) is None:
        smaller = halve(optimization, 0)
        optimization, why = replace(optimization, accumulate=smaller.accumulate), [smaller.why]
    execution, sentences, seconds = found
    note(*why, *sentences)
    return replace(settings, optimization=optimization, execution=execution), seconds


def probe_enough(budget: Budget, scored: int, least: int) -> Enough:
    """Says when a probe under a time limit has read enough: when the rest of the run would have less than its part.

    Each image that is read tells what the evaluations behind the last step take.

    Args:
        budget: Learns it.
        scored: Images of an evaluation.
        least: Training images that a probe has in any case; and as many held-out ones, at most `HELD`.
    """
    began = budget.elapsed()

    def enough(unseen: int, known: int) -> bool:
        each = (budget.elapsed() - began) / (unseen + known)
        budget.scoring = each * scored
        read = known >= least if known else unseen >= min(HELD, least)
        return read and budget.free < (0 if known else least * each)

    return enough


def _fit_probe(prepared: Prepared, network: ViT, request: Request, dry: bool, note: Note) -> Probed | None:
    """Give the network the head of a linear probe, and announce its accuracy; None where a dry run skips it.

    Its time is estimated by one small batch, for many images. Under a time limit it reads as many as leave enough.

    Raises:
        UsageError: The time limit is too short for it.
    """
    settings, limit, output = prepared.settings, prepared.settings.optimization.max_time, prepared.model.output
    if output.loss is None or output.error is None:
        task = prepared.model.task.name
        if settings.fits_head:
            problem = f"the task {task} has no linear probe, which is all that was to be fitted"
            raise UsageError(problem, Hint(drop=["probe"]))
        note(f"the task {task} has no linear probe: all layers are trained from the first step on")
        return None
    held_out = prepared.seen.others(prepared.validation)
    whole, images, each = len(prepared.data), len(prepared.data) + len(held_out), math.inf
    if (dry or settings.fits_head or not limit) and (limit or images >= MANY):
        for _ in range(2):  # the first warms up, where that is quick
            start = time.perf_counter()
            batch = next(prepared.validation.in_order(FEW))
            with evaluating(network), torch.no_grad():
                network(batch.inputs)
            each = min(each, (time.perf_counter() - start) / max(1, len(batch)))
            if each * FEW > TIMED_SECONDS:
                break
    expected = each * images if math.isfinite(each) else 0.0
    need = request.seconds() + (expected if settings.fits_head else 0.0)  # else it reads what there is time for
    if limit and need > limit:
        problem = f"max_time {limit:g} s is too short for a probe of {images:,} images: about {need:.0f} s"
        raise UsageError(problem, Hint({"max_time": f"{math.ceil(need / 20)}m"}))
    if dry and expected > LONG:
        rate = "" if settings.fits_head else "; its result may change the learning rate"
        note(f"a dry run skips the probe (about {math.ceil(expected / 60)} min){rate}")
        return None
    about = f" of {images:,} images (about {expected / 60:.0f} min)" if expected > LONG else ""
    prepared.listen(f"computing features{about} for a linear probe")
    train = prepared.data
    if settings.augmentation.crops:  # else images are read as an evaluation sees them
        train = batches_of(prepared.model, prepared.dataset.train, settings.execution.workers, once=True)
    budget = prepared.budget(request.seconds, verdict_passes(prepared, request.options.verdicts))
    enough = None if budget is None else probe_enough(budget, len(prepared.scored[1]), EACH * output.outputs)
    found = fit_probe(network, output, train, held_out, loss_of(settings, prepared.dataset, True), enough)
    read = found.trained + found.images + len(train.loader.unreadable) + len(held_out.loader.unreadable)
    if enough is not None and read < images:
        few = f"{found.trained:,} of {whole:,} training images and {found.images:,} of {len(held_out):,} held-out ones"
        note(f"the probe has {few}: more would take the time of steps")
    prepared.data.loader.learn(np.arange(whole), train.loader.contents)
    near = "" if found.neighbours is None else f"{NEIGHBOURS}-NN {output.shown(found.neighbours)}, "
    goal = "" if settings.fits_head else ": the baseline of fine-tuning"
    counts = counted(found.images, "validation image")
    note(f"{near}linear probe {output.shown(found.accuracy)} of {counts}{goal}")
    return found


def resume_run(folder: RunFolder, request: Request, listen: Listen, processes: Group = ALONE) -> Prepared:
    """Prepare a run that exists, by its own settings and with the same data.

    Raises:
        UsageError: The options differ from those that the run was started with.
        DataError: The data have changed.
    """
    settings = settings_from_dict(read_yaml(folder.config, other_out(folder.path)), str(folder.config))
    refusals.check_unedited(folder, settings)
    stored = folder.read_data(other_out(folder.path))
    if request.options.init == AUTO and settings.initial is not None:  # which was chosen at the start
        request = replace(request, options=replace(request.options, init=None))
    options, own = request.options, request.own
    wanted = extend(folder, settings, options)
    former, settings = settings if wanted != settings else None, wanted
    refusals.check_same(folder.path, settings, stored["root"], request)
    pick_device(settings.execution.device)
    if options.workers is not None:  # which changes no bit of the result
        settings = replace(settings, execution=replace(settings.execution, workers=options.workers))
    name = settings.data if is_named(settings.data) or own.reader is not None else stored["root"]
    root = options.data_root or Path(stored["root"])
    how = settings.split_seed, settings.counts, settings.separator, settings.layout
    dataset, learnt = open_data(name, settings.task, root, *how, own)
    named = replace(request, data=settings.data)
    refusals.check_known(named, dataset, learnt, settings.background, settings.fits_head)
    dataset = replace(dataset, name=settings.data)
    if stored.get("fingerprint") != dataset.fingerprint:
        starts = isinstance(settings.network, ViTConfig) and not request.teacher and folder.model.is_dir()
        hint = Hint({**other_out(folder.path).flags, **({"init": str(folder.path)} if starts else {})})
        raise DataError(data_changes(stored, dataset, folder), hint)
    settings, teacher = teacher_of(settings, request, dataset, new=False)
    network = None
    if settings.initial is not None:
        try:
            network = load(folder.probe, task=own.task).network
        except DataError as error:
            problem = f"{folder.path} started from its probe, which cannot be opened: {error.problem}"
            raise DataError(problem, other_out(folder.path)) from error
    prepared = prepare_run(settings, dataset, learnt, listen, own, network)
    freeze_or_adapt(prepared.network, settings)
    note = partial(_note, listen, [])  # the notes of a run are in its data.json
    with threads_set(settings.execution.threads):
        prepared = teach(prepared, teacher, new=False, note=note)
        _, seconds = time_steps(prepared, settings, settings.execution.precision, note)
    notes = tuple(dict.fromkeys([*stored.get("notes", ()), *stored.get("skipped", ())]))
    return replace(prepared, notes=notes, sample_seconds=seconds, former=former, processes=processes.world)


def extend(folder: RunFolder, settings: Settings, options: TrainOptions) -> Settings:
    """The settings of a finished run with more epochs or time, as the options request; with these, other patience.

    Raises:
        UsageError: Other patience alone, which would have no effect.
    """
    former, patience = settings.optimization, options.patience
    if not folder.evaluation.is_file():
        return settings
    epochs, limit = max(former.epochs, options.epochs or 0), former.max_time
    if options.max_time is not None and limit:
        limit = max(limit, parse_seconds(options.max_time))
    longer = replace(former, epochs=epochs, max_time=limit)
    if patience is not None and patience != former.patience:
        if longer == former:
            change = f"patience: {former.patience} -> {patience}"
            problem = f"{folder.path} was started with other options: {change}; it is finished, with no epoch left"
            raise UsageError(problem, Hint({"epochs": 2 * epochs, "patience": patience}))
        longer = replace(longer, patience=patience)
    return replace(settings, optimization=longer)
