"""`vitrail predict RUN PICTURES`: the class of each picture."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.parse import Positional, parse
from vitrail.errors import DataError, UsageError

if TYPE_CHECKING:
    from vitrail.model import Model, Prediction

BATCH = 64
COLUMNS = ["file", "label", "probability"]


@dataclass(frozen=True, kw_only=True)
class Predict:
    """What can be typed after `vitrail predict`."""

    run: Positional[str]
    """A run or model folder"""
    pictures: Positional[tuple[str, ...]] = ()
    """Picture files, or folders of them; or planted pictures, such as planted:double, whose test pictures are taken"""
    count: int | None = None
    """How many planted pictures, evenly spread; all when left out."""
    data_root: Path | None = None
    """Where MNIST lies, of which planted:mnist is made."""
    out: Path | None = None
    """Write file, label, probability to this CSV file."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    json: bool = False
    """Print a JSON list: file, label, probability, top."""


def run(words: Sequence[str]) -> int:
    """Predict, and print a line for each picture."""
    typed = parse(Predict, "predict", words, "Say what is on pictures. Example: vitrail predict runs/latest photo.jpg")
    if not typed.pictures:
        raise UsageError("no picture given", f"vitrail predict {typed.run} photo.jpg")
    if typed.count is not None and typed.count < 1:
        raise UsageError(f"--count must be at least 1, got {typed.count}", "--count 4")
    if typed.out is not None:
        _check_out(typed.out)

    from vitrail.cli.models_on import check_pictures, classifier, files_of, load_on
    from vitrail.cli.output import count, print_json, print_table, say, warn
    from vitrail.data.readers.planted_sets import is_planted
    from vitrail.shares import percent

    together = BATCH if any(Path(name).is_dir() for name in typed.pictures) else min(BATCH, len(typed.pictures))
    loaded = load_on(typed.run, typed.device, typed.threads, together)
    model = classifier(loaded, typed.run, "predict", typed.pictures)
    problems: list[str] = []
    if is_planted(typed.pictures[0]):
        found = _of_planted(model, typed)
    else:
        check_pictures(typed.run, "predict", typed.pictures)
        found = list(_predictions(model, [file for file, _ in files_of(typed.pictures)], problems))
    if typed.out is not None:
        _write_csv(typed.out, found)
    if typed.json:
        print_json([{"file": p.name, "label": p.label, "probability": p.probability, "top": p.top} for p in found])
    elif typed.out is not None:
        say(f"{count(len(found), 'prediction')} in {typed.out}")
    else:
        others = ["  ".join(f"{name} {percent(value, 1)}" for name, value in p.top[1:3]) for p in found]
        rows = [(p.name, p.label, percent(p.probability, 1), f"({o})") for p, o in zip(found, others, strict=True)]
        print_table(rows, left=2)
    for problem in problems[:-1]:
        warn(f"left out: {problem}")
    if problems:
        done = f" ({count(len(found), 'other picture')} predicted)" if found else ""
        raise DataError(f"{problems[-1]}{done}", "leave it out, or replace it by a picture that can be read")
    return 0


def _predictions(model: "Model", files: list[Path], problems: list[str]) -> Iterator["Prediction"]:
    """Predictions of the files that can be read, a batch at a time; the others are named in `problems`."""
    for first in range(0, len(files), BATCH):
        some = files[first : first + BATCH]
        try:
            yield from model.predict(some)
        except DataError:
            for file in some:
                try:
                    yield from model.predict([file])
                except DataError as error:
                    problems.append(error.problem)


def _of_planted(model: "Model", typed: Predict) -> list["Prediction"]:
    """Predictions of the test pictures of a planted set."""
    from vitrail.cli.planted import show_planted

    name = typed.pictures[0]
    if len(typed.pictures) > 1:
        raise UsageError(f"{name} is a whole set, and stands alone", f"vitrail predict {typed.run} {name}")
    shown = show_planted(typed.run, name, typed.count, typed.data_root)
    found = model.predict([one.picture for one in shown], BATCH)
    return [one._replace(name=each.name) for one, each in zip(found, shown, strict=True)]


def _check_out(path: Path) -> None:
    """Refuse to write over anything but predictions."""
    if path.suffix.lower() != ".csv":
        raise UsageError(f"predictions are written as CSV, not to {path}", f"--out {path.with_suffix('.csv')}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", f"--out {path / 'predictions.csv'}")
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as handle:
        if handle.readline().strip() != ",".join(COLUMNS):
            raise UsageError(f"{path} exists and holds no predictions", f"--out {path.with_stem('predictions')}")


def _write_csv(path: Path, found: list["Prediction"]) -> None:
    """A CSV file, written whole; a cell that a spreadsheet would take for a formula gets an apostrophe in front."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".writing")
    with open(beside, "w", newline="", encoding="utf-8", errors="surrogateescape") as handle:
        rows = csv.writer(handle)
        rows.writerow(COLUMNS)
        for prediction in found:
            rows.writerow([_safe(prediction.name), _safe(prediction.label), f"{prediction.probability:.6f}"])
    beside.replace(path)


def _safe(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
