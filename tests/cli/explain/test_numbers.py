"""Networks without classes: numbers, one number, how alike two images are. What is explained is said in JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import vitrail
from tests.cli.command import DATA, USAGE, call, must_refuse, retyped
from tests.errors import must_raise
from tests.pages.structure import Structure
from tests.weights.families import NETWORK
from tests.weights.redraw import redrawn
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import UsageError
from vitrail.explain import compare, trust
from vitrail.model import Model
from vitrail.tasks.features import FeaturePrediction, Numbers
from vitrail.tasks.target import LEAST_RISE

PHOTOS = 12  # ten or more fill masked patches
SUMMED = ("--method", "conservative")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks of one output and of many, and some images."""
    folder = tmp_path_factory.mktemp("numbers")
    torch.manual_seed(0)
    for name, outputs in (("one", 1), ("many", 0)):
        module = timm.create_model("vit_tiny_patch16_224", **NETWORK, img_size=32, num_classes=outputs)
        vitrail.save(vitrail.convert(redrawn(module), preprocessing=Preprocessing((32, 32))), folder / name)
    (folder / "images").mkdir()
    random = np.random.default_rng(0)
    for number in range(PHOTOS):
        pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(folder / "images" / f"{number:02d}.png")
    return folder


def numbers_of(folder: Path, name: str, image: str) -> torch.Tensor:
    (said,) = vitrail.load(folder / name).predict([folder / "images" / image])
    assert isinstance(said, FeaturePrediction)
    return said.features


def explained(folder: Path, name: str, *options: str) -> dict[str, Any]:
    at, image = folder / "page.html", folder / "images" / "00.png"
    answer = call("explain", folder / name, image, "--background", folder / "images", "--out", at, "--json", *options)
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)["images"]
    return found


@torch.no_grad()
def test_one_output_is_a_number_and_the_same_wherever_it_is_told(folder: Path) -> None:
    """Softmax would give the only class a probability of 1, whatever the image shows."""
    model, image = vitrail.load(folder / "one"), folder / "images" / "00.png"
    number = float(model.network(model.tensor([image])))
    assert model.output == Numbers(1)
    assert numbers_of(folder, "one", "00.png").tolist() == [number]
    assert json.loads(call("predict", folder / "one", image, "--json").out)[0]["features"] == [number]
    found = explained(folder, "one")
    (attribution,) = found["attributions"]
    assert found["features"] == [number]
    assert attribution["explains"] == "number"
    assert attribution["logit"] == pytest.approx(number, rel=1e-5)
    assert not {"label", "probability"} & found.keys()


def test_a_similarity_has_an_effect_and_a_number_none(folder: Path) -> None:
    image, other = (numbers_of(folder, "many", f"0{number}.png") for number in (0, 1))
    alike = float(torch.nn.functional.cosine_similarity(image, other, dim=0))
    similar = explained(folder, "many", "--similar-to", str(folder / "images" / "01.png"), *SUMMED)["attributions"][0]
    held_against = images_of(folder)
    single = explained(folder, "many", "--target", "3", *SUMMED)["attributions"][0]
    assert held_against == images_of(folder) + 1  # the other image
    assert (similar["explains"], single["explains"]) == ("similarity", "number")
    assert similar["logit"] == pytest.approx(alike, abs=1e-5)
    assert single["logit"] == pytest.approx(float(image[3]), rel=1e-5)
    assert (similar["trust"]["minimum_effect"], similar["trust"]["effect_unit"]) == (LEAST_RISE, "cosine")
    assert -2 <= similar["trust"]["effect"] <= 2
    assert {single["trust"][name] for name in ("effect", "minimum_effect", "effect_unit")} == {None}
    assert single["trust"]["verdict"] != "supported"
    for attribution in (similar, single):
        assert {attribution["trust"][name] for name in ("probability_unmasked", "probability_masked")} == {None}
        assert attribution["trust"]["evidence_p"] is not None
        assert sum(attribution["parts"].values()) == pytest.approx(attribution["logit"], abs=1e-4)


def images_of(folder: Path) -> int:
    page = (folder / "page.html").read_text()
    assert Structure(page).open == []
    return page.count('class="photo"')


def test_whoever_types_the_hints_arrives_at_an_explanation(folder: Path) -> None:
    """Each hint is a command, which keeps nothing that cannot be explained."""
    image, other = (str(folder / "images" / f"0{number}.png") for number in (0, 1))
    number, alike, untested = ("--target", "1"), ("--similar-to", other), ("--no-trust",)
    for name, options in (
        ("many", untested),
        ("many", (*untested, "--contrast", "3")),
        ("many", (*untested, *number, *alike)),
        ("many", (*untested, *alike, "--contrast", "3")),
        ("many", (*untested, *number, "--full")),
        ("one", (*untested, *alike)),
        ("one", (*untested, "--contrast", "3")),
    ):
        words: list[str] | None = ["explain", str(folder / name), image, "--out", str(folder / "hint.html"), *options]
        answer = call(*words)
        must_refuse(answer, USAGE, "")
        for _ in range(2):
            if answer.code and words:
                words = retyped(words, answer)
                assert words is not None, answer.hint
                answer = call(*words)
        assert answer.code == 0, answer.err


def test_one_number_has_no_direction_no_class_and_no_second(folder: Path) -> None:
    image = folder / "images" / "00.png"
    for options in (("--similar-to", image), ("--target", "1"), ("--contrast", "0")):
        answer = call("explain", folder / "one", image, *options)
        assert answer.code in (USAGE, DATA)
        assert answer.problem
    module = timm.create_model("vit_tiny_patch16_224", **NETWORK, img_size=32, num_classes=1)
    with must_raise(UsageError):
        vitrail.convert(module, preprocessing=Preprocessing((32, 32)), classes=["cat"])


def test_the_test_of_a_map_knows_no_probability_of_a_single_logit(folder: Path) -> None:
    """Called with a class in Python, too: neither probability nor odds, and curves of the number itself."""
    model: Model = vitrail.load(folder / "one")
    images = model.tensor(sorted((folder / "images").glob("*.png")))
    attribution = vitrail.explain.generic_attention(model.network, images[:1])
    held = trust(model, images[:1], attribution, background=images[1:])
    assert held.evidence.minimum_effect.isnan().all()
    assert all(each.isnan().all() for each in (held.before, held.drops.masked, held.evidence.effect))
    told = compare(model, images[:1], ["generic_attention", "rollout"], background=images[1:])
    assert told.random_areas is not None
    assert float(told.random_areas.deletion) != 1.0


def test_the_terminal_says_why_a_verdict_is_weak(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vitrail.explain.verdict"], "verdict", lambda *values: ("weak", "for this reason"))
    answer = call(
        *("explain", folder / "one", folder / "images" / "00.png", "--background", folder / "images"),
        *("--out", folder / "weak.html", "--full"),
    )
    assert "for this reason" in answer.out.lower()
    assert "weak" in answer.out
