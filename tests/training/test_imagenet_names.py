"""Data that calls ImageNet's classes as ImageNet does: by WordNet's ids, or by one of the synonyms of a name.

Half of it is about the real ViT-Ti and photographs, which lie in `../shared/data` or in $VITRAIL_DATA; without them it
is skipped.
"""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.data import ImageNetInfo
from torchvision.models import ViT_B_16_Weights

import vitrail
from tests.cli.command import DATA, call, must_refuse
from tests.errors import must_raise
from tests.real import class_of, real_data, real_photographs
from vitrail.data.columns import Labels
from vitrail.errors import DataError, UsageError
from vitrail.tasks import Classes
from vitrail.training.configuration.teacher import Teacher
from vitrail.weights.assume import check_names, read_names
from vitrail.weights.published import distinguish, imagenet_names, wordnet_ids

pytestmark = pytest.mark.usefixtures("as_a_user")
INFO = ImageNetInfo("imagenet-1k")
WNIDS = tuple(map(str, INFO.label_names()))
SYNONYMS = tuple(INFO.index_to_description(index) for index in range(1000))  # as the configurations of hubs have them
Name = Callable[[int], str]


# ---- which classes are ImageNet's, and what they are called


@pytest.mark.parametrize("sep", [",", ""])
def test_a_list_of_its_own_names_can_be_given(sep: str, tmp_path: Path) -> None:
    """As the web has it: crane and maillot stand in it twice, and are two classes each all the same."""
    names = [name.split(sep)[0] if sep else str(name) for name in SYNONYMS]
    assert {name for name in names if names.count(name) > 1} == ({"crane", "maillot"} if sep else {"crane"})
    file = tmp_path / "names.txt"
    file.write_text("\n".join(names), encoding="utf-8")
    for found in (read_names(file), check_names(names)):
        assert len({*found}) == 1000
        assert wordnet_ids(found) == WNIDS
        assert [found[index] for index in (134, 517)] == ["crane (bird)", "crane (machine)"]
        assert found[0] == names[0]
    names[3] = names[4] = "a name"
    assert len({*check_names(names)}) == 1000
    with must_raise(DataError, "twice"):
        file.write_text("twice\nonce\ntwice\n")
        read_names(file)


def test_the_list_is_timms() -> None:
    assert wordnet_ids(imagenet_names()) == WNIDS
    for names in (SYNONYMS, tuple(ViT_B_16_Weights.DEFAULT.meta["categories"])):
        assert wordnet_ids(names) == WNIDS
        assert len(set(distinguish(names))) == 1000
    assert SYNONYMS[134] == SYNONYMS[517], "two cranes"
    assert sum(one != other for one, other in zip(distinguish(SYNONYMS), SYNONYMS, strict=True)) == 2
    for other in (imagenet_names()[:999], imagenet_names()[::-1], tuple(map(str, range(1000)))):
        assert wordnet_ids(other) == ()


def test_every_name_means_its_own_class_or_none() -> None:
    classes = Classes(distinguish(SYNONYMS), WNIDS)
    number_of, owners = classes.number_of, dict[str, set[int]]()
    for index, text in enumerate(SYNONYMS):
        assert number_of[WNIDS[index]] == number_of[classes.names[index]] == index
        for word in map(str.strip, text.split(",")):
            owners.setdefault(word, set()).add(index)
    for word, many in owners.items():
        if word not in classes.names:  # the name of a class by itself is that class
            assert number_of.get(word) == (many.pop() if len(many) == 1 else None), word
    assert (
        number_of["partridge"]
        == SYNONYMS.index("partridge")
        != SYNONYMS.index("ruffed grouse, partridge, Bonasa umbellus")
    )
    found = classes.match(Labels.of(["n01440764", "Tinca tinca", "crane", "tench, Tinca tinca", "tenc"]))
    assert found.column.take(np.arange(3)).tolist() == [0, 0, 0]
    assert dict(found.unknown) == {"crane": 1, "tenc": 1}
    assert vitrail.tasks.TASKS["classify"].codec_from_dict(json.loads(json.dumps(classes.to_dict()))) == classes


def test_classes_of_a_persons_own_go_by_their_names_alone() -> None:
    classes = Classes(("cat, black", "dog"))
    assert classes.number_of == {"cat, black": 0, "dog": 1}
    with must_raise(UsageError):
        Classes(("cat", "dog"), ("n1",))


def test_a_teacher_of_them_is_asked_by_any_name() -> None:
    teacher = Teacher(lambda images: images.flatten(1)[:, :1000], vitrail.Preprocessing((20, 20)), imagenet_names())
    images = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    for names in (["n01443537", "n01440764"], ["goldfish", "tench"]):
        assert torch.equal(teacher.matched(names).module(images), teacher.module(images)[:, [1, 0]])


# ---- folders and lists of photographs


@pytest.fixture
def model() -> Path:
    return real_data() / "vit_ti16" / "model.safetensors"


@pytest.fixture
def photographs() -> list[Path]:
    return real_photographs(real_data())


def laid_out(files: Iterable[Path], root: Path, name_of: Name, split: str = "val") -> Path:
    """The photographs in class folders, as ImageNet's own are."""
    for file in files:
        folder = root / split / name_of(class_of(file))
        folder.mkdir(parents=True)
        (folder / file.name).symlink_to(file)
    return root


def right(model: vitrail.Model, files: list[Path]) -> int:
    tops = [model.classes.index(each.label) for each in model.predict(files)]
    return sum(top == class_of(file) for top, file in zip(tops, files, strict=True))


@pytest.mark.parametrize("name_of", [WNIDS.__getitem__, lambda index: imagenet_names()[index]], ids=["ids", "names"])
def test_photographs_in_folders(name_of: Name, model: Path, photographs: list[Path], tmp_path: Path) -> None:
    opened = vitrail.load(model)
    some = photographs[::12]
    found = vitrail.evaluate(opened, str(laid_out(some, tmp_path, name_of)))
    assert (found.count, found.value * found.count) == (len(some), right(opened, some))
    assert found.unknown == {}
    saved = vitrail.load(vitrail.save(opened, tmp_path / "saved"))
    assert saved.output == opened.output


def test_a_list_of_photographs(model: Path, photographs: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    rows = [(path, WNIDS[class_of(path)]) for path in photographs[:3]]
    with file.open("w") as handle:
        csv.writer(handle).writerows([("path", "label"), *rows, (photographs[3], "Bull_frog")])
    found = call("evaluate", model, file, "--json")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert told["images"] == 3
    assert any("bullfrog" in note and "Bull_frog" in note for note in told["notes"])
    assert call("evaluate", model, file, "--strict").code == DATA


def test_a_folder_that_is_neither_is_refused_with_the_nearest(
    model: Path, photographs: list[Path], tmp_path: Path
) -> None:
    root = laid_out(photographs[:1], tmp_path, lambda index: "tensch")
    must_refuse(call("evaluate", model, root), DATA, "tensch")
    with must_raise(DataError) as caught:
        vitrail.evaluate(vitrail.load(model), str(root))
    assert "'tench'" in str(caught.value.hint)


@pytest.mark.soak
def test_a_hundred_photographs(model: Path, photographs: list[Path], tmp_path: Path) -> None:
    opened = vitrail.load(model)
    found = vitrail.evaluate(opened, str(laid_out(photographs, tmp_path, WNIDS.__getitem__)))
    assert (found.count, found.value * found.count) == (100, right(opened, photographs))
    assert found.value >= 0.84
