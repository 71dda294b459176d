"""The verbs as a person uses them: names are trusted, models travel, runs remember."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import (
    BACKGROUND,
    DATA,
    START,
    USAGE,
    Cli,
    environment,
    must_be_understood,
    must_refuse,
    next_of,
)
from tests.photographs import make_photographs
from tests.shared_runs import stamps
from vitrail.arguments import guesses
from vitrail.cli.main import VERBS
from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViT, ViTConfig
from vitrail.runs.data import CHANGED


def test_classes_are_matched_by_name(cli: Cli, photo_run: Path, photographs: Path) -> None:
    """Trained on a, b, c and evaluated on b, c, d: b and c are right, d is left out, counted and named."""
    before = stamps(photographs)
    answer = cli("evaluate", photo_run, photographs / "bcd")
    assert answer.code == 0
    assert re.match(r"accuracy [\d.]+ % of 8 images ", answer.out)
    accuracy = float(answer.out.split()[1])
    by_class = {line.split()[0]: line.split()[1:] for line in answer.out.splitlines()[3:]}
    assert (by_class["b"][0], by_class["c"][0]) == ("4", "4")
    assert "a" not in by_class, "it has no image here"
    assert accuracy >= 87.5  # by number instead of by name it would be 0
    assert "d (4)" in answer.err
    assert stamps(photographs) == before


def test_strict_allows_no_unknown_class(cli: Cli, photo_run: Path, photographs: Path) -> None:
    answer = cli("evaluate", photo_run, photographs / "bcd", "--strict")
    must_refuse(answer, DATA, "4")
    assert cli("evaluate", photo_run, "--strict").code == 0


def test_a_background_travels_with_the_model_unless_that_is_refused(cli: Cli, digits_run: Path, tmp_path: Path) -> None:
    """`--no-background` leaves out the file and what is said of it, and is a choice that stays with the run."""
    file = digits_run / "model" / BACKGROUND
    assert 0 < file.stat().st_size <= 300 * 1024
    run = tmp_path / "run"
    words = ("train", "digits", "--epochs", 1, "--batch-size", 400, "--threads", 1, "--out", run)
    answer = cli(*words, "--no-background")
    assert answer.code == 0, answer.err
    assert not (run / "model" / file.name).exists()
    again = cli(*words, "--resume", "auto")
    assert again.code == 0, again.err
    assert not (run / "model" / file.name).exists()
    answer = cli("train", "digits", "--resume", "auto", "--no-background", "--out", digits_run)
    must_refuse(answer, USAGE, f"{digits_run} background")
    answer = cli("train", "digits", "--background")
    must_refuse(answer, USAGE, "--background")
    assert answer.hint == "vitrail train digits"  # it travels anyway


def test_a_damaged_background_is_two_lines(cli: Cli, model_copy: Path) -> None:
    file = model_copy / BACKGROUND
    file.write_bytes(file.read_bytes()[:-1])
    answer = cli("evaluate", model_copy, "digits")
    must_refuse(answer, DATA, BACKGROUND)
    file.unlink()
    assert cli("evaluate", model_copy, "digits").code == 0


def test_a_run_remembers_its_data(cli: Cli, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained with a relative path, evaluated from another folder that has other data of that name."""
    home = shutil.copytree(photographs / "abc", tmp_path / "home" / "data").parent
    monkeypatch.chdir(home)
    words = ("data", "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", "run")
    trained = cli("train", *words)
    assert trained.code == 0
    assert next_of(trained)[-2:] == ["run", "data"]
    must_be_understood(next_of(trained))
    here = json.loads(cli("evaluate", "run", "--json").out)
    elsewhere = tmp_path / "elsewhere"
    make_photographs(elsewhere / "data", ("b", "c"), per_class=2, seed=7)
    monkeypatch.chdir(elsewhere)
    there = json.loads(cli("evaluate", home / "run", "--json").out)
    assert (there["images"], there["accuracy"], there["loss"]) == (12, here["accuracy"], here["loss"])
    other = json.loads(cli("evaluate", home / "run", "data", "--json").out)
    assert (other["images"], other["split"]) == (4, "all")


def test_a_flat_folder_is_evaluated_on_what_was_held_out(cli: Cli, photographs: Path, tmp_path: Path) -> None:
    data, run = photographs / "abc" / "train", tmp_path / "run"
    words = ("--epochs", 1, "--image-size", 16, "--threads", 1, "--split-seed", 3, "--out", run, "--json")
    trained = json.loads(cli("train", data, *words).out)
    again = json.loads(cli("evaluate", run, "--json").out)
    named = json.loads(cli("evaluate", run, data, "--json").out)
    for key in ("split", "images", "accuracy", "loss"):
        assert trained[key] == again[key] == named[key]
    assert trained["split"] == "validation"
    rest = json.loads(cli("evaluate", run, "--split", "train", "--json").out)
    assert rest["images"] + trained["images"] == 36


@pytest.mark.parametrize("kind", ["csv", pytest.param("jsonl", marks=pytest.mark.soak)])
def test_a_manifest(kind: str, cli: Cli, photographs: Path, tmp_path: Path) -> None:
    files = sorted((photographs / "abc" / "train").rglob("*.*"))
    rows = [
        {"path": str(f), "label": f.parent.name, "split": "test" if i % 4 == 0 else "train"}
        for i, f in enumerate(files)
    ]
    manifest, run = tmp_path / f"labels.{kind}", tmp_path / "run"
    with open(manifest, "w", newline="") as handle:
        if kind == "csv":
            writer = csv.DictWriter(handle, ["path", "label", "split"])
            writer.writeheader()
            writer.writerows(rows)
        else:
            handle.writelines(json.dumps(row) + "\n" for row in rows)
    words = ("--epochs", 1, "--image-size", 16, "--threads", 1, "--out", run)
    trained = cli("train", manifest, *words)
    assert "9 images" in trained.out
    evaluated = json.loads(cli("evaluate", run, "--json").out)
    assert (evaluated["split"], evaluated["images"]) == ("test", 9)
    explained = cli("explain", run, manifest, "--count", 2, "--no-trust", "--out", tmp_path / "p.html", "--json")
    assert [row["true_label"] for row in json.loads(explained.out)["images"]] == ["a", "b"]


def test_a_model_folder_alone_predicts(
    cli: Cli, digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied elsewhere, without its run: it still knows preprocessing and class names."""
    model = shutil.copytree(digits_run / "model", tmp_path / "somewhere" / "mine")
    pixels = np.zeros((20, 30, 4), np.uint8)
    pixels[4:16, 12:18] = 255
    Image.fromarray(pixels).save(tmp_path / "one.png")
    monkeypatch.chdir(tmp_path)
    answer = cli("predict", model, "one.png")
    assert answer.code == 0, answer.err
    name, label, probability, sign = answer.out.split()[:4]
    assert name == "one.png"
    assert label in set("0123456789")
    assert 10 <= float(probability) <= 100
    assert sign == "%"
    expected = vitrail.load(digits_run).predict([tmp_path / "one.png"])[0]
    assert (label, float(probability)) == (expected.label, pytest.approx(100 * expected.probability, abs=0.051))
    assert answer.err.splitlines() == [f"one.png: {note}" for note in expected.notes]


def test_predict_lines_are_aligned_and_hold_every_file(cli: Cli, photo_run: Path, photographs: Path) -> None:
    folder = photographs / "abc" / "val"
    answer = cli("predict", photo_run, folder, folder / "a" / "a_000.jpg")
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == sorted(str(f) for f in folder.rglob("*.*"))
    assert len(lines) == 13
    assert len({line.index(" %") for line in lines}) == 1
    assert lines[0] == lines[-1]


def test_predictions_as_csv(cli: Cli, photo_run: Path, photographs: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "new" / "predictions.csv", photographs / "abc" / "val"
    assert str(out) in cli("predict", photo_run, data, "--out", out).out
    with open(out, newline="") as handle:
        rows = list(csv.DictReader(handle))
    model = vitrail.load(photo_run)
    assert len(rows) == 12
    for row, wanted in zip(rows, model.predict([row["file"] for row in rows]), strict=True):
        assert (row["file"], row["label"]) == (wanted.name, wanted.label)
        assert float(row["probability"]) == pytest.approx(wanted.probability, abs=1e-6)
    before = out.read_bytes()
    again = cli("predict", photo_run, data, "--out", out)  # nobody knows here whose they are
    assert (again.code, out.read_bytes()) == (USAGE, before)
    assert cli(*shlex.split(again.hint)[1:]).code == 0


def test_a_cell_is_no_formula(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(photo, "=1+1.jpg")
    assert cli("predict", photo_run, "=1+1.jpg", "--out", "p.csv").code == 0
    assert Path("p.csv").read_text().splitlines()[1].startswith("'=1+1.jpg,")


@pytest.mark.skipif(os.name != "posix", reason="file names that are no text exist on POSIX only")
def test_a_file_name_that_is_no_text(cli: Cli, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/\xff\n.jpg"
    with open(strange, "wb") as handle:
        handle.write(photo.read_bytes())
    answer = cli("predict", photo_run, tmp_path)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 1
    assert cli("predict", photo_run, tmp_path, "--json").code == 0
    assert cli("predict", photo_run, tmp_path, "--out", tmp_path / "p.csv").code == 0


def test_models_shows_one_block_and_the_sum_of_the_others(cli: Cli) -> None:
    answer = cli("models", "B/16")
    rows = [re.split(r"  +", line) for line in answer.out.splitlines()]
    numbers = [int(row[2].replace(",", "")) for row in rows[1:] if len(row) >= 3]
    assert sum(numbers) == 86_567_656
    assert "blocks.1 to blocks.11, each as blocks.0" in answer.out
    assert "86,567,656 parameters, 35.1 GFLOPs" in answer.out


def test_models_says_what_a_network_has_otherwise(cli: Cli, tmp_path: Path) -> None:
    config = ViTConfig(image_size=8, patch_size=4, classes=2, width=8, depth=1, heads=2, out_bias=False, dropout=0.1)
    model = vitrail.Model(ViT(config).eval(), Preprocessing((8, 8)), vitrail.Classes(("a", "b")))
    answer = cli("models", vitrail.save(model, tmp_path / "model"))
    assert "attn.proj" in answer.out
    for switch in ("out_bias False", "dropout 0.1"):
        assert switch in answer.out.splitlines()[-1]
        assert switch.split()[0] not in cli("models", "B/16").out


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As with `vitrail predict ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*START, "--help"], env=environment(), stdout=writer, stderr=subprocess.PIPE, timeout=240)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_data_of_which_nothing_can_be_read_has_no_accuracy(cli: Cli, photo_run: Path, tmp_path: Path) -> None:
    for name in vitrail.load(photo_run).classes:
        (tmp_path / "bad" / name).mkdir(parents=True)
        for number in range(7):
            (tmp_path / "bad" / name / f"{number}.jpg").write_text("no image")
    answer = cli("evaluate", photo_run, tmp_path / "bad", "--json")
    must_refuse(answer, DATA, "")
    assert answer.out == ""
    assert answer.err.count("\n") == 2


def test_a_run_whose_data_has_changed_says_so(cli: Cli, photo_run: Path, tmp_path: Path) -> None:
    """Images that were learnt may be held out now."""
    run, data = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(photo_run, run)
    stored = json.loads((run / "data.json").read_text())
    shutil.copytree(stored["root"], data)
    (run / "data.json").write_text(json.dumps({**stored, "root": str(data)}))
    answer = cli("evaluate", run, "--strict")
    assert answer.code == 0
    assert answer.err == ""
    image = next(data.rglob("*.jpg"))
    shutil.copy(image, image.with_name("one_more.jpg"))
    for strict, code in (([], 0), (["--strict"], 3)):
        answer = cli("evaluate", run, *strict)
        assert answer.code == code
        assert CHANGED in answer.err


def test_a_verb_that_is_none_leads_to_the_nearest_with_all_that_was_typed(cli: Cli) -> None:
    answer = cli("predit", "run", "3 1 2", "--beam", 2)
    must_refuse(answer, USAGE, "predit")
    assert answer.hint == "vitrail predict run '3 1 2' --beam 2"
    assert cli("generate", "--help").code == USAGE


def test_verbs_that_people_guess_lead_to_those_that_there_are(cli: Cli) -> None:
    guessed_verbs, missing_verbs = guesses("verbs"), guesses("missing")
    assert not (guessed_verbs.keys() | missing_verbs.keys()) & VERBS.keys()
    assert not guessed_verbs.keys() & missing_verbs.keys()
    for guessed in guessed_verbs:
        answer = cli(guessed, "--help")
        assert answer.code == USAGE
        assert cli(*shlex.split(answer.hint)[1:]).code == 0, "its help"
    answer = cli("Finetune", "photos", "--epochs", 2)
    assert answer.hint == "vitrail train --init auto photos --epochs 2"
    for missing in missing_verbs:
        must_refuse(cli(missing, "run"), USAGE, missing)


def test_a_decoder_that_dies_is_named_wherever_torch_tells_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch raises it from a signal, in the middle of anything."""

    def dying(*given: object) -> int:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr("vitrail.cli.models.run_models", dying)
    answer = cli("models")
    assert answer.code == 1
    assert "--workers 1" in answer.hint
    assert "7" in answer.problem
