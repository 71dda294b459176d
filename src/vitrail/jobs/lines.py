"""Parts of lines: one JSON object for each image, and a last line by which one knows that all of it is there."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.io import to_json


@dataclass(frozen=True)
class Lines:
    """Objects, a line each.

    Attributes:
        ending: Of its files.
    """

    ending: str = ".jsonl"

    def to_bytes(self, part: Sequence[Any]) -> bytes:
        """The lines and their seal."""
        lines = "".join(to_json(each, indent=None) for each in part).encode("utf-8", "surrogateescape")
        return lines + _seal(lines)

    def check(self, content: bytes) -> None:
        """Hold the lines against their seal.

        Raises:
            ValueError: They are not those that were written.
        """
        lines, seal = _divided(content)
        if seal != _seal(lines):
            raise ValueError("no whole part")


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a part that is whole."""
    lines, _ = _divided(file.read_bytes())
    for line in lines.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        yield json.loads(line)


def _divided(content: bytes) -> tuple[bytes, bytes]:
    """The lines, and the last of them, which seals the others."""
    cut = content.rstrip(b"\n").rfind(b"\n") + 1
    return content[:cut], content[cut:]


def _seal(lines: bytes) -> bytes:
    return to_json({"blake2b": hashlib.blake2b(lines, digest_size=16).hexdigest()}, indent=None).encode()
