"""A check names every planted fault and nothing else, says what is certain, and writes a list that mends the split."""

import csv
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.check.faults import FRAMES, RECORDINGS, plant_faults
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.real import real_data
from vitrail.check.check import DataReport, check_data
from vitrail.check.findings import Finding
from vitrail.data.layout import Layout
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError

LISTED = Path(__file__).with_name("flowers128_copies.txt")


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("faults") / "data"
    plant_faults(root)
    return root


@pytest.fixture(scope="module")
def report(faults: Path) -> DataReport:
    return check_data(faults)


def names_of(finding: Finding) -> set[str]:
    return {one.name.rpartition("/")[2] for some in finding.sets for one in some}


def test_each_planted_fault_is_named_and_no_other(report: DataReport) -> None:
    single = {
        "unreadable": {"nothing.jpg", "cut.jpg"},
        "16 bits": {"deep.png"},
        "CMYK": {"print.jpg"},
        "transparent": {"clear.png"},
        "animated": {"moving.gif"},
        "turned": {"turned.jpg"},
        "long": {"long.png"},
        "empty": {"plain.png"},
        "dark": {"dark.png"},
        "blurred": {"soft.png"},
        "missing class": set(),
        "labels": {"ant_001.jpg", "same.jpg"},
        "copies": {"ant_001.jpg", "same.jpg", "fly_005.jpg", "resized.jpg"},
    }
    of = {each.kind: each for each in report.findings if each.kind != "leak"}
    assert {kind: names_of(each) for kind, each in of.items()} == single
    exact, near, groups = (each for each in report.findings if each.kind == "leak")
    assert names_of(exact) == {"ant_000.jpg", "again.jpg"}
    assert {"bee_004.jpg", "mirrored.jpg"} <= names_of(near)
    assert all(name.startswith(("clip", "bee_004", "mirrored")) for name in names_of(near))
    assert [len(rows) for rows in groups.sets] == [FRAMES] * RECORDINGS
    assert {each.kind for each in report.findings[:2]} == {"labels", "leak"}
    assert report.contradictions == report.findings[:2]
    assert "fly" in of["missing class"].sentence
    assert report.classes["fly"] == {"train": 12 + 10, "validation": 0}
    (found,) = report.groupings
    assert found.kind == "names"
    assert found.layout == Layout(group_pattern=r"(clip\d+)_\d+")
    assert found.sure > 0.8


def test_a_report_is_plain_values_and_a_page_with_the_images(report: DataReport) -> None:
    told = json.loads(json.dumps(report.to_dict()))
    assert told["images"] == report.count == 99
    assert told["contradictions"] == 2
    assert told["groups"][0]["group_pattern"] == r"(clip\d+)_\d+"
    problems = {
        one["file"]: one.get("problem", "") for each in told["findings"] for some in each["images"] for one in some
    }
    assert [name for name, problem in problems.items() if problem] == ["val/bee/cut.jpg", "val/bee/nothing.jpg"]
    page = report.page("vitrail data check x")
    assert page == report.page("vitrail data check x")
    assert page.count("<img") > 45
    assert "val/bee/mirrored.jpg" in page
    assert len(repr(report).splitlines()) <= 5


def test_a_folder_without_faults_has_no_findings(tmp_path: Path) -> None:
    make_photographs(tmp_path / "data", ("ant", "bee"), per_class=12, seed=0)
    report = check_data(tmp_path / "data")
    assert report.findings == ()
    assert report.page()


def lines_of(out: Path) -> list[dict[str, str]]:
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    rows = ["path,count,split"]
    for number in range(12):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (16, 16), np.uint8)).save(
            tmp_path / f"{number}.png"
        )
        rows.append(f"{number}.png,{number},{'val' if number % 3 == 0 else 'train'}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    found = check_data(str(tmp_path / "list.csv"))
    assert found.classes == {}
    assert [each.kind for each in found.findings if each.kind == "missing class"] == []


def test_the_list_keeps_groups_and_copies_on_one_side_and_all_else_where_it_was(faults: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "split.csv", sorted(faults.rglob("*"))
    layout = Layout(group_pattern=r"(clip\d+)_\d+")
    first = check_data(faults, layout=layout, fix_split=out)
    assert {each.kind: each.contradiction for each in first.findings}["leak"] is not None
    assert [each.contradiction for each in first.findings if each.kind == "leak"] == [True, True, False]
    again = check_data(out)
    assert [each for each in again.findings if each.kind == "leak"] == []
    assert {each.kind for each in again.contradictions} == {"labels"}
    lines = lines_of(out)
    assert len(lines) == 97
    assert first.fixed is not None
    assert first.fixed["splits"] == dict(Counter(line["split"] for line in lines))
    was = {line["path"]: "train" if "/train/" in line["path"] else "validation" for line in lines}
    moved = {line["path"].rpartition("/")[2] for line in lines if line["split"] != was[line["path"]]}
    assert first.fixed["moved"] == len(moved)
    others = {name for name in moved if not name.startswith("clip")}
    assert len(others) == 2, "one of each pair of copies"
    assert len(moved) == 2 + RECORDINGS * FRAMES // 2
    assert abs(first.splits["train"] - first.fixed["splits"]["train"]) <= FRAMES, "each split keeps about its size"
    assert all(line["label"] == line["path"].split("/")[-2] for line in lines)
    assert {line["group"] for line in lines if "clip" in line["path"]} >= {f"clip{n:02}" for n in range(RECORDINGS)}
    assert sorted(faults.rglob("*")) == before
    with must_raise(UsageError, "split.csv"):
        check_data(faults, fix_split=out)


def test_groups_halved_between_splits_are_shared_out_and_a_split_that_loses_all_is_named(tmp_path: Path) -> None:
    draw, rows = np.random.default_rng(0), ["path,label,split,patient"]
    for number in range(48):
        pixels = draw.integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 3 // 2]},{'train' if number % 4 < 2 else 'val'},p{number // 4}")
    (tmp_path / "even.csv").write_text("\n".join(rows))
    even = check_data(tmp_path / "even.csv", fix_split=tmp_path / "out.csv")
    assert even.fixed is not None
    assert even.fixed["splits"] == {"train": 24, "validation": 24}
    assert not any("any more" in note for note in even.notes)
    (tmp_path / "most.csv").write_text("\n".join(row.replace(",a,val", ",a,train") for row in rows))
    most = check_data(tmp_path / "most.csv", fix_split=tmp_path / "fixed.csv")
    assert most.fixed is not None
    assert most.fixed["splits"] == {"train": 48}
    assert any("validation" in note for note in most.notes if note not in even.notes)


def test_a_dark_photograph_is_dark_a_plain_one_is_empty_and_classes_may_be_called_alike(tmp_path: Path) -> None:
    files = make_photographs(tmp_path / "x", ("ant", "bee"), per_class=12, seed=0)
    for file in files[:2]:
        dark = Image.open(file).convert("RGB").point(lambda value: value // 12)
        dark.save(file.with_suffix(".png"))
        file.unlink()
    for file, grey in zip(files[2:4], (0, 120), strict=True):
        Image.new("RGB", (90, 70), (grey, grey, grey)).save(file)
    make_photographs(tmp_path / "x", ("Bee",), per_class=1, seed=9)
    found = {
        each.kind: {one.name for some in each.sets for one in some} for each in check_data(tmp_path / "x").findings
    }
    assert found["dark"] == {file.with_suffix(".png").relative_to(tmp_path / "x").as_posix() for file in files[:2]}
    assert "class names" in found, "bee and Bee"
    assert found["empty"] == {file.relative_to(tmp_path / "x").as_posix() for file in files[2:4]}


def test_data_in_one_piece_are_divided_by_groups(tmp_path: Path) -> None:
    for file in make_photographs(tmp_path / "all", ("ant", "bee"), per_class=20, seed=3):
        number = int(file.stem[-3:])
        file.rename(file.with_name(f"visit{number // 4}-{file.parent.name}{number % 4}{file.suffix}"))
    report = check_data(
        tmp_path / "all", layout=Layout(group_pattern=r"(visit\d+)", fractions="60/40"), fix_split=tmp_path / "s.csv"
    )
    assert report.groupings[0].given
    sides = {}
    for line in lines_of(tmp_path / "s.csv"):
        sides.setdefault(line["group"], set()).add(line["split"])
    assert len(sides) == 5
    assert {len(side) for side in sides.values()} == {1}
    assert set().union(*sides.values()) == {"train", "validation"}


def test_bursts_of_a_camera_are_proposed_and_taken_over_by_a_column(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010F], draw = "Maker", np.random.default_rng(0)
    for number in range(12):
        exif.get_ifd(0x8769)[0x9003] = f"2024:05:01 10:{number // 3:02}:{number % 3:02}"
        folder = tmp_path / "data" / ("train", "val")[number % 2] / "ant"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{draw.integers(10**9)}.jpg", exif=exif)
    report = check_data(tmp_path / "data", fix_split=tmp_path / "groups.csv")
    (found,) = report.groupings
    assert (found.kind, len(found.groups), found.images, found.layout) == ("camera", 4, 12, None)
    (leak,) = report.findings
    assert not leak.contradiction
    taken = check_data(tmp_path / "groups.csv", layout=Layout(group_column="camera"), fix_split=tmp_path / "split.csv")
    assert [each.contradiction for each in taken.findings] == [True]
    assert check_data(tmp_path / "split.csv").findings == ()


def test_several_labels_an_image_and_images_in_no_file(tmp_path: Path) -> None:
    files = make_photographs(tmp_path, ("ant", "bee"), per_class=6, seed=0)
    labels = ["a|b", "b", "a", "b|c", "c", "a"] * 2
    again = shutil.copy(files[0], tmp_path / "again.jpg")
    rows = [f"{file.relative_to(tmp_path)},{label}" for file, label in zip(files, labels, strict=True)]
    (tmp_path / "list.csv").write_text("\n".join(["path,labels", *rows, f"{again.name},a"]))
    report = check_data(tmp_path / "list.csv", fix_split=tmp_path / "out.csv")
    assert report.several
    assert [each.kind for each in report.contradictions] == ["labels"]
    assert lines_of(tmp_path / "out.csv")[0]["labels"] == "a|b"
    assert read(str(tmp_path / "out.csv")).columns() == ("labels", "group")
    (tmp_path / "pairs.tsv").write_text("one\ttwo\nthree\tfour\n")
    with must_raise(DataError, "pairs.tsv"):
        check_data(tmp_path / "pairs.tsv")


@pytest.mark.parametrize("kind", ["tar", "parquet", "npz", "list"])
def test_a_list_of_images_in_no_files_copies_them_beside_it(kind: str, tmp_path: Path) -> None:
    """The list reads as the data do, in bytes or pixels, but for the copy that was on the other side."""
    files = make_photographs(tmp_path / "x" / "train", ("ant", "bee"), per_class=6, seed=0)
    files += make_photographs(tmp_path / "x" / "val", ("ant", "bee"), per_class=3, seed=1)
    files.append(Path(shutil.copy(files[0], tmp_path / "x" / "val" / "ant" / "again.jpg")))
    for file in files if kind in ("npz", "list") else ():  # of one size
        Image.open(file).resize((60, 50)).save(file.with_suffix(".png"))
        file.unlink()
    files = sorted((tmp_path / "x").rglob("*.*"))
    names = [file.relative_to(tmp_path / "x").as_posix() for file in files]
    if kind in ("zip", "tar"):
        data: Any = shutil.make_archive(str(tmp_path / "x"), kind, tmp_path / "x")
    elif kind == "parquet":
        cells = [{"bytes": file.read_bytes(), "path": name} for file, name in zip(files, names, strict=True)]
        words = {"label": [name.split("/")[1] for name in names], "split": [name.split("/")[0] for name in names]}
        pq.write_table(pa.table({"image": cells, **words}), data := tmp_path / "x.parquet")
    else:
        parts = [
            [file for file, name in zip(files, names, strict=True) if split in name] for split in ("train/", "val/")
        ]
        pixels = [np.stack([np.asarray(Image.open(file)) for file in part]) for part in parts]
        labels = [np.array([int(file.parent.name == "bee") for file in part]) for part in parts]
        data = {"train": [*zip(pixels[0], labels[0], strict=True)], "test": [*zip(pixels[1], labels[1], strict=True)]}
        if kind == "npz":
            data = tmp_path / "x.npz"
            np.savez(data, train_images=pixels[0], train_labels=labels[0], test_images=pixels[1], test_labels=labels[1])
    before, out = check_data(data), tmp_path / "out" / "split.csv"
    out.parent.mkdir()
    (leak,) = [each for each in before.findings if each.kind == "leak"]
    assert leak.contradiction
    assert "--fix-split" in leak.command
    found = check_data(data, fix_split=out)
    assert found.fixed is not None
    assert found.fixed["moved"] == 1
    again = check_data(out)
    assert [each for each in again.findings if each.kind == "leak"] == []
    assert again.count == before.count == len(files)
    assert Counter(line["label"] for line in lines_of(out)) == {
        name: sum(of.values()) for name, of in before.classes.items()
    }
    copies = [out.parent / line["path"] for line in lines_of(out)]
    assert all(copy.is_relative_to(tmp_path / "out" / "split") for copy in copies)
    whole = [np.asarray(Image.open(file)).tobytes() for file in files]
    assert Counter(np.asarray(Image.open(copy)).tobytes() for copy in copies) == Counter(whole)
    with must_raise(UsageError, str(out.with_suffix(""))):
        out.unlink()
        check_data(data, fix_split=out)


def test_of_digits_only_exact_copies_are_looked_for() -> None:
    report = check_data("digits")
    assert report.findings == ()
    assert report.copies["near_looked_for"] is False


def test_real_flowers_stand_under_two_labels(tmp_path: Path) -> None:
    root = real_data() / "flowers128"
    listed = (line.split() for line in LISTED.read_text().splitlines())
    copied = sorted({name for one, other, kind in listed if kind == "exact" for name in (one, other)})
    others = sorted(str(file.relative_to(root)) for file in root.glob("*/*9_n.jpg"))
    lines = [
        f"{root / name},{name.partition('/')[0]}"
        for name in [*copied, *(name for name in others if name not in copied)]
    ]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]))
    report = check_data(tmp_path / "list.csv")
    (labels,) = report.contradictions
    assert len(labels.sets) == 4
    assert {one.label for some in labels.sets for one in some} == {"rose", "tulip"}
    assert report.copies["exact"] == 6
    assert report.groupings == ()


def test_real_photographs_are_found_clean() -> None:
    report = check_data(real_data() / "photos" / "ants-bees" / "val")
    assert {each.kind for each in report.findings} <= {"long"}
    assert all(sum(map(len, each.sets)) <= 0.01 * report.count for each in report.findings)
    assert report.groupings == ()
