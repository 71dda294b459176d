"""Every file, dotted name and row of a table that the pages name in a sentence is there; code blocks are test_docs'."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.test_docs import FENCE, ROOT, resolves

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("benchmarks/*.md")),
    *sorted(ROOT.glob("tests/*/README.md")),
]
QUOTED = re.compile(r"`([^`\n]+)`")
NAMED = re.compile(r"([\w.-]+(?:/[\w.-]+)*(?:\.(?:py|md|toml)|/))(?:::(\w+))?")
DOTTED = re.compile(r"(?<![\w./-])vitrail(?:\.[A-Za-z_]\w*)+")
ROW = re.compile(r"`([A-Za-z_]\w*)` in `([\w/]+\.py)`")
PLACEHOLDER = "NAME"  # of a file that somebody will write
A_PERSONS = {"photos/", "train/", "val/", "test/", "predict.py"}  # who is told how to name them, or gets them


def sentences(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def top_names(file: Path) -> frozenset[str]:
    """What a Python file defines at its top: functions, classes, constants."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {ast.unparse(target) for target in targets}
    return frozenset(names)


def found(name: str, folder: Path) -> Path | None:
    """The file or folder of this name: beside the page, from the top of the repository, or in the package."""
    places = (folder / name, ROOT / name, ROOT / "src" / "vitrail" / name)
    return next((place for place in places if place.exists()), None)


def missing_paths(text: str, folder: Path) -> list[str]:
    """Files and folders in backquotes that are nowhere, and what stands behind `::` and not in them."""
    wrong = []
    for quoted in QUOTED.findall(text):
        named = NAMED.fullmatch(quoted)
        if named is None or named[1] in A_PERSONS or PLACEHOLDER in named[1]:
            continue
        file = found(named[1], folder)
        if file is None or (named[2] and named[2] not in top_names(file)):
            wrong.append(quoted)
    return wrong


def missing_names(text: str) -> list[str]:
    """Names such as `vitrail.nn.ViT` in backquotes that cannot be reached."""
    return [name for quoted in QUOTED.findall(text) for name in DOTTED.findall(quoted) if not resolves(name)]


def missing_rows(text: str, folder: Path) -> list[str]:
    """`NAME` in `file.py` where that file defines no such name."""
    wrong = []
    for name, path in ROW.findall(text):
        file = found(path, folder)
        if file is None or name not in top_names(file):
            wrong.append(f"{name} in {path}")
    return wrong


def test_what_the_pages_name_is_there() -> None:
    wrong = {}
    for page in PAGES:
        text, folder = sentences(page), page.parent
        here = [*missing_paths(text, folder), *missing_names(text), *missing_rows(text, folder)]
        if here:
            wrong[str(page.relative_to(ROOT))] = here
    assert wrong == {}


def test_enough_is_named_to_be_looked_at() -> None:
    text = "\n".join(map(sentences, PAGES))
    named = [match for quoted in QUOTED.findall(text) if (match := NAMED.fullmatch(quoted))]
    assert len({match[0] for match in named}) > 150
    assert len(set(DOTTED.findall(text))) > 15
    assert len(ROW.findall(text)) >= 4


def test_planted_names_are_found() -> None:
    text = (
        "`nn/vit.py` `nn/gone.py` `nn/` `gone/` `tests/test_paths.py::test_planted_names_are_found` `tasks/NAME.py` "
        "`tests/test_paths.py::test_gone` `vitrail.nn.ViT` `vitrail.nn.Gone(3)` `vitrail.gone.ViT` `a.b` `docs` "
        "`TASKS` in `tasks/choice.py`, `GONE` in `tasks/choice.py`"
    )
    assert missing_paths(text, ROOT / "docs") == ["nn/gone.py", "gone/", "tests/test_paths.py::test_gone"]
    assert missing_names(text) == ["vitrail.nn.Gone", "vitrail.gone.ViT"]
    assert missing_rows(text, ROOT) == ["GONE in tasks/choice.py"]
