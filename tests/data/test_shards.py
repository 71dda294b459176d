"""Packed images are the images: the same names, columns, splits, pixels and weights; nothing is lost or half there."""

import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.command import environment
from tests.data.lab import open_set
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.training.tiny import Killed, content
from vitrail.cli.args import Data
from vitrail.cli.main import VERBS
from vitrail.cli.parse import parse
from vitrail.data import packing, shard_files
from vitrail.data.columns import Column, Labels, RawDataset, Samples, Texts, Values
from vitrail.data.images import ArrayImages, FileImages, Images
from vitrail.data.layout import Layout
from vitrail.data.loader import StreamedLoader
from vitrail.data.multiple import ClassColumns, LabelSets, Quantities
from vitrail.data.packing import Packed, pack
from vitrail.data.plan import plan
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.shards import ShardImages
from vitrail.data.shard_files import Words, read_split, read_table, split_file
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte is short here, so that a few images fill several shards."""
    monkeypatch.setattr(packing, "MB", 20_000)


def images_of(data: str | Path, split: str) -> Images:
    inputs = read(str(data)).splits[split].inputs
    assert isinstance(inputs, Images)
    return inputs


def manifest(root: Path) -> Path:
    """Twelve images in three splits, with a class, a text, a column of one's own and one that has gaps."""
    files = make_photographs(root, ("böse", "ü"), per_class=6, seed=3)
    splits = ("train", "train", "train", "train", "val", "test")
    lines = [
        f"{file.relative_to(root)},{file.parent.name},no {i},{'x' * (i % 3)},{splits[i % 6]},{i / 4}"
        for i, file in enumerate(files)
    ]
    (root / "list.csv").write_text("\n".join(["path,label,text,gaps,split,weight", *lines]))
    return root / "list.csv"


def test_names_columns_and_bytes_are_those_of_the_data(photo_folder: Path, tmp_path: Path) -> None:
    for source in (photo_folder, manifest(tmp_path / "listed")):
        out = tmp_path / f"packed-{source.name}"
        packed = pack(source, out, shard_size=1)
        assert packed.shards > len(packed.images) > 1, "some split has several shards"
        theirs, ours = read(str(source)), read(str(out))
        assert list(theirs.splits) == list(ours.splits)
        for split, samples in theirs.splits.items():
            mine = ours.splits[split]
            assert isinstance(samples.inputs, Images)
            assert isinstance(mine.inputs, Images)
            assert mine.inputs.names() == samples.inputs.names()
            assert mine.inputs.digest() == samples.inputs.digest()
            assert [mine.inputs.content(i) for i in range(len(mine))] == [
                samples.inputs.content(i) for i in range(len(mine))
            ]
            assert list(mine.columns) == [name for name in samples.columns if name != "gaps"]
            for name, column in mine.columns.items():
                assert column.digest() == samples.column(name).digest()
                assert not isinstance(column, Labels) or column.names == samples.column(name).names
    listed = read(str(tmp_path / "packed-list.csv"))
    assert any("gaps" in note for note in listed.notes), "what is left out is said, also to who opens it later"
    assert isinstance(listed.splits["test"].columns["weight"], Texts)
    data = [open_set(str(each)) for each in (photo_folder, tmp_path / f"packed-{photo_folder.name}")]
    assert data[0].fingerprint == data[1].fingerprint


def test_columns_of_several_labels_numbers_or_classes_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.zeros((3, 8, 8), np.uint8)
    columns: dict[str, Column] = {
        "labels": LabelSets.of([["dog"], [], ["cat", "dog"]]),
        "number": Quantities(np.array([[1.0, np.nan], [2.5, 3.0], [0.0, 1.0]]), ("length", "width")),
        "attributes": ClassColumns.of({"colour": ["red", "", "blue"], "shape": ["round", "star", "star"]}),
    }
    raw = RawDataset("three", {"train": Samples(ArrayImages(pixels, "three"), columns)})
    monkeypatch.setattr(packing, "read", lambda *names, **options: raw)
    pack("three", tmp_path / "packed")
    found = read(str(tmp_path / "packed")).splits["train"]
    for name, column in columns.items():
        same = found.column(name)
        assert isinstance(same, Values)
        assert isinstance(column, Values)
        assert (type(same), same.named) == (type(column), column.named)
        assert np.array_equal(same.values, column.values, equal_nan=name == "number")


def test_columns_and_groups_that_are_named_are_packed_under_their_usual_names(tmp_path: Path) -> None:
    files = make_photographs(tmp_path / "photos", ("a", "b"), per_class=6, seed=0)
    rows = [f"{each.relative_to(tmp_path)},{each.parent.name},{row % 2},p{row // 3}" for row, each in enumerate(files)]
    (tmp_path / "list.csv").write_text("\n".join(["file,label,eye,patient", *rows]))
    how = Layout(label_column="eye", group_column="patient")
    pack(tmp_path / "list.csv", tmp_path / "packed", layout=how)
    (samples,) = read(str(tmp_path / "packed")).splits.values()
    assert samples.labels == tuple(str(row % 2) for row in range(12))
    assert [*samples.units()] == [f"p{row // 3}" for row in range(12)]
    pack(tmp_path / "photos", tmp_path / "by-name", layout=Layout(group_pattern=r"(\w+)_\d+"))
    (samples,) = read(str(tmp_path / "by-name")).splits.values()
    assert [*samples.units()] == ["a"] * 6 + ["b"] * 6
    with pytest.raises(UsageError, match="packed"):  # another column of labels makes other shards
        pack(tmp_path / "list.csv", tmp_path / "packed", layout=Layout(group_column="patient"))


def test_packed_again_or_killed_anywhere_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind or before every file that gets its name, and in the middle of one; then the same call."""
    source, whole = manifest(tmp_path / "listed"), tmp_path / "whole"
    bad = source.parent / images_of(source, "train").name(2)
    bad.write_bytes(b"no image")
    assert len(pack(source, whole, shard_size=1).left_out) == 1
    wanted = {path.name: path.read_bytes() for path in whole.iterdir()}
    replace, calls = os.replace, list[Path]()
    killed_at, behind = 0, False

    def counted(old: Path, new: Path) -> None:
        calls.append(new)
        if len(calls) == killed_at and not behind:
            raise Killed
        replace(old, new)
        if len(calls) == killed_at:
            raise Killed

    monkeypatch.setattr(os, "replace", counted)
    pack(source, tmp_path / "counted", shard_size=1)
    names = len(calls)
    shards = sum(name.endswith(".tar") for name in wanted)
    assert names == len(wanted) + shards + 1, "every file, one beside each shard, and the one that says what is packed"
    for killed_at in range(1, names + 1):
        for behind in (False, True):
            out = tmp_path / f"out-{killed_at}-{behind}"
            calls.clear()
            with pytest.raises(Killed):
                pack(source, out, shard_size=1)
            if (out / "packing.json").exists() and not (out / "shards.json").exists():
                with pytest.raises(DataError) as caught:
                    read(str(out))
                verb, *words = shlex.split(caught.value.hint.text)[1:]
                assert vars(parse(VERBS[verb].options, verb, words)) == vars(
                    Data(action="pack", data=str(source), out=out, shard_size=1)
                )
            before = {path.name for path in out.glob("*.tar")}
            pack(source, out, shard_size=1)
            again = {path.name for path in calls[killed_at:]}
            assert not before & again, "whole shards are not written again"
            assert {path.name: path.read_bytes() for path in out.iterdir()} == wanted


@pytest.mark.soak
def test_eight_kills_of_a_pack(tmp_path: Path) -> None:
    """By SIGKILL, when so many shards are there, and a moment later."""
    source, rng, kills = manifest(tmp_path / "listed"), np.random.default_rng(0), 0
    pack(source, tmp_path / "whole", shard_size=1)
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    start = "from vitrail.data import packing; packing.MB = 20_000; from vitrail.cli import main; main()"
    most, number = len(list((tmp_path / "whole").glob("*.tar"))), 0
    while kills < 8:
        out, number, code = tmp_path / f"out-{number}", number + 1, 1
        while code:
            words = ["data", "pack", str(source), "--out", str(out), "--shard-size", "1"]
            work = subprocess.Popen([sys.executable, "-c", start, *words], env=environment(), stdout=subprocess.DEVNULL)
            until = len(list(out.glob("*.tar"))) + int(rng.integers(0, most))
            while work.poll() is None and len(list(out.glob("*.tar"))) < until:
                time.sleep(0.001)
            time.sleep(float(rng.uniform(0, 0.01)))
            kills += work.poll() is None
            work.kill()
            code = work.wait()
        found = {path.name: path.read_bytes() for path in out.iterdir()}
        assert sorted(found) == sorted(wanted)
        assert found == wanted


def test_a_full_disk_leaves_whole_files_and_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = manifest(tmp_path / "listed"), tmp_path / "out"
    sync, calls = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        pack(source, out, shard_size=1)
    assert Path(caught.value.filename).parent == out
    assert not list(out.glob("*.writing"))
    with pytest.raises(DataError):
        read(str(out))
    pack(source, out, shard_size=1)
    pack(source, tmp_path / "whole", shard_size=1)
    assert [each.read_bytes() for each in sorted(out.iterdir())] == [
        each.read_bytes() for each in sorted((tmp_path / "whole").iterdir())
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_webdataset_reads_the_shards(photo_folder: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    packed = pack(photo_folder, tmp_path / "packed", shard_size=1)
    shards = [str(path) for path in sorted(packed.out.glob("train-*.tar"))]
    assert len(shards) > 2
    found = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode("pil"))
    train = read(str(photo_folder)).splits["train"]
    classes = json.loads((packed.out / "shards.json").read_text())["classes"]
    assert len(found) == len(train)
    for index, sample in enumerate(found):
        assert sample["json"]["path"] == train.inputs.name(index)
        assert classes[sample["cls"]] == sample["json"]["label"] == train.inputs.name(index).split("/")[1]
        image = sample["png" if train.inputs.name(index).endswith("png") else "jpg"]
        assert isinstance(train.inputs, Images)
        assert image.convert("RGB").tobytes() == train.inputs.open(index).convert("RGB").tobytes()


def odd_images(root: Path) -> Path:
    """Large, small, grey, transparent, with a palette, 16 bits deep, turned by EXIF; and three that cannot be read."""
    (root / "a").mkdir(parents=True)
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6, 4), dtype=np.uint8))
    noise = np.array(coarse.resize((120, 80), Image.Resampling.BICUBIC))
    colour = Image.fromarray(np.ascontiguousarray(noise[:, :, :3]))
    turned = Image.Exif()
    turned[0x0112] = 6
    colour.save(root / "a" / "0.jpg", quality=95)
    colour.save(root / "a" / "1.jpg", exif=turned)
    colour.resize((30, 20)).save(root / "a" / "2.bmp")
    Image.fromarray(noise).save(root / "a" / "3.png")
    Image.fromarray(noise[:, :, 0]).save(root / "a" / "4.png")
    colour.convert("P").save(root / "a" / "5.gif")
    Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257).save(root / "a" / "6.tif")
    (root / "a" / "7.jpg").write_bytes((root / "a" / "0.jpg").read_bytes()[:3000])
    (root / "a" / "8.png").write_bytes(b"")
    (root / "a" / "9.png").write_text("no image")
    return root


def test_scaled_images_and_those_that_cannot_be_read(tmp_path: Path) -> None:
    packed = pack(odd_images(tmp_path / "odd"), tmp_path / "packed", shorter_side=32)
    assert packed.images == {"all": 7}
    assert [line.split(":")[1].strip() for line in packed.left_out] == ["a/7.jpg", "a/8.png", "a/9.png"]
    images = images_of(packed.out, "all")
    assert images.names() == [f"a/{name}" for name in ("0.jpg", "1.jpg", "2.bmp", "3.png", "4.png", "5.gif", "6.tif")]
    found = [images.open(index) for index in range(7)]
    assert [one.size for one in found] == [(48, 32), (32, 48), (30, 20), (48, 32), (48, 32), (48, 32), (48, 32)]
    assert [one.mode for one in found] == ["RGB", "RGB", "RGB", "RGBA", "L", "RGB", "I;16"]
    assert images.content(2) == (tmp_path / "odd" / "a" / "2.bmp").read_bytes(), "what is not larger keeps its bytes"
    kinds = [Image.open(io.BytesIO(images.content(index))).format for index in range(7)]
    assert kinds == ["JPEG", "JPEG", "BMP", "PNG", "JPEG", "JPEG", "PNG"]
    shape = Preprocessing((32, 32))
    upright = images_of(tmp_path / "odd", "all")
    for index in range(7):
        gap = shape.to_uint8(images.open(index)).float() - shape.to_uint8(upright.open(index)).float()
        assert gap.abs().mean() < 6, index
    again = pack(packed.out, tmp_path / "smaller", shorter_side=16)
    assert (again.images, min(images_of(again.out, "all").open(0).size)) == ({"all": 7}, 16)


def test_a_set_in_memory_keeps_its_pixels_and_its_splits(tmp_path: Path) -> None:
    pack("digits", tmp_path / "packed")
    ours, theirs = read(str(tmp_path / "packed")), read("digits")
    for split, samples in theirs.splits.items():
        mine = ours.splits[split]
        assert mine.inputs.names() == samples.inputs.names()
        assert isinstance(samples.inputs, Images)
        assert isinstance(mine.inputs, Images)
        for index in range(0, len(mine), 97):
            assert mine.inputs.open(index).tobytes() == samples.inputs.open(index).tobytes()
    assert (ours.classes, ours.split_seed) == (theirs.classes, theirs.split_seed)


# ---- every image once, whatever the shards, workers and ranks


GREY = Preprocessing((2, 2), channels=1, mean=(0.5,), std=(0.5,))


def numbered(root: Path, count: int) -> Path:
    """Images whose grey says which one each is; of one size in bytes."""
    (root / "all").mkdir(parents=True)
    for number in range(count):
        Image.fromarray(np.full((2, 2), number, np.uint8)).save(root / "all" / f"{number:03d}.bmp")
    return root


def packed_into(source: Path, out: Path, count: int, shards: int, monkeypatch: pytest.MonkeyPatch) -> Packed:
    """So many shards, as far as there are images for them."""
    content = (source / "all" / "000.bmp").stat().st_size
    sample = sum(512 + -(-size // 512) * 512 for size in (content, 1, 60))
    monkeypatch.setattr(packing, "MB", 1024 + -(-count // shards) * sample)
    return pack(source, out, shard_size=1)


def read_in_order(loader: StreamedLoader, ranks: int, epoch: int) -> list[int]:
    """What each rank sees of a plan that is dealt out in turn, put together again."""
    ids = plan(5, epoch, len(loader.images)).ids
    seen = [0] * len(ids)
    for rank in range(ranks):
        mine = np.arange(rank, len(ids), ranks)
        parts = [ids[part] for part in np.array_split(mine, max(1, len(mine) // 4)) if len(part)]
        values = [int(v) for got in loader.fetch(parts) for v in got.pixels[:, 0, 0, 0]]
        for place, value in zip(mine, values, strict=True):
            seen[place] = value
    return seen


def must_see_each_once(
    counts: list[int], shards: list[int], workers: list[int], ranks: list[int], root: Path, patch: pytest.MonkeyPatch
) -> int:
    """The grid; says how many of its points had as many shards as were asked for."""
    exact = 0
    for count in counts:
        source = numbered(root / f"{count}", count)
        for many in shards:
            packed = packed_into(source, root / f"{count}-{many}", count, many, patch)
            exact += packed.shards == many
            images = images_of(packed.out, "all")
            for processes in workers:
                loader = StreamedLoader(images, GREY, processes)
                for world in ranks:
                    for epoch in (0, 1):
                        seen = read_in_order(loader, world, epoch)
                        assert seen == plan(5, epoch, count).ids.tolist(), (count, many, processes, world)
                        assert sorted(seen) == list(range(count))
    return exact


def test_every_image_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert must_see_each_once([1, 2, 7, 23, 67], [1, 3, 5], [0], [1, 2, 3, 4], tmp_path, monkeypatch) > 8
    assert must_see_each_once([11], [4], [2], [2], tmp_path, monkeypatch) == 1


@pytest.mark.soak
def test_every_image_is_seen_once_in_the_whole_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every small number of images, and some larger ones: a multiple of all numbers of shards and ranks, and primes."""
    counts, shards = [*range(1, 10), 17, 43, 60, 67], [1, 2, 3, 4, 5]
    assert must_see_each_once(counts, shards, [0, 2], [1, 2, 3, 4], tmp_path, monkeypatch) > 40


# ---- what is damaged, lies or is not ours


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change of `shards.json`."""

    def write(folder: Path) -> None:
        table = json.loads((folder / "shards.json").read_text())
        change(table)
        (folder / "shards.json").write_text(json.dumps(table))

    return write


def rewritten(**changes: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """An index of a split whose checksum is right and whose numbers are not."""

    def write(folder: Path) -> None:
        file = folder / "train.safetensors"
        _, parts = read_table((folder / "shards.json").read_bytes(), "", "")
        rows, columns = read_split(file, parts["train"], "", "")
        for name, change in changes.items():
            object.__setattr__(rows, name, change(getattr(rows, name)))
        file.write_bytes(split_file(rows, columns)[0])

    return write


def train(table: dict[str, Any]) -> dict[str, Any]:
    return table["splits"]["train"]


LIES: dict[str, Callable[[Path], object]] = {
    "shard gone": lambda folder: (folder / "train-000001.tar").unlink(),
    "shard cut": lambda folder: os.truncate(folder / "train-000001.tar", 3000),
    "shard longer": lambda folder: os.truncate(folder / "train-000001.tar", 10**6),
    "index gone": lambda folder: (folder / "train.safetensors").unlink(),
    "index cut": lambda folder: os.truncate(folder / "train.safetensors", 900),
    "index empty": lambda folder: os.truncate(folder / "train.safetensors", 0),
    "table empty": lambda folder: os.truncate(folder / "shards.json", 0),
    "table a list": lambda folder: (folder / "shards.json").write_text("[]"),
    "table deep": lambda folder: (folder / "shards.json").write_text("[" * 100_000),
    "table of bytes": lambda folder: (folder / "shards.json").write_bytes(bytes(range(256))),
    "newer": edited(lambda table: table.update(version=2)),
    "no splits": edited(lambda table: table.update(splits={})),
    "a split of its own": edited(lambda table: table["splits"].update({"../x": train(table)})),
    "path above": edited(lambda table: train(table)["shards"][0].update(file="../train-000000.tar")),
    "path absolute": edited(lambda table: train(table)["shards"][0].update(file="/etc/passwd")),
    "index elsewhere": edited(lambda table: train(table)["index"].update(file="../train.safetensors")),
    "size below zero": edited(lambda table: train(table)["shards"][0].update(size=-1)),
    "size huge": edited(lambda table: train(table)["shards"][0].update(size=10**30)),
    "size a fraction": edited(lambda table: train(table)["shards"][0].update(size=1.5)),
    "sha256 none": edited(lambda table: train(table)["shards"][0].update(sha256="x")),
    "count huge": edited(lambda table: train(table).update(images=10**15)),
    "count infinite": edited(lambda table: train(table).update(images=float("inf"))),
    "one image more": edited(lambda table: train(table).update(images=train(table)["images"] + 1)),
    "fewer shards": edited(lambda table: train(table)["shards"].pop()),
    "fewer classes": edited(lambda table: train(table)["columns"][0].update(classes=["a"])),
    "a column more": edited(lambda table: train(table)["columns"].append({"name": "x", "kind": "labels"})),
    "column of no kind": edited(lambda table: train(table)["columns"][0].update(kind="pickle")),
    "offset beyond": rewritten(offset=lambda values: values + 10**7),
    "offset near the end of numbers": rewritten(offset=lambda values: np.full_like(values, 2**63 - 1)),
    "offset below zero": rewritten(offset=lambda values: values - 10**6),
    "size below zero of an image": rewritten(size=lambda values: -values),
    "shard that is none": rewritten(shard=lambda values: values + 9),
    "numbers of another kind": rewritten(size=lambda values: values.astype(np.float32)),
    "too few of them": rewritten(crc=lambda values: values[:-1]),
    "hashes of another kind": rewritten(hash=lambda values: values.astype(np.int32)),
    "too short hashes": rewritten(hash=lambda values: values[:, :8]),
    "too few hashes": rewritten(hash=lambda values: values[:-1]),
}


@pytest.fixture(scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MB", 20_000)
        return pack(manifest(root / "listed"), root / "out", shard_size=1).out


def test_a_folder_that_lies_is_refused(packed_once: Path, tmp_path: Path) -> None:
    read(str(packed_once))
    for name, lie in LIES.items():
        folder = tmp_path / name.replace(" ", "-")
        shutil.copytree(packed_once, folder)
        lie(folder)
        with pytest.raises(DataError) as caught:
            read(str(folder))
        assert folder.name in caught.value.problem, name


def test_an_image_is_known_by_the_file_that_it_was_packed_from(packed_once: Path, tmp_path: Path) -> None:
    """However it was encoded, and packed again."""
    source = packed_once.parent / "listed" / "list.csv"
    small = pack(source, tmp_path / "small", shorter_side=20).out
    again = pack(small, tmp_path / "again", shorter_side=10).out
    for split, samples in read(str(source)).splits.items():
        assert isinstance(samples.inputs, FileImages)
        files = [hashlib.blake2b(path.read_bytes(), digest_size=16).digest() for path in samples.inputs.paths]
        assert [samples.inputs.read(i)[1] for i in range(len(samples))] == files
        for folder in (packed_once, small, again):
            images = images_of(folder, split)
            assert [images.content_hash(i) for i in range(len(images))] == files
            assert [images.read(i)[1] for i in range(len(images))] == files


def test_a_damaged_image_is_left_out_by_name(packed_once: Path, tmp_path: Path) -> None:
    """One flipped bit, which the decoder itself would not notice."""
    folder = Path(shutil.copytree(packed_once, tmp_path / "copy"))
    images = images_of(folder, "train")
    assert isinstance(images, ShardImages)
    expected = images.content(3)
    shard = folder / images.shards[images.rows.shard[3]].file
    content = bytearray(shard.read_bytes())
    at = content.find(expected)
    assert at > 0
    content[at + len(expected) // 2] ^= 1
    shard.write_bytes(content)
    loader = StreamedLoader(images, Preprocessing((8, 8)), 0)
    (got,) = loader.fetch([np.arange(len(images))])
    assert got.readable.tolist() == [index != 3 for index in range(len(images))]
    assert list(loader.unreadable) == [3]
    assert images.name(3) in loader.unreadable[3]
    assert not got.pixels[3].any()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_goes_missing_ends_the_run(packed_once: Path, tmp_path: Path, workers: int) -> None:
    """A whole shard is no unreadable image: nothing would be left to say that it was not counted."""
    folder = Path(shutil.copytree(packed_once, tmp_path / "copy"))
    images = images_of(folder, "train")
    (folder / "train-000001.tar").unlink()
    with pytest.raises(vitrail.errors.RunError, match=r"train-000001\.tar"):
        list(StreamedLoader(images, Preprocessing((8, 8)), workers).fetch([np.arange(len(images))]))


def test_what_is_there_is_never_overwritten(packed_once: Path, tmp_path: Path) -> None:
    source, stranger = packed_once.parent / "listed" / "list.csv", tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "notes.txt").write_text("mine")
    before = content(packed_once)
    for out, other in ((stranger, {}), (packed_once, {"shorter_side": 8}), (packed_once, {"shard_size": 2})):
        with pytest.raises(UsageError) as caught:
            pack(source, out, **{"shard_size": 1, **other})
        assert out.name in caught.value.problem
        assert not Path(caught.value.hint.flags["out"]).exists()
    pack(source, packed_once, shard_size=1)  # the same once more: all is there
    assert content(packed_once) == before
    assert content(stranger) == {stranger / "notes.txt": b"mine"}
    with pytest.raises(UsageError):
        pack(source.parent, source.parent / "packed")
    assert not (source.parent / "packed").exists()


def test_many_texts_are_one_array_of_which_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["", "a", "böse", "\udcff no text", "", "z" * 9]
    words = Words.of(texts)
    monkeypatch.setattr(shard_files, "AT_ONCE", 2)
    for ids in ([], [0], [5, 3, 3, 0, 1], [4, 0, 2], list(range(6))):
        chosen = words.select(np.array(ids, np.int64))
        assert [chosen[place] for place in range(len(chosen))] == [texts[id] for id in ids]
        assert len(chosen.content) == sum(len(texts[id].encode("utf-8", "surrogateescape")) for id in ids)
    with pytest.raises(ValueError, match="length"):
        Words(words.content, words.ends[::-1].copy())


@pytest.mark.parametrize("name", ["sort-digits", "nowhere"])
def test_what_has_no_images_to_pack(name: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, UsageError), match=name):
        pack(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_checksum_is_that_of_zlib(packed_once: Path) -> None:
    """Written down, since other programs may read the index."""
    images = images_of(packed_once, "test")
    _, parts = read_table((packed_once / "shards.json").read_bytes(), "", "")
    rows, _ = read_split(packed_once / "test.safetensors", parts["test"], "", "")
    assert [zlib.crc32(images.content(index)) for index in range(len(images))] == rows.crc.tolist()
    assert torch.is_tensor(StreamedLoader(images, Preprocessing((8, 8)), 0).read(np.array([0])).pixels)


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    """A file has no folders in it, for root neither."""
    (tmp_path / "file").write_bytes(b"")
    make_photographs(tmp_path / "photos", ("a", "b"), per_class=2, seed=0)
    with must_raise(UsageError, "file") as caught:
        pack(tmp_path / "photos", tmp_path / "file" / "packed")
    assert caught.value.hint.flags == {"out": str(Path.home() / "packed")}
