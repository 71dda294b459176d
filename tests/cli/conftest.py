"""Two small runs that the tests of the command line use and never change."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import vitrail
from tests.cli.command import Answer, call
from tests.photographs import make_photographs


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A verb sets torch's threads for its process; here several verbs share one."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def vitrail_says(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in this process: `vitrail_says("models", "S/16")`."""
    return lambda *words: call(capsys, *words)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the digits, hardly trained."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    vitrail.train("digits", folder, vitrail.TrainOptions(epochs=2, threads=1))
    return folder


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders a, b, c in train/ and val/, and b, c, d in other/."""
    root = tmp_path_factory.mktemp("photographs")
    make_photographs(root / "abc" / "train", ("a", "b", "c"), per_class=12, seed=0)
    make_photographs(root / "abc" / "val", ("a", "b", "c"), per_class=4, seed=1)
    make_photographs(root / "bcd", ("b", "c", "d"), per_class=4, seed=2)
    return root


@pytest.fixture(scope="session")
def photo_run(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the photographs of a, b and c, trained until it tells them apart."""
    folder = tmp_path_factory.mktemp("runs") / "photos"
    options = vitrail.TrainOptions(epochs=16, image_size=32, batch_size=18, threads=1, config=_smaller(folder.parent))
    vitrail.train(str(photographs / "abc"), folder, options)
    return folder


@pytest.fixture
def photo(photographs: Path) -> Path:
    """One picture of class a."""
    return photographs / "abc" / "val" / "a" / "a_000.jpg"


@pytest.fixture
def model_copy(digits_run: Path, tmp_path: Path) -> Path:
    """The model folder alone, elsewhere, to be damaged."""
    return shutil.copytree(digits_run / "model", tmp_path / "model")


def _smaller(folder: Path) -> Path:
    """A configuration that trains in seconds."""
    path = folder / "smaller.yaml"
    path.write_text(
        "network: {patch_size: 8, width: 48, depth: 2, heads: 3, mlp_dim: 96, stochastic_depth: 0.0}\n"
        "optimization: {warmup_epochs: 1, average: 0.0, learning_rate: 0.003}\n"
        "augmentation: {trivial: false, crop_area: [0.7, 1.0], label_smoothing: 0.0}\n"
    )
    return path
