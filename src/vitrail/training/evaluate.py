"""Evaluation of a model on data: each sample once, in order, by the model's own preprocessing and task.

Validation samples are cut into two halves where a training chooses its network on them:

    select    each epoch is evaluated on it; it selects the best checkpoint, and between probe and tuned network
    report    selects nothing: the final model is evaluated on it, if there is no test split

A figure on samples that chose among many networks is too high, since the luckiest was chosen. The half of a sample is
decided by a hash of its name, so it is the same on every machine and in every order.
"""

import hashlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

from vitrail.data.batches import Batches
from vitrail.data.columns import Labels, Texts, Vocabulary
from vitrail.data.dataset import TEST, TRAIN, VALIDATION, Samples, Split, make_dataset, match_split
from vitrail.data.formats import Reader, check_root, is_named, is_planted, read
from vitrail.data.images import Images
from vitrail.data.loader import open_loader
from vitrail.errors import DataError, UsageError, counted
from vitrail.features.similar import check_splits, neighbours_of
from vitrail.jobs.precision import FP32, Choice, PrecisionOption, chosen, computed, may_gain
from vitrail.model import Model, load, open_model, own_of
from vitrail.nn import Parts
from vitrail.nn.networks import evaluating
from vitrail.own import check_passed
from vitrail.pages.views import Table
from vitrail.runtime import processors
from vitrail.tasks import Result, Task, check_column
from vitrail.tasks.task import unit_of
from vitrail.text import percent
from vitrail.training.configuration.settings import read_yaml, settings_from_dict
from vitrail.training.contracts import read_own
from vitrail.training.distributed.group import ALONE, Group
from vitrail.training.run import RunFolder
from vitrail.weights.names import is_foreign

CHANGED = "The data have changed since the training: images that are held out now may have been used for training."
BATCH = 256  # samples at a time; does not change what is counted

SELECT, REPORT = "select", "report"
HALVES = (SELECT, REPORT)
LEAST = 16  # samples in the smaller half
WHOLE = "whole"  # in data.json, for a validation split that is too small to be cut


def evaluate(
    model: str | Path | Model,
    data: str | None = None,
    *,
    run: str | Path | None = None,
    data_root: str | Path | None = None,
    split: str | None = None,
    task: Task | None = None,
    network: nn.Module | None = None,
    parts: Parts | None = None,
    reader: Reader | None = None,
    neighbours: int | None = None,
    precision: PrecisionOption = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> Result:
    """Evaluate a model on data.

    Args:
        model: A run or model folder, or a loaded model.
        data: As for `train`; the data of the run when None.
        run: The run of a loaded model, which stores its data; not needed for a folder.
        data_root: Folder of the named sets.
        split: Name of the split; test, else validation, else all samples when None.
        task: As for `load`, where `model` is a folder; so are
        network: and
        parts:.
        reader: A reader of your own for `data`.
        neighbours: k of a k-NN evaluation by each pooling of a ViT, too: it needs a pass over the training images and
            one more over those that are evaluated; None for none.
        precision: fp32, bf16, or auto: for many images and a wide network the faster one, if its predictions agree; the
            choice is stored, in the run or the user's cache.
        progress: Called with the number of samples done.

    Raises:
        UsageError: There are no data and none stored, or no such split.
        DataError: The model or the data cannot be used.
    """
    if isinstance(model, str | Path):
        check_objects(model, data, {"task": task, "network": network, "parts": parts, "reader": reader})
        run, model = model, load(model, task=task, network=network, parts=parts)
    elif any(each is not None for each in (task, network, parts)):
        raise UsageError("a loaded model has its own task, network and parts, so none can be passed", "its folder")
    found = open_for(model, run, data, None if data_root is None else Path(data_root), split, reader)
    train = None
    if neighbours is not None:  # refused before anything is counted
        check_splits(model, found, neighbours)
        train = open_for(model, run, data, None if data_root is None else Path(data_root), TRAIN, reader)
    choice = _chosen(model, found, precision, run)
    result = evaluate_split(model, found, progress=progress, choice=choice)
    result = replace(result, data=found.name, notes=(*found.notes, *filter(None, [choice.sentence()])))
    if neighbours is None or train is None:
        return result
    return _with_neighbours(result, neighbours_of(model, train, found, neighbours))


def _chosen(model: Model, split: Split, precision: PrecisionOption, run: str | Path | None) -> Choice:
    """The precision of the evaluation; samples that are no images, or have no class, are no part of a new choice."""
    inputs = split.samples.inputs
    if not isinstance(inputs, Images) or not may_gain(model):
        return chosen(model, [], precision)
    column = split.samples.column(model.task.column)
    return chosen(model, [inputs], precision, run, lambda ids: model.output.targets(column.take(ids, 0)))


def _with_neighbours(result: Result, found: Mapping[str, Any]) -> Result:
    """The result with that of k-NN, in its JSON and as a table."""
    head = f"{found['count']}-NN among {counted(found['train_images'], 'training image')} ({found['seconds']:.1f} s)"
    rows = [
        (name, percent(each["accuracy"], 2), " to ".join(percent(end, 2) for end in each["interval"]))
        for name, each in found["poolings"].items()
    ]
    table = Table("Nearest neighbours", (head, "accuracy", "95 % interval"), tuple(rows))
    return replace(result, details={**result.details, "neighbours": dict(found)}, tables=(*result.tables, table))


def check_objects(run: str | Path, data: str | None, objects: Mapping[str, object]) -> None:
    """Refuse to evaluate a run or model that was made with a user's own objects without them.

    Args:
        run: Its folder.
        data: As for `evaluate`; the data of the run when None, for which its reader is needed, too.
        objects: The objects, by argument.

    Raises:
        UsageError: Some are missing; its hint is the call in Python.
        DataError: There is no model.
    """
    if is_foreign(run):
        check_passed({}, objects, "evaluate", [])
        return
    own, reader = own_of(open_model(run)[1]), own_reader(run)
    if reader and (data is None or is_own_data(run, data)):
        own["reader"] = reader
    words = [repr(str(word)) for word in (run, data) if word is not None]
    check_passed(own, objects, "evaluate", words)


def own_reader(run: str | Path | None) -> str:
    """Name of the user's own reader of a run's data; empty if the library reads them."""
    if run is None or not (folder := RunFolder(Path(run))).config.is_file():
        return ""
    model = shlex.quote(str(folder.model))
    settings = read_yaml(folder.config, f"vitrail evaluate {model} DATA, or vitrail explain {model} IMAGE")
    return (settings.get("own") or {}).get("reader", "")


def evaluate_split(
    model: Model,
    split: Split,
    batches: Batches | None = None,
    progress: Callable[[int], None] = lambda done: None,
    processes: Group = ALONE,
    choice: Choice = FP32,
) -> Result:
    """Evaluate a model on samples whose column is matched to its codec.

    Args:
        model: Its network is put into eval mode and left as it was.
        split: The samples.
        batches: The same as batches; made here when None.
        progress: Called with the number of samples done.
        processes: Those that evaluate together, with the same model; each gets the result.
        choice: The precision and its reason.

    Raises:
        DataError: No sample can be read.
    """
    samples = split.samples
    data = batches_of(model, samples) if batches is None else batches
    metrics, network = model.task.metrics(model.input, model.output), computed(model, choice.precision).network
    read, together = False, BATCH * processes.world
    with evaluating(network), torch.no_grad():
        mine = data.in_order(BATCH, processes.share)
        for done in range(0, len(data), together):  # each process answers one batch, or has none left
            batch = next(mine, None)
            answers = metrics.answers(network, batch) if batch is not None and len(batch) else None
            for each in processes.gathered(answers):
                if each is not None:
                    metrics.update(each)
                    read = True
            progress(min(done + together, len(data)))
    share_unreadable(data, processes)
    if not read:
        first = next(iter(data.unreadable.values()), "it is empty")
        problem = f"none of the {len(data)} samples of the {split.split} split can be read: {first}"
        raise DataError(problem, "repair or replace these files, or name other data")
    result = metrics.result(samples.name)
    unknown = None if result.unknown is None else split.unknown
    precision = {"compute_dtype": choice.precision, **({"choice": asdict(choice)} if choice.images else {})}
    return replace(
        result,
        details={**result.details, **precision},
        split=split.split,
        unit=unit_of(model.input),
        unknown=unknown,
        unreadable=tuple(problem for _, problem in sorted(data.unreadable.items())),
    )


def share_unreadable(data: Batches, processes: Group) -> None:
    """Share among processes which samples could not be read."""
    for found in processes.gathered(list(data.loader.unreadable.items())):
        data.loader.unreadable |= {int(index): problem for index, problem in found}


def batches_of(model: Model, samples: Samples, workers: int | None = None) -> Batches:
    """Samples as batches for the evaluation of a model, in order.

    Args:
        model: Has the preprocessing.
        samples: With a column that is matched to its codec.
        workers: Processes or threads that decode images; all processors but one when None.
    """
    loader = open_loader(samples.inputs, model.input, workers=max(1, processors() - 1) if workers is None else workers)
    return Batches(loader, samples.column(model.task.column), model.output, model.input, device=model.device)


def remembered_data(run: str | Path | None) -> dict[str, Any]:
    """The content of a run's `data.json`; empty without a run.

    Raises:
        DataError: It is damaged.
    """
    if run is None or not (Path(run) / "data.json").is_file():
        return {}
    return RunFolder(Path(run)).read_data(f"add the data after the model: {Path(run) / 'model'} DATA")


def is_own_data(run: str | Path | None, data: str) -> bool:
    """Whether this names the data that a run was trained on, and not other data of the same name."""
    remembered = remembered_data(run)
    if not remembered or is_named(data) or own_reader(run):
        return bool(remembered) and data == remembered["name"]
    return data.rstrip("/") == remembered["root"] or Path(data).expanduser().resolve() == Path(remembered["root"])


def planted_root(run: str, data_root: Path | None) -> Path | None:
    """The folder of MNIST, of which planted images are made: `data_root`, or where the run read it."""
    remembered = {} if data_root is not None else remembered_data(run)
    name, root = remembered.get("name", ""), Path(remembered.get("root", ""))
    return root if (name == "mnist" or is_planted(name)) and root.is_dir() else data_root


def open_for(
    model: Model,
    run: str | Path | None,
    data: str | None,
    data_root: Path | None = None,
    split: str | None = None,
    reader: Reader | None = None,
) -> Split:
    """The samples to evaluate or explain a model on, with a column that is matched to its codec.

    Args:
        model: With its codec.
        run: Its run, which stores its data; None for none.
        data: A named set, folder or file; the data of the run when None.
        data_root: Folder of the named sets.
        split: Name of the split; test, else validation, else all samples when None.
        reader: A reader of the user's own.

    Raises:
        UsageError: There are no data and none stored, or no such split.
        DataError: The data cannot be used.
    """
    remembered = remembered_data(run) if data is None or is_own_data(run, data) else {}
    halves = remembered.get("halves")
    if not remembered and data is None:
        kinds = "a named set, a folder or a manifest"
        problem = f"{'this model' if run is None else run} has stored no data"
        raise UsageError(problem, kinds if run is None else f"vitrail evaluate {run} DATA, where DATA is {kinds}")
    what, seed, counts = str(data), 0, None
    if reader is None:
        check_root(remembered.get("name", what), data_root)
    if remembered:
        if reader is None and run is not None and own_reader(run):
            check_objects(run, None, dict.fromkeys(("task", "network", "parts"), model))
        what, root, seed = remembered["name"], Path(remembered["root"]), remembered["split_seed"] or 0
        if reader is None and not is_named(what):
            what = remembered["root"]
        if data_root is None and root.exists():
            data_root = root
        if run is not None and (config := RunFolder(Path(run)).config).is_file():
            counts = settings_from_dict(read_yaml(config)).counts
        unseen = VALIDATION if not halves or halves == WHOLE else REPORT
        split = split or (TEST if TEST in remembered["images"] else unseen)
    raw = read_own(reader, what, data_root) if reader else read(what, data_root, split_seed=seed, counts=counts)
    check_column(what, raw.columns(), model.task)
    column = model.task.column
    found = match_split(what, raw, column, model.output, VALIDATION if split in HALVES else split, seed)
    if split in HALVES:
        found = half_of(found, column, split)
    words = chosen_words(found.split, halves)
    if not remembered and found.split != TEST and "chosen_on" in model.facts:  # a model without its run
        words = f"{model.facts['chosen_on']} chose this model; if they are among these, the figure is too high."
    if words:
        found = replace(found, notes=(*found.notes, words))
    _check_inputs(model, found)
    if remembered and (not is_named(what) or what == "mnist-m"):
        # other named sets never change; MNIST-M may be made with other photographs
        now = make_dataset(what, raw, column, lambda raw, parts: model.task.codec(raw, parts), seed).fingerprint
        if now != remembered["fingerprint"]:
            found = replace(found, notes=(*found.notes, CHANGED))
    return found


def _check_inputs(model: Model, found: Split) -> None:
    """Refuse texts for a model that reads images, and the reverse; and unknown tokens."""
    texts = found.samples.inputs if isinstance(found.samples.inputs, Texts) else None
    if model.reads_text != (texts is not None):
        kinds = ("images", "texts")
        problem = f"{found.name} contains {kinds[texts is not None]}, but this model reads {kinds[model.reads_text]}"
        raise DataError(problem, f"data with {kinds[model.reads_text]}")
    if texts is not None and isinstance(model.input, Vocabulary):
        model.input.match(texts)  # every token must be known


# ---- the halves of a validation split


@dataclass(frozen=True, eq=False)
class Halves:
    """The two halves of a validation split.

    Attributes:
        select: (n,) the samples that select, in their order.
        report: (m,) the others; all samples in both if it is not cut.
        problem: Why it is not cut; empty if it is.
    """

    select: Int64[np.ndarray, " n"]
    report: Int64[np.ndarray, " m"]
    problem: str = ""

    @property
    def chosen_on(self) -> str:
        """Name of the split that selects."""
        return VALIDATION if self.problem else SELECT

    def to_dict(self) -> Any:
        """What `data.json` stores: the sizes of the halves, or that there are none."""
        return WHOLE if self.problem else {SELECT: len(self.select), REPORT: len(self.report)}

    @property
    def note(self) -> str:
        """A sentence on the cut."""
        if self.problem:
            return (
                f"the validation split is not cut ({self.problem}): all of it chooses the model, which is "
                "reported wherever it also evaluates it"
            )
        return (
            f"validation is cut by a hash of names: {len(self.select)} select the model, and {len(self.report)} "
            "select nothing"
        )


def cut(samples: Samples, column: str) -> Halves:
    """Cut samples in two by a hash of their names.

    A class with several samples, all in one half by chance, gives the one with the least hash to the other. Samples of
    one name stay together.

    Args:
        samples: Of the validation split.
        column: Of the task, which may have classes.
    """
    everyone = np.arange(len(samples), dtype=np.int64)
    if isinstance(samples.inputs, Images) and samples.inputs.renewed:
        return Halves(everyone, everyone, "its images are made, and not chosen from")
    names = map(os.fsencode, samples.inputs.names())
    ranks = np.array([hashlib.blake2b(name, digest_size=8, person=b"halves").hexdigest() for name in names])
    second = np.array([int(rank[-1], 16) % 2 == 1 for rank in ranks], dtype=bool)
    if isinstance(labels := samples.column(column), Labels):
        for label in np.unique(labels.values):
            own = np.flatnonzero(labels.values == label)
            if len(set(ranks[own])) > 1 and len(set(second[own])) == 1:
                moved = ranks == min(ranks[own].tolist())  # its namesakes, too
                second[moved] = ~second[moved]
    halves = everyone[~second], everyone[second]
    if (least := min(map(len, halves))) < LEAST:
        return Halves(
            everyone, everyone, f"of {counted(len(samples), 'sample')} a half has {least}, fewer than {LEAST}"
        )
    return Halves(*halves)


def half_of(split: Split, column: str, name: str) -> Split:
    """One half of a validation split.

    Raises:
        UsageError: It is too small to be cut.
    """
    halves = cut(split.samples, column)
    if halves.problem:
        raise UsageError(f"{split.name} has no split {name}: {halves.problem}", "--split validation")
    return replace(split, samples=split.samples.select(getattr(halves, name)), split=name)


def chosen_words(split: str, halves: Any) -> str:
    """A sentence on a figure whose samples chose the model; empty if they did not.

    Args:
        split: Of the figure.
        halves: The cut in `data.json`, empty if nothing was chosen.
    """
    if not halves or split not in (VALIDATION, SELECT):
        return ""
    if halves == WHOLE or split == SELECT:
        return f"The samples of the {split} split chose this model, so the figure is too high."
    share = f"{halves[SELECT]} of {halves[SELECT] + halves[REPORT]}"
    return f"{share} samples of the {split} split chose this model, so the figure is too high; {REPORT} is clean."


def marked(result: Result, halves: Any) -> Result:
    """The result with sentences on samples that chose the model, if they did."""
    words = chosen_words(result.split, halves)
    if not words:
        return result
    about = (result.about[0], f"{result.about[1]} {words}".strip())
    return replace(result, sentence=f"{result.sentence} (on samples that chose the model)", about=about)
