"""`vitrail predict RUN INPUTS`: what a model answers to each image or text, at the terminal or in a table."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.args import Predict
from vitrail.cli.inputs import cluster_of, load_model
from vitrail.cli.output import print_json, print_line, print_table, progress_bar, raise_unreadable, warn
from vitrail.data import sources
from vitrail.data.images import Images, NamedImage
from vitrail.data.layout import Layout
from vitrail.data.sources import EXTENSIONS
from vitrail.errors import DataError, Hint, UsageError, counted, located, some_of
from vitrail.model import Model
from vitrail.tasks import Prediction
from vitrail.text import percent

if TYPE_CHECKING:  # of jobs, 20 modules that one image at the terminal does not need
    from vitrail.jobs.answers import Top
    from vitrail.jobs.precision import Precision
    from vitrail.nn import Search

BATCH = 64
SHOWN = 20  # classes that are counted in a line


def run(options: Predict, command: str) -> int:
    """Predict, and print a line for each input."""
    out = options.out
    if out is not None:
        from vitrail.jobs.answers import check_out

        check_out(out)
    many = any(sources.format_of(name) for name in options.inputs)
    together = BATCH if many else min(BATCH, len(options.inputs))
    model = load_model(options.run, options, together, options.inputs)
    search, texts, images = _search(options, model), list[str](), list[Images]()
    sure = model.output.confidence is not None or model.output.most is not None  # else names are those of numbers
    classes = model.output.names if sure else ()
    if options.top is not None:
        if not classes:
            problem = f"--top {options.top} is for classes, but the model in {options.run} gives {model.task.help}"
            raise UsageError(problem, Hint(drop=["top"]))
        from vitrail.jobs.answers import naming

        model = naming(model, options.top)
    model = replace(model, output=model.output.promising(options.coverage))
    if model.reads_text:
        texts = _texts(model, options)
        for name in ("workers", "ray", "data_root", "path_column", "label_column", "split_column"):
            if (value := getattr(options, name)) is not None:
                flag = f"--{name.replace('_', '-')} {value}"
                problem = f"{flag} is for images, but the model in {options.run} reads texts"
                raise UsageError(problem, Hint(drop=[name]))
    else:
        with located(f"the model in {options.run} reads images"):
            sources.check_images(options.inputs, texts=False)
        raw = sources.read_images(options.inputs, options.data_root, flat=True, layout=Layout.of(options))
        for note in raw.notes:
            warn(note)
        images = [samples.images for samples in raw.splits.values()]
    cluster, precision = cluster_of(options, model), "fp32"
    if out is not None or options.precision != "auto" or sum(map(len, images)) > BATCH:  # few images need no choice
        from vitrail.jobs.parts import job_entry
        from vitrail.jobs.precision import settle_precision

        started = None if out is None else job_entry(out, "precision")
        precision = settle_precision(model, images, options.precision, started, warn)
    if out is not None and images:
        from vitrail.jobs.answers import answer_all

        workers = None if cluster is not None else options.workers
        with progress_bar("predicting") as progress:
            keep, top = options.json, options.top
            table = answer_all(images, model, out, search, precision, workers, cluster, keep, progress, top)
        answers, notes, count, predictions = table.answers, table.notes, table.count, list[Prediction]()
        found = Counter(table.classes)
        problems = [DataError(f"{name}: {why}", "remove the file or replace it") for name, why in table.problems]
    else:
        predictions, problems = _predict_here(model, images, texts, search, precision)
        answers, count = [one.to_dict() for one in predictions], len(predictions)
        found = Counter(name for one in predictions for name in _said(one)) if classes else Counter()
        notes = [(one.name, note) for one in predictions for note in one.notes]
        if out is not None and predictions:
            from vitrail.jobs.answers import write_table

            write_table(out, lambda: [{"row": one.row(), "answer": one.to_dict()} for one in predictions])
    if options.json:
        rest = {**({"about_probabilities": model.about} if model.about else {}), "compute_dtype": precision}
        print_json([{**each, **rest} for each in answers])
    elif out is not None:
        print_line(f"{counted(count, 'prediction')} in {out}")
    else:
        print_table([_cells(one, options.top) for one in predictions], left=2)
        if options.top is not None and any(one.sentence() for one in predictions):
            warn("* is predicted")
    for words in filter(None, (model.about, model.output.promise())) if count and not options.json else ():
        warn(words)
    by_note = dict[str, list[str]]()
    for name, note in notes:
        by_note.setdefault(note, []).append(name)
    for note, names in by_note.items():  # one line, of however many images
        warn(f"{some_of(names, 3)}: {note}")
    if count > 1 and found and not options.json:
        warn(f"in all: {some_of([f'{name}: {number:,}' for name, number in found.most_common()], SHOWN)}")
    raise_unreadable(problems, f" ({counted(count, 'other input')} predicted)" if count else "")
    return 0


def _said(one: Prediction) -> list[str]:
    """The names that are predicted."""
    said = next(iter(one.brief().values()))
    return [said] if isinstance(said, str) else said


def _cells(one: Prediction, top: "Top") -> tuple[str, ...]:
    """A line for people; with --top so many classes, each with its probability; of several, those predicted marked."""
    if top is None:
        return one.cells()
    marked = _said(one) if one.sentence() else ()  # else it is the first of them
    return one.name, "  ".join(f"{name}{'*' * (name in marked)} {percent(value, 1)}" for name, value in one.top)


def _search(options: Predict, model: Model) -> "Search | None":
    """How the next token is chosen; None for the model's usual way.

    Raises:
        UsageError: The model generates no text.
    """
    if options.beam is None and not options.sample:
        return None
    if not model.task.searches:
        option = "--sample" if options.sample else "--beam"
        problem = f"the model in {options.run} gives {model.task.help}; {option} is for models that generate text"
        raise UsageError(problem, f"vitrail predict {options.run} {options.inputs[0]}")
    from vitrail.nn import Beam, Sampling

    if options.beam is not None:
        return Beam(width=options.beam)
    return Sampling(temperature=options.temperature or 1.0, seed=options.seed or 0)


def _texts(model: Model, options: Predict) -> list[str]:
    """The texts that are typed, and those of a named set or a file of pairs.

    Raises:
        UsageError: Names an input that is images, what this model reads, and the right command.
        DataError: Data cannot be read.
    """
    texts, vocabulary = list[str](), model.vocabulary
    for name in options.inputs:
        row, is_text = sources.format_of(name), set(vocabulary.split(name)) <= set(vocabulary.tokens)
        if is_text or (row is None and Path(name).suffix.lower() not in EXTENSIONS):
            texts.append(name)
            continue
        found = [*sources.read(name).splits.values()] if row else []
        if not found or any(one.has_images for one in found):
            kind, what = vocabulary.describe()[1], "images" if row else "an image"
            problem = f"the model in {options.run} reads texts of {kind}, but {name} is {what}"
            raise UsageError(problem, shlex.join(["vitrail", "predict", options.run, model.example]))
        texts += [text for one in found for text in one.texts.values]
    return texts


def _predict_here(
    model: Model, images: Sequence[Images], texts: Sequence[str], search: "Search | None", precision: "Precision"
) -> tuple[list[Prediction], list[DataError]]:
    """By this process: the answers, and an error for each input that cannot be read."""
    if precision != "fp32":
        from vitrail.jobs.precision import cast_model

        model = cast_model(model, precision)
    found, problems = list[Prediction](), list[DataError]()
    every = [(one, row) for one in images for row in range(len(one))] or [(None, row) for row in range(len(texts))]

    def predict(first: int, some: Sequence[tuple[Images | None, int]]) -> None:
        """Together; where one of them cannot be read, each by itself."""
        try:
            given = [texts[row] if one is None else NamedImage(one.name(row), one.open(row)) for one, row in some]
            found.extend(model.predict(given, search=search and search.from_row(first)))
        except DataError as error:
            if len(some) > 1:
                for place, one in enumerate(some, start=first):
                    predict(place, [one])
            elif some == [(None, first)] and texts[first] == "":
                problems.append(DataError(f"text {first + 1} of {len(texts)} is empty", "a text in its place"))
            else:
                problems.append(error)

    for first in range(0, len(every), BATCH):
        predict(first, every[first : first + BATCH])
    return found, problems
