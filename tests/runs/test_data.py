"""A run is opened once: its data and its settings are read a single time, where they are first needed."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.errors import must_raise
from tests.shared_runs import copy_of, run_of
from vitrail.errors import DataError, UsageError
from vitrail.runs.data import Run

OPENED = """
import sys
from pathlib import Path
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from vitrail.cli import main
try:
    main({words!r})
except SystemExit as stop:
    assert stop.code == 0
print(*(name for name in opened if Path(name).parent == Path({run!r})), sep="\\n")
"""


@pytest.mark.parametrize("verb", ["evaluate", "explain"])
def test_a_verb_reads_the_files_of_a_run_once(verb: str, tmp_path: Path) -> None:
    run = str(run_of("digits"))
    more = ["digits", "--count", "1", "--out", str(tmp_path / "page.html")] if verb == "explain" else []
    code = OPENED.format(words=[verb, run, *more], run=run)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=240, check=True
    )
    opened = Counter(Path(line).name for line in done.stdout.splitlines() if line.endswith((".json", ".yaml")))
    assert opened == {"config.yaml": 1, "data.json": 1}


def test_a_run_reads_a_file_when_it_is_asked_for_it(tmp_path: Path) -> None:
    run = copy_of("digits", tmp_path)
    first = Run(run)
    assert first.knows("digits")
    (run / "data.json").write_text("{}")
    assert first.facts["name"] == "digits", "it was read before"
    (run / "config.yaml").write_text("- no settings")
    damaged = Run(str(run))
    with must_raise(DataError):
        damaged.facts  # noqa: B018
    with must_raise(UsageError):
        damaged.reader  # noqa: B018


@pytest.mark.parametrize("name", [None, "", "timm:vit_tiny_patch16_224"])
def test_what_is_no_run_knows_no_data(name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(name)
    assert (run.facts, run.config, run.reader, run.knows("digits")) == ({}, {}, "", False)
