"""A model that writes, at the command line: trained, asked, evaluated, explained; and what is typed wrongly."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_be_understood, must_refuse, next_of, retyped
from tests.shared_runs import configuration, once, run_of, stamps, stored, strings
from vitrail.errors import UsageError
from vitrail.tasks import sequences

WRITE = "predict"  # the verb that prints what a model writes
MOST = "92 %"  # what a certain token gets at most with label smoothing 0.1 over two letters and three special ids


def put_files(root: Path) -> None:
    """Data that cannot be learnt or read, and images that can."""
    shutil.copytree(strings(), root, dirs_exist_ok=True)
    (root / "columns.tsv").write_text("1\t2\n1\t2\t3\t4\n")
    (root / "empty.tsv").write_text("\t2\n")
    (root / "unknown.tsv").write_text("12\t21\ttrain\n1\t1\tval\n19\t91\ttest\n")
    (root / "short.yaml").write_text("network: {max_length: 5}\ncounts: {train: 60, validation: 20, test: 30}\n")
    (root / "notes.md").write_text("no image")


@pytest.fixture(scope="module")
def place() -> dict[str, Path]:
    """A run that reads texts and one that reads images, both hardly trained, and files in bad states."""
    root = once("files-of-writing", put_files)
    return {
        "root": root,
        "texts": run_of("sort-digits"),
        "images": run_of("strings"),
        "digits": run_of("digits"),
        "image": root / "0.png",
    }


def test_texts(cli: Cli, place: dict[str, Path]) -> None:
    answer = cli(WRITE, place["texts"], "312", "9")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == ["312", "9"]
    assert all(line.endswith(" %") for line in answer.out.splitlines())
    rows = json.loads(cli(WRITE, place["texts"], "312", "9", "--json").out)
    keys = {"input", "text", "probability", "ended", "notes", "compute_dtype"}
    assert [set(row) for row in rows] == [keys] * 2
    model = vitrail.load(place["texts"])
    assert [row["text"] for row in rows] == [written.text for written in model.predict(["312", "9"])]


def test_searches(cli: Cli, place: dict[str, Path]) -> None:
    def written(*more: object) -> dict:
        return json.loads(cli(WRITE, place["texts"], "3127", *more, "--json").out)[0]

    assert set(written()) == set(written("--beam", 4))
    drawn = [written("--sample", "--seed", seed)["text"] for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_images_and_what_cannot_be_read(cli: Cli, place: dict[str, Path]) -> None:
    first, second = place["image"], place["root"] / "1.png"
    rows = json.loads(cli(WRITE, place["images"], first, second, "--json").out)
    assert [row["input"] for row in rows] == [str(first), str(second)]
    answer = cli(WRITE, place["images"], place["root"] / "notes.md", first, "--json")
    must_refuse(answer, DATA, "notes.md")
    assert len(json.loads(answer.out)) == 1


def test_evaluate(cli: Cli, place: dict[str, Path]) -> None:
    value = json.loads(cli("evaluate", place["texts"], "--json").out)
    for key in ("split", "sequences", "exact", "exact_match", "interval", "tokens", "edit_distance", "by_length"):
        assert value[key] == stored(place["texts"])[key]
    assert value["sequences"] == 30
    assert value["token_error_rate"] == value["edit_distance"] / value["tokens"] > 0
    answer = cli("evaluate", place["texts"], "--split", "validation")
    assert "20 sequences" in answer.out
    named = json.loads(cli("evaluate", place["images"], place["root"] / "labels.csv", "--json").out)
    assert (named["split"], named["sequences"]) == ("test", 6)


def test_a_report_of_a_model_that_writes_refuses_what_only_classes_have(place: dict[str, Path]) -> None:
    model = vitrail.load(place["images"])
    background = torch.zeros(12, model.preprocessing.channels, *model.preprocessing.size)
    for given in ({"background": background}, {"target": 0}, {"methods": "rollout"}, {"full": True}):
        with pytest.raises(UsageError) as refused:
            vitrail.explain.report(model, place["image"], **given)
        assert next(iter(given)) in str(refused.value)
    assert len(vitrail.explain.report(model, place["image"])[0].attributions) == len(
        model.predict(place["image"])[0].text
    )


def test_explain_shows_where_each_token_was_read(cli: Cli, place: dict[str, Path], tmp_path: Path) -> None:
    answer = cli("explain", place["images"], place["image"], "--out", tmp_path / "p.html", "--json")
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)["images"]
    (written,) = vitrail.load(place["images"]).predict(place["image"])
    assert row["text"] == written.text
    assert [attribution["target"] for attribution in row["attributions"]] == list(written.text)
    for attribution in row["attributions"]:
        assert np.array(attribution["values"]).shape == (2, 12)
        assert np.array(attribution["values"]).sum() == pytest.approx(1.0, abs=1e-4)
    assert len({attribution["overlay"] for attribution in row["attributions"]}) == len(written.text)
    assert all(Path(attribution["overlay"]).is_file() for attribution in row["attributions"])
    page = (tmp_path / "p.html").read_text()
    assert f"<b>{written.text}</b>" in page
    words = ("--count", 2, "--out", tmp_path / "o.html")
    own = cli("explain", place["images"], strings() / "labels.csv", *words)
    assert own.code == 0
    assert str(tmp_path / "o.html") in own.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--method rollout", "--method rollout"),
        ("--compare", "--compare"),
        ("--compare --methods rollout", "--methods"),
        ("--compare --methods rollout,tam --target a --full", "--methods"),
    ],
)
def test_the_hint_is_a_command_that_works(
    words: str, named: str, cli: Cli, place: dict[str, Path], tmp_path: Path
) -> None:
    typed = ["explain", place["images"], place["image"], "--out", tmp_path / "p.html", *words.split()]
    answer = cli(*typed)
    must_refuse(answer, USAGE, named)
    again = retyped([*map(str, typed)], answer)
    assert again is not None
    assert cli(*again).code == 0


def test_the_decoders_layer_and_head_asked_for(cli: Cli, place: dict[str, Path], tmp_path: Path) -> None:
    def values(*words: str) -> np.ndarray:
        answer = cli("explain", place["images"], place["image"], "--out", tmp_path / "p.html", "--json", *words)
        return np.array([each["values"] for each in json.loads(answer.out)["images"][0]["attributions"]])

    heads = [values("--option", f"head={head}") for head in range(2)]
    assert not np.allclose(*heads, atol=1e-4)
    np.testing.assert_allclose(np.mean(heads, axis=0), values(), atol=1e-5)
    np.testing.assert_allclose(values("--option", "layer=0", "--option", "head=none"), values("--option=layer=0"))


@pytest.mark.parametrize(
    ("words", "code", "given"),
    [
        (f"{WRITE}", USAGE, f"{WRITE} RUN"),
        (f"{WRITE} nothere 12", DATA, "nothere"),
        (f"{WRITE} {{texts}}", USAGE, ""),
        (f"{WRITE} {{texts}} 12x", DATA, "12x x 3"),
        (f"{WRITE} {{texts}} {{image}}", USAGE, "{texts} {image} 7"),
        (f"{WRITE} {{texts}} {{root}}", USAGE, "{texts} {root}"),
        (f"{WRITE} {{texts}} 12 --data-root {{root}}", USAGE, "--data-root {root} {texts}"),
        (f"{WRITE} {{texts}} 12 --beam 0", USAGE, "--beam 0"),
        (f"{WRITE} {{texts}} 12 --beam 2 --sample", USAGE, "--beam --sample"),
        (f"{WRITE} {{texts}} 12 --seed 3", USAGE, "--seed --sample"),
        (f"{WRITE} {{texts}} 12 --sample --temperature 0", USAGE, "--temperature 0"),
        (f"{WRITE} {{texts}} 12 --sample --temperature nan", USAGE, "--temperature nan"),
        (f"{WRITE} {{texts}} 12 --sample --seed -1", USAGE, "--seed -1"),
        (f"{WRITE} {{images}} 12", USAGE, "{images} 12"),
        (f"{WRITE} {{images}} {{root}}/nothing.png", DATA, "{root}/nothing.png"),
        (f"{WRITE} {{images}} {{root}}/notes.md", DATA, "notes.md"),
        (f"{WRITE} {{digits}} {{image}} --beam 2", USAGE, "{digits} --beam"),
        (f"{WRITE} {{digits}} {{image}} --sample --seed 1", USAGE, "{digits} --sample"),
        ("explain {texts} {image}", USAGE, "{texts}"),
        ("explain {images} {image} --method rollout", USAGE, "rollout"),
        ("explain {images} {image} --target a", USAGE, "--target a"),
        ("explain {images} {image} --precision bf16", USAGE, "--precision"),
        ("explain {images} {image} --option layer=9", USAGE, "layer 9"),
        ("explain {images} {image} --option steps=9", USAGE, "steps layer head"),
        ("evaluate {texts} {root}/labels.csv", DATA, "{root}/labels.csv"),
        ("evaluate {texts} {root}/notes.md", DATA, "{root}/notes.md"),
        ("evaluate {texts} --split all", USAGE, "all train validation test"),
        ("train {root}/columns.tsv", DATA, "columns.tsv 2 4"),
        ("train {root}/empty.tsv", DATA, "empty.tsv 1 source"),
        ("train {root}/unknown.tsv", DATA, "test 91 9 1"),
        ("train {root}/none.tsv", DATA, "none.tsv"),
        ("train sort-digits --config {root}/short.yaml", DATA, "4"),
        ("train sort-digits --size S/16", USAGE, "--size S/16"),
        ("train sort-digits --recipe mnist", USAGE, "mnist"),
        ("train sort-digit", USAGE, "sort-digit"),
    ],
)
def test_two_lines_and_an_exit_code(
    words: str,
    code: int,
    given: str,
    cli: Cli,
    place: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = stamps(place["root"])
    typed = words.format(**place).split()
    answer = cli(*typed)
    must_refuse(answer, code, given.format(**place))
    again = retyped(typed, answer)
    if again is not None:
        must_be_understood(again)
    assert stamps(place["root"]) == before
    assert list(tmp_path.iterdir()) == []  # nor was anything begun


def test_an_empty_text(cli: Cli, place: dict[str, Path]) -> None:
    answer = cli(WRITE, place["texts"], "12", "", "3", "--json")
    must_refuse(answer, DATA, "2 3")  # the second of three
    assert [row["input"] for row in json.loads(answer.out)] == ["12", "3"]


def test_a_source_longer_than_all_of_training(cli: Cli, place: dict[str, Path]) -> None:
    longest = vitrail.load(place["texts"]).facts["longest_source"]
    answer = cli(WRITE, place["texts"], "12", "7" * (longest + 1), "--json")
    assert answer.code == 0
    first, second = (row["notes"] for row in json.loads(answer.out))
    (note,) = set(second) - set(first)
    assert str(longest) in note
    assert f"{'7' * (longest + 1)}: {note}" in answer.err
    assert note not in cli(WRITE, place["texts"], "7" * longest).err


def test_what_writes_nothing_is_seen(
    cli: Cli, place: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sequences.TextCodec.answer

    def nothing(*given: Any) -> list[sequences.TextPrediction]:
        return [replace(one, text="", ids=()) for one in whole(*given)]

    monkeypatch.setattr(sequences.TextCodec, "answer", nothing)
    assert "(empty)" in cli(WRITE, place["texts"], "12").out
    assert json.loads(cli(WRITE, place["texts"], "12", "--json").out)[0]["text"] == ""
    page = tmp_path / "page.html"
    assert "(empty)" in cli("explain", place["images"], place["image"], "--out", page).out
    assert "(empty)" in page.read_text()
    words = ("--config", configuration("sort-digits"), "--epochs", 1, "--threads", 1, "--out", tmp_path / "run")
    assert cli("train", "sort-digits", *words).code == 0
    assert "(empty)" in (tmp_path / "run" / "run.html").read_text()
    assert stored(tmp_path / "run")["mistakes"][0]["written"] == ""


def test_probabilities_of_texts_are_explained(cli: Cli, place: dict[str, Path], tmp_path: Path) -> None:
    """Images with texts are learnt with label smoothing; digits that are sorted are not."""
    for file in ("run.html", "model/README.md"):
        assert MOST in (place["images"] / file).read_text()
        assert MOST not in (place["texts"] / file).read_text()
    answer = cli("explain", place["images"], place["image"], "--out", tmp_path / "page.html")
    assert MOST in answer.out
    assert MOST in (tmp_path / "page.html").read_text()
    answer = cli(WRITE, place["images"], place["image"])
    assert MOST in answer.err
    assert MOST not in answer.out
    (row,) = json.loads(cli(WRITE, place["images"], place["image"], "--json").out)
    assert MOST in row["about_probabilities"]
    assert "about_probabilities" not in json.loads(cli(WRITE, place["texts"], "12", "--json").out)[0]


def test_a_classifier_reads_no_text(cli: Cli, digits_run: Path) -> None:
    answer = cli("predict", digits_run, "12")
    must_refuse(answer, USAGE, f"{digits_run} 12")
    must_be_understood(retyped((), answer) or ["predict", "--help"])  # or `ls`, for the images that there are
    must_refuse(cli("evaluate", digits_run, "sort-digits"), DATA, "sort-digits")


def test_training_is_told_as_for_classes(cli: Cli, tmp_path: Path) -> None:
    words = ("sort-digits", "--config", configuration("sort-digits"), "--epochs", 1, "--threads", 1)
    answer = cli("train", *words, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "30 sequences" in answer.out
    assert "60 pairs" in answer.out
    assert "image" not in answer.out
    assert cli(*next_of(answer)).code == 0
    value = json.loads(cli("train", *words, "--out", tmp_path / "run", "--resume", "auto", "--json").out)
    assert set(value) >= {"run", "split", "sequences", "exact_match", "token_error_rate", "weights", "seconds"}
