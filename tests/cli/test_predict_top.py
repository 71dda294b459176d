"""`predict --top N` and `--top all`: in JSON, at the terminal, in tables; and how often each class is predicted."""

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import vitrail
from tests import shared_runs as runs
from tests.cli.command import USAGE, Cli, must_be_understood, must_refuse, retyped
from tests.tasks.label_sets import NAMES, LabelSets
from vitrail.jobs.answers import row_of
from vitrail.tasks import Classes


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, float]]:
    """The probability of each of ten classes for four digits, by torch alone; and their files."""
    model = vitrail.load(runs.run_of("digits"))
    images = sorted((runs.photographs() / "abc" / "val").glob("a/*.jpg"))
    with torch.no_grad():
        fractions = (model.network(model.tensor(images)) / model.output.temperature).softmax(dim=1)
    return {str(one): dict(zip(model.classes, row.tolist(), strict=True)) for one, row in zip(images, fractions)}  # noqa: B905


def test_the_top_classes_are_those_of_a_softmax(
    cli: Cli, digits_run: Path, expected: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    best = {file: sorted(row.items(), key=lambda each: -each[1]) for file, row in expected.items()}
    for top, count in ((1, 1), (7, 7), ("all", 10), (40, 10)):
        found = json.loads(cli("predict", digits_run, *expected, "--top", top, "--json").out)
        for one in found:
            names, fractions = zip(*one["top"], strict=True)
            assert list(names) == [name for name, _ in best[one["file"]][:count]]
            assert fractions == pytest.approx([value for _, value in best[one["file"]][:count]], abs=1e-6)
    assert all(len(one["top"]) == 5 for one in json.loads(cli("predict", digits_run, *expected, "--json").out))
    answer = cli("predict", digits_run, *expected, "--top", 3)
    lines, last = answer.out.splitlines(), answer.err.splitlines()[-1]
    assert [re.findall(r"(\d) <? ?[\d.]+ %", line) for line in lines] == [
        [name for name, _ in row[:3]] for row in best.values()
    ]
    counts = Counter(row[0][0] for row in best.values())
    assert dict(re.findall(r"(\d): (\d+)", last.partition(":")[2])) == {name: str(n) for name, n in counts.items()}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_have_columns_for_them(
    cli: Cli, digits_run: Path, expected: dict[str, dict[str, float]], tmp_path: Path, ending: str
) -> None:
    """By rank behind the label; or for every class, which the next run reads as numbers."""

    def table(top: object) -> tuple[list[dict], str]:
        out = tmp_path / f"{top}.{ending}"
        answer = cli("predict", digits_run, *expected, "--top", top, "--out", out)
        assert answer.code == 0, answer.err
        rows = list(csv.DictReader(out.read_text().splitlines())) if ending == "csv" else pq.read_table(out).to_pylist()
        return rows, answer.err

    ranked, told = table(3)
    assert list(ranked[0]) == ["file", "label", "probability", "label_2", "p_2", "label_3", "p_3", "problem"]
    whole, _ = table("all")
    assert [*whole[0]][3:-1] == [f"p_{digit}" for digit in range(10)]
    for row, every in zip(ranked, whole, strict=True):
        best = sorted(expected[row["file"]].items(), key=lambda each: -each[1])
        assert [row["label"], row["label_2"], row["label_3"]] == [name for name, _ in best[:3]]
        assert [float(row[key]) for key in ("probability", "p_2", "p_3")] == pytest.approx(
            [value for _, value in best[:3]], abs=1e-6
        )
        assert {name: float(every[f"p_{name}"]) for name in expected[row["file"]]} == pytest.approx(
            expected[row["file"]], abs=1e-6
        )
    assert sum(float(value) for name, value in whole[0].items() if name.startswith("p_")) == pytest.approx(1, abs=1e-5)
    counts = Counter(row["label"] for row in ranked)
    assert dict(re.findall(r"(\d): (\d+)", told.splitlines()[-1].partition(":")[2])) == {
        name: str(count) for name, count in counts.items()
    }


def test_it_is_for_classes_alone(cli: Cli, tmp_path: Path) -> None:
    """Refused where a model writes, or returns numbers; and where parts of another table lie."""
    asked = {"sort-digits": "312", "strings": runs.strings() / "0.png"}
    for name, given in asked.items():
        words = ("predict", runs.run_of(name), given, "--top", 3)
        answer = cli(*words)
        must_refuse(answer, USAGE, f"--top 3 {runs.run_of(name)}")
        must_be_understood(retyped(list(map(str, words)), answer) or ())


def test_labels_that_do_not_exclude_each_other_are_ranked_from_the_first() -> None:
    """The prediction is a set there, and not the first of them."""
    (one,) = LabelSets(NAMES).answer(torch.tensor([[0.0, 2.0, -2.0]]), ["a.png"])
    ranked, whole = row_of(one, 2), row_of(one, "all")
    assert [ranked[key] for key in ("labels", "label_1", "label_2")] == ["cat", "cat", "bird"]
    assert [float(ranked[key]) for key in ("p_1", "p_2")] == pytest.approx([0.880797, 0.5], abs=1e-6)
    assert {name: float(whole[f"p_{name}"]) for name in NAMES} == pytest.approx(
        {"bird": 0.5, "cat": 0.880797, "dog": 0.119203}, abs=1e-6
    )
    assert row_of(one, None) == one.row()


def test_how_many_are_named_is_no_part_of_a_model() -> None:
    some = Classes(("cat", "dog"))
    assert replace(some, most=1) == some
    assert replace(some, most=1).to_dict() == some.to_dict()
