"""Files of tensors: safetensors whose header is held to limits first, with a checksum in it where vitrail wrote it."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.errors import DataError
from vitrail.runtime import free_memory

MOST_HEADER = 10 * 2**20  # bytes
MOST_TENSORS = 20_000
PART_OF_MEMORY = 0.5  # of what is free, for the tensors of a file
DAMAGED = (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)


def with_checksum(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file that carries the SHA-256 of its numbers, since the format itself has none.

    It is put into the header here: safetensors itself writes two entries of metadata in an order that changes from call
    to call, and the same tensors are to give the same bytes.
    """
    plain = safetensors.torch.save(tensors, metadata={"format": "pt"})
    start = 8 + int.from_bytes(plain[:8], "little")
    header = json.loads(plain[8:start])
    header["__metadata__"]["sha256"] = hashlib.sha256(memoryview(plain)[start:]).hexdigest()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + plain[start:]


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors by name: of all their numbers, shapes and types."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def seal_of(file: Path) -> str:
    """A hash of the header of a safetensors file: of names, shapes and, where vitrail wrote it, the checksum.

    `read_tensors` holds all numbers against that checksum, so files of vitrail with one seal have the same tensors.
    """
    with file.open("rb") as handle:
        length = handle.read(8)
        return hashlib.sha256(length + handle.read(int.from_bytes(length, "little"))).hexdigest()[:16]


def read_tensors(file: Path, hint: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, every byte checked where the file has a checksum.

    They are copies: what happens to the file later does not reach them.

    Args:
        file: The file.
        hint: What to try when it cannot be used.

    Raises:
        DataError: It is missing or damaged, or larger than memory allows.
    """
    try:
        (header, start), size = _header(file), file.stat().st_size
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        if (whole := start + max(ends, default=0)) != size:
            raise ValueError(f"by its header it has {whole:,} bytes, and there are {size:,}")
        numbers = sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        if numbers > 2 * size:  # the smallest kind of number has four bits
            raise ValueError(f"its shapes have {numbers:,} numbers, the file has {size:,} bytes")
        check_size(file, max(size, 4 * numbers))  # of fp32, which they become
        tensors = {name: mapped.clone() for name, mapped in safetensors.torch.load_file(file).items()}
        wanted = (header.get("__metadata__") or {}).get("sha256")  # a file of another program has none and passes
        if wanted is not None:
            with file.open("rb") as handle:
                handle.seek(8 + int.from_bytes(handle.read(8), "little"))
                if hashlib.file_digest(handle, "sha256").hexdigest() != wanted:
                    raise ValueError("its numbers do not have the checksum they were saved with")
    except DataError:
        raise
    except DAMAGED as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise DataError(f"{file} {what}", hint) from error
    return tensors


def is_finite(tensor: Tensor) -> bool:
    """Whether no number of floats is NaN or infinity: their extremes tell, in a tenth of the time of asking each."""
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
        problem = f"{path} asks for {size / 2**20:,.0f} MiB of memory, and {free / 2**20:,.0f} MiB are free"
        raise DataError(problem, "a machine with more memory, or a smaller network")


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header and where the numbers begin; read only where its length fits the file, else a ValueError."""
    size = file.stat().st_size
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if length > min(size - 8, MOST_HEADER):
            raise ValueError(f"its header would have {length:,} bytes, the file has {size:,}")
        header = json.loads(handle.read(length), object_pairs_hook=_unique)
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise ValueError(f"its header is no list of at most {MOST_TENSORS:,} tensors")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return found
