"""`vitrail embed` as it is typed: what it writes, what it says, and what it leaves out."""

import json
from pathlib import Path

import numpy as np

import vitrail
from tests.cli.command import DATA, Cli, must_refuse
from tests.features.test_embed import model_of
from tests.photographs import make_photographs


def test_what_is_written_and_said(cli: Cli, tmp_path: Path) -> None:
    make_photographs(tmp_path / "photos", ("a", "b"), per_class=3, seed=0)
    (tmp_path / "photos" / "a" / "bad.jpg").write_text("no image")
    vitrail.save(model_of(), tmp_path / "model")
    words = ("embed", tmp_path / "model", tmp_path / "photos", "--out", tmp_path / "x.npz")
    answer = cli(*words, "--json", "--patches")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert (told["images"], told["columns"]) == (6, {"class": [32], "mean": [32], "patches": [2, 2, 32]})
    assert "bad.jpg" in told["unreadable"][0]
    assert "bad.jpg" in answer.err
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["patches"].shape == (6, 2, 2, 32)
        assert arrays["label"].tolist() == ["a"] * 3 + ["b"] * 3
    again = cli(*words, "--patches", "--strict")
    must_refuse(again, DATA, "1")
    for word in ("6", "2", "32", str(tmp_path / "x.npz")):
        assert word in again.out.split() or f"{word}," in again.out
