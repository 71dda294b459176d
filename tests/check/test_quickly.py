"""The quick form of the check: what it says of planted faults, and before which trainings it runs."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.check.faults import plant_faults
from tests.cli.command import must_be_understood
from tests.photographs import make_photographs
from tests.training.tiny import options
from vitrail.check import check as checks, findings, survey as surveys
from vitrail.check.check import check_data, check_quickly
from vitrail.data import pack
from vitrail.data.columns import RawDataset
from vitrail.data.layout import AS_FOUND
from vitrail.data.sources import read
from vitrail.errors import UsageError
from vitrail.training.events import Event
from vitrail.training.train import plan_training


def told(raw: RawDataset, seconds: float = 60.0, crop: bool = True) -> tuple[str, ...]:
    return check_quickly(raw, "photos", AS_FOUND, seconds, crop, lambda done, total: None)


def test_the_faults_that_come_first_are_told_in_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_faults(tmp_path / "data")
    raw, seen = read(str(tmp_path / "data")), check_data(tmp_path / "data").findings
    known = {each.sentence.rstrip("."): each for each in seen}
    monkeypatch.setattr(findings, "thumbnail", None)  # no image is made that nobody sees
    monkeypatch.setattr(checks, "QUICK_SAID", 10)
    line, command = told(raw)
    must_be_understood(shlex.split(command[command.index("vitrail ") :])[1:])
    assert "photos" in command
    kinds = {each.kind for sentence, each in known.items() if sentence in line}
    assert kinds == {"labels", "leak", "missing class", "long"}
    assert sum(sentence in line for sentence in known) == 6  # a leak each by content, by picture, by names
    (unreadable,) = (sentence for sentence, each in known.items() if each.kind == "unreadable")
    assert unreadable.partition(":")[0] in line
    assert "nothing.jpg" not in line  # which a training names
    assert sum(sentence in told(raw, crop=False)[0] for sentence in known) == 5  # all of a long image is read
    monkeypatch.setattr(checks, "QUICK_SAID", 2)
    short = told(raw)
    assert len(short) == 2
    assert [sentence in short[0] for sentence in known].count(True) == 2
    make_photographs(tmp_path / "clean", ("ant", "bee"), per_class=6, seed=0)
    assert len(told(read(str(tmp_path / "clean")))) == 1


def test_of_a_sample_it_is_said_how_many_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_faults(tmp_path / "data")
    raw = read(str(tmp_path / "data"))
    monkeypatch.setattr(surveys, "TOGETHER", 16)  # as of many images, which are kept
    count = raw.count
    assert f"0 of {count}" in told(raw, seconds=0.0)[0]
    monkeypatch.setattr(surveys, "QUICK", 64)
    line = told(raw)[0]
    assert f"64 of {count}" in line
    held_out = len(raw.splits["validation"])
    of = {int(number) for number in re.findall(r" of (\d+) images of validation", line)}
    assert of
    assert max(of) < min(64, held_out)  # figures are of the images that were read


def test_it_runs_before_a_new_training_on_files_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, events, looked = tmp_path / "photos", list[Event](), list[str]()
    draw = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), np.uint8)
    for number, pixels in enumerate(draw):
        file = photos / "ab"[number % 2] / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    (photos / "b" / "again.png").write_bytes((photos / "a" / "00.png").read_bytes())  # under two labels
    check = checks.check_quickly
    monkeypatch.setattr(checks, "check_quickly", lambda raw, *rest: looked.append(rest[0]) or check(raw, *rest))
    asked = options("photos", background=False)
    first = vitrail.train(photos, tmp_path / "run", asked, events.append)
    assert looked == [str(photos)]
    line = next(event for event in events if isinstance(event, str) and "vitrail data check" in event)
    assert line in (tmp_path / "run" / "log.txt").read_text()
    looked.clear()
    without = vitrail.train(photos, tmp_path / "other", replace(asked, check=False))
    assert without.weights == first.weights
    for name in ("config.yaml", "data.json"):
        assert (tmp_path / "run" / name).read_text() == (tmp_path / "other" / name).read_text()
    vitrail.train(photos, tmp_path / "run", replace(asked, resume="auto", epochs=2))
    packed = pack(photos, tmp_path / "packed").out
    pairs = [(pixels, "ab"[number % 2]) for number, pixels in enumerate(draw)]
    for data in (packed, pairs):
        vitrail.train(data, tmp_path / type(data).__name__, asked)
    plan_training(photos, options=asked)
    vitrail.train("digits", tmp_path / "digits", options("digits", epochs=1, background=False))
    assert looked == []
    with pytest.raises(UsageError, match="check"):
        vitrail.train("sort-digits", tmp_path / "texts", options("sort-digits", check=False))
