"""What verbs print: JSON for programs, tables and sentences for people."""

import json
import sys
from typing import Any

from rich.console import Console


def console() -> Console:
    """Where sentences for people go: stdout."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def warn(sentence: str) -> None:
    """A sentence on stderr, so that stdout stays clean."""
    print(sentence, file=sys.stderr)


def duration(seconds: float) -> str:
    """Seconds in words: 48 s, 4 min 10 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole >= 10 else f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def share(value: float, places: int = 2) -> str:
    """A share as a percentage."""
    return f"{100 * value:.{places}f} %"
