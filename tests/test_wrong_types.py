"""docs/python.md: every error of a caller is a ValueError of two lines; so are arguments of wrong types.

The calls are made without the check of tests, since beartype looks at every argument first.
"""

import os
import pathlib
import shutil
import subprocess
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from tests.errors import must_raise
from tests.wrong_types import HELD, call_all, calls, is_asked
from vitrail.arguments import typed
from vitrail.errors import DataError, UsageError, remove


def test_every_public_function_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = calls().keys()
    assert {name for name in vitrail.__all__ if is_asked(getattr(vitrail, name))} <= named
    for package, held in HELD.items():
        public = attrgetter(package)(vitrail)
        asked = {name for name in public.__all__ if is_asked(getattr(public, name))}
        assert {name for name in asked if name not in named and f"{package}.{name}" not in named} == held, package


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every_nth", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_wrong_type_is_an_error_of_two_lines(every_nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=()):
        count, faults = call_all(every_nth)
    torch.set_num_threads(threads)
    assert faults == []
    assert count > 2000 / every_nth


def test_the_argument_is_named_and_what_works_is_let_pass() -> None:
    @typed
    def measured(image: str | Path, *, sizes: tuple[int, int] = (1, 1), name: str = "") -> int:
        return len(str(image)) * sizes[0] + len(name)

    assert measured("ab", sizes=[2, 2]) == 4  # pyrefly: ignore[bad-argument-type]
    for arguments, named in (({"image": "a", "sizes": 3}, "sizes"), ({"image": "a", "name": 5}, "name"), ({}, "image")):
        with must_raise(UsageError, named):
            measured(**arguments)
    with pytest.raises(IndexError):  # of right types: the fault lies elsewhere
        typed(lambda values: values[7])([])


def test_a_name_that_is_not_known_leads_to_the_one_that_is_meant() -> None:
    by_name: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("load", {"devise": "cpu"}, {"device": "cpu"}),
        ("train", {"epoch": 3, "lr": 0.1}, {"options": vitrail.TrainOptions(epochs=3, lr=0.1)}),
        ("train", {"dropout": 0.1}, {}),
        ("distill", {"student": "Ti/4"}, {"options": vitrail.DistillOptions(size="Ti/4")}),
        ("TrainOptions", {"dropout": 0.1}, {}),
        ("TrainOptions", {"learning_rate": 0.1}, {"lr": 0.1}),
        ("TrainOptions", {"pretrained": True}, {"init": "auto"}),
        ("embed", {"batch": 3}, {}),
        ("explain.report", {"label": "3"}, {"target": "3"}),
        ("explain.report", {"versus": 3}, {"contrast": 3}),
    )
    for name, given, wanted in by_name:
        function, word = attrgetter(name)(vitrail), next(iter(given))
        with must_raise(UsageError, word) as caught:
            function(*["digits"] * (function is not vitrail.TrainOptions), **given)
        assert caught.value.hint.flags == wanted
        assert (word in caught.value.hint.drop) is not bool(wanted)


@pytest.mark.usefixtures("as_a_user")
def test_the_text_of_a_path_is_one() -> None:
    assert vitrail.TrainOptions(config="own.yaml").config == Path("own.yaml")  # pyrefly: ignore[bad-argument-type]


@pytest.mark.usefixtures("as_a_user")
def test_what_to_try_in_python_names_arguments_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda model: vitrail.explain.report(model, "images", nearest="maybe"),
        lambda model: vitrail.evaluate(model, "nosuch"),
        lambda model: vitrail.load("nosuch.safetensors"),
    ):
        with must_raise(ValueError, "maybe|nosuch") as caught:
            call(calls()["Model.to"][0].__self__)
        compile(str(caught.value.hint), "what to try", "eval")


@pytest.mark.usefixtures("as_a_user")
def test_what_shows_or_removes_a_file_is_python_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line a command: each is done, and tells or does the same."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "in it/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png")
    Path("empty.csv").write_text("path,label\na.png,x\nb.png,\n")
    Path("gone.csv").write_text("path,label\na.png,x\nc.png,y\n")
    Path("none.csv").write_text("what,else\n1,2\n3,4\n")
    names = {"pathlib": pathlib, "os": os, "shutil": shutil}
    for data, wanted in (("empty", "b.png,"), ("gone", "c.png"), ("none", "what,else")):
        with must_raise(DataError) as caught:
            vitrail.check_data(f"{data}.csv")
        python, typed = str(caught.value.hint), caught.value.hint.text
        assert wanted in str(eval(python, names)), python
        assert wanted in subprocess.run(typed, shell=True, capture_output=True, text=True, check=True).stdout, typed
    for place, hint in ((Path("none.csv"), remove("none.csv")), (Path("in it"), remove("in it", folder=True))):
        shutil.copytree(tmp_path, tmp_path.with_name("again"), dirs_exist_ok=True)
        eval(str(hint), names)
        subprocess.run(hint.text, shell=True, check=True, cwd=tmp_path.with_name("again"))
        assert not place.exists()
        assert not (tmp_path.with_name("again") / place).exists()


def test_a_generator_of_images_is_read() -> None:
    model = vitrail.Model(
        vitrail.ViT(vitrail.ViTConfig(width=16, depth=1, heads=2, mlp_dim=32, image_size=16, patch_size=8, classes=2)),
        vitrail.Preprocessing((16, 16)),
        vitrail.Classes(("a", "b")),
    )
    images = [Image.new("RGB", (16, 16), (value, 0, 0)) for value in (0, 200)]
    wanted = model.predict(images)
    for given in ((each for each in images), tuple(images), iter(images)):
        assert model.predict(given) == wanted
    assert model.tensor(iter(images)).shape == (2, 3, 16, 16)
