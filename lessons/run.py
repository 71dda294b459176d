"""Runs the lessons, each in a process of its own with one thread, and makes their pages, notebooks and pictures.

    python lessons/run.py               all of them
    python lessons/run.py d0 d3         these
    python lessons/run.py --pages       also writes docs/lessons/*.md, with what the cells printed and drew,
                                        docs/gallery.md, and the notebooks, lessons/*.ipynb, with the same outputs

A lesson is a plain Python file in the percent format: `# %%` begins a cell of code, `# %% [markdown]` one of text. An
image that is the last line of a cell is shown, as in a notebook. A notebook has the same cells, and one in front that
gets the lessons' files where it stands alone.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PAGES, IMAGES, GALLERY = DOCS / "lessons", DOCS / "images" / "lessons", DOCS / "gallery.md"
LESSONS = [HERE / "what_is_a_vit.py", *sorted(HERE.glob("d[0-9]_*.py"))]
COLOURS = 64  # of a picture that is stored
COLAB = "https://colab.research.google.com/github/"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Cell(NamedTuple):
    """One cell: text (without the comment signs) or code, and the line on which it begins."""

    is_text: bool
    source: str
    line: int


def cells(text: str) -> list[Cell]:
    """The cells of a lesson, in order."""
    found = []
    for start in re.finditer(r"^# %%(.*)\n", text, re.MULTILINE):
        body = re.split(r"^# %%", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
        is_text = "[markdown]" in start[1]
        source = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if is_text else body
        found.append(Cell(is_text, source.strip("\n"), text[: start.end()].count("\n") + 1))
    return found


def cells_of(path: Path) -> list[Cell]:
    """The cells of a lesson, or of the notebook that was made from it."""
    if path.suffix != ".ipynb":
        return cells(path.read_text())
    found = json.loads(path.read_text())["cells"]
    return [Cell(cell["cell_type"] == "markdown", "".join(cell["source"]), 1) for cell in found]


def execute(path: Path) -> dict[str, Any]:
    """Run the cells of a lesson in this process.

    Returns:
        Its `results`; for each cell what it printed (`outputs`) and drew (`pictures`: a sentence and a PNG in base64,
        or None); and the processor's `seconds`.
    """
    sys.path.insert(0, str(HERE))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    outputs, pictures = [], []
    start = time.process_time()
    for cell in cells_of(path):
        printed, drawn = io.StringIO(), None
        if not cell.is_text:
            tree = ast.parse("\n" * (cell.line - 1) + cell.source, str(path))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, str(path), "exec"), names)
                if isinstance(last, ast.Expr):
                    drawn = stored(eval(compile(ast.Expression(last.value), str(path), "eval"), names))
        outputs.append(printed.getvalue())
        pictures.append(drawn)
        print(printed.getvalue(), end="", flush=True)
    seconds = time.process_time() - start
    return {"results": names["RESULTS"], "outputs": outputs, "pictures": pictures, "seconds": seconds}


def stored(value: Any) -> list[str] | None:
    """What is said of an image that a cell ends with, and its file in base64; None for any other value."""
    if "says" not in getattr(value, "info", {}):
        return None
    file = io.BytesIO()
    value.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return [value.info["says"], base64.b64encode(file.getvalue()).decode()]


def run(path: Path, quiet: bool = False, limit: float = 600) -> dict[str, Any]:
    """The same in a process of its own, with one thread.

    Raises:
        RuntimeError: The lesson failed; the message is what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--execute", str(path), str(answer)]
        environment = {**os.environ, **ONE_THREAD}
        done = subprocess.run(
            command, env=environment, capture_output=quiet, text=True, timeout=limit, check=False, cwd=HERE
        )
        if done.returncode:
            raise RuntimeError(f"{path.name} failed" + (f":\n{done.stdout}\n{done.stderr}" if quiet else ""))
        return json.loads(answer.read_text())


def page(text: str, outputs: list[str], drawn: list[tuple[str, str] | None]) -> str:
    """A lesson as Markdown: text, code, and below each cell what it printed and drew (a sentence, a file's name)."""
    parts = ["<!-- made by `make pages` from the lesson of the same name -->"]
    for cell, printed, image in zip(cells(text), outputs, drawn, strict=True):
        parts.append(cell.source if cell.is_text else f"```python no-run\n{cell.source}\n```")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        if image:
            parts.append(f"![{image[0]}](../images/lessons/{image[1]})")
    return "\n\n".join(parts) + "\n"


def outputs_on(text: str, source: str) -> list[dict[str, Any]]:
    """What a cell printed and drew, as outputs of a notebook.

    Args:
        text: Of the page of its lesson.
        source: Of the cell.
    """
    below = text.partition(f"```python no-run\n{source}\n```")[2]
    printed = re.match(r"\n\n```text\n(.*?)\n```", below, re.DOTALL)
    drawn = re.match(r"\n\n!\[(.*)\]\(\.\./images/lessons/(.*)\)", below[printed.end() if printed else 0 :])
    found = list[dict[str, Any]]()
    if printed:
        lines = f"{printed[1]}\n".splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": lines})
    if drawn:
        image = base64.b64encode((IMAGES / drawn[2]).read_bytes()).decode()
        data = {"image/png": image, "text/plain": [drawn[1]]}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    return found


def notebook(text: str, name: str, repository: str = "") -> str:
    """A lesson as a notebook (nbformat 4.5): its title, a cell that gets the files, its other cells.

    They have the outputs that are on its page, so that who cannot run them sees the pictures, too.

    Args:
        text: Of the lesson.
        name: Of its file, without ending.
        repository: The address of this repository, which that cell gets the files from; when it is empty, who runs the
            notebook alone fills it in.
    """
    get = f"""\
# Nothing to do here where this notebook lies in the folder lessons of its repository and vitrail is installed. Where it
# stands alone, as on Colab, write the address of the repository between the quotation marks.
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = "{repository}"
if REPOSITORY and not Path("lesson.py").exists():
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", REPOSITORY, "checkout"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "./checkout[photos]"], check=True)
    sys.path.insert(0, "checkout/lessons")
elif not Path("lesson.py").exists():
    raise SystemExit("The files of the lessons are not here. Open this notebook in lessons/, or fill in REPOSITORY.")
elif find_spec("vitrail") is None:
    raise SystemExit("vitrail is not installed here, and not on PyPI yet. Run this first: pip install '..[photos]'")"""
    page_text = (PAGES / f"{name}.md").read_text()
    first, *rest = cells(text)
    made = [first, Cell(False, get, 1), *rest]
    found = []
    for number, cell in enumerate(made):
        source = re.sub(r"\]\((\w+)\.md\)", r"](\1.ipynb)", cell.source).replace("](../", "](../docs/")
        about = {"id": f"{name}-{number}".replace("_", "-"), "metadata": {}, "source": source.splitlines(keepends=True)}
        code = {"execution_count": None, "outputs": outputs_on(page_text, cell.source)}
        found.append({"cell_type": "markdown", **about} if cell.is_text else {"cell_type": "code", **code, **about})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": found, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def address() -> str:
    """Of the repository, as pyproject.toml has it under `[project.urls]`; empty while it has none."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository", "").rstrip("/")


def gallery(repository: str = "") -> str:
    """All pictures of the lessons on one page, from the pages of the lessons."""
    parts = [
        "<!-- made by `make pages` -->",
        "# Gallery of the lessons",
        "What the lessons draw, each picture with the lesson that explains it. A notebook has the lesson's text and "
        "code with what it printed and drew: run it in Jupyter beside the other files of `lessons/`. `make notebooks` "
        "runs them all.",
    ]
    if not repository:
        parts.append(
            "There is no link to Colab: its links name a public repository, and `pyproject.toml` names none. With "
            "`Repository` under `[project.urls]`, `make pages` puts one at each lesson. Until then upload a notebook "
            "there, and write an address that `git clone` reads into its first cell of code."
        )
    for path in LESSONS:
        text = (PAGES / f"{path.stem}.md").read_text()
        links = f"[the lesson](lessons/{path.stem}.md) · [the notebook](../lessons/{path.stem}.ipynb)"
        if "//github.com/" in repository:
            where = repository.partition("//github.com/")[2]
            links += f" · [run it on Colab]({COLAB}{where}/blob/HEAD/lessons/{path.stem}.ipynb)"
        parts += [f"## {re.findall(r'^# (.*)$', text, re.MULTILINE)[0]}", links]
        for says, file in re.findall(r"^!\[(.*)\]\(\.\./(images/lessons/.*)\)$", text, re.MULTILINE):
            parts += [f"![{says}]({file})", says + "."]
    return "\n\n".join(parts) + "\n"


def write(path: Path, answer: dict[str, Any]) -> None:
    """The page of a lesson that was run, its pictures and its notebook."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    name, drawn = path.stem.split("_")[0], list[tuple[str, str] | None]()
    for old in IMAGES.glob(f"{name}-*.png"):
        old.unlink()
    for image in answer["pictures"]:
        file = f"{name}-{sum(each is not None for each in drawn) + 1}.png"
        if image:
            (IMAGES / file).write_bytes(base64.b64decode(image[1]))
        drawn.append((image[0], file) if image else None)
    text = path.read_text()
    (PAGES / f"{path.stem}.md").write_text(page(text, answer["outputs"], drawn))
    path.with_suffix(".ipynb").write_text(notebook(text, path.stem, address()))


def main() -> int:
    """Run what the command line asks for; 1 when a lesson failed."""
    parser = argparse.ArgumentParser(description="Run the lessons.")
    parser.add_argument("lessons", nargs="*", help="beginnings of names, such as d0; all when none is given")
    parser.add_argument("--pages", action="store_true", help="write pages, pictures, gallery and notebooks")
    parser.add_argument("--execute", nargs=2, metavar=("LESSON", "ANSWER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.execute:
        lesson, answer = map(Path, asked.execute)
        answer.write_text(json.dumps(execute(lesson)))
        return 0
    chosen = [path for path in LESSONS if not asked.lessons or path.stem.startswith(tuple(asked.lessons))]
    if not chosen:
        parser.error(f"no such lesson; there are {', '.join(path.stem for path in LESSONS)}")
    failed = False
    for path in chosen:
        print(f"== {path.stem}", flush=True)
        try:
            answer = run(path)
        except RuntimeError as error:
            print(error, flush=True)
            failed = True
            continue
        print(f"== {path.stem}: {len(answer['results'])} numbers in {answer['seconds']:.1f} s\n", flush=True)
        if asked.pages:
            write(path, answer)
    if asked.pages:
        GALLERY.write_text(gallery(address()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
