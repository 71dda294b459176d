"""The runs that all tests share: made once, kept as they are, and bound to this session."""

import json
from pathlib import Path

import pytest

from tests import shared_runs as runs


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another shared folder, for this test alone."""
    monkeypatch.setattr(runs, "_FOLDER", [tmp_path / "shared"])
    return tmp_path / "shared"


def test_it_is_made_once_and_again_after_a_failure(elsewhere: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / f"{len(made)}").touch()
        if len(made) == 1:
            raise RuntimeError("the first one fails")

    with pytest.raises(RuntimeError):
        runs.once("thing", make)
    assert {path.name for path in runs.once("thing", make).iterdir()} == {"2"}
    assert runs.once("thing", make) == elsewhere / "thing"
    assert len(made) == 2


def test_a_test_that_writes_into_it_is_caught(elsewhere: Path) -> None:
    folder = runs.once("thing", lambda folder: (folder / "file").write_text("as it was"))
    runs.must_be_unchanged()
    (folder / "file").write_text("changed")
    with pytest.raises(AssertionError, match="thing"):
        runs.must_be_unchanged()


def test_a_run_and_its_copy(tmp_path: Path) -> None:
    run = runs.run_of("sort-digits")
    assert run == runs.run_of("sort-digits")
    copied = runs.copy_of("sort-digits", tmp_path)
    assert copied == tmp_path / "sort-digits"
    assert runs.stamps(copied) == runs.stamps(run)
    assert runs.stored(run)["weights"] == json.loads((run / "evaluation.json").read_text())["weights"]
