"""All images of data as vectors: `vitrail.embed`. If it is killed, the same call continues."""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.columns import RawDataset, split_of
from vitrail.data.images import Images, what_to_try
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.sources import Data, read_images
from vitrail.errors import DataError, Hint, RunError, UsageError, VitrailError, byte_size, counted, nearest
from vitrail.features.file import (
    ARRAYS,
    FORMAT,
    WORDS,
    FeaturePart,
    FeatureSet,
    check_ending,
    read_about,
    read_features,
    write_features,
)
from vitrail.features.poolings import HEADS, check_vit, describe_by
from vitrail.io import to_json
from vitrail.jobs.own_code import own_code
from vitrail.jobs.parts import (
    ROWS,
    IdRange,
    Ids,
    Progress,
    answer_ranges,
    choices,
    complete_parts,
    folder_of,
    hint_elsewhere,
    job_entry,
    split_up,
)
from vitrail.jobs.precision import Opening, Precision, PrecisionOption, cast_model, settle_precision
from vitrail.model import Model, open_first
from vitrail.nn import evaluating, names_of
from vitrail.nn.networks import config_to_dict, weights_hash

if TYPE_CHECKING:
    from vitrail.jobs.cluster import Cluster

# what of a configuration changes no features: it is of the head, or of training
IDLE = ("classes", "head_bias", "dropout", "embedding_dropout", "attention_dropout", "stochastic_depth")


@typed
def embed(
    model: str | Path | Model,
    data: Data,
    *,
    out: str | Path | None = None,
    patches: bool = False,
    split: str | None = None,
    layout: Layout = AS_FOUND,
    data_root: str | Path | None = None,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
    cluster: "Cluster | None" = None,
    precision: PrecisionOption = "auto",
    note: Callable[[str], None] = lambda sentence: None,
) -> FeatureSet:
    """What a network knows of each image before its head: class token, mean of patches; and patches, where wanted.

    Images that cannot be read are left out and named. With `out`, finished parts are on disk: after an interruption the
    same call continues behind them, and the file has the same bytes as one that was never interrupted.

    Args:
        model: A ViT: what `vitrail.load` opens, or a model that was loaded.
        data: Images, as `train` takes them, or without classes: a named set, a folder, a list, shards, or an image;
            or an object, as `train` takes it.
        out: A file (.npz or .parquet) to write; one of the same images by the same model is read instead. None: nothing
            is written.
        patches: Whether every patch token is stored, too: (rows, columns, d) of each image.
        split: Only this split; all when None.
        layout: Columns of a list or table, where they are named.
        data_root: The folder of named sets.
        workers: Processes that decode images ahead. None: on a processor each thread decodes what it computes, and an
            accelerator has as many processes as there are processors.
        progress: Called with images done, and all.
        cluster: Where else to compute: by workers of Ray, which load the model by its `opening`, or by that path;
            with `out` alone.
        precision: fp32, bf16, or auto: for many images and a wide network the faster one, where it answers alike. The
            choice is stored in the run or the user's cache; a file that was started is completed as it was started.
        note: Called with what the choice rests on.

    Returns:
        The features, in the order of the data; without patches where a file holds them.

    Raises:
        UsageError: The model has no patches, there is no such split, or the file cannot be written as it is called; one
            of something else is there, or parts of one are.
        DataError: The data or the model cannot be read, or no image at all.
        RunError: The disk is full, what is done stays; or another process writes that file.
    """
    if cluster is not None and cluster.opening is None:
        cluster = replace(cluster, opening=_opening(model, out))
    model = open_first(model, "embed(model, data)")
    target = None if out is None else Path(out).expanduser()
    check_vit(model.network)
    if target is not None:
        check_ending(target)
    raw = read_images(data, data_root, layout=layout)
    if split is not None:
        split = split_of(split) or split
        if split not in raw.splits:
            there = list(raw.splits)
            problem = f"{raw.name} has no split {split}; its splits are {', '.join(there)}"
            raise UsageError(problem, Hint({"split": nearest(split, there) or there[0]}))
        raw = raw.only([split])
    for sentence in raw.notes:
        note(sentence)
    splits = [samples.images for samples in raw.splits.values()]
    if workers is not None and workers < 0:
        raise UsageError(f"workers must be at least 0, got {workers}", Hint({"workers": 0}))
    if workers is not None and cluster is None and not any(images.encoded for images in splits):
        problem = f"workers={workers} is for image files, but the images of {raw.name} are in memory"
        raise UsageError(problem, Hint(drop=["workers"]))
    started = None
    if target is not None:
        with suppress(VitrailError):  # none is there, or it is damaged, which is reported where the file is read
            started = read_about(target).get("precision", "fp32")
        started = started or job_entry(target, "precision")
    used = settle_precision(model, splits, precision, started, note)
    root = None if data_root is None else str(Path(data_root).resolve())
    return embed_samples(raw, model, root, target, patches, workers, progress, cluster, used, layout)


def embed_samples(
    raw: RawDataset,
    model: Model,
    data_root: str | None = None,
    target: Path | None = None,
    patches: bool = False,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
    cluster: "Cluster | None" = None,
    precision: Precision = "fp32",
    layout: Layout = AS_FOUND,
) -> FeatureSet:
    """What `embed` does, of images that are read already, in a precision that is chosen."""
    network, reads = check_vit(model.network), model.preprocessing
    describe = describe_by(network, patches)
    with evaluating(network):
        with torch.no_grad():
            one = describe(torch.zeros(1, reads.channels, *reads.size, device=model.device))
        columns = {name: list(value.shape[1:]) for name, value in one.items()}
        about = {
            **identity(model),
            "data": raw.name,
            "data_root": data_root,
            **({"layout": layout.columns} if layout.columns else {}),
            "images": raw.digest(),
            "columns": columns,
            "precision": precision,
        }
        if target is not None and target.exists():
            return _read_existing(target, about)
        ranges = split_up([samples.images for samples in raw.splits.values()], ROWS)
        compute = partial(features_of, cast_model(model, precision), patches, workers=workers)
        if target is None:
            found, done = list[FeaturePart](), 0
            progress(0, raw.count)
            for each, part in zip(ranges, compute(ranges), strict=True):
                found.append(part)
                done += len(each.ids)
                progress(done, raw.count)
            return _join(raw, model.preprocessing, found.__getitem__, ranges, about)
        _check_space(target, raw.count, columns)
        code = own_code(vars(model.network.parts).values())
        job = {"verb": "embed", **about, "code": code, **choices(ROWS, model.device, precision)}
        from vitrail.jobs.cluster import carry_of  # with what Ray needs, which the features of an explanation do not

        carry = carry_of(cluster, compute, partial(Opening.compute, by=features_of, option=patches), precision)
        with complete_parts(target, ARRAYS, job, ranges, carry, progress) as parts:
            return _join(raw, model.preprocessing, parts.read, ranges, about, target)


def _opening(model: object, out: object) -> Opening:
    """What workers load a model by that was named; raises UsageError where none was."""
    if out is None:
        raise UsageError("Ray workers need an output file", "out='features.npz'")
    if not isinstance(model, str | Path):
        raise UsageError("Ray workers load a model by its path, but a loaded model was passed", "the path of the model")
    path = Path(model).expanduser()
    return Opening(str(path.resolve() if path.exists() else model), "cpu", {}, {})


def identity(model: Model) -> dict[str, Any]:
    """What the maker of features is known by: a hash of its weights, its configuration, and how images go in.

    All that comes behind the features is left out, and what happens in training alone: a probe, or any other head on
    the same network, has the same features.

    Args:
        model: The maker.
    """
    network = check_vit(model.network)
    config = {name: value for name, value in config_to_dict(network.config).items() if name not in IDLE}
    parts = {slot: name for slot, name in names_of(network.parts).items() if slot not in HEADS}
    facts = {"network": {**config, "parts": parts}, "preprocessing": model.preprocessing.to_dict()}
    known = json.loads(to_json(facts))  # as a file has it: lists, no tuples
    return {"format": FORMAT, "weights": weights_hash(network, without=HEADS), **known}


# ---- where it goes


def _read_existing(target: Path, about: dict[str, Any]) -> FeatureSet:
    """The file that is there, if it holds what is wanted; parts that were left beside it are removed.

    Raises:
        UsageError: It is of something else.
    """
    try:
        theirs = read_about(target)
    except VitrailError as error:
        raise UsageError(f"{target} exists: {error.problem}", hint_elsewhere(target)) from error
    if differing := [name for name in about if theirs.get(name) != about[name]]:
        problem = f"{target} exists, with features of other {' and '.join(differing)}"
        raise UsageError(problem, hint_elsewhere(target))
    found = read_features(target)
    shutil.rmtree(folder_of(target), ignore_errors=True)
    return found


def _check_space(target: Path, count: int, columns: dict[str, list[int]]) -> None:
    """Refuse a disk that has no room for the parts and, in the end, the file beside them."""
    numbers = sum(math.prod(shape) for shape in columns.values())
    there = next(folder for folder in target.absolute().parents if folder.exists())
    beside = sum(file.stat().st_size for file in folder_of(target).glob("*.npz"))
    wanted, free = 2 * 4 * numbers * count - beside, shutil.disk_usage(there).free
    if wanted > free:
        room = f"{there} has {byte_size(free)} free"
        problem = f"{target} needs {byte_size(wanted)} while it is written, but {room}"
        hint = Hint(drop=["patches"]) if "patches" in columns else "df -h  # and --out where there is room"
        raise RunError(problem, hint)


# ---- the work


def features_of(
    model: Model, patches: bool, ranges: Sequence[IdRange], workers: int | None = None
) -> Iterator[FeaturePart]:
    """The features of each range, in turn."""
    describe = describe_by(check_vit(model.network), patches)

    def answer(images: Images, before: int, ids: Ids, pixels: Tensor) -> dict[str, Tensor]:
        return {name: value.float().cpu() for name, value in describe(pixels).items()}

    with evaluating(model.network):
        for batches, unreadable in answer_ranges(ranges, answer, model.preprocessing, model.device, workers):
            places = [ids for ids, _ in batches]
            first = batches[0][1] if places else {}
            values = {name: torch.cat([one[name] for _, one in batches]).numpy() for name in first}
            bad = tuple(unreadable[place] for place in sorted(unreadable))
            yield FeaturePart(np.concatenate(places) if places else np.zeros(0, np.int64), values, bad)


def _join(
    raw: RawDataset,
    read: Callable[[Any], object],
    part_of: Callable[[int], FeaturePart],
    ranges: Sequence[IdRange],
    about: dict[str, Any],
    target: Path | None = None,
) -> FeatureSet:
    """All parts as one, in a file or in memory.

    Raises:
        DataError: No image could be read.
    """
    rows = [(part.ids, part.unreadable) for part in (part_of(each.number) for each in ranges)]
    full = [each for each, (ids, _) in zip(ranges, rows, strict=True) if len(ids)]
    unreadable = [line for _, lines in rows for line in lines]
    if not full:
        hint = what_to_try(next(iter(raw.splits.values())).images, read)
        problem = f"none of {counted(raw.count, 'image')} can be read: {'; '.join(unreadable[:5])}"
        raise DataError(problem, hint)
    labels = {split: samples.labels for split, samples in raw.splits.items()}
    labelled = all(named is not None for named in labels.values())
    split_of = {id(samples.images): split for split, samples in raw.splits.items()}

    def pieces(name: str) -> Iterator[NDArray[Any]]:
        for each in full:
            if name not in WORDS:
                yield part_of(each.number).values[name]
                continue
            split, ids = split_of[id(each.images)], each.ids[rows[each.number][0]]
            name_of, label_of = each.images.name, labels[split] or ()
            words = {"id": name_of, "split": lambda row: split, "label": lambda row: label_of[row]}  # noqa: B023
            yield np.array([words[name](row) for row in ids.tolist()], dtype=str)

    about = {**about, "unreadable": unreadable}
    names = [*(name for name in WORDS if labelled or name != "label"), *about["columns"]]
    if target is not None:
        write_features(target, names, pieces, sum(len(rows[each.number][0]) for each in full), about)
        return read_features(target)
    columns = {name: np.concatenate(list(pieces(name))) for name in names}
    ids, splits, *label_of = (tuple(columns.pop(name).tolist()) for name in WORDS if name in columns)
    return FeatureSet(ids, splits, label_of[0] if label_of else None, columns, about)
