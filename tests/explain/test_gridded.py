"""Networks that are no ViT: explained by what asks for outputs or gradients alone, and tested like any other.

A small convolutional network learns `planted` images here. The limits are those of the ViTs of the lab
(`test_verdicts.py`): 60 % of true images are supported at least, and 5 % at most where weights are drawn anew; `make
soak` asks 200 images of each kind.
"""

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from tests.explain.reference import PLAIN, make_images, make_network
from tests.explain.refused import must_refuse, must_refuse_and_say_what_works
from tests.explain.suite import QUICK, quick
from vitrail.data import Preprocessing
from vitrail.data.background import make_background
from vitrail.data.sets.planted import planted_digits
from vitrail.errors import UsageError
from vitrail.explain import METHODS, Gridded, compare, grad_cam, occlusion, report, saliency, sanity_check, trust
from vitrail.explain.inside import logit_lens
from vitrail.model import Model
from vitrail.tasks.classify import Classes

pytestmark = [pytest.mark.usefixtures("as_a_user"), pytest.mark.timeout(3600)]

ANY = {name: method for name, method in METHODS.items() if method.any_network}
NETWORK, IMAGES, BACKGROUND = make_network(PLAIN), make_images(PLAIN, 3), make_images(PLAIN, 12, seed=2)
GRID = (8, 8)


class Own(nn.Module):
    """A network of a person's own, which knows nothing of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).relu().mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def own() -> Own:
    torch.manual_seed(0)
    return Own().eval()


# ---- a network that learnt, and its twins that did not


def convolutional(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 32, 2),
        nn.GELU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()


@dataclass(frozen=True)
class Learnt:
    """A network, a background for it, and test images of which it is right."""

    network: nn.Sequential
    background: Tensor
    images: Tensor


@pytest.fixture(scope="module")
def learnt() -> Learnt:
    made, test = planted_digits("train", 4000), planted_digits("test", 260, seed=31)
    pixels, labels = torch.from_numpy(made.pixels)[:, None], torch.from_numpy(made.labels).flatten()
    images, network, batch, epochs = as_read(pixels), convolutional(0), 32, 2
    optimizer = torch.optim.AdamW(network.parameters(), lr=8e-3, weight_decay=1e-2)
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=steps)
    for _ in range(epochs):
        for some in torch.randperm(len(images))[: len(images) // batch * batch].split(batch):
            loss = F.cross_entropy(network(images[some]), labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.requires_grad_(False)
    shown = as_read(torch.from_numpy(test.pixels)[:, None])
    right = network(shown).argmax(dim=1) == torch.from_numpy(test.labels).flatten()
    assert right.double().mean() >= 0.85
    return Learnt(network, as_read(make_background(pixels, (4, 4), 0)), shown[right][:200])


def as_read(pixels: Tensor) -> Tensor:
    return pixels.float() / 127.5 - 1


def supported(network: nn.Module, images: Tensor, background: Tensor, seed: int, method: str = "occlusion") -> int:
    """Of how many images the map is supported."""
    attribution = METHODS[method].function(network, images, grid=GRID)
    return trust(network, images, attribution, background=background, seed=seed).verdict.count("supported")


COUNTS = [pytest.param(24, id="few"), pytest.param(200, id="many", marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", COUNTS)
def test_maps_of_a_convolutional_network_are_supported(count: int, learnt: Learnt) -> None:
    images = learnt.images[:count]
    assert len(images) == count
    assert supported(learnt.network, images, learnt.background, 97) >= 0.6 * len(images)


@pytest.mark.parametrize("count", COUNTS)
def test_maps_of_its_twin_whose_weights_are_drawn_anew_are_not(count: int, learnt: Learnt) -> None:
    """Drawn as before training, and the learnt ones shuffled, which have their sizes."""
    found, images = 0, learnt.images[:count]
    for seed, some in enumerate(images.tensor_split(max(2, count // 20)), start=1):
        twin = convolutional(seed)
        if seed % 2:
            twin = copy.deepcopy(learnt.network)
            with torch.no_grad():
                for weights in twin.parameters():
                    weights.copy_(weights.flatten()[torch.randperm(weights.numel())].view_as(weights))
        found += supported(twin, some, learnt.background, seed)
    assert found <= 0.05 * len(images)


@pytest.mark.soak
def test_maps_of_its_gradients_are_supported_too(learnt: Learnt) -> None:
    assert supported(learnt.network, learnt.images, learnt.background, 97, "saliency") >= 0.6 * len(learnt.images)


def test_a_report_of_such_a_network_has_its_words_and_verdicts(learnt: Learnt, tmp_path: Path) -> None:
    pixels = ((learnt.background + 1) * 127.5).round().to(torch.uint8)
    reads = Preprocessing((32, 32), channels=1, mean=(0.5,), std=(0.5,))
    network = Gridded(learnt.network, GRID)
    model = Model(network=network, input=reads, output=Classes(tuple("0123456789")), background=pixels)
    planted = torchvision.transforms.functional.to_pil_image((learnt.images[0] + 1) / 2)
    found = report(model, planted, ["occlusion", "saliency"])
    (one,) = found
    names = learnt.network(learnt.images[:1]).argmax(dim=1).tolist()
    assert one.prediction.top[0][0] == str(names[0])
    assert one.verdicts == ("supported", "supported")
    assert one.attributions[0].values.shape == (1, *GRID)
    assert "supported" in found.save(tmp_path / "page.html").page.read_text("utf-8")


def test_resnet_runs_with_random_weights() -> None:
    torch.manual_seed(0)
    network, images = torchvision.models.resnet18().eval(), torch.randn(2, 3, 35, 35)
    for method in (occlusion, saliency):
        attribution = method(network, images, grid=(7, 7))
        assert attribution.values.shape == (2, 7, 7)
        assert attribution.values.isfinite().all()
        told = trust(network, images, attribution, background=torch.randn(10, 3, 35, 35))
        assert set(told.verdict) == {"cannot tell"}
        assert told.evidence.composites.tolist() == [499, 499]


# ---- the same as of a ViT


@pytest.mark.parametrize("name", ANY)
def test_a_grid_that_is_the_networks_own_changes_no_bit(name: str) -> None:
    method = quick(ANY[name]).function
    assert torch.equal(method(NETWORK, IMAGES, 1, grid=(3, 5)).values, method(NETWORK, IMAGES, 1).values)


def test_a_coarser_grid_masks_what_a_window_masks() -> None:
    coarse = occlusion(NETWORK, IMAGES, 1, grid=(1, 5), fill=0.25).values
    fine = occlusion(NETWORK, IMAGES, 1, window=(3, 1), fill=0.25).values
    torch.testing.assert_close(coarse, fine[:, :1])


def test_a_verdict_without_tokens_is_that_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its numbers; and nothing is stored of a network whose code may change while its weights do not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    attribution = occlusion(NETWORK, IMAGES)
    gridded = trust(Gridded(NETWORK, (3, 5)), IMAGES, attribution, background=BACKGROUND, full=True)
    assert not list(tmp_path.rglob("*.safetensors"))
    plain = trust(NETWORK, IMAGES, attribution, background=BACKGROUND, full=True)
    assert list(tmp_path.rglob("*.safetensors"))
    assert gridded.verdict == plain.verdict
    for one, other in ((gridded.evidence.p, plain.evidence.p), (gridded.drops.random, plain.drops.random)):
        assert one.allclose(other, rtol=0, atol=0, equal_nan=True)


def test_a_comparison_of_all_methods_has_those_that_take_any_network(own: Own) -> None:
    found = compare(own, IMAGES, grid=(3, 5), background=BACKGROUND)
    assert set(found.methods) == {name for name, method in ANY.items() if not method.costly}
    for name, attribution in zip(found.methods, found.attributions, strict=True):
        alone = ANY[name].function(own, IMAGES, grid=(3, 5))
        torch.testing.assert_close(attribution.values, alone.values)
        assert attribution.notes == alone.notes, "no sinks where there are no tokens"
    assert len(found.trusts) == len(found.methods)


# ---- what is stated, and refused


def test_a_row_states_what_its_function_takes(own: Own) -> None:
    """Methods with a grid explain a network without tokens; the others refuse it, and name those."""
    for name, method in METHODS.items():
        assert method.any_network == ("grid" in inspect.signature(method.function).parameters)
        if method.any_network:
            values = quick(method).function(own, IMAGES, 1, grid=(3, 5)).values
            assert values.shape == (3, 3, 5)
            assert values.std() > 0, name
        else:
            with must_refuse("ViT") as caught:
                method.function(own, IMAGES, 1)
            assert set(str(caught.value.hint).partition(":")[0].split(", ")) == set(ANY)
    with must_refuse("ViT"):
        logit_lens(own, IMAGES)  # pyrefly: ignore[bad-argument-type]
    with must_refuse("ViT"):
        compare(own, IMAGES, ["occlusion", "rollout"], grid=(3, 5), background=BACKGROUND)


class Cut(Own):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


WRONG: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "one number alone": (nn.Sequential(nn.Flatten(0), nn.Linear(720, 1)), ("(1,)", "3")),
    "a map": (nn.Identity(), ("(3, 2, 12, 10)", "3")),
    "a tuple": (nn.MaxPool2d(2, return_indices=True), ("tuple",)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_returns_no_numbers_for_each_image_is_refused(wrong: str) -> None:
    network, given = WRONG[wrong]
    with must_refuse(*given):
        occlusion(network.eval(), IMAGES, grid=(3, 5))


@pytest.mark.parametrize("name", [name for name in ANY if "fill" not in METHODS[name].options])
def test_outputs_without_a_gradient_are_refused_by_gradients_alone(name: str) -> None:
    network = Cut().eval()
    with must_refuse("gradient") as caught:
        ANY[name].function(network, IMAGES, grid=(3, 5), **QUICK.get(name, {}))
    assert "occlusion" in str(caught.value.hint)
    assert occlusion(network, IMAGES, grid=(3, 5)).values.std() > 0


def test_a_grid_is_needed_and_divides_the_images(own: Own) -> None:
    def explain(**options: Any) -> object:
        return occlusion(own, torch.zeros(1, 2, 14, 21), **options)

    for wrong in (None, 7, (7,), (0, 7), (7.0, 7), "7x"):
        must_refuse_and_say_what_works(explain, *([] if wrong is None else [wrong]), grid=wrong)
    must_refuse_and_say_what_works(lambda grid: occlusion(own, torch.zeros(1, 2, 32, 50), grid=grid), grid=None)
    with must_refuse("(4, 7)", "(1, 2, 14, 21)") as caught:
        explain(grid=(4, 7))
    assert "(12, 21)" in str(caught.value.hint)
    with must_refuse("(2, 14, 21)"):
        occlusion(own, torch.zeros(2, 14, 21), grid=(7, 7))


def test_a_method_that_takes_no_grid_leads_to_those_that_do(own: Own) -> None:
    with pytest.raises(UsageError, match="grid") as caught:
        grad_cam(own, IMAGES, grid=(3, 5))  # pyrefly: ignore[unexpected-keyword]
    assert caught.value.hint.drop == ["grid"]
    with pytest.raises(UsageError) as followed:
        grad_cam(own, IMAGES)
    assert "occlusion" in str(followed.value.hint)


def test_a_network_by_itself_is_tested_with_a_background_alone(own: Own) -> None:
    attribution = occlusion(own, IMAGES, grid=(3, 5))
    with must_refuse("Own") as caught:
        trust(own, IMAGES, attribution)
    assert "background=" in str(caught.value.hint)
    few = trust(own, IMAGES, attribution, background=BACKGROUND[:3])
    assert set(few.verdict) == {"cannot tell"}
    for call in (
        lambda: compare(own, IMAGES, background=BACKGROUND),  # without a grid
        lambda: trust(own, IMAGES, attribution, background=BACKGROUND, precision="bf16"),
        lambda: trust(own.train(), IMAGES, attribution, background=BACKGROUND),
        lambda: sanity_check(Model(own, Preprocessing((12, 10)), Classes(tuple("abcd")))),
        lambda: report(Model(own.eval(), Preprocessing((12, 10)), Classes(tuple("abcd"))), "a.png", "occlusion"),
    ):
        with must_refuse():
            call()
    own.eval()
