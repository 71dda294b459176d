"""A run knows the images that it was trained on by their content, wherever they lie and however they are stored."""

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vitrail
from tests.cli.command import Cli
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.shared_runs import once
from tests.training import tiny
from vitrail.data import pack
from vitrail.data.loader import CONTENT, no_contents
from vitrail.errors import DataError
from vitrail.runs.data import CHANGED
from vitrail.runs.known import TrainedOn
from vitrail.statistics import wilson_interval
from vitrail.tasks import Result
from vitrail.text import percent
from vitrail.training import prepared

LEARNT, HELD_OUT = 54, 6  # of 60 photographs


def run() -> Path:
    """A run of photographs that came in one piece; to be read, never changed."""

    def train(folder: Path) -> None:
        vitrail.train(str(tiny.photographs(folder)), folder / "run", tiny.options("photos"))

    return once("trained-on", train) / "run"


def photographs() -> Path:
    return run().parent / "photos"


def known(result: Result) -> tuple[int, int]:
    """How many images were trained on, and of how many."""
    facts = result.details["trained_on"]
    assert result.count == result.details["images"] == (facts["of"] - facts["images"] or facts["of"])
    return facts["images"], facts["of"]


def hashed(files: Iterator[Path] | list[Path]) -> list[bytes]:
    return [hashlib.blake2b(file.read_bytes(), digest_size=16).digest() for file in files]


# ---- other places of the same images


def moved(folder: Path) -> Path:
    return Path(shutil.copytree(photographs(), folder / "elsewhere"))


def renamed(folder: Path) -> Path:
    for number, file in enumerate(sorted(photographs().rglob("*.*g"), reverse=True)):
        (folder / "x" / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / "x" / file.parent.name / f"{number}{file.suffix}")
    return folder / "x"


def listed(folder: Path) -> Path:
    with (folder / "list.csv").open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows([path, path.parent.name] for path in sorted(photographs().rglob("*.*g")))
    return folder / "list.csv"


def split_anew(folder: Path) -> Path:
    """All of them are a test split."""
    return Path(shutil.copytree(photographs(), folder / "new" / "test")).parent


def packed(folder: Path) -> Path:
    return pack(moved(folder), folder / "packed").out


def encoded_anew(folder: Path) -> Path:
    return pack(photographs(), folder / "small", shorter_side=24).out


def packed_twice(folder: Path) -> Path:
    return pack(encoded_anew(folder), folder / "smaller", shorter_side=16).out


@pytest.mark.parametrize(
    "place",
    [
        *(listed, split_anew, packed, encoded_anew),
        *(pytest.param(each, marks=pytest.mark.soak) for each in (moved, renamed, packed_twice)),
    ],
)
def test_images_that_were_trained_on_are_known_wherever_they_lie(place: Callable[[Path], Path], tmp_path: Path) -> None:
    data = str(place(tmp_path))
    split = None if place is split_anew else "all"
    found = vitrail.evaluate(run(), data, split=split)
    assert known(found) == (LEARNT, LEARNT + HELD_OUT)
    assert found.count == HELD_OUT
    assert found.notes, "and people are told"
    if place in (encoded_anew, packed_twice):
        return  # their pixels are others
    own = vitrail.evaluate(run())
    assert known(own) == (0, HELD_OUT)
    assert not own.notes
    assert (found.value, found.loss) == (own.value, pytest.approx(own.loss, rel=1e-6))
    learnt = vitrail.evaluate(run(), split="train")
    assert found.details["trained_on"]["accuracy"] == learnt.value


def test_new_images_among_them_are_counted_alone(tmp_path: Path) -> None:
    data = moved(tmp_path)
    make_photographs(data, ("a",), per_class=3, seed=99)  # in the place of three
    found = vitrail.evaluate(run(), str(data), split="all")
    new = hashed([data / "a" / f"a_00{number}.jpg" for number in range(3)])
    old = hashed([photographs() / "a" / f"a_00{number}.jpg" for number in range(3)])
    learnt = set(map(bytes, load_file(run() / "hashes.safetensors")["train"][:, CONTENT]))
    assert not learnt & set(new)
    assert known(found) == (LEARNT - len(learnt & set(old)), LEARNT + HELD_OUT)


def test_where_all_were_trained_on_the_figure_is_of_them_and_says_so() -> None:
    found = vitrail.evaluate(run(), split="train")
    assert known(found) == (LEARNT, LEARNT)
    assert found.details["trained_on"]["accuracy"] == found.value
    assert found.notes
    strange = vitrail.evaluate(replace(vitrail.load(run()), loaded_from=""), str(photographs()), split="train")
    assert found.sentence != strange.sentence
    assert (found.interval, found.details["interval"]) == (None, None), "none of other images can be told"
    assert strange.interval == wilson_interval(round(found.value * LEARNT), LEARNT)
    for end in (percent(end, 2) for end in strange.interval if 0 < end < 1):
        assert [end in words for words in (strange.sentence, strange.about[1])] == [True, True]
        assert [end in words for words in (found.sentence, *found.about)] == [False, False, False]


def test_the_model_in_a_run_knows_them_and_one_without_a_run_does_not(tmp_path: Path) -> None:
    data = str(moved(tmp_path))
    assert known(vitrail.evaluate(run() / "model", data, split="all")) == (LEARNT, LEARNT + HELD_OUT)
    shutil.copytree(run() / "model", tmp_path / "model")
    for copied in (tmp_path / "model", vitrail.load(tmp_path / "model")):
        alone = vitrail.evaluate(copied, data, split="all")
        assert alone.count == LEARNT + HELD_OUT
        assert "trained_on" not in alone.details
        assert len(alone.notes) == 1, "and people are told that nobody can tell"
    loaded = vitrail.evaluate(vitrail.load(run()), data, split="all")
    assert known(loaded) == (LEARNT, LEARNT + HELD_OUT)


def test_a_run_that_does_not_know_its_images_opens(tmp_path: Path) -> None:
    old = Path(shutil.copytree(run(), tmp_path / "old"))
    (old / "hashes.safetensors").unlink()
    assert "trained_on" not in vitrail.evaluate(old).details
    assert vitrail.evaluate(old, str(moved(tmp_path)), split="all").count == LEARNT + HELD_OUT


def test_a_run_that_knows_contents_alone_knows_them(tmp_path: Path) -> None:
    """As those that were trained before pictures and groups were kept."""
    old = Path(shutil.copytree(run(), tmp_path / "old"))
    hashes = {name: each[:, CONTENT].copy() for name, each in load_file(old / "hashes.safetensors").items()}
    save_file(hashes, old / "hashes.safetensors")
    assert known(vitrail.evaluate(old, str(moved(tmp_path)), split="all")) == (LEARNT, LEARNT + HELD_OUT)
    save_file({name: each[:, :8].copy() for name, each in hashes.items()}, old / "hashes.safetensors")
    with must_raise(DataError, "hashes.safetensors"):
        vitrail.evaluate(old, str(tmp_path / "elsewhere"), split="all")


def test_the_command_prints_it_and_a_strict_one_refuses(cli: Cli, tmp_path: Path) -> None:
    data = moved(tmp_path)
    answer = cli("evaluate", run(), data, "--json")
    found = json.loads(answer.out)
    assert found["trained_on"]["images"] == LEARNT
    assert found["images"] == HELD_OUT
    assert found["notes"]
    assert CHANGED not in found["notes"]
    assert cli("evaluate", run(), data, "--strict").code == 3
    assert cli("evaluate", run(), "--split", "train", "--strict").code == 0, "which was asked for"


# ---- what a run keeps


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_run_keeps_a_hash_of_each_file_by_split(
    workers: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resident, decoded here, and by workers."""
    if workers is not None:
        tiny.stream_all(monkeypatch)
    folder = tmp_path / "run"
    vitrail.train(str(photographs()), folder, tiny.options("photos", workers=workers or 0))
    found = load_file(folder / "hashes.safetensors")
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for split in ("train", "validation"):
        files = [photographs() / name for each, name, *_ in rows if each == split]
        assert [bytes(one) for one in found[split][:, CONTENT]] == hashed(files)
    assert not len(found["initial"])


def test_images_that_were_not_read_yet_are_not_known_and_a_resumed_run_forgets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.stream_all(monkeypatch)
    tiny.saved(monkeypatch, often=True)
    monkeypatch.setattr(prepared, "MEASURED", 4)  # of which mean and standard deviation are taken
    folder = tiny.stopped("photos", tmp_path / "run", 2, str(photographs()), workers=0)
    first = load_file(folder / "hashes.safetensors")["train"]
    read = first.any(axis=1)
    assert 32 <= read.sum() < LEARNT, "two of four batches"
    vitrail.train(str(photographs()), folder, tiny.options("photos", workers=0, resume="auto"))
    whole = load_file(folder / "hashes.safetensors")["train"]
    assert (whole[read] == first[read]).all()
    assert whole.any(axis=1).all()
    assert known(vitrail.evaluate(folder, split="train")) == (LEARNT, LEARNT)


def test_a_set_without_files_is_known_by_its_pixels(tmp_path: Path) -> None:
    data = str(pack("digits", tmp_path / "digits").out)
    found = vitrail.evaluate(tiny.whole("digits"), data, split="train")
    assert known(found) == (1258, 1258)
    assert known(vitrail.evaluate(tiny.whole("digits"), data)) == (0, 359)


def test_images_that_the_initial_weights_were_trained_on_count(tmp_path: Path) -> None:
    make_photographs(tmp_path / "other", ("a", "b"), per_class=20, seed=5)
    asked = vitrail.TrainOptions(init=str(run()), epochs=1, threads=1, device="cpu", precision="fp32", verdicts=0)
    tuned = vitrail.train(str(tmp_path / "other"), tmp_path / "run", asked).folder
    assert known(vitrail.evaluate(tuned, str(photographs()), split="all")) == (LEARNT, LEARNT + HELD_OUT)
    assert known(vitrail.evaluate(tuned, str(tmp_path / "other"), split="all"))[0] == 36


# ---- copies of training images among those that are held out


def with_copies(folder: Path, copies: int, new: int) -> Path:
    make_photographs(folder / "train", ("a", "b"), per_class=20, seed=1)
    make_photographs(folder / "val", ("a", "b"), per_class=new // 2, seed=2)
    for number, file in enumerate(sorted((folder / "train").rglob("*.jpg"))[:: 30 // copies][:copies]):
        target = folder / "val" / file.parent.name / f"copy{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return folder


def test_copies_of_training_images_are_no_validation(tmp_path: Path) -> None:
    data = with_copies(tmp_path / "data", copies=5, new=8)
    finished = vitrail.train(str(data), tmp_path / "run", tiny.options("photos", epochs=2))
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (found["trained_on"]["images"], found["trained_on"]["of"], found["images"]) == (5, 13, 8)
    assert set(finished.evaluated.notes) <= set(json.loads((tmp_path / "run" / "data.json").read_text())["notes"])
    for copy in (data / "val").rglob("copy*"):
        copy.unlink()
    clean = vitrail.evaluate(tmp_path / "run", str(data), split="validation")
    assert known(clean) == (0, 8)
    last = tiny.rows(tmp_path / "run")[-1]
    assert last["validation_accuracy"] == clean.value == found["accuracy"]
    assert last["validation_loss"] == pytest.approx(clean.loss, rel=1e-6)


def test_a_probe_is_not_counted_on_copies(tmp_path: Path) -> None:
    data = with_copies(tmp_path / "data", copies=5, new=8)
    asked = vitrail.TrainOptions(init=str(run()), probe=True, threads=1, device="cpu", precision="fp32")
    finished = vitrail.train(str(data), tmp_path / "run", asked)
    assert json.loads((tmp_path / "run" / "probe.json").read_text())["images"] == 8
    assert known(finished.evaluated) == (5, 13)


def test_a_validation_split_of_copies_alone_says_so(tmp_path: Path) -> None:
    data = with_copies(tmp_path / "data", copies=6, new=0)
    finished = vitrail.train(str(data), tmp_path / "run", tiny.options("photos"))
    assert known(finished.evaluated) == (6, 6)
    (note,) = finished.evaluated.notes
    assert note in (tmp_path / "run" / "log.txt").read_text()


# ---- the set of what was trained on


def test_a_set_of_contents_has_its_rows_and_no_other() -> None:
    rows = no_contents(1000)
    rows[:, CONTENT] = np.random.default_rng(0).integers(0, 256, (1000, 16), dtype=np.uint8)
    rows[7] = 0  # not read
    trained = TrainedOn(rows[:500])
    assert len(trained) == 499
    assert np.flatnonzero(~trained.has(rows)).tolist() == [7, *range(500, 1000)]
    assert not TrainedOn(rows[:0]).has(rows).any()
    assert not TrainedOn(rows[7:8]).has(rows).any()
