"""Every kind of image by one rule: the same pixels however it is given, and whichever verb reads it."""

import csv
import faulthandler
import io
import json
import multiprocessing
import signal
import sys
import zipfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from tests.cli.command import call
from tests.data import mutated, zoo
from tests.errors import must_raise
from vitrail.data import loader as loader_module
from vitrail.data.images import FileImages, NamedImage, convert_mode, open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError
from vitrail.nn import ViT

READS = Preprocessing((zoo.HIGH, zoo.WIDE))
STATED = {"12 of 16.png", "12 of 16 a colour.png"}  # what is read where a person says how many bits it has
CONFIG = """
network: {image_size: [16, 24], patch_size: 8, width: 16, depth: 1, heads: 2, mlp_dim: 32}
decode_size: 16
augmentation: {crop_scale: [1.0, 1.0], crop_ratio: [1.0, 1.0], flip: 0.0, trivial_augment: false, mixup: 0.0,
  cutmix: 0.0, random_erasing: 0.0, shift: 0.0, rotate: 0.0, zoom: [1.0, 1.0]}
"""

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Truncated File Read")


def test_the_zoo_is_large_and_no_two_are_alike() -> None:
    """So that none can stand for another; and most of it is compared without any room."""
    kept = zoo.readable()
    assert len(kept) >= 90
    assert len(zoo.refused()) >= 30
    assert len({np.rint(each.pixels).tobytes() for each in kept.values()}) == len(kept)
    assert sum(each.gap == 0 for each in kept.values()) >= 60


def test_pixels_are_those_that_were_written() -> None:
    off = {}
    for name, each in zoo.readable().items():
        found = np.asarray(convert_mode(open_image(name, each.content), 3)).astype(float)
        assert found.shape == each.pixels.shape, name
        if (gap := np.abs(found - each.pixels).max()) > each.gap:
            off[name] = gap
    assert off == {}


def test_the_same_by_path_bytes_image_and_array(tmp_path: Path) -> None:
    for name, each in zoo.readable().items():
        path = tmp_path / name
        path.write_bytes(each.content)
        wanted = READS.to_uint8(open_image(name, each.content))
        with Image.open(path) as opened:
            ways = [path, str(path), each.content, opened, Image.open(io.BytesIO(each.content))]
            ways += [] if each.array is None else [each.array, Image.fromarray(each.array)]
            for way in ways:
                assert torch.equal(READS(way), READS.normalise(wanted[None])[0]), (name, type(way))
                image = NamedImage("an image", way).image if isinstance(way, Image.Image) else open_image(way)
                assert torch.equal(READS.to_uint8(image), wanted), (name, type(way))
        assert torch.equal(READS.to_uint8(FileImages([path]).read(0)[0]), wanted)
        assert path.read_bytes() == each.content


def test_what_no_rule_reads_is_refused_by_name(tmp_path: Path) -> None:
    for name, content in zoo.refused().items():
        (tmp_path / name).write_bytes(content)
        for way in (tmp_path / name, content):
            with must_raise(DataError) as caught:
                READS(way)
            assert name in STATED or isinstance(way, bytes) or str(tmp_path / name) in caught.value.problem
        if name in {"floats.tif", "floats.pfm", "signed 8.tif", "white is 0.tif", "16 bits in planes.tif", *STATED}:
            with Image.open(tmp_path / name) as image, must_raise(DataError):
                READS(image)  # which Pillow opens without a word
    twelve = Preprocessing((zoo.HIGH, zoo.WIDE), bits=12)(tmp_path / "12 of 16.png")
    with Image.open(tmp_path / "12 of 16.png") as image:
        assert np.array_equal(READS.to_pixels(twelve[None])[0, 0].numpy(), np.rint(np.asarray(image) / 4095 * 255))


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Whatever goes into a network."""
    forward, found = ViT.forward, list[Tensor]()

    def noted(network: ViT, images: Tensor, *more: object, **options: object) -> object:
        if images.device.type != "meta":  # on which operations are counted
            found.append(images.detach().clone())
        return forward(network, images, *more, **options)

    monkeypatch.setattr(ViT, "forward", noted)
    return found


@pytest.mark.parametrize("kind", ["resident", "streamed from a zip"])
def test_every_verb_sees_the_same_pixels(
    kind: str, arrived: list[Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One list with all of it: what arrives at the network, and what is named once, counted, and left out."""
    kept, bad = zoo.readable(), {name: each for name, each in zoo.refused().items() if name not in STATED}
    wanted = {name: READS.to_uint8(open_image(name, each.content)).numpy().tobytes() for name, each in kept.items()}
    files = {f"{number:03d} {name}": each.content for number, (name, each) in enumerate(kept.items())}
    files |= {f"bad {name}": each for name, each in bad.items()}
    lines = ["path,label", *(f'"{name}",{("a", "b")[row % 2]}' for row, name in enumerate(files))]
    files["all.csv"] = "\n".join(lines).encode()
    if "zip" in kind:
        data = tmp_path / "all.zip"
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        (tmp_path / "all").mkdir()
        for name, content in files.items():
            (tmp_path / "all" / name).write_bytes(content)
        data = tmp_path / "all" / "all.csv"
    if "streamed" in kind:
        monkeypatch.setattr(loader_module, "RESIDENT_BYTES", 0)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    run, words = tmp_path / "run", ("--threads", 1, "--precision", "fp32", "--epochs", 1, "--workers", 1)
    words = (*words, "--unreadable", 0.9, "--no-background", "--config", tmp_path / "tiny.yaml")
    trained = call("train", data, "--out", run, *words)
    assert trained.code == 0, trained.err
    reads = vitrail.load(run).preprocessing
    assert reads.size == (zoo.HIGH, zoo.WIDE)

    def pixels() -> set[bytes]:
        found = [image.numpy().tobytes() for batch in arrived for image in reads.to_pixels(batch)]
        arrived.clear()
        return set(found)

    expected = set(wanted.values())
    assert pixels() == expected, "training and validation"
    notes = json.loads((run / "data.json").read_text())["notes"]
    assert [name for name in bad if sum(f"bad {name}" in note for note in notes) != 1] == []
    both = [vitrail.evaluate(run, split=split) for split in ("train", "validation")]
    assert pixels() == expected
    assert sum(each.count for each in both) == len(kept)
    lines = [line for each in both for line in each.unreadable]
    assert [name for name in bad if sum(f"bad {name}" in line for line in lines) != 1] == []
    answer = call("predict", run, data, "--out", tmp_path / "found.csv")
    assert pixels() == expected
    told = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    assert {line["file"].removeprefix("bad ") for line in told if line["problem"]} == set(bad), answer.err
    assert len(told) == len(kept) + len(bad)
    if kind == "resident":
        explained = vitrail.explain.report(vitrail.load(run), str(data), methods="rollout", trust=False)
        assert pixels() >= expected
        assert len(explained) == len(kept)
        assert len(explained.left_out) == len(bad)


# ---- damaged files

FAULTS: dict[str, Callable[[], object]] = {
    "a signal": lambda: signal.raise_signal(signal.SIGSEGV),
    "no end": lambda: [None for _ in count()],
    "another error": lambda: 1 / 0,
    "memory": lambda: np.ones(2**24).sum(),
}


def decoded_apart(last: int, told: Path, fault: Callable[[], object] | None = None) -> str:
    """Decode so many damaged images in a process of its own; what is wrong with that, if anything is.

    Args:
        last: How many.
        told: A file for what became of each.
        fault: What is called at each image that is decoded; then less time and memory are enough.
    """
    seconds, most = (0.5, 64) if fault else (mutated.SECONDS, mutated.MEMORY)

    def run() -> None:
        faulthandler.disable()
        mutated.SECONDS = seconds
        if fault:
            mutated.convert_mode = lambda *given, **more: fault()
        with told.open("w") as sys.stdout:
            mutated.main(0, last)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    lines = told.read_text().splitlines()
    if process.exitcode:
        return f"{process.exitcode} at {lines[-1:]}"
    memory = int(lines.pop().removeprefix("memory "))
    assert [int(line.split()[0]) for line in lines] == [*range(last)]
    return f"{memory} MiB" if memory > most else ""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_damaged_files_are_decoded_or_refused_by_name(tmp_path: Path) -> None:
    """No signal, no decoder without end, no other error, and no more memory than the limit; each planted is seen."""
    assert len({mutated.mutated(number)[1] for number in range(600)}) > 590
    assert decoded_apart(600, tmp_path / "told") == ""
    found = (tmp_path / "told").read_text()
    assert min(found.count("decoded"), found.count("refused")) > 100
    seen = {name: decoded_apart(60, tmp_path / "told", fault) for name, fault in FAULTS.items()}
    assert [name for name, wrong in seen.items() if not wrong] == []
    assert seen["a signal"].startswith(f"-{signal.SIGSEGV}")
    assert seen["no end"].startswith(f"-{signal.SIGPROF}")
