"""What verbs print: JSON for programs, tables and sentences for people.

Names of files and classes come from strangers: nothing in them is taken for markup, and what cannot be printed is
shown as its escape, so that one thing stays on one line.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from vitrail.errors import DataError, counted
from vitrail.io import plain

if TYPE_CHECKING:  # a help text and a refused option need no rich
    from rich.console import Console

LOADING = "loading torch"
NAMED_PROBLEMS = 5  # of what is left out; --json has all


def console(to_stderr: bool = False, silent: bool = False) -> "Console":
    """Where sentences for people go, or none of them; wraps lines on a terminal only."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    wrap = not stream.isatty()
    return Console(stderr=to_stderr, quiet=silent, highlight=False, markup=False, emoji=False, soft_wrap=wrap)


def one_line(text: str) -> str:
    """The text with line breaks and tabs as spaces, and what cannot be printed as its escape."""
    plain = "".join(" " if c.isspace() else c for c in text.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def print_line(sentence: str) -> None:
    """A line for people on stdout."""
    _print(one_line(sentence), sys.stdout)


def warn(sentence: str) -> None:
    """A line for people on stderr, so that stdout stays clean."""
    _print(one_line(sentence), sys.stderr)


def print_json(value: Any) -> None:
    """One JSON value on stdout; numbers that are not finite become null, which JSON has."""
    text = json.dumps(plain(value), ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(plain(value))
    print(text)


def print_table(
    rows: Sequence[Sequence[str]], header: Sequence[str] = (), left: int = 1, least: Sequence[str] = ()
) -> None:
    """Aligned columns, as wide as they must be, with nothing cut off.

    Args:
        rows: Cells; rows may be of different length.
        header: Above them; none when empty.
        left: How many columns stand to the left; the others stand to the right.
        least: What each of the first columns has room for, also where no row has it.
    """
    from rich.cells import cell_len

    cells = [[one_line(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    known = zip_longest(*cells, map(one_line, least), fillvalue="")
    widths = [max(map(cell_len, column)) for column in known]
    for row in cells:
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False)]
        line = [
            cell + blank if i < left else blank + cell for i, (cell, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        _print("  ".join(line).rstrip(), sys.stdout)


def show_waiting(what: str) -> None:
    """What takes its time, on a terminal, until something else stands in its place; nothing when empty."""
    if sys.stderr.isatty():
        print(f"{what:<{len(LOADING)}}\r", end="", file=sys.stderr, flush=True)


class TimeLeft:
    """When a stage is done of which images are counted, by the time since it began.

    A count that does not grow begins the next stage, where images take another time: what that will take is not known.
    The first image of a stage but the last waits for what is made once, so that the time begins behind it.
    """

    def __init__(self, stages: int = 1) -> None:
        self.stage, self.stages = -1, stages
        self.ends: float | None = None
        self._done, self._began, self._waits = math.inf, (0.0, 0), False

    def count(self, done: int, total: int, now: float) -> None:
        """Take note of images that are done, and of all."""
        if done <= self._done:
            self.stage, self.ends, self._began = min(self.stage + 1, self.stages - 1), None, (now, done)
            self._waits = self.stage < self.stages - 1
        elif self._waits:
            self._began, self._waits = (now, done), False
        else:
            self.ends = now + (now - self._began[0]) * (total - done) / (done - self._began[1])
        self._done = done

    def words(self, now: float) -> str:
        """The seconds left, of all or of this stage; nothing where they are not known."""
        of = "" if self.stage == self.stages - 1 else " in this step"
        return "" if self.ends is None else f"{duration(max(0.0, self.ends - now))} left{of}"


@contextmanager
def progress_bar(*stages: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, behind what takes so long, and nothing elsewhere; it is called with images done, and all."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    left = TimeLeft(max(1, len(stages)))

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(left.words(time.monotonic()))

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[of]}"), Left()
    place = sys.stdout.isatty()  # what is printed meanwhile stands above the bar, and in a file where that is asked
    with Progress(*columns, console=console(to_stderr=True), transient=True, redirect_stdout=place) as bar:
        line = bar.add_task("".join(stages[:1]), total=None, of="")

        def count(done: int, total: int) -> None:
            left.count(done, total, time.monotonic())
            what, of = stages[left.stage] if stages else "", f"{done:,}/{total:,}"
            bar.update(line, completed=done, total=total, description=what, of=of)

        yield count


def warn_left_out(problems: Sequence[str], unit: str) -> None:
    """Name some of what was left out, and count the rest."""
    for problem in problems[:NAMED_PROBLEMS]:
        warn(f"Left out: {problem}.")
    if len(problems) > NAMED_PROBLEMS:
        warn(f"Left out: {counted(len(problems) - NAMED_PROBLEMS, f'more {unit}')} (--json names them all).")


def check_strict(strict: bool, left_out: int, unit: str) -> None:
    """Refuse an answer that leaves something out, where that is not allowed.

    Raises:
        DataError: It does.
    """
    if strict and left_out:
        problem = f"{counted(left_out, unit)} left out (refused by --strict)"
        raise DataError(problem, "data without them; or omit --strict to use the others")


def raise_unreadable(problems: Sequence[DataError], others: str) -> None:
    """Name what could not be read, when all else is done.

    Args:
        problems: One for each.
        others: What was done of the others, in words.

    Raises:
        DataError: If there is one.
    """
    for error in problems[:-1]:
        warn(f"left out: {error.problem}")
    if problems:
        raise DataError(f"{problems[-1].problem}{others}", problems[-1].hint)


def duration(seconds: float) -> str:
    """Seconds in words: 48 s, 4 min 10 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole >= 10 else f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _print(line: str, stream: Any) -> None:
    """Print a line that the stream's encoding may not know in full."""
    encoding = stream.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream)
