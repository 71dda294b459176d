"""What goes wrong, said in two lines: what was given and what was wanted, then what to try.

Every error that a person can cause is one of these. The command line prints it without a traceback and leaves with
its exit code; in Python it is a `ValueError` whose text holds both lines. This file imports nothing, so that any part
of the library may raise them.
"""

import difflib
from collections.abc import Iterable

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


class VitrailError(ValueError):
    """A problem with a remedy.

    Args:
        problem: One line: what was given and what was wanted.
        hint: One line: the next thing to try; printed after `try: `.
    """

    exit_code = 1

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}\ntry: {hint}")
        self.problem = problem
        self.hint = hint

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Pickle by the two lines, so that a worker process can hand the error to its parent."""
        return type(self), (self.problem, self.hint)


class RunError(VitrailError):
    """The run itself failed (exit code 1)."""


class UsageError(VitrailError):
    """A wrong option, size, recipe or configuration (exit code 2)."""

    exit_code = 2


class DataError(VitrailError):
    """Bad data or bad weights (exit code 3)."""

    exit_code = 3


def counted(number: int, one: str, many: str = "") -> str:
    """1 picture, 2 pictures, 1,258 pictures: for messages."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, or None when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return close[0] if close else None
