"""Groups are found where names, folders and cameras show that images belong together, and nowhere else."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.real import real_data
from vitrail.check.groups import Grouping, found_groups, given_groups
from vitrail.check.survey import ROW, Survey
from vitrail.data.columns import ALL, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.images import FileImages
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.sources import read

RNG = np.random.default_rng(0)
FLICKR = [f"{RNG.integers(10**8, 10**11)}_{bytes(RNG.integers(0, 256, 5, np.uint8)).hex()}{end}.jpg" for end in
          ("", "_n", "_m", "_z") * 100]  # fmt: skip
BESIDE = [f"{split}/{label}/{name}" for n, (split, label) in enumerate(product(("train", "val"), ("ant", "bee")))
          for name in FLICKR[30 * n : 30 * n + 30]]  # fmt: skip


def named(names: Sequence[str], looks: Callable[[int], int] = lambda row: row) -> Survey:
    """A survey of images of these names; those of one look are nearly the same picture."""
    rows = np.zeros(len(names), ROW)
    for row in range(len(names)):
        rows["grey"][row] = np.random.default_rng([7, looks(row)]).integers(0, 256, (32, 32))
        rows["content"][row, :8] = np.frombuffer(row.to_bytes(8, "big"), np.uint8)
    rows["grey"] += RNG.integers(0, 8, rows["grey"].shape, np.uint8)
    rows["index"] = np.arange(len(names))
    rows["split"] = [name.startswith("val/") for name in names]
    return Survey((TRAIN, VALIDATION), rows, tuple(names), {}, ("",), 0)


def found(names: Sequence[str], labels: Sequence[str] = (), looks: Callable[[int], int] = lambda row: row) -> list:
    return found_groups(named(names, looks), labels or [""] * len(names))


def by_pattern(names: Sequence[str], grouping: Grouping) -> dict[str, list[int]]:
    """What a person gets who takes a grouping over: the rows of each group."""
    assert grouping.layout is not None
    raw = RawDataset("", {ALL: Samples(FileImages([Path(name) for name in names], Path()), {})})
    of = named(names)
    of.rows["split"] = 0
    again = given_groups(grouping.layout.apply(raw), of, grouping.layout)
    assert again is not None
    return again.groups


RECORDINGS = {
    "clip": [f"{s}/ant/clip{c:02}_{n:06}.jpg" for c in range(8) for n, s in enumerate(["train", "val"] * 3, 40 * c)],
    "patient": [f"patient{p}-slice{n}.png" for p in (1, 7, 12) for n in range(3, 9)],
    "every tenth": [f"seq-{c}/frame.{10 * n:05}.png".replace("/frame", "_frame") for c in range(5) for n in range(6)],
    "in classes": [f"{c:05}/{t:05}_{n:05}.ppm" for c in range(3) for t in range(4) for n in range(5)],
    "ids": [f"{bytes([c, 171, 7, 205]).hex()}_{n}.jpg" for c in range(20, 40) for n in range(3)],
}


@pytest.mark.parametrize("kind", RECORDINGS)
def test_recordings_are_found_by_their_names_and_can_be_taken_over(kind: str) -> None:
    names = RECORDINGS[kind]
    each = {"clip": 8, "patient": 3, "every tenth": 5, "in classes": 12, "ids": 20}[kind]
    labels = [name.partition("/")[0] for name in names] if kind == "in classes" else []
    (one,) = found(names, labels, lambda row: row * each // len(names))
    assert len(one.groups) == each
    assert one.images == len(names)
    assert one.sure > 0.9
    assert by_pattern(names, one) == one.groups
    others = [f"IMG_{number}.jpg" for number in range(4000, 4050)]
    (one,) = found([*others, *names], labels and ["x"] * len(others) + labels)
    assert len(one.groups) == each
    assert by_pattern([*others, *names], one) == one.groups


CLIP, SLICE = "clip{}_{:06}.jpg", "patient{}-slice{}.jpg"
ALONE = {
    "one a class": {"bee": [CLIP.format("03", n) for n in range(123, 129)],
                    "ant": [CLIP.format("04", n) for n in range(4)]},
    "one in all": {"bee": [CLIP.format("03", n) for n in range(0, 150, 25)]},
    "unlike names": {"bee": [CLIP.format("03", n) for n in range(6)], "ant": [SLICE.format(7, n) for n in range(5)]},
    "like an id": {"ant": [f"0003_{n:05}.jpg" for n in range(90, 96)]},
}  # fmt: skip


@pytest.mark.parametrize("kind", ALONE)
def test_a_recording_alone_in_its_class_is_found_where_it_straddles_a_split(kind: str) -> None:
    clips = ALONE[kind]
    others = [*BESIDE, "train/ant/77_96.jpg", "val/ant/IMG_0001.jpg"]
    frames = [f"{('train', 'val')[n % 2]}/{label}/{name}" for label in clips for n, name in enumerate(clips[label])]
    names = [*others, *frames]
    labels = [name.split("/")[1] for name in names]

    def look(row: int) -> int:  # one of a recording
        return row if row < len(others) else 1000 + [*clips].index(labels[row])

    every = found(names, labels, look)
    assert {frozenset(names[row] for row in rows) for one in every for rows in one.groups.values()} == {
        frozenset(name for name in frames if f"/{label}/" in name) for label in clips
    }
    assert all(one.sure > 0.9 and by_pattern(names, one) == one.groups for one in every)
    once = [name.replace("val/", "train/") for name in names]  # no split to straddle
    assert not [one for one in found(once, labels, look) if len(one.groups) < 2]
    far = [re.sub(r"(\d+)\.jpg", lambda match: f"{int(match[1]) ** 3 * 97:06}.jpg", name) for name in frames]
    assert found([*others, *far], labels, look) == []
    assert found(frames[: len(clips[labels[len(others)]])]) == []  # all that there is


COUNTS = {
    "camera": [f"IMG_{number:04}.jpg" for number in range(300)],
    "Kodak": [f"{folder}_{number:04}.jpg" for folder in (100, 101, 102) for number in range(1, 100)],
    "phones": [f"IMG_2019041{day}_{time}.jpg" for day in (4, 5) for time in RNG.integers(10**5, 10**6, 60)],
    "word": [f"{word}.{number}.jpg" for word in ("cat", "dog") for number in range(200)],
    "COCO": [f"{number:012}.jpg" for number in sorted(RNG.integers(0, 600_000, 300))],
    "COCO of a year": [f"COCO_train2014_{number:012}.jpg" for number in range(300)],
    "ImageNet": [f"n{RNG.integers(10**6, 10**7):08}_{RNG.integers(1, 20_000)}.JPEG" for _ in range(300)],
    "numbers": [f"{number}.png" for number in range(300)],
    "set": [f"digits/{number}" for number in range(300)],
    "parts": [f"batch_{part}_{number}.png" for part in range(5) for number in range(80)],
    "Flickr": FLICKR,
    "downloads": [f"{word} ({number}).jpg" for word in ("cat", "dog") for number in range(1, 90)],
}  # fmt: skip


@pytest.mark.parametrize("kind", COUNTS)
def test_nothing_is_found_in_names_that_merely_count(kind: str) -> None:
    assert found(COUNTS[kind]) == []
    for split in ("train", "val"):  # the same numbers again
        assert (
            found([f"train/a/{name}" for name in COUNTS[kind]] + [f"{split}/b/{name}" for name in COUNTS[kind]]) == []
        )
    few = [f"{('train', 'val')[n % 2]}/{('ant', 'bee')[n % 3 > 0]}/{name}" for n, name in enumerate(COUNTS[kind][-9:])]
    labels = [name.split("/")[1] for name in (*few, *BESIDE)]
    assert found([*few, *BESIDE], labels) == []


def test_a_common_part_that_is_the_class_is_no_group() -> None:
    classes = "daisy_", "rose", "class3-", "001_", "n01440764_"
    names = [f"{word}/{word}{number:03}.jpg" for word in classes for number in range(50)]
    assert found(names, [name.partition("/")[0] for name in names]) == []
    assert found([name.partition("/")[2] for name in names], [name.partition("/")[0] for name in names]) == []
    for word in ("daisy2_", "n01440764_"):  # of one class, beside others
        own = [f"{('train', 'val')[number % 2]}/{word[:-1]}/{word}{number:03}.jpg" for number in range(20)]
        for other in ("rose", word[:-1]):
            names = own + [f"{('train', 'val')[n % 2]}/{other}/{name}" for n, name in enumerate(FLICKR[:60])]
            assert found(names, [name.split("/")[1] for name in names]) == []


def test_an_image_saved_again_belongs_to_the_first() -> None:
    names = [f"cat/IMG_{number}{again}.jpg" for number in range(60) for again in ["", " (2)"][: 1 + (number % 20 == 0)]]
    (one,) = found(names)
    assert sorted(map(len, one.groups.values())) == [2, 2, 2]
    assert by_pattern(names, one) == one.groups


def test_folders_below_the_classes_are_groups_where_each_holds_few_images() -> None:
    names = [f"{label}/visit{v}/{n:03}.jpg" for label in ("ill", "well") for v in range(6) for n in range(4)]
    labels = [name.partition("/")[0] for name in names]
    (one,) = found(names, labels)
    assert one.kind == "folders"
    assert len(one.groups) == 12  # numbers begin anew in each class, so that a visit is one of a class
    assert by_pattern(names, one) == one.groups
    views = [f"{label}/{view}/{n}.jpg" for label in ("a", "b") for view in ("front", "back") for n in range(9)]
    chunks = [f"{number // 50:03}/{number // 50:03}{number % 50:03}.jpg" for number in range(600)]
    assert found(views, [name.partition("/")[0] for name in views]) == []
    assert found(chunks) == []


def test_images_of_one_camera_within_seconds_are_groups() -> None:
    of = named([f"{number}.jpg" for number in range(60)])
    of = replace(of, cameras=("", "one 7", "other"))
    of.rows["camera"], of.rows["time"] = 1, 1000 * np.arange(60)
    assert found_groups(of, [""] * 60) == []
    of.rows["time"][[3, 40, 8]] = 500_000, 500_004, 500_008
    of.rows["time"][[4, 5]], of.rows["camera"][5] = 777_000, 2
    (one,) = found_groups(of, [""] * 60)
    assert [sorted(rows) for rows in one.groups.values()] == [[3, 8, 40]]
    assert one.layout is None
    of.rows["time"] = 1_600_000_000  # a clock that was never set
    assert found_groups(of, [""] * 60) == []


def test_looks_speak_against_what_only_counts() -> None:
    names = [f"a{part}b_{number}.jpg" for part in range(10) for number in range(30)]
    assert found(names) == []
    assert found(names, looks=lambda row: row // 30)[0].sure > 0.9


def test_what_the_data_say_is_sure() -> None:
    names = ["x/1.jpg", "x/2.jpg", "y/1.jpg"]
    raw = RawDataset("", {ALL: Samples(FileImages([Path(name) for name in names], Path()), {})})
    assert given_groups(raw, named(names), AS_FOUND) is None
    layout = Layout(group_pattern="(.)/")
    one = given_groups(layout.apply(raw), named(names), layout)
    assert one is not None
    assert (one.kind, one.sure, one.given) == ("pattern", 1, True)
    assert one.groups == {"x": [0, 1]}
    assert one.members == ("x", "x", "y")


def test_nothing_is_found_in_the_names_of_real_photographs() -> None:
    root = real_data()
    for what in ("flowers128", "photos/ants-bees", "coco256/labels.csv", "cells/counts.csv"):
        splits = read(str(root / what)).splits.values()
        names = [name for samples in splits for name in samples.inputs.names()]
        labels = [label for samples in splits for label in samples.labels or [""] * len(samples)]
        assert found(names, labels) == []
