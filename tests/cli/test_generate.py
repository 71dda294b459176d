"""A model that writes, at the command line: trained, asked, evaluated, explained; and what is typed wrongly."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vitrail.sequence_model import SequenceModel, Written

import vitrail
from tests.cli.command import Answer, hashes
from vitrail.nn import Greedy

Says = Callable[..., Answer]
USAGE, DATA = 2, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that reads texts and one that reads pictures, both hardly trained, and files in bad states."""
    root = tmp_path_factory.mktemp("writing")
    small = root / "small.yaml"
    small.write_text(
        "network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32}\n"
        "counts: {train: 60, validation: 20, test: 30}\n"
    )
    texts = root / "texts"
    vitrail.train("sort-digits", texts, vitrail.TrainOptions(config=small, epochs=1, threads=1))
    draw, rows = np.random.default_rng(0), ["path,text,split"]
    for number in range(24):
        pixels = draw.integers(0, 255, (16, 48)).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
        rows.append(f"{number}.png,{'ab' * (1 + number % 2)},{('train', 'train', 'val', 'test')[number % 4]}")
    (root / "labels.csv").write_text("\n".join(rows))
    tiny = root / "tiny.yaml"
    tiny.write_text("network: {encoder: {width: 16, depth: 1, heads: 2, mlp_dim: 32}, decoder_depth: 1, mlp_dim: 32}\n")
    options = vitrail.TrainOptions(config=tiny, epochs=1, threads=1, batch_size=12, workers=1)
    vitrail.train(str(root / "labels.csv"), root / "pictures", options)
    (root / "columns.tsv").write_text("1\t2\n1\t2\t3\t4\n")
    (root / "empty.tsv").write_text("\t2\n")
    (root / "unknown.tsv").write_text("12\t21\ttrain\n1\t1\tval\n19\t91\ttest\n")
    (root / "short.yaml").write_text("network: {max_length: 5}\n")
    (root / "notes.txt").write_text("no picture")
    return {"root": root, "texts": texts, "pictures": root / "pictures", "picture": root / "0.png"}


def test_texts(vitrail_says: Says, place: dict[str, Path]) -> None:
    answer = vitrail_says("generate", place["texts"], "312", "9")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == ["312", "9"]
    assert all(line.endswith(" %") for line in answer.out.splitlines())
    rows = json.loads(vitrail_says("generate", place["texts"], "312", "9", "--json").out)
    assert [set(row) for row in rows] == [{"input", "text", "probability", "ended", "notes", "about_probabilities"}] * 2
    model = vitrail.load(place["texts"])
    assert [row["text"] for row in rows] == [written.text for written in model.generate(["312", "9"])]


def test_searches(vitrail_says: Says, place: dict[str, Path]) -> None:
    greedy, beam = (
        json.loads(vitrail_says("generate", place["texts"], "3127", *more, "--json").out)[0]
        for more in ((), ("--beam", 4))
    )
    assert set(greedy) == set(beam)
    drawn = [
        json.loads(vitrail_says("generate", place["texts"], "3127", "--sample", "--seed", seed, "--json").out)[0][
            "text"
        ]
        for seed in (1, 1, 2, 3, 4)
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_pictures_and_what_cannot_be_read(vitrail_says: Says, place: dict[str, Path]) -> None:
    rows = json.loads(
        vitrail_says("generate", place["pictures"], place["picture"], place["root"] / "1.png", "--json").out
    )
    assert [row["input"] for row in rows] == [str(place["picture"]), str(place["root"] / "1.png")]
    answer = vitrail_says("generate", place["pictures"], place["root"] / "notes.txt", place["picture"], "--json")
    assert answer.code == DATA
    assert "notes.txt: is not a JPEG" in answer.problem
    assert len(json.loads(answer.out)) == 1


def test_evaluate(vitrail_says: Says, place: dict[str, Path]) -> None:
    stored = json.loads((place["texts"] / "evaluation.json").read_text())
    value = json.loads(vitrail_says("evaluate", place["texts"], "--json").out)
    for key in ("split", "sequences", "exact", "exact_match", "interval", "tokens", "edit_distance", "by_length"):
        assert value[key] == stored[key]
    assert value["sequences"] == 30
    assert value["token_error_rate"] == value["edit_distance"] / value["tokens"] > 0
    answer = vitrail_says("evaluate", place["texts"], "--split", "validation")
    assert answer.out.startswith("validation exact match")
    assert " of 20 sequences (95 % interval " in answer.out
    assert re.search(r"token error rate \d+\.\d\d % \(edit distance / length: \d+ / \d+\), loss", answer.out)
    assert "tokens wrong" not in answer.out
    named = json.loads(vitrail_says("evaluate", place["pictures"], place["root"] / "labels.csv", "--json").out)
    assert (named["split"], named["sequences"]) == ("test", 6)


def test_explain_shows_where_each_token_was_read(vitrail_says: Says, place: dict[str, Path], tmp_path: Path) -> None:
    answer = vitrail_says("explain", place["pictures"], place["picture"], "--out", tmp_path / "p.html", "--json")
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)
    (written,) = vitrail.load(place["pictures"]).generate(place["picture"])
    assert row["text"] == written.text
    assert [heat["target"] for heat in row["heats"]] == list(written.text)
    for heat in row["heats"]:
        assert np.array(heat["values"]).shape == (2, 12)
        assert np.array(heat["values"]).sum() == pytest.approx(1.0, abs=1e-4)
    assert len({heat["picture"] for heat in row["heats"]}) == len(written.text)
    assert all(Path(heat["picture"]).is_file() for heat in row["heats"])
    page = (tmp_path / "p.html").read_text()
    assert f"The model says <b>{written.text}</b>" in page
    assert "<p>A map by cross attention. <strong>This method cannot tell" in page
    assert "A map by token" not in page
    own = vitrail_says(
        "explain", place["pictures"], place["root"] / "labels.csv", "--count", 2, "--out", tmp_path / "o.html"
    )
    assert own.code == 0
    assert "the page      " in own.out


@pytest.mark.parametrize(
    ("words", "code", "problem", "hint"),
    [
        ("generate", USAGE, "vitrail generate needs RUN", "vitrail generate --help"),
        ("generate nothere 12", DATA, "there is no run or model at nothere", "vitrail train sort-digits"),
        ("generate {texts}", USAGE, "nothing to read", "vitrail generate {texts} picture.png"),
        ("generate {texts} 12x", DATA, "'12x' has the unknown token 'x' at place 3", "a text of 0 1 2"),
        (
            "generate {texts} {picture}",
            USAGE,
            "the model in {texts} reads texts of 0 1 2 3 4 5 6 7 8 9, and {picture} is a picture",
            "vitrail generate {texts} 3210",
        ),
        ("generate {texts} {root}", USAGE, "{root} is a folder", "vitrail generate {texts} 3210"),
        ("generate {texts} 12 --beam 0", USAGE, "--beam must be at least 1, got 0", "--beam 4"),
        ("generate {texts} 12 --beam 2 --sample", USAGE, "--beam searches and --sample draws", "one of the two"),
        ("generate {texts} 12 --seed 3", USAGE, "--seed is for drawing", "--sample --seed 3"),
        ("generate {texts} 12 --sample --temperature 0", USAGE, "--temperature must be above 0", "--temperature 0.7"),
        ("generate {texts} 12 --sample --temperature nan", USAGE, "--temperature must be above 0", "leave --sample"),
        ("generate {texts} 12 --sample --seed -1", USAGE, "--seed must be at least 0, got -1", "--seed 0"),
        (
            "generate {pictures} 12",
            USAGE,
            "the model in {pictures} reads pictures, and there is no file '12'",
            "vitrail generate {pictures} picture.png",
        ),
        ("generate {pictures} {root}/nothing.png", DATA, "there is no picture {root}/nothing.png", ".png"),
        ("generate {pictures} {root}/notes.txt", DATA, "notes.txt: is not a JPEG", "remove the file"),
        (
            "predict {pictures} {picture}",
            USAGE,
            "reads pictures and writes texts, and vitrail predict is for classes",
            "vitrail generate {pictures} {picture}",
        ),
        ("predict {pictures} 12", USAGE, "reads pictures and writes texts", "generate {pictures} picture.png"),
        ("predict {texts} 12", USAGE, "the model in {texts} reads texts and writes", "vitrail generate {texts} 3210"),
        (
            "explain {texts} {picture}",
            USAGE,
            "reads texts, and only pictures are explained",
            "vitrail generate {texts}",
        ),
        ("explain {pictures} {picture} --method rollout", USAGE, "explains classes", "--method cross_attention"),
        ("explain {pictures} {picture} --method generic_attention", USAGE, "explains classes", "cross_attention"),
        ("explain {pictures} {picture} --target a", USAGE, "--target a is for models that say classes", "leave"),
        ("evaluate {texts} {root}/labels.csv", DATA, "holds pictures, this model reads texts", "data with texts"),
        ("evaluate {texts} {root}/notes.txt", DATA, "holds no sequences", ".tsv"),
        ("evaluate {texts} --split all", USAGE, "has no split all, it has train, validation, test", "--split"),
        ("train {root}/columns.tsv", DATA, "line 2 has 4 columns", "source<TAB>target"),
        ("train {root}/empty.tsv", DATA, "line 1: the source is empty", "remove the line"),
        ("train {root}/unknown.tsv", DATA, "unknown token '9' at place 1, which training does not have", "leave this"),
        ("train {root}/none.tsv", DATA, "there is no file", "sort-digits"),
        (
            "train sort-digits --config {root}/short.yaml",
            DATA,
            "tokens, and the network writes 4 at most",
            "max_length",
        ),
        ("train sort-digits --size S/16", USAGE, "--size S/16 is for classes", "leave --size out"),
        ("train sort-digits --recipe mnist", USAGE, "no recipe 'mnist' for sequences", "--recipe"),
        ("train sort-digit", USAGE, "there is no data set or folder sort-digit", "sort-digits"),
    ],
)
def test_two_lines_and_an_exit_code(
    words: str,
    code: int,
    problem: str,
    hint: str,
    vitrail_says: Says,
    place: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = hashes(place["root"])
    answer = vitrail_says(*words.format(**place).split())
    assert answer.code == code, answer.err
    assert problem.format(**place) in answer.problem
    assert hint.format(**place) in answer.hint
    assert hashes(place["root"]) == before
    assert list(tmp_path.iterdir()) == []  # nor was anything begun


def test_an_empty_text(vitrail_says: Says, place: dict[str, Path]) -> None:
    answer = vitrail_says("generate", place["texts"], "12", "", "3", "--json")
    assert answer.code == DATA
    assert "text 2 of 3 is empty" in answer.problem
    assert "at least one of 0 1 2" in answer.hint
    assert [row["input"] for row in json.loads(answer.out)] == ["12", "3"]


def test_python_s_words_for_a_search_are_not_the_command_line_s(vitrail_says: Says, place: dict[str, Path]) -> None:
    for words in (("--beam", 0), ("--sample", "--temperature", 0), ("--sample", "--seed", -1)):
        said = vitrail_says("generate", place["texts"], "12", *words).err
        assert not re.search(r"Greedy|Sampling|Beam\(|width|first_row", said)


def test_a_source_longer_than_all_of_training(vitrail_says: Says, place: dict[str, Path]) -> None:
    longest = json.loads((place["texts"] / "model" / "config.json").read_text())["longest_source"]
    note = f"longer than the longest of training ({longest} tokens): expect errors"
    answer = vitrail_says("generate", place["texts"], "12", "7" * (longest + 1), "--json")
    assert answer.code == 0
    assert [row["notes"] for row in json.loads(answer.out)] == [[], [note]]
    assert f"{'7' * (longest + 1)}: {note}" in answer.err
    assert "longer than" not in vitrail_says("generate", place["texts"], "7" * longest).err


def test_what_writes_nothing_is_seen(
    vitrail_says: Says, place: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = SequenceModel.write

    def nothing(self: SequenceModel, inputs, names, search=Greedy()) -> list[Written]:  # noqa: B008
        return [one._replace(text="", ids=()) for one in whole(self, inputs, names, search)]

    monkeypatch.setattr(SequenceModel, "write", nothing)
    assert vitrail_says("generate", place["texts"], "12").out.startswith("12  (empty)  ")
    assert json.loads(vitrail_says("generate", place["texts"], "12", "--json").out)[0]["text"] == ""
    page = tmp_path / "page.html"
    answer = vitrail_says("explain", place["pictures"], place["picture"], "--out", page)
    assert f"{place['picture']}  (empty)  " in answer.out
    assert "The model says <b>(empty)</b>" in page.read_text()
    words = ("--config", place["root"] / "small.yaml", "--epochs", 1, "--threads", 1, "--out", tmp_path / "run")
    assert vitrail_says("train", "sort-digits", *words).code == 0
    assert "<td>(empty)</td>" in (tmp_path / "run" / "run.html").read_text()
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["mistakes"][0]["written"] == ""


def test_probabilities_of_texts_are_explained(vitrail_says: Says, place: dict[str, Path], tmp_path: Path) -> None:
    """Pictures with texts are learnt with label smoothing 0.1; two letters and three special ids are five."""
    said = "label smoothing 0.1, so even a certain token gets at most about 92 %"
    assert said in (place["pictures"] / "run.html").read_text()
    assert said in (place["pictures"] / "model" / "README.md").read_text()
    answer = vitrail_says("explain", place["pictures"], place["picture"], "--out", tmp_path / "page.html")
    assert said in answer.out
    assert said in (tmp_path / "page.html").read_text()
    answer = vitrail_says("generate", place["pictures"], place["picture"])
    assert said in answer.err
    assert "smoothing" not in answer.out
    (row,) = json.loads(vitrail_says("generate", place["pictures"], place["picture"], "--json").out)
    assert said in row["about_probabilities"]
    assert "smoothing" not in vitrail_says("generate", place["texts"], "12").err
    assert json.loads(vitrail_says("generate", place["texts"], "12", "--json").out)[0]["about_probabilities"] == ""
    for file in ("run.html", "model/README.md"):  # sort-digits is learnt without
        text = (place["texts"] / file).read_text()
        assert "so even a certain token" not in text


def test_a_classifier_writes_nothing(vitrail_says: Says, digits_run: Path) -> None:
    answer = vitrail_says("predict", digits_run, "12")
    assert answer.code == USAGE
    assert f"the model in {digits_run} reads pictures, and there is no file '12'" in answer.problem
    assert f"vitrail predict {digits_run} picture.png" in answer.hint
    answer = vitrail_says("generate", digits_run, "12")
    assert answer.code == USAGE
    assert "reads pictures and says classes" in answer.problem
    assert f"vitrail predict {digits_run} picture.png" in answer.hint
    assert "holds sequences" in vitrail_says("evaluate", digits_run, "sort-digits").problem


def test_training_is_told_as_for_classes(vitrail_says: Says, place: dict[str, Path], tmp_path: Path) -> None:
    words = ("sort-digits", "--config", place["root"] / "small.yaml", "--epochs", 1, "--threads", 1)
    answer = vitrail_says("train", *words, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "test exact match " in answer.out
    assert " of 30 sequences (95 % interval " in answer.out
    assert "60 pairs, 1 epoch of " in answer.out
    assert " pairs/s " in answer.out
    assert "img/s" not in answer.out
    assert "pictures" not in answer.out
    page = (tmp_path / "run" / "run.html").read_text()
    assert "Pairs per second" in page
    assert "Token error rate" in page
    assert "1 block that reads and 1 that writes" in page
    assert f"next       vitrail generate {tmp_path / 'run'} 3210" in answer.out
    value = json.loads(vitrail_says("train", *words, "--out", tmp_path / "again", "--json").out)
    assert set(value) >= {"run", "split", "sequences", "exact_match", "token_error_rate", "weights", "seconds"}
    assert vitrail_says("generate", tmp_path / "run", "3210").code == 0
