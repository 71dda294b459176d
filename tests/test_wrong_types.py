"""docs/python.md: every error of a caller is a ValueError of two lines; so are arguments of wrong types.

The calls are made in a process of their own, since under test beartype looks at every argument first.
"""

import os
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.cli.command import environment
from tests.errors import must_raise
from tests.wrong_types import INNER, calls
from vitrail.arguments import typed
from vitrail.errors import UsageError

# options, where nothing is decided; what is called with objects that only other calls make
OTHERS = {"TrainOptions", "DistillOptions", "train_loop"}


def test_every_public_function_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = calls().keys()
    assert {name for name in vitrail.__all__ if not hasattr(getattr(vitrail, name), "__path__")} - named == OTHERS
    for package, inner in INNER.items():
        public = {name for name in attrgetter(package)(vitrail).__all__ if name not in ("inside", "scores")}
        left = {name for name in public if f"{package}.{name}" not in named and not (package == "nn" and name in named)}
        assert left == inner, package


def test_a_wrong_type_is_an_error_of_two_lines() -> None:
    root = Path(__file__).parent.parent
    variables = environment() | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, "-W", "ignore", "-m", "tests.wrong_types"]
    done = subprocess.run(command, env=variables, cwd=root, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    *faults, count = done.stdout.splitlines()
    assert faults == []
    assert int(count) > 2000


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
