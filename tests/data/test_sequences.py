"""Sequences from names and files: what is held out is held out, and what is odd is said."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.lab import open_set
from tests.errors import figures
from vitrail.data.columns import Texts
from vitrail.data.dataset import Counts, Samples
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.sets.digit_strings import StringImages
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError


def texts(samples: Samples | None, count: int | None = None) -> list[str]:
    """The texts of some samples."""
    assert samples is not None
    return samples.column("text").take(np.arange(len(samples) if count is None else count))


def sources(samples: Samples) -> tuple[str, ...]:
    """The texts that are read."""
    assert isinstance(samples.inputs, Texts)
    return samples.inputs.values


FEW = Counts(train=300, validation=50, test=60)


def test_strings_of_mnist_are_made_and_opened_again(mnist_root: Path) -> None:
    source = open_set("mnist-strings", mnist_root, counts=FEW)
    assert {name: len(samples) for name, samples in source.splits.items()} == {
        "train": 300,
        "validation": 50,
        "test": 60,
    }
    assert isinstance(source.train.inputs, StringImages)
    assert len(source.train.inputs.labels) == 55_000
    assert not source.reads_text
    assert source.test is not None
    assert isinstance(source.test.inputs, ArrayImages)
    again = open_set(source.name, Path(source.root), source.split_seed or 0, FEW)
    assert again.fingerprint == source.fingerprint
    moved = open_set("mnist-strings", mnist_root, seed=1, counts=FEW)
    assert texts(moved.test) == texts(source.test)  # the test never moves
    assert texts(moved.train, 60) != texts(source.train, 60)


def test_pairs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"a{n}\t{n}b\n" for n in range(50)))
    source = open_set(str(path))
    assert (len(source.train), len(source.validation), source.test) == (45, 5, None)
    assert source.split_seed == 0
    pairs = dict(zip(sources(source.train), texts(source.train), strict=True))
    assert all(pairs[f"a{n}"] == f"{n}b" for n in range(50) if f"a{n}" in pairs)
    other = open_set(str(path), seed=1)
    assert other.fingerprint != source.fingerprint
    assert open_set(source.root).fingerprint == source.fingerprint


def test_the_same_source_stays_on_one_side(tmp_path: Path) -> None:
    """Else what is validated was learnt: repeated lines go together."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"s{n % 20}\tt\n" for n in range(200)))
    source = open_set(str(path))
    assert not set(sources(source.train)) & set(sources(source.validation))
    assert len(source.validation) == 20


def test_a_split_column_rules(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("ab\tba\ttrain\nb\ta\tval\na\tb\ttest\na\tb\ttrain\n")
    source = open_set(str(path))
    assert {name: len(samples) for name, samples in source.splits.items()} == {"train": 2, "validation": 1, "test": 1}
    assert source.split_seed is None
    assert list(map(figures, source.notes)) == [["1"]]


def test_images_with_texts(tmp_path: Path) -> None:
    rows = ["path,text"]
    for number in range(20):
        Image.fromarray(np.full((8, 20), number, np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number}")
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(rows))
    source = open_set(str(path))
    assert (len(source.train), len(source.validation)) == (18, 2)
    assert isinstance(source.train.inputs, FileImages)
    for index, text in enumerate(texts(source.train)):
        assert source.train.name(index) == f"{text}.png"


def test_columns_say_what_can_be_learnt(tmp_path: Path) -> None:
    """Texts from `text`, classes from `label`; where both stand, a person has to say which."""
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    for name, lines, columns in (
        ("a.csv", "path,label,split\nx.png,y,train", {"label"}),
        ("b.csv", "path,label,text\nx.png,y,z", {"label", "text"}),
        ("c.jsonl", '{"path": "x.png", "label": "y"}', {"label"}),
        ("d.jsonl", '{"path": "x.png", "text": "y"}', {"text"}),
    ):
        (tmp_path / name).write_text(lines + "\n")
        assert set(read(str(tmp_path / name)).columns()) == columns
    with pytest.raises(UsageError):
        open_set(str(tmp_path / "b.csv"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\tb\na\tb\tc\td\n", "line 2 .*4"),
        ("only\n", "line 1 .*1"),
        ("source\n", "line 1 .*1"),
        ("text\ttarget\tsplit\n", "line 1: .*split"),
        ("a\tb\n\tb\n", "line 2: .*source"),
        ("a\t\n", "line 1: .*target"),
        ("a\tb\tnever\n", "line 1: .*never"),
        ("a\tb\ttrain\nc\td\n", "split"),
        ("source\ttarget\n", "pairs.tsv"),
        ("a\tb\n", "validation"),
        ("a\tb\ttest\nc\td\tval\n", "validation, test|test, validation"),
    ],
)
def test_a_bad_file_is_said(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        open_set(str(path))
    assert re.search(problem, caught.value.problem)


@pytest.mark.parametrize(
    "header",
    ["source\ttarget\n", "Source\tTarget\n", "\ufeffSOURCE\tTARGET\n", "\n source \t target \r\n"],
)
def test_a_header_is_not_learnt(header: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(header + "".join(f"a{n}\tb{n}\n" for n in range(20)), encoding="utf-8", newline="")
    source = open_set(str(path))
    assert (len(source.train), len(source.validation)) == (18, 2)
    assert all(source.train.name(index)[0] == "a" for index in range(18))


@pytest.mark.parametrize("line", ["source\ttargets\n", "target\tsource\n", "a0\tb0\nsource\ttarget\n"])
def test_what_only_looks_like_a_header_is_learnt(line: str, tmp_path: Path) -> None:
    """Exactly these names, in the first line: anything else is a pair, such as those of a dictionary."""
    path = tmp_path / "pairs.tsv"
    path.write_text(line + "".join(f"a{n}\tb{n}\n" for n in range(20)))
    source = open_set(str(path))
    assert len(source.train) + len(source.validation) == 20 + line.count("\n")


def test_a_header_with_a_split(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("Source\tTarget\tSplit\na\tb\ttrain\nc\tb\tval\n")
    assert {name: len(samples) for name, samples in open_set(str(path)).splits.items()} == {
        "train": 1,
        "validation": 1,
    }


@pytest.mark.parametrize("header", ["path,text", "Path,Text", "PATH,TEXT", "\ufeffPath, Text"])
def test_the_header_of_a_manifest_may_be_in_capitals(header: str, tmp_path: Path) -> None:
    rows = [header]
    for number in range(20):
        Image.fromarray(np.full((8, 20), number, np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number}")
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    source = open_set(str(path))
    assert (len(source.train), len(source.validation)) == (18, 2)
    path.write_text("\n".join(rows).replace(header, "Path,path,text"), encoding="utf-8")
    with pytest.raises(DataError, match=r"line 2.*text"):  # what is called `path` holds the numbers, which are stems
        open_set(str(path))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        open_set(str(tmp_path / "no.tsv"))
    with pytest.raises(UsageError, match=r"counts.*test"):
        Counts(test=0)
