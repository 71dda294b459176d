"""Where an explanation goes: never over what is another's."""

import json
from pathlib import Path

import pytest

from tests.cli.command import Cli
from vitrail.errors import UsageError
from vitrail.io import page_at


def test_a_place_that_is_taken_is_left(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pages = []
    for _ in range(2):
        answer = cli("explain", photo_run, photo, "--no-trust", "--json")
        pages.append(json.loads(answer.out)["page"])
    assert pages == ["explanation.html", "explanation-2.html"]
    answer = cli("explain", photo_run, photo, "--no-trust", "--out", "folder", "--json")
    assert json.loads(answer.out)["page"] == "folder/explanation.html"
    assert cli("explain", photo_run, photo, "--no-trust", "--out", "folder/explanation.html").code == 0


def test_a_persons_own_page_is_left(cli: Cli, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    """One that spoke of vitrail was taken for a page of vitrail, and written over."""
    notes, run = tmp_path / "notes.html", photo_run / "run.html"
    notes.write_text("<h1>My notes on vitrail</h1>")
    for taken, before in ((notes, notes.read_bytes()), (run, run.read_bytes())):
        answer = cli("explain", photo_run, photo, "--no-trust", "--out", taken)
        assert answer.code == 2
        assert str(taken) in answer.problem
        assert taken.read_bytes() == before
    free = tmp_path / "notes-2.html"
    with pytest.raises(UsageError) as refused:
        page_at(notes)
    assert refused.value.hint.flags == {"out": str(free)}
    assert str(refused.value).endswith(repr(str(free)) + ")")
    for _ in range(2):  # its own page is written again
        assert cli("explain", photo_run, photo, "--no-trust", "--out", free).code == 0
