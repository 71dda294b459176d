"""Python objects as data: pairs, Datasets of torch and of the library `datasets`, and columns, for every verb."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

import vitrail
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.shared_runs import once
from tests.training.tiny import options
from vitrail.check.check import check_data
from vitrail.data.columns import ALL, LABELS, RawDataset
from vitrail.data.layout import Layout
from vitrail.data.multiple import LabelSets
from vitrail.data.sources import read, read_images
from vitrail.errors import DataError, UsageError, VitrailError

CLASSES = ("ant", "bee", "cow")


def photographs() -> list[Path]:
    """18 photographs, six of each class."""
    folder = once("photographs-in-memory", lambda made: make_photographs(made / "photos", CLASSES, 6, 0))
    return sorted((folder / "photos").rglob("*.*"))


def pairs(form: Callable[[Path], Any] = str) -> list[tuple[Any, str]]:
    return [(form(file), file.parent.name) for file in photographs()]


def decoded(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.copy()


class Photos(Dataset[tuple[Any, int]]):
    """As of torchvision."""

    classes = CLASSES

    def __init__(self, form: Callable[[Path], Any] = decoded) -> None:
        self.form, self.asked = form, 0

    def __len__(self) -> int:
        return len(photographs())

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.asked += 1
        file = photographs()[index]
        return self.form(file), CLASSES.index(file.parent.name)


class WithTargets(Photos):
    @property
    def targets(self) -> list[int]:
        return [CLASSES.index(file.parent.name) for file in photographs()]


class Feature:
    """Of a column: `Image`, or `ClassLabel` with the names of classes."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.names = names


class ClassLabel(Feature):
    pass


IMAGE = type("Image", (), {})()  # known by the name of its type


class Stored:
    """A value of arrow."""

    def __init__(self, value: Any) -> None:
        self.as_py = lambda: value


class HubDataset:
    """Has what `datasets.Dataset` has: `features`, `column_names`, and files in the format arrow."""

    def __init__(self, label: tuple[Any, ...] = (), as_arrow: bool = False, rows: Sequence[int] = range(18)) -> None:
        self.rows = rows
        self.labels = label or tuple(CLASSES.index(photographs()[row].parent.name) for row in rows)
        self.features, self.as_arrow = {"image": IMAGE, "label": ClassLabel(CLASSES)}, as_arrow
        self.column_names = [*self.features]

    def with_format(self, form: str) -> "HubDataset":
        assert form == "arrow"
        return HubDataset(self.labels, as_arrow=True, rows=self.rows)

    def select(self, rows: Sequence[int]) -> "HubDataset":
        return HubDataset(tuple(self.labels[row] for row in rows), rows=[self.rows[row] for row in rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            assert key != "image", "no image is decoded to read labels"
            return list(self.labels)
        assert self.as_arrow
        cell = {"bytes": photographs()[self.rows[key]].read_bytes(), "path": "photo.jpg"}
        return {"image": [Stored(cell)], "label": [Stored(self.labels[key])]}


class Frame:
    """A table as of pandas: cells by column, with numbers of its own for rows."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.cells, self.columns, self.ndim = columns, list(columns), 2

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def __getitem__(self, key: str) -> Any:
        return iter_only(self.cells[key])


class iter_only(tuple[Any, ...]):
    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)


def columns(form: Callable[[Path], Any] = str) -> dict[str, Any]:
    images, labels = zip(*pairs(form), strict=True)
    return {"image": list(images), "species": list(labels), "patient": [number // 2 for number in range(18)]}


def rows(cells: dict[str, Any]) -> list[dict[str, Any]]:
    """One mapping an image, the last without a patient."""
    found = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    del found[-1]["patient"]
    return found


def as_array(file: Path) -> Any:
    return np.asarray(decoded(file).convert("RGB"))


def as_tensor(file: Path) -> Any:
    return torch.from_numpy(as_array(file).copy()).movedim(-1, 0) / 255


FILES: dict[str, Callable[[], Any]] = {  # by their files, of which the hash is that of a folder
    "pairs of paths": pairs,
    "pairs of Path": lambda: pairs(Path),
    "hub": HubDataset,
    "columns of paths": columns,
    "columns of cells": lambda: columns(lambda file: {"bytes": file.read_bytes(), "path": None}),
    "columns of bytes": lambda: columns(Path.read_bytes),
    "rows": lambda: rows(columns()),
    "rows of cells": lambda: rows(columns(lambda file: {"bytes": file.read_bytes(), "path": None})),
    "a frame": lambda: Frame(columns()),
}
PIXELS: dict[str, Callable[[], Any]] = {
    "pairs of images": lambda: pairs(decoded),
    "pairs of arrays": lambda: pairs(as_array),
    "pairs of tensors": lambda: pairs(as_tensor),
    "pairs of floats": lambda: pairs(lambda file: as_array(file) / 255),
    "torch": Photos,
    "torch with targets": WithTargets,
    "torch of tensors": lambda: Photos(as_tensor),
    "columns of arrays": lambda: columns(as_array),
}


def samples_of(raw: RawDataset, split: str = ALL) -> list[tuple[bytes, str]]:
    samples = raw.splits[split]
    labels = samples.labels
    assert labels is not None
    return [(samples.images.content_hash(row), label) for row, label in enumerate(labels)]


@pytest.mark.parametrize("kind", [*FILES, *PIXELS])
def test_the_same_photographs_in_every_object(kind: str) -> None:
    """Labels, pixels, and where there are files their hashes, as of a list of paths; read twice they are one set."""
    make = (FILES | PIXELS)[kind]
    wanted, found = read(pairs()), read(make())
    samples, same = found.splits[ALL], wanted.splits[ALL]
    assert samples.labels == same.labels
    for row in range(len(samples)):
        image, known = samples.images.read(row)
        assert known == samples.images.content_hash(row)
        assert np.array_equal(np.asarray(image.convert("RGB")), np.asarray(same.images.open(row).convert("RGB")))
        if kind in FILES:
            assert known == same.images.content_hash(row)
    assert found.name == read(make()).name
    names = samples.images.names()
    assert len({*names}) == 18
    assert not any(name.startswith("/") for name in names)
    picked = samples.images.select(np.array([5, 2]))
    assert picked.names() == [names[5], names[2]]
    assert picked.content_hash(1) == samples.images.content_hash(2)


def test_labels_without_images() -> None:
    """Targets are read without a look at the images, of a part of a set as well; other labels by one pass."""
    known, plain = WithTargets(), Photos()
    part = read({"train": Subset(known, [0, 7, 17]), "val": Subset(known, [1, 13])})
    assert {name: samples.labels for name, samples in part.splits.items()} == {
        "train": ("ant", "bee", "cow"),
        "validation": ("ant", "cow"),
    }
    assert known.asked == 2 * (3 + 2) + 5  # each is read twice, and once for the name of the data
    assert samples_of(read(plain)) == samples_of(read(WithTargets()))
    assert part.classes == CLASSES


def test_columns_and_groups_that_a_person_names() -> None:
    table = columns() | {"age": list(range(18))}
    named = read(table, layout=Layout(label_column="species"))
    assert named.splits[ALL].labels == tuple(file.parent.name for file in photographs())
    assert len({*named.splits[ALL].units()}) == 9
    with pytest.raises(VitrailError):
        read(table, layout=Layout(label_column="kind"))


def test_several_labels_and_numbers() -> None:
    """Lists of names, arrays of 0 and 1; numbers in their own order; splits in a column, and by key."""
    files = [str(file) for file in photographs()]
    sets = read([(file, ["b", "a"] if row else []) for row, file in enumerate(files)])
    column = sets.splits[ALL].column(LABELS)
    assert isinstance(column, LabelSets)
    assert (column.word(0), column.word(1)) == ("", "a, b")
    flags = read([(file, torch.tensor([1, 0, row % 2])) for row, file in enumerate(files)])
    assert [flags.splits[ALL].column(LABELS).word(row) for row in (0, 1)] == ["0", "0, 2"]
    numbers = read([(file, np.int64(row % 12)) for row, file in enumerate(files)])
    assert numbers.classes == tuple(map(str, range(12)))
    table = {"path": files, "label": ["a", "b"] * 9, "split": ["train"] * 12 + ["test"] * 6}
    assert {name: len(samples) for name, samples in read(table).splits.items()} == {"train": 12, "test": 6}
    alone = read({"train": pairs(), "test": [(file, None) for file in files]})
    assert [*alone.splits] == ["train"]
    assert any("test" in note for note in alone.notes)
    assert read([(file, None) for file in files]).columns() == ()
    hidden = read({"train": HubDataset(), "test": HubDataset((-1,) * 18)})  # as hubs write what is not known
    assert [*hidden.splits] == ["train"]


def test_other_labels_are_other_data_and_floats_are_rounded() -> None:
    assert read(pairs()).name != read([(file, "ant") for file, _ in pairs()]).name
    image = read([(torch.full((3, 8, 8), 254.6 / 255), "ant")]).splits[ALL].images.open(0)
    assert image.getextrema() == ((255, 255),) * 3


class Turning(Photos):
    """With a random transform."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = super().__getitem__(index)
        return image.rotate(float(np.random.default_rng().uniform(0, 360))), label


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (dict, "dict"),
    "no images": (lambda: {"species": ["ant", "bee"]}, "species"),
    "files that are missing": (lambda: [("gone.jpg", "ant")], "gone.jpg"),
    "another image each time": (Turning, "Turning"),
    "two columns of images": (lambda: {"a": [b"1"], "b": [b"2"], "label": ["x"]}, "a, b"),
    "a number without a name": (lambda: HubDataset((7,) * 18), "HubDataset"),
    "labels that are missing": (lambda: [*pairs()[:3], (pairs()[4][0], None)], "list"),
    "other lengths": (lambda: {"image": [b"1", b"2"], "label": ["x"]}, "dict"),
    "columns that are none": (lambda: {"image": object(), "label": ["x"]}, "dict"),
    "no image at all": (lambda: [(object(), "ant")], "object"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    make, named = BAD[case]
    data = make()
    with must_raise(VitrailError, named=named):
        vitrail.train(data, tmp_path / "run", options("photos"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", [3, None, [1, 2], [], ["a.jpg"], object()])
def test_what_is_no_data(data: Any, tmp_path: Path) -> None:
    with must_raise(UsageError, named="data"):
        vitrail.train(data, tmp_path / "run", options("photos"))
    with pytest.raises(UsageError):
        vitrail.train(pairs(), tmp_path / "run", options("photos"), reader=lambda what, root: read(pairs()))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("make", [Photos, pairs, HubDataset])
def test_every_verb_takes_it(make: Callable[[], Any], tmp_path: Path) -> None:
    """Trained, evaluated, asked, embedded and explained; a run asks for its data again, and knows them from others."""
    data, run = make(), tmp_path / "run"
    vitrail.train(data, run, options("photos", epochs=1, workers=0))
    with must_raise(UsageError, named=type(data).__name__):
        vitrail.evaluate(run)
    result = vitrail.evaluate(run, data)
    assert result.split == "validation"
    other = vitrail.evaluate(run, pairs(as_array)[::2])
    assert other.split == "all"  # and not a part of the data of the run
    model = vitrail.load(run)
    answers = model.predict(data)
    assert [one.name for one in answers] == list(read_images(data).splits[ALL].images.names())
    assert len(vitrail.embed(model, data)) == 18
    assert sum(check_data(data).splits.values()) == 18
    first = {HubDataset: lambda: data.select([0, 1]), pairs: lambda: data[:2], Photos: lambda: Subset(data, [0, 1])}
    report = model.explain(first[make](), trust=False)
    assert [one.view.true_label for one in report] == ["ant", "ant"]
    with must_raise(UsageError, named="data"):
        vitrail.train(pairs()[3:], run, options("photos", epochs=2, workers=0, resume="auto"))
    more = vitrail.train(data, run, options("photos", epochs=2, workers=0, resume="auto"))
    assert more.folder == run
    with pytest.raises(DataError):
        vitrail.evaluate(run, [("gone.jpg", "ant")])
