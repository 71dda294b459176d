"""One pass over all images of data: what each file holds, how it looks, and why it cannot be read.

What was found is kept in the user's cache by the identity of each file (path, size, time of its last change), so that a
second call reads only what changed. Images are decoded by processes; one that dies takes no other image with it: it is
started again, and the image that it had is named.

Of many images, or where there are only seconds, some are looked at: blocks of images whose names stand side by side in
whatever splits, so that of a recording several are among them.
"""

import hashlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from numpy.typing import NDArray
from PIL import ExifTags, Image

from vitrail.arguments import typed
from vitrail.data.columns import RawDataset, split_of
from vitrail.data.images import DEEP, FORMATS, HASH, HEIF, Images, bits_of, convert_mode, formats_of, open_image
from vitrail.data.pictures import GREY, grey_thumbnail
from vitrail.data.tensor_files import read_tensors, write_tensors
from vitrail.data.workers import TOGETHER, in_workers
from vitrail.errors import DataError
from vitrail.io import user_cache
from vitrail.runtime import cores
from vitrail.text import ShortRepr

MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F")
MODES += ("I;16", "I;16L", "I;16B", "I;16N", "other")
KINDS = (*FORMATS, "MPO", HEIF, "other")
SIDE = 256  # pixels of the shorter side of an image that is measured; larger ones are scaled down to it
COLOUR = 8  # sides of a thumbnail of its two colour differences
SHARPEST = 0.99  # the part of an image's pixels that are less sharp than what stands for its sharpness
PATIENCE = 60.0  # seconds for an image, when no process answers any more
QUICK = 5000  # images that are looked at in some seconds, at most
SORTED = 100_000  # names that are sorted, at most
VERSION = 3  # of what is kept

ROW = np.dtype(
    [
        ("identity", np.uint8, HASH),  # by what it is known without being read; zeros: by nothing
        ("content", np.uint8, HASH),  # see `Images.content_hash`
        ("split", np.int32),  # number of its split
        ("index", np.int64),  # its number in that
        ("bytes", np.int64),  # of its file; 0 of an image in none
        ("width", np.int32),  # pixels, upright
        ("height", np.int32),
        ("mode", np.uint8),  # of the file, its number in `MODES`
        ("kind", np.uint8),  # of the file, its number in `KINDS`
        ("orientation", np.uint8),  # of the EXIF block, 1 to 8
        ("bits", np.uint8),  # that are used, of an image of 16; 0 of others
        ("alpha", np.bool_),  # whether some pixel is transparent
        ("frames", np.bool_),  # whether there are more than one
        ("camera", np.int32),  # its number in `Survey.cameras`
        ("time", np.int64),  # seconds since 1970 at which it was taken, by the camera's clock; 0: nobody says
        ("brightness", np.float32),  # mean of grey, from 0 to 1
        ("contrast", np.float32),  # its standard deviation
        ("sharpness", np.float32),  # the steepest hundredth of its edges, from 0 to 1
        ("grey", np.uint8, (GREY, GREY)),  # thumbnail, whatever the aspect of the image
        ("colour", np.uint8, (COLOUR, COLOUR, 2)),  # Cb and Cr of a smaller one
    ]
)
"""What is known of an image; zeros where it cannot be read."""

_PLACE = ["identity", "split", "index"]  # what is known without looking
_NOTHING = np.zeros((), ROW).tobytes()


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Survey(ShortRepr):
    """What is known of n images, in the order of the splits.

    Attributes:
        splits: Their names.
        rows: (n,) of `ROW`: an array for each of its fields, such as `rows["width"]`.
        names: Of all images.
        problems: Why an image cannot be read, by its row.
        cameras: Maker, model and number of cameras; the first is none.
        left_out: How many images of the data were not looked at.
    """

    splits: tuple[str, ...]
    rows: NDArray[Any]
    names: tuple[str, ...]
    problems: dict[int, str]
    cameras: tuple[str, ...]
    left_out: int

    def __len__(self) -> int:
        """How many images were looked at."""
        return len(self.rows)

    @property
    def readable(self) -> Bool[np.ndarray, " n"]:
        """Which could be read."""
        found = np.ones(len(self), dtype=bool)
        found[list(self.problems)] = False
        return found


def survey(
    raw: RawDataset,
    progress: Callable[[int, int], object] = lambda done, total: None,
    workers: int | None = None,
    cache: bool = True,
    most: int | None = None,
    seconds: float = math.inf,
) -> Survey:
    """Look at all images of all splits once.

    Args:
        raw: Data with images.
        progress: Called with the number of images known, and of all.
        workers: Processes that decode; one for each core when None, and with 0 this one, which a bad decoder may end.
        cache: Whether what was found is kept in the user's cache, and taken from there.
        most: Images that are looked at; all when None.
        seconds: After which those that were not looked at yet are left out.

    Returns:
        What was found. An image that cannot be read is a problem there, and ends nothing.
    """
    until, splits = time.monotonic() + seconds, [samples.images for samples in raw.splits.values()]
    order, first = _order(splits, most), np.cumsum([0, *map(len, splits)])
    chosen = np.sort(order)
    rows = np.zeros(len(chosen), ROW)
    rows["split"] = np.searchsorted(first, chosen, side="right") - 1
    rows["index"] = chosen - first[rows["split"]]
    own = (rows["index"][rows["split"] == number] for number in range(len(splits)))
    rows["identity"] = np.concatenate([_identities(*each) for each in zip(splits, own, strict=True)])
    file, cameras, problems = kept_file("surveys", f"{VERSION} {raw.root}"), {"": 0}, dict[int, str]()
    kept, at = take_kept(file, rows["identity"]) if cache else ({}, np.full(len(rows), -1))
    known, places, others = at >= 0, rows[_PLACE].copy(), rows[:0]
    if kept:
        before = kept["rows"].view(ROW)[:, 0]
        rows[known], others = before[at[known]], np.delete(before, at[known])
        rows[_PLACE] = places
        cameras = {name: number for number, name in enumerate(json.loads(kept["cameras"].tobytes()))}
    missing = np.searchsorted(chosen, order)
    missing = missing[~known[missing]].tolist()
    workers = cores() if workers is None else workers
    progress(len(rows) - len(missing), len(rows))
    look = partial(_look, splits, rows["split"].copy(), rows["index"].copy())
    every = in_workers(look, missing, workers, PATIENCE, until)
    if not workers:
        every = ((row, look(row)) for row in takewhile(lambda _: time.monotonic() < until, missing))
    try:
        for done, (row, found) in enumerate(every, len(rows) - len(missing) + 1):
            if isinstance(found, str):
                found = _Found(_NOTHING, f"{splits[rows['split'][row]].name(int(rows['index'][row]))}: {found}")
            place, rows[row] = rows[_PLACE][row].copy(), np.frombuffer(found.row, ROW)[0]
            rows[_PLACE][row] = place
            rows["camera"][row] = cameras.setdefault(found.camera, len(cameras))
            known[row] = not found.problem
            problems |= {row: found.problem} if found.problem else {}
            progress(done, len(rows))
    finally:  # an interrupted pass continues where it ended
        if cache and missing:
            others = others if len(rows) < first[-1] else others[:0]  # which may be gone
            some = np.concatenate([rows[known & rows["identity"].any(axis=1)], others])
            texts, values = json.dumps(list(cameras)).encode(), some.view(np.uint8).reshape(len(some), ROW.itemsize)
            keep(file, keys=some["identity"], rows=values, cameras=np.frombuffer(texts, np.uint8).copy())
    seen = np.flatnonzero(known | np.isin(np.arange(len(rows)), [*problems]))
    names = tuple(splits[split].name(index) for split, index in rows[["split", "index"]][seen].tolist())
    problems = {place: problems[row] for place, row in enumerate(seen.tolist()) if row in problems}
    return Survey(tuple(raw.splits), rows[seen], names, problems, tuple(cameras), int(first[-1]) - len(seen))


def quick_survey(raw: RawDataset, seconds: float, progress: Callable[[int, int], object]) -> Survey:
    """A survey of at most `QUICK` images, in some seconds."""
    alone = raw.count <= TOGETHER or sys.platform != "linux"  # where processes begin within seconds
    return survey(raw, progress, workers=0 if alone else None, most=QUICK, seconds=seconds)


def _order(splits: Sequence[Images], most: int | None) -> Int64[np.ndarray, " m"]:
    """The images of all splits, numbered through, in the order in which they are looked at."""
    sizes = [*map(len, splits)]
    if most is None:
        return np.arange(sum(sizes))
    keys = np.concatenate([np.arange(size) / max(1, size) for size in sizes])  # where each stands in its split
    if len(keys) <= SORTED:
        names = (name.split("/")[-2:] for images in splits for name in images.names())
        keys = np.array(["/".join(part for part in some if split_of(part) is None) for some in names], object)
    blocks = np.split(np.argsort(keys, kind="stable"), range(TOGETHER, len(keys), TOGETHER))
    drawn = np.random.default_rng(0).permutation(len(blocks)).tolist()
    return np.concatenate([blocks[number] for number in drawn])[:most]


# ---- what is kept


def _identities(images: Images, ids: Int64[np.ndarray, " m"]) -> UInt8[np.ndarray, "m 16"]:
    """By what an image is known without reading it: its file, or the set that it is one of; zeros: by nothing."""
    whole, found = b"", np.zeros((len(ids), HASH), np.uint8)
    for row, index in enumerate(ids.tolist()):
        file = images.file(index)
        if file is None:
            whole = whole or images.digest()
            about = b"%s %d" % (whole, index)
        else:
            try:
                status = file.stat()
            except OSError:  # reported where it is read
                continue
            about = os.fsencode(f"{file}\0{status.st_size}\0{status.st_mtime_ns}")
        found[row] = np.frombuffer(hashlib.blake2b(about, digest_size=HASH).digest(), np.uint8)
    return found


def kept_file(kind: str, about: str) -> Path:
    """The file in the user's cache of what was found of some data."""
    return user_cache() / kind / f"{hashlib.blake2b(os.fsencode(about), digest_size=8).hexdigest()}.safetensors"


def take_kept(file: Path, keys: UInt8[np.ndarray, "n 16"]) -> tuple[dict[str, NDArray[Any]], Int64[np.ndarray, " n"]]:
    """The arrays that a file keeps, and for each key its row there; -1 where it has none."""
    with suppress(DataError, OSError, KeyError):
        found = {name: tensor.numpy() for name, tensor in read_tensors(file, "").items()}
        places = {key.tobytes(): place for place, key in enumerate(found["keys"])}
        return found, np.array([places.get(key.tobytes(), -1) for key in keys], np.int64)
    return {}, np.full(len(keys), -1)


def keep(file: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays for the next time, of which `keys` has a row for each of the others' rows."""
    with suppress(OSError):  # no home, or a full disk: all is found out again
        write_tensors(file, {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items()})


# ---- one image


class _Found(NamedTuple):
    """What is known of an image: its row of `ROW`, why it cannot be read, and the camera that it names."""

    row: bytes
    problem: str = ""
    camera: str = ""


def _look(splits: Sequence[Images], split: NDArray[Any], index: NDArray[Any], row: int) -> _Found:
    """Read the image of a row once: that of such a split, and with this index in it."""
    return _look_at(splits[split[row]], int(index[row]))


def _look_at(images: Images, index: int) -> _Found:
    row, camera = np.zeros((), ROW), ""
    try:
        if images.encoded:
            content = images.content(index)
            row["bytes"], known = len(content), images.content_hash(index, content)
            with suppress(Exception):  # `open_image` says what is wrong
                camera = _read_header(content, row)
            image = open_image(images.name(index), content, SIDE)
        else:
            image, known = images.read(index)
            row["width"], row["height"] = image.size
            row["mode"], row["kind"], row["orientation"] = _number(MODES, image.mode), len(KINDS) - 1, 1
        row["content"] = np.frombuffer(known, np.uint8)
        _measure(image, row)
    except Exception as error:  # also of images of a person's own: one that cannot be read ends nothing
        problem = error.problem if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        name = images.name(index)
        return _Found(_NOTHING, problem if name in problem else f"{name}: {problem}")
    return _Found(row.tobytes(), "", camera)


def _number(names: Sequence[str], name: str | None) -> int:
    """The place of a name, or of the last, which stands for all others."""
    return names.index(name) if name in names else len(names) - 1


def _read_header(content: bytes, row: Any) -> str:
    """What a file says of its image, without decoding it; the camera, if it names one."""
    with Image.open(io.BytesIO(content), formats=formats_of(content)) as image:
        row["mode"], row["kind"] = _number(MODES, image.mode), _number(KINDS, image.format)
        row["width"], row["height"], row["orientation"] = *image.size, 1
        row["frames"] = image.format != "MPO" and getattr(image, "is_animated", False)  # a phone's depth is no frame
        exif = image.getexif()
        turned = exif.get(ExifTags.Base.Orientation, 1)
        if turned in range(2, 9):
            row["orientation"] = turned
            row["width"], row["height"] = image.size[:: -1 if turned > 4 else 1]
        more = exif.get_ifd(ExifTags.IFD.Exif) if exif else {}
        with suppress(ValueError, TypeError):
            taken = datetime.strptime(more.get(ExifTags.Base.DateTimeOriginal, ""), "%Y:%m:%d %H:%M:%S")
            row["time"] = int(taken.replace(tzinfo=UTC).timestamp())
        parts = exif.get(ExifTags.Base.Make), exif.get(ExifTags.Base.Model), more.get(ExifTags.Base.BodySerialNumber)
        return " ".join(" ".join(str(part).replace("\0", "").split()) for part in parts if part)


def _measure(image: Image.Image, row: Any) -> None:
    """Depth, transparency, light and sharpness of a decoded image, and its thumbnail."""
    row["bits"] = bits = bits_of(image)
    if image.has_transparency_data:
        row["alpha"] = np.asarray(image.convert("RGBA"))[:, :, 3].min() < 255
    image = convert_mode(image, 1 if image.mode in ("1", "L") else 3, bits=16 if DEEP in image.info else bits or None)
    if min(image.size) > SIDE:
        scale = SIDE / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BOX)
    grey = image.convert("L")
    light = np.asarray(grey)
    row["brightness"], row["contrast"], row["sharpness"] = light.mean() / 255, light.std() / 255, _sharpness(light)
    row["grey"] = grey_thumbnail(grey)
    small = image.resize((COLOUR, COLOUR), Image.Resampling.BOX).convert("RGB").convert("YCbCr")
    row["colour"] = np.asarray(small)[:, :, 1:]


def _sharpness(light: UInt8[np.ndarray, "h w"]) -> float:
    """How far the steepest pixels stand out from the mean of their four neighbours, from 0 to 1.

    Only the steepest count: an image with a sharp thing before a soft ground is sharp.
    """
    if min(light.shape) < 3:
        return 0.0
    wide = light.astype(np.int16)
    around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    steps = np.bincount(np.abs(4 * wide[1:-1, 1:-1] - around).ravel())
    return float(np.searchsorted(np.cumsum(steps), SHARPEST * steps.sum())) / 1020
