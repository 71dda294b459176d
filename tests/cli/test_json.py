"""With --json, stdout holds one JSON value and nothing else, whatever there is to say besides."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Answer, Cli


def only_json(answer: Answer) -> Any:
    """The one value on stdout."""
    assert answer.out.count("\n") == 1
    return json.loads(answer.out)


@pytest.fixture
def one_bad(photographs: Path, tmp_path: Path) -> Path:
    """The photographs of bcd with a class that no model knows, an unreadable file and hidden folders."""
    root = shutil.copytree(photographs / "bcd", tmp_path / "bcd")
    (root / "b" / "b_000.jpg").write_text("no image")
    (root / ".ipynb_checkpoints").mkdir()
    (root / "empty").mkdir()
    return root


def test_train(cli: Cli, one_bad: Path, tmp_path: Path) -> None:
    answer = cli("train", one_bad, "--epochs", 1, "--image-size", 16, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    value = only_json(answer)
    assert set(value) >= {"run", "split", "images", "accuracy", "interval", "loss", "per_class", "unknown", "weights"}
    assert value["run"] == str(tmp_path / "run")
    for word in ("empty", "b_000.jpg", "epoch"):
        assert word in answer.err


def test_evaluate(cli: Cli, one_bad: Path, photo_run: Path) -> None:
    answer = cli("evaluate", photo_run, one_bad, "--json")
    value = only_json(answer)
    assert answer.code == 0
    assert (value["split"], value["images"], value["unknown"]) == ("all", 7, {"d": 4})
    assert [row["class"] for row in value["per_class"]] == ["a", "b", "c"]
    assert [row["images"] for row in value["per_class"]] == [0, 3, 4]
    assert len(value["unreadable"]) == 1
    assert "b_000.jpg" in value["unreadable"][0]
    assert "empty" in " ".join(value["notes"])
    for word in ("empty", "b_000.jpg", "4"):
        assert word in answer.err


def test_predict(cli: Cli, one_bad: Path, photo_run: Path) -> None:
    answer = cli("predict", photo_run, one_bad, "--json")
    value = only_json(answer)
    assert answer.code == 3
    assert "b_000.jpg" in answer.problem
    assert len(value) == 11
    for row in value:
        assert set(row) == {"file", "label", "probability", "top", "compute_dtype"}
        assert Path(row["file"]).is_file()
        assert row["top"][0] == [row["label"], row["probability"]]
        assert sum(share for _, share in row["top"]) == pytest.approx(1, abs=1e-5)


def test_explain(cli: Cli, one_bad: Path, photo_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    words = ("--count", 3, "--compare", "--methods", "rollout,legrad", "--target", "c", "--out", page, "--json")
    answer = cli("explain", photo_run, one_bad, *words)
    value = only_json(answer)
    assert answer.code == 3  # one of the three is no image; the others are explained
    assert "b_000.jpg" in answer.problem
    assert set(value) == {"model", "page", "images", "left_out", "rates", "made"}
    assert value["page"] == str(page)
    assert "b_000.jpg" in "".join(value["left_out"])
    for place, (rates, method) in enumerate(zip(value["rates"], ("rollout", "legrad"), strict=True)):
        verdicts = [row["attributions"][place]["trust"]["verdict"] for row in value["images"]]
        assert (rates["method"], rates["images"]) == (method, 2)
        assert rates["counts"] == {verdict: verdicts.count(verdict) for verdict in verdicts}
    assert len(value["images"]) == 2
    for row in value["images"]:
        assert [attribution["method"] for attribution in row["attributions"]] == ["rollout", "legrad"]
        for attribution in row["attributions"]:
            assert attribution["target"] == "c"
            assert (attribution["values"] is None) == (attribution["overlay"] is None)  # where there is no evidence
            if attribution["values"] is not None:
                assert (len(attribution["values"]), len(attribution["values"][0])) == (4, 4)
                assert Path(attribution["overlay"]).is_file()
            assert attribution["trust"]["verdict"] in ("supported", "weak", "no better than random", "cannot tell")
    assert page.is_file()


def test_models(cli: Cli, digits_run: Path) -> None:
    table = only_json(cli("models", "--json"))
    assert {row["size"]: row["parameters"] for row in table}["B/16"] == 86_567_656
    one = only_json(cli("models", "B/16", "--json"))
    assert sum(layer["parameters"] for layer in one["layers"]) == one["parameters"] == 86_567_656
    assert sum(layer["flops"] for layer in one["layers"]) == one["flops"]
    assert one["flops"] / 1e9 == pytest.approx(35.1, abs=0.05)
    own = only_json(cli("models", digits_run, "--json"))
    assert own["config"]["image_size"] == [8, 8]


def test_doctor(cli: Cli) -> None:
    answer = cli("doctor", "--json")
    value = only_json(answer)
    assert answer.err == ""
    assert answer.code == (0 if all(device["works"] for device in value["devices"]) else 1)
    assert value["devices"][0]["name"] == "cpu"
    assert value["devices"][0]["works"]
    assert value["extras"]["digits"] is True
    assert all(each["milliseconds"] > 0 for each in value["devices"][0]["forward"])


@pytest.mark.parametrize(
    "words",
    [("models", "Q/9"), ("evaluate", "no-run"), ("predict", "no-run", "x.png"), ("train", "x", "--epochs", "y")],
)
def test_an_error_leaves_stdout_empty(words: tuple[str, ...], cli: Cli) -> None:
    answer = cli(*words, "--json")
    assert answer.out == ""
    assert answer.code in (2, 3)
    assert answer.problem
