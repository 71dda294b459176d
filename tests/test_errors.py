"""Errors tell what works when it is typed; the check of errors that other tests use can fail."""

import ast
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

import vitrail
from tests.commands import hint_faults
from tests.errors import must_raise
from tests.weights.redraw import redrawn
from vitrail.cli.main import main
from vitrail.data.readers.shards import LIMIT
from vitrail.errors import DataError, Hint, UsageError, all_of, byte_size, counted

SOURCE = Path(__file__).parent.parent / "src" / "vitrail"
SMALL: Any = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32}
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


ENGLISH = {  # words that begin texts of the library, and are also names of programs
    *("as", "column", "cut", "file", "find", "head", "id", "init", "join", "less", "look", "make", "more", "patch"),
    *("GET", "HEAD", "POST", "size", "split", "strings", "sum", "test", "time", "top", "true", "which", "write", "yes"),
}
WITHOUT_FILE = {"export", "ulimit", "hf", "pip", "ray", "torchrun", "vitrail"}  # programs, here or elsewhere


def texts(text: str) -> Iterator[str]:
    """The literals of a file that are more than a word, with X for what is known only when they are made."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(words)):
                yield words
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
            case ast.List(elts=[ast.Constant(value=str(program)), _, *_]):  # of the words of a command
                yield f"{program} X"


def is_for_a_shell(text: str) -> bool:
    """Whether it begins with a program of this machine, or sets a variable."""
    first = re.split("[ ,]", text, maxsplit=1)[0]
    variable = re.match("[A-Z]{3,}[A-Z_]*=", text) is not None
    return variable or (text != first and first not in ENGLISH and (first in WITHOUT_FILE or bool(shutil.which(first))))


def test_what_a_shell_takes_says_so_in_python_or_is_python_there() -> None:
    """One rule for all texts of errors; the command line prints them as they are."""
    files = (path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    found = {each for file in files for each in texts(file) if "\n" not in each and is_for_a_shell(each)}
    by_hand = {"ls X", "sed X", "rm X"}  # which have a form in Python of their own
    assert by_hand < found
    assert len(found) > 60
    for text in found - by_hand:
        error = UsageError("a", text)
        shown, *variable = re.split("VITRAIL_", error.hint.text, maxsplit=1)
        assert str(error.hint) == f"in a shell: {text}" or (variable and shown == "export "), text
        assert error.hint.text == text
        assert hint_faults(f"try: {error.hint}") == hint_faults(f"try: {text}")
    for plain in ("vitrail.load('x')", "find the file", "Hf download", "x=1, or export it", "hf:a/b", "a curl -I"):
        assert str(UsageError("a", plain).hint) == plain
        assert not is_for_a_shell(plain)
    environment: dict[str, str] = {}
    exec(str(Hint(text="export VITRAIL_SHARD_CACHE=20  # gigabytes")), {"os": SimpleNamespace(environ=environment)})
    assert environment == {LIMIT: "20"}
    assert str(Hint({"a": 1}, text="pip install x")) == "a=1, pip install x"


ASKS = {"search", "match", "fullmatch", "sub", "split", "findall", "finditer", "partition", "rpartition", "replace"} | {
    *("startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "count")
}


def parsed_messages(text: str) -> Iterator[str]:
    """Where a file asks what the words of an error are, to decide something by them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKS:
            asked = node.args if ast.unparse(node.func.value) == "re" else [node.func.value]
            asked = [each for each in asked if not isinstance(each, ast.JoinedStr)]
            said = any(re.search(r"\.(hint|problem)\b(?!\.)", ast.unparse(each)) for each in asked)
            if said and any(isinstance(each, ast.Constant) for each in node.args):
                yield ast.unparse(node)


def test_no_message_is_parsed_by_its_english() -> None:
    found = {path.name: list(parsed_messages(path.read_text(encoding="utf-8"))) for path in SOURCE.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == {}
    for planted in ("error.hint.partition('; on ')", "re.match('--', str(error.hint))", "e.problem.replace('an', n)"):
        assert list(parsed_messages(planted)) != [], planted
    assert list(parsed_messages("error.problem.removeprefix(f'{name}: ')")) == []


def test_two_lines_pass_and_are_there_behind_the_block() -> None:
    with must_raise(DataError, "no .* folder") as caught:
        raise DataError("no such folder", "another one")
    assert str(caught.value.hint) == "another one"


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
    assert [all_of("abc"[:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_each_caller_gets_the_words_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Where Python and the command line say a thing otherwise; also behind a worker process."""
    bare = tmp_path / "bare.safetensors"
    save_file(redrawn(timm.create_model("vit_tiny_patch16_224", **SMALL)).state_dict(), bare)
    assume, image = {"heads": 3}, tmp_path / "a.png"
    Image.new("RGB", (48, 48)).save(image)
    calls: list[tuple[dict[str, Any], list[str], str, str]] = [
        ({}, [], "assume=", "--assume"),
        ({"assume": assume}, ["--assume", "heads=3"], "assume=", "--mean"),
        ({"assume": {**assume, "mean": 0.5}}, ["--assume", "heads=3", "--mean", "0.5"], "assume=", "--std"),
        (
            {"assume": {**assume, "mean": 0.5, "std": 0.5}, "image_size": 40},
            ["--assume", "heads=3", "--mean", "0.5", "--std", "0.5", "--image-size", "40"],
            "image_size=(48, 48)",
            "--image-size 48",
        ),
    ]
    for said, words, python, typed in calls:
        with pytest.raises(UsageError) as caught:
            vitrail.load(bare, **said)
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            hint = str(error).partition("\ntry: ")[2]
            assert hint.startswith(python)
            assert "--" not in hint
        with pytest.raises(SystemExit):
            main(["predict", str(bare), str(image), *words])
        hint = capsys.readouterr().err.partition("\ntry: ")[2]
        assert typed in hint
        assert python not in hint


def test_what_a_stranger_wrote_stays_in_its_line() -> None:
    error = DataError("no such name: a\nb\x1b[2J\u202e\udcff é", "one\r\nof these" + "x" * 10_000)
    assert str(error).count("\n") == 1
    assert error.problem == r"no such name: a\nb\x1b[2J\u202e\udcff é"
    assert str(error.hint).startswith(r"one\r\nof these")
    assert len(str(error.hint)) < 3000


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (812, "812 bytes"),
        (999.6, "1 kB"),
        (307_200, "307 kB"),
        (999_600_000, "1 GB"),
        (1_236_000_000, "1.24 GB"),
        (2**62, "4.61 EB"),
    ],
)
def test_an_amount_of_bytes_has_the_unit_of_its_size(number: float, shown: str) -> None:
    assert byte_size(number) == shown
