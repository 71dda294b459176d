"""Errors tell what works when it is typed; the check of errors that other tests use can fail."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import hint_faults
from tests.errors import must_raise
from vitrail.errors import DataError, UsageError, counted

SOURCE = Path(__file__).parent.parent / "src" / "vitrail"
KINDS = ("UsageError", "DataError", "RunError")


def hints(text: str) -> Iterator[str]:
    """What the errors of a file tell to try, with X in the place of what is known only when they are raised."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in KINDS and len(node.args) > 1):
            continue
        match node.args[1]:
            case ast.Constant(value=str(hint)):
                yield hint
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)


def test_every_command_in_a_hint_exists_with_its_flags() -> None:
    found = [hint for path in SOURCE.rglob("*.py") for hint in hints(path.read_text(encoding="utf-8"))]
    assert len(found) > 100
    assert [(hint, faults) for hint in found if "vitrail X" not in hint and (faults := hint_faults(hint))] == []
    planted = "raise UsageError('a', f'vitrail train {x} --epoch 3')\nraise DataError(p, 'vitrail tarin')"
    assert [hint_faults(hint) for hint in hints(planted)] == [["--epoch"], ["vitrail tarin"]]


def test_two_lines_pass_and_are_there_behind_the_block() -> None:
    with must_raise(DataError, "no .* folder") as caught:
        raise DataError("no such folder", "another one")
    assert caught.value.hint == "another one"


def test_another_error_is_noticed() -> None:
    for error in (
        DataError("no such file", "another one"),
        DataError("no such folder", "vitrail tarin digits"),
        DataError("no such folder", "--epoch 3"),
        DataError("no such folder", ""),
    ):
        with pytest.raises(AssertionError), must_raise(DataError, "folder"):
            raise error


def test_an_error_of_another_kind_and_none_at_all_are_noticed() -> None:
    with pytest.raises(UsageError), must_raise(DataError, "no such folder"):
        raise UsageError("no such folder", "another one")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), must_raise(DataError, "no such folder"):
        pass


def test_numbers_in_words() -> None:
    assert counted(1, "image") == "1 image"
    assert counted(1258, "image") == "1,258 images"
    assert counted(2, "class", "classes") == "2 classes"


def test_what_a_stranger_wrote_stays_in_its_line() -> None:
    error = DataError("no such name: a\nb\x1b[2J\u202e\udcff é", "one\r\nof these" + "x" * 10_000)
    assert str(error).count("\n") == 1
    assert error.problem == r"no such name: a\nb\x1b[2J\u202e\udcff é"
    assert error.hint.startswith(r"one\r\nof these")
    assert len(error.hint) < 3000
