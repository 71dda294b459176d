"""What every error of vitrail must look like: two lines, what is wrong and what to try; and whether that works."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.commands import hint_faults
from vitrail.cli.main import VERBS
from vitrail.cli.parse import command_of, parse
from vitrail.errors import UsageError, VitrailError


def figures(text: str) -> list[str]:
    """The numbers in a text, as they stand there but for the commas between thousands."""
    return re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", text))


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


def command_in(error: VitrailError, typed: str) -> list[str]:
    """The words behind `vitrail` of the command that an error leads to: it is taken, or has another problem.

    Args:
        error: Of the command that was typed.
        typed: The words of that behind `vitrail`.
    """
    verb, *words = shlex.split(typed)
    text = command_of(error.hint, VERBS[verb].options, verb, words)
    program, *again = shlex.split(text, comments=True)
    assert program == "vitrail", text
    assert again != [verb, *words]
    another = ""
    try:
        parse(VERBS[again[0]].options, again[0], again[1:])
    except UsageError as refused:
        another = refused.problem
    assert another != error.problem, text
    return again
