"""A model of planted images in a folder, and two images for it."""

from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.cli.planted import planted_model
from tests.shared_runs import once
from vitrail.data.sets.planted import planted_digits


@pytest.fixture(scope="session")
def planted() -> Path:
    """An untrained model that carries a background, in a folder."""
    return once("planted-model", lambda folder: vitrail.save(planted_model(background=True), folder / "planted")) / (
        "planted"
    )


@pytest.fixture(scope="session")
def images() -> Path:
    """Two images of the set `planted`; the set itself takes seconds to make."""

    def make(folder: Path) -> None:
        for number, pixels in enumerate(planted_digits("test", 2).pixels):
            Image.fromarray(pixels).save(folder / f"{number}.png")

    return once("planted-images", make)
