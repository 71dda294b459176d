"""Explanations where torch makes tensors on another device by default, and where a device has no float64."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks import scores
from benchmarks.scores.removal import saco
from tests.explain.no_float64 import There, moved, on_the_device
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.explain import METHODS, balance_sheet, compare
from vitrail.explain.evidence import surrogates, without_evidence
from vitrail.explain.inside import attention_distance, direct_attribution, head_ablation
from vitrail.explain.methods.integrated_gradients import integrated_gradients
from vitrail.explain.sanity_check import sanity_check
from vitrail.explain.target import choose_target
from vitrail.nn import ViT
from vitrail.tasks import Numbers

pytestmark = pytest.mark.usefixtures("as_a_user")

CONFIG = VARIANTS["class-5-registers"]
FEW: dict[str, dict[str, Any]] = {
    "rise": {"masks": 30},
    "kernel_shap": {"samples": 130},
    "smooth_grad": {"samples": 3},
    "integrated_gradients": {"steps": 6, "tolerance": 1e-2},
    "tam": {"steps": 2},
}


def attribution_of(method: str, network: ViT, images: Tensor) -> Tensor:
    return METHODS[method].function(network, images, 1, **FEW.get(method, {})).values


def scores_of(network: ViT, images: Tensor, background: Tensor, values: Tensor) -> dict[str, Tensor]:
    """Every score of some maps, and what is drawn for them."""
    fills = {"background": scores.from_background(background), "own": scores.own_patches(), "grey": scores.grey(0.5)}
    found = {}
    for name, fill in {**fills, "blur": scores.blur(), "mean": scores.mean_of_image()}.items():
        masking = scores.Masking(fill, draws=2, batch_size=7)
        found[f"deletion, {name}"] = scores.deletion(network, images, values, 1, masking).score
    found["perturbation"] = scores.perturbation(network, images, values, 1, masking).score
    found["saco"] = saco(network, images, values, 1, masking, groups=4).score
    found["random maps"] = scores.random_maps(values, 3, 0, scores.keys_of(images))
    found["spearman"] = scores.similarity(values, values.flip(0)).signed
    found["sensitivity"] = scores.max_sensitivity(network, images, METHODS["saliency"].function, samples=2, target=1)
    masks = (images > 0).any(dim=1)
    found["mass"] = scores.relevance_mass(values, masks[:, ::4, ::2])
    found["segmentation"] = torch.tensor(scores.segmentation(values, masks).mean_average_precision, device="cpu")
    return found


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Tensors are made on another device unless it is named: one that nothing can be brought back from."""
    with torch.device("meta"):  # `set_default_device`, given the device of before, would watch all calls for ever
        yield


ALL = [pytest.param(name, id=name) for name in METHODS]


@pytest.mark.parametrize("method", ALL)
def test_a_method_does_not_depend_on_the_default_device(method: str, request: pytest.FixtureRequest) -> None:
    network, images = make_network(CONFIG), make_images(CONFIG)
    wanted = attribution_of(method, network, images)
    request.getfixturevalue("elsewhere")
    assert torch.equal(attribution_of(method, network, images), wanted)


def test_scores_do_not_depend_on_the_default_device(request: pytest.FixtureRequest) -> None:
    network, images, background = make_network(CONFIG), make_images(CONFIG), make_images(CONFIG, 4, seed=2)
    values = attribution_of("generic_attention", network, images)
    wanted = scores_of(network, images, background, values)
    request.getfixturevalue("elsewhere")
    for name, score in scores_of(network, images, background, values).items():
        assert torch.equal(score, wanted[name]), name


def test_what_is_drawn_and_seen_inside_does_not_depend_on_the_default_device(request: pytest.FixtureRequest) -> None:
    network, images = make_network(CONFIG), make_images(CONFIG, 4)
    bytes_ = (images * 40 + 128).clamp(0, 255).byte()

    def found() -> list[Tensor]:
        return [
            surrogates(images[0], 2, 0, 0),
            without_evidence(network, images, bytes_),
            balance_sheet(network, images, 1).positions,
            attention_distance(network, images).pixels,
            direct_attribution(network, images, 1).heads,
            head_ablation(network, images, 1, background=images).change,
            next(scores.scramble(network, 3).parameters()).detach(),
        ]

    wanted = found()
    request.getfixturevalue("elsewhere")
    for one, other in zip(found(), wanted, strict=True):
        assert torch.equal(one, other)


class Bare:
    """A network without background."""

    network, background_images = make_network(PLAIN), None


@pytest.mark.soak
@pytest.mark.usefixtures("elsewhere")
def test_a_self_test_does_not_depend_on_the_default_device() -> None:
    report = sanity_check(Bare())
    assert report.passed, str(report)


class WithBackground(NamedTuple):
    """A network with background."""

    network: ViT
    background_images: Tensor


def verdicts_of(network: ViT, images: Tensor, background: Tensor) -> dict[str, Tensor]:
    """A map put to the test, and the numbers behind its verdict."""
    masks = torch.zeros((len(images), *network.grid(images)), dtype=torch.bool, device=images.device)
    masks[:, 0, 0] = True
    found = compare(WithBackground(network, background), images, ["saliency"], masks=masks, full=True)
    assert found.random_areas is not None
    (held,) = found.trusts
    numbers = {"insertion": held.drops.areas.insertion, "random areas": found.random_areas.deletion}
    numbers |= {"oracle": held.oracle, "evidence": held.evidence.p, "before": held.before}
    return numbers | {name: getattr(held.drops, name) for name in ("score", "random", "faithful", "masked", "patches")}


def test_verdicts_do_not_depend_on_the_default_device(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, images, background = make_network(CONFIG), make_images(CONFIG, 1), make_images(CONFIG, 12, seed=2)
    wanted = verdicts_of(network, images, background)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing is kept
    request.getfixturevalue("elsewhere")
    for name, found in verdicts_of(network, images, background).items():
        assert found.allclose(wanted[name], rtol=0, atol=0, equal_nan=True), name


# ---- a device without float64


def test_verdicts_are_reached_on_a_device_without_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, images, background = make_network(CONFIG), make_images(CONFIG, 1), make_images(CONFIG, 12, seed=2)
    wanted = verdicts_of(network, images, background)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing is kept
    with on_the_device() as there:
        for name, found in verdicts_of(moved(network), there(images), there(background)).items():
            assert type(found) is Tensor, name
            assert found.allclose(wanted[name], rtol=0, atol=0, equal_nan=True), name


@pytest.mark.parametrize("method", ALL)
def test_a_method_runs_on_a_device_without_float64(method: str) -> None:
    network, images = make_network(CONFIG), make_images(CONFIG)
    wanted = attribution_of(method, network, images)
    with on_the_device() as there:
        values = attribution_of(method, moved(network), there(images))
        assert type(values) is There
        assert torch.equal(values.cpu(), wanted)


def test_scores_run_on_a_device_without_float64() -> None:
    network, images, background = make_network(CONFIG), make_images(CONFIG), make_images(CONFIG, 4, seed=2)
    values = attribution_of("generic_attention", network, images)
    wanted = scores_of(network, images, background, values)
    with on_the_device() as there:
        found = scores_of(moved(network), there(images), there(background), there(values))
        for name, score in found.items():
            assert torch.equal(score.cpu(), wanted[name]), name
            assert type(score) is There or name == "segmentation", name


def test_what_is_drawn_and_seen_inside_needs_no_float64() -> None:
    network, images = make_network(CONFIG), make_images(CONFIG, 4)
    bytes_ = (images * 40 + 128).clamp(0, 255).byte()
    with on_the_device() as there:
        network, images = moved(network), there(images)
        surrogates(images[0], 2, 0, 0)
        without_evidence(network, images, bytes_)
        balance_sheet(network, images, 1)
        attention_distance(network, images)
        direct_attribution(network, images, 1)
        head_ablation(network, images, 1, background=images)
        assert type(integrated_gradients(network, images, 1, steps=6).values) is There


def test_a_target_without_images_is_brought_to_their_device() -> None:
    with on_the_device() as there:
        outputs = there(torch.tensor([[1.0, 2.0], [3.0, -4.0]]))
        found = choose_target(outputs, "-1", Numbers(2))(outputs)
        assert (type(found), found.tolist()) == (There, [-2, 4])


def test_the_device_refuses_what_mps_refuses() -> None:
    with on_the_device() as there:
        tensor = there(torch.ones(2))
        assert (tensor.device.type, type(tensor + 1), type(tensor.cpu())) == ("mps", There, Tensor)
        with pytest.raises(TypeError):
            tensor.double()
        with pytest.raises(TypeError):
            torch.zeros(2, dtype=torch.float64, device=tensor.device)
        with pytest.raises(RuntimeError):
            tensor + torch.ones(2)
