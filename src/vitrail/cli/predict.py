"""`vitrail predict RUN INPUTS`: what a model answers to each image or text, at the terminal or in a table."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vitrail.cli.args import Predict
from vitrail.cli.inputs import cluster_of, open_model, with_opening
from vitrail.cli.output import print_json, print_line, print_table, progress_bar, raise_unreadable, warn
from vitrail.data import formats
from vitrail.data.columns import Vocabulary
from vitrail.data.images import EXTENSIONS, FileImages, Images
from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.model import Model
from vitrail.model.model import Source
from vitrail.tasks import Prediction

if TYPE_CHECKING:  # of jobs, 20 modules that one image at the terminal does not need
    from vitrail.jobs.answers import Answered
    from vitrail.jobs.cluster import Cluster
    from vitrail.jobs.precision import Precision
    from vitrail.nn import Search

BATCH = 64


def run(options: Predict, command: str) -> int:
    """Predict, and print a line for each input."""
    first, out = options.inputs[0], options.out
    if out is not None:
        from vitrail.jobs.answers import check_out

        check_out(out)
    cluster = cluster_of(options)
    folders = any(Path(name).is_dir() for name in options.inputs)
    together = BATCH if folders else min(BATCH, len(options.inputs))
    model = open_model(options.run, options, together, options.inputs)
    search, packed = _search(options, model), formats.is_packed(first) and not model.reads_text
    if packed and out is None:
        raise UsageError(
            f"{first} is a folder of shards, for which an output file is needed", Hint({"out": "predictions.csv"})
        )
    if packed and len(options.inputs) > 1:
        problem = f"{first} is a folder of shards, which cannot be combined with other inputs"
        raise UsageError(problem, shlex.join(["vitrail", "predict", options.run, first, "--out", str(out)]))
    if not packed:
        _check_inputs(model, options)
    if out is not None and not model.reads_text:
        table = _write_table(options, model, search, cluster)
        answers, notes, count, precision = table.answers, table.notes, table.count, table.precision
        predictions = list[Prediction]()
        problems = [DataError(f"{name}: {why}", "remove the file or replace it") for name, why in table.problems]
    else:
        for name, value in (("workers", options.workers), ("ray", options.ray)):
            if value is not None:
                problem = f"--{name} {value} is for images, but the model in {options.run} reads texts"
                raise UsageError(problem, Hint(drop=[name]))
        predictions, problems, precision = _predict_here(options, model, search)
        answers, count = [one.to_dict() for one in predictions], len(predictions)
        notes = [(one.name, note) for one in predictions for note in one.notes]
    if options.json:
        print_json([{**each, "compute_dtype": precision} for each in answers])
    elif out is not None:
        print_line(f"{counted(count, 'prediction')} in {out}")
    else:
        print_table([one.cells() for one in predictions], left=2)
        if predictions and model.about:
            warn(model.about)
    for name, note in notes:
        warn(f"{name}: {note}")
    raise_unreadable(problems, f" ({counted(count, 'other input')} predicted)" if count else "")
    return 0


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


def _check_inputs(model: Model, options: Predict) -> None:
    """Refuse a text where the model reads images, and an image where it reads texts.

    Raises:
        UsageError: Names the input, what this model reads, and the right command.
    """
    run = options.run
    for name in options.inputs:
        path = Path(name).expanduser()
        if isinstance(model.input, Vocabulary):
            is_image = bool(name) and (path.suffix.lower() in EXTENSIONS or path.is_dir())
            if is_image and not set(model.input.split(name)) <= set(model.input.tokens):
                what = "folder" if path.is_dir() else "image"
                problem = f"the model in {run} reads texts of {model.input.describe()[1]}, but {name} is a {what}"
                raise UsageError(problem, shlex.join(["vitrail", "predict", run, model.example]))
        elif not name.strip() or not (len(path.parts) > 1 or path.suffix or path.exists()):
            problem = f"the model in {run} reads images, but there is no file '{name}'"
            raise UsageError(problem, shlex.join(["vitrail", "predict", run, "image.png"]))


def _predict_here(
    options: Predict, model: Model, search: "Search | None"
) -> "tuple[list[Prediction], list[DataError], Precision]":
    """By this process: the answers, an error for each input that cannot be read, and the precision."""
    images = list[Images]()
    sources: Sequence[Source] = options.inputs
    if not model.reads_text:
        files = [file for file, _ in formats.named_files(options.inputs)]
        sources, images = files, [FileImages(files)]
    precision: Precision = "fp32"
    if options.precision != "auto" or sum(map(len, images)) > BATCH:  # few images need no choice
        from vitrail.jobs.precision import computed, settled

        precision = settled(model, images, options.precision, options.run, None, warn)
        model = computed(model, precision)
    found, problems = list[Prediction](), list[DataError]()
    for row in range(0, len(sources), BATCH):
        some = sources[row : row + BATCH]
        try:
            found += model.predict(some, search=search and search.from_row(row))
        except DataError:
            for own, one in enumerate(some, start=row):
                if one == "":
                    problems.append(DataError(f"text {own + 1} of {len(sources)} is empty", "a text in its place"))
                    continue
                try:
                    found += model.predict([one], search=search and search.from_row(own))
                except DataError as error:
                    problems.append(error)
    if options.out is not None and found:
        from vitrail.jobs.answers import write_table

        write_table(options.out, lambda: [{"row": one.row(), "answer": one.to_dict()} for one in found])
    return found, problems, precision


def _write_table(options: Predict, model: Model, search: "Search | None", cluster: "Cluster | None") -> "Answered":
    """Image files or a pack, by this process or by workers, into --out: what was written."""
    from vitrail.features.listing import list_images
    from vitrail.jobs.answers import answer_all

    assert options.out is not None
    if formats.is_packed(options.inputs[0]):
        listed = list_images(options.inputs[0])
        images = [listed.images(split) for split in listed.splits]
    else:
        images = [FileImages([file for file, _ in formats.named_files(options.inputs)])]
    with progress_bar() as progress:
        return answer_all(
            images,
            model,
            options.out,
            search=search,
            threads=torch.get_num_threads() if cluster is None else cluster.threads,
            workers=None if cluster is not None else options.workers,
            cluster=with_opening(cluster, options.run, options, model),
            precision=options.precision,
            run=options.run,
            keep=options.json,
            progress=progress,
            notify=warn,
        )
