"""Calling the command line: in this process where possible, in one of its own where signals or imports matter.

What a message says may be worded anew at any time. So a test asks for its shape, its exit code, that it names what was
given, and that a hint which is a command can be typed.
"""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitrail.cli.main import VERBS, main
from vitrail.cli.parse import parse
from vitrail.training import loop

ROOT = Path(__file__).resolve().parents[2]
START = (sys.executable, "-c", "from vitrail.cli import main; main()")
USAGE, DATA, INTERRUPTED = 2, 3, 130
BACKGROUND = "background.safetensors"  # the file of a model folder that explanations are tested with


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """The line of the problem; fails when stderr ends in anything but two lines in house style."""
        return self._two_lines()[0]

    @property
    def hint(self) -> str:
        """What to try, without `try: `."""
        return self._two_lines()[1].removeprefix("try: ")

    def _two_lines(self) -> tuple[str, str]:
        lines = self.err.splitlines()
        assert len(lines) >= 2, self.err
        assert "Traceback" not in self.err
        assert [line.startswith("try: ") for line in lines] == [False] * (len(lines) - 1) + [True], self.err
        assert [line.startswith("vitrail: ") for line in lines].count(True) == 1, self.err
        assert lines[-2].startswith("vitrail: "), self.err
        assert "unexpectedly" not in lines[-2], self.err
        assert len(lines[-1]) > len("try: ")
        return lines[-2], lines[-1]


Cli = Callable[..., Answer]
"""The fixture `cli`: `cli("models", "S/16")` runs a verb in this process."""


def call(*words: object) -> Answer:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return Answer(stop.value.code, out.getvalue(), err.getvalue())


# ---- refusals


def must_refuse(answer: Answer, code: int, given: str) -> None:
    """Two lines, this exit code, and a problem that names what was given.

    Args:
        answer: Of a command that cannot be done.
        code: The exit code that it must have.
        given: Words that the problem must hold, from what was typed or lies on the disk: never the message's own.
            `-` and `_` are the same.
    """
    assert answer.code == code, answer.err
    problem = answer.problem.replace("_", "-")
    for word in given.split():
        assert re.search(rf"(?<!\w){re.escape(word.replace('_', '-'))}(?!\w)", problem), (word, answer.problem)


_OPTION = r"--[a-z-]+( ([^\s-]\S*|-\d+))?"


def retyped(words: Sequence[str], answer: Answer) -> list[str] | None:
    """What a person types who follows the hint: the command that it holds, or the one of before with its options.

    Returns:
        The words behind `vitrail`; None where the hint is a sentence.
    """
    hint = re.split(r"[,;] | # ", answer.hint)[0]
    if hint.startswith("vitrail "):
        return shlex.split(hint)[1:]
    if re.fullmatch(r"--[a-z-]+", hint):  # another spelling of the option that the problem names
        names = {word: word.replace("_", "-") in answer.problem.split() for word in words}
        return [hint if word.startswith("--") and names[word] else word for word in words]
    if re.fullmatch(rf"{_OPTION}( {_OPTION})*", hint):
        return [*words, *hint.split()]  # what is typed last counts
    return None


def next_of(answer: Answer) -> list[str]:
    """What a person types who follows the last line of a training: the words behind `vitrail`."""
    return shlex.split(answer.out.splitlines()[-1].partition(" vitrail ")[2])


def must_be_understood(words: Sequence[str]) -> None:
    """The command line takes these words, a verb with its options, each of the right kind. Nothing is run."""

    verb, *rest = words
    if verb in VERBS and "--help" not in rest:
        assert parse(VERBS[verb].options, verb, rest)
    else:
        assert call(*words).code == 0, words


# ---- interruptions


def signal_behind(
    step: int,
    number: signal.Signals,
    patch: Callable[[object, str, object], None] = setattr,
    send: Callable[[int, int], object] = os.kill,
) -> None:
    """Any training in this process sends itself, or has sent, a signal behind a step, which no clock decides."""

    class Signalling(loop.StepDone):
        def __init__(self, *values: object, **named: object) -> None:
            super().__init__(*values, **named)
            if self.step == step:
                send(os.getpid(), number)

    patch(loop, "StepDone", Signalling)


# ---- processes


def environment(**more: str) -> dict[str, str]:
    """Of a process of its own: this source, one thread."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **more}


def call_outside(*words: object, cwd: Path | None = None, before: str = "") -> Answer:
    """Run a command in a process of its own, which hears SIGINT even where these tests run in the background.

    Args:
        words: What is typed behind `vitrail`.
        cwd: Where.
        before: Python that the process runs first.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\nfrom vitrail.cli import main; main()", *map(str, words)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=None if os.name != "posix" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return Answer(done.returncode, done.stdout, done.stderr)
