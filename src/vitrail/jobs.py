"""Whole jobs in one call: train on a set, evaluate a model on a set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.data.feed import open_feed
from vitrail.data.source import Evaluation, open_evaluation
from vitrail.errors import UsageError
from vitrail.model import Model
from vitrail.training.evaluation import Evaluated, evaluate_model
from vitrail.training.execution import processors
from vitrail.training.job import train

__all__ = ["evaluate", "open_for", "remembered_data", "train"]


def remembered_data(run: str | Path) -> dict[str, Any]:
    """What a run remembers of its data: `name`, `root`, `split_seed`; empty when it is no run folder."""
    file = Path(run) / "data.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def open_for(
    model: Model, run: str | Path, data: str | None, data_root: Path | None = None, split: str | None = None
) -> Evaluation:
    """The pictures to evaluate or explain a model on, with labels that are indices into its classes.

    Args:
        model: Whose classes rule.
        run: Where it came from; a run remembers its data.
        data: A named set, folder or manifest; what the run was trained on when None.
        data_root: Where named sets lie.
        split: Which split; test, else validation, else everything when None.

    Raises:
        UsageError: If there is no data given and none remembered, or no such split.
        DataError: If the data cannot be used.
    """
    remembered = remembered_data(run)
    if data is None and not remembered:
        raise UsageError(f"{run} does not remember any data", f"vitrail evaluate {run} DATA")
    name = data or remembered["name"]
    if data is None or data == remembered.get("name"):
        named = not Path(remembered["root"]).exists() or name in ("digits", "mnist", "fashion-mnist")
        what = name if named else remembered["root"]
        root = data_root or (Path(remembered["root"]) if Path(remembered["root"]).is_dir() else None)
        chosen = split or ("test" if "test" in remembered["images"] else "validation")
        return open_evaluation(what, model.classes, root, chosen, remembered.get("split_seed") or 0)
    return open_evaluation(name, model.classes, data_root, split)


def evaluate(model: Model, found: Evaluation, progress: Callable[[int], None] = lambda done: None) -> Evaluated:
    """Evaluate a model on opened data; each picture counts once.

    Args:
        model: What is evaluated.
        found: From `open_for` or `vitrail.data.open_evaluation`.
        progress: Called with the number of pictures done.
    """
    feed = open_feed(found.split.pictures, model.preprocessing, workers=max(1, processors() - 1))
    return evaluate_model(model, found.split, found.split_name, feed, found.unknown, progress)
