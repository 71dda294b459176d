"""`vitrail explain` keeps what is done: one image, an interruption or a bad place spoils nothing else."""

import errno
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.cli.command import Answer, Cli
from vitrail import load
from vitrail.errors import UsageError
from vitrail.explain import report
from vitrail.explain.reporting import explained, plan, report as written


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    return json.loads(answer.out)["images"]


def test_an_image_of_the_other_class_is_left_out(cli: Cli, photo_run: Path, photographs: Path, tmp_path: Path) -> None:
    """One in a set made the whole set fail."""
    words = ("explain", photo_run, photographs / "abc" / "val", "--no-trust", "--json", "--out", tmp_path / "p.html")
    every = rows(cli(*words))
    assert {row["label"] for row in every} > {"a"}
    answer = cli(*words, "--contrast", "a")
    assert [row["file"] for row in rows(answer)] == [row["file"] for row in every if row["label"] != "a"]
    left = [row["file"] for row in every if row["label"] == "a"]
    assert [sum(file in line for line in answer.err.splitlines()) for file in left] == [1] * len(left)
    page = (tmp_path / "p.html").read_text("utf-8")
    assert all(Path(file).name in page for file in left)
    both = cli(*words, "--target", "a", "--contrast", "a")
    assert (both.code, both.hint.rpartition(" --")[2]) == (2, "contrast b")


def test_an_interruption_leaves_what_is_there(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an error, whose two lines and code stay."""
    real, batches, there = explained.explain_batch, [], []

    def interrupted(*given: Any) -> Any:
        if len(batches) == stop:
            there.append(page.exists())
            raise error
        batches.append(given)
        return real(*given)

    monkeypatch.setattr(explained, "explain_batch", interrupted)
    monkeypatch.setattr(plan, "BATCH", 1)
    first, second = (Image.open(images / f"{number}.png") for number in range(2))
    for code, made in ((130, KeyboardInterrupt), (2, partial(UsageError, "no such thing", "another"))):
        for stop in (1, 0):
            batches.clear()
            error, page = made(), tmp_path / f"{code}-{stop}.html"
            answer = cli("explain", planted, images, "--no-trust", "--out", page)
            assert answer.code == code
            assert there.pop() == (stop == 1), "the page can be opened while others are computed"
            assert page.exists() == page.with_suffix("").exists() == (stop == 1)
            assert ("1 image of 2" in answer.err, str(images / "0.png") in answer.err) == (stop == 1, stop == 1)
            assert code == 130 or answer.problem.endswith("no such thing")
            batches.clear()
            error = made()
            assert (str(images / "0.png") in answer.out) == (stop == 1)
            with pytest.raises(type(error)) as stopped:
                report(load(planted), [first, second], trust=False)
            assert stopped.value is error
            assert len(getattr(error, "report", ())) == stop


def test_a_full_disk_leaves_the_answers(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("explain", planted, images, "--no-trust", "--out", tmp_path / "p.html")
    wanted = json.loads(cli(*words, "--json").out)["images"]

    def full(file: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(written, "write_file", full)
    answer = cli(*words, "--json")
    assert (answer.code, str(tmp_path / "p.html") in answer.problem) == (1, True)
    found = json.loads(answer.out)
    assert (found["page"], [row["label"] for row in found["images"]]) == (None, [row["label"] for row in wanted])
    assert wanted[0]["label"] in cli(*words).out


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explained, "explain_batch", None)
    (tmp_path / "file").write_text("mine")
    answer = cli("explain", planted, images, "--out", tmp_path / "file")
    assert (answer.code, answer.hint.rpartition(" --")[2]) == (
        2,
        f"out {tmp_path / 'file-2'}.html",
    )  # whose folder is free
    answer = cli("explain", planted, images, "--out", tmp_path / "file" / "p.html")
    assert answer.code == 2
    assert "Not a directory" in answer.problem
    assert [each.name for each in tmp_path.iterdir() if each.name not in ("planted", "images")] == ["file"]
