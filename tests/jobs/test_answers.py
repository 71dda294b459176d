"""Predictions as a table: a row for each image in order, the same bytes after any interruption, by whoever computes."""

import csv
import errno
import json
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_refuse
from tests.errors import must_raise
from tests.features.test_embed import model_of
from tests.photographs import make_photographs
from tests.sequence_models import image_model
from vitrail.data.images import FileImages
from vitrail.errors import DataError, RunError, UsageError
from vitrail.jobs import answers as home, cluster, parts
from vitrail.jobs.answers import Answered, answer_all, write_table
from vitrail.jobs.parts import JOB, folder_of
from vitrail.nn import Sampling
from vitrail.runtime import threads_set
from vitrail.tasks.features import FeaturePrediction


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """21 images, of which two cannot be read."""
    found = make_photographs(tmp_path_factory.mktemp("photos"), ("a", "b", "c"), per_class=7, seed=0)
    found[3].write_text("no image")
    found[20].write_bytes(b"")
    return found


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of 5 images, which go through the network 3 and 2 at a time."""
    monkeypatch.setattr(home, "ROWS", 5)
    monkeypatch.setattr(parts, "BATCH", 3)


class Killed(Exception):
    """The end, wherever it comes."""


def dying_behind(number: int) -> Callable[[int, int], None]:
    """Progress that ends the work when so many images are done."""

    def progress(done: int, total: int) -> None:
        if done >= number:
            raise Killed

    return progress


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as handle:
        return list(csv.DictReader(handle))


def test_a_row_for_each_image_in_order(photos: list[Path], tmp_path: Path) -> None:
    model = model_of()
    found = answer_all([FileImages(photos)], model, tmp_path / "x.csv", keep=True)
    rows = rows_of(tmp_path / "x.csv")
    assert [row["file"] for row in rows] == [str(path) for path in photos]
    bad = [number for number, row in enumerate(rows) if row["problem"]]
    assert bad == [3, 20]
    assert all(not rows[number]["label"] and not rows[number]["probability"] for number in bad)
    wanted = model.predict([path for number, path in enumerate(photos) if number not in bad])
    read = [row for row in rows if not row["problem"]]
    for row, one, answer in zip(read, wanted, found.answers, strict=True):
        assert (row["file"], row["label"]) == (one.name, one.label) == (answer["file"], answer["label"])
        assert float(row["probability"]) == pytest.approx(one.probability, abs=1e-6)
    assert (found.count, [name for name, _ in found.problems]) == (19, [str(photos[3]), str(photos[20])])
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_parquet_holds_the_same(photos: list[Path], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for name in ("x.csv", "x.parquet"):
        answer_all([FileImages(photos)], model_of(), tmp_path / name)
    table = pq.read_table(tmp_path / "x.parquet").to_pylist()
    for ours, row in zip(table, rows_of(tmp_path / "x.csv"), strict=True):
        assert (ours["file"], ours["label"] or "", ours["problem"] or "") == tuple(
            row[name] for name in ("file", "label", "problem")
        )
        assert row["probability"] == ("" if ours["probability"] is None else f"{ours['probability']:.6f}")
    pq.write_table(pq.read_table(tmp_path / "x.parquet").replace_schema_metadata(None), tmp_path / "theirs.parquet")
    with must_raise(UsageError, named="theirs.parquet"):
        answer_all([FileImages(photos)], model_of(), tmp_path / "theirs.parquet")


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_interrupted_anywhere_the_bytes_are_the_same(name: str, photos: list[Path], tmp_path: Path) -> None:
    whole, out, seen = tmp_path / "whole" / name, tmp_path / name, []
    with threads_set(3):
        answer_all([FileImages(photos)], model_of(), whole, workers=1)
    for done in (0, 10, 15):
        with pytest.raises(Killed):
            answer_all([FileImages(photos)], model_of(), out, progress=dying_behind(done))
        assert not out.exists()
    half = (folder_of(out) / "000001.jsonl").read_bytes()
    (folder_of(out) / "000001.jsonl").write_bytes(half[: len(half) // 2])  # a disk that lost something: made again
    (folder_of(out) / "000003.jsonl.writing").write_bytes(b"half a part")
    answer_all([FileImages(photos)], model_of(), out, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(10, 21), (15, 21), (20, 21), (21, 21)]
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["whole", name])


def test_every_byte_of_a_part_is_looked_at(photos: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    with pytest.raises(Killed):
        answer_all([FileImages(photos)], model_of(), out, progress=dying_behind(5))
    part = folder_of(out) / "000000.jsonl"
    content = part.read_bytes()
    found = parts.PartFiles(folder_of(out), home.LINES)
    assert found.is_whole(0)
    for place in range(0, len(content), 7):
        part.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not found.is_whole(0), place
        part.write_bytes(content[:place])
        assert not found.is_whole(0), place
    found.remove()
    with pytest.raises(FileNotFoundError):  # of a worker that is left over
        found.write(0, [])
    assert not folder_of(out).exists()


def test_another_job_is_refused_and_left(photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "x.csv"
    with pytest.raises(Killed):
        answer_all([FileImages(photos)], model_of(), out, progress=dying_behind(10))
    before = {file.name: file.read_bytes() for file in folder_of(out).iterdir()}
    job = json.loads(before[JOB])
    assert {"weights", "images", "rows", "batch", "precision", "versions"} <= job.keys()
    named = replace(model_of(), output=vitrail.Classes(("a", "b", "d")))
    for files, model in (
        (photos, model_of(seed=1)),
        (photos, named),
        (photos[:-1], model_of()),
        (photos[::-1], model_of()),
    ):
        with must_raise(UsageError, named="x.csv.parts"):
            answer_all([FileImages(files)], model, out)
    with monkeypatch.context() as patch:
        patch.setattr(home, "ROWS", 6)
        with must_raise(UsageError, named="rows"):
            answer_all([FileImages(photos)], model_of(), out)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "decoder_versions", lambda: {**job["versions"], "torch": "1.0"})
        with must_raise(UsageError, named="versions"):
            answer_all([FileImages(photos)], model_of(), out)
    assert {file.name: file.read_bytes() for file in folder_of(out).iterdir()} == before


def test_what_is_drawn_goes_by_the_place_of_an_image(tmp_path: Path) -> None:
    """Whether those before it can be read, and however images are divided."""
    model = image_model()
    files = [tmp_path / f"{number}.png" for number in range(12)]
    for number, file in enumerate(files):
        Image.new("L", (16, 16), 20 * number).save(file)

    def texts(name: str) -> list[str]:
        found = answer_all([FileImages(files)], model, tmp_path / name, search=Sampling(seed=3), keep=True)
        return [answer["text"] for answer in found.answers]

    wanted = texts("all.csv")
    assert len(set(wanted)) > 6
    files[4].write_bytes(b"")
    assert texts("some.csv") == wanted[:4] + wanted[5:]


def test_a_pack_is_answered_as_its_files_are(cli: Cli, tmp_path: Path) -> None:
    make_photographs(tmp_path / "photos", ("a", "b"), per_class=4, seed=0)
    vitrail.save(model_of(), tmp_path / "model")
    assert cli("data", "pack", tmp_path / "photos", "--out", tmp_path / "packed").code == 0
    words = ("predict", tmp_path / "model")
    assert cli(*words, tmp_path / "photos", "--out", tmp_path / "files.csv").code == 0
    assert cli(*words, tmp_path / "packed", "--out", tmp_path / "pack.csv").code == 0
    files, pack = rows_of(tmp_path / "files.csv"), rows_of(tmp_path / "pack.csv")
    assert [str(tmp_path / "photos" / row["file"]) for row in pack] == [row["file"] for row in files]
    assert [row["probability"] for row in pack] == [row["probability"] for row in files]
    assert [line.split()[0] for line in cli(*words, tmp_path / "packed").out.splitlines()] == [
        row["file"] for row in pack
    ]
    must_refuse(cli(*words, tmp_path / "packed", tmp_path / "photos", "--out", tmp_path / "x.csv"), USAGE, "packed")


def test_a_link_that_leads_nowhere_has_its_row(cli: Cli, tmp_path: Path) -> None:
    """In a folder, where nobody named it; the row gives the reason, and the command counts it."""
    make_photographs(tmp_path / "photos", ("a",), per_class=3, seed=0)
    broken = tmp_path / "photos" / "a" / "0117_photos.jpg"
    broken.symlink_to(tmp_path / "gone.jpg")
    vitrail.save(model_of(), tmp_path / "model")
    answer = cli("predict", tmp_path / "model", tmp_path / "photos", "--out", tmp_path / "x.csv")
    assert answer.code == DATA
    rows = {row["file"]: row for row in rows_of(tmp_path / "x.csv")}
    assert len(rows) == 4
    assert rows[str(broken)]["problem"]
    assert [row["problem"] for file, row in rows.items() if file != str(broken)] == [""] * 3
    assert "0117_photos.jpg" in answer.err


def test_what_cannot_be_written(cli: Cli, photos: list[Path], tmp_path: Path) -> None:
    vitrail.save(model_of(), tmp_path / "model")
    words = ("predict", tmp_path / "model", photos[0])
    must_refuse(cli(*words, "--workers", 1), USAGE, "--workers")
    must_refuse(cli(*words, "--ray", "local"), USAGE, "--ray local")
    must_refuse(cli(*words, "--out", tmp_path / "x.csv", "--deadline", 5), USAGE, "--deadline 5")
    must_refuse(cli(*words, "--out", tmp_path / "x.csv", "--ray", "local", "--workers", 0), USAGE, "--workers 0")
    must_refuse(cli(*words, "--out", tmp_path / "x.csv", "--ray", "local", "--deadline", 0), USAGE, "--deadline")
    must_refuse(cli(*words, "--out", tmp_path / "x.txt"), USAGE, "x.txt")
    must_refuse(cli("predict", tmp_path / "model", photos[3], "--out", tmp_path / "x.csv"), DATA, str(photos[3]))
    answer = cli("predict", tmp_path / "model", photos[2], photos[3], "--out", tmp_path / "x.csv", "--json")
    must_refuse(answer, DATA, str(photos[3]))
    assert [row["file"] for row in json.loads(answer.out)] == [str(photos[2])]
    assert len(rows_of(tmp_path / "x.csv")) == 2
    with must_raise(DataError, named=photos[20].name):
        answer_all([FileImages([photos[20]])], model_of(), tmp_path / "y.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "x.csv"]


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "df -h"), (errno.EFBIG, "ulimit -f unlimited")])
def test_a_full_disk_names_what_is_there(
    number: int, hint: str, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of parts where there is one: none is left where the first write has failed."""
    model, out, write = model_of(), tmp_path / "x.csv", parts.write_file

    def full_behind(left: int) -> Callable[[Path, bytes | str], None]:
        def full(file: Path, content: bytes | str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(number, os.strerror(number), str(file))
            write(file, content)

        return full

    for whole, mentioned in ((0, False), (2, True)):
        monkeypatch.setattr(parts, "write_file", full_behind(whole))
        with must_raise(RunError, "x.csv") as caught:
            answer_all([FileImages(photos)], model, out)
        assert caught.value.hint.text.startswith(hint)
        assert (str(folder_of(out)) in str(caught.value.hint)) == mentioned == folder_of(out).exists()


def test_ray_is_missing_or_another(
    cli: Cli, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for Ray: none at all, too old, too new, without a version, and one that cannot be imported."""
    vitrail.save(model_of(), tmp_path / "model")
    words = ("predict", tmp_path / "model", photos[0], "--out", tmp_path / "x.csv", "--ray", "local")
    stand_ins = {
        "not installed": None,
        "Ray 1.13.0": SimpleNamespace(__version__="1.13.0"),
        "Ray 2.54.1": SimpleNamespace(__version__="2.54.1"),
        "Ray 3.0.1": SimpleNamespace(__version__="3.0.1"),
        "without a version": SimpleNamespace(),
    }
    for named, module in stand_ins.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "ray", module)
            answer = cli(*words)
            must_refuse(answer, USAGE, named)
            assert "ray>=2.55,<3" in answer.problem
            assert answer.hint == 'pip install "vitrail[ray]"'
    with monkeypatch.context() as patch:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "ray.py").write_text("raise ImportError('libray.so: wrong ELF class\\nand more')\n")
        patch.delitem(sys.modules, "ray", raising=False)
        patch.syspath_prepend(tmp_path / "broken")
        answer = cli(*words)
        must_refuse(answer, USAGE, "(ImportError: libray.so: wrong ELF class); --ray needs ray>=2.55,<3")
        assert answer.hint == 'pip install "vitrail[ray]"'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "model"]


def test_the_ray_that_is_wanted_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["ray"] == [cluster.WANTED]
    assert f"ray>={cluster.OLDEST[0]}.{cluster.OLDEST[1]},<{cluster.BELOW[0]}" == cluster.WANTED


def test_nothing_but_one_file_knows_ray() -> None:
    source = Path(vitrail.__file__).parent
    naming = [file for file in source.rglob("*.py") if "import ray" in file.read_text()]
    assert naming == [Path(cluster.__file__)]
    assert Answered(0, [], [], []).count == 0


def test_a_number_below_zero_is_no_formula(tmp_path: Path) -> None:
    """A cell of features stays one that every reader of tables takes for a number."""
    one, out = FeaturePrediction("-1+1.png", torch.tensor([-0.5, 2.0, -1e-9])), tmp_path / "x.csv"
    write_table(out, lambda: [{"row": one.row(), "answer": one.to_dict()}])
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert row == {"file": "'-1+1.png", "f0": "-0.5", "f1": "2", "f2": "-1e-09", "problem": ""}
