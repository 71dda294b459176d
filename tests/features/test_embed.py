"""Features of images: against a plain loop, as files, and after any interruption the same bytes."""

import importlib.util
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from tests.cli.command import call_outside
from tests.errors import must_raise
from tests.locks import leave_lock
from tests.photographs import make_photographs
from vitrail.data.images import open_image
from vitrail.errors import DataError, RunError, UsageError
from vitrail.features import embed as home
from vitrail.features.file import read_about, read_features
from vitrail.features.poolings import check_pooling, poolings_of, read_by_head
from vitrail.io import locked
from vitrail.jobs import parts
from vitrail.jobs.parts import folder_of
from vitrail.nn import ViT, ViTConfig, parts_of
from vitrail.runtime import threads_set

CONFIG = ViTConfig(image_size=16, patch_size=8, width=32, depth=2, heads=2, mlp_dim=32, classes=3, registers=1)
CLASSES = ("a", "b", "c")


def model_of(seed: int = 0, slots: dict[str, str] | None = None, **changes: Any) -> vitrail.Model:
    """A small model whose numbers are all drawn."""
    torch.manual_seed(seed)
    network = ViT(replace(CONFIG, **changes), parts_of(slots or {}))
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    preprocessing = vitrail.Preprocessing((16, 16), crop_pct=0.8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    return vitrail.Model(network.eval(), preprocessing, vitrail.Classes(CLASSES))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders a, b, c of 6 in train/ and of 3 in val/; one file of b is no image."""
    root = tmp_path_factory.mktemp("photos")
    make_photographs(root / "train", CLASSES, per_class=6, seed=0)
    make_photographs(root / "val", CLASSES, per_class=3, seed=1)
    (root / "train" / "b" / "b_004.jpg").write_text("no image")
    return root


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 5 images, which go through the network 3 and 2 at a time."""
    monkeypatch.setattr(home, "ROWS", 5)
    monkeypatch.setattr(parts, "BATCH", 3)


def plain_loop(model: vitrail.Model, paths: list[Path]) -> dict[str, np.ndarray]:
    """One image after another."""
    network, found = model.network, {"class": [], "mean": [], "patches": []}
    with torch.no_grad():
        for path in paths:
            tokens = network.norm(network.encode(model.preprocessing(open_image(path))[None]))[0]
            patches = tokens[network.config.prefix :]
            for name, value in (("class", tokens[0]), ("mean", patches.mean(dim=0)), ("patches", patches)):
                found[name].append(value.numpy())
    return {name: np.stack(values) for name, values in found.items()}


def is_image(path: Path) -> bool:
    return path.is_file() and path.name != "b_004.jpg"


@pytest.mark.parametrize(("workers", "threads"), [(None, 1), (None, 3), (0, 2), (1, 2)])
def test_features_are_those_of_a_plain_loop(
    photos: Path, workers: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "BATCH", 4)  # more images than a batch
    model = model_of()
    with threads_set(threads):
        found = vitrail.embed(model, photos, patches=True, workers=workers)
        assert torch.get_num_threads() == threads
    one = vitrail.embed(model, photos, patches=True)
    assert all(np.array_equal(found.values[name], one.values[name]) for name in one.values)  # whoever computes
    paths = [path for split in ("train", "val") for path in sorted((photos / split).rglob("*.*")) if is_image(path)]
    wanted = plain_loop(model, paths)
    assert found.ids == tuple(path.relative_to(photos).as_posix() for path in paths)
    assert found.labels == tuple(path.parent.name for path in paths)
    assert found.splits == ("train",) * 17 + ("validation",) * 9
    assert found.values.keys() == wanted.keys()
    assert found.values["patches"].shape == (26, 2, 2, 32)
    for name, values in wanted.items():
        ours = found.values[name].reshape(values.shape)
        assert ours.dtype == np.float32
        assert np.abs(ours - values).max() <= 1e-5 * np.abs(values).max(), name
    assert len(found.unreadable) == 1
    assert "b_004.jpg" in found.unreadable[0]


@pytest.mark.usefixtures("small_parts")
def test_both_kinds_of_files_hold_the_same(photos: Path, tmp_path: Path) -> None:
    model, memory = model_of(), vitrail.embed(model_of(), photos, patches=True)
    for name in ("x.npz", "deep/x.parquet"):
        found = vitrail.embed(model, photos, out=tmp_path / name, patches=True)
        assert (found.ids, found.splits, found.labels) == (memory.ids, memory.splits, memory.labels)
        assert found.about == memory.about
        assert found.values.keys() == {"class", "mean"}
        assert all(np.array_equal(found.values[each], memory.values[each]) for each in found.values)
        assert not folder_of(tmp_path / name).exists()
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:  # as anybody reads it
        assert np.array_equal(arrays["patches"], memory.values["patches"])
        assert arrays["id"].tolist() == list(memory.ids)
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "deep" / "x.parquet").to_pydict()
    assert np.array_equal(np.array(table["patches"], np.float32), memory.values["patches"].reshape(26, -1))
    assert table["label"] == list(memory.labels or ())


class Killed(Exception):
    """The end, wherever it comes."""


def dying_behind(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are no longer kept behind one of them; nothing cleans up."""
    write, count = parts.PartFiles.write, [0]

    def dying(self: parts.PartFiles, *given: Any) -> None:
        if count[0] == number:
            raise Killed
        count[0] += 1
        write(self, *given)

    monkeypatch.setattr(parts.PartFiles, "write", dying)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", ["x.npz", "x.parquet"])
def test_interrupted_anywhere_the_bytes_are_the_same(name: str, photos: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole" / name
    vitrail.embed(model_of(), photos, out=whole)
    out, progress = tmp_path / name, []
    for behind in (0, 2, 3):  # nothing kept; two parts; then all six but one
        with pytest.MonkeyPatch.context() as patch:
            dying_behind(behind, patch)
            with pytest.raises(Killed):
                vitrail.embed(model_of(), photos, out=out)
        assert not out.exists()
    (folder_of(out) / "000001.npz").write_bytes(b"half a part")  # a disk that lost something: made again
    (folder_of(out) / "000003.npz.writing").write_bytes(b"half a part")
    vitrail.embed(model_of(), photos, out=out, progress=lambda done, total: progress.append((done, total)))
    assert progress == [(18, 27), (23, 27), (27, 27)]
    assert out.read_bytes() == whole.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("x")] == [name]


@pytest.mark.usefixtures("small_parts")
def test_parts_of_something_else_are_refused_and_left(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npz"
    with pytest.MonkeyPatch.context() as patch:
        dying_behind(3, patch)
        with pytest.raises(Killed):
            vitrail.embed(model_of(), photos, out=out)
    before = {file.name: file.read_bytes() for file in folder_of(out).iterdir()}
    other = shutil.copytree(photos, tmp_path / "photos")
    (other / "val" / "c" / "c_000.jpg").write_bytes(b"another size")
    squashed = replace(model_of(), input=replace(model_of().preprocessing, resize="squash"))
    for data, model, patches in (
        (photos, model_of(seed=1), False),
        (photos, model_of(norm_eps=1e-3), False),
        (photos, squashed, False),
        (photos, model_of(), True),
        (other, model_of(), False),
    ):
        with must_raise(UsageError, named="x.npz.parts"):
            vitrail.embed(model, data, out=out, patches=patches)
    assert {file.name: file.read_bytes() for file in folder_of(out).iterdir()} == before


def test_a_file_that_is_there_is_read_or_refused(photos: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "x.npz", model_of()
    first = vitrail.embed(model, photos, out=out)
    before = out.stat()
    folder_of(out).mkdir()  # killed between the file and the tidying up
    again = vitrail.embed(model, photos, out=out)
    assert np.array_equal(first.values["mean"], again.values["mean"])
    assert out.stat() == before
    assert not folder_of(out).exists()
    arrays = dict(np.load(out))
    np.savez(tmp_path / "other.npz", **{**arrays, "about": np.array(json.dumps({**read_about(out), "format": 1}))})
    with must_raise(UsageError, named="other.npz"):
        vitrail.embed(model, photos, out=tmp_path / "other.npz")
    with must_raise(UsageError, named=str(out)):
        vitrail.embed(model_of(seed=1), photos, out=out)
    with must_raise(UsageError, named="split|images"):
        vitrail.embed(model, photos, out=out, split="val")
    (tmp_path / "mine.npz").write_text("mine")
    np.savez(tmp_path / "theirs.npz", a=np.zeros(3))
    for name in ("mine.npz", "theirs.npz"):
        with must_raise(UsageError, named=name):
            vitrail.embed(model, photos, out=tmp_path / name)
        with must_raise(DataError, named=name):
            read_features(tmp_path / name)
    assert (tmp_path / "mine.npz").read_text() == "mine"


def test_where_nothing_can_be_written(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x.csv", "x", "x.NPZ"):
        with must_raise(UsageError, named=name):
            vitrail.embed(model_of(), photos, out=tmp_path / name)
    with must_raise(UsageError, named="workers"):
        vitrail.embed(model_of(), photos, workers=-1)
    (tmp_path / "file").write_text("")
    with must_raise(UsageError, named="file/x.npz"):
        vitrail.embed(model_of(), photos, out=tmp_path / "file" / "x.npz")
    find_spec = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name))
        with must_raise(UsageError, named="pyarrow"):
            vitrail.embed(model_of(), photos, out=tmp_path / "x.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(home.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 0, 9))  # pyrefly: ignore
        with must_raise(RunError, named="x.npz"):
            vitrail.embed(model_of(), photos, out=tmp_path / "x.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("small_parts")
def test_what_another_process_writes_is_left_to_it(photos: Path, tmp_path: Path) -> None:
    out, lock = tmp_path / "f.npz", tmp_path / "f.npz.lock"
    with locked(out, lock), must_raise(RunError, str(out)):  # tests/runs/test_folder.py: of another process
        home.embed(model_of(), photos, out=out)
    leave_lock(lock, pid=2**22 + 1)  # dead for long
    home.embed(model_of(), photos, out=out)
    assert [file.name for file in tmp_path.iterdir()] == ["f.npz"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.usefixtures("small_parts")
def test_a_disk_that_fills_up_loses_nothing(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, rename = tmp_path / "x.npz", os.replace

    def full(*_: object) -> None:
        with open("/dev/full", "w") as handle:
            handle.write("x")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda source, to: (full if Path(to) == out else rename)(source, to))
        with must_raise(RunError, named="x.npz"):
            vitrail.embed(model_of(), photos, out=out)
    assert not out.exists()
    progress: list[int] = []
    vitrail.embed(model_of(), photos, out=out, progress=lambda done, _: progress.append(done))
    assert progress == [27]  # all was there


@pytest.mark.parametrize(
    ("slots", "changes", "names", "read"),
    [
        ({}, {}, ("class", "mean"), "class"),
        ({}, {"pooling": "mean"}, ("class", "mean"), "mean"),
        ({}, {"pooling": "mean", "class_token": False}, ("mean",), "mean"),
        ({"pooling": "attention"}, {"pooling": "mean", "class_token": False}, ("mean", "pooled"), "pooled"),
        ({"pooling": "class_and_mean", "head": "of_two"}, {}, ("class", "mean", "pooled"), "pooled"),
        ({"pooling": "mean_then_norm"}, {}, ("class", "mean", "pooled"), "pooled"),
        ({}, {"distillation_token": True}, ("class", "mean"), "class"),
    ],
)
def test_poolings_are_called_what_they_are(
    slots: dict[str, str], changes: dict[str, Any], names: tuple[str, ...], read: str, photos: Path
) -> None:
    model = model_of(0, slots, **changes)
    assert poolings_of(model.network) == names
    assert read_by_head(model.network) == check_pooling(model.network, None) == read
    with must_raise(UsageError, named="flat"):
        check_pooling(model.network, "flat")
    if "class" not in names:
        with must_raise(UsageError, named="class"):
            check_pooling(model.network, "class")
    found, images = vitrail.embed(model, photos / "val"), sorted((photos / "val").rglob("*.*"))
    with torch.no_grad():
        _, record = vitrail.run_with_record(model.network, model.tensor(images), "pooled")
    assert np.abs(found.values[read] - record["pooled"].numpy()).max() <= 1e-5 * float(record["pooled"].abs().max())


def test_what_cannot_be_embedded(photos: Path, tmp_path: Path) -> None:
    config = vitrail.TransformerConfig(source_vocab_size=13, target_vocab_size=13, width=16, heads=2)
    writer = vitrail.Transformer(config)
    digits = vitrail.Vocabulary(tuple("0123456789"))
    with must_raise(UsageError, named="Transformer"):
        vitrail.embed(
            vitrail.Model(writer, digits, vitrail.tasks.TextCodec(digits), vitrail.tasks.TASKS["sequences"]), photos
        )
    with must_raise(DataError, named="empty"):
        (tmp_path / "empty").mkdir()
        vitrail.embed(model_of(), tmp_path / "empty")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.jpg").write_text("no image")
    with must_raise(DataError, named="x.jpg"):
        vitrail.embed(model_of(), tmp_path / "bad", out=tmp_path / "x.npz")
    with must_raise(UsageError, named="tset"):
        vitrail.embed(model_of(), photos, split="tset")
    with must_raise(DataError, named="sort-digits"):
        vitrail.embed(model_of(), "sort-digits")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "empty"]


def test_images_without_classes(photos: Path, tmp_path: Path) -> None:
    found = vitrail.embed(model_of(), photos / "val" / "a", out=tmp_path / "x.npz")
    assert (found.labels, found.ids) == (None, ("a_000.jpg", "a_001.jpg", "a_002.jpg"))
    one = vitrail.embed(model_of(), photos / "val" / "a" / "a_001.jpg")
    assert one.ids == ("a_001.jpg",)
    assert np.allclose(one.values["mean"][0], found.values["mean"][1], atol=1e-5)


@pytest.mark.soak
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_killed_process_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """A real SIGKILL behind each part in turn, in a process of its own, with a worker that decodes ahead."""
    make_photographs(tmp_path / "photos", CLASSES, per_class=40, seed=0)
    vitrail.save(model_of(), tmp_path / "model")
    words = ("embed", tmp_path / "model", tmp_path / "photos", "--threads", 1, "--workers", 1, "--out")
    small = "from vitrail.features import embed as home\nfrom vitrail.jobs import parts\n"
    small += "home.ROWS, parts.BATCH = 32, 8\n"
    killed = (
        "import os, signal; write = parts.PartFiles.write\n"
        "def kill(self, *given): write(self, *given); os.kill(os.getpid(), signal.SIGKILL)\n"
        "parts.PartFiles.write = kill\n"
    )
    assert call_outside(*words, tmp_path / "whole.npz", before=small).code == 0
    for _ in range(4):
        assert call_outside(*words, tmp_path / "x.npz", before=small + killed).code == -signal.SIGKILL
    assert not (tmp_path / "x.npz").exists()
    assert call_outside(*words, tmp_path / "x.npz", before=small).code == 0
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
