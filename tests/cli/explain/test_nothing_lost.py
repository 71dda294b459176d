"""`vitrail explain` keeps what is done: one image, an interruption or a bad place spoils nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Answer, Cli
from vitrail.explain.reporting import explained, request


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
    assert answer.err.count("as 'a', for which no contrast is possible") == sum(row["label"] == "a" for row in every)
    page = (tmp_path / "p.html").read_text("utf-8")
    assert all(f"classifies {row['file']} as" in page for row in every if row["label"] == "a")
    both = cli(*words, "--target", "a", "--contrast", "a")
    assert (both.code, both.hint.rpartition(" --")[2]) == (2, "contrast b")


def test_an_interruption_leaves_what_is_there(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, batches = explained._some, []

    def interrupted(*given: Any) -> Any:
        if len(batches) == stop:
            raise KeyboardInterrupt
        batches.append(given)
        return real(*given)

    monkeypatch.setattr(explained, "_some", interrupted)
    monkeypatch.setattr(request, "BATCH", 1)
    for stop, code in ((1, 130), (0, 130)):
        batches.clear()
        page = tmp_path / f"{stop}.html"
        answer = cli("explain", planted, images, "--no-trust", "--out", page)
        assert answer.code == code
        assert page.exists() == (stop == 1)
        said = "interrupted: 1 image of 2 explained and written" if stop else "try: the same command again\n"
        assert said in answer.err


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(
    cli: Cli, planted: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explained, "_some", None)
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
