"""Whole jobs in one call: train on a set, with a teacher or without, evaluate a model on a set."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from vitrail.data.feed import open_feed
from vitrail.data.readers import is_named
from vitrail.data.reference_files import compress, decompress
from vitrail.data.source import Evaluation, open_evaluation, open_source
from vitrail.errors import DataError, UsageError
from vitrail.explain.lending import without_evidence
from vitrail.model import Model, load, save_references
from vitrail.report import write_report
from vitrail.sequence_jobs import evaluate_written, open_sequences_for
from vitrail.sequence_model import SequenceModel
from vitrail.training import job
from vitrail.training.distilling import HANDED, Lesson
from vitrail.training.evaluation import Evaluated, evaluate_model
from vitrail.training.events import Event, Finished, Listen, Reported
from vitrail.training.execution import processors
from vitrail.training.options import DistillOptions, TrainOptions
from vitrail.training.sequence_metrics import SequenceOutcome
from vitrail.training.teacher import Teacher, of_model

CHANGED = "The data has changed since the training: pictures held out now may be among those that were learnt."

__all__ = ["distill", "evaluate", "open_for", "remembered_data", "train"]


def train(
    data: str = "",
    out: str | Path | None = None,
    options: TrainOptions = TrainOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    command: str = "",
) -> Finished:
    """Train a Vision Transformer on a set of pictures, and leave a run folder with its page.

    Args:
        data: The name of a set or a path, see `vitrail.data.readers.table`; empty when `options.config` names it.
        out: The run folder; a new one below `runs/` when None.
        options: What to do differently from the recipe.
        listen: Gets every event; see `vitrail.training.events`.
        command: What was typed, to be stored with the run; the call in Python when empty.

    Returns:
        The model, its evaluation and the folder.

    Raises:
        UsageError: If an option is wrong, or the folder exists and `options.resume` is "never".
        DataError: If the data cannot be used.
        RunError: If the training fails (a loss that is not finite).
        Stopped: After Ctrl-C or SIGTERM; the same call with resume="auto" goes on.
    """
    return _lending(job.train(data, out, options, _reporting(listen), command))


def distill(
    data: str,
    teacher: str | Path | Model | Teacher | Callable[..., Any],
    out: str | Path | None = None,
    options: DistillOptions = DistillOptions(),  # noqa: B008  # a frozen value
    listen: Listen = lambda event: None,
    command: str = "",
) -> Finished:
    """Train a student on a set of pictures, from their labels and from a teacher.

    Args:
        data: As for `train`.
        teacher: A run or model folder, `torchvision:NAME`, `timm:NAME`, a loaded `Model`, or a `Teacher` made of any
            callable.
        out: The run folder; a new one below `runs/` when None.
        options: What to do differently from the recipe; `options.size` is the student's.
        listen: Gets every event; see `vitrail.training.events`.
        command: What was typed, to be stored with the run; the call in Python when empty.

    Returns:
        The student, its evaluation and the folder. The student needs its teacher no more.

    Raises:
        UsageError: If an option is wrong, or the teacher cannot teach this student.
        DataError: If the data or the teacher cannot be used, or the teacher does not know the classes.
        RunError: If the training fails (a loss that is not finite).
        Stopped: After Ctrl-C or SIGTERM; the same call with resume="auto" goes on.
    """
    handed = None
    match teacher:
        case Teacher():
            handed = teacher
        case Model():
            handed = of_model(teacher, "model")
        case str() | Path():
            pass
        case _:
            raise UsageError(
                f"a teacher must be a run, a name or a Teacher, got {type(teacher).__name__}",
                "vitrail.Teacher(network, preprocessing, classes), which says what its pictures and answers are",
            )
    name = f"{HANDED}{handed.name}" if handed is not None else str(teacher)
    lesson = Lesson(teacher=name, options=options, handed=handed)
    command = command or f"vitrail.distill({data!r}, {name!r}, {None if out is None else str(out)!r}, {options!r})"
    return _lending(job.train(data, out, options, _reporting(listen), command, lesson))


def _lending(finished: Finished) -> Finished:
    """The run, whose model lends no patches that it looks at itself when its explanations are tested."""
    model = finished.model
    if not isinstance(model, Model) or model.references is None or model.donors is None:
        return finished
    pixels, compressed = without_evidence(model.network, model.donors, model.references), None
    if model.compressed_references is not None:
        compressed = compress(pixels, model.network.config.patch)
        if compressed is None:
            return finished
        pixels = decompress(compressed, model.preprocessing.channels, model.preprocessing.size)
    model = replace(model, references=pixels, compressed_references=compressed)
    save_references(model, finished.folder / "model")
    return replace(finished, model=model)


def _reporting(listen: Listen) -> Listen:
    """A listener that also writes the page of the run."""

    def heard(event: Event) -> None:
        if isinstance(event, Reported):
            write_report(event)
        listen(event)

    return heard


def remembered_data(run: str | Path | None) -> dict[str, Any]:
    """What a run remembers of its data: `name`, `root`, `images`, `split_seed`; empty when there is no run folder.

    Raises:
        DataError: If the run's `data.json` is damaged.
    """
    if run is None or not (file := Path(run) / "data.json").is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {key: content[key] for key in ("name", "root", "images", "split_seed", "fingerprint")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"name the data behind the model: {Path(run) / 'model'} DATA"
        raise DataError(f"{file} is damaged ({type(error).__name__}: {error})", hint) from error


def is_own_data(run: str | Path | None, data: str) -> bool:
    """Whether these words name the data that a run was trained on, and not other data of the same name."""
    remembered = remembered_data(run)
    if not remembered or is_named(data):
        return bool(remembered) and data == remembered["name"]
    return Path(data).expanduser().resolve() == Path(remembered["root"])


def open_for(
    model: Model, run: str | Path | None, data: str | None, data_root: Path | None = None, split: str | None = None
) -> Evaluation:
    """The pictures to evaluate or explain a model on, with labels that are indices into its classes.

    Args:
        model: Whose classes rule.
        run: Where it came from, which remembers its data; None for nowhere.
        data: A named set, folder or manifest; what the run was trained on when None.
        data_root: Where named sets lie.
        split: Which split; test, else validation, else everything when None.

    Raises:
        UsageError: If there is no data given and none remembered, or no such split.
        DataError: If the data cannot be used.
    """
    if data is not None and not is_own_data(run, data):
        return open_evaluation(data, model.classes, data_root, split)
    remembered = remembered_data(run)
    if not remembered:
        if run is None:
            raise UsageError("this model does not remember any data", "a named set, a folder or a manifest")
        raise UsageError(
            f"{run} does not remember any data",
            f"vitrail evaluate {run} DATA, where DATA is a named set, a folder or a manifest",
        )
    root = Path(remembered["root"])
    what = remembered["name"] if is_named(remembered["name"]) else str(root)
    chosen = split or ("test" if "test" in remembered["images"] else "validation")
    where = data_root or (root if root.is_dir() else None)
    found = open_evaluation(what, model.classes, where, chosen, remembered["split_seed"] or 0)
    if is_named(what) and what != "mnist-m":  # published once and for all; MNIST-M may be made with other photographs
        return found
    now = open_source(what, where, remembered["split_seed"] or 0).fingerprint
    return found if now == remembered["fingerprint"] else replace(found, notes=(*found.notes, CHANGED))


@overload
def evaluate(
    model: Model,
    data: str | None = None,
    *,
    run: str | Path | None = None,
    data_root: str | Path | None = None,
    split: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluated: ...


@overload
def evaluate(
    model: SequenceModel,
    data: str | None = None,
    *,
    run: str | Path | None = None,
    data_root: str | Path | None = None,
    split: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> SequenceOutcome: ...


@overload
def evaluate(
    model: str | Path,
    data: str | None = None,
    *,
    run: None = None,
    data_root: str | Path | None = None,
    split: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluated | SequenceOutcome: ...


def evaluate(
    model: str | Path | Model | SequenceModel,
    data: str | None = None,
    *,
    run: str | Path | None = None,
    data_root: str | Path | None = None,
    split: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluated | SequenceOutcome:
    """Count how often a model is right; each sample counts once.

    Args:
        model: A run or model folder, or a model that was loaded.
        data: What it is asked about, as for `train`; what the run was trained on when None.
        run: Where a loaded model came from, which remembers its data; a folder says that by itself.
        data_root: Where named sets lie.
        split: Which split; test, else validation, else everything when None.
        progress: Called with the number of samples done.

    Returns:
        `Evaluated` for a model that says classes, `SequenceOutcome` for one that writes. Both have a `headline`, a
        `sentence()`, `to_dict()`, the name of the `data` and `notes` on it.

    Raises:
        UsageError: If there is no data given and none remembered, or no such split.
        DataError: If the model or the data cannot be used.
    """
    match model:
        case str() | Path():
            run, asked = model, load(model)
        case _:
            asked = model
    root = None if data_root is None else Path(data_root)
    match asked:
        case Model():
            found = open_for(asked, run, data, root, split)
            return replace(evaluate_found(asked, found, progress), data=found.name, notes=found.notes)
        case SequenceModel():
            samples = open_sequences_for(asked, remembered_data(run), data, root, split)
            return replace(evaluate_written(asked, samples, progress), data=samples.name, notes=samples.notes)


def evaluate_found(model: Model, found: Evaluation, progress: Callable[[int], None] = lambda done: None) -> Evaluated:
    """Evaluate a model on opened pictures.

    Args:
        model: What is evaluated.
        found: From `open_for` or `vitrail.data.open_evaluation`.
        progress: Called with the number of pictures done.
    """
    feed = open_feed(found.split.pictures, model.preprocessing, workers=max(1, processors() - 1))
    return evaluate_model(model, found.split, found.split_name, feed, found.unknown, progress)
