"""All images of data as vectors: `vitrail.embed`. Killed at any point, the same call goes on."""

import errno
import json
import math
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray

from vitrail.data.images import FileImages, Images, look_at
from vitrail.data.loader import Loader, StreamedLoader, open_loader
from vitrail.errors import COMMAND_LINE, DataError, RunError, UsageError, VitrailError, counted
from vitrail.features.file import FORMAT, WORDS, FeatureSet, check_ending, read_about, read_features, write_features
from vitrail.features.head import HEADS
from vitrail.features.listing import Listed, list_images, rows_of
from vitrail.features.parts import ROWS, Kept, Part, Parts, folder_of, other_name
from vitrail.features.passes import Describe, described, in_batches
from vitrail.features.poolings import check_network, describing
from vitrail.io import locked, to_json
from vitrail.model import Model, load
from vitrail.nn import evaluating, names_of
from vitrail.nn.networks import config_to_dict, weights_hash
from vitrail.runtime import processors

# what of a configuration changes no features: it is of the head, or of training
IDLE = ("classes", "head_bias", "dropout", "embedding_dropout", "attention_dropout", "stochastic_depth")
Progress = Callable[[int, int], None]
"""Called with the number of images done, and of all."""


class _Piece(NamedTuple):
    """A part that is to be computed: its number, its split, and which images."""

    number: int
    split: str
    ids: Int64[np.ndarray, " _"]


def embed(
    data: str | Path,
    model: str | Path | Model,
    *,
    out: str | Path | None = None,
    patches: bool = False,
    split: str | None = None,
    data_root: str | Path | None = None,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> FeatureSet:
    """What a network says of each image before its head: class token, mean of patches, and patches where asked for.

    Images that cannot be read are left out and named. With `out`, what is done lies on disk: killed at any point, the
    same call goes on behind it, and the finished file has the same bytes as one that was never interrupted.

    Args:
        data: A named set, a folder, a list of images, or an image; classes are not needed.
        model: A ViT: what `vitrail.load` opens, or a model that was loaded.
        out: A file (.npz or .parquet) to write; one of the same images by the same model is read instead. None: nothing
            is written.
        patches: Whether every patch token is kept, too: (rows, columns, d) of each image.
        split: Only this split; all when None.
        data_root: Where named sets lie.
        workers: Processes that decode images ahead. None: on a processor each thread decodes what it computes, and an
            accelerator has as many processes as there are processors.
        progress: Called with images done, and all.

    Returns:
        The features, in the order of the data; without patches where a file holds them.

    Raises:
        UsageError: The model has no patches, there is no such split, or the file cannot be written as it is called; one
            of something else is there, or parts of one are.
        DataError: The data or the model cannot be read, or no image at all.
        RunError: The disk is full, what is done stays; or another process writes that file.
    """
    model = load(model) if isinstance(model, str | Path) else model
    target = None if out is None else Path(out).expanduser()
    check_network(model.network)
    if target is not None:
        check_ending(target)
    listed = list_images(data, data_root, split)
    if workers is not None and not any(isinstance(listed.images(split), FileImages) for split in listed.splits):
        problem = f"workers decode files, and the images of {data} lie in memory: workers={workers} is given"
        raise UsageError(problem, f"no workers={COMMAND_LINE}the same without --workers")
    return embed_listed(listed, model, target, patches, workers, progress)


def embed_listed(
    listed: Listed,
    model: Model,
    target: Path | None = None,
    patches: bool = False,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> FeatureSet:
    """What `embed` does, of images that are listed already."""
    network = check_network(model.network)
    describe = describing(network, patches)
    with evaluating(network):
        columns = _shapes(model, describe)
        about = {
            **identity(model),
            "data": listed.data,
            "data_root": listed.data_root,
            "images": listed.digest(),
            "columns": columns,
        }
        if target is not None and target.exists():
            return _there(target, about, model)
        with _writing(target), _alone(target):
            if target is not None:
                _check_space(target, len(listed), columns)
            parts = Kept() if target is None else Parts(target, about)
            done = _all_parts(model, listed, describe, parts, workers, progress)
            return _together(listed, parts, done, about, target)


def identity(model: Model, format: int = FORMAT) -> dict[str, Any]:
    """What the maker of features is known by: a hash of its weights, its configuration, and how images go in.

    All that comes behind the features is left out, and what happens in training alone: a probe, or any other head on
    the same network, has the same features.

    Args:
        model: The maker.
        format: Of the file in which that stands; files of format 1 know all of the network.
    """
    network, behind = check_network(model.network), HEADS if format > 1 else ()
    config = {name: value for name, value in config_to_dict(network.config).items() if format == 1 or name not in IDLE}
    parts = {slot: name for slot, name in names_of(network.parts).items() if slot not in behind}
    told = {"network": {**config, "parts": parts}, "preprocessing": model.preprocessing.to_dict()}
    known = json.loads(to_json(told))  # as a file has it: lists, no tuples
    return {"format": format, "weights": weights_hash(network, without=behind), **known}


def _shapes(model: Model, describe: Describe) -> dict[str, list[int]]:
    """The shape of what is kept of an image, by name."""
    pixels = torch.zeros(1, model.preprocessing.channels, *model.preprocessing.size, device=model.device)
    with torch.no_grad():
        return {name: list(value.shape[1:]) for name, value in describe(pixels).items()}


# ---- where it goes


def _there(target: Path, about: dict[str, Any], model: Model) -> FeatureSet:
    """The file that is there, if it holds what is asked for; parts that were left beside it are removed.

    Raises:
        UsageError: It is of something else.
    """
    try:
        theirs = read_about(target)
    except VitrailError as error:
        raise UsageError(f"{target} exists: {error.problem}", f"--out {other_name(target)}") from error
    about = {**about, **identity(model, theirs["format"])}
    differing = [name for name in about if theirs.get(name) != about[name]]
    if differing:
        problem = f"{target} exists, with features of other {' and '.join(differing)}"
        raise UsageError(problem, f"--out {other_name(target)}")
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
        problem = f"{target} takes {wanted / 1e9:.3g} GB while it is made, and {there} has {free / 1e9:.3g} GB free"
        raise RunError(
            problem, "leave --patches out" if "patches" in columns else "df -h  # and --out where there is room"
        )


@contextmanager
def _writing(target: Path | None) -> Iterator[None]:
    """Says what to do where a file cannot be written."""
    try:
        yield
    except OSError as error:
        if target is None:
            raise
        problem = f"{target} cannot be written: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            kept = f"the same command again goes on behind what is kept in {folder_of(target)}"
            raise RunError(
                problem, f"{shlex.join(['df', '-h', str(target.parent)])}  # with room there, {kept}"
            ) from error
        raise UsageError(problem, f"--out {shlex.quote(str(Path.home() / target.name))}") from error


@contextmanager
def _alone(target: Path | None) -> Iterator[None]:
    """Two processes that write the same file would each remove what the other has done."""
    if target is None:
        yield
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target, target.with_name(f"{target.name}.lock")):
        yield


# ---- the work

Done = dict[int, tuple[Int64[np.ndarray, " _"], tuple[str, ...]]]
"""By the number of a part: which images it has, and why others could not be read."""


def _all_parts(
    model: Model, listed: Listed, describe: Describe, parts: Kept | Parts, workers: int | None, progress: Progress
) -> Done:
    """Every part: those that are there are read, the others computed and kept."""
    done: Done = {}
    pieces = [_Piece(number, split, ids) for number, (split, ids) in enumerate(rows_of(listed, ROWS))]
    for piece in pieces:
        if (part := parts.read(piece.number)) is not None:
            done[piece.number] = part.ids, part.unreadable
    ready = sum(len(piece.ids) for piece in pieces if piece.number in done)
    progress(ready, len(listed))
    left = [piece for piece in pieces if piece.number not in done]
    for piece, part in zip(left, _computed(model, listed, describe, left, workers), strict=True):
        parts.write(piece.number, part)
        done[piece.number] = part.ids, part.unreadable
        ready += len(piece.ids)
        progress(ready, len(listed))
    return done


def _computed(
    model: Model, listed: Listed, describe: Describe, pieces: Sequence[_Piece], workers: int | None
) -> Iterator[Part]:
    """The parts that are wanted, in order; images of the next ones are decoded meanwhile."""
    for split, together in groupby(pieces, key=lambda piece: piece.split):
        wanted = [in_batches(piece.ids, model.device) for piece in together]
        loader = _loader(listed.images(split), model, workers)
        all_ids = [ids for batches in wanted for ids in batches]
        stream = described(describe, loader, model.preprocessing, model.device, all_ids, workers is not None)
        for batches in wanted:
            found = [next(stream) for _ in batches]
            read = [one.values for one in found if one.values]
            values = {name: torch.cat([one[name] for one in read]).numpy() for name in (read[0] if read else ())}
            bad = tuple(loader.unreadable[row] for ids in batches for row in ids.tolist() if row in loader.unreadable)
            yield Part(np.concatenate([one.ids for one in found]), values, bad)


def _loader(images: Images, model: Model, workers: int | None) -> Loader:
    """Files are decoded while others are computed; what lies in memory or is made is taken from there."""
    if not isinstance(images, FileImages):
        return open_loader(images, model.preprocessing, workers=1)
    if workers is None:  # a processor's threads decode what they compute
        workers = 0 if model.device.type == "cpu" else processors()
    return StreamedLoader(images, model.preprocessing, workers)


def _together(
    listed: Listed, parts: Kept | Parts, done: Done, about: dict[str, Any], target: Path | None
) -> FeatureSet:
    """All parts as one, in a file or in memory; the parts are removed.

    Raises:
        DataError: No image could be read.
    """
    splits = dict(enumerate(split for split, _ in rows_of(listed, ROWS)))
    full = [number for number in splits if len(done[number][0])]
    unreadable = [line for number in splits for line in done[number][1]]
    if not full:
        parts.remove()
        first = look_at(listed.images(next(iter(listed.splits))))
        raise DataError(f"none of {counted(len(listed), 'image')} can be read: {unreadable[0]}", first)
    labels = {split: listed.labels(split) for split in listed.splits}
    labelled = all(named is not None for named in labels.values())

    def pieces(name: str) -> Iterator[NDArray[Any]]:
        for number in full:
            split, ids = splits[number], done[number][0]
            if name not in WORDS:
                yield parts.column(number, name)
                continue
            name_of, label_of = listed.images(split).name, labels[split] or ()
            words = {"id": name_of, "split": lambda row: split, "label": lambda row: label_of[row]}  # noqa: B023
            yield np.array([words[name](row) for row in ids.tolist()], dtype=str)

    about = {**about, "unreadable": unreadable}
    names = [*(name for name in WORDS if labelled or name != "label"), *about["columns"]]
    if target is not None:
        write_features(target, names, pieces, sum(len(done[number][0]) for number in full), about)
        parts.remove()
        return read_features(target)
    columns = {name: np.concatenate(list(pieces(name))) for name in names}
    ids, split_of, *label_of = (tuple(columns.pop(name).tolist()) for name in WORDS if name in columns)
    return FeatureSet(ids, split_of, label_of[0] if label_of else None, columns, about)
