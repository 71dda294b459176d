"""Every test shows what it asserts, in its own lines or by the name of the helper that asserts for it."""

import ast
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
