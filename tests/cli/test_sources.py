"""What a person names reaches the same images in every verb: lists of all kinds, folders, sets, shards, mixtures."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_refuse
from tests.features.test_embed import model_of
from tests.photographs import make_photographs
from tests.sequence_models import text_model
from vitrail.cli.main import VERBS
from vitrail.cli.parse import parse
from vitrail.cli.refusals import name_folders

KINDS, SUFFIXES = ("labelled", "bare", "table"), (".csv", ".tsv", ".jsonl")
LISTS = [  # each kind and each suffix once; all of them in `make soak`
    pytest.param(kind, suffix, marks=() if (row, at) in ((0, 0), (1, 1), (2, 2)) else pytest.mark.soak)
    for row, kind in enumerate(KINDS)
    for at, suffix in enumerate(SUFFIXES)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine photographs in class folders, lists of them with labels and without, and a model."""
    root = tmp_path_factory.mktemp("sources")
    files = [file.relative_to(root) for file in make_photographs(root / "photos", ("a", "b", "c"), 3, 0)]
    (root / "lists").mkdir()
    rows = [(f"../{file}", file.parent.name, f"scene {number // 2}", "") for number, file in enumerate(files)]
    heads = {"labelled": ("path", "label", "group"), "bare": ("path",), "table": ("File", "label", "group", "problem")}
    for name, head in heads.items():
        cut = [row[: len(head)] for row in rows]
        for suffix, between in ((".csv", ","), (".tsv", "\t")):
            (root / "lists" / f"{name}{suffix}").write_text("\n".join(map(between.join, (head, *cut))))
        lines = [json.dumps(dict(zip(head, row, strict=True))) for row in cut]
        (root / "lists" / f"{name}.jsonl").write_text("\n".join(lines))
    vitrail.save(model_of(), root / "model")
    return root


def files_of(place: Path) -> list[Path]:
    return sorted((place / "photos").rglob("*.*"))


@pytest.mark.parametrize(("name", "suffix"), LISTS)
def test_a_list_is_read_by_every_verb(name: str, suffix: str, place: Path, cli: Cli, tmp_path: Path) -> None:
    """Its paths are relative to it, its names are its own, and what it says of classes is told where they are known."""
    data, files, model = place / "lists" / f"{name}{suffix}", files_of(place), vitrail.load(place / "model")
    listed, wanted = [f"../{file.relative_to(place)}" for file in files], model.predict(files)
    truths = [None if name == "bare" else file.parent.name for file in files]
    out = tmp_path / "p.csv"
    assert cli("predict", place / "model", data, "--out", out).code == 0
    with open(out, newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["file"] for row in rows] == listed
    assert [row["label"] for row in rows] == [one.label for one in wanted]
    assert [float(row["probability"]) for row in rows] == pytest.approx([one.probability for one in wanted], abs=1e-5)
    assert [one.name for one in model.predict(data)] == listed
    lines = tmp_path / "maps.jsonl"
    assert cli("explain", place / "model", data, "--no-trust", "--out", lines).code == 0
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(one["file"], one["true_label"]) for one in told] == list(zip(listed, truths, strict=True))
    page = cli("explain", place / "model", data, "--no-trust", "--count", 3, "--out", tmp_path / "e.html", "--json")
    assert [one["file"] for one in json.loads(page.out)["images"]] == listed[::3]
    found = vitrail.embed(place / "model", data)
    assert (found.ids, found.labels) == (tuple(listed), None if name == "bare" else tuple(truths))
    apart = vitrail.embed(model, place / "photos")
    assert np.abs(found.values["mean"] - apart.values["mean"]).max() <= 1e-5
    near = json.loads(cli("similar", place / "model", files[0], data, "--out", tmp_path / "s.html", "--json").out)
    assert listed[0] not in [each["file"] for each in near["queries"][0]["neighbours"]], "itself is no neighbour"
    answer = cli("evaluate", place / "model", data, "--json")
    if name == "bare":
        must_refuse(answer, DATA, str(data))
        assert answer.out == ""
    else:
        right = sum(one.label == truth for one, truth in zip(wanted, truths, strict=True))
        assert json.loads(answer.out)["accuracy"] == pytest.approx(right / 9)


def test_sets_and_shards_are_answered_as_files_are(place: Path, cli: Cli, digits_run: Path, tmp_path: Path) -> None:
    rows = json.loads(cli("predict", digits_run, "digits", "--json").out)
    assert len(rows) == len({row["file"] for row in rows}) == 1797
    evaluated = json.loads(cli("evaluate", digits_run, "digits", "--json").out)
    tested = vitrail.data.read("digits").splits["test"]
    truth = {tested.name(number): tested.column("label").word(number) for number in range(len(tested))}
    right = sum(row["label"] == truth.get(row["file"]) for row in rows)
    assert right / len(truth) == pytest.approx(evaluated["accuracy"])
    lines = tmp_path / "d.jsonl"
    assert cli("explain", digits_run, "digits", "--count", 5, "--no-trust", "--out", lines).code == 0
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [truth[one["file"]] for one in told] == [one["true_label"] for one in told]
    assert len(told) == 5
    assert cli("data", "pack", place / "lists" / "bare.csv", "--out", tmp_path / "packed").code == 0
    packed = json.loads(cli("predict", place / "model", tmp_path / "packed", "--json").out)
    loose = json.loads(cli("predict", place / "model", place / "photos", "--json").out)
    assert [one["probability"] for one in packed] == [one["probability"] for one in loose]
    page = cli("explain", place / "model", tmp_path / "packed", "--no-trust", "--out", tmp_path / "p.html", "--json")
    assert len(json.loads(page.out)["images"]) == 8


def test_a_model_that_reads_texts_answers_those_of_a_file_of_pairs(place: Path, cli: Cli, tmp_path: Path) -> None:
    model = text_model()
    vitrail.save(model, tmp_path / "model")
    texts = ["".join(model.input.tokens[:2]), "".join(model.input.tokens[1:3])]
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\tx\n" for text in texts))
    answers = [cli("predict", tmp_path / "model", *words, "--json") for words in (texts, [tmp_path / "pairs.tsv"])]
    typed, read = (json.loads(each.out) for each in answers)
    assert [one["input"] for one in read] == texts
    assert read == typed
    for images in (place / "lists" / "bare.csv", place / "photos", files_of(place)[0], "digits"):
        must_refuse(cli("predict", tmp_path / "model", images), USAGE, str(images))


def test_files_and_folders_mix_and_sets_stand_alone(place: Path, cli: Cli, tmp_path: Path) -> None:
    files, words = files_of(place), ("predict", place / "model")
    mixed = json.loads(cli(*words, files[4], place / "photos" / "a", files[4], "--json").out)
    assert [one["file"] for one in mixed] == [str(file) for file in (files[4], *files[:3], files[4])]
    out = ("--no-trust", "--out", tmp_path / "p.html", "--json")
    shown = cli("explain", place / "model", files[4], place / "photos" / "a", "--count", 1, *out)
    assert [one["file"] for one in json.loads(shown.out)["images"]] == [str(files[4]), str(files[0])]
    for other in (place / "lists" / "bare.csv", "digits"):
        for verb in ("predict", "explain"):
            for names in ((files[0], other), (other, files[0])):
                must_refuse(cli(verb, place / "model", *names), USAGE, str(other))


def test_what_is_no_image_is_counted_and_named(place: Path, cli: Cli, tmp_path: Path) -> None:
    """It was passed over without a word; a folder with nothing else is an error that names it."""
    folder = tmp_path / "D"
    folder.mkdir()
    shutil.copy(files_of(place)[0], folder / "a.jpg")
    for name in ("b.raw", "c.raw", "notes.txt"):
        (folder / name).write_bytes(b"0")
    for words in (
        ("predict", place / "model", folder),
        ("predict", place / "model", folder, "--out", tmp_path / "p.csv"),
        ("embed", place / "model", folder, "--out", tmp_path / "e.npz"),
        ("explain", place / "model", folder, "--no-trust", "--out", tmp_path / "p.html"),
        ("explain", place / "model", folder, "--no-trust", "--out", tmp_path / "lines.jsonl"),
    ):
        answer = cli(*words)
        assert answer.code == 0
        assert all(ending in answer.err for ending in (".raw (2)", ".txt (1)")), words
    (folder / "a.jpg").unlink()
    for verb in ("predict", "explain", "embed"):
        answer = cli(verb, place / "model", folder, *(("--out", tmp_path / "x.npz") if verb == "embed" else ()))
        must_refuse(answer, DATA, f"{folder} .raw")


@pytest.mark.parametrize("verb", ["predict", "explain", "embed", "similar", "evaluate"])
@pytest.mark.parametrize(
    ("name", "code"), [("nothing.csv", DATA), ("columns.csv", DATA), ("gone.csv", DATA), ("digitz", USAGE)]
)
def test_what_names_no_images_is_refused_and_nothing_is_written(
    name: str, code: int, verb: str, place: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "columns.csv").write_text("photo,class\na.jpg,b\n")
    (tmp_path / "gone.csv").write_text("path\nno.jpg\n")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    more = {"embed": ("--out", "f.npz"), "similar": (place / "photos",)}.get(verb, ())
    must_refuse(cli(verb, place / "model", name, *more), code, name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_has_the_name_of_a_set_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every verb that takes data; not where it is written as a path, nor a run of that name."""
    monkeypatch.chdir(tmp_path)

    def named(data: str) -> set[int]:
        """How often each verb names the folder."""
        every = f"train {data}; data check {data}; data show {data}; evaluate r {data}; predict r {data} {data}; "
        every += f"explain r {data}; embed r {data} --out f.npz; similar r x.png {data}; distill {data} --teacher r"
        counts = set[int]()
        for words in map(str.split, every.split("; ")):
            options = parse(VERBS[words[0]].options, words[0], words[1:])
            name_folders(options)
            counts.add(capsys.readouterr().err.count("./digits"))
        return counts

    assert named("digits") == {0}
    (tmp_path / "digits" / "a").mkdir(parents=True)
    assert named("digits") == {1}
    assert named("./digits") == {0}
    (tmp_path / "digits" / "config.yaml").write_text("data: digits")
    assert named("digits") == {0}
