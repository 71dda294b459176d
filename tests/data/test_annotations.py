"""COCO's JSON and YOLO's folders as images with labels: every layout means the same, and damage is named."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import DATA, call, must_refuse
from tests.errors import must_raise
from tests.own_objects import SMALL
from vitrail.data.columns import ALL, LABEL, LABELS, RawDataset
from vitrail.data.layout import Layout
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError

NAMES = ("zebra", "ant", "cat")
SEVERAL = {"a.png": ("cat", "ant", "ant"), "b.png": ("zebra",), "c.png": (), "d.png": ("cat",)}
SINGLE = {"a.png": ("cat", "cat"), "b.png": ("zebra",), "c.png": (), "d.png": ("cat",)}
Sets = dict[str, tuple[str, ...]]


def make_images(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.fromarray(np.full((12, 12, 3), 20 * number + 10, np.uint8)).save(folder / name)


def coco(sets: Sets, **other: Any) -> str:
    """Ids of categories begin with 7 and those of images count down."""
    numbers = {name: len(sets) - place for place, name in enumerate(sets)}
    boxes = [(numbers[name], NAMES.index(one) + 7) for name, each in sets.items() for one in each]
    content = {
        "images": [{"id": number, "file_name": name, "width": 12} for name, number in numbers.items()],
        "annotations": [
            {"id": place, "image_id": image, "category_id": one} for place, (image, one) in enumerate(boxes)
        ],
        "categories": [{"id": number, "name": name, "supercategory": "x"} for number, name in enumerate(NAMES, 7)],
    }
    return json.dumps(content | other)


def make_yolo(root: Path, splits: dict[str, Sets], images: str, labels: str) -> Path:
    """Folders such as `{split}/images`; an image without boxes has no file of labels."""
    for split, sets in splits.items():
        make_images(root / images.format(split=split), [*sets])
        (root / labels.format(split=split)).mkdir(parents=True)
        for name, each in sets.items():
            lines = "".join(f"{NAMES.index(one)} 0.5 0.5 0.1 0.2\n" for one in each)
            if lines:
                (root / labels.format(split=split) / Path(name).with_suffix(".txt")).write_text(lines)
    return root


def labels_of(raw: RawDataset) -> dict[str, dict[str, str]]:
    """By split and by name of file."""
    name = raw.columns()[0]
    return {
        split: {Path(one).name: samples.column(name).word(row) for row, one in enumerate(samples.inputs.names())}
        for split, samples in raw.splits.items()
    }


WORDS = {"a.png": "ant, cat", "b.png": "zebra", "c.png": "", "d.png": "cat"}


@pytest.mark.parametrize(
    ("file", "images", "split"),
    [
        ("some.json", ".", ALL),
        ("some.json", "images", ALL),
        ("annotations/instances_default.json", "images/default", ALL),
        ("annotations/instances_train2017.json", "train2017", "train"),
        ("annotations/instances_val2017.json", "images/val2017", "validation"),
        ("train/_annotations.coco.json", "train", "train"),
        ("annotations.json", "images", ALL),
        ("instances_val2017.json", "val2017", "validation"),
    ],
)
def test_coco(tmp_path: Path, file: str, images: str, split: str) -> None:
    """Wherever the images lie; the same by the path of the file and, in its usual places, by the folder."""
    root = tmp_path / "set"
    make_images(root / images, [*SEVERAL])
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(coco(SEVERAL))
    raw = read(str(root / file))
    assert raw.columns() == (LABELS,)
    found = labels_of(raw)[split]
    assert {name: {*word.split(", ")} for name, word in found.items()} == {
        name: {*word.split(", ")} for name, word in WORDS.items()
    }
    assert raw.splits[split].column(LABELS).names == NAMES  # in their own order
    assert not any(str(tmp_path) in name for name in raw.splits[split].inputs.names())
    if file != "some.json":
        folder = read(str(root))
        assert labels_of(folder) == labels_of(raw)
        before = folder.digest()
        (tmp_path / "elsewhere").mkdir()
        shutil.move(root, tmp_path / "elsewhere" / "set")
        assert read(str(tmp_path / "elsewhere" / "set")).digest() == before
        assert_packed_alike(tmp_path / "elsewhere" / "set", raw)


def assert_packed_alike(root: Path, raw: RawDataset) -> None:
    """In a zip and in a tar, alone or within a folder, are the same images with the same labels."""
    for kind, base in (("zip", "."), ("tar", "."), ("zip", root.name)):
        packed = shutil.make_archive(str(root.parent / "packed"), kind, root.parent if base != "." else root, base)
        found = read(packed)
        assert labels_of(found) == labels_of(raw)
        for split, samples in found.splits.items():
            names, images = found.splits[split].images.names(), read(str(root)).splits[split].images
            for row, name in enumerate(images.names()):
                assert samples.images.open(names.index(name)).tobytes() == images.open(row).tobytes()


def test_json_of_others_beside_class_folders_is_left_aside(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        make_images(tmp_path / name, [f"{name}.png"])
    for content in ("[]", '{"images": {}, "regions": []}'):
        (tmp_path / "annotations.json").write_text(content)
        assert labels_of(read(str(tmp_path)))[ALL] == {"ant.png": "ant", "bee.png": "bee"}
    (tmp_path / "annotations.json").write_text('{"images": [')
    with pytest.raises(DataError, match=r"annotations\.json"):
        read(str(tmp_path))


def test_coco_panoptic_and_captions(tmp_path: Path) -> None:
    """Segments count as boxes; a file of captions beside them is not taken, and has no labels by itself."""
    root = tmp_path / "set"
    make_images(root / "images", [*SEVERAL])
    segments = [{"image_id": 4, "segments_info": [{"id": 1, "category_id": 9}, {"id": 2, "category_id": 8}]}]
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_default.json").write_text(coco(SEVERAL, annotations=segments))
    (root / "annotations" / "captions_default.json").write_text(
        coco(SEVERAL, annotations=[{"image_id": 4, "caption": "a cat"}], categories=[])
    )
    raw = read(str(root))
    assert {*labels_of(raw)[ALL]["a.png"].split(", ")} == {"ant", "cat"}
    alone = read(str(root / "annotations" / "captions_default.json"))
    assert (alone.columns(), len(alone.splits[ALL])) == ((), 4)


YOLO_LAYOUTS = [
    ("{split}/images", "{split}/labels", "train: ../train/images\nval: ../valid/images\nnames: [zebra, ant, cat]\n"),
    (
        "images/{split}",
        "labels/{split}",
        "path: .\ntrain: images/train\nval: images/valid\nnames: {0: zebra, 1: ant, 2: cat}\n",
    ),
    (
        "{split}",
        "{split}",
        "path: ../nowhere\ntrain: [train]\nval: valid.txt\ntest:\nnc: 3\nnames: [zebra, ant, cat]\n",
    ),
]


@pytest.mark.parametrize(("images", "labels", "config"), YOLO_LAYOUTS)
def test_yolo(tmp_path: Path, images: str, labels: str, config: str) -> None:
    """Roboflow's layout, YOLO's own, and labels beside the images with a list of paths."""
    sets = {"train": SEVERAL, "valid": {"e.png": ("ant", "zebra"), "f.png": ()}}
    if images == labels:
        (root := tmp_path / "set").mkdir()
        for split, each in sets.items():
            make_yolo(tmp_path / "made", {split: each}, "{split}/images", "{split}/labels")
            for folder in ("images", "labels"):
                shutil.copytree(tmp_path / "made" / split / folder, root / split, dirs_exist_ok=True)
        (root / "valid.txt").write_text("./valid/e.png\n./valid/f.png\n")
    else:
        root = make_yolo(tmp_path / "set", sets, images, labels)
    (root / "data.yaml").write_text(config)
    raw = read(str(root))
    wanted = {"train": WORDS, "validation": {"e.png": "zebra, ant", "f.png": ""}}
    for split, words in wanted.items():
        found = labels_of(raw)[split]
        assert {name: {*word.split(", ")} for name, word in found.items()} == {
            name: {*word.split(", ")} for name, word in words.items()
        }
    assert len(raw.notes) == 1
    before = raw.digest()
    assert read(str(root / "data.yaml")).digest() == before
    shutil.move(root, tmp_path / "moved")
    assert read(str(tmp_path / "moved")).digest() == before
    assert_packed_alike(tmp_path / "moved", raw)
    (tmp_path / "moved" / "data.yaml").rename(tmp_path / "moved" / "birds.yml")
    (tmp_path / "moved" / "another.yaml").write_text("model: Ti/16")
    assert read(str(tmp_path / "moved")).digest() == before
    assert_packed_alike(tmp_path / "moved", raw)


def test_one_category_an_image_is_a_class(tmp_path: Path) -> None:
    """Of images without any it is said that they are left out; one category that some images have is a label."""
    make_images(tmp_path, [*SINGLE])
    (tmp_path / "some.json").write_text(coco(SINGLE))
    raw = read(str(tmp_path / "some.json"))
    assert raw.columns() == (LABEL,)
    assert labels_of(raw)[ALL] == {"a.png": "cat", "b.png": "zebra", "d.png": "cat"}
    assert raw.classes == ("zebra", "cat")
    assert any("1 image" in note for note in raw.notes)
    (tmp_path / "some.json").write_text(
        coco({name: each[:1] * (each[:1] == ("cat",)) for name, each in SINGLE.items()})
    )
    present = read(str(tmp_path / "some.json"))
    assert (present.columns(), present.count) == ((LABELS,), 4)


DAMAGED_JSON: list[str] = [
    "",
    "[]",
    "{}",
    "[" * 100_000,
    json.dumps({"images": {"a": 1}}),
    coco(SEVERAL, images=[]),
    coco(SEVERAL, annotations=[{"image_id": 17, "category_id": 7}]),
    coco(SEVERAL, annotations=[{"image_id": 1, "category_id": 77}]),
    coco(SEVERAL, annotations=[[]]),
    coco(SEVERAL, images=[{"id": [], "file_name": "a.png"}]),
    coco(SEVERAL | {"gone.png": ()}),
    coco({"gone.png": ()}),
]


@pytest.mark.parametrize("content", DAMAGED_JSON)
def test_damaged_coco(tmp_path: Path, content: str) -> None:
    make_images(tmp_path, [*SEVERAL])
    (tmp_path / "some.json").write_text(content)
    before = {each.name for each in tmp_path.iterdir()}
    must_refuse(call("train", tmp_path / "some.json", "--out", tmp_path / "run"), DATA, "some.json")
    assert {each.name for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("config", "boxes"),
    [
        ("", None),
        ("names: [", None),
        ("- 1", None),
        ("train: images\n", None),
        ("names: 3\ntrain: images\n", None),
        ("names: [zebra]\n", None),
        ("names: [zebra]\ntrain: pictures\n", None),
        ("names: [zebra]\ntrain: data.yaml/x\n", None),
        ("names: [zebra]\ntrain: images\n", b"0 0.5 0.5 0.1 0.1\n3 0.5 0.5 0.1 0.1\n"),
        ("names: [zebra]\ntrain: images\n", b"zebra 0.5 0.5\n"),
        ("names: [zebra]\ntrain: images\n", b"\xff\xfe\x00"),
    ],
)
def test_damaged_yolo(tmp_path: Path, config: str, boxes: bytes | None) -> None:
    make_images(tmp_path / "images", ["a.png"])
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_bytes(boxes or b"")
    (tmp_path / "data.yaml").write_text(config)
    must_refuse(call("train", tmp_path, "--out", tmp_path / "run"), DATA, str(tmp_path))
    assert not (tmp_path / "run").exists()


def test_one_folder_of_images_beside_a_list_is_no_class(tmp_path: Path) -> None:
    """The list has the labels, whose columns can be named; a folder of another name, or beside others, is a class."""
    make_images(tmp_path / "set" / "images", [f"{name}.png" for name in "abcd"])
    lines = ["file,kind,weight", *(f"images/{name}.png,{kind},3" for name, kind in zip("abcd", "xyxy", strict=True))]
    (tmp_path / "set" / "list.csv").write_text("\n".join(lines))
    assert labels_of(read(str(tmp_path / "set")))[ALL] == {"a.png": "x", "b.png": "y", "c.png": "x", "d.png": "y"}
    named = read(str(tmp_path / "set"), layout=Layout(label_column="weight"))
    assert {*labels_of(named)[ALL].values()} == {"3"}
    (tmp_path / "set" / "images").rename(tmp_path / "set" / "robins")
    assert {*labels_of(read(str(tmp_path / "set")))[ALL].values()} == {"robins"}
    with must_raise(UsageError, named="label_column"):
        read(str(tmp_path / "set"), layout=Layout(label_column="weight"))
    (tmp_path / "set" / "robins").rename(tmp_path / "set" / "images")
    make_images(tmp_path / "set" / "wrens", ["e.png"])
    with must_raise(UsageError, named=r"list\.csv"):
        read(str(tmp_path / "set"))
    (tmp_path / "set" / "list.csv").unlink()
    assert {*labels_of(read(str(tmp_path / "set")))[ALL].values()} == {"images", "wrens"}


def test_two_files_of_one_split(tmp_path: Path) -> None:
    make_images(tmp_path / "images", [*SEVERAL])
    (tmp_path / "annotations").mkdir()
    for name in ("one", "two"):
        (tmp_path / "annotations" / f"{name}.json").write_text(coco(SEVERAL))
    with pytest.raises(DataError, match=r"one\.json|two\.json"):
        read(str(tmp_path))
    must_refuse(call("train", tmp_path / "annotations" / "one.json", "--out", tmp_path / "run"), DATA, "one.json")


@pytest.mark.usefixtures("as_a_user")
def test_train_and_ask(tmp_path: Path) -> None:
    """Classes from boxes: trained, evaluated and predicted from the folder."""
    root, run = tmp_path / "set", tmp_path / "run"
    (root / "annotations").mkdir(parents=True)
    (root / "images").mkdir()
    random, sets = np.random.default_rng(0), {}
    for split, count in (("train", 64), ("val", 24)):
        sets[split] = {f"{split}{number}.png": (("zebra", "cat")[number % 2],) for number in range(count)}
        for number, name in enumerate(sets[split]):
            pixels = random.integers(0, 60, (12, 12, 3), dtype=np.uint8) + np.uint8(180 * (number % 2))
            Image.fromarray(pixels).save(root / "images" / name)
        (root / "annotations" / f"instances_{split}.json").write_text(coco(sets[split]))
    (config := tmp_path / "small.yaml").write_text(SMALL)
    words = ("--config", config, "--epochs", 8, "--batch-size", 8, "--lr", 5e-3, "--image-size", 12, "--threads", 1)
    trained = call("train", root, "--out", run, *words)
    assert trained.code == 0, trained.err
    assert vitrail.evaluate(run).value > 0.9
    predicted = call("predict", run, root / "annotations" / "instances_val.json", "--out", tmp_path / "found.csv")
    assert predicted.code == 0, predicted.err
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 25
