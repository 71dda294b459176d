"""`vitrail data check`: what it prints and writes, its exit code, and what it refuses."""

import json
import shlex
from pathlib import Path

import pytest

from tests.check.faults import plant_faults
from tests.cli.command import DATA, USAGE, Cli, must_be_understood, must_refuse
from tests.features.test_embed import model_of
from tests.photographs import make_photographs
from vitrail.io import DATA as KIND, is_page
from vitrail.model import save


def test_contradictions_are_on_the_page_and_end_with_exit_code_3(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_faults(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    answer = cli("data", "check", "photos")
    must_refuse(answer, DATA, "photos")
    assert is_page(Path("data.html").read_text(), KIND)
    commands = [line.strip() for line in answer.out.splitlines() if line.strip().startswith("vitrail ")]
    for command in commands:
        must_be_understood(shlex.split(command)[1:])
    (mend,) = (command for command in commands if "--group-pattern" in command)
    mended = cli(*shlex.split(mend)[1:], "--json")
    assert mended.code == DATA
    told = json.loads(mended.out)
    assert told["fix_split"]["out"] == "split.csv"
    assert (told["page"], told["contradictions"]) == ("data-2.html", 3)
    last = json.loads(cli("data", "check", "split.csv", "--json", "--out", "last.html").out)
    assert [each["kind"] for each in last["findings"] if each["contradiction"]] == ["labels"]


def test_data_without_contradictions_end_with_0_and_what_belongs_elsewhere_is_refused(cli: Cli, tmp_path: Path) -> None:
    data, page = tmp_path / "data", tmp_path / "page.html"
    make_photographs(data, ("ant", "bee"), per_class=6, seed=0)
    answer = cli("data", "check", data, "--out", page)
    assert answer.code == 0, answer.err
    assert page.exists()
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "pairs.tsv").write_text("one\ttwo\nthree\tfour\n")
    check = ("data", "check", data)
    for words, code, given in (
        ((*check, "--out", tmp_path / "mine.html"), USAGE, "mine.html"),
        ((*check, "--out", tmp_path / "page.txt"), USAGE, "page.txt"),
        ((*check, "--quality", 80, "--shorter-side", 90), USAGE, "--shorter-side"),
        ((*check, "--group-pattern", "(x)_"), DATA, "(x)_"),
        ((*check, "--group-pattern", "x_"), USAGE, "x_"),
        ((*check, "--fix-split", tmp_path / "x.txt"), USAGE, "x.txt"),
        ((*check, "--fix-split", page.with_suffix(".csv"), "--label-column", "x"), USAGE, "label-column"),
        ((*check, "--device", "cpu"), USAGE, "--device"),
        ((*check, "--model", save(model_of(), tmp_path / "model"), "--device", "cuda:99"), USAGE, "cuda:99"),
        (("data", "check", tmp_path / "none"), DATA, "none"),
        (("data", "check", tmp_path / "pairs.tsv"), DATA, "pairs.tsv"),
        (("data", "pack", data, "--out", tmp_path / "packed", "--crops"), USAGE, "--crops"),
        (("data", "pack", data), USAGE, "--out"),
    ):
        must_refuse(cli(*words), code, given)
    assert not (tmp_path / "x.txt").exists()
