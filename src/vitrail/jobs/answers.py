"""What a model answers to many images, as a table: a row for each, in order, with a column for what cannot be read.

    .csv        text; a cell that a spreadsheet would take for a formula, and no number, gets an apostrophe in front
    .parquet    numbers as numbers; it needs pyarrow

Killed at any point, the same call continues after the parts that are there.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from torch import Tensor

from vitrail.data.images import Images
from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.io import check_table, other_out, plain, writing
from vitrail.jobs.cluster import Cluster, carry_of
from vitrail.jobs.parts import (
    KEY,
    LINES,
    ROWS,
    IdRange,
    Ids,
    Progress,
    answer_ranges,
    choices,
    complete_parts,
    folder_of,
    split_up,
)
from vitrail.jobs.precision import Opening, Precision, cast_model, identity_of
from vitrail.model import Model
from vitrail.nn import Search
from vitrail.nn.networks import evaluating
from vitrail.tasks import Prediction
from vitrail.text import utf8

CSV = ".csv"
PROBLEM = "problem"  # the last column: why an image has no answer
LABEL = "label_"  # before a rank
TOGETHER = 4096  # rows of a group of Parquet

Top = int | Literal["all"] | None

Line = dict[str, Any]
"""Of an image that was answered `row` and `answer`, as `Prediction` has them; else `file` and `problem`."""


class Answered(NamedTuple):
    """What was written.

    Attributes:
        count: Images that were answered.
        problems: (file, why) of the others.
        notes: (file, note) of answers that are doubtful.
        answers: As `Prediction.to_dict` has them; none without `keep`.
        classes: How often each class is what is predicted.
    """

    count: int
    problems: list[tuple[str, str]]
    notes: list[tuple[str, str]]
    answers: list[dict[str, Any]]
    classes: Mapping[str, int] = {}  # never changed


def answer_all(
    splits: Sequence[Images],
    model: Model,
    out: Path,
    search: Search | None = None,
    precision: Precision = "fp32",
    workers: int | None = None,
    cluster: Cluster | None = None,
    keep: bool = False,
    progress: Progress = lambda done, total: None,
    top: Top = None,
) -> Answered:
    """Write what a model answers to each image.

    Args:
        splits: The images, in order.
        model: It reads images.
        out: A .csv or .parquet file; predictions that are there are written over.
        search: How the next token is chosen, of a model that writes.
        precision: In which it is computed; see `settle_precision`.
        workers: Processes that decode images ahead; see `loader_of`.
        cluster: Where else to compute: by workers of Ray, which load the model by its `opening`.
        keep: Whether to give the answers back, too.
        progress: Called with images done, and all.
        top: See `row_of`.

    Raises:
        UsageError: The file cannot be written as it is called, or parts of another job are there.
        DataError: No image can be read.
        RunError: The disk is full, what is done stays; or another process writes that file.
    """
    check_out(out)
    job = {
        "verb": "predict",
        **identity_of(model),
        "search": None if search is None else repr(search),
        **({} if top is None else {"top": top}),
        **({} if model.output.coverage is None else {"coverage": model.output.coverage}),
        "images": [images.digest().hex() for images in splits],
        "count": sum(map(len, splits)),
        **choices(ROWS, model.device, precision),
    }
    ranges = split_up(splits, ROWS)
    option = search, top, model.output.coverage
    compute = partial(answers, cast_model(model, precision), option, workers=workers)
    carry = carry_of(cluster, compute, partial(Opening.compute, by=answers, option=option), precision)
    with complete_parts(out, LINES, job, ranges, carry, progress) as parts:
        numbers = range(len(ranges))
        return write_table(out, lambda: chain.from_iterable(map(parts.read, numbers)), keep, model.output.names)


def answers(
    model: Model, option: tuple[Search | None, Top, float | None], ranges: Sequence[IdRange], workers: int | None = None
) -> Iterator[list[Line]]:
    """A line for each image of each range, in turn."""
    search, top, coverage = option
    output = naming(model, top).output.promising(coverage)

    def answer(images: Images, before: int, ids: Ids, pixels: Tensor) -> Sequence[Prediction]:
        names = [images.name(row) for row in ids.tolist()]
        gap = search is not None and int(ids[-1]) - int(ids[0]) + 1 > len(ids)
        step, found = 1 if gap else len(ids), list[Prediction]()  # what is drawn goes by an image's own place
        for row in range(0, len(ids), step):
            some = slice(row, row + step)
            here = None if search is None else search.from_row(before + int(ids[row]))
            found += model.answer(output, pixels[some], names[some], here)
        return found

    with evaluating(model.network):
        every = answer_ranges(ranges, answer, model.preprocessing, model.device, workers)
        for each, (batches, unreadable) in zip(ranges, every, strict=True):
            lines = dict[int, Line]()
            for places, some in batches:
                for place, one in zip(places.tolist(), some, strict=True):
                    lines[place] = {"row": row_of(one, top), "answer": plain(one.to_dict())}
            for place, problem in unreadable.items():
                name = each.images.name(int(each.ids[place]))
                lines[place] = {"file": name, PROBLEM: problem.removeprefix(f"{name}: ")}
            yield [lines[place] for place in range(len(each.ids))]


# ---- the table


def naming(model: Model, top: Top) -> Model:
    """The model whose predictions name so many outputs, or all, where that can be chosen."""
    output, most = model.output, model.output.outputs if top == "all" else top
    if most is None or output.most is None:
        return model
    return replace(model, output=replace(output, most=most))  # pyrefly: ignore[bad-specialization]


def row_of(one: Prediction, top: Top) -> Line:
    """A line of the table, by column.

    Args:
        one: By a model of `naming`.
        top: With a number also as many of its outputs by rank, `label_2` and `p_2`, without the first where that is
            what is predicted; with "all" the probability of each, `p_NAME`.
    """
    row = one.row()
    if top == "all":
        return row | {f"p_{name}": f"{value:.6g}" for name, value in sorted(one.top)}
    for rank, (name, value) in enumerate(one.top[: top or 0], start=1):
        row |= {f"{LABEL}{rank}": name, f"p_{rank}": f"{value:.6f}"} if rank > 1 or one.sentence() else {}
    return row


def check_out(out: Path) -> None:
    """Refuse to write over anything, and what could not be written in the end.

    Raises:
        UsageError: Its ending is of no kind that is written, what writes it is missing, or something else is there.
    """
    check_table(out, out.suffix.lower(), "predictions", CSV)
    if out.exists() and not folder_of(out).exists():
        raise UsageError(f"{out} exists, and tables are never overwritten", other_out(out))


def write_table(
    out: Path, lines: Callable[[], Iterable[Line]], keep: bool = False, names: Collection[str] = ()
) -> Answered:
    """Write a table whole, or leave the former one.

    Args:
        out: Where to, with an ending that `check_out` let pass.
        lines: All lines in order; called twice.
        keep: Whether to give the answers back, too.
        names: Of the classes that are counted.

    Raises:
        DataError: No line has an answer.
        OSError: It cannot be written.
    """
    count, problems, notes, answers = 0, list[tuple[str, str]](), list[tuple[str, str]](), list[dict[str, Any]]()
    first: Line | None = None
    known, classes = {*names}, Counter[str]()
    for line in lines():
        if "answer" not in line:
            problems.append((line["file"], line[PROBLEM]))
            continue
        first, count = first or line, count + 1
        name, *said = line["row"].values()
        word = str(said[0]) if said else ""
        classes.update(known.intersection([word] if word in known else word.split("|")))  # of several labels each
        notes += [(name, note) for note in line["answer"].get("notes", ())]
        if keep:
            answers.append(line["answer"])
    if first is None:
        name, problem = problems[0]
        raise DataError(f"none of {counted(len(problems), 'image')} can be read: {name}: {problem}", Hint(drop=["out"]))
    with writing(out) as handle:
        (_write_csv if out.suffix.lower() == CSV else _write_parquet)(handle, first, lines())
    return Answered(count, problems, notes, answers, classes)


def _row(line: Line, columns: Sequence[str]) -> Line:
    """A line by column; what cannot be read has its name and why."""
    return line["row"] if "row" in line else {columns[0]: line["file"], PROBLEM: line[PROBLEM]}


def _write_csv(handle: IO[bytes], first: Line, lines: Iterable[Line]) -> None:
    columns = [*first["row"], PROBLEM]
    writer = csv.writer(codecs.getwriter("utf-8")(handle, "backslashreplace"))
    writer.writerow(columns)
    for line in lines:
        row = _row(line, columns)
        writer.writerow([_safe(str(row.get(name, ""))) for name in columns])


def _safe(cell: str) -> str:
    formula = cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not re.fullmatch(r"-[\d.]+(e[+-]\d+)?", cell)
    return f"'{cell}" if formula else cell


def _write_parquet(handle: IO[bytes], first: Line, lines: Iterable[Line]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, answer = [*first["row"], PROBLEM], first["answer"]
    words = {name for name in columns if name == PROBLEM or name.startswith(LABEL) or isinstance(answer.get(name), str)}
    schema = pa.schema([(name, pa.string() if name in words else pa.float64()) for name in columns], {KEY: b"predict"})

    def cell(line: Line, name: str) -> Any:
        value = line.get("answer", {}).get(name, _row(line, columns).get(name))
        if value is None:
            return None
        return utf8(str(value)) if name in words else float(value)

    with pq.ParquetWriter(handle, schema, compression="NONE") as writer:
        left = iter(lines)
        while some := list(islice(left, TOGETHER)):
            cells = [pa.array([cell(line, name) for line in some], schema.field(name).type) for name in columns]
            writer.write_table(pa.Table.from_arrays(cells, schema=schema))
