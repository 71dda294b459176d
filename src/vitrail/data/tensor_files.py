"""Files of tensors that say when a byte of them has changed: safetensors with a checksum in its header."""

import hashlib
import json
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.errors import DataError


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


def read_tensors(file: Path, hint: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, every byte checked where the file has a checksum.

    Args:
        file: The file.
        hint: What to try when it cannot be used.

    Raises:
        DataError: It is missing or damaged.
    """
    try:
        tensors = safetensors.torch.load_file(file)
        with open(file, "rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
            wanted = header.get("__metadata__", {}).get("sha256")  # a file of another program has none and passes
            if wanted is not None and hashlib.file_digest(handle, "sha256").hexdigest() != wanted:
                raise ValueError("its numbers do not have the checksum they were saved with")
    except (OSError, ValueError, SafetensorError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise DataError(f"{file} {what}", hint) from error
    return tensors
