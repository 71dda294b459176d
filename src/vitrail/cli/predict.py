"""`vitrail predict RUN INPUTS`: what a model answers to each image or text."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vitrail.cli.args import Predict
from vitrail.cli.output import print_json, print_table, say, warn
from vitrail.cli.sources import check_sources, files_of, leave_out, load_on, show_planted
from vitrail.data.readers import check_root, format_of, is_packed
from vitrail.errors import DataError, UsageError, counted
from vitrail.model import Model
from vitrail.nn import Beam, Sampling, Search
from vitrail.tasks import Prediction

if TYPE_CHECKING:
    from vitrail.data.images import Images
    from vitrail.jobs.on_ray import Cluster
    from vitrail.jobs.opening import Precision

BATCH = 64


def run(typed: Predict, command: str) -> int:
    """Predict, and print a line for each input."""
    cluster = None
    if typed.out is not None:
        from vitrail.cli.jobs import cluster_of  # with all that a job over many images needs, as below
        from vitrail.jobs.answers import check_out

        check_out(typed.out)
        cluster = cluster_of(typed, typed.threads)
    form = format_of(typed.inputs[0])
    planted = form is not None and form.name == "planted"
    if not planted:
        for name, value in (("--count", typed.count), ("--data-root", typed.data_root)):
            if value is not None:
                raise UsageError(f"{name} is for planted images", f"leave {name} out")
    many = any(Path(name).is_dir() for name in typed.inputs)
    together = BATCH if many else min(BATCH, len(typed.inputs))
    model = load_on(typed.run, typed.device, typed.threads, together, typed, typed.inputs, typed.data_root)
    search = _search(typed)
    if search is not None and not model.task.searches:
        option = "--sample" if typed.sample else "--beam"
        problem = f"the model in {typed.run} gives {model.task.help}, and {option} says how texts are written"
        raise UsageError(problem, f"vitrail predict {typed.run} {typed.inputs[0]}")
    packed = is_packed(typed.inputs[0]) and not model.reads_text
    if packed and typed.out is None:
        raise UsageError(f"{typed.inputs[0]} is a pack, whose answers go to a file", "--out predictions.csv")
    if not planted and not packed:
        check_sources(model, typed.run, typed.inputs)
    if typed.out is not None and not (planted or model.reads_text):
        return _to_file(model, typed, search, cluster)
    if typed.ray is not None or typed.workers is not None:
        option = "--workers" if typed.ray is None else f"--ray {typed.ray}"
        raise UsageError(
            f"{option} is for image files and folders, and {typed.inputs[0]} is none", f"leave {option} out"
        )
    problems = list[DataError]()
    if planted:
        model, precision = _in_precision(model, typed, ())
        found = _of_planted(model, typed)
    else:
        files = () if model.reads_text else [file for file, _ in files_of(typed.inputs)]
        model, precision = _in_precision(model, typed, files)
        found = _predictions(model, list(map(str, files)) or typed.inputs, search, problems)
    if typed.out is not None and found:
        from vitrail.jobs.answers import write_table

        write_table(typed.out, lambda: [{"row": one.row(), "answer": one.to_dict()} for one in found])
    if typed.json:
        print_json([{**one.to_dict(), "computed_in": precision} for one in found])
    elif typed.out is not None:
        say(f"{counted(len(found), 'prediction')} in {typed.out}")
    else:
        print_table([one.cells() for one in found], left=2)
        if found and model.about:
            warn(model.about)
    for one in found:
        for note in one.notes:
            warn(f"{one.name}: {note}")
    leave_out(problems, f" ({counted(len(found), 'other input')} answered)" if found else "")
    return 0


def _in_precision(model: Model, typed: Predict, files: Sequence[Path]) -> "tuple[Model, Precision]":
    """The model as it is asked about these files, and in which precision that is; a few are not worth a look."""
    if typed.precision == "auto" and len(files) <= BATCH:
        return model, "fp32"
    from vitrail.data.images import FileImages
    from vitrail.jobs.opening import computed

    precision = _precision(typed, model, [FileImages(files)] if files else [])
    return computed(model, precision), precision


def _to_file(model: Model, typed: Predict, search: Search | None, cluster: "Cluster | None") -> int:
    """Predict image files into a table, by whoever computes; what cannot be read is a row that says why."""
    from vitrail.cli.jobs import opening_of, shown_progress
    from vitrail.jobs.answers import answer_all
    from vitrail.jobs.parts import noted

    assert typed.out is not None
    images = _images(typed)
    precision = _precision(typed, model, images, noted(typed.out, "precision"))
    with shown_progress() as progress:
        found = answer_all(
            images,
            model,
            typed.out,
            search=search,
            threads=torch.get_num_threads() if cluster is None else cluster.threads,
            workers=None if cluster is not None else typed.workers,
            cluster=cluster,
            opening=opening_of(typed.run, typed, model) if cluster is not None else None,
            precision=precision,
            keep=typed.json,
            progress=progress,
        )
    if typed.json:
        print_json([{**each, "computed_in": precision} for each in found.answers])
    else:
        say(f"{counted(found.count, 'prediction')} in {typed.out}")
    for name, note in found.notes:
        warn(f"{name}: {note}")
    problems = [
        DataError(f"{name}: {why}", "remove the file or replace it by a readable one") for name, why in found.problems
    ]
    leave_out(problems, f" ({counted(found.count, 'other input')} answered)")
    return 0


def _precision(
    typed: Predict, model: Model, images: "Sequence[Images]", begun_in: "Precision | None" = None
) -> "Precision":
    """In which precision a job is computed: as it was begun, as was asked for, or as is chosen for the model."""
    from vitrail.jobs.precision import chosen

    if typed.precision == "auto" and begun_in is not None:
        return begun_in
    choice = chosen(model, images, typed.precision, typed.run)
    if choice.images:
        warn(choice.sentence())
    return choice.precision


def _images(typed: Predict) -> "list[Images]":
    """The images that are named: those of a pack, split by split, or files."""
    from vitrail.data.images import FileImages
    from vitrail.features.listing import list_images

    given = typed.inputs
    if is_packed(given[0]):
        if len(given) > 1:
            problem = f"{given[0]} is a pack, and stands alone"
            raise UsageError(problem, shlex.join(["vitrail", "predict", typed.run, given[0], "--out", str(typed.out)]))
        listed = list_images(given[0])
        return [listed.images(split) for split in listed.splits]
    return [FileImages([file for file, _ in files_of(given)])]


def _search(typed: Predict) -> Search | None:
    """How the next token is chosen; None for the usual way."""
    if typed.beam is not None:
        return Beam(width=typed.beam)
    if typed.sample:
        temperature = 1.0 if typed.temperature is None else typed.temperature
        return Sampling(temperature=temperature, seed=typed.seed or 0)
    return None


def _predictions(
    model: Model, sources: Sequence[str], search: Search | None, problems: list[DataError]
) -> list[Prediction]:
    """Predictions of the sources that can be read, a batch at a time; the others stand in `problems`."""

    def answers(some: Sequence[str], first: int) -> list[Prediction]:
        return model.predict(some, search=None if search is None else search.from_row(first))

    found: list[Prediction] = []
    for first in range(0, len(sources), BATCH):
        some = sources[first : first + BATCH]
        try:
            found += answers(some, first)
        except DataError:
            for row, one in enumerate(some, start=first):
                if not one:
                    problems.append(DataError(f"text {row + 1} of {len(sources)} is empty", "a text in its place"))
                    continue
                try:
                    found += answers([one], row)
                except DataError as error:
                    problems.append(error)
    return found


def _of_planted(model: Model, typed: Predict) -> list[Prediction]:
    """Predictions of the test images of a planted set."""
    name = typed.inputs[0]
    if len(typed.inputs) > 1:
        raise UsageError(f"{name} is a whole set, and stands alone", f"vitrail predict {typed.run} {name}")
    check_root(name, typed.data_root)
    shown = show_planted(typed.run, name, typed.count, typed.data_root)
    return model.predict([one.image for one in shown], batch_size=BATCH, names=[one.name for one in shown])
