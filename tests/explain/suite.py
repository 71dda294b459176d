"""What the suites over all methods know of them beside `METHODS`: cheap options, and what they do not read.

A method that is not named here is expected to read attention weights, to differentiate where it tells classes apart,
and to point at the digit of a class among two.
"""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.explain import outside
from tests.explain.reference import VARIANTS
from vitrail.explain import METHODS, Method

# options under which a method is cheap enough to be run a thousand times
QUICK: dict[str, dict[str, Any]] = {
    "smooth_grad": {"samples": 4},
    "integrated_gradients": {"steps": 16, "batch_size": 1024},
    "rise": {"masks": 60, "cells": 3, "batch_size": 1024},
    "kernel_shap": {"samples": 176, "batch_size": 1024},
    "occlusion": {"batch_size": 1024},
    "tam": {"steps": 2},
}

# where only the place of values counts, and not what they are worth
ROUGH = QUICK | {"integrated_gradients": {"steps": 3, "tolerance": None}}

# on the networks of the lab, whose 64 patches KernelSHAP wants at least 512 samples for
ON_THE_LAB = QUICK | {
    "kernel_shap": {"samples": 512, "batch_size": 1024},
    "integrated_gradients": {"batch_size": 1024},
    "tam": {},
}

# they ask the network with images that are partly masked, and need no gradient
BY_MASKING = {"occlusion", "rise", "kernel_shap"}
# they look at pixels or tokens, so an attention of any kind will do
WITHOUT_WEIGHTS = BY_MASKING | {
    "saliency",
    "input_x_gradient",
    "smooth_grad",
    "integrated_gradients",
    "grad_cam",
    "hires_cam",
}

# they cut at zero after heads or channels are joined, so that nothing may be left of an image
CUT_AT_ZERO = {"attention_grad_cam", "grad_cam"}

# they know rules for the standard parts only, and refuse any other
STANDARD_PARTS = {"conservative"}

# their maps differ from class to class, and yet do not find a class's own digit among two (test_digits_lab.py)
UNSURE = {"saliency", "smooth_grad", "grad_cam", "hires_cam", "attention_grad_cam", "attcat", "tam"}


def quick(method: Method, options: dict[str, dict[str, Any]] = QUICK) -> Method:
    """The same method with cheap options."""
    return replace(method, function=partial(method.function, **options.get(method.name, {})))


def rough(method: Method) -> Method:
    """The same method with the cheapest options."""
    return quick(method, ROUGH)


def differentiates(method: Method) -> bool:
    """Whether a method asks for a gradient of the explained number."""
    return method.class_specific and method.name not in BY_MASKING


def draws(method: Method) -> bool:
    """Whether a method draws random numbers: then it has a seed."""
    return takes(method, "seed")


def takes(method: Method, option: str) -> bool:
    """Whether a method has an option of this name."""
    function = method.function.func if type(method.function) is partial else method.function
    return option in inspect.signature(function).parameters


# All methods read a network by the same functions, so two of them meet every variant, and the others three that differ
# most: both poolings, none and several tokens in front of the patches, one head and two; no token in long tests alone.
SOME_VARIANTS = ("class-5-distilled", "mean-0", "mean-2-register")
IN_SOAK = "mean-0"
IN_EVERY_VARIANT = {"generic_attention", "conservative"}

# One from outside passes the same, which shows that a row is all that a suite wants to know.
EVERY = {**METHODS, outside.METHOD.name: outside.METHOD}

every_method = pytest.mark.parametrize("method", [quick(method) for method in EVERY.values()], ids=EVERY)
every_method_and_variant = pytest.mark.parametrize(
    ("method", "config"),
    [
        pytest.param(
            quick(method),
            VARIANTS[variant],
            id=f"{name}-{variant}",
            marks=pytest.mark.soak if variant == IN_SOAK and name not in IN_EVERY_VARIANT else (),
        )
        for name, method in EVERY.items()
        for variant in (VARIANTS if name in IN_EVERY_VARIANT else SOME_VARIANTS)
    ],
)
