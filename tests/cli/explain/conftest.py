"""A model of planted pictures in a folder, and two pictures for it."""

from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.cli.planted import planted_model
from vitrail.data.readers.planted import planted_digits


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """An untrained model that carries references, in a folder."""
    return vitrail.save(planted_model(references=True), tmp_path / "planted")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures of the set `planted`; the set itself takes seconds to make."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(planted_digits("test", 2).pixels):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder
