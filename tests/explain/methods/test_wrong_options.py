"""Options that no method can work with: each is refused by its name and value, and what the hint says works."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.explain.layers import layers_of
from tests.explain.reference import PLAIN, make_images, make_network
from tests.explain.refused import must_refuse, must_refuse_and_say_what_works
from vitrail.explain import METHODS
from vitrail.explain.methods.gradient_rollout import gradient_rollout_of
from vitrail.explain.methods.rollout import rollout_of

pytestmark = pytest.mark.usefixtures("as_a_user")

FUNCTIONS: dict[str, Callable[..., Any]] = {name: method.function for name, method in METHODS.items()}
NAN = math.nan

# (function, option, values that are refused, options beside it)
WRONG: list[tuple[str, str, list[Any], dict[str, Any]]] = [
    ("raw_attention", "layer", [3, -4], {}),
    ("raw_attention", "head", [2, -1], {}),
    ("head_view", "layer", [3, -4], {}),
    ("head_view", "head", [2, -1], {}),
    ("head_view", "mass", [0.0, 1.5, NAN], {}),
    ("rollout", "fusion", ["maxx"], {}),
    ("rollout", "discard", [-0.1, 1.0, NAN], {}),
    ("gradient_rollout", "discard", [-0.1, 1.0, NAN], {}),
    ("generic_attention", "clamp", ["heads"], {}),
    ("attention_grad_cam", "layer", [3], {}),
    ("legrad", "first_layer", [3], {}),
    ("tam", "first_layer", [-4], {"steps": 1}),
    ("tam", "steps", [0], {}),
    ("conservative", "at", ["token"], {}),
    *(
        (name, "layer", ["blocks.3.norm1", "blocks.2.nrm1", "blocks.2.attention", "pooled", "", "*", 2], {})
        for name in ("grad_cam", "hires_cam")
    ),
    ("smooth_grad", "samples", [0, 2.5], {}),
    ("smooth_grad", "noise", [-0.1, NAN], {"samples": 2}),
    ("smooth_grad", "batch_size", [0], {"samples": 2}),
    ("integrated_gradients", "steps", [0], {}),
    ("integrated_gradients", "tolerance", [0.0, 1.5], {"steps": 4}),
    ("integrated_gradients", "baseline", ["black"], {"steps": 4}),
    ("rise", "masks", [0], {}),
    ("rise", "cells", [0], {"masks": 9}),
    ("rise", "visible", [0, 1.0], {"masks": 9}),
    ("rise", "fill", ["blur"], {"masks": 9}),
    ("kernel_shap", "samples", [119, -1], {}),
    ("occlusion", "window", [4, 0, (1, 2, 3)], {}),
    ("occlusion", "stride", [1.5, 3], {"window": 2}),
    ("occlusion", "fill", ["grey"], {}),
    ("occlusion", "batch_size", [0], {}),
]


@pytest.mark.parametrize(("name", "option", "values", "beside"), WRONG, ids=[f"{row[0]}-{row[1]}" for row in WRONG])
def test_a_wrong_option_is_told_a_right_one(name: str, option: str, values: list[Any], beside: dict[str, Any]) -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    for value in values:
        given = f"{value}x{value}" if option in ("window", "stride") and type(value) is int else value
        must_refuse_and_say_what_works(
            lambda **options: FUNCTIONS[name](network, images, **options), option, given, **{**beside, option: value}
        )


@pytest.mark.parametrize("name", ["occlusion", "rise", "kernel_shap", "integrated_gradients"])
def test_what_does_not_fit_the_images_is_refused(name: str) -> None:
    option = "baseline" if name == "integrated_gradients" else "fill"
    for value, given in (([0.0, 0.0, 0.0], "2 channels"), (torch.zeros(3, 2, 12, 10), "(3, 2, 12, 10)")):
        with must_refuse(option, given):
            FUNCTIONS[name](make_network(PLAIN), make_images(PLAIN), **{option: value})


def test_pure_functions_of_layers_that_do_not_fit_are_refused() -> None:
    one = torch.eye(3)[None, None]
    with must_refuse("discard", 1.5):
        gradient_rollout_of(layers_of([one], [one]), discard=1.5)
    with must_refuse("discard", 1.5):
        rollout_of(layers_of([one]), discard=1.5)
