"""A run is opened once: its data and its settings are read a single time, where they are first needed."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import call
from tests.errors import must_raise
from tests.shared_runs import copy_of
from vitrail.errors import DataError, UsageError
from vitrail.io import is_page
from vitrail.runs.data import Run, open_run

OPENED: list[list[Path]] = []  # what is opened goes into the last, if there is one


def watch(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and OPENED:
        OPENED[-1].append(Path(str(given[0])))


sys.addaudithook(watch)  # for good; it sleeps unless a test here wakes it


@pytest.mark.parametrize("verb", ["evaluate", "explain"])
def test_a_verb_reads_the_files_of_a_run_once(verb: str, tmp_path: Path) -> None:
    run = copy_of("digits", tmp_path)
    more = ["--out", page := tmp_path / "page.html", *(["digits", "--count", 1] if verb == "explain" else [])]
    opened: list[Path] = []
    OPENED.append(opened)
    try:
        answer = call(verb, run, *more)
    finally:
        OPENED.remove(opened)
    assert answer.code == 0, answer.err
    assert is_page(page.read_text(), {"evaluate": "evaluation", "explain": "explanation"}[verb])
    found = Counter(file.name for file in opened if file.parent == run and file.suffix in (".json", ".yaml"))
    assert found == dict.fromkeys(["config.yaml", "data.json", *["evaluation.json"] * (verb == "explain")], 1)


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


def test_a_folder_that_a_list_in_it_speaks_for_is_the_data_of_its_run(tmp_path: Path) -> None:
    run, data = copy_of("digits", tmp_path), tmp_path / "cells"
    known = {}
    for name in ("cells", "cells/list.csv"):
        facts = {**Run(run).facts, "name": str(tmp_path / name), "root": str(data / "list.csv")}
        (run / "data.json").write_text(json.dumps(facts))
        known[name] = [Run(run).knows(str(each)) for each in (data, data / "list.csv", data / "other.csv", tmp_path)]
    assert known == {"cells": [True, True, False, False], "cells/list.csv": [False, True, False, False]}


@pytest.mark.parametrize("name", [None, "", "timm:vit_tiny_patch16_224"])
def test_what_is_no_run_knows_no_data(name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(name)
    assert (run.facts, run.config, run.reader, run.knows("digits")) == ({}, {}, "", False)


def test_a_run_whose_files_changed_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: classify\n")
    first = open_run(tmp_path)
    assert first.config == {"task": "classify"}
    assert open_run(str(tmp_path)) is first
    (tmp_path / "config.yaml").write_text("task: regression\n")
    assert open_run(tmp_path).config == {"task": "regression"}
