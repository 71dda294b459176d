"""Untrusted weights files become tensors by name, and nothing else of them reaches this process.

    .safetensors              read after its header was checked
    .npz                      read by numpy, without pickles
    .pth .pth.tar .pt         pickles, also torch's files under any other name: a separate process reads them with
    .bin .ckpt                `weights_only=True` and limits of memory and time, and writes safetensors into the cache
    *.index.json              several files of one network, all in the index's folder

The sizes in a file are checked before memory is allocated for its tensors.
"""

import contextlib
import hashlib
import mmap
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.tensor_files import MOST_TENSORS, check_size, is_finite, read_tensors
from vitrail.errors import DataError, counted, raised_as, remove, some_of
from vitrail.io import read_json, user_cache
from vitrail.weights.family import Tensors
from vitrail.weights.places import ARRAYS, INDEX, PICKLES, SAFE, SUFFIXES, missing_weights, suffix_of


def is_pickle(path: Path) -> bool:
    """Whether a file, or those that an index names, are pickles."""
    return suffix_of(path.with_name(path.name.removesuffix(INDEX))) in PICKLES


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def another_copy(path: str | Path) -> str:
    """What to do about damaged weights: a hub's file is downloaded again, any other compared with its publisher's."""
    repository = next((part for part in Path(path).parts if part.startswith("models--")), "")
    if repository:
        return f"hf download {repository.removeprefix('models--').replace('--', '/')} --force-download"
    compare = f"sha256sum {shlex.quote(str(path))}  # compare with its publisher's"
    return compare if Path(path).is_file() else "another copy of the weights"


POINTER = b"version https://git-lfs.github.com/spec/"
BFLOAT16 = np.dtype("V2")  # as big_vision writes it: numpy has no such kind of number
PACKED, SLACK = 20, 2**24  # a .npz unpacks to at most so many times its bytes, and these
SECONDS = 300  # for a pickle
NAMES = "it names "  # begins what `unpickle.py` says of a class
KEYS = "state_dict", "model_state_dict", "model"  # of the weights in checkpoints
CONVERT = Path(__file__).with_name("unpickle.py")


def check_tensors_fit(tensors: Tensors, wanted: Tensors, hint: str) -> None:
    """Refuse tensors whose names or shapes are not exactly a network's; raises DataError with the hint."""
    shapes, right = ({name: tuple(tensor.shape) for name, tensor in each.items()} for each in (tensors, wanted))
    wrong = [name for name in {**right, **shapes} if right.get(name) != shapes.get(name)]
    if wrong:
        each = [f"{name} {shapes.get(name, 'is missing')} for {right.get(name, 'none')}" for name in wrong]
        these = counted(len(wrong), "tensor does", "tensors do")
        raise DataError(f"{these} not fit the network: {some_of(each, 5)}", hint)


def check_finite_tensors(tensors: Tensors, hint: str) -> None:
    """Refuse tensors that hold NaN or infinity; raises DataError with the hint."""
    bad = [name for name, tensor in tensors.items() if not is_finite(tensor.float())]
    if bad:
        these = counted(len(bad), "tensor holds", "tensors hold")
        raise DataError(f"{these} NaN or infinity: {some_of(bad, 5)}", hint)


def read_weights(path: Path) -> Tensors:
    """The tensors of a weights file, or of all files that an index lists.

    Args:
        path: A weights file, by its suffix, else by its first bytes.

    Raises:
        DataError: If it is missing, damaged, too large or contains anything but tensors by name.
    """
    if not path.is_file():
        raise missing_weights(path)
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise DataError(f"{path} is a pointer of git-lfs whose file was not downloaded", "git lfs pull")
    kind = suffix_of(path)
    if not kind:
        hint = f"a file that ends in one of {', '.join(SUFFIXES)}"
        raise DataError(f"{path} is not a weights file, by its name or its content", hint)
    # of an untrusted file numpy, zipfile, zlib and JSON raise whatever they like
    with raised_as(DataError, f"{path} cannot be read", another_copy(path), Exception):
        if kind == INDEX:
            return _of_index(path)
        if kind == SAFE:
            return read_tensors(path, another_copy(path))
        return _of_arrays(path) if kind == ARRAYS else _of_pickle(path)


def _of_index(path: Path) -> Tensors:
    """The tensors of the files that an index lists, which lie in its folder and have the suffix of its name."""
    content: Any = read_json(path, another_copy(path))
    places = content.get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError("it lists no files: it has no weight_map")
    names = sorted(set(places.values()))
    for name in names:
        _check_beside(path, name)
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError("it lists files that differ only in upper and lower case")
    check_size(path, sum((path.parent / name).stat().st_size for name in names))
    found: Tensors = {}
    for name in names:
        for key, tensor in read_weights(path.parent / name).items():
            if key in found:
                raise DataError(f"{path.parent}: two files contain the tensor {key}", "the files of one network")
            found[key] = tensor
    if lost := [key for key in places if key not in found]:
        raise ValueError(f"it lists {counted(len(lost), 'tensor')} that no file contains: {some_of(lost, 3)}")
    return found


def _check_beside(index: Path, name: str) -> None:
    """Refuse a file in another folder: only a hub's own cache links to files elsewhere, in its `blobs`."""
    folder, kind = index.parent.resolve(), Path(index.name.removesuffix(INDEX)).suffix or SAFE
    file = folder / name
    if Path(name).name != name or "\\" in name or not name.endswith(kind):
        raise DataError(f"{index} lists '{name}', which is not a {kind} file beside it", "an index of its own folder")
    if not file.is_file():
        raise DataError(f"{index.parent / name} is missing, which {index.name} lists", "all files that it lists")
    blobs = [folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else []
    if file.resolve().parent not in (folder, *blobs):
        raise DataError(f"{index.parent / name} is a link out of its folder", "the file itself in its place")


def _of_arrays(path: Path) -> Tensors:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if len(entries) > MOST_TENSORS or len({entry.filename for entry in entries}) < len(entries):
        raise ValueError(f"it has {len(entries):,} arrays, at most {MOST_TENSORS:,} of different names are read")
    total = sum(entry.file_size for entry in entries)
    if total > PACKED * path.stat().st_size + SLACK:
        raise ValueError(f"it would unpack to {total:,} bytes, which weights do not")
    check_size(path, total)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: _tensor(arrays[name]) for name in arrays.files}


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def cache_dir() -> Path:
    """The cache of the tensors of pickles."""
    return user_cache() / "unpickled"


def _of_pickle(path: Path) -> Tensors:
    """The tensors of a pickle, by way of a safetensors file that a separate process makes once."""
    folder = cache_dir()
    cached = folder / f"{sha256_of(path)}{SAFE}"
    if cached.is_file():
        with contextlib.suppress(DataError):  # made again where it is damaged
            return read_tensors(cached, remove(cached))
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size
    check_size(path, 3 * size)
    with tempfile.TemporaryDirectory(dir=folder if os.access(folder, os.W_OK) else None) as own:  # else no cache
        made = Path(own).resolve() / f"tensors{SAFE}"
        # -P: the folder of that file, whose modules have the names of other libraries, is not searched for them
        command = [sys.executable, "-P", str(CONVERT), str(path.resolve()), str(made), str(4 * size + 2 * 2**30)]
        late = raised_as(DataError, f"{path} was not read in time", "a safetensors file", subprocess.TimeoutExpired)
        with late:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=own)
        if done.returncode or not made.is_file():
            why = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
            hint = "torch.save(network.state_dict(), file), or a safetensors file"
            if why.startswith(NAMES):
                hint = _without_classes(path)
            raise DataError(f"{path} is not a plain state dict ({why[:200]})", hint)
        found = read_tensors(made, remove(made))
        with contextlib.suppress(OSError):
            os.replace(made, cached)
    return found


def _without_classes(path: Path) -> str:
    """How a checkpoint that names classes becomes a state dict, as code to type."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        keys = [key for key in KEYS if content.find(b"X%c\0\0\0%b" % (len(key), key.encode())) >= 0]
    state = f"[{keys[0]!r}]" if keys else ".state_dict()"  # of a checkpoint, or of a whole network
    code = f"import torch; torch.save(torch.load({str(path)!r}, weights_only=False){state}, 'weights.pth')"
    return f"{code}  # runs the code in the file: only if you trust it"
