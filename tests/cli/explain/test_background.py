"""A model that carries no background: the images of one call serve each other, and none of them itself."""

import dataclasses
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from tests.cli.command import Cli
from tests.cli.explain.shown import shown_of
from tests.explain.planted_lab import load_planted
from vitrail.data.background import FEW, MOST
from vitrail.data.images import NamedImage, evenly, open_image
from vitrail.data.sets.planted import planted_digits
from vitrail.explain import compare, report, verdict
from vitrail.explain.evidence import COMPOSITES, key_of
from vitrail.explain.reporting import explained, plan
from vitrail.explain.reporting.plan import Opener, ReportOptions, plan_report, read_others
from vitrail.explain.verdict import PreparedTest, TrustOptions, prepare
from vitrail.model import Model
from vitrail.nn import ViT

COUNT = 30
SHOWN = 2


@pytest.fixture(scope="module")
def model() -> Model:
    return dataclasses.replace(load_planted("mean-0"), background=None)


@pytest.fixture(scope="module")
def place(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and with images."""
    folder = tmp_path_factory.mktemp("fillers")
    vitrail.save(model, folder / "model")
    (folder / "images").mkdir()
    for number, pixels in enumerate(planted_digits("test", COUNT).pixels):
        Image.fromarray(pixels).save(folder / "images" / f"{number:02}.png")
    return folder


def trusts(cli: Cli, place: Path, *words: object) -> list[dict[str, Any]]:
    done = cli("explain", place / "model", *words, "--json", "--out", place / "page.html")
    assert done.code == 0, done.err
    return [one["attributions"][0]["trust"] for one in json.loads(done.out)["images"]]


def test_a_folder_fills_what_a_verdict_needs(cli: Cli, place: Path, model: Model) -> None:
    """Its verdicts are those of the Python call with all other images as background."""
    found = trusts(cli, place, place / "images", "--count", SHOWN)
    files = sorted((place / "images").iterdir())
    assert plan_report(model, ReportOptions()).at_a_time >= SHOWN, "all that are shown are explained together"
    shown = [files[number * COUNT // SHOWN] for number in range(SHOWN)]
    others = model.tensor([file for file in files if file not in shown])
    (wanted,) = compare(model, model.tensor(shown), ["generic_attention"], background=others, areas=False).trusts
    assert [one["verdict"] for one in found] == list(wanted.verdict)
    assert [one["faithful_p"] for one in found] == pytest.approx(wanted.drops.faithful.tolist())
    assert [one["evidence_p"] for one in found] == pytest.approx(wanted.evidence.p.tolist())
    assert "supported" in wanted.verdict


def test_an_image_that_is_shown_and_fills_others_is_decoded_once(
    place: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = Image.open, list[Any]()
    monkeypatch.setattr(Image, "open", lambda *values, **more: opened.append(values[0]) or real(*values, **more))
    shown, others = shown_of(model, place / "model", place / "images", SHOWN)
    filling = {name: np.asarray(opener()) for name, opener in others}
    assert (len(opened), len(filling)) == (COUNT, COUNT)
    assert all(np.array_equal(filling[one.name], np.asarray(one.image)) for one in shown)


def test_a_background_of_another_size_is_not_called_none(cli: Cli, place: Path) -> None:
    vitrail.save(load_planted("mean-0"), place / "filled")
    images = sorted((place / "images").iterdir())
    for shown in (images[:1], images):
        words = [*shown, "--image-size", 16, "--out", place / "page.html"]
        without, other = (cli("explain", place / name, *words) for name in ("model", "filled"))
        assert (without.code, other.code) == (0, 0)
        assert without.err.replace(str(place / "model"), "") != other.err.replace(str(place / "filled"), "")


def test_as_many_images_as_the_hint_names_are_enough(cli: Cli, place: Path) -> None:
    words = ["explain", place / "model", "--image-size", 16, "--out", place / "page.html"]
    files = sorted((place / "images").iterdir())
    hint = re.search(r"at least (\d+) images", cli(*words, *files[:FEW]).err)
    assert hint, "ten images are too few"
    assert int(hint[1]) == FEW + 1
    assert not re.search(r"at least \d+ images", cli(*words, *files[: int(hint[1])]).err)


def test_too_few_fill_nothing(cli: Cli, place: Path, model: Model) -> None:
    """Ten beside those that are explained together, as a verdict needs them."""
    files = sorted((place / "images").iterdir())
    names = [str(file) for file in files]
    openers: list[Opener] = [(str(file), partial(open_image, file)) for file in files]
    assert {one["verdict"] for one in trusts(cli, place, names[0])} == {"cannot tell"}
    some = [NamedImage(name, open_image(Path(name)), None) for name in names[:2]]
    enough = read_others(model, evenly(openers[: 2 + FEW], MOST + 2))
    assert enough is not None
    background = enough.besides(some)
    assert background is not None
    assert torch.equal(background, model.tensor(files[2 : 2 + FEW]))
    fewer = read_others(model, evenly(openers[: 1 + FEW], MOST + 2))
    assert fewer is not None
    assert fewer.besides(some) is None
    assert read_others(model, evenly(openers[:FEW], MOST + 2)) is None


@pytest.mark.parametrize(
    ("count", "folds"), [(12, 6), pytest.param(COUNT, 3, marks=pytest.mark.soak)]
)  # three: some are explained together with one of the other half
def test_images_of_a_call_have_composites_once_for_a_fold(
    model: Model, monkeypatch: pytest.MonkeyPatch, count: int, folds: int
) -> None:
    """They were computed for each image of a comparison; and of twelve images none had enough others beside four."""
    made, backgrounds = verdict.composite_logits, list[Tensor]()

    def counted(network: ViT, background: Tensor, *others: Any) -> Tensor:
        backgrounds.append(background)
        return made(network, background, *others)

    def apart(model: Model, inputs: Tensor, target: Any, options: TrustOptions, **others: Any) -> PreparedTest:
        assert options.background is not None
        own = ((image == options.background).flatten(1).all(dim=1).any() for image in inputs)
        assert not any(own), "none fills itself"
        return prepare(model, inputs, target, options, **others)

    monkeypatch.setattr(verdict, "composite_logits", counted)
    monkeypatch.setattr(explained, "prepare", apart)
    monkeypatch.setattr(plan, "BATCH", 4)
    pixels = planted_digits("test", count).pixels
    images = [NamedImage(f"digit {i}", Image.fromarray(one)) for i, one in enumerate(pixels)]
    found = report(model, images)
    assert len({key_of(model.network, each, 0, "fp32") for each in backgrounds}) == folds
    for one in found:
        assert one.trust[0] is not None
        assert one.trust[0].composites == COMPOSITES
