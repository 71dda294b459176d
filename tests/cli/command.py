"""Calling the command line: in this process where possible, in one of its own where signals or imports matter."""

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitrail.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
START = (sys.executable, "-c", "from vitrail.cli import main; main()")


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """The line of the problem; fails when stderr is anything but two lines in house style."""
        return self._two_lines()[0]

    @property
    def hint(self) -> str:
        """The line with what to try."""
        return self._two_lines()[1]

    def _two_lines(self) -> tuple[str, str]:
        lines = self.err.splitlines()
        assert len(lines) >= 2, self.err
        assert "Traceback" not in self.err
        assert [line.startswith("try: ") for line in lines] == [False] * (len(lines) - 1) + [True], self.err
        assert [line.startswith("vitrail: ") for line in lines].count(True) == 1, self.err
        assert lines[-2].startswith("vitrail: "), self.err
        assert "should not" not in lines[-2], self.err
        assert len(lines[-1]) > len("try: ")
        return lines[-2], lines[-1]


def call(capsys: pytest.CaptureFixture[str], *words: object) -> Answer:
    """Run a command in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return Answer(stop.value.code, captured.out, captured.err)


def environment(**more: str) -> dict[str, str]:
    """Of a process of its own: this source, one thread."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


def start(*words: object, cwd: Path | None = None, **more: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own, which hears SIGINT even where these tests run in the background."""
    return subprocess.Popen(
        [*START, *map(str, words)],
        cwd=cwd,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if os.name != "posix" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def call_outside(*words: object, cwd: Path | None = None, **more: str) -> Answer:
    """Run a command in a process of its own."""
    process = start(*words, cwd=cwd, **more)
    out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


def hashes(root: Path) -> dict[str, str]:
    """The checksum of every file below a folder."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
