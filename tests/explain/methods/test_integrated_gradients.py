"""Integrated Gradients: what it must add up to (T5), and that it says when it does not."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.explain.planted_lab import load_planted, shown
from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain import Attribution
from vitrail.explain.methods.integrated_gradients import gap_of, integrated_gradients
from vitrail.explain.target import Target, choose_target
from vitrail.nn import ViT

pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.fixture(scope="module")
def trained() -> ViT:
    """A committed network in float64: it has learnt for minutes, and bends as trained ones do."""
    return copy.deepcopy(load_planted("mean-0").network).double()


def some_images(count: int) -> Tensor:
    return shown("mean-0", 12, seed=34).images[:count].double()


def with_gap(
    network: ViT, images: Tensor, target: Target = None, baseline: float | Tensor = 0.0, **options: Any
) -> tuple[Attribution, Tensor]:
    """The attribution, and how far each map's sum is from what it should add up to, by two more passes."""
    attribution = integrated_gradients(network, images, target, baseline=baseline, **options)
    with torch.no_grad():
        start = network(torch.zeros_like(images) + baseline)
        difference = attribution.logit - choose_target(network(images), target)(start)
    return attribution, gap_of(attribution.values.sum(dim=(1, 2)), difference)


@pytest.mark.parametrize(
    ("name", "count"),
    [("class-0", 2), *(pytest.param(name, 10, marks=pytest.mark.soak) for name in ("class-0", "mean-0"))],
)
def test_completeness_on_trained_networks(name: str, count: int) -> None:
    """T5, in float64, with the limits of the research page."""
    network, images = copy.deepcopy(load_planted(name).network).double(), some_images(count)
    assert with_gap(network, images, steps=20)[1].median() <= 5e-3
    attribution, gaps = with_gap(network, images, steps=50)
    assert gaps.max() <= 1e-3
    even = integrated_gradients(network, images[:3], steps=200, tolerance=None).values
    assert (
        attribution.values[:3] - even
    ).abs().max() <= 0.02 * even.abs().max()  # the map is right, and not only its sum


@pytest.mark.soak
def test_one_sum_over_the_whole_way_falls_short_of_it(trained: ViT) -> None:
    """Why the way is cut: the gap falls exponentially with the nodes, and slowly where the way has a sharp bend."""
    images = some_images(5)
    gaps = [with_gap(trained, images, steps=n, tolerance=None)[1] for n in (20, 50, 200)]
    assert gaps[0].median() > 5e-3
    assert gaps[1].max() > 1e-3
    assert gaps[2].median() <= 5e-5
    assert gaps[1].median() < 0.3 * gaps[0].median()


def test_an_image_takes_more_nodes_where_it_needs_them_and_no_more_than_eight_times_as_many(trained: ViT) -> None:
    images, taken = some_images(2), dict[str, list[int]]()

    class Counted(torch.nn.Module):
        """The embedding, which counts images that gradients are asked of."""

        def __init__(self, embedding: torch.nn.Module, tolerance: str) -> None:
            super().__init__()
            self.embedding, self.tolerance = embedding, tolerance

        def forward(self, pixels: Tensor) -> Tensor:
            taken.setdefault(self.tolerance, []).append(len(pixels) * pixels.requires_grad)
            return self.embedding(pixels)

    embedding = trained.patch_embed.proj
    try:
        for tolerance in (None, 0.9, 1e-3, 1e-12):
            trained.patch_embed.proj = Counted(embedding, str(tolerance)).eval()
            integrated_gradients(trained, images, steps=10, tolerance=tolerance)
    finally:
        trained.patch_embed.proj = embedding
    assert sum(taken["None"]) == sum(taken["0.9"]) == 10 * 2
    assert 10 * 2 < sum(taken["0.001"]) <= sum(taken["1e-12"]) <= 80 * 2


def test_an_image_does_not_depend_on_those_beside_it(trained: ViT) -> None:
    images = some_images(2)
    together = integrated_gradients(trained, images, steps=10)
    for index in range(2):
        alone = integrated_gradients(trained, images[index : index + 1], steps=10)
        assert (alone.values[0] - together.values[index]).abs().max() <= 1e-10


def test_a_gap_above_one_per_cent_is_noted_for_the_image_that_has_it(trained: ViT) -> None:
    images = some_images(12).clone()
    images[5] = 0.0
    attribution, gap = with_gap(trained, images, steps=2, tolerance=None)
    assert (gap > 0.01).sum() >= 3
    for image, (fraction, notes) in enumerate(zip(gap.tolist(), attribution.notes, strict=True)):
        assert any(f"{fraction:.1%}" in note for note in notes) == (fraction > 0.01)
        assert len(notes) == (fraction > 0.01 or image == 5)
    assert gap[5] == 0  # the baseline itself: nothing to explain, and nothing missing
    assert attribution.notes[5] == ("no signal",)


def test_a_forgotten_node_would_be_noticed(trained: ViT, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: every node lies where the first one does."""
    nodes_of = np.polynomial.legendre.leggauss

    def first(count: int) -> tuple[np.ndarray, np.ndarray]:
        nodes, weights = nodes_of(count)
        return np.full_like(nodes, nodes[0]), weights

    monkeypatch.setattr(np.polynomial.legendre, "leggauss", first)
    attribution, gap = with_gap(trained, some_images(2), steps=20)
    assert gap.min() > 0.02  # ten times the tolerance, though all parts were halved again and again
    assert all(attribution.notes)


def test_steps_are_exact_for_polynomials() -> None:
    """A logit that is a polynomial of degree 3 on the way: two nodes are exact, one is not."""
    network, images = make_network(PLAIN).double(), make_images(PLAIN).double()

    def cubed(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, 1] ** 3

    network.blocks, network.norm = torch.nn.ModuleList(), torch.nn.Identity()
    config = PLAIN.from_dict({**vars(PLAIN), "pooling": "mean", "class_token": False})
    mean = make_network(config).double()
    mean.blocks, mean.norm = torch.nn.ModuleList(), torch.nn.Identity()
    _, two = with_gap(mean.eval(), images, cubed, steps=2, tolerance=None)
    _, one = with_gap(mean, images, cubed, steps=1, tolerance=None)
    assert two.max() <= 1e-12
    assert one.min() > 1e-3


def test_the_baseline_is_the_zero_of_the_answer() -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    flipped = images.flip(0)
    attribution, gap = with_gap(network, images, 1, baseline=flipped, steps=200, tolerance=None)
    assert gap[[0, 2]].max() <= 1e-4
    there = network(images.flip(0))[:, 1].detach()
    assert (attribution.values.sum(dim=(1, 2)) - (attribution.logit - there)).abs().max() <= 1e-4
    assert not attribution.values[1].any()  # the middle image is its own baseline
    back = integrated_gradients(network, images.flip(0), 1, baseline=images, steps=200, tolerance=None).values
    assert (attribution.values + back.flip(0).flip(0)).abs().max() <= 1e-8  # the way back, from the same two ends


def test_gap_of() -> None:
    total, difference = torch.tensor([1.0, 0.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 4.0, 0.0])
    assert gap_of(total, difference).tolist() == [0.0, 0.0, 0.5, float("inf")]
