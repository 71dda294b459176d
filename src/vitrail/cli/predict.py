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


@dataclass(frozen=True, kw_only=True)
class Predict:
    """What can be typed behind `vitrail predict`."""

    run: Positional[str]
    """A run or model folder"""
    pictures: Positional[tuple[str, ...]] = ()
    """Picture files, or folders of them"""
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
    typed = parse(Predict, "predict", words, "Say what is on pictures.")
    if not typed.pictures:
        raise UsageError("no picture given", f"vitrail predict {typed.run} photo.jpg")

    from vitrail.cli.models_on import files_of, load_on
    from vitrail.cli.output import print_json, warn

    files = files_of(typed.pictures)
    model = load_on(typed.run, typed.device, typed.threads, min(BATCH, len(files)))
    problems: list[str] = []
    found = list(_predictions(model, files, problems))
    if typed.out is not None:
        _write_csv(typed.out, found)
    if typed.json:
        print_json([{"file": p.name, "label": p.label, "probability": p.probability, "top": p.top} for p in found])
    elif typed.out is not None:
        print(f"{len(found)} predictions in {typed.out}")
    else:
        wide = max((len(p.name) for p in found), default=0)
        for p in found:
            others = "  ".join(f"{name} {100 * value:.1f} %" for name, value in p.top[1:3])
            print(f"{p.name:<{wide}}  {p.label}  {100 * p.probability:.1f} %   ({others})")
    for problem in problems[:-1]:
        warn(problem)
    if problems:
        raise DataError(problems[-1], f"another file; the other {len(found)} pictures were predicted")
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


def _write_csv(path: Path, found: list["Prediction"]) -> None:
    """A CSV file, written whole; a cell that a spreadsheet would take for a formula gets an apostrophe in front."""
    beside = path.with_name(path.name + ".writing")
    with open(beside, "w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerow(["file", "label", "probability"])
        for prediction in found:
            rows.writerow([_safe(prediction.name), _safe(prediction.label), f"{prediction.probability:.6f}"])
    beside.replace(path)


def _safe(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
