"""The best checkpoint of a run: of the networks that were scored behind each epoch, that which did best on *choose*.

    best/3.safetensors    the network behind epoch 3, written before its row of the metrics

Which one is best is read from the metrics, which a resume cuts to the length that its state knows; a file is removed
only when no saved state knows it as its best any more. So a run that was killed anywhere chooses the same network.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from vitrail.data.tensor_files import read_tensors, write_tensors
from vitrail.errors import DataError
from vitrail.tasks import Metric
from vitrail.training.checkpoint import MANIFEST, copy_of, states
from vitrail.training.run import RunFolder
from vitrail.training.saver import Saver

Row = Mapping[str, Any]


def worth(row: Row, metric: Metric) -> tuple[float, float]:
    """Of an epoch, the more the better: its metric, where that is a fraction; then less loss."""

    def known(key: str, worst: float) -> float:
        value = row.get(key)
        return worst if value is None or math.isnan(value) else float(value)

    first = known(f"validation_{metric.key}", -math.inf) if metric.fraction else 0.0
    return first, -known("validation_loss", math.inf)


def best_of(history: Sequence[Row], metric: Metric) -> Row | None:
    """The best of the epochs, of equals the first; None where there is none.

    Where a run began to choose on its way, epochs before that were scored on other samples, and are not compared.
    """
    comparable = [row for row in history if "scored_on" in row] or history
    return max(comparable, key=lambda row: (worth(row, metric), -row["epoch"]), default=None)


def spent(history: Sequence[Row], metric: Metric, patience: int, since: int = 0) -> bool:
    """Whether so many epochs have gone by without a better one.

    Args:
        history: The epochs so far.
        metric: The task's.
        patience: Epochs to wait; 0 for ever.
        since: The step before which epochs do not count, where a run was to go on beyond its end.
    """
    best = best_of(history, metric)
    if not patience or best is None:
        return False
    waited = [row for row in history if row["epoch"] > best["epoch"] and row["step"] > since]
    return len(waited) >= patience


def keep_if_best(folder: RunFolder, network: nn.Module, row: Row, metric: Metric, saver: Saver) -> None:
    """Have the network behind an epoch written, whose row is not in the metrics yet, where none before was as good.

    The row may be in the metrics before the file is there: a run that is killed between the two goes on from a state
    that was saved before, which knows neither.
    """
    if best_of([*folder.history(), row], metric) is not row:
        return
    tensors, file = copy_of(network.state_dict()), folder.best / f"{row['epoch']}.safetensors"
    saver.later(lambda: write_tensors(file, network.state_dict() if tensors is None else tensors))
    if tensors is None:
        saver.wait()


def tidy(folder: RunFolder, metric: Metric) -> None:
    """Remove the networks that no saved state knows as its best."""
    rows = folder.metrics.read_bytes() if folder.metrics.exists() else b""
    wanted = set[str]()
    for place in states(folder.resume):
        try:
            length = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["metrics_bytes"]
        except (OSError, ValueError, KeyError):
            return  # a damaged state: better one file too many
        if best := best_of(folder.history(rows[:length]), metric):
            wanted.add(f"{best['epoch']}.safetensors")
    for file in folder.best.glob("*.safetensors") if wanted else ():
        if file.name not in wanted:
            file.unlink()


def load_best(folder: RunFolder, network: nn.Module, metric: Metric, say: Callable[[str], object]) -> Row | None:
    """Put the best checkpoint's numbers into a network; where its file is lost, those of the next best that is whole.

    Args:
        folder: Of the run.
        network: Keeps the numbers of the last epoch where no file is whole.
        metric: The task's.
        say: Told of a file that is lost.

    Returns:
        The row of its epoch; None where no file is whole.
    """
    history = folder.history()
    while row := best_of(history, metric):
        file = folder.best / f"{row['epoch']}.safetensors"
        try:
            network.load_state_dict(read_tensors(file, ""))
        except DataError as error:
            if file.exists() or row is best_of(folder.history(), metric):
                say(f"warning: the best checkpoint is lost, and the next best that is whole is taken: {error.problem}")
            history = [each for each in history if each["epoch"] != row["epoch"]]
        else:
            return row
    return None
