"""Images in less usual formats are read in every verb; what cannot be read is named or counted, never passed over."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.command import DATA, Cli

READ = {
    "a.png": "PNG",
    "b.avif": "AVIF",
    "c.heic": "AVIF",
    "d.jp2": "JPEG2000",
    "e.ppm": "PPM",
}  # whatever they are called


@pytest.fixture
def folder(photo: Path, tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name, kind in READ.items():
        Image.open(photo).convert("RGB").save(tmp_path / "in" / name, kind)
    (tmp_path / "in" / "drawing.svg").write_text("<svg/>")
    (tmp_path / "in" / "notes.txt").write_text("none")
    return tmp_path / "in"


def test_they_are_read_and_the_rest_is_counted(photo_run: Path, folder: Path, cli: Cli, tmp_path: Path) -> None:
    for words in (
        ("predict", photo_run, folder, "--json"),
        ("predict", photo_run, folder, "--out", tmp_path / "p.csv"),
        ("embed", photo_run, folder, "--out", tmp_path / "e.npz"),
        ("explain", photo_run, folder, "--no-trust", "--out", tmp_path / "m.jsonl"),
        ("explain", photo_run, folder, "--no-trust", "--out", tmp_path / "page.html"),
        ("similar", photo_run, folder / "a.png", folder, "--out", tmp_path / "s.html"),
    ):
        answer = cli(*words)
        assert answer.code == 0, answer.err
        assert ".svg (1)" in answer.err + answer.out, words[0]
        assert ".txt (1)" in answer.err + answer.out, words[0]
        if "--json" in words:
            found = json.loads(answer.out)
            assert [Path(one["file"]).name for one in found] == list(READ)
            assert len({one["label"] for one in found}) == 1
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == len(READ)


def test_an_image_that_nothing_reads_is_named(photo_run: Path, folder: Path, cli: Cli, tmp_path: Path) -> None:
    (folder / "f.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    for words in (
        ("predict", photo_run, folder),
        ("predict", photo_run, folder, "--out", tmp_path / "p.csv"),
        ("explain", photo_run, folder, "--no-trust", "--out", tmp_path / "m.jsonl"),
    ):
        answer = cli(*words)
        assert answer.code == DATA, words
        assert "f.heic" in answer.problem
    answer = cli("embed", photo_run, folder, "--out", tmp_path / "e.npz")
    assert "f.heic" in answer.err


def test_a_training_reads_them(folder: Path, cli: Cli, tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(2):
            for name in READ:
                (tmp_path / "data" / label / f"{number}{name}").write_bytes((folder / name).read_bytes())
    (tmp_path / "tiny.yaml").write_text("network: {image_size: 16, patch_size: 8, width: 16, depth: 1, heads: 2}\n")
    fast = ("--config", tmp_path / "tiny.yaml", "--epochs", 1, "--threads", 1, "--precision", "fp32")
    answer = cli("train", tmp_path / "data", "--out", tmp_path / "run", *fast, "--json")
    assert answer.code == 0, answer.err
    assert sum(json.loads((tmp_path / "run" / "data.json").read_text())["images"].values()) == 4 * len(READ)
    assert cli("data", "pack", tmp_path / "data", "--out", tmp_path / "packed").code == 0
    assert cli("evaluate", tmp_path / "run", tmp_path / "packed").code == 0
