"""`vitrail data check` and `show`: what they print and write, exit codes, and what is refused."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.check.faults import plant_faults
from tests.cli.command import DATA, USAGE, Cli, must_be_understood, must_refuse
from tests.features.test_embed import model_of
from tests.photographs import make_photographs
from vitrail.io import DATA as KIND, SHOW, is_page
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


def test_nothing_is_written_into_the_folder_of_the_data(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photographs(tmp_path / "photos", ("ant", "bee"), per_class=6, seed=0)
    monkeypatch.chdir(tmp_path / "photos")
    before = sorted(tmp_path.rglob("*"))
    for words in (
        ("check", "."),
        ("show", "."),
        ("check", ".", "--out", "ant/page.html"),
        ("check", "../photos", "--out", "../page.html", "--fix-split", "split.csv"),
        ("pack", ".", "--out", "packed"),
    ):
        must_refuse(cli("data", *words), USAGE, "photos")
        assert sorted(tmp_path.rglob("*")) == before
    shutil.copy("ant/ant_000.jpg", "ant/again.jpg")
    answer = cli("data", "check", ".", "--out", "../data.html")
    (command,) = (line.strip() for line in answer.out.splitlines() if "--fix-split" in line)
    assert cli(*shlex.split(command)[1:], "--out", "../again.html").code == 0
    assert (tmp_path / "split.csv").is_file()


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
        ((*check, "--resize", "pad"), USAGE, "--resize"),
        (("data", "show", data, "--crops"), USAGE, "--crops"),
        (("data", "show", data, "--out", page), USAGE, "page.html"),  # the page of a check
        (("data", "show", data, "--recipe", "nosuch"), USAGE, "nosuch"),
        (("data", "show", data, "--count", 0), USAGE, "--count"),
        (("data", "show", "sort-digits"), DATA, "sort-digits"),
    ):
        must_refuse(cli(*words), code, given)
    assert not (tmp_path / "x.txt").exists()


def test_show_takes_the_options_of_a_training_and_writes_a_page(cli: Cli, tmp_path: Path) -> None:
    data, page = tmp_path / "data", tmp_path / "show.html"
    make_photographs(data, ("ant", "bee"), per_class=6, seed=0)
    show = ("data", "show", data, "--out", page)
    answer = cli(*show, "--image-size", "24x32", "--resize", "pad", "--seed", 3, "--count", 2)
    assert answer.code == 0, answer.err
    assert str(page) in answer.out
    assert is_page(page.read_text(), SHOW)
    told = json.loads(cli(*show, "--image-size", 16, "--json", "--group-pattern", r"_(\d+)").out)
    assert (told["size"], told["resize"], told["seed"], told["page"]) == ([16, 16], "crop", 0, str(page))
    assert [each["label"] for each in told["images"]] == ["ant"] * 3 + ["bee"] * 3
    (tmp_path / "own.yaml").write_text("augmentation: {flip: 0.25}\n")
    told = json.loads(cli(*show, "--config", tmp_path / "own.yaml", "--recipe", "small-images", "--json").out)
    assert (told["recipe"], told["augmentation"]["flip"], told["size"]) == ("small-images", 0.25, [32, 32])
