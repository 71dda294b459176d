"""What is printed: aligned, on one line each, and safe with the names that strangers give."""

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from rich.console import Console

from tests.cli.command import START, Cli, environment
from tests.errors import figures
from tests.photographs import make_photographs
from tests.shared_runs import configuration
from vitrail.cli.evaluate import CLASSES, print_classes
from vitrail.cli.main import main
from vitrail.cli.output import TimeLeft, duration, one_line, print_json, print_table, progress_bar, warn
from vitrail.cli.train import TrainingProgress
from vitrail.training.events import EpochScored, Reading, Rescheduled, Started
from vitrail.training.loop import StepDone


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # neither is asked of a busy machine
@given(st.text())
def test_one_line_is_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert line.splitlines() in ([], [line])
    assert one_line(line) == line.strip()


@pytest.mark.parametrize("held", [3, CLASSES + 5])
def test_classes_without_images_are_counted_not_listed(held: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of a thousand classes on images of a few: the worst of these are shown, and how many others there are."""
    score = {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    rows = [{"class": f"c{n}", "images": 2 * (n % 20 == 0), **score} for n in range(20 * held)]
    print_classes(rows)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[0] for line in lines if re.match(r"c\d", line)]
    assert shown == [f"c{20 * n}" for n in range(min(held, CLASSES))]
    counts = [figures(line)[0] for line in lines if line not in shown and not re.match("c", line)]
    assert counts == [*(["5"] if held > CLASSES else []), str(19 * held)]


def test_columns_are_aligned_and_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("a" * 120, "1"), ("猫", "1,000"), ("ends here",)], ("class", "images"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "a" * 120 + "       1"
    assert lines[2] == "猫" + " " * 118 + "   1,000"  # a wide character takes two columns
    assert lines[3] == "ends here"
    assert lines[0] == "class" + " " * 115 + "  images"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [math.nan, 1.0, (math.inf,)], "é": "\udcff", "n": 3, "b": True})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"a": [None, 1.0, [None]], "é": "\udcff", "n": 3, "b": True}


def test_a_stream_that_knows_no_accents(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stderr", stream)
    warn("café \x1b[31m")
    stream.flush()
    assert stream.buffer.getvalue() == b"caf\\xe9 \\x1b[31m\n"  # pyrefly: ignore[missing-attribute]


@pytest.mark.parametrize("evident", [[1, 4, 5, 6, 7], [0, 1, 2], [7], range(8)])
def test_the_time_left_is_right_behind_the_first_image(evident: Sequence[int]) -> None:
    """Of eight images, some without evidence; the first waits for composites, and a map in five takes twice as long."""
    left, now = TimeLeft(2), 100.0
    for asked in range(9):
        now += 40 * (asked == 1) + 2 * (asked > 0)
        left.count(asked, 8, now)
        if asked < 2:
            assert left.words(now) == ""
        else:
            assert left.ends == pytest.approx(now + 2 * (8 - asked))
            assert left.words(now) != f"{duration(left.ends - now)} left"  # it is of this step alone
    done = 8 - len(evident)
    left.count(done, 8, now)
    took = [20.0 * (2 if place % 5 == 3 else 1) for place in range(len(evident))]
    for place, seconds in enumerate(took):
        now += seconds
        left.count(done + place + 1, 8, now)
        rest = sum(took[place + 1 :])
        assert left.ends is not None
        assert abs(left.ends - now - rest) <= rest / 3
    assert left.words(now + 5) == "0.0 s left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.4, "9.4 s"),
        (48.0, "48 s"),
        (59.7, "1 min 0 s"),
        (250.0, "4 min 10 s"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def progress(stream: io.StringIO, terminal: bool) -> TrainingProgress:
    return TrainingProgress(
        Console(
            file=stream, force_terminal=terminal, width=80, highlight=False, markup=False, _environ={"TERM": "xterm"}
        )
    )


def test_epochs_stand_under_their_headings() -> None:
    stream = io.StringIO()
    shown = progress(stream, terminal=False)
    shown(Started(Path("runs/[bold]x"), 1258, 20, 2000, 0, 33.0))
    row = {"validation_accuracy": 1.0, "images_per_second": 123456.0, "waiting_fraction": 1.0}
    for epoch in (1, 100):
        shown(EpochScored({"epoch": epoch, "training_loss": 2.3456, "validation_loss": 10.0, **row}))
    lines = stream.getvalue().splitlines()
    assert figures(lines[0]) == ["1258", "100", "20", "33"]
    assert lines[1].endswith(" runs/[bold]x")
    heading, first, last = lines[2:]
    assert len(heading) == len(first) == len(last) <= 80
    assert last.split() == ["100/100", "2.3456", "10.0000", "100", "%", "123,456", "100", "%"]
    for word in ("train loss", "validation: loss", "accuracy", "images/s", "waiting for data"):
        end = heading.index(word) + len(word)
        assert last[end - 1] != " "
        assert last[end : end + 1] in ("", " ")


def test_where_nothing_is_left_no_time_and_no_rate_is_told() -> None:
    """Of a run that is finished; and of an epoch whose last step was made before."""
    stream = io.StringIO()
    shown = progress(stream, terminal=False)
    shown(Started(Path("run"), 1258, 20, 40, 40, 0.0))
    assert not re.search(r"about|\d s\b|images/s", stream.getvalue())
    assert figures(stream.getvalue().splitlines()[0]) == ["1258", "2", "20"]
    shown(Started(Path("run"), 1258, 20, 40, 39, 1.0))
    row = {"training_loss": 1.5, "validation_loss": 2.5, "validation_accuracy": 0.5}
    shown(EpochScored({"epoch": 2, **row, "images_per_second": None, "waiting_fraction": None}))
    assert stream.getvalue().splitlines()[-1].split() == ["2/2", "1.5000", "2.5000", "50.00", "%"]


def test_what_is_fed_is_called_by_its_name() -> None:
    stream = io.StringIO()
    progress(stream, terminal=False)(Started(Path("run"), 1, 1, 2, 0, 1.0, "pair"))
    assert stream.getvalue().startswith("1 pair, 2 epochs")
    assert "pairs/s" in stream.getvalue()
    assert "image" not in stream.getvalue()


def test_a_long_run_says_its_first_its_last_and_about_25_epochs() -> None:
    stream = io.StringIO()
    shown = progress(stream, terminal=False)
    shown(Started(Path("run"), 10, 1, 99, 0, 1.0))
    row = {"training_loss": 1.0, "validation_loss": 1.0, "validation_accuracy": 0.5, "images_per_second": 1.0}
    for epoch in range(1, 100):
        shown(EpochScored({"epoch": epoch, **row, "waiting_fraction": 0.0}))
    said = [line.split()[0] for line in stream.getvalue().splitlines()[3:]]
    assert (said[0], said[1], said[-1]) == ("1/99", "4/99", "99/99")
    assert len(said) == 26


def test_a_terminal_gets_a_live_line_and_the_cursor_back() -> None:
    stream = io.StringIO()
    shown = progress(stream, terminal=True)
    with shown.bar:
        shown(Started(Path("run"), 10, 1, 2, 0, 1.0))
    assert "training" in stream.getvalue()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_names_of_strangers_are_no_markup(cli: Cli, tmp_path: Path) -> None:
    """A class folder may be called anything that a file system takes."""
    names, run = ("[bold]", "[", ":smile:", "a b"), tmp_path / "[/run]"
    make_photographs(tmp_path / "data", names, per_class=4, seed=0)
    trained = cli("train", tmp_path / "data", "--epochs", 1, "--image-size", 16, "--out", run)
    assert trained.code == 0, trained.err
    assert str(run) in trained.out
    answer = cli("evaluate", run)
    assert answer.code == 0, answer.err
    classes = [line[:8].strip() for line in answer.out.splitlines()[-4:]]
    assert sorted(classes) == sorted(names)
    page = ("--no-trust", "--count", 1, "--out", tmp_path / "page.html")
    explained = cli("explain", run, tmp_path / "data", *page)
    assert explained.code == 0, explained.err


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, list[bytes]]]:
    """The handle of a terminal of 80 columns, and what it has received when all who write have closed it."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.extend(iter(lambda: read_terminal(ours), b"")))
    reading.start()
    try:
        yield theirs, received
    finally:
        os.close(theirs)
        reading.join()
        os.close(ours)


def read_terminal(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_an_error_on_a_terminal_has_two_lines_and_no_frame(tmp_path: Path) -> None:
    words = ("train", "digits", "--epochs", "many")
    with terminal() as (handle, received):
        ends, env = {"stdin": handle, "stdout": handle, "stderr": handle}, environment(TERM="xterm-256color")
        assert subprocess.run([*START, *words], cwd=tmp_path, env=env, check=False, timeout=60, **ends).returncode == 2
    lines = b"".join(received).decode().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("vitrail: ")
    assert lines[1].startswith("try: ")
    assert "".join(lines).isprintable()
    assert not set("╭│─╰") & set("".join(lines))


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_a_training_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live line with the time that is left, the last epoch, and what to type next."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("vitrail.cli.train.LIVE_SECONDS", 0.0)  # of a training that may take less
    words = ("--config", str(configuration("sort-digits")), "--epochs", "4", "--threads", "1")
    with terminal() as (handle, received), open(handle, "w", closefd=False) as stream:
        with contextlib.redirect_stdout(stream), pytest.raises(SystemExit) as stop:
            main(["train", "sort-digits", *words, "--out", str(tmp_path / "run")])
        assert stop.value.code == 0
    text = b"".join(received).decode()
    assert "left" in text
    assert "4/4" in text
    assert " vitrail " in text.rstrip().splitlines()[-1]


def test_a_training_that_is_given_more_steps_counts_their_epochs(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    assert isinstance(console.file, io.StringIO)
    shown = TrainingProgress(console)
    shown(Started(tmp_path, images=64, steps_per_epoch=8, steps=22, step=0, seconds=9.0))
    shown(Rescheduled(30, "more time"))
    lines = console.file.getvalue().count("\n")
    shown(Rescheduled(35, ""))  # which was announced before
    assert console.file.getvalue().count("\n") == lines
    row = dict.fromkeys(("training_loss", "validation_loss", "validation_accuracy", "images_per_second"), 0.5)
    for epoch in range(1, 6):
        shown(EpochScored({**row, "epoch": epoch, "waiting_fraction": 0.0}))
    told = re.findall(r"^ *(\d+)/(\d+)", console.file.getvalue(), flags=re.MULTILINE)
    assert told == [(str(epoch), "5") for epoch in range(1, 6)]


def test_no_bar_is_left_of_what_is_over(tmp_path: Path) -> None:
    """Of reading when all is read, of what a sentence follows, and of the last step, which evaluations follow."""
    shown = TrainingProgress(Console(file=io.StringIO(), force_terminal=True, width=200))
    task, shown.shown = shown.bar.tasks[0], 0.0
    started = Started(tmp_path, images=64, steps_per_epoch=8, steps=8, step=0, seconds=9.0)
    loss = torch.tensor(0.5)
    seen = []
    for event in (Reading("reading train", 3, 7), Reading("reading train", 7, 7), "timing", started, "a warning"):
        shown.shown = 0.0
        shown(event)
        seen.append(task.visible)
    for step in (5, 8):
        shown.shown = 0.0
        shown(StepDone(step, 0, loss, loss, learning_rate=0.1, images=8, seconds=0.1, waiting=0.0))
        seen.append(task.visible)
    assert seen == [True, False, False, True, False, True, False]


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_a_terminal_is_told_at_once_and_a_file_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """That torch is loaded stands there before a verb is imported, and is gone; a bar has no number that is unknown."""
    with terminal() as (handle, received), open(handle, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit):
            main(["models", "S/16"])
        with progress_bar("predicting") as progress:
            time.sleep(0.15)  # until it is drawn
            progress(3, 9)
    text = b"".join(received).decode()
    assert re.match(r"loading torch\r {13}\r", text)
    assert "predicting" in text
    assert "?" not in re.sub(r"\x1b\[\?", "", text)
    assert "3/9" in text
    plain = io.StringIO()
    with contextlib.redirect_stderr(plain), contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit):
        main(["models", "S/16"])
    assert plain.getvalue() == ""
