"""Checks of a whole package of explainers, run on it as it is and with planted faults (test_mutants.py)."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.explain.layers import layers_of
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network, oracle, relevance_matrix, rollout_matrix
from tests.explain.suite import SOME_VARIANTS, draws, rough
from vitrail.explain.methods.generic_attention import generic_relevance_of
from vitrail.explain.methods.rollout import rollout_of
from vitrail.nn import ViT


def must_equal(
    formulas: Callable[..., np.ndarray],
    package: ModuleType,
    method: str,
    network: ViT,
    targets: tuple[int, ...] = (2, 0),
    **options: Any,
) -> None:
    """The method gives what the formulas give, in float64, to 1e-10 of the largest value."""
    network, images = network.double(), make_images(network.config, len(targets)).double()
    attribution = package.METHODS[method].function(network, images, torch.tensor(targets), **options)
    wanted = formulas(method, network, images, list(targets), **options)
    assert attribution.values.shape == wanted.shape
    assert np.abs(wanted).max() > 1e-6
    assert np.abs(attribution.values.numpy() - wanted).max() <= 1e-10 * np.abs(wanted).max()


def raw_is_exact(package: ModuleType) -> None:
    for config in VARIANTS.values():
        must_equal(oracle, package, "raw_attention", make_network(config))


def rollout_is_exact(package: ModuleType) -> None:
    for config in VARIANTS.values():
        must_equal(oracle, package, "rollout", make_network(config))


def rollout_options_are_exact(package: ModuleType) -> None:
    for fusion in ("mean", "max", "min"):
        for discard in (0.0, 0.3, 0.9):
            must_equal(oracle, package, "rollout", make_network(PLAIN), fusion=fusion, discard=discard)


def generic_is_exact(package: ModuleType) -> None:
    for config in VARIANTS.values():
        for clamp in ("mean", "head"):
            must_equal(oracle, package, "generic_attention", make_network(config), clamp=clamp)


def generic_is_exact_when_sure(package: ModuleType) -> None:
    """The target's probability is above 0.999, and the map is still that of the logit."""
    network = make_network(PLAIN).double()
    with torch.no_grad():
        network.head.weight.mul_(60.0)
    images = make_images(PLAIN).double()
    logits = network(images)
    assert logits.softmax(dim=1).amax(dim=1).min() > 0.999
    attribution = package.METHODS["generic_attention"].function(network, images)
    wanted = oracle("generic_attention", network, images, logits.argmax(dim=1).tolist())
    assert np.abs(attribution.values.numpy() - wanted).max() <= 1e-10 * np.abs(wanted).max()


def row_is_the_row_of_the_product(package: ModuleType) -> None:
    """T7: the row trick equals full products of independent matrices."""
    generator = np.random.default_rng(0)
    attentions = [generator.dirichlet(np.full(7, 0.5), size=(2, 3, 7)) for _ in range(4)]
    gradients = [generator.normal(size=(2, 3, 7, 7)) for _ in range(4)]
    a, g = [torch.tensor(layer) for layer in attentions], [torch.tensor(layer) for layer in gradients]
    readout = torch.tensor(generator.dirichlet(np.ones(7), size=2))
    for image in range(2):
        ours = [layer[image] for layer in attentions]
        rolled = rollout_matrix(ours, "max", 0.4)
        assert np.abs(rollout_of(layers_of(a), fusion="max", discard=0.4)[image].numpy() - rolled).max() <= 1e-12
        row = rollout_of(layers_of(a), readout, fusion="max", discard=0.4)[image].numpy()
        assert np.abs(row - readout.numpy() @ rolled).max() <= 1e-12
        for clamp in ("mean", "head"):
            relevance = relevance_matrix(ours, [layer[image] for layer in gradients], clamp)
            whole = generic_relevance_of(layers_of(a, g), clamp=clamp)[image].numpy()
            assert np.abs(whole - relevance).max() <= 1e-12 * np.abs(relevance).max()
            row = generic_relevance_of(layers_of(a, g), readout, clamp=clamp)[image].numpy()
            assert np.abs(row - readout.numpy() @ relevance).max() <= 1e-12 * np.abs(relevance).max()


def rows_of_rollout_sum_to_one(package: ModuleType) -> None:
    """T2, for the fusions whose joined rows do not sum to 1 by themselves."""
    attentions = [torch.randn(1, 3, 6, 6, dtype=torch.float64).mul(3).softmax(dim=-1) for _ in range(3)]
    for fusion in ("mean", "max", "min"):
        for discard in (0.0, 0.5, 0.95):
            rows = rollout_of(layers_of(attentions), fusion=fusion, discard=discard)
            assert (rows.sum(dim=-1) - 1).abs().max() <= 1e-12


def maps_roll_with_the_image(package: ModuleType) -> None:
    """T15: without positions, rolling the image by whole patches rolls the map, on a grid that is not square."""
    for config in (VARIANTS[name] for name in SOME_VARIANTS):
        network = make_network(config.from_dict({**vars(config), "positions": "none", "rotary": None}))
        images, targets = make_images(config, 4), torch.arange(4)  # a method that cuts at zero leaves nothing of some
        for rows, columns in ((1, 0), (0, 1), (2, 3)):
            rolled = images.roll((rows * config.patch[0], columns * config.patch[1]), dims=(2, 3))
            for method in map(rough, package.METHODS.values()):
                if draws(method):  # what is drawn does not roll with the image; the files of these methods roll it
                    continue
                before = method.function(network, images, targets).values
                after = method.function(network, rolled, targets).values
                assert before.std() > 0
                off = (after - before.roll((rows, columns), dims=(1, 2))).abs().max()
                assert off <= 1e-5 * max(1, before.abs().max())


def values_are_in_raw_units(package: ModuleType) -> None:
    """Scaling the head by 2 doubles what a last layer alone says: nothing is rescaled per image."""
    network = make_network(PLAIN.from_dict({**vars(PLAIN), "depth": 1})).double()
    images = make_images(PLAIN).double()
    before = package.METHODS["generic_attention"].function(network, images, 1).values
    with torch.no_grad():
        network.head.weight.mul_(2.0)
    after = package.METHODS["generic_attention"].function(network, images, 1).values
    assert (after - 2 * before).abs().max() <= 1e-12 * before.max()
    for method in ("raw_attention", "rollout"):
        assert package.METHODS[method].function(network, images).values.flatten(1).sum(dim=1).max() < 1


def nothing_gives_no_signal(package: ModuleType) -> None:
    """An image of one colour, without positions: every patch is the same, and each method says so."""
    network = make_network(PLAIN.from_dict({**vars(PLAIN), "positions": "none", "rotary": None}))
    images = make_images(PLAIN, 3)
    images[1] = 0.5
    for method in map(rough, package.METHODS.values()):
        attribution = method.function(network, images)
        cut = [not method.signed and not each.any() for each in attribution.values]  # cut at zero, and nothing left
        assert "no signal" in attribution.notes[1]
        assert ["no signal" in attribution.notes[i] for i in (0, 2)] == [cut[0], cut[2]]


CHECKS = (
    raw_is_exact,
    rollout_is_exact,
    rollout_options_are_exact,
    generic_is_exact,
    generic_is_exact_when_sure,
    row_is_the_row_of_the_product,
    rows_of_rollout_sum_to_one,
    maps_roll_with_the_image,
    values_are_in_raw_units,
    nothing_gives_no_signal,
)
