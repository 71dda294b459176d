"""Every method explains every row of the suite of weights; and what is explained of networks without classes."""

from pathlib import Path

import pytest
import torch

import vitrail
from tests.errors import must_raise
from tests.explain.suite import ROUGH
from tests.weights.families import ROWS
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import UsageError
from vitrail.explain import METHODS, balance_sheet
from vitrail.explain.target import similarity
from vitrail.model import Model
from vitrail.model.facts import UNVERIFIED

OFTEN = {"timm SigLIP", "transformers CLIPVisionModelWithProjection"}
NAMES = [pytest.param(name, marks=() if name in OFTEN else pytest.mark.soak) for name in ROWS]
CHEAP = {**ROUGH, "kernel_shap": {"samples": 1024, "batch_size": 1024}}


def model_of(name: str, folder: Path) -> Model:
    module, _ = ROWS[name].make(folder)
    return vitrail.convert(module, preprocessing=Preprocessing(ROWS[name].size))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_explains_it(name: str, tmp_path: Path) -> None:
    """A map of the network's own grid, which depends on the image; the parts of a logit add up to it."""
    network = model_of(name, tmp_path).network
    images = torch.randn(2, 3, *network.config.image, generator=torch.Generator().manual_seed(0))
    for method in METHODS.values():
        attribution = method.function(network, images, 1, **CHEAP.get(method.name, {}))
        assert attribution.values.shape == (2, *network.config.grid), method.name
        assert attribution.values.isfinite().all(), method.name
        assert not torch.equal(attribution.values[0], attribution.values[1]) or attribution.notes[0], method.name
        torch.testing.assert_close(attribution.logit.float(), network(images)[:, 1].detach(), rtol=1e-4, atol=1e-5)
    double = network.double()
    sheet = balance_sheet(double, images.double(), 1)
    assert float(sheet.gap.abs().max()) < 1e-9 * max(1.0, float(sheet.logit.abs().max()))


def test_what_makes_images_alike_is_explained(tmp_path: Path) -> None:
    """The cosine to another image's numbers is a target like any other, and grows towards that image."""
    model = model_of("timm DINOv2", tmp_path)
    images = torch.randn(3, 3, *model.network.config.image, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        numbers = model.network(images)
    alike = similarity(numbers[0])
    cosines = torch.nn.functional.cosine_similarity(numbers, numbers[:1])
    torch.testing.assert_close(alike(numbers), cosines, rtol=1e-5, atol=1e-6)
    attribution = vitrail.explain.occlusion(model.network, images, alike)
    torch.testing.assert_close(attribution.logit.float(), cosines, rtol=1e-4, atol=1e-5)
    assert attribution.values.abs().amax() > 0


def test_numbers_are_predicted_saved_and_never_learnt(tmp_path: Path) -> None:
    model = model_of("timm DINO", tmp_path)
    vitrail.save(model, tmp_path / "saved")
    again = vitrail.load(tmp_path / "saved")
    assert (again.task.name, again.output) == ("features", model.output)
    assert again.facts == model.facts
    assert "verified" in model.facts
    images = torch.randn(2, 3, *model.network.config.image)
    with torch.no_grad():
        found = model.task.predict(model.network, model.output, images, ["a", "b"])
        assert torch.equal(torch.tensor(found[1].to_dict()["features"]), again.network(images)[1])
    with must_raise(UsageError):
        vitrail.evaluate(again, "digits")
    with must_raise(UsageError):
        vitrail.train("digits", options=vitrail.TrainOptions(task="features"))
    with torch.no_grad():
        again.network.blocks[1].mlp.fc2.bias[0] += 1
    vitrail.save(again, tmp_path / "changed")
    assert vitrail.load(tmp_path / "changed").facts["verified"] == UNVERIFIED  # verified are the very numbers
