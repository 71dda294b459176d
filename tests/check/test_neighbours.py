"""Frames of one recording are found by what a network sees, strangers are not; where all are near, nothing is said."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.data_groups import frame_of
from tests.real import real_data, real_photographs
from vitrail.check.check import check_data
from vitrail.check.neighbours import alike_pairs, far_apart
from vitrail.data.layout import Layout
from vitrail.model import load

RNG = np.random.default_rng(0)


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def test_all_pairs_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.check.neighbours.AT_A_TIME", 7)
    base = RNG.normal(size=(10, 16))
    vectors = unit(np.repeat(base, 4, axis=0) + 0.2 * RNG.normal(size=(40, 16)))
    wanted = {(a, b) for a in range(40) for b in range(a + 1, 40) if vectors[a] @ vectors[b] >= 0.9}
    assert {(int(a), int(b)) for a, b in alike_pairs(vectors)} == wanted
    assert 20 < len(wanted) < 200


def test_where_strangers_are_near_nothing_is_said() -> None:
    assert far_apart(unit(RNG.normal(size=(500, 64))))
    assert not far_apart(unit(RNG.normal(size=(500, 4))))
    recordings = np.repeat(RNG.normal(size=(10, 64)), 30, axis=0) + 0.1 * RNG.normal(size=(300, 64))
    assert far_apart(unit(recordings))


def test_recordings_without_names_are_found_by_a_real_model(tmp_path: Path) -> None:
    files = real_photographs(real_data())[:24]
    for number, file in enumerate(files):
        image = Image.open(file).convert("RGB")
        for frame in range(4 if number < 4 else 1):
            folder = tmp_path / "data" / ("train", "val")[(frame + number) % 2] / ("ant", "bee")[number % 3 == 0]
            folder.mkdir(parents=True, exist_ok=True)
            out = folder / f"{bytes(RNG.integers(0, 256, 8, np.uint8)).hex()}_{number}.jpg"
            frame_of(image, RNG).save(out, quality=85)
    model = load(real_data() / "vit_ti16" / "model.safetensors")
    report = check_data(tmp_path / "data", model=model, fix_split=tmp_path / "g.csv")
    (leak,) = (each for each in report.findings if each.kind == "leak" and "features" in each.command)
    numbers = [{one.name.rpartition("_")[2] for one in some} for some in leak.sets]
    assert sorted(numbers, key=str) == sorted(({f"{number}.jpg"} for number in range(4)), key=str)
    assert not report.contradictions
    taken = check_data(tmp_path / "g.csv", layout=Layout(group_column="features"), fix_split=tmp_path / "split.csv")
    assert taken.contradictions
    again = check_data(tmp_path / "split.csv")
    assert [each for each in again.findings if each.kind == "leak"] == []
