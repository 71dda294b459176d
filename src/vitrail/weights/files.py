"""Files of weights from strangers become tensors by name, and nothing else of them reaches this process.

    .safetensors              read as it is, its header held to limits first
    .npz                      numpy, without pickles
    .pth .pt .bin .ckpt       pickles: a process of its own reads them with `weights_only=True` and limits of memory and
                              time, and writes safetensors, which are kept in the user's cache
    *.index.json              several files of one network, all in the index's folder

A file says how large its tensors are before memory is taken for them.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.tensor_files import read_tensors
from vitrail.errors import DataError, some_of
from vitrail.io import read_json, user_cache
from vitrail.runtime import free_memory
from vitrail.weights.family import Tensors

SAFE, ARRAYS, PICKLES, INDEX = ".safetensors", ".npz", (".pth", ".pt", ".bin", ".ckpt"), ".index.json"
HINT = "another copy of the file"
MOST_HEADER = 10 * 2**20  # bytes
MOST_TENSORS = 20_000
PART_OF_MEMORY = 0.5  # of what is free, for the tensors of a file
SECONDS = 300  # for a pickle
CONVERT = Path(__file__).with_name("unpickle.py")


def read_weights(path: Path) -> Tensors:
    """The tensors of a file, or of all files that an index names.

    Args:
        path: A file of weights, by its suffix.

    Raises:
        DataError: If it is missing, damaged, too large or holds anything but tensors by name.
    """
    if not path.is_file():
        raise DataError(f"there is no file of weights {path}", "the path of a .safetensors, .npz or .pth file")
    if path.name.endswith(INDEX):
        return _of_index(path)
    if path.suffix == SAFE:
        check_header(path)
        return read_tensors(path, HINT)
    if path.suffix == ARRAYS:
        return _of_arrays(path)
    if path.suffix in PICKLES:
        return read_tensors(unpickled(path), HINT)
    known = ", ".join((SAFE, ARRAYS, *PICKLES, INDEX))
    raise DataError(f"{path} is no file of weights by its name", f"a file that ends in one of {known}")


def check_header(path: Path) -> None:
    """Hold the header of a safetensors file to limits, before anything is read.

    Raises:
        DataError: If it is longer than the file or than any header may be, names too many tensors, or more bytes than
            memory has for them.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MOST_HEADER):
            raise DataError(f"{path} is damaged: its header would have {length:,} bytes of {size:,}", HINT)
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is damaged: its header is no JSON", HINT) from error
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise DataError(f"{path} is damaged: its header is no list of at most {MOST_TENSORS:,} tensors", HINT)
    check_size(path, size)


def check_size(path: Path, size: int) -> None:
    """Refuse tensors that memory has no room for.

    Args:
        path: For the message.
        size: Bytes that the tensors take.

    Raises:
        DataError: Says both numbers.
    """
    free = free_memory(torch.device("cpu"))
    if size > PART_OF_MEMORY * free:
        problem = f"{path} holds {size / 2**20:,.0f} MiB of tensors, and {free / 2**20:,.0f} MiB of memory are free"
        raise DataError(problem, "a machine with more memory, or a smaller network")


def _of_index(path: Path) -> Tensors:
    """The tensors of the files that an index names, which lie in its folder."""
    content: Any = read_json(path, HINT)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, Mapping) or not all(isinstance(name, str) for name in places.values()):
        raise DataError(f"{path} names no files: it has no weight_map", HINT)
    found: Tensors = {}
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or name.endswith(INDEX) or name in (".", ".."):
            raise DataError(f"{path} names '{name}', which is no file beside it", "an index of files in its own folder")
        if not (path.parent / name).is_file():
            raise DataError(f"{path.parent / name} is missing, which {path.name} names", f"all {len(names)} files")
        for key, tensor in read_weights(path.parent / name).items():
            if key in found:
                raise DataError(f"{path.parent}: two files hold the tensor {key}", "the files of one network")
            found[key] = tensor
    lost = [key for key in places if key not in found]
    if lost:
        raise DataError(f"{path} names {len(lost)} tensors that no file holds: {some_of(lost, 3)}", HINT)
    return found


def _of_arrays(path: Path) -> Tensors:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if len(entries) > MOST_TENSORS:
            raise DataError(f"{path} has {len(entries):,} arrays, at most {MOST_TENSORS:,} are read", HINT)
        check_size(path, sum(entry.file_size for entry in entries))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays.files}
    except (OSError, ValueError, TypeError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as arrays ({type(error).__name__}: {error})"[:400], HINT) from error


def unpickled(path: Path) -> Path:
    """A safetensors file with the tensors of a pickle, made once in a process of its own.

    Raises:
        DataError: If the pickle holds anything but tensors by name, or the process fails or takes too long.
    """
    with path.open("rb") as file:
        known = hashlib.file_digest(file, "sha256").hexdigest()
    folder = user_cache() / "unpickled"
    kept = folder / f"{known}.safetensors"
    if kept.is_file():
        return kept
    size = path.stat().st_size
    check_size(path, 3 * size)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        made = Path(own) / "tensors.safetensors"
        command = [sys.executable, "-I", str(CONVERT), str(path), str(made), str(4 * size + 2 * 2**30)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=own)
        except subprocess.TimeoutExpired as error:
            raise DataError(f"{path} was not read within {SECONDS} s", "a safetensors file") from error
        if done.returncode or not made.is_file():
            said = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
            hint = "torch.save(network.state_dict(), file), or a safetensors file"
            raise DataError(f"{path} is not a plain state dict ({said[:200]})", hint)
        os.replace(made, kept)
    return kept
