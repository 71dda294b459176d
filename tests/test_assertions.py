"""Every test shows what it asserts, by its own lines or by the name of a helper; and no error is known by a phrase."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))
SAYS_SO = ("assert_", "check", "must_", "raises", "warns")
SAYS_SO_TOO = {"Structure"}  # a page that is read back: an element that is never closed is an AssertionError


def asserts(node: ast.AST) -> bool:
    """Whether a statement or an expression asserts, or calls what says by its name that it does."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2].lstrip("_")
        return name.startswith(SAYS_SO) or name in SAYS_SO_TOO
    return isinstance(node, ast.Assert)


def silent(text: str) -> Iterator[str]:
    """The tests of a file that show no assertion."""
    for node in ast.walk(ast.parse(text)):
        is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        if is_test and not any(asserts(inner) for line in node.body for inner in ast.walk(line)):
            yield node.name


def phrases(text: str) -> Iterator[str]:
    """The patterns of error messages in a file that hold words in a row: a message may be worded anew at any time."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            expected = [each.value for each in node.keywords if each.arg in ("match", "named")]
            expected += node.args[1:2] if ast.unparse(node.func).endswith("must_raise") else []
            for part in (part for each in expected for part in ast.walk(each)):
                if isinstance(part, ast.Constant) and re.search("[a-z]{2,} [a-z]{2,}", str(part.value)):
                    yield str(part.value)


def test_no_error_is_known_by_its_wording() -> None:
    found = {str(path.relative_to(TESTS)): list(phrases(path.read_text(encoding="utf-8"))) for path in FILES}
    planted = found.pop("test_errors.py") + found.pop("test_assertions.py")
    assert {path: patterns for path, patterns in found.items() if patterns} == {}
    assert "no such folder" in planted
    assert list(phrases("with pytest.raises(OSError, match=f'{file} is damaged'): pass")) == [" is damaged"]
    assert list(phrases("with must_raise(DataError, r'config\\.json .* 3'): pass")) == []


def test_every_test_shows_what_it_asserts() -> None:
    assert len(FILES) > 100
    found = {str(path.relative_to(TESTS)): list(silent(path.read_text(encoding="utf-8"))) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_test_without_an_assertion_is_found() -> None:
    for text in (
        "def test_it(): run()",
        "async def test_it(): await run()",
        "def test_it():\n    with owned(folder):\n        pass",
        "def test_it():\n    refused(lambda: load(folder), 'no model')",
        "@pytest.mark.parametrize('path', assert_sorted(files))\ndef test_it(path): run(path)",
        "class TestIt:\n    def test_it(self): self.run()",
        "def test_it(): print('assert')",
    ):
        assert list(silent(text)) == ["test_it"], text


def test_one_with_an_assertion_is_not() -> None:
    for text in (
        "def test_it():\n    for x in y:\n        assert x",
        "def test_it():\n    with pytest.raises(ValueError), owned(folder):\n        run()",
        "def test_it():\n    with must_raise(DataError, 'model'):\n        load(folder)",
        "def test_it(): np.testing.assert_allclose(one, other)",
        "def test_it(): checks.check_held_out(root)",
        "def helper(): run()",
    ):
        assert list(silent(text)) == [], text
