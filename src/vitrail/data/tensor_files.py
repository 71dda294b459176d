"""Files of tensors: safetensors, held to limits before they are read, with a checksum where vitrail wrote them."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import DataError, Hint, byte_size
from vitrail.io import writing
from vitrail.runtime import free_memory

MOST_TENSORS = 20_000
PART_OF_MEMORY = 0.5  # of what is free, for the tensors of a file
TYPES = {  # narrow ones first, as safetensors orders them
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
DAMAGED = (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], checksum: bool = True, metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write a safetensors file whole or leave the former one, tensor by tensor: no second copy of them in memory.

    safetensors itself makes that copy, and where there is no memory for it aborts the process.

    Args:
        file: That is written.
        tensors: By name, on any device.
        checksum: Whether the file carries the SHA-256 of its numbers, since the format itself has none.
        metadata: More texts for its header.

    Returns:
        `bytes` and `sha256` of the whole file.

    Raises:
        OSError: It cannot be written; names it.
    """
    digest, length = hashlib.sha256(), 0
    with writing(file, sum(tensor.nbytes for tensor in tensors.values())) as handle:
        for piece in _pieces(tensors, checksum, metadata or {}):
            digest.update(piece)
            length += len(piece)
            handle.write(piece)
    return {"bytes": length, "sha256": digest.hexdigest()}


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The same as one value in memory, with the checksum; equal tensors have equal bytes."""
    return b"".join(_pieces(tensors, checksum=True, metadata={}))


def _pieces(tensors: Mapping[str, Tensor], checksum: bool, metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A safetensors file piece by piece, the bytes that safetensors writes: wide types first, then by name."""
    order = sorted(tensors, key=lambda name: (-list(TYPES).index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    if checksum:
        numbers = hashlib.sha256()
        for name in order:
            numbers.update(_buffer(tensors[name]))
        header["__metadata__"] = {**metadata, "format": "pt", "sha256": numbers.hexdigest()}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        kind, shape = TYPES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield _buffer(tensors[name])


def _buffer(tensor: Tensor) -> memoryview:
    """The numbers of a tensor in their order; the same memory where it lies so on the CPU."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors by name: of all their numbers, shapes and types."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(_buffer(tensor))
    return digest.hexdigest()[:16]


def seal_of(file: Path) -> str:
    """A hash of the header of a safetensors file: of names, shapes and, where vitrail wrote it, the checksum.

    `read_tensors` holds all numbers against that checksum, so files of vitrail with one seal have the same tensors.
    """
    with file.open("rb") as handle:
        length = handle.read(8)
        return hashlib.sha256(length + handle.read(int.from_bytes(length, "little"))).hexdigest()[:16]


def read_tensors(file: Path, hint: str | Hint) -> dict[str, Tensor]:
    """The tensors of a safetensors file, every byte checked where the file has a checksum.

    They are copies: what happens to the file later does not reach them.

    Args:
        file: The file.
        hint: What to try when it cannot be used.

    Raises:
        DataError: It is missing or damaged, or larger than memory allows.
    """
    try:
        size = file.stat().st_size
        with safe_open(file, "pt") as opened:  # which holds the header against the bytes of the file
            names, metadata = opened.keys(), opened.metadata() or {}
            if len(names) > MOST_TENSORS:
                raise ValueError(f"it has {len(names):,} tensors, more than {MOST_TENSORS:,}")
            numbers = sum(math.prod(opened.get_slice(name).get_shape()) for name in names)
        check_size(file, max(size, 4 * numbers))  # of fp32, which they become
        tensors = {name: mapped.clone() for name, mapped in safetensors.torch.load_file(file).items()}
        wanted = metadata.get("sha256")  # a file of another program has none and passes
        if wanted is not None:
            with file.open("rb") as handle:
                handle.seek(8 + int.from_bytes(handle.read(8), "little"))
                if hashlib.file_digest(handle, "sha256").hexdigest() != wanted:
                    raise ValueError("its checksum is wrong")
    except DataError:
        raise
    except DAMAGED as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged or incomplete ({error})"
        raise DataError(f"{file} {what}", hint) from error
    return tensors


def is_finite(tensor: Tensor) -> bool:
    """Whether no number of floats is NaN or infinity: by their extremes, in a tenth of the time of a look at each."""
    return not tensor.numel() or bool(torch.stack(tensor.aminmax()).isfinite().all())


def check_size(path: Path, size: int) -> None:
    """Refuse what memory has no room for, before it is taken.

    Args:
        path: The file, for the message.
        size: Bytes that its tensors take.

    Raises:
        DataError: Says both numbers.
    """
    free = free_memory(torch.device("cpu"))
    if size > PART_OF_MEMORY * free:
        problem = f"{path} needs {byte_size(size)} of memory, but {byte_size(free)} are free"
        raise DataError(problem, "a machine with more memory, or a smaller network")
