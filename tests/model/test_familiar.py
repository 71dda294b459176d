"""Images that are unlike anything in training are named, the others are answered as before."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from tests.cli.command import call
from tests.errors import must_raise
from vitrail.data.background import make_background
from vitrail.data.columns import Samples
from vitrail.data.images import ArrayImages
from vitrail.data.multiple import Quantities
from vitrail.errors import DataError
from vitrail.explain.sanity_check import scramble
from vitrail.model.familiar import LIMIT, UNLIKE, Noting, chosen_of, familiar_to, is_unlike
from vitrail.runs.evaluate import batches_of
from vitrail.tasks.regression import Regression, Standardized


def unit(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(values, dim=1)


def test_of_images_like_those_in_training_one_of_a_hundred_is_named_and_strangers_are() -> None:
    """Of 100 draws of 400 in training: the conformal p-value is at most 1 % of its own kind in 1 % of the time."""
    drawn = torch.Generator().manual_seed(0)
    middle, own, strange = torch.randn(1, 16, generator=drawn), list[float](), list[float]()
    for _ in range(100):
        some = middle + 0.3 * torch.randn(600, 16, generator=drawn)
        own.append(is_unlike(some[400:], unit(some[:400])).mean())
        strange.append(is_unlike(torch.randn(20, 16, generator=drawn), unit(some[:400])).mean())
    assert np.mean(own) == pytest.approx(LIMIT, abs=0.004)
    assert np.mean(strange) > 0.95


def noise(count: int, seed: int, low: int, high: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, (count, 8, 8), dtype=np.uint8)


@pytest.mark.usefixtures("as_a_user")
def test_a_model_that_knows_its_training_images_names_what_is_unlike_them(tmp_path: Path) -> None:
    """By each way to an answer; the answer itself, and all of another model, stay as they are."""
    codec, reads = (
        Standardized(("count",), (3.0,), (2.0,)),
        vitrail.Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,)),
    )
    config = vitrail.ViTConfig(image_size=8, patch_size=4, channels=1, classes=1, width=16, depth=1, heads=2)
    network = scramble(vitrail.ViT(config), 0).eval()
    pixels = noise(150, 0, 0, 90)
    background = make_background(torch.from_numpy(pixels)[:, None], (4, 4), 0)
    plain = vitrail.Model(network, reads, codec, Regression(), background=background)
    train = batches_of(plain, Samples(ArrayImages(pixels, "t"), {"number": Quantities(np.ones((150, 1)), ("count",))}))
    seen = plain.tensor([Image.fromarray(each) for each in pixels])
    with torch.no_grad():
        wanted = unit(network.pool(network.norm(network.encode(seen)), config.prefix))
        noting = Noting(network)
        assert torch.equal(noting(seen), network(seen)), "it changes no bit"
    groups = np.arange(150) % 120
    first = familiar_to(network, train.subset(chosen_of(groups)))  # one of each
    assert torch.allclose(first, wanted[:120], atol=1e-6)
    assert familiar_to(network, train.subset(chosen_of(np.arange(150) % 99))) is None, "too few"
    model = replace(plain, familiar=familiar_to(network, train))
    files = []
    for name, some in (("own", noise(10, 1, 0, 90)), ("strange", np.indices((10, 8, 8))[2] % 2 * np.full(1, 255))):
        for number, each in enumerate(some.astype(np.uint8)):
            Image.fromarray(each).save(tmp_path / f"{name}{number}.png")
            files.append(str(tmp_path / f"{name}{number}.png"))
    answers, before = model.predict(files), plain.predict(files)
    named = [UNLIKE in each.notes for each in answers]
    assert sum(named[:10]) <= 1
    assert all(named[10:])
    assert [replace(each, notes=()) for each in answers] == before
    folder = model.save(tmp_path / "model")
    told = json.loads(call("predict", folder, *files, "--json").out)
    assert [bool(each.get("notes")) for each in told] == named
    table = call("predict", folder, *files, "--out", tmp_path / "table.csv")
    assert table.code == 0
    assert table.err.count(UNLIKE) == 1, "one line, of however many images"
    replace(model, background=None).save(tmp_path / "bare")
    assert vitrail.load(tmp_path / "bare").familiar is None, "nothing of training images without a background"
    save_file({"pooled": torch.zeros(3)}, folder / "familiar.safetensors")
    with must_raise(DataError, "familiar.safetensors"):
        vitrail.load(folder)
