"""What every error of vitrail must look like: two lines, what is wrong and what to try."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitrail.errors import VitrailError


@contextmanager
def must_raise(kind: type[VitrailError], words: str | None = None) -> Iterator[pytest.ExceptionInfo[VitrailError]]:
    """The block must raise an error of this kind, of two lines that match these words; behind it the error is there."""
    with pytest.raises(kind, match=words) as caught:
        yield caught
    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert lines[1].startswith("try: ")
    assert len(lines[1]) > len("try: ")
