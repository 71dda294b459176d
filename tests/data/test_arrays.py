"""Arrays of numpy: every usual name and shape gives the same images and labels, and what is none is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vitrail
from tests.cli.command import DATA, call, must_refuse
from tests.own_objects import SMALL
from vitrail.data.columns import ALL, LABEL, LABELS, NUMBER, RawDataset
from vitrail.data.dataset import divide, pixels_of
from vitrail.data.layout import Layout
from vitrail.data.multiple import LabelSets
from vitrail.data.sources import format_of, read
from vitrail.errors import DataError, VitrailError

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (24, 9, 8), dtype=np.uint8)
COLOUR = RANDOM.integers(0, 256, (24, 9, 8, 3), dtype=np.uint8)
NUMBERS = np.arange(24) % 12  # two digits, so that an order by words would differ


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def words_of(raw: RawDataset, split: str) -> list[str]:
    samples = raw.splits[split]
    return [samples.column(LABEL).word(row) for row in range(len(samples))]


def test_the_keys_of_medmnist(tmp_path: Path) -> None:
    """Labels of one column, three splits, names that hold wherever the file lies, classes in the order of numbers."""
    parts = {"train": slice(0, 14), "val": slice(14, 18), "test": slice(18, 24)}
    arrays = {f"{name}_images": COLOUR[rows] for name, rows in parts.items()}
    arrays |= {f"{name}_labels": NUMBERS[rows, None].astype(np.uint8) for name, rows in parts.items()}
    raw = read(saved(tmp_path / "bloodmnist.npz", **arrays))
    assert {name: len(samples) for name, samples in raw.splits.items()} == {"train": 14, "validation": 4, "test": 6}
    assert raw.classes == tuple(map(str, range(12)))
    assert words_of(raw, "test") == [str(number) for number in NUMBERS[18:]]
    assert np.array_equal(pixels_of(raw.splits["validation"]), COLOUR[14:18])
    assert raw.splits["test"].name(2) == "bloodmnist/test/2"
    (tmp_path / "elsewhere").mkdir()
    moved = read(saved(tmp_path / "elsewhere" / "bloodmnist.npz", **arrays))
    assert moved.digest() == raw.digest()


@pytest.mark.parametrize(("image", "label"), [("X", "y"), ("images", "labels"), ("x", "target"), ("arr_0", "arr_1")])
def test_one_piece(tmp_path: Path, image: str, label: str) -> None:
    """Whatever the arrays are called, and beside others that are not one value an image; also as files in a folder."""
    arrays: dict[str, Any] = {image: GREY, label: NUMBERS.astype(np.float32), "mean": np.zeros(3)}
    raw = read(saved(tmp_path / "one.npz", **arrays))
    assert raw.columns() == (LABEL, NUMBER), "they may be either"
    assert words_of(raw, ALL) == list(map(str, NUMBERS))
    assert {*divide(raw, LABEL, 0)[0]} == {"train", "validation"}
    if image in ("X", "images"):
        folder = tmp_path / "one"
        folder.mkdir()
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        found = read(str(folder))
        assert words_of(found, ALL) == words_of(raw, ALL)
        assert found.digest() == raw.digest()


def test_splits_in_the_names_or_in_an_array(tmp_path: Path) -> None:
    named = read(
        saved(tmp_path / "keras.npz", x_train=GREY[:20], y_train=NUMBERS[:20], x_test=GREY[20:], y_test=NUMBERS[20:])
    )
    column = read(saved(tmp_path / "one.npz", X=GREY, y=NUMBERS, split=np.array(["test"] * 4 + ["train"] * 20)))
    assert {name: len(samples) for name, samples in named.splits.items()} == {"train": 20, "test": 4}
    assert [column.splits["test"].name(row) for row in range(4)] == [f"one/{row}" for row in range(4)]
    assert words_of(column, "train") == list(map(str, NUMBERS[4:]))
    assert np.array_equal(pixels_of(column.splits["train"]), GREY[4:])


def test_groups_and_columns_that_a_person_names(tmp_path: Path) -> None:
    """Beside two arrays that could be the label, and a mask as large as the images."""
    arrays: dict[str, Any] = {"photo": COLOUR, "mask": GREY, "fine": NUMBERS, "coarse": NUMBERS % 2}
    arrays["patient"] = NUMBERS // 3
    data = saved(tmp_path / "two.npz", **arrays)
    raw = read(data, layout=Layout(path_column="photo", label_column="coarse"))
    assert words_of(raw, ALL) == [str(number % 2) for number in NUMBERS]
    splits = divide(raw, LABEL, 0)[0]
    assert not {*splits["train"].units()} & {*splits["validation"].units()}
    for layout in (Layout(label_column="fine"), Layout(path_column="photo"), Layout(path_column="fine")):
        with pytest.raises(VitrailError):
            read(data, layout=layout)


def test_several_labels_an_image(tmp_path: Path) -> None:
    """0 and 1 for each; where each row has a single 1 in all splits, it is the class."""
    several = np.zeros((24, 11), np.uint8)
    several[np.arange(24), NUMBERS % 11] = 1
    single = several.copy()
    several[1, 10] = 1
    parts = {"train_images": GREY[:20], "test_images": GREY[20:]}
    raw = read(saved(tmp_path / "a.npz", **parts, train_labels=several[:20], test_labels=several[20:]))
    assert raw.columns() == (LABELS,)
    found = raw.splits["train"].column(LABELS)
    assert isinstance(found, LabelSets)
    assert (found.word(0), found.word(1)) == ("0", "1, 10")
    assert raw.splits["test"].columns.keys() == {LABELS}  # though each of these has one label
    raw = read(saved(tmp_path / "b.npz", **parts, train_labels=single[:20], test_labels=single[20:]))
    assert words_of(raw, "test") == [str(number % 11) for number in NUMBERS[20:]]
    refused = call("train", tmp_path / "a.npz", "--task", "classify", "--out", tmp_path / "run")
    must_refuse(refused, DATA, "a.npz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "wanted", "notes"),
    [
        (GREY, GREY, 0),
        (GREY[..., None], GREY[..., None], 0),
        (COLOUR, COLOUR, 0),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR, 1),
        (GREY[:, None], GREY[..., None], 1),
        (COLOUR / 255, COLOUR, 1),
        (np.full(GREY.shape, 254.6 / 255), np.full(GREY.shape, 255, np.uint8), 1),
        ((COLOUR / 255).astype(np.float16), COLOUR, 1),
        ((COLOUR.transpose(0, 3, 1, 2) / 255).astype(np.float32), COLOUR, 2),
    ],
)
def test_shapes_and_types(tmp_path: Path, given: NDArray[Any], wanted: NDArray[np.uint8], notes: int) -> None:
    """Read as the same values, and known by the same content; what was changed is said."""
    np.save(tmp_path / "some.npy", given)
    raw = read(str(tmp_path / "some.npy"))
    assert np.array_equal(pixels_of(raw.splits[ALL]), wanted)
    assert len(raw.notes) == notes
    content = raw.splits[ALL].images.content_hash(3)
    assert content == raw.splits[ALL].images.read(3)[1]


def test_images_without_labels(tmp_path: Path) -> None:
    """Alone they are images; beside labelled ones they are left out, and named."""
    alone = read(saved(tmp_path / "x.npz", x_test=GREY))
    assert (alone.columns(), [*alone.splits]) == ((), ["test"])
    both = read(saved(tmp_path / "y.npz", x_train=GREY, y_train=NUMBERS, x_test=GREY[:4]))
    assert [*both.splits] == ["train"]
    assert any("test" in note for note in both.notes)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"X": GREY.reshape(24, -1), "y": NUMBERS},
        {"images": GREY.astype(np.uint16)},
        {"images": GREY.astype(np.float32)},
        {"images": GREY / 127.5 - 1},
        {"images": np.where(GREY[0, 0, 0] == GREY, np.nan, 0.5)},
        {"images": COLOUR[0]},
        {"images": GREY[:0]},
        {"images": np.zeros((4, 8, 8, 4), np.uint8)},
        {"images": GREY, "labels": NUMBERS[1:]},
        {"images": GREY, "labels": np.stack([NUMBERS, NUMBERS], axis=1)},
        {"images": GREY, "labels": np.where(NUMBERS > 5, np.nan, NUMBERS + 0.5)},
        {"images": GREY, "labels": NUMBERS.astype(object)},
        {"train_images": GREY, "train_labels": NUMBERS, "test_images": GREY, "test_labels": np.eye(24)},
        {"images": np.full((2, 3, 4), "word")},
    ],
)
def test_what_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    """In two lines that name the file; nothing that was pickled is opened."""
    data = saved(tmp_path / "bad.npz", **arrays)
    must_refuse(call("train", data, "--out", tmp_path / "run"), DATA, "bad.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["bad.npz"]


def test_damage(tmp_path: Path) -> None:
    file = tmp_path / "some.npz"
    saved(file, images=GREY, labels=NUMBERS)
    content = file.read_bytes()
    for damaged in (b"", content[:200], content[:-40], b"PK" + bytes(100), content[:100] + bytes(600) + content[700:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"some\.npz"):
            read(str(file))
    row = format_of(str(file))
    assert row is not None
    assert row.name == "arrays"


@pytest.mark.usefixtures("as_a_user")
def test_train_and_ask(tmp_path: Path) -> None:
    """From one file, by the command line: trained, evaluated, predicted; a copy elsewhere is known."""
    bright = np.arange(120) % 2
    pixels = RANDOM.integers(0, 60, (120, 12, 12), dtype=np.uint8) + 180 * bright.astype(np.uint8)[:, None, None]
    arrays = {"train_images": pixels[:80], "val_images": pixels[80:100], "test_images": pixels[100:]}
    arrays |= {"train_labels": bright[:80, None], "val_labels": bright[80:100, None], "test_labels": bright[100:, None]}
    data, run = saved(tmp_path / "light.npz", **arrays), tmp_path / "run"
    (config := tmp_path / "small.yaml").write_text(SMALL)
    words = ("--config", config, "--epochs", 8, "--batch-size", 8, "--lr", 5e-3, "--image-size", 12, "--threads", 1)
    trained = call("train", data, "--out", run, *words)
    assert trained.code == 0, trained.err
    assert vitrail.evaluate(run).value > 0.9
    np.save(tmp_path / "copy.npy", pixels[:60])
    predicted = call("predict", run, tmp_path / "copy.npy", "--out", tmp_path / "found.csv")
    assert predicted.code == 0, predicted.err
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 61
    copies = saved(tmp_path / "copies.npz", X=pixels[:60] / 255, y=bright[:60])
    evaluated = call("evaluate", run, copies)
    assert evaluated.code == 0
    assert "60" in evaluated.out + evaluated.err
