"""One pass over all images: what stands in each file, bad files and dead decoders among good ones, and the cache."""

import itertools
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from tests.photographs import make_photographs
from vitrail.check import survey as survey_module
from vitrail.check.survey import KINDS, MODES, ROW, Survey, survey
from vitrail.data.columns import ALL, TRAIN, RawDataset, Samples
from vitrail.data.dataset import label_inputs
from vitrail.data.images import ArrayImages, FileImages, Images
from vitrail.data.sources import read, read_images

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind that a check names."""
    root, colour = tmp_path_factory.mktemp("zoo"), Image.fromarray(NOISE)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x0110] = 6, "Maker\0", "Model  7"
    exif.get_ifd(0x8769)[0x9003] = "2024:02:03 04:05:06"
    colour.save(root / "turned.jpg", exif=exif)
    colour.convert("CMYK").save(root / "ink.jpg")
    transparent = colour.convert("RGBA")
    transparent.save(root / "opaque.png")
    transparent.putpixel((3, 3), (9, 9, 9, 0))
    transparent.save(root / "transparent.png")
    Image.fromarray(RNG.integers(0, 4096, (40, 60)).astype(np.uint16)).save(root / "deep.png")
    colour.save(root / "moving.gif", save_all=True, append_images=[colour.filter(ImageFilter.BLUR)])
    Image.new("L", (60, 40)).save(root / "black.png")
    large = Image.fromarray(RNG.integers(0, 256, (600, 900, 3), dtype=np.uint8))
    large.save(root / "large.png")
    large.filter(ImageFilter.GaussianBlur(12)).save(root / "soft.png")
    large.save(root / "fast.jpg", quality=95)
    (root / "empty.jpg").touch()
    (root / "cut.jpg").write_bytes((root / "turned.jpg").read_bytes()[:900])
    (root / "words.png").write_text("no image")
    (root / "away.png").symlink_to(root / "nowhere.png")
    return root


def rows_by_name(found: Survey) -> dict[str, NDArray[np.void]]:
    return {Path(name).name: row for name, row in zip(found.names, found.rows, strict=True)}


def test_what_stands_in_each_file(zoo: Path) -> None:
    found = survey(read_images(zoo, flat=True), workers=0, cache=False)
    rows = rows_by_name(found)
    assert len(found) == 14
    assert {Path(found.names[row]).name for row in found.problems} == {"empty.jpg", "cut.jpg", "words.png", "away.png"}
    assert all(found.names[row] in problem for row, problem in found.problems.items())
    assert found.readable.sum() == 10
    assert not found.rows["content"][~found.readable].any()
    assert found.rows["content"][found.readable].any(axis=1).all()
    turned = rows["turned.jpg"]
    assert (turned["width"], turned["height"], turned["orientation"]) == (40, 60, 6)
    assert found.cameras == ("", "Maker Model 7")
    assert (turned["camera"], turned["time"]) == (1, 1706933106)
    assert {name for name, row in rows.items() if row["camera"] or row["time"]} == {"turned.jpg"}
    assert {name for name, row in rows.items() if row["alpha"]} == {"transparent.png"}
    assert {name for name, row in rows.items() if row["frames"]} == {"moving.gif"}
    assert {name: row["bits"] for name, row in rows.items() if row["bits"]} == {"deep.png": 12}
    assert (MODES[rows["ink.jpg"]["mode"]], KINDS[rows["moving.gif"]["kind"]]) == ("CMYK", "GIF")
    assert rows["black.png"]["brightness"] == rows["black.png"]["contrast"] == 0
    assert rows["black.png"]["bytes"] == (zoo / "black.png").stat().st_size
    assert rows["soft.png"]["sharpness"] < 0.2 * rows["large.png"]["sharpness"]
    assert (rows["fast.jpg"]["width"], rows["fast.jpg"]["height"]) == (900, 600)
    light = NOISE.astype(float) @ (0.299, 0.587, 0.114)
    assert rows["opaque.png"]["brightness"] == pytest.approx(light.mean() / 255, abs=0.003)
    assert rows["opaque.png"]["contrast"] == pytest.approx(light.std() / 255, abs=0.003)


def test_processes_find_what_one_finds_and_in_order(zoo: Path) -> None:
    raw = read_images(zoo, flat=True)
    alone, two = (survey(raw, workers=workers, cache=False) for workers in (0, 2))
    assert alone.rows.tobytes() == two.rows.tobytes()
    assert (alone.names, alone.problems, alone.cameras) == (two.names, two.problems, two.cameras)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that were read."""
    names, look = list[str](), survey_module._look_at

    def noted(images: Images, index: int) -> object:
        names.append(Path(images.name(index)).name)
        return look(images, index)

    monkeypatch.setattr(survey_module, "_look_at", noted)
    return names


def test_only_what_changed_is_read_again(tmp_path: Path, looked_at: list[str]) -> None:
    make_photographs(tmp_path / "data", ("a", "b"), per_class=4, seed=0)
    (tmp_path / "data" / "a" / "bad.jpg").touch()
    first = survey(read(str(tmp_path / "data")), workers=0)
    assert len(looked_at) == 9
    looked_at.clear()
    again = survey(read(str(tmp_path / "data")), workers=0)
    assert looked_at == ["bad.jpg"]  # it may be there next time
    assert again.rows.tobytes() == first.rows.tobytes()
    looked_at.clear()
    Image.new("L", (50, 50), 200).save(tmp_path / "data" / "b" / "b_001.jpg")
    os.utime(tmp_path / "data" / "b" / "b_002.jpg", ns=(1, 1))  # of the same size
    (tmp_path / "data" / "a" / "a_000.jpg").unlink()
    changed = survey(read(str(tmp_path / "data")), workers=0)
    assert sorted(looked_at) == ["b_001.jpg", "b_002.jpg", "bad.jpg"]
    assert rows_by_name(changed)["b_001.jpg"]["width"] == 50
    before, after = rows_by_name(first)["a_001.jpg"], rows_by_name(changed)["a_001.jpg"]
    assert (before["index"], after["index"]) == (1, 0)
    assert (before["grey"] == after["grey"]).all()
    looked_at.clear()
    survey(read(str(tmp_path / "data")), workers=0, cache=False)
    assert len(looked_at) == 8


def test_a_pass_that_was_interrupted_goes_on(tmp_path: Path, looked_at: list[str]) -> None:
    make_photographs(tmp_path / "data", ("a",), per_class=6, seed=0)

    def interrupted(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey(read(str(tmp_path / "data")), interrupted, workers=0)
    looked_at.clear()
    survey(read(str(tmp_path / "data")), workers=0)
    assert len(looked_at) == 2


def test_images_in_memory_are_kept_by_what_they_are(looked_at: list[str]) -> None:
    pixels = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    for values, count in ((pixels, 6), (pixels, 0), (255 - pixels, 6)):
        looked_at.clear()
        samples = label_inputs(ArrayImages(values), np.zeros(6, np.int64), ("a",))
        found = survey(RawDataset("memory", {TRAIN: samples}), workers=0)
        assert len(looked_at) == count
        assert found.rows["brightness"] == pytest.approx(values.mean(axis=(1, 2)) / 255)
        assert not found.rows["bytes"].any()


class Costly(Images):
    """Images of which some do a thing before they are opened."""

    def __init__(self, count: int, costs: Iterable[int], does: Callable[[], object]) -> None:
        self.count, self.costs, self.does = count, set(costs), does

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"costly/{index}"

    def open(self, index: int) -> Image.Image:
        if index in self.costs:
            self.does()
        return Image.fromarray(np.random.default_rng(index).integers(0, 256, (9, 9), dtype=np.uint8))

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "Costly":
        return self

    def digest(self) -> bytes:
        return b"costly"


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("does", "word"), [(kill_itself, "SIGKILL"), (refuse, "ZeroDivisionError")])
def test_a_decoder_that_dies_takes_no_other_image_with_it(does: Callable[[], object], word: str) -> None:
    bad, count = {0, 1, 63, 64, 150, 199}, 200
    found = survey(RawDataset("costly", {ALL: Samples(Costly(count, bad, does), {})}), workers=2, cache=False)
    assert set(found.problems) == bad
    assert all(f"costly/{row}:" in problem and word in problem for row, problem in found.problems.items())
    clean = survey(RawDataset("costly", {ALL: Samples(Costly(count, (), does), {})}), workers=0, cache=False)
    good = found.readable
    assert found.rows[good].tobytes() == clean.rows[good].tobytes()


def test_a_decoder_that_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "PATIENCE", 2.0)
    images = Costly(5, {3}, lambda: time.sleep(600))
    found = survey(RawDataset("costly", {ALL: Samples(images, {})}), workers=2, cache=False)
    assert list(found.problems) == [3]


def recordings(root: Path, clips: int, frames: int) -> RawDataset:
    """Frames of recordings, every second in validation, listed in an order of chance; all are one small image."""
    Image.new("L", (8, 8)).save(root / "small.png")
    draw, splits = np.random.default_rng(0), dict[str, Samples]()
    for side, split in enumerate(("train", "validation")):
        (root / split).mkdir()
        names = [f"clip{clip:03}_{frame:03}.png" for clip in range(clips) for frame in range(side, frames, 2)]
        files = [root / split / name for name in draw.permutation(names)]
        for file in files:
            file.write_bytes((root / "small.png").read_bytes())
        splits[split] = Samples(FileImages(files, root), {})
    return RawDataset(str(root), splits)


@pytest.mark.parametrize("most", [128, 320])
def test_of_a_recording_several_images_are_looked_at(most: int, tmp_path: Path) -> None:
    """Of a tenth of the images drawn one by one, hardly a recording would have two frames, in both splits at that."""
    raw = recordings(tmp_path, 200, 6)
    found = survey(raw, workers=0, cache=False, most=most)
    assert (len(found), found.left_out) == (most, 1200 - most)
    sides = defaultdict[str, set[str]](set)
    for name in found.names:
        split, _, file = name.partition("/")
        sides[file[:7]].add(split)
    assert sum(len(each) == 2 for each in sides.values()) >= 0.9 * most / 6
    again = survey(raw, workers=0, cache=False, most=most)
    assert found.names == again.names


def test_many_names_are_not_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "SORTED", 10)
    monkeypatch.setattr(FileImages, "names", None)
    found = survey(recordings(tmp_path, 40, 6), workers=0, cache=False, most=64)
    assert len(found) == 64
    assert np.bincount(found.rows["split"]).tolist() == [32, 32]
    assert np.ptp(found.rows["index"]) < 40  # they lie at one place in both splits


def test_what_is_not_looked_at_in_time_is_left_out_and_looked_at_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, clock, looked = recordings(tmp_path, 40, 6), itertools.count(), list[int]()
    look = survey_module._look
    monkeypatch.setattr(survey_module, "_look", lambda *given: looked.append(given[-1]) or look(*given))
    monkeypatch.setattr(survey_module.time, "monotonic", lambda: float(next(clock)))
    some = survey(raw, workers=0, seconds=100.0, most=200)
    assert 90 < len(some) < 101
    assert (len(some) + some.left_out, len(looked)) == (240, len(some))
    assert not some.problems
    whole = survey(raw, workers=0)
    assert (len(whole), len(looked)) == (240, 240)
    for one in (some, survey(raw, workers=0, seconds=0.0, most=200)):  # which are known by now
        places = {name: row for row, name in enumerate(whole.names)}
        assert (whole.rows[[places[name] for name in one.names]] == one.rows).all()
    os.utime(next((tmp_path / "validation").iterdir()))  # one has changed: it is looked at, and the others stay known
    assert len(survey(raw, workers=0, most=200)) == 200
    assert len(survey(raw, workers=0)) == 240
    assert len(looked) == 241
    assert len(survey(raw, workers=2, cache=False, seconds=0.0)) == 0


def test_a_row_holds_no_more_than_is_said() -> None:
    assert ROW.itemsize < 1300  # bytes an image: 130 MB for 100,000
