"""What every error of vitrail must look like: two lines, what is wrong and what to try."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.commands import hint_faults
from vitrail.errors import VitrailError


@contextmanager
def must_raise(kind: type[VitrailError], named: str | None = None) -> Iterator[pytest.ExceptionInfo[VitrailError]]:
    """The block must raise an error of this kind, in two lines, with a hint that works when it is typed.

    Args:
        kind: The class, which decides the exit code.
        named: A pattern of what the error must name: the file, key or value that was given. Not of its wording.
    """
    with pytest.raises(kind, match=named) as caught:
        yield caught
    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert lines[1].startswith("try: ")
    assert len(lines[1]) > len("try: ")
    assert hint_faults(lines[1]) == [], lines[1]
