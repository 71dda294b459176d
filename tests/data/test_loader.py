"""Two feeds, the same pixels; an image that cannot be read is named once, left out, and never replaced."""

import hashlib
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from vitrail.data import loader as loader_module
from vitrail.data.images import ArrayImages, FileImages, open_image
from vitrail.data.loader import (
    Loader,
    ResidentLoader,
    StreamedLoader,
    check_readable,
    cores,
    load_resident,
    open_loader,
)
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError

SHAPE = Preprocessing((16, 20))
WANTED = [np.array([3, 0, 7]), np.array([7]), np.array([1, 2, 59, 4])]


def files(folder: Path) -> FileImages:
    return FileImages(sorted(path for path in (folder / "train").rglob("*.*") if path.is_file()), folder)


def collect(feed: Loader, wanted: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(got.pixels.clone(), got.readable.clone()) for got in feed.fetch(wanted)]


def broken(folder: Path, root: Path) -> tuple[FileImages, dict[int, Path]]:
    """A copy of twelve images, of which number 2 is empty, number 5 is text and number 9 is cut off."""
    root.mkdir()
    paths = []
    for number, path in enumerate(files(folder).paths[:12]):
        content = path.read_bytes()
        content = {2: b"", 5: b"no image", 9: content[: len(content) // 2]}.get(number, content)
        paths.append(root / f"{number:02d}{path.suffix}")
        paths[-1].write_bytes(content)
    return FileImages(paths, root), {number: paths[number] for number in (2, 5, 9)}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_streamed_equals_resident_equals_one_by_one(photo_folder: Path, workers: int) -> None:
    images = files(photo_folder)
    resident = collect(load_resident(images, SHAPE, threads=2), WANTED)
    streamed = collect(StreamedLoader(images, SHAPE, workers), WANTED)
    for ids, ours, theirs in zip(WANTED, resident, streamed, strict=True):
        alone = torch.stack([SHAPE.to_uint8(images.open(int(one))) for one in ids])
        assert torch.equal(ours[0], alone)
        assert torch.equal(theirs[0], alone)
        assert bool(ours[1].all() & theirs[1].all())


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_images_are_the_same_from_memory_and_from_files(photo_folder: Path, workers: int) -> None:
    """Each at the top left, with its extent; a file that cannot be read is black and has the size."""
    images, preprocessing = files(photo_folder), Preprocessing((16, 16))
    resident = list(load_resident(images, preprocessing, threads=2, whole=True).fetch(WANTED))
    streamed = list(StreamedLoader(images, preprocessing, workers, whole=True).fetch(WANTED))
    shapes = set()
    for ids, ours, theirs in zip(WANTED, resident, streamed, strict=True):
        assert torch.equal(ours.pixels, theirs.pixels)
        assert ours.extents is not None
        assert theirs.extents is not None
        assert torch.equal(ours.extents, theirs.extents)
        for one, image in zip(ids, ours.images(), strict=True):
            assert torch.equal(image, preprocessing.to_uint8(images.read(int(one), 32)[0], whole=True))
            shapes.add(tuple(image.shape[1:]))
    assert len(shapes) > 3
    assert {min(shape) for shape in shapes} == {16}


def test_workers_live_as_long_as_their_loader(photo_folder: Path) -> None:
    """One pass after another, also after one that was left early: the same processes, and the right images."""
    images = files(photo_folder)
    loader = StreamedLoader(images, SHAPE, workers=2)
    before = torch.get_rng_state()
    everything = collect(loader, WANTED)
    first = {child.pid for child in multiprocessing.active_children()}
    left = loader.fetch([np.array([one]) for one in range(30)])
    next(left)
    again = collect(loader, WANTED[::-1])
    assert {child.pid for child in multiprocessing.active_children()} == first
    assert len(first) == loader.workers
    for ours, theirs in zip(again[::-1], everything, strict=True):
        assert torch.equal(ours[0], theirs[0])
    assert torch.equal(torch.get_rng_state(), before), "the random numbers of a training do not move on"
    with pytest.raises(AssertionError):
        list(left)


def waiting_signals(process: int | None) -> int:
    """Those that a process has been sent and has not taken yet, as bits."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("ShdPnd:")[2].split()[0], 16)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch ends them")
def test_a_worker_is_stopped_by_its_parent_alone(photo_folder: Path) -> None:
    """Not by the Ctrl-C or SIGTERM that each process of a group, or of a cluster's job, gets."""
    loader = StreamedLoader(files(photo_folder), SHAPE, workers=1)
    before = collect(loader, WANTED)
    (worker,) = multiprocessing.active_children()
    for signal in ("-INT", "-TERM"):
        subprocess.run(["kill", signal, str(worker.pid)], check=True)
        for ours, theirs in zip(collect(loader, WANTED), before, strict=True):
            assert torch.equal(ours[0], theirs[0])
    assert multiprocessing.active_children() == [worker]
    while waiting_signals(worker.pid):  # two signals of a kind that nobody has taken yet would be one
        time.sleep(0.01)
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


ORPHAN = """
import os, time
from pathlib import Path
import numpy as np
from vitrail.data.images import FileImages
from vitrail.data.loader import StreamedLoader
from vitrail.data.preprocessing import Preprocessing
class Slow(FileImages):
    def read(self, index, least=None):
        print(os.getpid(), flush=True)
        time.sleep(600)
next(StreamedLoader(Slow([Path("a.png")], Path()), Preprocessing((4, 4)), workers=1).fetch([np.array([0])]))
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends behind its batch")
def test_no_worker_outlives_its_parent() -> None:
    """It ends in the middle of a batch, too."""
    around = {**os.environ, "PYTHONPATH": str(Path(loader_module.__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", ORPHAN], env=around, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = Path("/proc") / parent.stdout.readline().strip()
        assert worker.name.isdigit()
        assert worker.exists()
        parent.kill()
        assert parent.wait() == -9
        began = time.monotonic()
        while worker.exists():
            assert time.monotonic() - began < 60
            time.sleep(0.05)


def test_there_are_no_more_workers_than_cores(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core three were asked for; torch would warn of them, and a warning is an error here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    feed = StreamedLoader(files(photo_folder), SHAPE, workers=3)
    assert feed.workers == cores() == 1
    assert len(collect(feed, WANTED)) == len(WANTED)


def test_arrays_are_taken_whole_where_nothing_is_resized() -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 16, 20, 3), dtype=np.uint8)
    whole = load_resident(ArrayImages(values), SHAPE, threads=1)
    one_by_one = torch.stack([SHAPE.to_uint8(ArrayImages(values).open(index)) for index in range(9)])
    assert torch.equal(whole.pixels, one_by_one)
    resized = load_resident(ArrayImages(values), Preprocessing((8, 10)), threads=2)
    assert torch.equal(resized.pixels[4], Preprocessing((8, 10)).to_uint8(ArrayImages(values).open(4)))


@pytest.mark.parametrize("kind", ["resident", "streamed here", "streamed by two"])
def test_a_bad_file_is_named_once_and_never_replaced(photo_folder: Path, tmp_path: Path, kind: str) -> None:
    images, bad = broken(photo_folder, tmp_path / "set")
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in images.paths}
    feed: Loader
    if kind == "resident":
        feed = load_resident(images, SHAPE, threads=3)
    else:
        feed = StreamedLoader(images, SHAPE, workers=2 if "two" in kind else 0)
    everyone = [np.array([5, 1, 2]), np.arange(12), np.array([9, 9])]
    for _ in range(2):
        for ids, (pixels, readable) in zip(everyone, collect(feed, everyone), strict=True):
            assert readable.tolist() == [int(one) not in bad for one in ids]
            for row, one in enumerate(ids.tolist()):
                if one in bad:
                    assert not pixels[row].any(), "no other image stands in for it"
                else:
                    assert torch.equal(pixels[row], SHAPE.to_uint8(images.open(one)))
    assert sorted(feed.unreadable) == [2, 5, 9]
    for number, path in bad.items():
        assert str(path) in feed.unreadable[number]
        assert "\n" not in feed.unreadable[number]
    assert sorted(tmp_path.rglob("*")) == sorted([tmp_path / "set", *images.paths]), "nothing is written"
    assert before == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in images.paths}


def test_the_size_of_the_set_decides(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = files(photo_folder)
    size = len(images) * 3 * 16 * 20
    told: list[int] = []
    monkeypatch.setattr(loader_module, "RESIDENT_BYTES", size)
    assert isinstance(open_loader(images, SHAPE, workers=2, progress=told.append), ResidentLoader)
    assert told == list(range(1, len(images) + 1))
    monkeypatch.setattr(loader_module, "RESIDENT_BYTES", size - 1)
    streamed = open_loader(images, SHAPE, workers=2)
    assert isinstance(streamed, StreamedLoader)
    assert streamed.workers == min(2, cores())
    open_loader(images.select(range(3)), SHAPE, workers=0)  # no worker process: one thread reads


@pytest.mark.parametrize(
    ("bad", "count", "refused"), [(0, 10, False), (1, 10, False), (2, 10, True), (10, 1000, False), (11, 1000, True)]
)
def test_more_than_one_percent_stops(bad: int, count: int, refused: bool) -> None:
    unreadable = {index: f"{index}.png: is empty" for index in range(bad)}
    if not refused:
        check_readable(unreadable, count)
        return
    with pytest.raises(DataError, match=f"{bad} of {count}") as caught:
        check_readable(unreadable, count)
    assert "1.png" in caught.value.problem
    assert "6.png" not in caught.value.problem, "the first five are enough"


@pytest.mark.parametrize("turned", [1, 6])  # EXIF: as it lies, and by a quarter
def test_large_jpegs_are_decoded_smaller_for_random_crops_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turned: int
) -> None:
    """A camera's photograph is decoded at an eighth of its size: nearly the same pixels; an evaluation sees all."""
    slopes = np.linspace(0, 255, 1600)[None, :, None] * np.array([1.0, 0.5, 0.2])
    waves = 40 * np.sin(np.arange(1200) / 60)[:, None, None]
    drawn, exif = Image.fromarray((slopes + waves).clip(0, 255).astype(np.uint8)), Image.Exif()
    exif[0x0112] = turned
    drawn.save(tmp_path / "large.jpg", quality=95, exif=exif)
    drawn.save(tmp_path / "large.png", exif=exif)
    images, preprocessing = FileImages([tmp_path / "large.jpg", tmp_path / "large.png"]), Preprocessing((64, 64))
    decoded, load = [], JpegImageFile.load

    def loaded(image: JpegImageFile) -> object:
        decoded.append(image.size)
        return load(image)

    monkeypatch.setattr(JpegImageFile, "load", loaded)
    ids = np.arange(2)
    whole = StreamedLoader(images, preprocessing, workers=0, whole=True).read(ids).images()
    assert {(200, 150)} == set(decoded)
    assert whole[0].shape == whole[1].shape == ((3, 64, 85) if turned == 1 else (3, 85, 64))
    assert float((whole[0].int() - whole[1].int()).abs().float().mean()) < 1
    decoded.clear()
    seen = StreamedLoader(images, preprocessing, workers=0).read(ids).pixels
    assert {(1600, 1200)} == set(decoded)
    assert torch.equal(seen[0], preprocessing.to_uint8(open_image(tmp_path / "large.jpg")))
    small = Preprocessing((400, 400))
    decoded.clear()
    StreamedLoader(images, small, workers=0, whole=True).read(ids)
    assert {(1600, 1200)} == set(decoded), "half of it would have fewer pixels than twice what is wanted"
