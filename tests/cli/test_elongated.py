"""Images much longer than they are high: how they get the size of the network can be chosen, and a crop is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import USAGE, Cli, must_refuse
from vitrail.data.preprocessing import Preprocessing

TINY = "network: {image_size: 16, patch_size: 4, width: 16, depth: 1, heads: 2, mlp_dim: 32}\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes of noise of 60 x 16 pixels, told apart by the left 8 columns alone."""
    random = np.random.default_rng(0)
    for label, colour in (("a", (255, 0, 0)), ("b", (0, 0, 255))):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(90, 160, (16, 60, 3), dtype=np.uint8)
            pixels[:, :8] = colour
            Image.fromarray(pixels).save(tmp_path / "data" / label / f"{number:02d}.png")
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path / "data"


def trained(cli: Cli, data: Path, *more: str) -> tuple[Preprocessing, list[str], float]:
    """The preprocessing of a short run, its notes on the crop, and its validation accuracy."""
    out = data.parent / f"run{len(list(data.parent.iterdir()))}"
    words = ("--config", data.parent / "tiny.yaml", "--epochs", 48, "--threads", 1, "--precision", "fp32")
    answer = cli("train", data, "--out", out, *words, *more, "--json")
    assert answer.code == 0, answer.err
    notes = [note for note in json.loads((out / "data.json").read_text())["notes"] if "crop" in note]
    return vitrail.load(out).preprocessing, notes, json.loads(answer.out)["accuracy"]


def test_how_they_get_the_size_of_the_network(cli: Cli, data: Path) -> None:
    reads, notes, accuracy = trained(cli, data)
    assert (reads.resize, len(notes)) == ("crop", 1), "that the crop cuts away more than half is said"
    assert accuracy < 0.9
    for more, resize, size in (
        (("--resize", "squash"), "squash", (16, 16)),
        (("--resize", "pad", "--epochs", "1"), "pad", (16, 16)),
        (("--image-size", "16x60"), "crop", (16, 60)),
    ):
        reads, notes, accuracy = trained(cli, data, *more)
        assert (reads.resize, reads.size, notes) == (resize, size, [])
        assert accuracy == 1.0 or resize == "pad", more


def test_with_pretrained_weights(cli: Cli, data: Path) -> None:
    cli("train", data, "--out", data.parent / "first", "--config", data.parent / "tiny.yaml", "--epochs", 1)
    for more in (("--resize", "squash"), ()):
        out = data.parent / f"tuned{len(more)}"
        answer = cli("train", data, "--init", data.parent / "first", "--out", out, "--epochs", 1, *more)
        assert answer.code == 0, answer.err
        reads = vitrail.load(out).preprocessing
        assert (reads.resize, reads.crop_pct == 1) == (("squash", True) if more else ("crop", reads.crop_pct == 1))
    must_refuse(cli("train", "sort-digits", "--resize", "pad"), USAGE, "--resize pad")
