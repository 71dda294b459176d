"""Data sets: what is read from digits, IDX files, folders and manifests, and classes matched by name."""

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from tests.data.lab import names_of, open_set, open_split
from tests.errors import figures, must_raise
from tests.photographs import make_photographs
from vitrail.data.columns import Labels, RawDataset, Samples
from vitrail.data.dataset import divide, hold_out, label_inputs, labels_of
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.readers import idx
from vitrail.data.readers.manifest import read_manifest
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError


def put(root: Path, *files: str) -> None:
    """Write small images of one colour each; other files get a word."""
    for number, file in enumerate(files):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".png", ".PNG", ".jpg"):
            Image.new("RGB", (4, 4), (number % 256, 0, 0)).save(path)
        else:
            path.write_text("word")


def put_classes(root: Path, **counts: int) -> None:
    for name, count in counts.items():
        put(root, *(f"{name}/{name}{number:03d}.png" for number in range(count)))


def by_folder(split: Samples | None, classes: tuple[str, ...]) -> dict[str, int]:
    """Count images by the folder they lie in, after checking that the label says the same."""
    assert split is not None
    for index, label in enumerate(labels_of(split)):
        assert Path(split.name(index)).parent.name == classes[label]
    return dict(Counter(classes[label] for label in labels_of(split)))


def names(split: Samples) -> set[str]:
    return set(split.inputs.names())


# What is held out


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(0, 1), st.integers(0, 5))
def test_held_out_shares(sizes: list[int], share: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
    np.random.default_rng(seed).shuffle(labels)
    pixels = (np.arange(len(labels)) % 256).astype(np.uint8)[:, None, None]
    part = label_inputs(ArrayImages(pixels, "p"), labels, tuple(map(str, range(len(sizes)))))
    count = round(share * len(labels))
    kept, held = hold_out(part, count, seed)
    assert sorted([*kept.inputs.numbers, *held.inputs.numbers]) == list(range(len(labels)))
    for each in (kept, held):
        assert np.array_equal(labels_of(each), labels[list(each.inputs.numbers)])
        assert np.array_equal(each.inputs.pixels[:, 0, 0], np.array(each.inputs.numbers) % 256)
    for label, size in enumerate(sizes):
        got = int((labels_of(held) == label).sum())
        exact = count * size / max(len(labels), 1)
        if size < 2:
            assert got == 0
        else:
            assert 1 <= got <= size - 1
            assert abs(got - exact) < 1 or got in (1, size - 1)
    if len(labels) and all(2 <= count * size / len(labels) <= size - 2 for size in sizes):
        assert len(labels_of(held)) == count


def test_the_choice_is_stable_and_seeded() -> None:
    labels = np.arange(200, dtype=np.int64) % 4
    part = label_inputs(ArrayImages(np.zeros((200, 1, 1), np.uint8), "p"), labels, tuple("abcd"))
    held = [set(hold_out(part, 20, seed)[1].inputs.numbers) for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]
    fewer = hold_out(part.select(np.arange(190)), 19, 0)[1].inputs.numbers
    assert len(set(fewer) - held[0]) <= 4, "an image stays on its side when others are added"


# Digits and IDX files


def test_digits() -> None:
    raw = load_digits()
    source = open_set("digits", seed=5)
    assert names_of(source) == tuple("0123456789")
    assert [len(each) for each in (source.train, source.validation, source.test)] == [1258, 180, 359]
    seen: set[str] = set()
    for split in (source.train, source.validation, source.test):
        assert not seen & names(split)
        seen |= names(split)
        assert np.bincount(labels_of(split)).min() >= 0.09 * len(split)
        for index in (0, len(split) - 1):
            number = int(split.inputs.name(index).removeprefix("digits/"))
            assert labels_of(split)[index] == raw.target[number]
            expected = np.rint(raw.images[number] * 255 / 16)
            np.testing.assert_array_equal(np.asarray(split.inputs.open(index)), expected)
    assert source.split_seed == open_set("digits").split_seed == 0
    assert source.fingerprint == open_set("digits").fingerprint, "the split is the same for every training"


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match=r"vitrail\[digits\]"):
        open_set("digits")


def test_real_mnist(mnist_root: Path) -> None:
    source = open_set("mnist", mnist_root)
    assert [re.findall(r"[\d,]*\d", note) for note in source.notes] == [["5,000", "60,000"]]
    assert len(source.train) + len(source.validation) == 60000
    assert [len(source.validation), len(source.test)] == [5000, 10000]
    everything = open_split("mnist", names_of(source), mnist_root, split="train")
    assert names(everything.samples) == names(source.train)
    first = [names(each) for each in (source.train, source.validation)]
    whole = source.train if "mnist/train/0" in first[0] else source.validation
    place = whole.inputs.numbers.index(0)
    assert names_of(source)[labels_of(whole)[place]] == "5"
    assert names_of(source)[labels_of(source.test)[0]] == "7"
    shares = np.bincount(labels_of(source.validation)) / 5000
    full = np.bincount(np.concatenate([labels_of(source.train), labels_of(source.validation)])) / 60000
    np.testing.assert_allclose(shares, full, atol=1 / 5000)
    evaluated = open_split("mnist", names_of(source), mnist_root)
    assert (evaluated.split, len(evaluated.samples)) == ("test", 10000)
    again = open_set("mnist", Path(source.root), source.split_seed or 0)
    assert again.fingerprint == source.fingerprint
    assert open_set("mnist", mnist_root, seed=1).fingerprint != source.fingerprint
    with pytest.raises(DataError, match="mnist") as caught:
        open_set("fashion-mnist", mnist_root)
    assert re.match(r"mnist\b", str(caught.value.hint))


def test_unpacked_mnist_is_known_too(mnist_root: Path, tmp_path: Path) -> None:
    for file in idx.FILES:
        (tmp_path / file).write_bytes(gzip.decompress((mnist_root / f"{file}.gz").read_bytes()))
    assert open_split("mnist", tuple("0123456789"), tmp_path).notes == ()
    with pytest.raises(DataError, match="mnist"):
        open_split("fashion-mnist", tuple("0123456789"), tmp_path)


def put_idx(folder: Path, train: int = 100, test: int = 20, packed: bool = True, **changes: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (count, 6, 5), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for file, values in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", labels)):
            shape = np.array(values.shape, dtype=">u4").tobytes()
            content = changes.get(file.replace("-", "_"), bytes((0, 0, 8, values.ndim)) + shape + values.tobytes())
            (folder / (file + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw", "mnist/MNIST/raw", "raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_found(tmp_path: Path, below: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put_idx(tmp_path / below, packed=packed)
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    source = open_set("mnist")
    assert [len(source.train), len(source.validation), len(source.test)] == [90, 10, 20]
    assert "train-images-idx3-ubyte" in source.notes[0], "whose checksum is unknown"
    assert np.asarray(source.test.inputs.open(3)).shape == (6, 5)
    assert source.root == str(tmp_path / below)
    fashion = open_split("fashion-mnist", ("Bag", "Coat"), tmp_path / below)
    assert sorted(set(labels_of(fashion.samples))) == [0, 1]
    assert sum(fashion.unknown.values()) == 16


HEAD = bytes((0, 0, 8, 1))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("train_labels_idx1_ubyte", b"", "train-labels"),
        ("train_labels_idx1_ubyte", b"\0\0\x0d\1" + b"\0" * 104, "train-labels"),
        ("train_images_idx3_ubyte", HEAD + (100).to_bytes(4, "big") + b"\1" * 100, "train-images.*3"),
        ("train_labels_idx1_ubyte", HEAD + (100).to_bytes(4, "big") + b"\1" * 99, "100.*99"),
        ("train_labels_idx1_ubyte", HEAD + (99).to_bytes(4, "big") + b"\1" * 99, "100.*99"),
        ("t10k_labels_idx1_ubyte", HEAD + (20).to_bytes(4, "big") + b"\x0a" * 20, "10.*0..9"),
        ("t10k_images_idx3_ubyte", bytes((0, 0, 8, 3)) + b"\0" * 12, "t10k-images"),
        ("t10k_images_idx3_ubyte", bytes((0, 0, 8, 3)) + b"\xff" * 12, "t10k-images"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    put_idx(tmp_path, **{file: content})
    with pytest.raises(DataError, match=reason):
        open_set("mnist", tmp_path)


def test_missing_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(name: str, folder: Path) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(idx, "download", no_network)
    with pytest.raises(DataError) as caught:
        open_set("mnist", tmp_path)
    assert all(f"{file}.gz" in str(caught.value.hint) for file in idx.FILES)
    put_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        open_set("mnist", tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz"):
        open_set("mnist", tmp_path)
    with pytest.raises(DataError) as caught:
        open_set("mnist", tmp_path.with_name(tmp_path.name + "x"))
    assert tmp_path.name in str(caught.value.hint)


def test_download_when_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "download", lambda name, folder: put_idx(folder / "FashionMNIST" / "raw"))
    source = open_set("fashion-mnist", tmp_path)
    assert names_of(source)[9] == "Ankle boot"
    assert source.root == str(tmp_path / "FashionMNIST" / "raw")


# Folders


def test_photographs(photo_folder: Path) -> None:
    source = open_set(str(photo_folder))
    assert names_of(source) == ("beach", "field", "night")
    assert by_folder(source.train, names_of(source)) == {"beach": 20, "field": 20, "night": 20}
    assert by_folder(source.validation, names_of(source)) == {"beach": 5, "field": 5, "night": 5}
    assert (source.test, source.notes, source.unknown, source.split_seed) == (None, (), {}, None)
    assert source.root == str(photo_folder)
    assert source.train.inputs.open(0).size != source.train.inputs.open(1).size


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Val"])
def test_split_folders(tmp_path: Path, validation: str) -> None:
    for split, count in (("train", 4), (validation, 2), ("test", 3)):
        put_classes(tmp_path / split, cat=count, dog=count)
    source = open_set(str(tmp_path))
    assert [len(each) for each in (source.train, source.validation, source.test)] == [8, 4, 6]
    assert source.split_seed is None
    for split, count in ((None, 6), ("validation", 4), ("train", 8)):
        assert len(open_split(str(tmp_path), ("cat", "dog"), split=split).samples) == count
    with must_raise(UsageError, "all") as caught:
        open_split(str(tmp_path), ("cat", "dog"), split="all")
    assert caught.value.hint.flags == {"split": "test"}, "not the images that it was trained on"


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("training_set", "validation_set", "test_set"),
        ("Train Images", "Val Images", "Test Images"),
        ("trainset", "devset", "testset"),
        ("train_data", "dev", "testing"),
        ("train2017", "val2017", "test2017"),  # these beside words that are no names of splits
        ("seg_train", "seg_val", "seg_test"),
        ("train/train", "valid/valid", "test/test"),  # as archives unpack them
    ],
)
def test_the_usual_names_of_splits(tmp_path: Path, train: str, validation: str, test: str) -> None:
    for split, count in ((train, 4), (validation, 2), (test, 3)):
        put_classes(tmp_path / split, cat=count, dog=count)
    source = open_set(str(tmp_path))
    assert names_of(source) == ("cat", "dog")
    assert [len(each) for each in (source.train, source.validation, source.test)] == [8, 4, 6]
    assert bool(source.notes) == bool(re.search("2017|seg", train)), "what was read into a name is said"


def test_names_that_only_sound_like_splits_are_classes(tmp_path: Path) -> None:
    put_classes(tmp_path, freight_train=3, test_tube=3, car=3)
    (tmp_path / "car" / "red").mkdir()
    assert names_of(open_set(str(tmp_path))) == ("car", "freight_train", "test_tube")


@pytest.mark.parametrize(
    "folders",
    [
        ("my_train/cat", "my_train/dog", "later/cat", "later/dog"),  # splits, or classes of animals?
        ("cat/train", "cat/test", "dog/train", "dog/test"),  # as classes the test images would be learnt
    ],
)
def test_in_doubt_both_readings_are_named(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for folder in folders:
        put(tmp_path, *(f"{folder}/{number}.png" for number in range(4)))
    with must_raise(DataError, "split") as caught:
        open_set(str(tmp_path))
    assert "class" in caught.value.problem
    assert "train" in str(caught.value.hint)


def test_images_for_a_competition_without_classes_do_not_stop_a_training(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", cat=20, dog=20)
    put(tmp_path, *(f"test/{number}.png" for number in range(7)))
    source = open_set(str(tmp_path))
    assert [len(source.train), len(source.validation), source.test] == [36, 4, None]
    assert any("test" in note for note in source.notes)
    assert not any("7 images" in note for note in source.notes), "each is said once"


def test_flat_folder(tmp_path: Path) -> None:
    put_classes(tmp_path, cat=40, dog=20, eel=2, fox=1)
    source = open_set(str(tmp_path), seed=3)
    assert names_of(source) == ("cat", "dog", "eel", "fox")
    assert by_folder(source.validation, names_of(source)) == {"cat": 4, "dog": 2, "eel": 1}
    assert by_folder(source.train, names_of(source)) == {"cat": 36, "dog": 18, "eel": 1, "fox": 1}
    assert not names(source.train) & names(source.validation)
    assert (source.split_seed, source.test) == (3, None)
    assert [re.findall(r"\d+", note) for note in source.notes] == [["7", "63"]]  # what was cut off is said
    whole = open_split(str(tmp_path), names_of(source))
    assert (whole.split, len(whole.samples)) == ("all", 63)
    own = open_split(str(tmp_path), names_of(source), split="validation", seed=3)
    assert open_split(str(tmp_path), names_of(source), split="val", seed=3).split == own.split == "validation"
    assert names(own.samples) == names(source.validation)
    with pytest.raises(UsageError, match="all, train, validation"):
        open_split(str(tmp_path), names_of(source), split="test")
    assert names(open_set(str(tmp_path), seed=4).validation) != names(source.validation)


def test_validation_is_carved_from_train(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", cat=30, dog=30)
    put_classes(tmp_path / "test", cat=5, dog=5)
    (tmp_path / "val").mkdir()
    source = open_set(str(tmp_path))
    assert [len(each) for each in (source.train, source.validation, source.test)] == [54, 6, 10]
    assert all(name.startswith("train/") for name in names(source.validation))
    assert source.split_seed == 0
    assert any("val" in note for note in source.notes)
    assert [re.findall(r"\d+", note) for note in source.notes if "validation" in note] == [["6", "60"]]  # the cut


def test_by_name(tmp_path: Path) -> None:
    """{a,b,c} trained, {b,c,d} evaluated: by number, b would be scored as a."""
    put_classes(tmp_path / "train", a=4, b=4, c=4)
    put_classes(tmp_path / "val", b=2, c=3, d=5)
    put_classes(tmp_path / "test", d=1, c=2)
    source = open_set(str(tmp_path))
    assert names_of(source) == ("a", "b", "c")
    assert by_folder(source.validation, names_of(source)) == {"b": 2, "c": 3}
    assert by_folder(source.test, names_of(source)) == {"c": 2}
    assert source.unknown == {"validation": {"d": 5}, "test": {"d": 1}}
    assert any("d (5)" in note for note in source.notes)
    put_classes(tmp_path / "other", b=2, c=3, d=5)
    evaluated = open_split(str(tmp_path / "other"), names_of(source))
    assert by_folder(evaluated.samples, names_of(source)) == {"b": 2, "c": 3}
    assert evaluated.unknown == {"d": 5}
    assert any("d (5)" in note for note in evaluated.notes)
    assert by_folder(open_split(str(tmp_path / "other"), ("d", "x", "b")).samples, ("d", "x", "b")) == {
        "b": 2,
        "d": 5,
    }
    with pytest.raises(DataError):
        open_split(str(tmp_path / "other"), ("x", "y"))
    put_classes(tmp_path / "single", c=3)
    single = open_split(str(tmp_path / "single"), names_of(source))
    assert by_folder(single.samples, names_of(source)) == {"c": 3}


def test_folders_that_are_named_by_the_numbers_of_classes(tmp_path: Path) -> None:
    classes = tuple(f"class of {letter}" for letter in "abcdefghijkl")
    for names_given, numbers in ((("2", "11"), (2, 11)), (("00", "03"), (0, 3))):
        root = tmp_path / names_given[0]
        put_classes(root, **dict(zip(names_given, (3, 5), strict=True)))
        found = open_split(str(root), classes)
        assert Counter(labels_of(found.samples).tolist()) == dict(zip(numbers, (3, 5), strict=True))
        assert (found.unknown, len(found.notes)) == ({}, 1), "that they were read as numbers is said"
    put_classes(tmp_path / "from 1", **{str(number): 1 for number in range(1, 13)})  # whose numbers are others
    with must_raise(DataError, "12.* 11"):
        open_split(str(tmp_path / "from 1"), classes)
    put_classes(tmp_path / "beyond", **{"13": 1, "1500": 1})
    with must_raise(DataError, "13.*1500.* 999"):
        open_split(str(tmp_path / "beyond"), tuple(f"class {number}" for number in range(1000)))
    put_classes(tmp_path / "names", **{"11": 2, "7": 3})  # a model whose classes have numbers as names
    assert labels_of(open_split(str(tmp_path / "names"), ("7", "11")).samples).tolist() == [1] * 2 + [0] * 3


def test_a_code_with_other_digits_is_no_misspelt_name(tmp_path: Path) -> None:
    put_classes(tmp_path, n02123045=2, crnae=2, crane=2)
    found = open_split(str(tmp_path), ("n02123054", "crane"))
    assert [note for note in found.notes if "crnae" in note and "'crane'" in note]
    assert not [note for note in found.notes if "n02123054" in note]


def test_what_is_ignored_is_said(tmp_path: Path) -> None:
    put_classes(tmp_path, cat=5, dog=5)
    put(tmp_path, ".ipynb_checkpoints/x.png", "__MACOSX/cat/y.png", "cat/.cache/z.png", "cat/._cat.png")
    put(tmp_path, "dog/deep/er/DOG.PNG", "dog/notes.txt", "loose.png", "Thumbs.db")
    (tmp_path / "empty").mkdir()
    source = open_set(str(tmp_path))
    assert names_of(source) == ("cat", "dog")
    everything = names(source.train) | names(source.validation)
    assert len(everything) == 11
    assert "dog/deep/er/DOG.PNG" in everything
    said = " ".join(source.notes)
    for word in (".ipynb_checkpoints", "__MACOSX", "cat/.cache", "empty", ".txt (1)", ".db (1)", "1 image"):
        assert word in said


def test_links_make_no_circle(tmp_path: Path) -> None:
    put_classes(tmp_path, cat=3, dog=3)
    (tmp_path / "cat" / "up").symlink_to(tmp_path)
    (tmp_path / "cat" / "self").symlink_to(tmp_path / "cat")
    (tmp_path / "cat" / "other").symlink_to(tmp_path / "dog")
    (tmp_path / "dog" / "broken.png").symlink_to(tmp_path / "nowhere.png")
    elsewhere = tmp_path.with_name(tmp_path.name + "-elsewhere")
    put(elsewhere, "far.png")
    (tmp_path / "dog" / "far").symlink_to(elsewhere)
    source = open_set(str(tmp_path))
    assert len(source.train) + len(source.validation) == 8, "a link that leads nowhere is an image that cannot be read"
    assert any("cat/other, cat/self, cat/up" in note for note in source.notes)


def test_class_names_that_sound_like_splits(tmp_path: Path) -> None:
    put_classes(tmp_path, train=3, plane=3, car=3)
    assert names_of(open_set(str(tmp_path))) == ("car", "plane", "train")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ((), ""),
        (("a.png", "b.png"), ""),
        (("train/a.png", "val/b.png"), ""),
        (("cat/a.txt", "dog/b.txt"), ""),
        (("cat/a.png", "cat/b.png"), "cat"),
        (("test/cat/a.png", "test/dog/a.png"), "test"),
        (("train/a/a.png", "train/b/a.png", "val/a/a.png", "valid/a/a.png"), "val, valid|valid, val"),
        (("train/a/a.png", "train/b/a.png", "val/A/a.png"), "validation"),
        (("train/a/a.png", "train/b/a.png"), "validation"),
    ],
)
def test_folders_that_cannot_be_trained_on(tmp_path: Path, files: tuple[str, ...], named: str) -> None:
    put(tmp_path, *files)
    with pytest.raises(DataError) as caught:
        open_set(str(tmp_path))
    assert re.search(named, caught.value.problem.replace(str(tmp_path), ""))
    assert caught.value.exit_code == 3


def test_images_that_nothing_sorts_have_no_labels(tmp_path: Path) -> None:
    """In splits, where folders say so; a split without class folders beside others is left aside, and named."""
    put(tmp_path, "train/b.png", "train/a.png", "val/c.png", "val/notes.txt")
    raw = read(str(tmp_path))
    assert {name: samples.inputs.names() for name, samples in raw.splits.items()} == {
        "train": ["train/a.png", "train/b.png"],
        "validation": ["val/c.png"],
    }
    assert [dict(samples.columns) for samples in raw.splits.values()] == [{}, {}]
    assert [note for note in raw.notes if ".txt (1)" in note]
    put(tmp_path, "train/x/a.png", "train/y/a.png", "test/d.png")
    raw = read(str(tmp_path))
    assert list(raw.splits) == ["train"]
    assert raw.splits["train"].labels == ("x", "y")
    (note,) = [note for note in raw.notes if "test" in note]
    assert "val" in note


def test_a_split_is_stratified_by_the_column_that_is_learnt() -> None:
    """It was by one called `label`, whatever was learnt, and an error where there was none."""
    images = ArrayImages(np.zeros((40, 2, 2), np.uint8))
    rare, common = Labels.of(["rare", "rare"] + ["common"] * 38), Labels.of(["x"] * 20 + ["y"] * 20)
    for columns in ({"species": rare}, {"species": rare, "label": common}):
        divided, seed = divide(RawDataset("root", {"all": Samples(images, columns)}), "species", 0)
        assert seed == 0
        held = divided["validation"].column("species")
        assert held.counts() == {"common": 4, "rare": 1}
    kept, held = hold_out(Samples(images, {"species": rare, "label": common}), 4, 0, "label")
    assert held.column("label").counts() == {"x": 2, "y": 2}
    assert len(kept) == 36


def test_a_group_stays_with_its_samples(tmp_path: Path) -> None:
    """From a list, in whatever form, to a training split and into a pack."""
    rows = [(f"{number}.png", "ab"[number % 2], f"patient {number // 4}") for number in range(40)]
    path = put_rows(tmp_path, rows, "path,label,Group")
    source, group_of = open_set(str(path)), {file: group for file, _, group in rows}
    for split in (source.train, source.validation):
        assert split.column("group").take(np.arange(len(split))) == [group_of[name] for name in split.inputs.names()]
    lines = [
        json.dumps({"path": file, "label": label, "group": number // 4}) for number, (file, label, _) in enumerate(rows)
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    (tmp_path / "labels.tsv").write_text("\n".join(["path\tgroup", *(f"{file}\t{group}" for file, _, group in rows)]))
    assert read(str(tmp_path / "labels.jsonl")).splits["all"].column("group").values[-1] == "9"
    assert read(str(tmp_path / "labels.tsv")).splits["all"].column("group").values == tuple(group_of.values())


def test_fingerprint_and_reopening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "photos"
    make_photographs(root, ("a", "b"), 10, 0)
    monkeypatch.chdir(tmp_path)
    source = open_set("photos", seed=2)
    monkeypatch.chdir("/")
    assert open_set(source.root, seed=2).fingerprint == source.fingerprint
    moved = root.rename(tmp_path / "elsewhere")
    assert open_set(str(moved), seed=2).fingerprint == source.fingerprint
    seen = {source.fingerprint}
    first = sorted((moved / "a").iterdir())[0]
    first.write_bytes(first.read_bytes() + b"\0")
    seen.add(open_set(str(moved), seed=2).fingerprint)
    first.rename(moved / "b" / first.name)
    seen.add(open_set(str(moved), seed=2).fingerprint)
    assert len(seen) == 3


# Manifests


def put_rows(root: Path, rows: list[tuple[str, ...]], columns: str = "path,label") -> Path:
    put(root, *(row[0] for row in rows if row[0]))
    path = root / "labels.csv"
    path.write_text("\n".join([columns, *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def test_manifests(tmp_path: Path) -> None:
    rows = [(f"images/{number}.png", "cat" if number % 2 else "dog") for number in range(40)]
    path = put_rows(tmp_path, rows)
    source = open_set(str(path))
    assert names_of(source) == ("cat", "dog")
    assert [len(source.train), len(source.validation), source.split_seed] == [36, 4, 0]
    expected = dict(rows)
    for split in (source.train, source.validation):
        for index, label in enumerate(labels_of(split)):
            assert names_of(source)[label] == expected[split.inputs.name(index)]
    lines = [json.dumps({"path": file, "label": label, "note": 1}) for file, label in rows]
    other = tmp_path / "labels.jsonl"
    other.write_text("\n".join(lines) + "\n\n")
    same = open_set(str(other))
    assert same.fingerprint == source.fingerprint
    assert len(open_split(str(other), names_of(source)).samples) == 40
    assert open_set(source.root).fingerprint == source.fingerprint


def test_manifest_with_splits(tmp_path: Path) -> None:
    rows = [(f"{number}.png", "ab"[number % 2], ("train", "valid", "test")[number // 4]) for number in range(12)]
    source = open_set(str(put_rows(tmp_path, [*rows, ("0.png", "a", "test")], "path, label, split")))
    assert [len(each) for each in (source.train, source.validation, source.test)] == [4, 4, 5]
    assert list(map(figures, source.notes)) == [["1"], ["1"]], "one is listed twice, and in two splits"


@pytest.mark.parametrize("sign", ["\u2028", "\x0c", "\x85"])
def test_a_row_of_a_manifest_ends_with_its_line_alone(sign: str, tmp_path: Path) -> None:
    """Unicode has more signs that end a line, which may stand in a name."""
    path = put_rows(tmp_path, [("a.png", f"a{sign}b"), ("b.png", "c")])
    assert read_manifest(str(path)).splits["all"].column("label").counts() == {f"a{sign}b": 1, "c": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("weather,label\nfine,x\n", "path.*weather, label"),
        ("", "labels.csv"),
        ("path,label\n", "labels.csv"),
        ("path,label\na.png,x\nb.png,\n", "line 3: .*label"),
        ("path,label\na.png\n", "line 2: .*label"),
        ("path,label\n,x\n", "line 2: .*path"),
        ("path,label,split\na.png,x,eval\n", "line 2: .*eval"),
        ("path,label\na.png,x\n" + "".join(f"no{n}.png,x\n" for n in range(7)), r"7 of 8 .*no4\.png"),
        ('path,label\n"a.png,x\n', "line 2"),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, reason: str) -> None:
    put(tmp_path, "a.png", "b.png")
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=reason):
        open_set(str(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1:"),
        ("[1]", "line 1:"),
        ("1" * 10_000, "line 1:"),
        ("[" * 100_000, "line 1:"),
        ('{"path": "a.png"}', "labels.jsonl"),
        ('{"path": "a.png", "label": 1.5}', "label.*1.5"),
        ('{"path": "a.png", "label": null}', "line 1: .*label"),
        ('{"path": "a.png", "label": "x"}\n{"path": "a.png", "label": "x", "split": "val"}', "split"),
    ],
)
def test_bad_json_lines(tmp_path: Path, line: str, reason: str) -> None:
    put(tmp_path, "a.png")
    path = tmp_path / "labels.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=reason):
        open_set(str(path))


def test_numbers_are_labels(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "b.png", "c.png", "d.png")
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(json.dumps({"path": f"{name}.png", "label": "ab".find(name) % 2}) for name in "abcd"))
    assert names_of(open_set(str(path))) == ("0", "1")


# Images


def test_images_keep_their_names(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (4, 3, 2, 3), dtype=np.uint8)
    images = ArrayImages(values, "set").select([2, 0])
    assert [images.name(index) for index in range(2)] == ["set/2", "set/0"]
    np.testing.assert_array_equal(np.asarray(images.open(0)), values[2])
    grey = ArrayImages(values[..., :1])
    np.testing.assert_array_equal(np.asarray(grey.open(1)), values[1, :, :, 0])
    assert grey.digest() != images.digest()
    put(tmp_path, "x/a.png", "x/b.png")
    files = FileImages([tmp_path / "x/a.png", tmp_path / "x/b.png"], tmp_path).select([1])
    assert files.name(0) == "x/b.png"
    (tmp_path / "x/b.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.png"):
        files.open(0)


def test_the_list_of_what_can_be_opened_loads_nothing_heavy() -> None:
    code = "import sys, vitrail.data.sources; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, check=False)
    assert done.returncode == 0
