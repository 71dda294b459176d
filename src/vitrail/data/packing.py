"""Images and their columns into tar shards with an index: the same bytes from the same data, whatever happens.

A shard gets its name when all of it is on the disk. If the process is killed, the same call continues behind the last
whole shard; `shards.json`, without which nothing reads the folder, is written when everything else is there.
"""

import hashlib
import io
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.arguments import typed
from vitrail.data.columns import LABEL, Column, Labels, RawDataset, Samples, Texts, Values
from vitrail.data.images import HASH, Images, convert_mode, formats_of, opened_apart
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.preprocessing import RESAMPLING
from vitrail.data.shard_files import (
    BESIDE,
    VERSION,
    Member,
    Rows,
    Shard,
    ShardPart,
    Words,
    WrittenShard,
    read_table,
    split_file,
    table_file,
    taken_by,
    written_shard,
)
from vitrail.data.sources import PACKING, SHARDS, check_outside, check_root, is_address, is_named, read
from vitrail.errors import DataError, UsageError, check_option, counted
from vitrail.io import WRITING, check_writable, flush, locked, other_out, read_json, to_json, write_file
from vitrail.runtime import cores, in_order

QUALITY = 90  # of JPEG; benchmarks/LOG.md has 80, 90 and 95 beside each other
SHARD_MB = 128
AHEAD = 8  # images under way for each thread
SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif", "GIF": "gif"}
SUFFIXES |= {"AVIF": "avif", "JPEG2000": "jp2", "PPM": "ppm", "HEIF": "heic"}
MB = 10**6

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Packed:
    """What `pack` wrote.

    Attributes:
        out: The folder.
        images: The number of images of each split.
        shards: The number of shards of all splits.
        bytes: Of all shards.
        shorter_side: The largest in pixels; None when no image was scaled.
        left_out: Why images could not be read, one line each.
        notes: What was ignored or is unusual, one sentence each.
    """

    out: Path
    images: Mapping[str, int]
    shards: int
    bytes: int
    shorter_side: int | None
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "out": str(self.out)}


@typed
def pack(
    data: str | Path,
    out: str | Path,
    *,
    shorter_side: int | None = None,
    quality: int = QUALITY,
    shard_size: int = SHARD_MB,
    layout: Layout = AS_FOUND,
    data_root: str | Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Packed:
    """Write the images of data, with all their columns, into shards.

    Without `shorter_side` the bytes of every file are copied. With it, a larger image is converted as training
    converts it, scaled down to it, and saved as JPEG; one with transparency, which JPEG has not, as PNG. What
    is not larger is copied, so that small lossless images stay lossless. Images of a set in memory become PNG.

    Args:
        data: A named set, a folder, a list, or shards.
        out: The folder to write.
        shorter_side: The largest shorter side of an image in pixels; larger images are scaled down. None: no limit.
        quality: Of JPEG, 1 to 100.
        shard_size: Millions of bytes that a shard has at most, unless it holds a single image.
        layout: Columns and groups of the data, where they are named; the shards have them under their usual names.
        data_root: The folder of named sets.
        progress: Called with the number of images done, and of all.

    Raises:
        UsageError: The folder holds something else, or a number is out of range.
        DataError: The data cannot be read, no image can, or they are generated anew in every epoch.
        RunError: Another process writes the folder.
        OSError: It cannot be written; whole shards stay, and the same call continues.
    """
    for name, value, most, usual in (
        ("shorter_side", shorter_side, 65535, 256),
        ("quality", quality, 100, QUALITY),
        ("shard_size", shard_size, 10**6, SHARD_MB),
    ):
        fits = value is None or (type(value) is int and 1 <= value <= most)
        check_option(name, value, fits, f"a whole number from 1 to {most}", usual)
    what, root, folder = str(data), None if data_root is None else Path(data_root), Path(out).expanduser()
    check_root(what, root)
    check_outside(folder, what)
    raw, dropped = _keep_readable(what, read(what, root, layout=layout))
    label = what if is_named(what) or is_address(what) else Path(what).expanduser().resolve().name
    job = {
        "version": VERSION,
        "data": label,
        "shorter_side": shorter_side,
        "quality": quality,
        "shard_size": shard_size,
        "content": _digest(raw),
    }
    if (finished := _claim(folder, job)) is not None:
        return finished
    with locked(folder, folder / "lock"):
        scaled = ["--shorter-side", str(shorter_side), "--quality", str(quality)]
        options = layout.words + (scaled if shorter_side is not None else [])
        options += ["--shard-size", str(shard_size)] if shard_size != SHARD_MB else []
        options += ["--data-root", str(root.resolve())] if root is not None else []
        place = label if root is not None or label == what else str(Path(what).expanduser().resolve())
        again = shlex.join(["vitrail", "data", "pack", place, "--out", str(folder.resolve()), *options])
        write_file(folder / PACKING, to_json({**job, "again": again}))
        classes = _numbering(raw)
        numbers = {name: number for number, name in enumerate(classes)}
        total, done, parts = sum(len(one) for one in raw.splits.values()), 0, dict[str, ShardPart]()
        for split, samples in raw.splits.items():
            files_of = partial(_files_of, samples, numbers, shorter_side, quality)
            parts[split] = _pack_split(
                folder,
                split,
                samples,
                files_of,
                shard_size * MB,
                lambda count, before=done: progress(before + count, total),
            )
            done += len(samples)
        about = {
            "job": job,
            "classes": list(classes),
            "published": None if raw.classes is None else list(raw.classes),
            "split_seed": raw.split_seed,
            "facts": dict(raw.facts),
            "notes": [*raw.notes, *dropped],
        }
        write_file(folder / SHARDS, table_file(about, parts))
        _clear(folder)
    return _summarise(folder, about, parts)


def _clear(folder: Path) -> None:
    """Remove what stood there until all was written."""
    for beside in folder.glob(f"*-*{BESIDE}"):
        beside.unlink()
    (folder / PACKING).unlink(missing_ok=True)
    flush(folder)


def _summarise(folder: Path, about: Mapping[str, Any], parts: Mapping[str, ShardPart]) -> Packed:
    shards = [shard for part in parts.values() for shard in part.shards]
    images = {split: part.images for split, part in parts.items()}
    left_out = tuple(f"{split}: {line}" for split, part in parts.items() for line in part.left_out)
    room, side = sum(shard.size for shard in shards), about["job"]["shorter_side"]
    return Packed(folder, images, len(shards), room, side, left_out, tuple(about["notes"]))


# ---- what is packed, and where to


def _keep_readable(what: str, raw: RawDataset) -> tuple[RawDataset, tuple[str, ...]]:
    """The data with the columns that can be read, and a sentence on each of the others.

    Raises:
        DataError: There are no images to pack, or none of the columns can be read.
    """
    problems, columns = dict[str, str](), {split: dict[str, Column]() for split in raw.splits}
    for split, samples in raw.splits.items():
        if not samples.has_images:
            raise DataError(f"{what} contains texts, but only images can be packed", "name a set of images")
        for name in samples.columns:
            try:
                columns[split][name] = samples.column(name)
            except DataError as error:
                problems.setdefault(name, error.problem)
                continue
            if not isinstance(columns[split][name], Texts | Values):
                problem = f"{what} is generated anew in every epoch, so there is nothing to pack"
                raise DataError(problem, f"vitrail train {what}")
    splits = {
        split: Samples(samples.inputs, {name: one for name, one in columns[split].items() if name not in problems})
        for split, samples in raw.splits.items()
    }
    if problems and not any(samples.columns for samples in splits.values()):
        problem = next(iter(problems.values()))
        raise DataError(problem, "correct the lines of the list, then run the same command again")
    return replace(raw, splits=splits), tuple(f"Left out the column {name}: {problems[name]}." for name in problems)


def _numbering(raw: RawDataset) -> tuple[str, ...]:
    """The classes, in the order of the numbers in `.cls`: as published, else all that there are, by name."""
    labels = [samples.column(LABEL) for samples in raw.splits.values() if LABEL in samples.columns]
    names = {name for one in labels for name in one.counts()}
    return raw.classes if raw.classes is not None and names <= set(raw.classes) else tuple(sorted(names))


def _digest(raw: RawDataset) -> str:
    """Changes with what is packed: names, sizes in bytes (or pixels, in memory), columns, splits."""
    state = hashlib.blake2b(digest_size=16)
    for split, samples in raw.splits.items():
        state.update(f"{split} {len(samples)} ".encode() + samples.images.digest())
        for name, column in samples.columns.items():
            names = (str(one) for each in (column.named if isinstance(column, Values) else ()) for one in each)
            state.update("\0".join([name, *names]).encode("utf-8", "surrogateescape") + column.digest())
    return state.hexdigest()


def _claim(folder: Path, job: Mapping[str, Any]) -> Packed | None:
    """Make the folder, or find it as it was left; what lies there where the work is done already.

    Raises:
        UsageError: It holds something else.
    """
    there = folder / (SHARDS if (folder / SHARDS).is_file() else PACKING)
    if not there.is_file():
        left = {"lock", PACKING + WRITING}  # by one that was killed at once
        if folder.exists() and not (folder.is_dir() and {one.name for one in folder.iterdir()} <= left):
            raise UsageError(f"{folder} exists and contains no shards", other_out(folder))
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return None
    former, parts = read_json(there, other_out(folder)), dict[str, ShardPart]()
    table = former
    if there.name == SHARDS:
        table, parts = read_table(there.read_bytes(), str(there), other_out(folder))
        former = table.get("job", {})
    differing = [name for name in {**job, **former} if name != "again" and job.get(name) != former.get(name)]
    if differing:
        raise UsageError(f"{folder} contains shards of other {' and '.join(differing)}", other_out(folder))
    if there.name != SHARDS:
        return None
    if (folder / PACKING).exists() or (folder / "lock").exists():  # killed at the very end
        with locked(folder, folder / "lock"):
            _clear(folder)
    return _summarise(folder, table, parts)


# ---- one split


def _files_of(
    samples: Samples, classes: Mapping[str, int], size: int | None, quality: int, index: int
) -> tuple[list[tuple[str, bytes]], bytes] | str:
    """Suffix and content of each file of a sample, the image first, and the image's hash; or why it cannot be read."""
    try:
        image, known = _encode(samples.images, index, size, quality)
    except DataError as error:
        return error.problem
    values, found = dict[str, Any](), [image]
    for name, column in samples.columns.items():
        value = column.take(np.array([index], np.int64))[0]
        if isinstance(column, Values) and column.named:
            values |= column.cells(index, name)
            continue
        values[name] = value if isinstance(value, str) else np.asarray(value).tolist()
    if isinstance(samples.columns.get(LABEL), Labels):
        found.append(("cls", str(classes[values[LABEL]]).encode()))
    return [*found, ("json", json.dumps({**values, "path": samples.name(index)}).encode())], known


def _encode(images: Images, index: int, size: int | None, quality: int) -> tuple[tuple[str, bytes], bytes]:
    """The suffix and the bytes of an image, which was decoded once, and the hash of what it was before."""
    content = images.content(index) if images.encoded else None
    image = images.open(index) if content is None else opened_apart(images.name(index), content)
    short, known = min(image.size), images.content_hash(index, content)
    saved = io.BytesIO()
    if size is None or short <= size:
        if content is not None:
            with Image.open(io.BytesIO(content), formats=formats_of(content)) as header:
                return (SUFFIXES[header.format or "JPEG"], content), known
        image.save(saved, "PNG")
        return ("png", saved.getvalue()), known
    clear, deep = image.has_transparency_data, image.mode.startswith("I")
    if deep:  # 16 bits, of which nothing shows here how many are used: all are kept
        plain = Image.fromarray(np.asarray(image).astype(np.float32))
    else:
        plain = image.convert("RGBA") if clear else convert_mode(image, 1 if image.mode in ("1", "L") else 3)
    width, height = (max(size, side * size // short) for side in image.size)
    scaled = plain.resize((width, height), RESAMPLING["bicubic"])
    if deep:
        scaled = Image.fromarray(np.asarray(scaled).round().clip(0, 65535).astype(np.uint16))
    scaled.save(saved, "PNG") if clear or deep else scaled.save(saved, "JPEG", quality=quality)
    return ("png" if clear or deep else "jpg", saved.getvalue()), known


def _pack_split(
    folder: Path,
    split: str,
    samples: Samples,
    files_of: Callable[[int], tuple[list[tuple[str, bytes]], bytes] | str],
    most: int,
    progress: Callable[[int], object],
) -> ShardPart:
    """All samples of a split, behind those whose shards are whole already."""
    shards, shard, count = list[WrittenShard](), Shard(), len(samples)

    def place() -> Path:
        return folder / f"{split}-{len(shards):06d}.tar"

    while (found := written_shard(place())) is not None:
        shards.append(found)
    left, threads = range(shards[-1].end if shards else 0, count), cores()
    tasks = (partial(files_of, id) for id in left)
    for id, found in zip(left, in_order(tasks, threads, ahead=AHEAD * threads), strict=True):
        if isinstance(found, str):
            shard.left_out.append(found)
        else:
            if shard.rows and shard.taken + taken_by(found[0]) > most:
                shards.append(shard.write(place(), id))
                shard = Shard()
            shard.add(id, *found)
        progress(id + 1)
    left_out = [line for each in (*shards, shard) for line in each.left_out]
    if shard.rows:
        shards.append(shard.write(place(), count))
    if not shards:
        raise DataError(f"none of {counted(count, 'image')} of {split} can be read: {left_out[0]}", "ls -l")
    rows = [row for each in shards for row in each.rows]
    shard_of = np.repeat(np.arange(len(shards)), [len(each.rows) for each in shards])
    ids, offset, size, crc = np.array([row[:4] for row in rows], np.int64).T
    names = Words.of(samples.name(int(id)) for id in ids)
    hashes = np.frombuffer(bytes.fromhex("".join(row.hash for row in rows)), np.uint8).reshape(-1, HASH)
    table = Rows(shard_of, offset, size, crc, names, hashes)
    content, columns = split_file(table, {name: column.select(ids) for name, column in samples.columns.items()})
    index = folder / f"{split}.safetensors"
    write_file(index, content)
    member = Member(index.name, len(content), hashlib.sha256(content).hexdigest())
    return ShardPart(len(ids), member, tuple(each.member for each in shards), columns, tuple(left_out))
