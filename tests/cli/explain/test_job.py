"""`vitrail explain --out x.jsonl`: many images, a line for each, the same bytes after any interruption."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_refuse
from tests.explain.planted_lab import load_planted
from tests.shared_runs import hashes
from vitrail.explain.reporting import job
from vitrail.io import plain
from vitrail.jobs import parts

TIMES = {"seconds"}  # of the page's JSON: what lines lack


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "ROWS", 2)


@pytest.fixture
def images(images: Path, tmp_path: Path) -> Path:
    """Five images, and one that is none."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        shutil.copy(images / f"{number % 2}.png", folder / f"{number}.png")
    (folder / "3.png").write_text("no image")
    return folder


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def without(value: Any) -> Any:
    """A value without times and places."""
    match value:
        case dict():
            return {key: without(inner) for key, inner in value.items() if key not in {*TIMES, "overlay"}}
        case list():
            return [without(inner) for inner in value]
    return value


def test_a_line_says_what_a_page_says(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    """Every image, not eight of them; and the same images."""
    words = ("explain", planted, images, "--threads", 1, "--full")
    page = cli(*words, "--json", "--out", tmp_path / "page.html")
    answer = cli(*words, "--out", tmp_path / "x.jsonl")
    must_refuse(answer, DATA, str(images / "3.png"))
    (rates,) = json.loads(page.out)["rates"]
    assert f": {rates['supported']} of {rates['images']} " in answer.out
    lines = lines_of(tmp_path / "x.jsonl")
    assert [line["file"] for line in lines] == [str(images / f"{number}.png") for number in range(5)]
    assert "problem" in lines[3]
    shown = (tmp_path / "page.html").read_text("utf-8")
    assert ">3.png: " in shown
    assert str(images) not in shown
    wanted = [plain(one) for one in json.loads(page.out)["images"]]
    told = [without(line) for line in lines if "attributions" in line]
    for ours, theirs in zip(told, wanted, strict=True):
        assert np.allclose(ours["attributions"][0]["values"], theirs["attributions"][0]["values"])
        assert ours.keys() == without(theirs).keys()
        assert ours["attributions"][0].keys() == without(theirs["attributions"][0]).keys()
        assert (ours["label"], ours["attributions"][0]["trust"]["verdict"]) == (
            theirs["label"],
            theirs["attributions"][0]["trust"]["verdict"],
        )
    named = [attribution["overlay"] for line in lines[:3] for attribution in line["attributions"]]
    assert all((tmp_path / name).is_file() for name in named)
    assert not any(f'"{word}"' in (tmp_path / "x.jsonl").read_text() for word in TIMES)


def test_interrupted_anywhere_the_bytes_are_the_same(cli: Cli, images: Path, tmp_path: Path) -> None:
    """Also where the images of a call fill each other's masked patches, and where one is left out."""
    model = tmp_path / "model"
    vitrail.save(dataclasses.replace(load_planted("mean-0"), background=None), model)
    label = json.loads(cli("predict", model, images / "0.png", "--json").out)[0]["label"]
    words = ("explain", model, images, "--threads", 1, "--no-trust", "--contrast", label, "--out")
    whole = cli(*words, tmp_path / "whole" / "x.jsonl")
    lines = lines_of(tmp_path / "whole" / "x.jsonl")
    left_out = [line["file"] for line in lines if "left_out" in line]
    assert str(images / "0.png") in left_out
    assert f"{len(left_out)} image" in whole.err
    must_refuse(cli("explain", model, *left_out, *words[3:], tmp_path / "none" / "x.jsonl"), USAGE, label)
    assert not list((tmp_path / "none").iterdir())
    unread = cli("explain", model, images / "3.png", *words[3:], tmp_path / "none" / "x.jsonl")
    must_refuse(unread, DATA, "3.png")
    assert not any(line.endswith("x") for line in unread.out.splitlines())  # a folder that is not there
    write, count = parts.PartFiles.write, [0]

    def dying(self: parts.PartFiles, *given: Any) -> None:
        count[0] += 1
        if count[0] % 2 == 0:
            raise KeyboardInterrupt
        write(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.PartFiles, "write", dying)
        assert [cli(*words, tmp_path / "x" / "x.jsonl").code for _ in range(2)] == [130, 130]
    assert not (tmp_path / "x" / "x.jsonl").exists()
    must_refuse(cli(*words, tmp_path / "x" / "x.jsonl", "--method", "occlusion"), USAGE, "options")
    must_refuse(cli(*words, tmp_path / "x" / "x.jsonl"), DATA, str(images / "3.png"))
    assert hashes(tmp_path / "x") == hashes(tmp_path / "whole")
    must_refuse(cli(*words, tmp_path / "x" / "x.jsonl"), USAGE, str(tmp_path / "x" / "x.jsonl"))


def test_what_is_for_pages_alone(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    words, out = ("explain", planted, images), ("--out", tmp_path / "x.jsonl")
    must_refuse(cli(*words, *out, "--masks", images), USAGE, "--masks")
    must_refuse(cli(*words, *out, "--workers", 2), USAGE, "--workers 2")
    must_refuse(cli(*words, "--out", tmp_path / "x.html", "--ray", "local"), USAGE, "--ray local")
    (tmp_path / "x").mkdir()
    must_refuse(cli(*words, *out), USAGE, str(tmp_path / "x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "x"]
