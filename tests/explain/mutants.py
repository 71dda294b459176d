"""A copy of `vitrail.explain`, or of a part of it, with a fault planted in its text, to see whether tests would notice.

The copy is a package of its own beside the original; shapes are not checked in it.
"""

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import vitrail.explain

_numbers = itertools.count()


def make_copy(
    folder: Path, file: str = "__init__.py", old: str = "", new: str = "", of: ModuleType = vitrail.explain
) -> ModuleType:
    """Import a copy of a package in which `old`, which must stand exactly once in `file`, is replaced by `new`.

    `file` may stand in a folder of the package: "inside/sinks.py".
    """
    assert of.__file__ is not None
    name = f"planted_{next(_numbers)}"
    package, original = folder / name, Path(of.__file__).parent
    for source in original.rglob("*.py"):
        text, place = source.read_text(encoding="utf-8"), source.relative_to(original)
        if place.as_posix() == file and old:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}: adapt the mutant"
            text = text.replace(old, new)
        (package / place).parent.mkdir(parents=True, exist_ok=True)
        (package / place).write_text(text.replace(of.__name__, name), encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def unchecked(folder: Path, file: str, name: str = "") -> Callable:
    """A function of a copy without a fault: it meets arguments of the wrong type as it would in use."""
    return getattr(importlib.import_module(f"{make_copy(folder).__name__}.{file}"), name or file.rpartition(".")[2])


def is_red(check: Callable[..., None], *arguments: Any) -> bool:
    """Whether an assertion of a check fails, with a package or other arguments."""
    try:
        check(*arguments)
    except AssertionError:
        return True
    return False
