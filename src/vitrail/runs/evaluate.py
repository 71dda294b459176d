"""Evaluation of a model on data: each sample once, in order, by the model's own preprocessing and task."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.batches import Batches
from vitrail.data.columns import GROUP, TRAIN, Samples
from vitrail.data.dataset import Split
from vitrail.data.images import what_to_try
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.loader import are_read, open_loader
from vitrail.data.sources import Data, Reader, name_passed
from vitrail.errors import DataError, counted
from vitrail.io import evaluation_place, page_writer
from vitrail.jobs.precision import FP32, Choice, PrecisionOption, cast_model, choose_precision
from vitrail.model import Model, load
from vitrail.nn.networks import evaluating, weights_hash
from vitrail.pages.render import evaluation_page
from vitrail.pages.run_views import Table
from vitrail.runs.data import check_objects, open_for, open_run
from vitrail.runs.folder import clock
from vitrail.runs.group import ALONE, Group
from vitrail.runs.known import NOT_KNOWN, TIES, TrainedOn, learn_groups
from vitrail.runs.leaks import by_groups, set_apart
from vitrail.runtime import processors
from vitrail.statistics import Z95, wilson_interval
from vitrail.tasks import Codec, Result
from vitrail.tasks.classify import ACCURACY
from vitrail.tasks.task import unit_of
from vitrail.text import number, percent, short_paths

NOT_SEEN = (
    "It is not known here which images this model was trained on; any of them among these make the figure better than "
    "it is. The run's folder knows them."
)
NO_GROUPS = (
    "The run knows the groups of its training images, but these data name none: --group-pattern or --group-column does."
)
GROUPS = 40  # in a table; JSON has all
BATCH = 256  # samples at a time; does not change what is counted


@typed
def evaluate(
    model: str | Path | Model,
    data: Data | None = None,
    *,
    data_root: str | Path | None = None,
    layout: Layout = AS_FOUND,
    split: str | None = None,
    reader: Reader | None = None,
    neighbours: int | None = None,
    precision: PrecisionOption = "auto",
    progress: Callable[[int], None] = lambda done: None,
    out: str | Path | None = None,
    command: str = "",
) -> Result:
    """Evaluate a model on data.

    Args:
        model: A run or model folder, or a loaded model; one with a task, network or parts of your own is loaded first.
        data: As for `train`; the data of the run when None.
        data_root: Folder of the named sets.
        layout: Columns and groups of the data, where they are named; those that the run stored for its own data.
        split: Name of the split; test, else validation, else all samples when None.
        reader: A reader of your own for `data`.
        neighbours: k of a k-NN evaluation by each pooling of a ViT, too: it needs a pass over the training images and
            one more over those that are evaluated; None for none.
        precision: fp32, bf16, or auto: for many images and a wide network the faster one, if its predictions agree; the
            choice is stored, in the run or the user's cache.
        progress: Called with the number of samples done.
        out: A page to be written (.html), or the folder for it, with tables and examples; None for none.
        command: The command line, for the page.

    Raises:
        UsageError: There are no data and none stored, or no such split; or the page cannot be written there.
        DataError: The model or the data cannot be used.
    """
    write = None if out is None else page_writer(evaluation_place, Path(out))
    if data is not None:
        data, reader = name_passed(data, reader, layout)
    if not isinstance(model, Model):
        check_objects(open_run(model), data, reader)
        model = load(model)
    run = open_run(model.loaded_from or None)  # a model alone has no data, also where its run lies around it
    root = None if data_root is None else Path(data_root)
    samples_of = partial(open_for, model, run, data, root, reader=reader, layout=layout)
    found, vote = samples_of(split), None
    if neighbours is not None:
        from vitrail.features.similar import check_splits, neighbours_of

        check_splits(model, found, neighbours)  # before anything is counted
        vote = partial(neighbours_of, model, samples_of(TRAIN), found, neighbours)
    choice = _choose_precision(model, found, precision)
    trained = TrainedOn(run.trained_on)
    apart = NOT_SEEN if "data" in model.facts and not model.reads_text and not run.contents else ""
    if trained.has_groups and GROUP not in found.samples.columns:
        apart = NO_GROUPS
    result = evaluate_split(model, found, progress=progress, choice=choice, trained=trained)
    notes = (*result.notes, *found.notes, *filter(None, [apart, choice.sentence()]))
    result = group_by_group(replace(result, data=found.name, notes=notes), found.samples)
    result = result if vote is None else _with_neighbours(result, vote())
    if write is not None:
        name = short_paths(run.name or "a model")
        facts = [("model", name), ("data", short_paths(found.name)), ("task", model.task.name)]
        facts += [("weights", weights_hash(model.network)), ("vitrail", version("vitrail")), ("date", clock()[:10])]
        shown, heading = with_images(result, model, found.samples), f"{name} on {short_paths(found.name)}"
        write(evaluation_page(shown, heading, facts, command, model.about))
    return result


def group_by_group(result: Result, samples: Samples) -> Result:
    """The result with a figure for each group of a column, the worst first; as it is where fewer than two can have one.

    An image that is alone in its group has none.

    Args:
        result: Of these samples.
        samples: That were evaluated, with or without groups; those without a name are in none.
    """
    if GROUP not in samples.columns or not len(result.errors) == len(result.ids) > 0:
        return result
    column, errors = samples.column(GROUP), dict[str, list[float]]()
    for row, error in zip(result.ids.tolist(), result.errors.tolist(), strict=True):
        errors.setdefault(column.word(row), []).append(error)
    errors.pop("", None)
    right, key = result.metric == ACCURACY, "accuracy" if result.metric == ACCURACY else "error"
    rows = list[dict[str, Any]]()
    for name, some in errors.items():
        if len(some) < 2:
            continue
        mean, half = float(np.mean(some)), Z95 * float(np.std(some)) / math.sqrt(len(some))
        ends = wilson_interval(some.count(0), len(some)) if right else (max(0.0, mean - half), mean + half)
        rows.append({"group": name, "images": len(some), key: 1 - mean if right else mean, "interval": list(ends)})
    if len(rows) < 2:
        return result
    rows.sort(key=lambda row: (row[key] if right else -row[key], row["group"]))
    write = partial(percent, digits=1) if right else partial(number, digits=3)
    cells = tuple(
        (row["group"], f"{row['images']:,}", write(row[key]), " to ".join(map(write, row["interval"])))
        for row in rows[:GROUPS]
    )
    title = f"Group by group, the worst {GROUPS} of {len(rows):,}" if len(rows) > GROUPS else "Group by group"
    header = ("group", "images", "accuracy" if right else "mean error", "95 % interval")
    tables = (*result.tables, Table(title, header, cells))
    return replace(result, details={**result.details, "groups": rows}, tables=tables)


def with_images(result: Result, model: Model, samples: Samples) -> Result:
    """The result with the images of its examples, as the model sees them; of texts, as it is.

    Args:
        result: Of these samples.
        model: With its preprocessing.
        samples: That were evaluated.
    """
    if model.reads_text:
        return result
    images, shape = samples.images, model.preprocessing
    shown = (replace(one, image=shape.to_array(images.open(one.id))) for one in result.examples)
    return replace(result, examples=tuple(shown))


def _choose_precision(model: Model, split: Split, precision: PrecisionOption) -> Choice:
    """The precision of the evaluation; samples that are no images, or have no class, are no part of a new choice."""
    images = [split.samples.images] if split.samples.has_images else []
    column = split.samples.column(model.task.column)
    return choose_precision(model, images, precision, lambda ids: model.output.targets(column.take(ids, 0)))


def _with_neighbours(result: Result, found: Mapping[str, Any]) -> Result:
    """The result with that of k-NN, in its JSON and as a table."""
    head = f"{found['count']}-NN among {counted(found['train_images'], 'training image')} ({found['seconds']:.1f} s)"
    rows, measures = list[tuple[str, ...]](), ("mean error",)
    for name, each in found["poolings"].items():
        if "error" in each:  # a distance
            rows.append((name, f"{each['error']:.3g}"))
        else:
            measures, ends = ("accuracy", "95 % interval"), " to ".join(percent(end, 2) for end in each["interval"])
            rows.append((name, percent(each["accuracy"], 2), ends))
    table = Table("Nearest neighbours", (head, *measures), tuple(rows))
    return replace(result, details={**result.details, "neighbours": dict(found)}, tables=(*result.tables, table))


def evaluate_split(
    model: Model,
    split: Split,
    batches: Batches | None = None,
    progress: Callable[[int], None] = lambda done: None,
    processes: Group = ALONE,
    choice: Choice = FP32,
    trained: TrainedOn = NOT_KNOWN,
) -> Result:
    """Evaluate a model on samples whose column is matched to its codec.

    The figure is of those that have no tie with what it was trained on, if there are any; see `TIES`.

    Args:
        model: Its network is put into eval mode and left as it was.
        split: The samples.
        batches: The same as batches; made here when None.
        progress: Called with the number of samples done.
        processes: Those that evaluate together, with the same model; each gets the result.
        choice: The precision and its reason.
        trained: The images that the model was trained on.

    Raises:
        DataError: No sample can be read.
    """
    samples = split.samples
    data = batches_of(model, samples) if batches is None else batches
    metrics, network = model.task.metrics(model.input, model.output), cast_model(model, choice.precision).network
    together, read = BATCH * processes.world, (list[Any](), list[Any]())  # of others, and of those with a tie
    ties = np.zeros(len(TIES), np.int64)
    with evaluating(network), torch.no_grad():
        mine = data.in_order(BATCH, processes.share)
        for done in range(0, len(data), together):  # each process answers one batch, or has none left
            answers, batch, found = list[Any]([None, None]), next(mine, None), np.zeros(0, np.int64)
            if batch is not None and len(batch):
                found = trained.ties(data.contents(batch.ids))
                known = torch.from_numpy(found > 0)
                for side, some in enumerate((~known, known)):
                    answers[side] = metrics.answers(network, batch.only(some)) if some.any() else None
            for both, counts in processes.gather([answers, np.bincount(found, minlength=1 + len(TIES))[1:].tolist()]):
                ties += counts
                for side, each in zip(read, both, strict=True):
                    side += [] if each is None else [each]
            progress(min(done + together, len(data)))
    share_read(data, processes)
    if not any(read):
        first = "; ".join([*data.unreadable.values()][:5]) or "it is empty"
        problem = f"none of the {len(data)} samples of the {split.split} split can be read: {first}"
        hint = what_to_try(samples.images, model.preprocessing) if data.unreadable else "name other data"
        raise DataError(problem, hint)
    every = [*read, [*read[0], *read[1]] if all(read) else []]
    others, learnt, both = (metrics.result(some, samples.name) if some else None for some in every)
    others, both = (each and by_groups(each, data.contents(each.ids)) for each in (others, both))
    if len(trained):
        counts = {**dict(zip(TIES, ties.tolist(), strict=True)), **({} if trained.by_picture else {"near": None})}
        result = set_apart(others, learnt, both, counts, split.split)
    else:
        result = others
    assert result is not None
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


def share_read(data: Batches, processes: Group) -> None:
    """Share among processes which samples could not be read, and the contents of those that could."""
    loader = data.loader
    for found in processes.gather(list(loader.unreadable.items())):
        loader.unreadable |= {int(index): problem for index, problem in found}
    if any(processes.counts(len(loader.contents) - int(are_read(loader.contents).sum()))):
        loader.contents = processes.largest(loader.contents)


def answered(answer: Callable[[Tensor], Any], data: Batches) -> Iterator[tuple[Any, Tensor]]:
    """Outputs and targets of the images that can be read, batch by batch, in order.

    Args:
        answer: Images to outputs, in eval mode.
        data: Images with their targets.
    """
    with torch.no_grad():
        yield from ((answer(batch.inputs), batch.labels) for batch in data.in_order(BATCH) if len(batch))


def errors_of(codec: Codec, answer: Callable[[Tensor], Any], data: Batches) -> Float[Tensor, " n"]:
    """How wrong each image of which something is known is answered, by the codec's `error`; see `answered`."""
    errors = torch.cat([codec.error(*each).cpu() for each in answered(answer, data)])
    return errors[~errors.isnan()]


def batches_of(model: Model, samples: Samples, workers: int | None = None, *, once: bool = False) -> Batches:
    """Samples as batches for the evaluation of a model, in order.

    Args:
        model: Has the preprocessing.
        samples: With a column that is matched to its codec.
        workers: Processes or threads that decode images; all processors but one when None.
        once: Whether some of them are read, and once, so that none is decoded before it is asked for.
    """
    workers = max(1, processors() - 1) if workers is None else workers
    workers = 0 if once and model.device.type == "cpu" else workers  # each thread decodes what it computes
    loader = open_loader(samples.inputs, model.input, workers=workers, pictures=True, once=once)
    learn_groups(loader, samples)
    return Batches(loader, samples.column(model.task.column), model.output, model.input, device=model.device)
