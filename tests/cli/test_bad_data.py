"""Data that contradict themselves, or say too little: two lines, exit 2 or 3, and nothing is written beside them."""

import csv
import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.cli.command import DATA, USAGE, call, must_refuse
from tests.cli.test_elongated import TINY

Case = tuple[Callable[[Path], list[object]], int, str]


def content(number: int) -> bytes:
    held = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(held, "PNG")
    return held.getvalue()


def listed(header: str, line: str, ending: str = "csv") -> Callable[[Path], Path]:
    """Twelve images and a list: in a line `n` is the number, `ab` one of two classes, `part` one of two splits."""

    def write(root: Path) -> Path:
        rows = [header]
        for n in range(12):
            (root / f"{n}.png").write_bytes(content(n))
            rows.append(line.format(n=n, ab="ab"[n % 2], half="ab"[n % 2] * (n < 6), part=("train", "val")[n > 7]))
        (root / f"list.{ending}").write_text("\n".join(rows))
        return root / f"list.{ending}"

    return write


def train(write: Callable[[Path], Path], *more: object) -> Callable[[Path], list[object]]:
    return lambda root: ["train", write(root), *more]


def zipped(members: dict[str, bytes]) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        with zipfile.ZipFile(root / "set.zip", "w") as archive:
            for name, each in members.items():
                archive.writestr(name, each)
        return root / "set.zip"

    return write


def tar_alone(root: Path) -> Path:
    """Images that nothing sorts, without an index beside them."""
    with tarfile.open(root / "set.tar", "w") as archive:
        for n in range(12):
            about = tarfile.TarInfo(f"{n}.png")
            about.size = len(content(n))
            archive.addfile(about, io.BytesIO(content(n)))
    return root / "set.tar"


def table(root: Path) -> Path:
    pq.write_table(pa.table({"width": [1.0], "species": ["ant"]}), root / "set.parquet")
    return root / "set.parquet"


def two_of_a_stem(root: Path) -> Path:
    for folder in "ab":
        (root / folder).mkdir()
        (root / folder / "same.png").write_bytes(content(1))
    (root / "list.csv").write_text("id,label\nsame,x\n")
    return root / "list.csv"


def newlines(root: Path) -> Path:
    """A name in two lines, of which the second looks like one of ours, and which cannot be read."""
    (root / "a\nvitrail: all is well\n.png").write_bytes(b"")
    return root / "a\nvitrail: all is well\n.png"


LABELLED = listed("path,label", "{n}.png,{ab}")
CASES: dict[str, Case] = {
    "no column of labels": (train(listed("path", "{n}.png")), DATA, "list.csv"),
    "not the column of labels": (train(LABELLED, "--label-column", "species"), USAGE, "list.csv species"),
    "half the labels": (train(listed("path,label", "{n}.png,{half}")), DATA, "list.csv label 8 12"),
    "half the labels, in JSON": (
        train(listed("", '{{"path": "{n}.png", "label": "{half}"}}', "jsonl")),
        DATA,
        "list.jsonl label",
    ),
    "two columns of labels": (train(listed("path,sky,species", "{n}.png,{ab},{half}x")), USAGE, "sky species"),
    "groups in two splits": (
        lambda root: [
            *("data", "check", listed("path,label,split,patient", "{n}.png,{ab},{part},p{ab}")(root)),
            *("--out", root.parent / "page.html"),
        ],
        DATA,
        "list.csv validation",
    ),
    "a pattern without a group": (train(LABELLED, "--group-pattern", "[0-9]+"), USAGE, "group_pattern [0-9]+"),
    "a pattern that fits nothing": (train(LABELLED, "--group-pattern", "(x)_[0-9]+"), DATA, "(x)_[0-9]+ 0.png"),
    "a zip in a zip": (train(zipped({"a/inner.zip": b"PK", "b/read.me": b""})), DATA, "set.zip a/inner.zip"),
    "a member that leads out": (train(zipped({"a/1.png": content(1), "../b.png": b""})), DATA, "set.zip ../b.png"),
    "a tar without labels or index": (train(tar_alone), DATA, "set.tar"),
    "a table without images": (train(table), DATA, "set.parquet width species"),
    "two files of one stem": (train(two_of_a_stem), DATA, "list.csv 2 same a/same.png b/same.png"),
    "a name in several lines": (lambda root: ["predict", "digits", newlines(root)], DATA, "a"),
}
"""Writes the data into a folder and returns the words; the exit code; and what the problem names."""


def state(root: Path) -> dict[str, str]:
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in root.rglob("*") if each.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_what_data_may_not_be(case: str, tmp_path: Path, digits_run: Path) -> None:
    make, code, named = CASES[case]
    (root := tmp_path / "data").mkdir()
    words = [digits_run if word == "digits" else word for word in make(root)]
    before = state(root)
    root.chmod(0o555)
    words += ["--out", tmp_path / "run"] if words[0] == "train" else []
    answer = call(*words)
    must_refuse(answer, code, named)
    assert len([line for line in answer.err.splitlines() if line.startswith("vitrail: ")]) == 1
    assert state(root) == before
    assert not (tmp_path / "run").exists()


def test_a_class_with_one_image_is_named(tmp_path: Path) -> None:
    """It cannot stand on both sides, however they are divided: it is learnt, and no figure covers it."""
    write = listed("path,label", "{n}.png,{ab}")
    data = write(tmp_path)
    data.write_text(data.read_text().replace("3.png,b", "3.png,lone"))
    (tmp_path / "tiny.yaml").write_text(TINY)
    for more in ((), ("--fractions", "60/20/20")):
        run = tmp_path / f"run{len(more)}"
        words = ("--config", tmp_path / "tiny.yaml", "--epochs", 1, "--threads", 1, "--precision", "fp32")
        answer = call("train", data, "--out", run, *words, *more)
        assert answer.code == 0, answer.err
        about = json.loads((run / "data.json").read_text())
        assert sum("lone" in note for note in about["notes"]) == 2, about["notes"]
        shutil.rmtree(run)


def test_names_with_newlines_are_names(tmp_path: Path) -> None:
    """Trained, asked and written into tables, whatever they look like."""
    for row, label in enumerate("ab" * 6):
        (tmp_path / "data" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / label / f'x\n{row:02d}, "y".png').write_bytes(content(row))
    (tmp_path / "tiny.yaml").write_text(TINY)
    run = tmp_path / "run"
    words = ("--config", tmp_path / "tiny.yaml", "--epochs", 1, "--threads", 1, "--precision", "fp32")
    assert call("train", tmp_path / "data", "--out", run, *words).code == 0
    answers = json.loads(call("predict", run, tmp_path / "data", "--json").out)
    names = sorted(str(file) for file in (tmp_path / "data").rglob("*.png"))
    assert sorted(each["file"] for each in answers) == names
    assert call("predict", run, tmp_path / "data", "--out", tmp_path / "found.csv").code == 0
    with (tmp_path / "found.csv").open(newline="") as file:
        assert sorted(line["file"] for line in csv.DictReader(file)) == names
    again = json.loads(call("evaluate", run, tmp_path / "found.csv", "--json").out)
    assert again["accuracy"] == 1.0, "the table of what it predicts is a list"
