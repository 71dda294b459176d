"""What the pages say is there: files, links, make targets, commands with their flags, names in Python blocks."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted({ROOT / "README.md", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")})
TOP = r"(?:src|tests|docs|benchmarks|constraints|lessons|recipes|\.ci)"
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
NAMED = re.compile(rf"`({TOP}/[\w./-]*|[\w-]+\.(?:md|toml|txt)|Makefile|LICENSE)`")
MADE_BY_A_RUN = {"command.txt", "log.txt"}  # named on pages, written into a run folder


def blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(text) if language in languages]


def anchors(text: str) -> set[str]:
    """The names under which the headings of a page can be linked."""
    headings = re.findall(r"^#+ +(.+?)\s*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, page: Path) -> list[str]:
    """Local links whose file or heading does not exist; addresses of other sites are not followed."""
    wrong = []
    for pair in LINK.findall(FENCE.sub("", text)):
        link = pair[0] or pair[1]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        if not file.exists():
            wrong.append(link)
        elif anchor and file.suffix == ".md":
            content = text if file == page else file.read_text()
            if anchor not in anchors(content):
                wrong.append(link)
    return wrong


def missing_files(text: str, page: Path) -> list[str]:
    """Names of files of this repository, in backquotes, that are nowhere."""
    named = [name for name in NAMED.findall(FENCE.sub("", text)) if name not in MADE_BY_A_RUN]
    return [name for name in named if not (ROOT / name).exists() and not (page.parent / name).exists()]


def python_faults(source: str) -> list[str]:
    """Names of vitrail used in a Python block that do not exist. The block is parsed, not run."""
    tree = ast.parse(source)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wrong += [alias.name for alias in node.names if is_ours(alias.name) and not resolves(alias.name)]
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            wrong += [name for name in names if not resolves(name)]
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"vitrail(\.\w+)+", name) and not resolves(name):
                wrong.append(name)
    return wrong


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "vitrail"


def resolves(name: str) -> bool:
    """Whether a dotted name can be reached by imports and attributes."""
    first, *rest = name.split(".")
    found: object = importlib.import_module(first)
    path = first
    for part in rest:
        path += f".{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                return False
            try:
                found = importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
                return False
    return True


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command in a console block; lines that begin with nothing we know are taken as output."""
    for line in block.replace("\\\n", " ").splitlines():
        text = re.sub(r"^\s*\$ ", "", line).strip()
        if re.match(r"(\.venv/bin/)?vitrail\b|make\b", text):
            words = shlex.split(text, comments=True)
            cut = next((i for i, word in enumerate(words) if word in {"|", "&&", ";", ">"}), len(words))
            yield words[:cut]


@cache
def help_of(verb: str) -> str | None:
    """What `vitrail VERB --help` prints, None when there is no such verb."""
    command = [sys.executable, "-c", "import sys; from vitrail.cli import main; sys.exit(main())", verb, "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return answer.stdout if answer.returncode == 0 else None


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def command_faults(words: list[str], describe: Callable[[str], str | None] = help_of) -> list[str]:
    """What a command asks for that does not exist: a make target, a verb, a flag."""
    program, *rest = words
    if program == "make":
        asked = [word for word in rest if "=" not in word and not word.startswith("-")]
        return [f"make {target}" for target in asked if target not in make_targets()]
    if not rest or rest[0].startswith("-"):
        return []
    told = describe(rest[0])
    if told is None:
        return [f"vitrail {rest[0]}"]
    flags = [word.split("=")[0] for word in rest if word.startswith("--")]
    return [flag for flag in flags if not re.search(rf"{re.escape(flag)}(?![\w-])", told)]


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page.read_text(), page) == []


def test_named_files_exist(page: Path) -> None:
    assert missing_files(page.read_text(), page) == []


def test_python_blocks_use_names_that_exist(page: Path) -> None:
    assert [name for block in blocks(page.read_text(), "python", "py") for name in python_faults(block)] == []


def test_commands_exist_with_their_flags(page: Path) -> None:
    shown = blocks(page.read_text(), "console", "bash", "sh", "shell")
    assert [fault for block in shown for words in commands(block) for fault in command_faults(words)] == []


def test_readme_shows_the_two_commands() -> None:
    shown = [
        words
        for block in blocks((ROOT / "README.md").read_text(), "console", "bash", "sh")
        for words in commands(block)
    ]
    assert ["make", "demo"] in shown
    assert ["make", "test"] in shown


def test_planted_broken_links_are_found() -> None:
    text = '# One heading\n[a](gone.md) [b](#one-heading) [c](#no) [d](Makefile) [e](https://x.org)\n<img src="no.png">'
    assert broken_links(text, ROOT / "CHANGELOG.md") == ["gone.md", "#no", "no.png"]


def test_planted_missing_files_are_found() -> None:
    text = "`src/vitrail/errors.py` `src/vitrail/gone.py` `Makefile` `GONE.md` `log.txt`\n```\n`tests/gone.py`\n```\n"
    assert missing_files(text, ROOT / "CHANGELOG.md") == ["src/vitrail/gone.py", "GONE.md"]


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import vitrail.errors\nvitrail.errors.DataError", []),
        ("from vitrail.errors import DataError, Absent", ["vitrail.errors.Absent"]),
        ("import vitrail.absent", ["vitrail.absent"]),
        ("import vitrail\nvitrail.errors.absent('x')", ["vitrail.errors.absent"]),
        ("import torch\ntorch.absent", []),
    ],
)
def test_planted_python_names_are_found(source: str, wrong: list[str]) -> None:
    assert python_faults(source) == wrong


def test_planted_python_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        python_faults("model = vitrail.load(")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("make demo", []),
        ("make test WORKERS=4", []),
        ("make tea", ["make tea"]),
        ("vitrail --help", []),
        ("$ vitrail train digits --out runs/a  # a note", []),
        ("vitrail train digits \\\n  --epoch=3 | tee log --x", ["--epoch"]),
        ("vitrail tarin digits", ["vitrail tarin"]),
        ("accuracy 97 %", []),
    ],
)
def test_planted_commands_are_found(line: str, wrong: list[str]) -> None:
    def describe(verb: str) -> str | None:
        return {"train": "usage: --out PATH, --epochs INT"}.get(verb)

    assert [fault for words in commands(line) for fault in command_faults(words, describe)] == wrong


RUN = re.compile(r"^```python\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)  # not ```python no-run: needs a run folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    source = "\n".join(RUN.findall(page.read_text()))
    if not source:
        return
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_block_that_fails_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nimport vitrail\nvitrail.nothing\n```\n")
    with pytest.raises(AssertionError, match="vitrail has no 'nothing'"):
        test_python_blocks_run(page, tmp_path)


@pytest.mark.parametrize("name", ["README.md", "benchmarks/README.md", "benchmarks/LOG.md"])
def test_no_figure_is_left_open(name: str) -> None:
    """Figures that are still to be measured stand as @NAME@ while a page is written."""
    assert not re.findall(r"@[A-Z]+@", (ROOT / name).read_text(encoding="utf-8"))
