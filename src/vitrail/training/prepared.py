"""A prepared run: the data opened, the network built, batches and objective.

`setup.py` makes it, for a new and for a resumed run, `transfer/` adds a teacher, and `job.py` trains it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.background import Pixels, draw_background
from vitrail.data.batches import Batch, Batches
from vitrail.data.columns import TEST, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.dataset import Counts, Dataset, Split, make_dataset, read_vocabulary
from vitrail.data.images import Images
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.loader import Loader, check_readable, open_loader
from vitrail.data.preprocessing import Preprocessing, measure_statistics
from vitrail.data.sources import read
from vitrail.errors import counted, some_of
from vitrail.features.linear_probe import Probed
from vitrail.model import Model
from vitrail.model.familiar import FEWEST, MOST
from vitrail.nn import check_parts
from vitrail.nn.networks import build_network as build_network
from vitrail.runs.contracts import check_codec, check_facts, check_own_network, guard, read_own
from vitrail.runs.data import CALIBRATE, REPORT, SELECT, Cut, Run, cut
from vitrail.runs.evaluate import batches_of
from vitrail.runs.known import Seen, learn_groups
from vitrail.runs.settings import Optimization, Settings, image_config
from vitrail.tasks import Codec, Task, check_column, choose_task
from vitrail.tasks.choice import read_as
from vitrail.tasks.task import Input, Objective, unit_of
from vitrail.training.budget import Budget
from vitrail.training.configuration.rare import loss_of, units_of
from vitrail.training.configuration.request import NOTHING_OWN, Own
from vitrail.training.configuration.resolve import longest_read
from vitrail.training.events import Listen, Reading
from vitrail.training.execution import NO_WORK, Work, part_size, work_of
from vitrail.training.loop import steps_per_epoch

SAMPLED = 64  # images that are fetched at a time to be measured
MEASURED = 2048  # images that mean and standard deviation are measured on
LEFT_OUT = "left out: "
SHOWN = 5  # samples that were left out and are named at the terminal
STEP_OVERHEAD = 1.15  # augmentation, optimizer and validation come on top of forward and backward
TRIAL_FLOPS = 2e11  # most work of a timed step: a second or two on one thread


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """A prepared run, all of whose choices are made.

    Attributes:
        settings: Of the run.
        dataset: The samples.
        model: The network, with its task and preprocessing.
        data: The training batches.
        validation: The held-out batches.
        objective: What is minimised.
        beside: FLOPs and memory of a teacher in every step.
        listen: Gets every event.
        notes: On the data and on choices, one sentence each.
        sample_seconds: Of forward and backward for one sample, as timed by one process.
        former: The settings of a finished run that continues with more epochs or time; else None.
        probed: The result of the probe of pretrained weights; None for random ones.
        processes: Number of processes that train together.
    """

    settings: Settings
    dataset: Dataset
    model: Model
    data: Batches
    validation: Batches
    objective: Objective
    beside: Work = NO_WORK
    listen: Listen = lambda event: None
    notes: tuple[str, ...] = ()
    sample_seconds: float = 0.0
    probed: Probed | None = None
    former: Settings | None = None
    processes: int = 1

    @cached_property
    def seen(self) -> Seen:
        """What is known of its images, and of those that initial weights and a teacher were trained on."""
        initial, teacher = self.settings.initial, self.settings.distillation
        before = [Run(None if initial is None else initial.source), Run(None if teacher is None else teacher.teacher)]
        earlier = np.concatenate([run.trained_on for run in before])
        return Seen({TRAIN: self.data.loader, VALIDATION: self.validation.loader}, earlier)

    @property
    def network(self) -> nn.Module:
        """What is trained."""
        return self.model.network

    @property
    def unit(self) -> str:
        """What one sample is called, in the singular; its plural has an s."""
        return unit_of(self.model.input)

    @property
    def calibrates(self) -> bool:
        """Whether validation samples calibrate the model."""
        return self.settings.calibration and self.model.output.calibrate is not None

    @cached_property
    def cut(self) -> Cut | None:
        """The parts of the validation samples, if something is decided on them that would flatter a figure."""
        model, tested = self.model, self.dataset.test is not None
        selects = self.settings.chooses or model.output.settle is not None
        names = (*[SELECT] * selects, *[CALIBRATE] * (self.calibrates and not tested), REPORT)
        if len(names) < 2:
            return None
        found = cut(self.dataset.validation, model.task.column, model.output, names)
        return found if selects or not found.problem else None

    @property
    def selects(self) -> bool:
        """Whether some validation samples choose the network, or what its codec settles."""
        return self.cut is not None and self.cut.selects

    def part(self, name: str) -> tuple[Split, Batches]:
        """A part of the validation samples, or all of them."""
        dataset = self.dataset
        unknown, given = dataset.unknown.get(VALIDATION, {}), dataset.given.get(VALIDATION)
        whole = Split(dataset.validation, VALIDATION, unknown, given=given)
        if name == VALIDATION or self.cut is None:
            return whole, self.validation
        part = self.cut.take(whole, name, self.model.task.column, self.model.output)
        return part, self.validation.subset(self.cut.parts[name])

    @cached_property
    def scored(self) -> tuple[Split, Batches]:
        """The samples on which each epoch is evaluated: those that select the network, or all of validation."""
        return self.part(self.cut.chosen_on if self.cut is not None and self.selects else VALIDATION)

    @property
    def calibrating(self) -> tuple[Split, Batches]:
        """The samples that calibrate the model."""
        tested = self.dataset.test is not None
        return self.part(VALIDATION if self.cut is None else self.cut.calibrates(tested))

    @cached_property
    def final(self) -> tuple[Split, Batches]:
        """The samples on which the final model is evaluated: test, else validation samples that chose nothing."""
        dataset = self.dataset
        if dataset.test is not None:
            test = batches_of(self.model, dataset.test, self.settings.execution.workers)
            return Split(dataset.test, TEST, dataset.unknown.get(TEST, {})), test
        return self.part(VALIDATION if self.cut is None or self.cut.problem else REPORT)

    @property
    def scored_words(self) -> str:
        """Name of these samples in a plot."""
        chose = self.cut is not None and self.cut.problem  # and there is no part that did not
        return f"{self.scored[0].split}{', which chose the model' if chose else ''}"

    @property
    def per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return steps_per_epoch(len(self.data), self.settings.optimization)

    @property
    def step_seconds(self) -> float:
        """Seconds of an optimizer step, as expected before the first."""
        samples = min(self.settings.optimization.batch_size, len(self.data))
        return self.sample_seconds * samples * STEP_OVERHEAD / self.processes

    def budget(self, elapsed: Callable[[], float], verdicts: int = 0) -> Budget | None:
        """The time budget of a run; None without a limit, or for a probe alone.

        Args:
            elapsed: Gives the seconds of the run so far.
            verdicts: Forward passes of the verdicts at its end.
        """
        optimization = self.settings.optimization
        if not optimization.max_time or self.settings.fits_head:
            return None
        # a forward pass is a third of a step; decoding comes on top
        each = self.step_seconds / optimization.batch_size / 2
        if self.probed is not None:
            each = self.probed.reading / (self.probed.images + self.probed.trained)
        scoring = each * len(self.scored[1])
        passes = self.passes + verdicts / len(self.scored[1])
        return Budget(optimization.max_time, elapsed, self.per_epoch, self.step_seconds, scoring, passes)

    @property
    def passes(self) -> float:
        """Time of all that comes after the last step, in evaluations of the held-out samples."""
        held_out, test, initial = len(self.scored[1]), self.dataset.test, self.settings.initial
        final = len(self.validation) - held_out or held_out if test is None else len(test)
        chosen = held_out if self.settings.selected == "best" else 0
        last = final if initial is None else 2 * (chosen + final)  # probe and tuned network are compared, maybe twice
        last += len(self.calibrating[1]) if self.calibrates else 0
        last += held_out if self.model.output.settle is not None else 0
        if self.model.background is not None:  # whose images are explained; and some of training are kept
            last += 3 * len(self.model.background) + min(self.familiar, len(self.data))
        return last / held_out

    @property
    def familiar(self) -> int:
        """How many training images a model knows at most: with a limit one for each second, since each is computed."""
        limit = self.settings.optimization.max_time
        return min(MOST, max(FEWEST, int(limit))) if limit else MOST

    def trial(self, optimization: Optimization, most: int | None = None) -> Batch:
        """A few samples to time a step, at most so many: a micro-batch, or a part of one."""
        part = min(part_size(optimization), len(self.data))
        work = 3 * work_of(self.settings.network, longest_read(self.dataset)).flops + self.beside.flops
        few = max(1, min(part, max(8, int(TRIAL_FLOPS / work)), most or part))
        return next(self.data.batches(0, few))

    def data_facts(self, notes: Sequence[str]) -> dict[str, Any]:
        """The content of `data.json`, with all notes so far."""
        dataset = self.dataset
        return {
            "name": dataset.name,
            "root": dataset.root,
            "task": self.model.task.name,
            "column": dataset.column,
            **self.model.output.to_dict(),
            "images": {name: len(samples) for name, samples in dataset.splits.items()},
            "unknown": {name: dict(counts) for name, counts in dataset.unknown.items()},
            "split_seed": dataset.split_seed,
            "fingerprint": dataset.fingerprint,
            **dataset.facts,
            **({} if self.cut is None else {"parts": self.cut.to_dict()}),
            "skipped": [note for note in notes if note.startswith(LEFT_OUT)],
            "notes": list(notes),
        }


def open_data(
    data: str,
    task: str,
    root: Path | None,
    seed: int,
    counts: Counts,
    separator: str = "",
    layout: Layout = AS_FOUND,
    own: Own = NOTHING_OWN,
) -> tuple[Dataset, Task]:
    """The data of a run, and its task.

    Args:
        data: A named set, a folder, a list, a file of pairs; or what the user's own reader takes.
        task: A name, or "auto".
        root: Folder of the named sets.
        seed: Of the validation split, if the data have none, and of generated samples.
        counts: Numbers of generated samples.
        separator: Between two tokens of a text.
        layout: Columns, groups and fractions that were named.
        own: Reader and task, if they were passed as objects.

    Raises:
        UsageError: More than one task fits, or there is none of that name.
        DataError: The data cannot be used.
    """
    if own.reader:
        raw = read_own(own.reader, data, root, layout)
    else:
        raw = read(data, root, split_seed=seed, counts=counts, layout=layout)
    if own.task is not None:
        learnt = check_column(data, raw.columns(), own.task)
    else:
        learnt = choose_task(data, raw.columns(), task)
        if task == "auto" and (note := read_as(learnt, raw.columns())):
            raw = replace(raw, notes=(*raw.notes, note))

    def learn(raw: RawDataset, splits: Mapping[str, Samples]) -> Codec:
        if own.task is None:
            return learnt.codec(raw, splits, separator)
        return check_codec(learnt, raw, splits, separator, outputs=own.network is None)

    return make_dataset(data, raw, learnt.column, learn, seed), learnt


def prepare_run(
    settings: Settings,
    dataset: Dataset,
    task: Task,
    listen: Listen = lambda event: None,
    own: Own = NOTHING_OWN,
    network: nn.Module | None = None,
) -> Prepared:
    """Prepare a run from its settings and data; the same call gives the same initial weights.

    Args:
        settings: Of the run.
        dataset: Its data.
        task: Its task.
        listen: Gets the progress of reading.
        own: What was passed as an object.
        network: With pretrained weights; a new one when None.

    Raises:
        DataError: Too many samples cannot be read.
        UsageError: A part of the user's own breaks its contract; names it.
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
        check_own_network(network)
    facts = {
        "data": settings.data,
        f"training_{unit_of(read_by)}s": len(dataset.train),
        "recipe": settings.recipe,
        "epochs": settings.optimization.epochs,
        "seed": settings.seed,
        **settings.initial_facts(),
        **settings.distillation_facts(dataset.codec.confidence is not None),
        **({"rare_classes": settings.rare.words} if settings.rare.words else {}),
    }
    if own.task is not None:
        check_facts(task, facts, read_by, settings.augmentation, dataset.train)
    facts |= task.facts(read_by, settings.augmentation, dataset.train)
    model = Model(network.to(device), read_by, dataset.codec, task, background, facts)
    learnt, held_out = (dataset.splits[name].column(task.column) for name in (TRAIN, VALIDATION))
    data = Batches(train, learnt, dataset.codec, read_by, settings.augmentation, task.blend, settings.seed, device)
    data = replace(data, units=units_of(dataset.train) if settings.rare.balance else None)
    with guard(settings.own):
        objective: Any = own.objective or task.objective(settings.augmentation)
    if (loss := loss_of(settings, dataset)) is not None:
        objective = partial(objective, loss=loss)
    return Prepared(
        settings=settings,
        dataset=dataset,
        model=model,
        data=data,
        validation=Batches(validation, held_out, dataset.codec, read_by, device=device),
        objective=objective,
        listen=listen,
        notes=(*notes, *unreadable_notes(train.unreadable, validation.unreadable)),
    )


def shapes_of(settings: Settings) -> tuple[Preprocessing, Preprocessing]:
    """How images are read, and how those of training are fetched: larger, where random parts of them are taken.

    Mean and standard deviation are those of pretrained weights, else a half: they are measured later.
    """
    network = image_config(settings.network)
    assert network is not None
    crops = settings.resize == "crop" and settings.decode_size
    stated = None if settings.initial is None else Preprocessing.from_dict(settings.initial.reads)
    shape = stated or Preprocessing(
        size=network.image,
        resize=settings.resize,
        crop_pct=network.image[0] / settings.decode_size if crops else 1.0,
        channels=network.channels,
        mean=(0.5,) * network.channels,
        std=(0.5,) * network.channels,
        pad_value=(settings.pad_value,) * 3,
        bits=settings.bits,
    )
    larger = settings.decode_size / network.image[0] if settings.decode_size else 1.0
    fetched = (round(network.image[0] * larger), round(network.image[1] * larger))
    if not settings.augmentation.crops:  # training shows what evaluation shows
        return shape, shape
    return shape, replace(shape, size=fetched, crop_pct=1.0)


def images_of(settings: Settings, dataset: Dataset, listen: Listen) -> tuple[Preprocessing, Loader, Loader]:
    """The preprocessing, with measured mean and standard deviation, and the training and validation images."""
    shape, as_fetched = shapes_of(settings)
    train = _loader(dataset, TRAIN, as_fetched, settings, listen, settings.augmentation.crops)
    validation = _loader(dataset, VALIDATION, shape, settings, listen)
    if settings.initial is not None:
        return shape, train, validation
    some = np.linspace(0, len(dataset.train) - 1, min(MEASURED, len(dataset.train))).astype(np.int64)
    sample = list(train.fetch(np.array_split(some, -(-len(some) // SAMPLED))))
    mean, std = measure_statistics(image for part in sample for image in part.images())
    return replace(shape, mean=mean, std=std), train, validation


def _loader(
    dataset: Dataset, name: str, shape: Preprocessing, settings: Settings, listen: Listen, whole: bool = False
) -> Loader:
    inputs, workers = dataset.splits[name].inputs, settings.execution.workers
    pin = settings.execution.device.startswith("cuda")

    def progress(done: int) -> None:
        listen(Reading(f"reading {name}", done, len(inputs)))

    loader = open_loader(inputs, shape, workers=workers, whole=whole, pin=pin, pictures=True, progress=progress)
    check_readable(loader.unreadable, len(inputs), limit=settings.unreadable)
    learn_groups(loader, dataset.splits[name])
    return loader


def background_of(
    settings: Settings, dataset: Dataset, task: Task, read_by: Input, own: Own
) -> tuple[Pixels | None, tuple[str, ...]]:
    """The background of the model, drawn from training images, to test explanations with; and a note on it."""
    images, network = dataset.train.inputs, image_config(settings.network)
    explained = own.network is None or own.config is not None  # explanations read the library's networks
    if not (explained and settings.background and task.background and isinstance(images, Images) and network):
        return None, ()
    assert isinstance(read_by, Preprocessing)
    threads = max(1, settings.execution.workers)
    background, note = draw_background(images, read_by, network.patch, settings.seed, threads)
    return background, (note,)


def unreadable_notes(*unreadable: Mapping[int, str]) -> tuple[str, ...]:
    """One note for each sample that cannot be read and is left out."""
    return tuple(f"{LEFT_OUT}{problem}" for each in unreadable for problem in each.values())


def rare_notes(dataset: Dataset, column: str | None) -> tuple[str, ...]:
    """Notes on classes with a single training sample, and on those without a validation sample."""
    learnt, scored = (samples.column(column).counts() for samples in (dataset.train, dataset.validation))
    single = [repr(name) for name, count in learnt.items() if count == 1]
    unseen = [repr(name) for name in dataset.codec.names if name not in scored] if learnt else []
    notes = []
    if single:
        notes.append(f"only one training sample of {some_of(single, 3)}")
    if unseen and len(dataset.validation):
        notes.append(f"no validation sample of {some_of(unseen, 3)}: no figure covers what it would say of them")
    return tuple(notes)


def shorten(notes: Sequence[str]) -> list[str]:
    """The notes, with at most `SHOWN` on samples that were left out, and the number of the others."""
    left_out = [note for note in notes if note.startswith(LEFT_OUT)]
    shown = [note for note in notes if note not in left_out[SHOWN:]]
    more = len(left_out) - SHOWN
    return [*shown, f"{LEFT_OUT}{counted(more, 'more sample')}; data.json names them all"] if more > 0 else shown
