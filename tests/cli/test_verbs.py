"""The verbs as a person uses them: names are trusted, models travel, runs remember."""

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import Answer, call_outside, hashes
from tests.photographs import make_photographs
from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViT, ViTConfig

Says = Callable[..., Answer]


def test_classes_are_matched_by_name(vitrail_says: Says, photo_run: Path, photographs: Path) -> None:
    """Trained on a, b, c and evaluated on b, c, d: b and c are right, d is left out, counted and named."""
    before = hashes(photographs)
    answer = vitrail_says("evaluate", photo_run, photographs / "bcd")
    assert answer.code == 0
    assert re.match(r"accuracy ([\d.]+) % of 8 pictures \(95 % interval ", answer.out)
    accuracy = float(answer.out.split()[1])
    by_class = {line.split()[0]: line.split()[1:] for line in answer.out.splitlines()[3:]}
    assert (by_class["a"][0], by_class["b"][0], by_class["c"][0]) == ("0", "4", "4")
    assert accuracy >= 87.5  # by number instead of by name it would be 0
    assert "d (4), which the model does not have" in answer.err
    assert hashes(photographs) == before


def test_strict_allows_no_unknown_class(vitrail_says: Says, photo_run: Path, photographs: Path) -> None:
    answer = vitrail_says("evaluate", photo_run, photographs / "bcd", "--strict")
    assert answer.code == 3
    assert "4 pictures left out" in answer.problem
    assert "--strict" in answer.hint
    assert vitrail_says("evaluate", photo_run, "--strict").code == 0


def test_references_travel_with_the_model_unless_that_is_refused(
    vitrail_says: Says, digits_run: Path, tmp_path: Path
) -> None:
    """`--no-references` leaves out the file and what is said of it, and is a choice that stays with the run."""
    file = digits_run / "model" / "references.safetensors"
    assert 0 < file.stat().st_size <= 300 * 1024
    run = tmp_path / "run"
    words = ("train", "digits", "--epochs", 1, "--batch-size", 400, "--threads", 1, "--out", run)
    answer = vitrail_says(*words, "--no-references")
    assert answer.code == 0, answer.err
    assert "references, shuffled" not in answer.out
    assert not (run / "model" / file.name).exists()
    again = vitrail_says(*words, "--resume", "auto")
    assert again.code == 0, again.err
    assert not (run / "model" / file.name).exists()
    answer = vitrail_says("train", "digits", "--resume", "auto", "--no-references", "--out", digits_run)
    assert answer.code == 2
    assert "references: yes -> no" in answer.problem
    answer = vitrail_says("train", "digits", "--references")
    assert answer.code == 2
    assert "no option --references" in answer.problem
    assert answer.hint == "try: --no-references"


def test_damaged_references_are_two_lines(vitrail_says: Says, model_copy: Path) -> None:
    file = model_copy / "references.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    answer = vitrail_says("evaluate", model_copy, "digits")
    assert answer.code == 3
    assert "references.safetensors is damaged" in answer.problem
    assert "delete the file" in answer.hint
    file.unlink()
    assert vitrail_says("evaluate", model_copy, "digits").code == 0


def test_a_run_remembers_its_data(
    vitrail_says: Says, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained with a relative path, evaluated from another folder that has other data of that name."""
    home = shutil.copytree(photographs / "abc", tmp_path / "home" / "data").parent
    monkeypatch.chdir(home)
    words = ("data", "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", "run")
    trained = vitrail_says("train", *words)
    assert trained.code == 0
    assert f"next       vitrail explain {Path('run')} data" in trained.out
    here = json.loads(vitrail_says("evaluate", "run", "--json").out)
    elsewhere = tmp_path / "elsewhere"
    make_photographs(elsewhere / "data", ("b", "c"), per_class=2, seed=7)
    monkeypatch.chdir(elsewhere)
    there = json.loads(vitrail_says("evaluate", home / "run", "--json").out)
    assert (there["images"], there["accuracy"], there["loss"]) == (12, here["accuracy"], here["loss"])
    other = json.loads(vitrail_says("evaluate", home / "run", "data", "--json").out)
    assert (other["images"], other["split"]) == (4, "all")


def test_a_flat_folder_is_evaluated_on_what_was_held_out(vitrail_says: Says, photographs: Path, tmp_path: Path) -> None:
    data, run = photographs / "abc" / "train", tmp_path / "run"
    words = ("--epochs", 1, "--image-size", 16, "--threads", 1, "--split-seed", 3, "--out", run, "--json")
    trained = json.loads(vitrail_says("train", data, *words).out)
    again = json.loads(vitrail_says("evaluate", run, "--json").out)
    named = json.loads(vitrail_says("evaluate", run, data, "--json").out)
    for key in ("split", "images", "accuracy", "loss"):
        assert trained[key] == again[key] == named[key]
    assert trained["split"] == "validation"
    rest = json.loads(vitrail_says("evaluate", run, "--split", "train", "--json").out)
    assert rest["images"] + trained["images"] == 36


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_manifest(kind: str, vitrail_says: Says, photographs: Path, tmp_path: Path) -> None:
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
    trained = vitrail_says("train", manifest, *words)
    assert "test accuracy" in trained.out
    assert " of 9 pictures" in trained.out
    evaluated = json.loads(vitrail_says("evaluate", run, "--json").out)
    assert (evaluated["split"], evaluated["images"]) == ("test", 9)
    explained = vitrail_says("explain", run, manifest, "--count", 2, "--out", tmp_path / "page.html", "--json")
    assert [row["true_label"] for row in json.loads(explained.out)] == ["a", "b"]


def test_a_model_folder_alone_predicts(vitrail_says: Says, digits_run: Path, tmp_path: Path) -> None:
    """Copied elsewhere, without its run: it still knows preprocessing and class names."""
    model = shutil.copytree(digits_run / "model", tmp_path / "somewhere" / "mine")
    pixels = np.zeros((20, 30, 4), np.uint8)
    pixels[4:16, 12:18] = 255
    Image.fromarray(pixels).save(tmp_path / "one.png")
    outside = call_outside("predict", model, "one.png", cwd=tmp_path)
    assert outside.code == 0, outside.err
    assert outside.err == ""
    name, label, probability, sign = outside.out.split()[:4]
    assert name == "one.png"
    assert label in set("0123456789")
    assert 10 <= float(probability) <= 100
    assert sign == "%"
    expected = vitrail.load(digits_run).predict([tmp_path / "one.png"])[0]
    assert (label, float(probability)) == (expected.label, pytest.approx(100 * expected.probability, abs=0.051))


def test_predict_lines_are_aligned_and_hold_every_file(vitrail_says: Says, photo_run: Path, photographs: Path) -> None:
    folder = photographs / "abc" / "val"
    answer = vitrail_says("predict", photo_run, folder, folder / "a" / "a_000.jpg")
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == sorted(str(f) for f in folder.rglob("*.*"))
    assert len(lines) == 13
    assert len({line.index(" %") for line in lines}) == 1
    assert lines[0] == lines[-1]


def test_predictions_as_csv(vitrail_says: Says, photo_run: Path, photographs: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "new" / "predictions.csv", photographs / "abc" / "val"
    assert vitrail_says("predict", photo_run, data, "--out", out).out == f"12 predictions in {out}\n"
    with open(out, newline="") as handle:
        rows = list(csv.DictReader(handle))
    model = vitrail.load(photo_run)
    for row, (name, label, probability, _) in zip(rows, model.predict([row["file"] for row in rows]), strict=True):
        assert (row["file"], row["label"]) == (name, label)
        assert float(row["probability"]) == pytest.approx(probability, abs=1e-6)
    assert vitrail_says("predict", photo_run, data, "--out", out).code == 0  # predictions may be written over


def test_a_cell_is_no_formula(
    vitrail_says: Says, photo_run: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(photo, "=1+1.jpg")
    assert vitrail_says("predict", photo_run, "=1+1.jpg", "--out", "p.csv").code == 0
    assert Path("p.csv").read_text().splitlines()[1].startswith("'=1+1.jpg,")


@pytest.mark.skipif(os.name != "posix", reason="file names that are no text exist on POSIX only")
def test_a_file_name_that_is_no_text(vitrail_says: Says, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/\xff\n.jpg"
    with open(strange, "wb") as handle:
        handle.write(photo.read_bytes())
    answer = vitrail_says("predict", photo_run, tmp_path)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 1
    assert vitrail_says("predict", photo_run, tmp_path, "--json").code == 0
    assert vitrail_says("predict", photo_run, tmp_path, "--out", tmp_path / "p.csv").code == 0


def test_models_shows_one_block_and_the_sum_of_the_others(vitrail_says: Says) -> None:
    answer = vitrail_says("models", "B/16")
    rows = [re.split(r"  +", line) for line in answer.out.splitlines()]
    numbers = [int(row[2].replace(",", "")) for row in rows[1:] if len(row) >= 3]
    assert sum(numbers) == 86_567_656
    assert "blocks.1 to blocks.11, each as blocks.0" in answer.out
    assert "86,567,656 parameters, 35.1 GFLOPs" in answer.out


def test_models_says_what_a_network_has_otherwise(vitrail_says: Says, tmp_path: Path) -> None:
    config = ViTConfig(image_size=8, patch_size=4, classes=2, width=8, depth=1, heads=2, out_bias=False, dropout=0.1)
    model = vitrail.Model(ViT(config).eval(), Preprocessing((8, 8)), ("a", "b"))
    answer = vitrail_says("models", vitrail.save(model, tmp_path / "model"))
    assert answer.out.splitlines()[-1] == "other than the paper's: out_bias False, dropout 0.1"
    assert "attn.proj" in answer.out
    assert "other than" not in vitrail_says("models", "B/16").out


def test_a_reader_that_leaves_early_is_no_error(photo_run: Path, photographs: Path) -> None:
    """As with `vitrail predict ... | head -1`."""
    from tests.cli.command import start

    process = start("models", "g/14", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_data_of_which_nothing_can_be_read_has_no_accuracy(vitrail_says: Says, photo_run: Path, tmp_path: Path) -> None:
    for name in vitrail.load(photo_run).classes:
        (tmp_path / "bad" / name).mkdir(parents=True)
        for number in range(7):
            (tmp_path / "bad" / name / f"{number}.jpg").write_text("no picture")
    answer = vitrail_says("evaluate", photo_run, tmp_path / "bad", "--json")
    assert (answer.code, answer.out) == (3, "")
    assert "can be read" in answer.err
    assert answer.err.count("\n") == 2


def test_a_run_whose_data_has_changed_says_so(vitrail_says: Says, photo_run: Path, tmp_path: Path) -> None:
    """Pictures that were learnt may be held out now."""
    run, data = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(photo_run, run)
    stored = json.loads((run / "data.json").read_text())
    shutil.copytree(stored["root"], data)
    (run / "data.json").write_text(json.dumps({**stored, "root": str(data)}))
    answer = vitrail_says("evaluate", run, "--strict")
    assert answer.code == 0
    assert "changed" not in answer.err
    picture = next(data.rglob("*.jpg"))
    shutil.copy(picture, picture.with_name("one_more.jpg"))
    for strict, code in (([], 0), (["--strict"], 3)):
        answer = vitrail_says("evaluate", run, *strict)
        assert answer.code == code
        assert "The data has changed since the training" in answer.err
