"""A process that dies while it decodes an image: others go on, the image is named, and nothing else is lost.

What dies is a real process, by a real signal, in the middle of Pillow. In the process of the test a deadly image is an
error instead, so that whatever reads it there is found out.
"""

import csv
import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile, PngInfo
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tests.cli.command import call
from tests.cli.test_elongated import TINY
from tests.errors import must_raise
from vitrail import io
from vitrail.data import loader as loader_module, workers as workers_module
from vitrail.data.images import FileImages, open_image
from vitrail.data.loader import Loader, StreamedLoader, load_resident
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.workers import in_workers, of_each
from vitrail.errors import RunError

SHAPE = Preprocessing((16, 16))
DEADLY = "deadly"  # the key of a text in a PNG whose decoder dies
DEATHS: dict[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "a null pointer": lambda: (faulthandler.disable(), ctypes.string_at(0)),
    "it leaves": lambda: os._exit(7),
}

pytestmark = pytest.mark.skipif(workers_module.FORK is None, reason="processes are forked on Linux")


@pytest.fixture(autouse=True)
def decoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As for a command. What decodes for this process was forked from it, and does not see what changes later."""
    monkeypatch.setattr(io, "_command", True)
    workers_module.APART.end()
    yield
    workers_module.APART.end()


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Pillow dies of a PNG with a text of that key, which says how; returns the names of the images that it died of."""
    load, log = PngImageFile.load, tmp_path / "deaths"
    log.touch()

    def dying(image: PngImageFile) -> object:
        if how := image.info.get(DEADLY):
            assert multiprocessing.parent_process() is not None, "decoded by the process of the run"
            with log.open("a") as file:
                file.write(f"{image.info['name']}\n")
            DEATHS[how]()
        return load(image)

    monkeypatch.setattr(PngImageFile, "load", dying)
    return lambda: log.read_text().split()


def put(path: Path, number: int, how: str = "") -> Path:
    """An image of its own, dark or bright, which may be deadly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 100, (16, 16, 3), dtype=np.uint8) + np.uint8(150 * (number % 2))
    about = PngInfo()
    about.add_text("name", path.name)
    if how:
        about.add_text(DEADLY, how)
    Image.fromarray(pixels).save(path, pnginfo=about)
    return path


def loader_of(images: FileImages, kind: str, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setattr(workers_module, "FORKED", 4)
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # s between two looks
    if kind == "streamed":
        return StreamedLoader(images, SHAPE, workers=2)
    return load_resident(images, SHAPE, threads=2, whole=kind == "whole")


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("resident", "killed"),
        ("resident", "a null pointer"),
        ("whole", "it leaves"),
        ("streamed", "killed"),
        ("streamed", "it leaves"),
    ],
)
def test_an_image_of_which_two_processes_died_is_named_and_left_out(
    kind: str, how: str, deaths: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, every = {0, 8}, range(20)
    paths = [put(tmp_path / "set" / f"{number:02d}.png", number, how if number in bad else "") for number in every]
    images = FileImages(paths, tmp_path / "set")
    loader, wanted = loader_of(images, kind, monkeypatch), [np.arange(4, 12), np.array([19, 3, 0]), np.array([5])]
    for _ in range(2):
        for ids, got in zip(wanted, loader.fetch(wanted), strict=True):
            assert got.readable.tolist() == [int(one) not in bad for one in ids]
            for row, one in enumerate(ids.tolist()):
                black = torch.zeros(3, 16, 16, dtype=torch.uint8)
                assert torch.equal(got.pixels[row], black if one in bad else SHAPE.to_uint8(images.open(one)))
    assert set(loader.unreadable) == bad
    assert all(images.name(number) in problem for number, problem in loader.unreadable.items())
    times = Counter(deaths())
    assert set(times) == {images.name(number) for number in bad}
    assert min(times.values()) == 2 or kind == "streamed"  # where one dies while another is ended
    assert not loader.contents[sorted(bad)].any()


def struck_at(places: set[int], log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these images costs a process, once."""
    read = FileImages.read
    log.touch()

    def dying(self: FileImages, index: int, least: int | None = None) -> object:
        if index in places and multiprocessing.parent_process() is not None:
            with log.open("a+") as file:
                file.seek(0)
                if f"{index}\n" not in file.readlines():
                    file.write(f"{index}\n")
                    file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index, least)

    monkeypatch.setattr(FileImages, "read", dying)


@pytest.mark.parametrize("kind", ["resident", "streamed"])
def test_a_process_that_is_killed_from_outside_costs_no_image(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = FileImages([put(tmp_path / "set" / f"{number:02d}.png", number) for number in range(40)])
    wanted = [np.arange(20), np.arange(20, 40)]
    expected = [load_resident(images, SHAPE, threads=1).read(ids).pixels for ids in wanted]
    struck_at({5, 6, 33}, tmp_path / "struck", monkeypatch)
    loader = loader_of(images, kind, monkeypatch)
    for got, pixels in zip(loader.fetch(wanted), expected, strict=True):
        assert torch.equal(got.pixels, pixels)
    assert loader.unreadable == {}
    assert {*(tmp_path / "struck").read_text().split()} == {"33", "5", "6"}


def test_where_memory_is_too_short_for_any_image_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = FileImages([put(tmp_path / "set" / f"{number:02d}.png", number) for number in range(30)])
    struck_at({*range(30)}, tmp_path / "struck", monkeypatch)
    monkeypatch.setattr(loader_module, "RESTARTS", 3)
    with must_raise(RunError):
        list(loader_of(images, "streamed", monkeypatch).fetch([np.arange(30)]))
    assert loader_module.RESTARTS < len((tmp_path / "struck").read_text().split()) < 30
    workers_module.APART.end()
    assert not multiprocessing.active_children()


def test_what_a_process_raises_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> int:
        if number == 70:
            raise RunError("disk70 is full", "another disk")
        return number

    with must_raise(RunError, named="disk70"):
        list(in_workers(work, range(100), 2))
    assert sorted(in_workers(work, range(70), 2)) == [(number, number) for number in range(70)]

    def read(self: FileImages, index: int, least: int | None = None) -> object:
        raise error("of a person's own")

    monkeypatch.setattr(FileImages, "read", read)
    images = FileImages([put(tmp_path / f"{number}.png", number) for number in range(4)])
    for error in (RuntimeError, ValueError):
        for kind in ("resident", "streamed"):
            with pytest.raises(error, match="of a person's own"):
                list(loader_of(images, kind, monkeypatch).fetch([np.arange(4)]))


def test_where_no_process_can_be_started_this_one_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = FileImages([put(tmp_path / f"{number}.png", number) for number in range(5)])
    here, this = (lambda number: os.getpid()), os.getpid()
    load, pixels = PngImageFile.load, [images.open(0).tobytes()]
    places = list[int]()

    def noted(image: PngImageFile) -> object:
        places.append(os.getpid())
        return load(image)

    for fewest, encoded, daemon in ((5, True, False), (6, True, False), (5, False, False), (5, True, True)):
        monkeypatch.setattr(workers_module, "FORKED", fewest)
        monkeypatch.setattr(FileImages, "encoded", encoded)
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", daemon)
        processes = {process for _, process in of_each(here, images, range(5), 2)}
        assert (this in processes) == ((fewest, encoded, daemon) != (5, True, False))
        monkeypatch.setattr(PngImageFile, "load", noted)
        workers_module.APART.end()
        places.clear()
        pixels.append(images.open(0).tobytes())
        assert {*places} == ({this} if daemon else set())  # the memory of another process is not this one's
        with monkeypatch.context() as patch:
            patch.setattr(io, "_command", False)
            pixels.append(images.open(0).tobytes())
        assert {*places} == {this}, "a program of a person is not forked"
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", False)
    for place in (workers_module.mmap, "mmap"), (workers_module, "_Worker"):  # no memory, or no process more
        workers_module.APART.end()
        places.clear()
        with monkeypatch.context() as patch:
            patch.setattr(*place, Mock(side_effect=OSError))
            pixels.append(images.open(0).tobytes())
        assert {*places} == {this}
    assert len({*pixels}) == 1


def test_what_decodes_for_a_process_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork, by each thread, after a stop in the middle of an answer; and it holds no pipe of another."""
    images = FileImages([put(tmp_path / f"{number}.png", number) for number in range(40)])
    expected = [open_image(images.file(number)).tobytes() for number in range(40)]

    def every(_: int) -> list[bytes]:
        return [images.open(number).tobytes() for number in range(40)]

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        first = images.open(0).tobytes()
        try:
            other.communicate(timeout=20)
        finally:
            other.kill()
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(every(0) != expected))
    child.start()
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(every, range(4))] == [expected] * 4
    child.join()
    assert child.exitcode == 0
    answer = workers_module._Worker.answer

    def stopped(worker: workers_module._Worker) -> object:
        monkeypatch.setattr(workers_module._Worker, "answer", answer)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers_module._Worker, "answer", stopped)
    with pytest.raises(KeyboardInterrupt):
        images.open(7)
    assert [first, every(0)] == [expected[0], expected]


def test_a_training_and_an_evaluation_go_on_without_it(
    deaths: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named once and counted, and stands in neither numerator nor denominator: streamed, and read into memory."""
    for number in range(70):
        split, label = ("train", "val")[number >= 40], ("dark", "bright")[number % 2]
        how = "killed" if number in (4, 51) else ""
        put(tmp_path / "data" / split / label / f"{number:02d}.png", number, how)
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers_module, "FORKED", 30)
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))
    run, words = tmp_path / "run", ("--epochs", 2, "--threads", 1, "--precision", "fp32", "--workers", 1)
    with monkeypatch.context() as patch:
        patch.setattr(loader_module, "RESIDENT_BYTES", 0)
        trained = call("train", tmp_path / "data", "--config", tmp_path / "tiny.yaml", *words, "--out", run)
    assert trained.code == 0, trained.err
    notes = json.loads((run / "data.json").read_text())["notes"]
    assert [[name in note for note in notes].count(True) for name in ("04.png", "51.png")] == [1, 1]
    predicted = call("predict", run, tmp_path / "data" / "val", "--workers", 1, "--out", tmp_path / "found.csv")
    assert "51.png" in predicted.err
    lines = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    (bad,) = [line for line in lines if "51.png" in line["file"]]
    assert (bad["label"], "SIGKILL" in bad["problem"]) == ("", True)
    right = sum(line["label"] == Path(line["file"]).parent.name for line in lines)
    found = json.loads(call("evaluate", run, "--json").out)
    assert (found["images"], len(found["unreadable"]), len(lines)) == (29, 1, 30)
    assert "51.png" in found["unreadable"][0]
    assert found["accuracy"] == pytest.approx(right / 29)
    found = json.loads(call("data", "check", tmp_path / "data", "--json", "--out", tmp_path / "page.html").out)
    one, *others = [tmp_path / "data" / "val" / "bright" / f"{number}.png" for number in (51, 53, 55)]
    for verb, *rest in (("predict",), ("predict", "--out", "few.csv"), ("explain", "--no-trust", "--out", "few.html")):
        some = call(verb, run, one, *others, "--json", *rest)
        assert (some.code, "51.png" in some.err) == (3, True), some.err
        answered = json.loads(some.out)
        assert len(answered["images"] if verb == "explain" else answered) == len(others)
    assert "51.png" in call("explain", run, one, "--out", tmp_path / "one.html").err
    assert "51.png" in call("embed", run, tmp_path / "data" / "val", "--out", tmp_path / "all.npz").err
    with monkeypatch.context() as patch:
        patch.setattr(workers_module, "FORKED", 1000)
        again = json.loads(call("evaluate", run, "--json").out)
        assert (again["images"], ["51.png" in each for each in again["unreadable"]]) == (29, [True])
    (unreadable,) = [json.dumps(each) for each in found["findings"] if each["kind"] == "unreadable"]
    assert "04.png" in unreadable
    assert "51.png" in unreadable
    assert {*deaths()} == {"04.png", "51.png"}
