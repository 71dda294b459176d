"""What the pages say is there: files, links, make targets, commands with their flags, names in Python blocks."""

import ast
import importlib
import json
import re
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tests import shared_runs as runs
from tests.cli.command import call, must_be_understood
from tests.commands import command_faults, commands
from vitrail.cli.main import VERBS
from vitrail.explain.verdict import Verdict

ROOT = Path(__file__).parent.parent
PAGES = sorted({ROOT / "README.md", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")})
TOP = r"(?:src|tests|docs|benchmarks|constraints|lessons|recipes|\.ci)"
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
NAMED = re.compile(rf"`({TOP}/[\w./-]*|[\w-]+\.(?:md|toml|txt)|Makefile|LICENSE)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
MADE_BY_A_RUN = {"command.txt", "log.txt", "labels.txt"}  # named on pages: of a run folder, and a list of a person


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


def missing_tests(text: str, page: Path) -> list[str]:
    """Tests named as `tests/file.py::test_name` that are nowhere."""
    return [f"{path}::{name}" for path, name in TEST.findall(text) if name not in functions_of(path)]


@cache
def functions_of(path: str) -> frozenset[str]:
    """The functions at the top of a file of this repository; none when it is not there."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


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


def faults_of_pages(find: Callable[[str, Path], list[str]]) -> dict[str, list[str]]:
    """What `find` says of each page that has a fault."""
    found = {str(page.relative_to(ROOT)): find(page.read_text(encoding="utf-8"), page) for page in PAGES}
    return {page: faults for page, faults in found.items() if faults}


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 10
    assert faults_of_pages(broken_links) == {}


def test_named_files_and_tests_exist() -> None:
    assert faults_of_pages(missing_files) == {}
    assert faults_of_pages(missing_tests) == {}


def test_the_lessons_name_what_exists() -> None:
    """Their sources, of which the pages in `docs/lessons` are made: files and tests in the text, names in the code."""
    sources = sorted((ROOT / "lessons").glob("*.py"))
    assert len(sources) > 5
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert missing_files(text, path) + missing_tests(text, path) + python_faults(text) == [], path


def test_python_blocks_use_names_that_exist() -> None:
    assert faults_of_pages(lambda text, _: [f for b in blocks(text, "python", "py") for f in python_faults(b)]) == {}


def test_commands_exist_with_their_flags() -> None:
    def find(text: str, page: Path) -> list[str]:
        shown = blocks(text, "console", "bash", "sh", "shell")
        return [fault for block in shown for words in commands(block) for fault in command_faults(words)]

    assert faults_of_pages(find) == {}


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
    text = (
        "`tests/test_docs.py::test_planted_missing_files_are_found`, `tests/test_docs.py::test_x` `tests/x.py::test_y`"
    )
    assert missing_tests(text, ROOT / "CHANGELOG.md") == ["tests/test_docs.py::test_x", "tests/x.py::test_y"]


def test_planted_python_names_are_found() -> None:
    for source, wrong in {
        "import vitrail.errors\nvitrail.errors.DataError": [],
        "from vitrail.errors import DataError, Absent": ["vitrail.errors.Absent"],
        "import vitrail.absent": ["vitrail.absent"],
        "import vitrail\nvitrail.errors.absent('x')": ["vitrail.errors.absent"],
        "import torch\ntorch.absent": [],
    }.items():
        assert python_faults(source) == wrong


def test_planted_python_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        python_faults("model = vitrail.load(")


def test_planted_commands_are_found() -> None:
    def describe(verb: str) -> str | None:
        return {"train": "usage: --out PATH, --epochs INT"}.get(verb)

    for line, wrong in {
        "make demo": [],
        "make test WORKERS=4": [],
        "make tea": ["make tea"],
        "vitrail --help": [],
        "$ vitrail train digits --out runs/a  # a note": [],
        "vitrail train digits \\\n  --epoch=3 | tee log --x": ["--epoch"],
        "vitrail tarin digits": ["vitrail tarin"],
        "accuracy 97 %": [],
    }.items():
        assert [fault for words in commands(line) for fault in command_faults(words, describe)] == wrong


RUN = re.compile(r"^```python\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)  # not ```python no-run: needs a run folder


def problem_of_blocks(pages: list[Path]) -> dict[str, str]:
    """What goes wrong where the Python blocks of pages run, each page by itself, by its name."""
    found = dict[str, str]()
    for page in pages:
        source = "\n".join(RUN.findall(page.read_text(encoding="utf-8")))
        try:
            exec(compile(source, page.name, "exec"), {})
        except Exception:
            found[page.name] = traceback.format_exc()
    return found


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.filterwarnings("default")
def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = [page for page in PAGES if RUN.search(page.read_text(encoding="utf-8"))]
    assert ROOT / "README.md" in pages
    planted = tmp_path / "planted.md"
    planted.write_text("```python\nimport vitrail\nvitrail.nothing\n```\n")
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=()):
        problems = problem_of_blocks([*pages, planted])
    torch.set_num_threads(threads)
    assert problems.keys() == {planted.name}, problems
    assert "attribute nothing" in problems[planted.name], "the planted fault"


def test_no_figure_is_left_open() -> None:
    """Figures that are still to be measured stand as @NAME@ while a page is written."""
    assert faults_of_pages(lambda text, page: re.findall(r"@[A-Z]+@", FENCE.sub("", text))) == {}


def test_llms_txt_names_pages_that_exist() -> None:
    page = ROOT / "llms.txt"
    text = page.read_text()
    assert text.startswith("# vitrail\n\n> ")
    linked = {ROOT / name for name in re.findall(r"^- \[[^]]+\]\(([^)#]+)\)", text, re.MULTILINE)}
    assert broken_links(text, page) == []
    assert set(ROOT.glob("docs/*.md")) | {ROOT / "README.md", ROOT / "AGENTS.md"} <= linked


AGENTS = ROOT / "AGENTS.md"
ROW = re.compile(r"^\| `([a-z]+)(?: \w+)?` \| .*? \| .*? \| (.*) \|$", re.MULTILINE)


def test_the_tasks_for_agents_run_and_answer_with_the_keys_that_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worked tasks, on a run that is there, whose training is only read; the table has every verb with its keys."""
    listed = {verb: re.findall(r"`(\w+)`", keys) for verb, keys in ROW.findall(AGENTS.read_text())}
    assert listed.keys() == VERBS.keys()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    runs.copy_of("photos", tmp_path / "runs")
    (tmp_path / "photos").symlink_to(runs.photographs() / "abc")
    (tmp_path / "new").mkdir()
    for number, image in enumerate(sorted((tmp_path / "photos" / "val").rglob("*.*"))[:2]):
        Image.open(image).save(tmp_path / "new" / f"{number}.png")
    tasks = AGENTS.read_text().split("\n## Task ")[1:]
    assert len(tasks) == 3
    typed = [words for task in tasks for block in blocks(task, "console") for words in commands(block)]
    typed += [
        ["vitrail", "data", "pack", "photos", "--out", "packed", "--json"],
        ["vitrail", "models", "Ti/16", "--json"],
    ]
    answered = dict[str, list[str]]()
    for _, verb, *rest in typed:
        must_be_understood([verb, *rest])
        if verb == "train":
            continue
        answer = call(verb, *rest)
        assert answer.code == 0, answer.err
        if "--json" in rest:
            found = json.loads(answer.out)
            answered[verb] = sorted(found[0] if isinstance(found, list) else found)
            inside = found
        for written in (rest[rest.index("--out") + 1],) if "--out" in rest else ():
            assert (tmp_path / written).exists()
        if verb == "explain":
            (one,) = inside["images"][0]["attributions"]
            said = dict(re.findall(r"^\| `([a-z, ]+)` \| (.*) \|$", tasks[2], re.MULTILINE))
            assert set(said) == set(get_args(Verdict))
            assert one["trust"]["verdict"] in said
    assert {verb: sorted(listed[verb]) for verb in answered} == answered
    assert {"evaluate", "predict", "explain", "embed", "similar", "data", "models"} == answered.keys()
    assert sorted(listed["train"]) == sorted({*listed["evaluate"], "run", "seconds", "weights"} - {"model", "data"})
    both = keys_on_page("## `vitrail doctor`") + keys_on_page("## `vitrail doctor RUN`")
    assert sorted(listed["doctor"]) == sorted(both)


def keys_on_page(section: str) -> list[str]:
    """The keys that a section of `docs/json.md` has in the first column of its table."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8").partition(f"\n{section}\n")[2]
    rows = re.findall(r"^\| (`.*?) \|", re.split(r"^#", text, flags=re.MULTILINE)[0], re.MULTILINE)
    return sorted(key for row in rows for key in re.findall(r"`(\w+)`", row))


def test_the_keys_of_json_are_those_of_the_commands(tmp_path: Path) -> None:
    run, image = runs.run_of("digits"), str(tmp_path / "image.png")
    Image.fromarray((load_digits().images[0] * 255 / 16).astype("uint8")).save(image)  # of which nothing is unusual
    explained = ("explain", run, image, "--out", tmp_path / "page.html", "--json")
    for section, command in {
        "## `vitrail evaluate`": ("evaluate", run, "--json"),
        "## `vitrail predict`": ("predict", run, image, "--json"),
        "## `vitrail data check`": ("data", "check", "digits", "--json", "--out", tmp_path / "data.html"),
        "## `vitrail data show`": ("data", "show", "digits", "--json", "--out", tmp_path / "show.html"),
        "## `vitrail models`": ("models", "Ti/16", "--json"),
        "## `vitrail doctor`": ("doctor", "--json"),
        "## `vitrail doctor RUN`": ("doctor", run, "--json"),
        "## `vitrail explain`": explained,
    }.items():
        found = json.loads(call(*command).out)
        assert keys_on_page(section) == sorted(found[0] if isinstance(found, list) else found), section
    (one,) = found["images"]
    assert keys_on_page("### The objects in `images`") == sorted(one)
    assert keys_on_page("### The object `beside`") == sorted(one["beside"])
    (attribution,) = one["attributions"]
    assert keys_on_page("### The objects in `attributions`") == sorted(attribution)
    assert keys_on_page("### The object `trust`") == sorted(attribution["trust"])
