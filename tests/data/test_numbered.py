"""Everything that holds things by number refuses a number that there is not, and -1 is the last."""

import inspect
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.errors import must_raise
from vitrail.arguments import Numbered
from vitrail.data import ArrayImages, FileImages, Labels, Samples, Texts, Values, pack, read
from vitrail.data.columns import LABEL
from vitrail.data.images import Images
from vitrail.data.multiple import ClassColumns, LabelSets, Quantities
from vitrail.data.sets.digit_strings import StringImages, StringTexts
from vitrail.data.stores import ItemImages
from vitrail.errors import PlaceError, UsageError
from vitrail.features.file import FeatureSet
from vitrail.tasks import Classes, MultiLabels

N = 5
SEVERAL = {"indices", "ids", "rows"}
NAMES, WORDS = tuple("abcde"), tuple("vwxyz")


class OnlyWhatIsNeeded(Images):
    """Images of a person's own."""

    def __len__(self) -> int:
        return N

    def name(self, index: int) -> str:
        return NAMES[index]

    def open(self, index: int) -> Image.Image:
        return Image.new("L", (4, 4), index)

    def select(self, indices: Any) -> Any:
        return [NAMES[index] for index in indices]

    def digest(self) -> bytes:
        return b""


def known(folder: Path) -> list[Any]:
    """One of each kind, with `N` things."""
    pixels = np.arange(N * 16, dtype=np.uint8).reshape(N, 4, 4)
    files = [folder / "own" / f"{name}.png" for name in NAMES]
    files[0].parent.mkdir()
    with zipfile.ZipFile(folder / "own.zip", "w") as archive:
        for file, values in zip(files, pixels, strict=True):
            Image.fromarray(values).save(file)
            archive.write(file, file.name)
    pack(str(folder / "own"), folder / "packed")
    inside = [read(what).splits["all"].inputs for what in (folder / "own.zip", folder / "packed")]
    strings = StringImages(np.zeros((10, 28, 28), np.uint8), np.arange(10), seed=3, count=N)
    labels, found = Labels(np.arange(N), WORDS), FileImages(files)
    columns = [labels, Values(np.arange(N)), Texts(WORDS), LabelSets(np.eye(N, dtype=np.int8), WORDS)]
    columns += [Quantities(np.ones((N, 1)), ("q",)), ClassColumns(np.arange(N)[:, None], ("c",), (WORDS,))]
    features = FeatureSet(NAMES, ("all",) * N, WORDS, {"mean": np.ones((N, 2), np.float32)}, {})
    images = [ArrayImages(pixels), found, OnlyWhatIsNeeded(), ItemImages(pixels.__getitem__, "own", range(N)), *inside]
    return [*images, strings, *columns, StringTexts(strings), Samples(found, {LABEL: labels}), features]


def kinds(of: type) -> Iterator[type]:
    """All of the library that can be made."""
    for each in of.__subclasses__():
        yield from kinds(each)
        if not inspect.isabstract(each) and each.__module__.startswith("vitrail."):
            yield each


def plain(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, tuple):
        return [*map(plain, value)]
    if isinstance(value, Image.Image | np.ndarray):
        return np.asarray(value).tolist()
    return [value.name(row) for row in range(len(value))] if isinstance(value, Images | Samples) else str(value)


@pytest.mark.usefixtures("as_a_user")
def test_a_number_that_there_is_not_is_refused_by_every_method_that_takes_one(tmp_path: Path) -> None:
    held = known(tmp_path)
    assert {type(each) for each in held} >= {*kinds(Numbered)}
    count = 0
    for each in held:
        for name, _ in inspect.getmembers(type(each), inspect.isfunction):
            method = getattr(each, name)
            first, *others = [*inspect.signature(method).parameters.values()] or [None]
            if name.startswith("_") or first is None or first.name not in {"index", *SEVERAL}:
                continue
            count += 1
            several = first.name in SEVERAL
            rest = {one.name: {"name": "x", "epoch": 0}[one.name] for one in others if one.default is one.empty}
            for wrong in (N, 99, -N - 1):
                for given in ([0, wrong], np.array([0, wrong]), iter([wrong])) if several else (wrong, np.int64(wrong)):
                    with must_raise(PlaceError, str(wrong)) as caught:
                        method(given, **rest)
                    assert isinstance(caught.value, IndexError)
                    assert 0 <= caught.value.hint.flags[first.name] < N
            for none in ("0", None, 1.0, [1.5]):
                with must_raise(UsageError, first.name):
                    method(none, **rest)
            if isinstance(each, Images) and name == "content" and not each.encoded:
                continue  # images of pixels have none
            last = [
                method(given, **rest)
                for given in ((np.arange(N), np.array([0, 1, 2, 3, -1])) if several else (N - 1, -1))
            ]
            assert plain(last[0]) == plain(last[1]), (type(each), name)
    assert count > 60


@pytest.mark.usefixtures("as_a_user")
def test_outputs_heads_and_tokens_that_there_are_not_are_refused() -> None:
    labels = MultiLabels(("a", "b"), rates=(0.5, 0.25))
    config = vitrail.ViTConfig(width=16, depth=1, heads=2, mlp_dim=32, image_size=16, patch_size=8, classes=2)
    record = vitrail.run_with_record(vitrail.ViT(config).eval(), torch.zeros(1, 3, 16, 16))[1]
    for call, argument, most in (
        (Classes(("a", "b")).name, "index", 1),
        (labels.name, "index", 1),
        (labels.least, "number", 1),
        (lambda head: record.attention("blocks.0", [0, head]), "heads", 1),
        (lambda query: record.attention("blocks.0", queries=[query]), "queries", 4),
    ):
        for wrong in (most + 1, -most - 2):
            with must_raise(PlaceError, f"{most}.*{wrong}") as caught:
                call(wrong)
            assert caught.value.hint.flags == {argument: most}
        assert str(call(-1)) == str(call(most))


def test_images_that_are_new_in_every_epoch_cannot_be_chosen() -> None:
    strings = StringImages(np.zeros((10, 28, 28), np.uint8), np.arange(10), seed=3, count=N)
    assert len(strings.select(range(2))) == len(StringTexts(strings).select(np.arange(2))) == 2
    for chosen in ([1], [1, 0]):
        with must_raise(UsageError, str(chosen[0])):
            strings.select(chosen)
