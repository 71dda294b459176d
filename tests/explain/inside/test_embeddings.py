"""Likeness of positions and principal patch filters, against loops and scikit-learn."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from lessons.parts import LinearPatchEmbedding, convolution_to_linear
from tests.explain.reference import PLAIN, VARIANTS, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.inside import patch_filters, position_similarity
from vitrail.nn import STANDARD, Parts, PatchEmbedding, ViT, ViTConfig


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_likeness_is_the_cosine_of_patches(config: ViTConfig) -> None:
    network = make_network(config).double()
    found = position_similarity(network)
    assert found.shape == (3, 5, 3, 5)
    assert not found.requires_grad
    positions = network.pos_embed[0].tolist()[config.prefix :]
    for i in range(15):
        for j in range(15):
            dot = sum(a * b for a, b in zip(positions[i], positions[j], strict=True))
            wanted = dot / math.hypot(*positions[i]) / math.hypot(*positions[j])
            assert float(found[i // 5, i % 5, j // 5, j % 5]) == pytest.approx(wanted, abs=1e-12)


def test_positions_of_another_grid_and_of_other_kinds() -> None:
    resized = position_similarity(make_network(PLAIN), (2, 7))
    assert resized.shape == (2, 7, 2, 7)
    assert (resized.flatten(2).flatten(0, 1).diagonal() - 1).abs().max() <= 1e-6
    plane = position_similarity(ViT(replace(PLAIN, positions="sinusoidal-2d")))
    assert (plane[1, 2] - plane[1, 2, 1, 2]).max() <= 0
    with must_refuse("positions"):
        position_similarity(ViT(replace(PLAIN, positions="none")))


def test_a_patch_without_any_position_is_like_none() -> None:
    network = make_network(PLAIN)
    with torch.no_grad():
        network.pos_embed[0, 1 + 7] = 0.0
    found = position_similarity(network)
    assert found.isfinite().all()
    assert found[1, 2].abs().max() == 0


def test_filters_are_principal_components() -> None:
    """Against scikit-learn: 40 filters of 2 x 4 x 2 = 16 numbers."""
    network = make_network(replace(PLAIN, width=40, head_dim=None, heads=4)).double()
    found = patch_filters(network, 5)
    flat = network.patch_embed.proj.weight.detach().flatten(1).numpy()
    reference = PCA(n_components=5, svd_solver="full").fit(flat)
    assert found.filters.shape == (5, 2, 4, 2)
    assert np.abs(found.explained.numpy() - reference.explained_variance_ratio_).max() <= 1e-12
    ours = found.filters.flatten(1).numpy()
    signs = np.sign((ours * reference.components_).sum(axis=1, keepdims=True))
    assert np.abs(ours - signs * reference.components_).max() <= 1e-10
    largest = np.abs(ours).argmax(axis=1)
    assert (ours[np.arange(5), largest] > 0).all()
    assert (flat - flat.mean(axis=0)).std() > 0
    assert np.abs(flat.mean(axis=0)).max() > 1e-3  # so that centring makes a difference


def test_all_filters_explain_everything() -> None:
    found = patch_filters(make_network(PLAIN).double(), 1000)
    assert len(found.explained) == 12
    assert float(found.explained.sum()) == pytest.approx(1, abs=1e-12)
    assert (found.explained.diff() <= 1e-15).all()
    assert len(patch_filters(make_network(PLAIN)).filters) == 12


@pytest.mark.parametrize("flattening", ["c h w", "h w c", "w h c"])
def test_a_linear_patch_map_has_the_filters_of_its_convolution(flattening: str) -> None:
    network = make_network(PLAIN).double()
    parts = replace(
        STANDARD,
        embedding=lambda c: LinearPatchEmbedding(c.channels, c.width, c.patch, c.embed_bias, flattening=flattening),
    )
    linear = ViT(PLAIN, parts).double()
    with torch.no_grad():
        linear.patch_embed.proj.weight.copy_(convolution_to_linear(network.patch_embed.proj.weight, flattening))
    assert (patch_filters(linear, 8).filters - patch_filters(network, 8).filters).abs().max() <= 1e-10


def test_a_patch_map_that_is_not_linear_is_refused() -> None:
    bent = Parts(embedding=lambda c: nn.Sequential(PatchEmbedding(c.channels, c.width, c.patch), nn.GELU()))
    with must_refuse("Sequential"):
        patch_filters(ViT(PLAIN, bent))
