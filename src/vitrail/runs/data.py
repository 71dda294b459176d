"""The data of a run, or others, opened to evaluate or explain its model."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.columns import Texts, Vocabulary
from vitrail.data.dataset import TEST, VALIDATION, Split, make_dataset, match_split
from vitrail.data.formats import Reader, check_root, is_named, is_planted, read
from vitrail.errors import DataError, UsageError
from vitrail.model import Model, open_model, own_of
from vitrail.own import check_passed
from vitrail.runs.contracts import read_own
from vitrail.runs.folder import RunFolder
from vitrail.runs.halves import HALVES, REPORT, WHOLE, chosen_words, half_of
from vitrail.runs.settings import read_yaml, settings_from_dict
from vitrail.tasks import check_column
from vitrail.weights.names import is_foreign

CHANGED = "The data have changed since the training: images that are held out now may have been used for training."


def remembered_data(run: str | Path | None) -> dict[str, Any]:
    """The content of a run's `data.json`; empty without a run.

    Raises:
        DataError: It is damaged.
    """
    if run is None or not (Path(run) / "data.json").is_file():
        return {}
    return RunFolder(Path(run)).read_data(f"add the data after the model: {Path(run) / 'model'} DATA")


def own_reader(run: str | Path | None) -> str:
    """Name of the user's own reader of a run's data; empty if the library reads them."""
    if run is None or not (folder := RunFolder(Path(run))).config.is_file():
        return ""
    model = shlex.quote(str(folder.model))
    settings = read_yaml(folder.config, f"vitrail evaluate {model} DATA, or vitrail explain {model} IMAGE")
    return (settings.get("own") or {}).get("reader", "")


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
