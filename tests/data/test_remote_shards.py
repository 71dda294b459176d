"""Shards behind an address give the same images as those in a folder, or one error that names the address."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.data.test_shards import manifest
from tests.data.web import Web, serving
from tests.training.tiny import Killed, options, photographs, stream_all, what_was_learnt
from vitrail.data import packing
from vitrail.data.images import Images
from vitrail.data.loader import StreamedLoader
from vitrail.data.packing import pack
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers import shards as reader
from vitrail.data.readers.shards import RemoteStore, ShardImages, cache_limit, checked_address
from vitrail.data.sources import read
from vitrail.errors import DataError, RunError, UsageError

SHAPE = Preprocessing((8, 8))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MB", 20_000)
        return pack(manifest(root / "listed"), root / "out", shard_size=1).out


@pytest.fixture
def web(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server of a copy, an empty cache, and no pauses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("VITRAIL_SHARD_CACHE", raising=False)
    monkeypatch.setattr(reader, "PAUSE", 0.0)
    with serving(Path(shutil.copytree(packed, tmp_path / "served"))) as web:
        yield web


def kept(tmp_path: Path) -> dict[str, int]:
    """The files of the cache and their sizes."""
    folder = tmp_path / "cache" / "vitrail" / "shards"
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix != ".lock"}


def train_images(data: str | Path) -> ShardImages:
    inputs = read(str(data)).splits["train"].inputs
    assert isinstance(inputs, ShardImages)
    return inputs


def contents(images: Images) -> list[bytes]:
    return [images.content(index) for index in range(len(images))]


def shards_of(packed: Path, split: str = "train") -> list[str]:
    return sorted(path.name for path in packed.glob(f"{split}-*.tar"))


def test_images_are_those_of_the_folder_whatever_the_server_does(web: Web, packed: Path, tmp_path: Path) -> None:
    """It fails once, refuses for a while, and stops in the middle, twice; what is missing is asked for, and no more."""
    first, second, third, *_ = shards_of(packed)
    sizes = {name: (packed / name).stat().st_size for name in shards_of(packed)}
    web.faults = {
        "shards.json": ["code 500", "stop 100"],
        "train.safetensors": ["code 429"],
        first: ["code 503", "stop 700", "stop 0", "stop 900"],
        second: ["stop 1"],
    }
    ours, theirs = read(web.address + "/"), read(str(packed))
    for split, samples in theirs.splits.items():
        mine = ours.splits[split]
        assert isinstance(mine.inputs, Images)
        assert isinstance(samples.inputs, Images)
        assert contents(mine.inputs) == contents(samples.inputs)
        assert mine.inputs.digest() == samples.inputs.digest()
        assert {name: column.digest() for name, column in mine.columns.items()} == {
            name: column.digest() for name, column in samples.columns.items()
        }
    assert ours.root == web.address
    assert not any(web.faults.values()), "all of it happened"
    assert {name: web.sent(name) for name in (first, second, third)} == {
        name: sizes[name] for name in (first, second, third)
    }, "no byte twice"
    before = len(web.asked)
    assert contents(train_images(web.address)) == contents(train_images(packed))
    assert [name for name, _, _ in web.asked[before:]] == ["shards.json"], "the rest is in the cache"


def test_a_server_that_cannot_begin_in_the_middle(web: Web, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `python -m http.server`: whole shards come from it, single images do not."""
    first = packed / shards_of(packed)[0]
    web.ranges, web.faults = False, {first.name: ["stop 700", "stop 1400"]}
    assert contents(train_images(web.address)) == contents(train_images(packed))
    assert web.sent(first.name) == 700 + 1400 + first.stat().st_size
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", "0")
    with pytest.raises(RunError) as caught:
        train_images(web.address).content(0)
    assert web.address in caught.value.problem
    assert "VITRAIL_SHARD_CACHE" in str(caught.value.hint)


@pytest.mark.parametrize("workers", [0, 2])
def test_many_ask_and_each_shard_comes_once(web: Web, packed: Path, workers: int) -> None:
    images, order = train_images(web.address), np.random.default_rng(0).permutation(8)
    wanted = [order[start : start + 2] for start in range(0, 8, 2)]
    local = StreamedLoader(train_images(packed), SHAPE, 0)
    loader = StreamedLoader(images, SHAPE, workers)
    for ours, theirs in zip(loader.fetch(wanted), local.fetch(wanted), strict=True):
        assert ours.pixels.equal(theirs.pixels)
        assert ours.readable.all()
    asked = [name for name, _, _ in web.asked if name.endswith(".tar")]
    assert sorted(asked) == shards_of(packed)


def test_threads_wait_for_each_other(web: Web, packed: Path) -> None:
    images, found = train_images(web.address), list[list[bytes]]()
    threads = [threading.Thread(target=lambda: found.append(contents(images))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [contents(train_images(packed))] * 6
    assert sorted(name for name, _, _ in web.asked if name.endswith(".tar")) == shards_of(packed)


def test_a_set_that_is_larger_than_the_cache_comes_image_by_image(
    web: Web, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(path.stat().st_size for path in packed.glob("*.tar"))
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", str((total - 1) / 1e9))
    images = train_images(web.address)
    web.faults = {shards_of(packed)[0]: ["stop 10", "code 500"]}
    assert contents(images) == contents(train_images(packed))
    assert sum(web.sent(name) for name in shards_of(packed)) == int(images.rows.size.sum()), "and not a byte more"
    assert not any(size > 10_000 for size in kept(tmp_path).values())
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", str(total / 1e9))
    assert contents(train_images(web.address)) == contents(images)
    assert len(kept(tmp_path)) > len(shards_of(packed)), "now they are kept"


def test_the_cache_is_bounded_and_what_was_used_longest_ago_goes(web: Web, packed: Path, tmp_path: Path) -> None:
    """With room for two of the shards; after each of them the cache holds what it may."""
    images = train_images(web.address)
    cache = tmp_path / "small"
    largest = max(shard.size for shard in images.shards)
    store = RemoteStore(web.address, cache, 2 * largest, whole=True)
    for number, shard in enumerate((*images.shards, images.shards[0])):
        before = {path.name for path in cache.glob("*") if path.suffix != ".lock"} if cache.exists() else set()
        assert store.read(shard, 0, 512) == (packed / shard.file).read_bytes()[:512]
        os.utime(cache / shard.sha256, (number, number))  # so that their order is known
        there = {path.name: path.stat().st_size for path in cache.iterdir() if path.suffix != ".lock"}
        assert sum(there.values()) <= 2 * largest
        assert shard.sha256 in there
        latest = images.shards[number - 1].sha256
        assert number == 0 or latest in there or len(before) < 2 or sum(there.values()) + largest > 2 * largest
    assert web.sent(images.shards[0].file) == 2 * images.shards[0].size, "it had to go, and came again"


def test_a_download_that_was_killed_goes_on_with_the_rest(
    web: Web, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = train_images(web.address)
    shard, pieces = images.shards[0], reader.fetch_bytes

    def killed(*given: object, **more: object) -> Iterator[bytes]:
        for piece in pieces(*given, **more):
            yield piece[:700]
            raise Killed

    monkeypatch.setattr(reader, "fetch_bytes", killed)
    with pytest.raises(Killed):
        images.content(0)
    assert [size for name, size in kept(tmp_path).items() if name.endswith(".writing")] == [700]
    monkeypatch.setattr(reader, "fetch_bytes", pieces)
    assert images.content(0) == train_images(packed).content(0)
    assert [first for name, first, _ in web.asked if name == shard.file] == [0, 700]
    assert not [name for name in kept(tmp_path) if name.endswith(".writing")]


# ---- what ends it


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_server_that_refuses_is_named(web: Web, code: int) -> None:
    web.always = {"shards.json": f"code {code}"}
    with pytest.raises(DataError) as caught:
        read(web.address)
    assert f"{web.address}/shards.json" in caught.value.problem
    assert str(code) in caught.value.problem
    assert caught.value.hint.text == f"curl -I {web.address}/shards.json"


def test_a_server_that_never_gets_well_is_given_up(web: Web) -> None:
    web.always = {"shards.json": "code 500"}
    with pytest.raises(RunError) as caught:
        read(web.address)
    assert web.address in caught.value.problem
    web.always = {"shards.json": "stop 0"}
    with pytest.raises(RunError):
        read(web.address)
    assert len(web.asked) < 3 * reader.ATTEMPTS


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("limit", ["1", "0"])
def test_a_refusal_in_the_middle_of_a_run_ends_it(
    web: Web, packed: Path, workers: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These images are not unreadable: left out, they would be missing from the epoch without anybody having looked."""
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", limit)
    images = train_images(web.address)
    web.always = {shards_of(packed)[1]: "code 403"}
    with pytest.raises(RunError, match=shards_of(packed)[1]):
        list(StreamedLoader(images, SHAPE, workers).fetch([np.arange(len(images))]))


@pytest.mark.parametrize("limit", ["1", "0"])
def test_other_bytes_than_those_of_the_index(
    web: Web, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", limit)
    images = train_images(web.address)
    shard = web.root / images.shards[0].file
    content = bytearray(shard.read_bytes())
    content[images.rows.offset[0] + 30] ^= 1
    shard.write_bytes(content)
    with pytest.raises((RunError, DataError), match=shard.name):
        images.content(0)
    assert images.shards[0].sha256 not in kept(tmp_path)
    os.truncate(shard, 600)
    with pytest.raises(RunError, match=shard.name):
        images.content(0)
    assert images.shards[0].sha256 not in kept(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_ends_the_run(web: Web, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a worker, which counts what the disk says of one image as an image that cannot be read."""
    images = train_images(web.address)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space") as caught:
        list(StreamedLoader(images, SHAPE, workers).fetch([np.arange(len(images))]))
    assert "VITRAIL_SHARD_CACHE" in str(caught.value.hint)
    assert not [name for name in kept(tmp_path) if name.endswith(".writing")], "the room is given back"


def test_a_page_that_is_no_index(web: Web) -> None:
    for content in (b"<html>", b"[]", json.dumps({"format": "other"}).encode(), b""):
        (web.root / "shards.json").write_bytes(content)
        with pytest.raises(DataError, match=r"shards\.json"):
            read(web.address)


def test_passwords_are_not_taken_and_not_repeated() -> None:
    for address in ("https://me:secret@host/a", "https://host/a?token=secret", "https://secret@host:8000/a"):
        with pytest.raises(UsageError) as caught:
            checked_address(address)
        assert "secret" not in str(caught.value)
        assert "https://host" in str(caught.value.hint)
    assert checked_address("https://host:8000/a/b/") == "https://host:8000/a/b"


def test_the_size_of_the_cache() -> None:
    assert cache_limit({}) == 20 * 10**9
    assert cache_limit({"VITRAIL_SHARD_CACHE": "0.5"}) == 5 * 10**8
    for wrong in ("much", "-1", "nan", "inf", ""):
        with pytest.raises(UsageError, match="VITRAIL_SHARD_CACHE"):
            cache_limit({"VITRAIL_SHARD_CACHE": wrong})


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of a queue of torch, at its end
def test_a_training_on_shards_has_the_bits_of_the_folder(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded by a worker process each time, with validation held out by names; evaluated, and gone on with."""
    stream_all(monkeypatch)
    monkeypatch.setattr(packing, "MB", 20_000)
    folder = photographs(tmp_path)
    web.root = pack(folder, tmp_path / "out", shard_size=1).out
    runs = [
        vitrail.train(str(data), tmp_path / f"run-{number}", options("photos"))
        for number, data in enumerate((folder, web.root, web.address))
    ]
    assert len({run.weights for run in runs}) == 1
    assert what_was_learnt(runs[0].folder) == what_was_learnt(runs[1].folder) == what_was_learnt(runs[2].folder)
    assert vitrail.evaluate(runs[2].folder).to_dict()["images"] == 6
    whole = vitrail.evaluate(runs[0].folder, web.address).to_dict()  # in which its training images are known
    assert (whole["images"], whole["trained_on"]["images"]) == (6, 54)
    again = vitrail.train(web.address, runs[2].folder, options("photos", epochs=2, resume="auto"))
    assert len(what_was_learnt(again.folder)) == 2
