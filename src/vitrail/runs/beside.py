"""What a run knows that helps to judge an answer of its model; it stands below the maps of an explanation.

How often the model was right in its own evaluation when it was as sure, whether it was trained on this very image, and
which of its training images are nearest. Weights from elsewhere have no run, so nothing of it is known.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.columns import TRAIN, RawDataset
from vitrail.data.images import HASH
from vitrail.errors import DataError, UsageError, counted
from vitrail.features.similar import KnownImages, evenly_by_class, nearest_training, open_known
from vitrail.io import read_json
from vitrail.jobs.parts import Progress
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.pages.views import ImageView, Sureness
from vitrail.runs.data import MODEL, Run, TrainedOn, chosen_words, open_for
from vitrail.runs.folder import RunFolder
from vitrail.tasks.task import wilson_interval

LEAST = 30  # answers from which a fraction is made, where there are as many
MOST_LISTED = 100_000  # training images of which some are embedded; to list more takes too long for a page
NONE = "none"


def run_of(run: Run) -> Run:
    """The run that a person named, itself or by its model; of other weights it knows nothing."""
    path = run.path
    return Run(path.resolve().parent) if path.name == MODEL and not RunFolder(path).config.is_file() else run


def open_training(
    model: Model, run: Run, file: str | None, data_root: Path | None, progress: Progress
) -> tuple[KnownImages | None, str]:
    """The training images among which the nearest are looked for, and what they are, in words; None where none are.

    Args:
        model: Of the run.
        run: Some of its images are embedded where there is no file, as many of each class as can be.
        file: A file of features; `none` for none.
        data_root: The folder of named sets.
        progress: Called with images that are embedded, and all.

    Raises:
        DataError: The file cannot be read, or holds features of another model.
        UsageError: The network has none.
    """
    if file not in (None, NONE):
        known = open_known(file, None, model)
        if rows := [row for row, split in enumerate(known.features.splits) if split == TRAIN]:
            known = replace(known, features=known.features.select(rows))
        return known, f"among {counted(len(known.features), 'image')} whose features are in {Path(file).name}"
    count = run.facts.get("images", {}).get(TRAIN, 0)
    if file == NONE or not 0 < count <= MOST_LISTED or not isinstance(model.network, ViT):
        return None, f"No training image is shown, since {count:,} are too many to look through." * (
            count > MOST_LISTED
        )
    try:
        split = open_for(model, run, None, data_root, TRAIN)
        raw = RawDataset(split.name, {TRAIN: evenly_by_class(split.samples)}, name=split.name)
        known = open_known(split.name, raw, model, progress=progress)
    except (DataError, UsageError, OSError):  # of a reader of one's own, too
        return None, "No training image is shown, since they are not at hand."
    return (
        known,
        f"among {len(known.features)} of its {counted(count, 'training image')}, taken evenly from all classes",
    )


def add_known(
    views: Sequence[ImageView], model: Model, run: Run, weights: str, known: KnownImages | None
) -> list[ImageView]:
    """Explained images with what a run knows of their answers.

    Args:
        views: The images.
        model: That answered them.
        run: Its own.
        weights: A hash of the model's: an evaluation of others says nothing of it.
        known: Among which images the nearest are looked for; None for none.

    Raises:
        DataError: A file of the run is damaged.
    """
    file, halves = RunFolder(run.path).evaluation, run.facts.get("halves")
    evaluation = read_json(file, f"rm {shlex.quote(str(file))}") if file.is_file() else {}
    rows = evaluation if evaluation.get("weights") == weights else {}
    prints = [list(bytes.fromhex(view.beside.fingerprint or "00" * HASH)) for view in views]
    learnt = TrainedOn(run.trained_on).has(np.array(prints, np.uint8).reshape(-1, HASH)).tolist()
    near = [()] * len(views) if known is None else nearest_training(model, [view.image for view in views], known)
    found = list[ImageView]()
    for view, own, others in zip(views, learnt, near, strict=True):
        sure = sureness(rows, view.top[0][1], halves) if view.top else None
        found.append(replace(view, beside=replace(view.beside, sureness=sure, learnt=own, nearest=others)))
    return found


def sureness(evaluation: Mapping[str, Any], probability: float, halves: Any = None) -> Sureness | None:
    """How often a model was right when it was about this sure; None where that is not known.

    Of the ranges that it counts, the one of this probability, and those beside it until there are 30 answers.

    Args:
        evaluation: Content of `evaluation.json`.
        probability: Of the answer.
        halves: The cut in `data.json`.
    """
    rows = evaluation.get("calibration") or [{"from": 0, "to": 1, "images": 0, "right": 0}]
    first = last = sum(row["from"] <= probability for row in rows) - 1
    while sum(row["images"] for row in rows[first : last + 1]) < LEAST and last - first + 1 < len(rows):
        first, last = max(0, first - 1), min(len(rows) - 1, last + 1)
    images, right = (sum(row[name] for row in rows[first : last + 1]) for name in ("images", "right"))
    if not images:
        return None
    learnt, note = evaluation.get("trained_on", {}).get("images"), chosen_words(evaluation["split"], halves)
    note = "The model was trained on these images, so this says nothing about others." if learnt == images else note
    ends = rows[first]["from"], rows[last]["to"]
    return Sureness(*ends, right, images, wilson_interval(right, images), evaluation["split"], note)
