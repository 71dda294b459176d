"""Checks of attention x gradient, run on the package as it is and with planted faults (test_mutants.py)."""

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.explain import checks
from tests.explain.attention_reference import gradient_rollout_matrix, oracle
from tests.explain.layers import layers_of
from tests.explain.reference import PLAIN, VARIANTS, make_network
from vitrail.explain.methods.gradient_rollout import gradient_rollout_of

must_equal = partial(checks.must_equal, oracle, targets=(2, 0, 1, 3))


def must_equal_everywhere(package: ModuleType, method: str, **options: Any) -> None:
    for config in VARIANTS.values():
        must_equal(package, method, make_network(config, seed=1), **options)


def gradient_rollout_is_exact(package: ModuleType) -> None:
    must_equal_everywhere(package, "gradient_rollout")
    for discard in (0.3, 0.9):
        must_equal(package, "gradient_rollout", make_network(PLAIN), discard=discard)


def gradient_rollout_rows_sum_to_one(package: ModuleType) -> None:
    """With what stayed in its token: what a row of R has in all, for gradients of any size (T2)."""
    generator = np.random.default_rng(0)
    attentions = [generator.dirichlet(np.full(7, 0.5), size=(1, 3, 7)) for _ in range(4)]
    gradients = [generator.normal(size=(1, 3, 7, 7)) for _ in range(4)]
    ours = [[torch.tensor(each) for each in layers] for layers in (attentions, gradients)]
    for discard in (0.0, 0.4, 0.8):
        moved = gradient_rollout_of(layers_of(*ours), discard=discard)[0].numpy()
        wanted = gradient_rollout_matrix([a[0] for a in attentions], [g[0] for g in gradients], discard)
        assert np.abs(moved - wanted).max() <= 1e-12
        assert moved.min() >= 0
        assert 0.01 < moved.sum(axis=1).min() <= moved.sum(axis=1).max() < 1


def attention_grad_cam_is_exact(package: ModuleType) -> None:
    must_equal_everywhere(package, "attention_grad_cam")
    must_equal(package, "attention_grad_cam", make_network(PLAIN, seed=1), layer=1)


def head_view_is_exact(package: ModuleType) -> None:
    must_equal_everywhere(package, "head_view")
    for options in ({"head": 1}, {"mass": 0.25, "layer": 0}, {"mass": 1.0}, {"head": 0, "layer": -2, "mass": 0.9}):
        must_equal(package, "head_view", make_network(PLAIN), **options)


def attcat_is_exact(package: ModuleType) -> None:
    must_equal_everywhere(package, "attcat")


def tam_is_exact(package: ModuleType) -> None:
    must_equal_everywhere(package, "tam", steps=3)
    for options in ({}, {"steps": 1}, {"steps": 2, "first_layer": 0}, {"steps": 2, "first_layer": -1}):
        must_equal(package, "tam", make_network(PLAIN), **options)


def legrad_is_exact(package: ModuleType) -> None:
    must_equal_everywhere(package, "legrad")
    must_equal(package, "legrad", make_network(PLAIN), first_layer=-2)


CHECKS = (
    gradient_rollout_is_exact,
    gradient_rollout_rows_sum_to_one,
    attention_grad_cam_is_exact,
    head_view_is_exact,
    attcat_is_exact,
    tam_is_exact,
    legrad_is_exact,
)
