"""Every reader gives the same samples of the same photographs: names of classes, pixels, hashes, splits; to every verb.

A reader has rows in `LAYOUTS`, each with what lays out the photographs, and in `BAD`, with what is not to be read.
"""

import gzip
import io
import json
import pickle
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

import vitrail
from tests.cli.command import call
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.shared_runs import once, stored
from tests.training.tiny import options
from vitrail.data import stores
from vitrail.data.columns import LABEL, LABELS, TEXT, Samples
from vitrail.data.layout import Layout
from vitrail.data.multiple import LabelSets
from vitrail.data.packing import pack
from vitrail.data.sources import read, read_images
from vitrail.errors import DataError, Hint, RunError, UsageError, VitrailError
from vitrail.io import user_cache

CLASSES = ("ant", "bee", "cow")


def photographs() -> Path:
    """24 photographs in class folders: 15 to learn from, 3 for validation, 6 to test on, no two of one name."""

    def make(folder: Path) -> None:
        for number, (split, count) in enumerate((("train", 5), ("val", 1), ("test", 2))):
            for file in make_photographs(folder / "photos" / split, CLASSES, count, number):
                file.rename(file.with_stem(f"{split}_{file.stem}"))

    return once("photographs-of-readers", make) / "photos"


class Photo(NamedTuple):
    """What a layout is made of."""

    name: str  # with folders, such as train/ant/train_ant_000.jpg
    split: str
    label: str
    content: bytes


def photos() -> list[Photo]:
    found = []
    for file in sorted(photographs().rglob("*.*")):
        name = file.relative_to(photographs()).as_posix()
        found.append(Photo(name, name.split("/")[0], file.parent.name, file.read_bytes()))
    return found


# ---- layouts: each writes the photographs into a folder, and returns what a person names


def as_parquet(rows: list[Photo], file: Path, image: str = "struct", label: str = "class") -> Path:
    """A table as the library `datasets` writes it: the schema names the classes of its numbers."""
    inside = [{"bytes": row.content, "path": row.name} for row in rows]
    columns: dict[str, Any] = {
        "struct": pa.array(inside, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "bytes": pa.array([row.content for row in rows], pa.large_binary()),
        "paths": pa.array([row.name for row in rows]),
    }
    one = {"names": list(CLASSES), "_type": "ClassLabel"}
    numbers = [CLASSES.index(row.label) for row in rows]
    labels: dict[str, tuple[Any, Any]] = {
        "class": (pa.array(numbers, pa.int64()), one),
        "text": (pa.array([row.label for row in rows]), {"dtype": "string", "_type": "Value"}),
        "list": (pa.array([[number] for number in numbers]), {"feature": one, "_type": "Sequence"}),
        "hidden": (pa.array([-1] * len(rows), pa.int64()), one),
    }
    features = {"image": {"_type": "Image"}, "label": labels[label][1]}
    table = pa.table({"image": columns[image], "label": labels[label][0]})
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(about), file, row_group_size=4)
    return file


def in_split(split: str) -> list[Photo]:
    return [row for row in photos() if row.split == split]


def hub_in_parts(root: Path) -> Path:
    """A repository of a hub: the training images in two files."""
    learnt = in_split("train")
    as_parquet(learnt[:7], root / "data" / "train-00000-of-00002.parquet")
    as_parquet(learnt[7:], root / "data" / "train-00001-of-00002.parquet")
    as_parquet(in_split("val"), root / "data" / "validation-00000-of-00001.parquet")
    as_parquet(in_split("test"), root / "data" / "test-00000-of-00001.parquet")
    return root


def hub_of_folders(root: Path, image: str = "struct", label: str = "class") -> Path:
    """A file in a folder for each split, as a hub converts what it is given."""
    for split in ("train", "val", "test"):
        as_parquet(in_split(split), root / split / "0000.parquet", image, label)
    return root


def hub_in_one(root: Path) -> Path:
    """One file, whose column says what is in which split."""
    file = as_parquet(photos(), root / "kind=animals" / "photos.parquet", label="text")  # no column of the table
    split = pa.array([row.split for row in photos()])
    pq.write_table(pq.read_table(file).append_column("split", split), file)
    return file


def hub_of_paths(root: Path) -> Path:
    """A table beside the files."""
    shutil.copytree(photographs(), root, dirs_exist_ok=True)
    file = as_parquet(photos(), root / "photos.parquet", "paths")
    split = pa.array([row.split for row in photos()])
    pq.write_table(pq.read_table(file).append_column("split", split), file)
    return file


def flat(root: Path, by_split: bool) -> Path:
    """All files side by side, in the folder of their split or in one."""
    for row in photos():
        file = root / (row.split if by_split else ".") / Path(row.name).name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(row.content)
    return root


def metadata_csv(root: Path) -> Path:
    lines = [f"{Path(row.name).name},{row.label},{row.split}" for row in photos()]
    (flat(root, by_split=False) / "metadata.csv").write_text("\n".join(["file_name,species,split", *lines]))
    return root


def metadata_in_splits(root: Path) -> Path:
    for split in ("train", "val", "test"):
        lines = [json.dumps({"file_name": Path(row.name).name, "label": row.label}) for row in in_split(split)]
        (flat(root, by_split=True) / split / "metadata.jsonl").write_text("\n".join(lines))
    return root


def metadata_and_classes(root: Path) -> Path:
    """Class folders, and metadata that name the same classes."""
    shutil.copytree(photographs(), root, dirs_exist_ok=True)
    lines = [f"{row.name},{row.label}" for row in photos()]
    (root / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    return root


def metadata_without_label(root: Path) -> Path:
    """Class folders, and metadata that only say who took the photographs."""
    shutil.copytree(photographs(), root, dirs_exist_ok=True)
    lines = [f"{row.name},{number % 5}" for number, row in enumerate(photos())]
    (root / "metadata.csv").write_text("\n".join(["file_name,patient", *lines]))
    return root


def listed(root: Path) -> Path:
    lines = [f"{Path(row.name).name},{row.label},{row.split}" for row in photos()]
    (flat(root, by_split=False) / "labels.csv").write_text("\n".join(["path,label,split", *lines]))
    return root / "labels.csv"


def coco(root: Path) -> Path:
    """One box an image; ids begin anywhere."""
    for split in ("train", "val", "test"):
        rows = list(enumerate(in_split(split), 17))
        content = {
            "images": [{"id": number, "file_name": Path(row.name).name} for number, row in rows],
            "annotations": [{"image_id": number, "category_id": 5 + CLASSES.index(row.label)} for number, row in rows],
            "categories": [{"id": 5 + number, "name": name} for number, name in enumerate(CLASSES)],
        }
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    flat(root / "images", by_split=True)
    for split in ("train", "val", "test"):
        (root / "images" / split).rename(root / "images" / f"{split}2017")
    return root


def yolo(root: Path) -> Path:
    """As Roboflow exports it, with two boxes of one category in each image."""
    for row in photos():
        image = root / row.split / "images" / Path(row.name).name
        boxes = root / row.split / "labels" / image.with_suffix(".txt").name
        for file, content in (
            (image, row.content),
            (boxes, f"{CLASSES.index(row.label)} 0.5 0.5 0.1 0.1\n".encode() * 2),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    places = "".join(f"{split}: ../{split}/images\n" for split in ("train", "val", "test"))
    (root / "data.yaml").write_text(f"{places}nc: 3\nnames: [{', '.join(CLASSES)}]\n")
    return root


def as_zip(root: Path, folder: Path, within: str = "", method: int = zipfile.ZIP_DEFLATED) -> Path:
    """An archive of a folder, with what a Mac adds."""
    root.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(root / "photos.zip", "w", method) as archive:
        archive.writestr("__MACOSX/._train", b"x")
        for file in sorted(folder.rglob("*")):
            archive.write(file, within + file.relative_to(folder).as_posix())
    return root / "photos.zip"


def as_tar(root: Path, folder: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / "photos.tar", "w") as archive:
        archive.add(folder, ".")
    return root / "photos.tar"


def webdataset_shards(root: Path, beside: Callable[[Photo], dict[str, Any]]) -> Path:
    """Shards as the library `webdataset` writes them: those of training are several."""
    root.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        with webdataset.ShardWriter(str(root / f"{split}-%06d.tar"), maxcount=4, verbose=0) as writer:
            for row in in_split(split):
                file = Path(row.name)
                writer.write({"__key__": file.stem, file.suffix[1:]: row.content, **beside(row)})
    return root


def webdataset_in_folders(root: Path) -> Path:
    """Shards whose splits are the folders that they lie in."""
    for file in webdataset_shards(root, lambda row: {"cls": row.label}).glob("*.tar"):
        split, _, number = file.name.partition("-")
        (root / split).mkdir(exist_ok=True)
        file.rename(root / split / number)
    return root


def webdataset_in_one(root: Path) -> Path:
    """One tar, whose values say what is in which split."""
    root.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(root / "photos.tar")) as writer:
        for row in photos():
            values = {"label": row.label, "split": row.split, "size": {"bytes": len(row.content)}}
            writer.write(
                {"__key__": row.name.partition(".")[0], Path(row.name).suffix[1:]: row.content, "json": values}
            )
    return root / "photos.tar"


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "list": listed,
    "hub in parts": hub_in_parts,
    "hub of folders": hub_of_folders,
    "hub of bytes": lambda root: hub_of_folders(root, image="bytes"),
    "hub in one": hub_in_one,
    "hub of paths": hub_of_paths,
    "metadata.csv": metadata_csv,
    "metadata in splits": metadata_in_splits,
    "metadata and classes": metadata_and_classes,
    "metadata without label": metadata_without_label,
    "coco": coco,
    "yolo": yolo,
    "zip": lambda root: as_zip(root, photographs()),
    "zip wrapped": lambda root: as_zip(root, photographs(), "from somewhere/photos/", zipfile.ZIP_STORED),
    "zip with a list": lambda root: as_zip(root, listed(root / "files").parent, "files/"),
    "zip with metadata": lambda root: as_zip(root, metadata_csv(root / "files")),
    "zip with metadata in splits": lambda root: as_zip(root, metadata_in_splits(root / "files"), "photos/"),
    "tar": lambda root: as_tar(root, photographs()),
    "webdataset in folders": webdataset_in_folders,
    "webdataset with cls": lambda root: webdataset_shards(root, lambda row: {"cls": row.label}),
    "webdataset with txt": lambda root: webdataset_shards(root, lambda row: {"txt": row.label}),
    "webdataset with json": lambda root: webdataset_shards(root, lambda row: {"json": {"species": row.label}}),
    "webdataset in one": webdataset_in_one,
}
TRAINED = ("hub in parts", "metadata in splits", "zip", "webdataset with cls")  # one of each way of reading


def laid_out(layout: str) -> str:
    """The data in this layout, made once."""
    made = once(f"readers-{layout}", lambda folder: (folder / "what").write_text(str(LAYOUTS[layout](folder / "here"))))
    return (made / "what").read_text()


def known(samples: Samples) -> list[tuple[bytes, str]]:
    """Hash and class of each image, whatever it is called and in whatever order."""
    labels = samples.labels
    assert labels is not None
    return sorted((samples.images.content_hash(row), label) for row, label in enumerate(labels))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_photographs_in_every_layout(layout: str) -> None:
    folder, found = read(str(photographs())), read(laid_out(layout))
    assert Path(laid_out(layout)).resolve() in (place := Path(found.root), place.parent), "a run knows its data by this"
    assert found.splits.keys() == folder.splits.keys()
    for split, samples in found.splits.items():
        same = folder.splits[split]
        assert known(samples) == known(same)
        assert samples.column(LABEL).counts() == same.column(LABEL).counts()
        there = {each.content_hash(row): each.open(row) for each in [same.images] for row in range(len(same))}
        again = pickle.loads(pickle.dumps(samples.images))  # as worker processes get them
        for row in range(len(samples)):
            image, content_hash = again.read(row)
            assert content_hash == samples.images.content_hash(row)
            assert np.array_equal(np.asarray(image), np.asarray(there[content_hash]))
        names = samples.images.names()
        assert len({*names}) == len(names)
        assert not any(name.startswith("/") or str(Path(found.root).parent) in name for name in names)
        picked = samples.images.select(np.arange(len(samples))[::-2])
        assert picked.names() == names[::-2]
        assert picked.content_hash(0) == samples.images.content_hash(len(samples) - 1)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("layout", TRAINED)
def test_every_verb_takes_it(layout: str, tmp_path: Path) -> None:
    """Trained on a layout, and evaluated, asked and explained on it; a folder gives the figures that it gave."""
    data, run = laid_out(layout), tmp_path / "run"
    vitrail.train(data, run, options("photos", workers=0))
    evaluated = call("evaluate", run, data, "--json", "--threads", 1)
    assert evaluated.code == 0, evaluated.err
    assert json.loads(evaluated.out)["loss"] == pytest.approx(stored(run)["loss"])
    folder = call("evaluate", run, photographs(), "--json", "--threads", 1)
    assert json.loads(folder.out)["loss"] == pytest.approx(stored(run)["loss"], rel=1e-5)
    answers = json.loads(call("predict", run, data, "--json", "--threads", 1).out)
    assert len(answers) == len(photos())
    explained = call("explain", run, data, "--no-trust", "--json", "--threads", 1, "--out", tmp_path / "page.html")
    assert explained.code == 0, explained.err
    assert len(json.loads(explained.out)["images"]) == len(in_split("test"))


def test_a_moved_copy_is_known_for_what_it_is() -> None:
    """Where names are kept, a table has the digest of the folder: also its sizes and what some images hold."""
    folder = read(str(photographs())).splits
    for layout in ("hub of folders", "metadata and classes", "zip", "zip wrapped", "tar"):
        found = read(laid_out(layout)).splits
        for split, samples in found.items():
            assert samples.images.digest() == folder[split].images.digest(), layout
            assert samples.images.marks() == folder[split].images.marks(), layout
    assert read(laid_out("hub of folders")).classes == CLASSES


# ---- tables of hubs


def unpacked() -> list[str]:
    """The files of the user's cache that hold what was unpacked."""
    return sorted(file.name for file in (user_cache() / "opened").glob("*.bytes"))


def test_a_column_without_paths_is_named_with_the_one_of_images(tmp_path: Path) -> None:
    file = as_parquet(in_split("train"), tmp_path / "photos.parquet")
    images, label = pq.read_schema(file).names[:2]
    with pytest.raises(DataError, match=label) as caught:
        read(str(file), layout=Layout(path_column=label))
    assert isinstance(caught.value.hint, Hint)
    assert caught.value.hint.flags == {"path_column": images}


def test_a_table_is_unpacked_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file = as_parquet(in_split("train"), tmp_path / "photos.parquet")
    before = unpacked()
    first = read(str(file))
    assert any("unpacked" in note for note in first.notes)
    (made,) = {*unpacked()} - {*before}
    stamp = (user_cache() / "opened" / made).stat().st_mtime_ns
    second = read(str(file))
    assert second.digest() == first.digest()
    assert second.notes == ()
    assert (user_cache() / "opened" / made).stat().st_mtime_ns == stamp
    as_parquet(in_split("test"), file)
    assert read(str(file)).count == len(in_split("test"))
    (again,) = {*unpacked()} - {*before}
    assert again != made
    (user_cache() / "opened" / again).unlink()  # by somebody who needs the room
    assert read(str(file)).splits["all"].images.open(0).size


def test_what_a_table_says_of_its_labels(tmp_path: Path) -> None:
    """Lists of labels are several labels; a split whose labels are hidden is left aside and named."""
    lists = read(str(hub_of_folders(tmp_path / "lists", label="list"))).splits["train"].column(LABELS)
    assert isinstance(lists, LabelSets)
    assert lists.counts() == dict.fromkeys(CLASSES, 5)
    hidden = hub_of_folders(tmp_path / "hidden")
    as_parquet(in_split("test"), hidden / "test" / "0000.parquet", label="hidden")
    found = read(str(hidden))
    assert [*found.splits] == ["train", "validation"]
    assert any("test" in note for note in found.notes)


def test_images_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Paths of another machine keep their last part; where that is the same for two, file and row are the name."""
    rows = [row._replace(name=f"/home/someone/{row.label}/1.jpg") for row in in_split("val")]
    found = read(str(as_parquet(rows[:1], tmp_path / "one.parquet")))
    assert read_images(str(tmp_path / "one.parquet")).splits["all"].images.names() == ["1.jpg"]
    assert found.splits["all"].images.names() == ["1.jpg"]
    several = read(str(as_parquet(rows, tmp_path / "three.parquet")))
    assert several.splits["all"].images.names() == ["three/0", "three/1", "three/2"]


def test_a_row_without_an_image_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    file = as_parquet(in_split("val"), tmp_path / "photos.parquet")
    table = pq.read_table(file)
    images = [None, {"bytes": None, "path": "b.jpg"}, table["image"][2].as_py()]
    pq.write_table(table.set_column(0, "image", pa.array(images, table.schema.field("image").type)), file)
    found = read(str(file)).splits["all"].images
    for row in (0, 1):
        with must_raise(DataError, named=found.name(row)):
            found.open(row)
    assert found.open(2).size


def test_class_folders_beside_a_table_without_images(tmp_path: Path) -> None:
    """Features that were written into a folder of photographs do not hide these."""
    shutil.copytree(photographs(), tmp_path, dirs_exist_ok=True)
    pq.write_table(pa.table({"feature": [0.5, 1.5]}), tmp_path / "features.parquet")
    (tmp_path / "._features.parquet").touch()
    found = read(str(tmp_path))
    assert found.count == len(photos())
    assert any("features.parquet" in note for note in found.notes)


def test_metadata_beside_images_that_it_does_not_list(tmp_path: Path) -> None:
    root = metadata_csv(tmp_path)
    lines = (root / "metadata.csv").read_text().split("\n")
    (root / "metadata.csv").write_text("\n".join(lines[:-2]))
    found = read(str(root))
    assert found.count == len(photos()) - 2
    assert any("2" in note for note in found.notes)


def test_metadata_that_is_named_goes_before_class_folders_that_disagree(tmp_path: Path) -> None:
    root = disagreeing(tmp_path)
    assert read(str(root), layout=Layout(label_column="label")).splits["train"].column(LABEL).counts()["bee"] == 6


def test_of_lists_beside_images_the_one_that_lists_them_is_read(tmp_path: Path) -> None:
    found = read(str(lists_beside("images", "labels.csv")(tmp_path)))
    assert sum(found.splits["all"].column(LABEL).counts().values()) == len(photos())


# ---- archives


def test_classes_by_number_and_captions_beside_images(tmp_path: Path) -> None:
    """The number of a class is its name; texts that hardly repeat are no classes."""
    numbers = webdataset_shards(tmp_path / "numbers", lambda row: {"cls": CLASSES.index(row.label), "txt": row.name})
    columns = read(str(numbers)).splits["train"].columns
    assert columns[LABEL].names == ("0", "1", "2")
    assert columns[TEXT].values == tuple(row.name for row in in_split("train"))
    captions = webdataset_shards(tmp_path / "captions", lambda row: {"txt": row.name})
    assert [*read(str(captions)).splits["train"].columns] == [TEXT]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_links_in_an_archive_are_left_out_and_counted(kind: str, tmp_path: Path) -> None:
    (as_zip if kind == "zip" else as_tar)(tmp_path, photographs())
    before = read(str(tmp_path / f"photos.{kind}"))
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "photos.zip", "a") as archive:
            about = zipfile.ZipInfo("train/ant/link.jpg")
            about.external_attr = 0o120777 << 16
            archive.writestr(about, "/etc/passwd")
    else:
        with tarfile.open(tmp_path / "photos.tar", "a") as archive:
            link = tarfile.TarInfo("train/ant/link.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    after = read(str(tmp_path / f"photos.{kind}"))
    assert after.count == before.count == len(photos())
    (note,) = {*after.notes} - {*before.notes}
    assert "1 link" in note


def test_a_tar_beside_the_folder_that_it_was_unpacked_to(tmp_path: Path) -> None:
    as_tar(tmp_path, photographs())
    shutil.copytree(photographs(), tmp_path, dirs_exist_ok=True)
    found = read(str(tmp_path))
    assert found.count == len(photos())
    assert any(".tar" in note for note in found.notes)


@pytest.mark.parametrize("place", ["train/ant", "train", "more", ".kept"])
def test_tars_among_class_folders_are_passed_over(place: str, tmp_path: Path) -> None:
    """The images are read, as without them."""
    shutil.copytree(photographs(), tmp_path / "photos")
    (tmp_path / "photos" / place).mkdir(exist_ok=True)
    as_tar(tmp_path / "photos" / place, photographs())
    found, folder = read(str(tmp_path / "photos")), read(str(photographs()))
    assert {split: known(each) for split, each in found.splits.items()} == {
        split: known(each) for split, each in folder.splits.items()
    }


def test_a_member_that_inflates_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_INFLATED", 2**20)
    bomb = zipped({"a/1.png": bytes(2**21), "b/2.png": bytes(2**20)}, method=zipfile.ZIP_DEFLATED)(tmp_path)
    images = read(str(bomb)).splits["all"].images
    with must_raise(DataError, named="1.png"):
        images.content(0)
    assert len(images.content(1)) == 2**20


def test_links_in_archives_are_passed_over(tmp_path: Path) -> None:
    """None leads anywhere: what it is named for lies there itself, or nowhere."""
    file, link = as_zip(tmp_path, photographs()), zipfile.ZipInfo("train/ant/link.jpg")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    tar, link = as_tar(tmp_path, photographs()), tarfile.TarInfo("train/ant/link.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tar, "a") as archive:
        archive.addfile(link)
    for each in (file, tar):
        assert read(str(each)).count == len(photos())


def test_an_archive_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Where its members lie is kept until it changes."""
    file = as_tar(tmp_path, photographs())
    assert read(str(file)).count == len(photos())
    with tarfile.open(file, "a") as archive:
        archive.add(photographs() / photos()[0].name, "train/ant/again.jpg")
    assert read(str(file)).count == len(photos()) + 1


def test_a_damaged_member_is_one_image_that_cannot_be_read(tmp_path: Path) -> None:
    file = as_zip(tmp_path, photographs())
    images = read(str(file)).splits["train"].images
    content = bytearray(file.read_bytes())
    start = content.find(images.name(0).encode()) + len(images.name(0)) + 60
    content[start : start + 400] = bytes(400)
    file.write_bytes(content)
    images = read(str(file)).splits["train"].images
    with must_raise(DataError, named=images.name(0)):
        images.content(0)
    assert images.open(1).size
    file.unlink()
    with must_raise(RunError, named="photos.zip"):
        images.open(1)


# ---- what is not to be read: each writes it into a folder, and returns what a person names


def disagreeing(root: Path) -> Path:
    metadata_and_classes(root)
    text = (root / "metadata.csv").read_text()
    (root / "metadata.csv").write_text(text.replace("train_ant_000.jpg,ant", "train_ant_000.jpg,bee"))
    return root


def two_lists(root: Path) -> Path:
    metadata_csv(root)
    (root / "metadata.jsonl").write_text('{"file_name": "a.jpg"}')
    return root


def lists_beside(folder: str, *names: str, pack: bool = False) -> Callable[[Path], Path]:
    """Lists with one label changed, beside class folders, or beside all images in a folder of this name."""

    def write(root: Path) -> Path:
        data = root / "data"
        if folder:
            flat(data / folder, by_split=False)
        else:
            shutil.copytree(photographs(), data)
        rows = [f"{f'{folder}/{Path(row.name).name}' if folder else row.name},{row.label}" for row in photos()]
        for name in names:
            (data / name).write_text("\n".join(["path,label", *rows[:-1], f"{rows[-1].rpartition(',')[0]},ant"]))
        (data / "classes.csv").write_text("id,name\n0,ant\n1,bee")  # lists no images
        return as_zip(root, data) if pack else data

    return write


def two_tables(root: Path) -> Path:
    for name in ("mnist", "cifar"):
        as_parquet(in_split("val"), root / name / "train-00000-of-00001.parquet")
    return root


def cut_table(root: Path) -> Path:
    file = as_parquet(in_split("val"), root / "photos.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    return file


def pointer(root: Path) -> Path:
    """What a clone without its large files has."""
    (root / "photos.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n")
    return root / "photos.parquet"


def damaged_page(root: Path) -> Path:
    file = as_parquet(in_split("train"), root / "photos.parquet")
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    return file


def table_of(columns: dict[str, Any], name: str = "photos.parquet") -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        pq.write_table(pa.table(columns), root / name)
        return root / name

    return write


def other_columns(root: Path) -> Path:
    hub_in_parts(root)
    as_parquet(in_split("train"), root / "data" / "train-00001-of-00002.parquet", image="bytes")
    table = pq.read_table(root / "data" / "train-00001-of-00002.parquet")
    pq.write_table(table.rename_columns(["image", "name"]), root / "data" / "train-00001-of-00002.parquet")
    return root


def number_without_name(root: Path) -> Path:
    file = as_parquet(in_split("val"), root / "photos.parquet")
    table = pq.read_table(file)
    pq.write_table(table.set_column(1, "label", pa.array([0, 1, 3])), file)
    about = table.schema.metadata
    pq.write_table(pq.read_table(file).replace_schema_metadata(about), file)
    return file


def some() -> dict[str, bytes]:
    """Members that would be read."""
    return {row.name: row.content for row in in_split("val")}


def zipped(
    members: dict[str, bytes] | None = None, flag: int = 0, method: int = zipfile.ZIP_STORED
) -> Callable[[Path], Path]:
    """A zip of these members, whose flags say so."""

    def write(root: Path) -> Path:
        file = root / "photos.zip"
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, content in (some() if members is None else members).items():
                archive.writestr(name, content)
                archive.getinfo(name).flag_bits |= flag
        return file

    return write


def tarred(members: dict[str, bytes] | None = None, damage: Callable[[bytes], bytes] = bytes) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w") as archive:
            for name, content in (some() if members is None else members).items():
                about = tarfile.TarInfo(name)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        (root / "photos.tar").write_bytes(damage(held.getvalue()))
        return root / "photos.tar"

    return write


def cut_zip(root: Path) -> Path:
    file = as_zip(root, photographs())
    file.write_bytes(file.read_bytes()[:-30])
    return file


def half_a_pack(root: Path) -> Path:
    """Shards of vitrail whose index has gone."""
    out = pack(photographs(), root / "packed").out
    (out / "shards.json").unlink()
    return out


def archives_alone(root: Path) -> Path:
    (root / "ant").mkdir()
    zipped()(root / "ant")
    return root


BAD: dict[str, tuple[Callable[[Path], Path], type[VitrailError], str]] = {
    "class folders and metadata disagree": (disagreeing, UsageError, "train_ant_000.jpg"),
    "metadata twice": (two_lists, DataError, r"metadata\.csv, metadata\.jsonl"),
    "class folders and a list disagree": (lists_beside("", "labels.csv"), UsageError, r"labels\.csv"),
    "the same in a zip": (lists_beside("", "labels.csv", pack=True), UsageError, r"labels\.csv"),
    "two lists beside images": (lists_beside("images", "a.csv", "b.csv"), UsageError, r"a\.csv, b\.csv"),
    "two lists in a zip": (lists_beside("images", "a.csv", "b.csv", pack=True), UsageError, r"a\.csv, b\.csv"),
    "two tables": (two_tables, UsageError, "cifar, mnist"),
    "a cut table": (cut_table, DataError, "photos.parquet"),
    "a pointer to a table": (pointer, DataError, "photos.parquet"),
    "a damaged page": (damaged_page, DataError, "photos.parquet"),
    "a table without images": (table_of({"x": [0.5], "species": ["ant"]}), DataError, "species"),
    "a table of nothing": (table_of({}), DataError, "photos.parquet"),
    "a table of no rows": (table_of({"image": pa.array([], pa.binary())}), DataError, "photos.parquet"),
    "two columns of images": (table_of({"left": [b"1"], "right": [b"2"]}), UsageError, "left, right"),
    "files that are missing": (table_of({"image": ["a.jpg"], "label": ["ant"]}), DataError, "a.jpg"),
    "a part with other columns": (other_columns, DataError, "train-00001-of-00002.parquet"),
    "a zip that leads out": (zipped({"../a.png": b"1"}), DataError, r"\.\./a.png"),
    "a zip that leads to the root": (zipped({"/etc/a.png": b"1"}), DataError, "/etc/a.png"),
    "a zip that leads to a disk": (zipped({"C:\\a.png": b"1"}), DataError, "a.png"),
    "a zip of zips": (zipped({"photos.zip": b"PK", "a/more.zip": b"PK"}), DataError, "a/more.zip, photos.zip"),
    "a zip of COCO": (zipped({"a/annotations/one.json": b"{}", "a/1.jpg": b""}), DataError, "annotations/one.json"),
    "a zip of YOLO": (zipped({"x/data.yaml": b"names: [a]", "x/train/images/1.jpg": b""}), DataError, "data.yaml"),
    "class folders of archives": (archives_alone, DataError, "ant/photos.zip"),
    "a zip without images": (zipped({"readme.md": b"none"}), DataError, "md .1."),
    "a zip of nothing": (zipped({}), DataError, "photos.zip"),
    "an encrypted zip": (zipped(flag=1), DataError, "val_ant_000.jpg"),
    "a zip by another method": (zipped(method=zipfile.ZIP_LZMA), DataError, "val_ant_000.jpg"),
    "a cut zip": (cut_zip, DataError, "photos.zip"),
    "a tar that leads out": (tarred({"a/../../b.png": b"1"}), DataError, "b.png"),
    "a tar without images": (tarred({"readme.md": b"none"}), DataError, "md .1."),
    "a tar of nothing": (tarred({}), DataError, "photos.tar"),
    "a compressed tar": (tarred(damage=gzip.compress), DataError, "photos.tar"),
    "a cut tar": (tarred(damage=lambda content: content[:-15000]), DataError, "photos.tar"),
    "a tar with a damaged header": (
        tarred(
            dict.fromkeys(("a/1.png", "b/2.png"), b"1"), lambda content: content[:1030] + b"x" * 300 + content[1330:]
        ),
        DataError,
        "photos.tar",
    ),
    "a label that is no object": (tarred({"1.png": b"1", "1.json": b"[1]"}), DataError, "1.json"),
    "half a pack": (half_a_pack, DataError, "packed"),
    "a class without a name": (number_without_name, DataError, "label"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_to_be_read(case: str, tmp_path: Path) -> None:
    """Two lines that name it, when it is read or the first image is; nothing is written beside the data."""
    make, kind, named = BAD[case]
    what = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with must_raise(kind, named=named):
        for samples in read(str(what)).splits.values():
            known(samples)
            for row in range(len(samples)):
                samples.images.open(row)
    assert sorted(tmp_path.rglob("*")) == before
