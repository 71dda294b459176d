"""Runs the lessons, each in a process of its own with one thread, and makes their pages.

    python lessons/run.py               all of them
    python lessons/run.py d0 d3         these
    python lessons/run.py --pages       also writes docs/lessons/*.md, with what the cells printed

A lesson is a plain Python file in the percent format: `# %%` begins a cell of code, `# %% [markdown]` one of text.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PAGES = HERE.parent / "docs" / "lessons"
LESSONS = sorted(HERE.glob("d[0-9]_*.py"))
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


def execute(path: Path) -> dict[str, Any]:
    """Run the cells of a lesson in this process: its results, what each cell printed, and the processor's seconds."""
    sys.path.insert(0, str(HERE))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    outputs = []
    start = time.process_time()
    for cell in cells(path.read_text()):
        printed = io.StringIO()
        if not cell.is_text:
            code = compile("\n" * (cell.line - 1) + cell.source, str(path), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)
        outputs.append(printed.getvalue())
        print(printed.getvalue(), end="", flush=True)
    return {"results": names["RESULTS"], "outputs": outputs, "seconds": time.process_time() - start}


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


def page(text: str, outputs: list[str]) -> str:
    """A lesson as Markdown: text, code, and below each cell what it printed."""
    parts = ["<!-- made by `make pages` from the lesson of the same name -->"]
    for cell, printed in zip(cells(text), outputs, strict=True):
        parts.append(cell.source if cell.is_text else f"```python no-run\n{cell.source}\n```")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Run what the command line asks for; 1 when a lesson failed."""
    parser = argparse.ArgumentParser(description="Run the lessons.")
    parser.add_argument("lessons", nargs="*", help="beginnings of names, such as d0; all when none is given")
    parser.add_argument("--pages", action="store_true", help="write docs/lessons/*.md")
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
            PAGES.mkdir(parents=True, exist_ok=True)
            (PAGES / f"{path.stem}.md").write_text(page(path.read_text(), answer["outputs"]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
