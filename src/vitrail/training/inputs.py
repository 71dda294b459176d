"""What a training reads: images of the right size and scale, the background, and a sentence on what is left out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitrail.data.background import Pixels, draw_background
from vitrail.data.columns import Labels
from vitrail.data.dataset import TRAIN, VALIDATION, Dataset
from vitrail.data.images import Images
from vitrail.data.loader import Loader, check_readable, open_loader
from vitrail.data.preprocessing import Preprocessing, measure_statistics
from vitrail.errors import counted
from vitrail.tasks import Task
from vitrail.tasks.task import Input
from vitrail.training.asked import Own
from vitrail.training.events import Listen, Reading
from vitrail.training.settings import Settings, image_config

SAMPLED = 64  # images that are fetched at a time to be measured
MEASURED = 2048  # images that mean and standard deviation are measured on
LEFT_OUT = "left out: "


def images_of(settings: Settings, dataset: Dataset, listen: Listen) -> tuple[Preprocessing, Loader, Loader]:
    """The preprocessing, with measured mean and standard deviation, and the images of training and validation."""
    network = image_config(settings.network)
    assert network is not None
    crops = settings.resize == "crop" and settings.fetch_size
    stated = None if settings.initial is None else Preprocessing.from_dict(settings.initial.reads)
    shape = stated or Preprocessing(
        size=network.image,
        resize=settings.resize,
        crop_ratio=network.image[0] / settings.fetch_size if crops else 1.0,
        channels=network.channels,
        mean=(0.5,) * network.channels,
        std=(0.5,) * network.channels,
        background=(settings.pad_value,) * 3,
    )
    larger = settings.fetch_size / network.image[0] if settings.fetch_size else 1.0
    fetched = (round(network.image[0] * larger), round(network.image[1] * larger))
    whole = settings.augmentation.crops  # else training shows what evaluation shows
    as_fetched = replace(shape, size=fetched, crop_ratio=1.0) if whole else shape
    train = _loader(dataset, TRAIN, as_fetched, settings, listen, whole)
    validation = _loader(dataset, VALIDATION, shape, settings, listen)
    if stated is not None:
        return stated, train, validation
    some = np.linspace(0, len(dataset.train) - 1, min(MEASURED, len(dataset.train))).astype(np.int64)
    sample = list(train.fetch(np.array_split(some, -(-len(some) // SAMPLED))))
    mean, std = measure_statistics(image for part in sample for image in part.images())
    return replace(shape, mean=mean, std=std), train, validation


def _loader(
    dataset: Dataset, name: str, shape: Preprocessing, settings: Settings, listen: Listen, whole: bool = False
) -> Loader:
    inputs = dataset.splits[name].inputs
    loader = open_loader(
        inputs,
        shape,
        workers=settings.execution.workers,
        whole=whole,
        pin=settings.execution.device.startswith("cuda"),
        progress=lambda done: listen(Reading(f"reading {name}", done, len(inputs))),
    )
    check_readable(loader, len(inputs))
    return loader


def background_of(
    settings: Settings, dataset: Dataset, task: Task, read_by: Input, own: Own
) -> tuple[Pixels | None, tuple[str, ...]]:
    """What the model's explanations will be tested with, drawn from the training images, and a sentence on it."""
    images, network = dataset.train.inputs, image_config(settings.network)
    explained = own.network is None or own.config is not None  # explanations read the library's networks
    if not (explained and settings.background and task.background and isinstance(images, Images) and network):
        return None, ()
    assert isinstance(read_by, Preprocessing)
    threads = max(1, settings.execution.workers)
    background, note = draw_background(images, read_by, network.patch, settings.seed, threads)
    return background, (note,)


def unreadable_notes(*loaders: Loader) -> tuple[str, ...]:
    """One sentence for each sample that could not be read and is left out."""
    return tuple(f"{LEFT_OUT}{problem}" for loader in loaders for problem in loader.unreadable.values())


def rare_notes(dataset: Dataset, column: str) -> tuple[str, ...]:
    """What to know of classes with a single training sample, and of those that no validation sample has."""
    train, held_out = (samples.column(column) for samples in (dataset.train, dataset.validation))
    if not isinstance(train, Labels) or not isinstance(held_out, Labels):
        return ()
    learnt, asked = (np.bincount(one.values, minlength=len(train.names)).tolist() for one in (train, held_out))
    single = [name for name, count in zip(train.names, learnt, strict=True) if count == 1]
    unseen = [name for name, count in zip(train.names, asked, strict=True) if count == 0]
    notes = []
    if single:
        notes.append(f"one training sample alone: {_some(single)}; no other sample confirms what it teaches")
    if unseen and len(dataset.validation):
        notes.append(f"no validation sample: {_some(unseen)}; no figure speaks of that class")
    return tuple(notes)


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"class {', '.join(map(repr, names[:most]))}{more}"


def shortened(notes: Sequence[str], most: int = 5) -> list[str]:
    """The notes, with at most `most` on samples that were left out, and a count of the others."""
    left_out = [note for note in notes if note.startswith(LEFT_OUT)]
    shown = [note for note in notes if note not in left_out[most:]]
    more = len(left_out) - most
    return [*shown, f"{LEFT_OUT}{counted(more, 'more sample')}; data.json names them all"] if more > 0 else shown
