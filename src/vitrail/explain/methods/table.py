"""The lists of methods; what each shows, what it costs, and what it cannot tell stands in the row of its own file."""

import difflib

from vitrail.explain.methods import (
    attcat,
    attention_grad_cam,
    conservative,
    cross_attention,
    generic_attention,
    grad_cam,
    gradient_rollout,
    head_view,
    hires_cam,
    input_x_gradient,
    integrated_gradients,
    kernel_shap,
    legrad,
    occlusion,
    raw_attention,
    rise,
    rollout,
    saliency,
    smooth_grad,
    tam,
)
from vitrail.explain.methods.method import Method

METHODS: dict[str, Method] = {
    file.METHOD.name: file.METHOD
    for file in (
        raw_attention,
        rollout,
        head_view,
        gradient_rollout,
        attention_grad_cam,
        generic_attention,
        legrad,
        attcat,
        tam,
        saliency,
        input_x_gradient,
        smooth_grad,
        integrated_gradients,
        grad_cam,
        hires_cam,
        occlusion,
        rise,
        kernel_shap,
        conservative,
    )
}
# The target of these is what an image-to-sequence network wrote, and a map belongs to each of its tokens.
METHODS_OF_TEXTS: dict[str, Method] = {file.METHOD.name: file.METHOD for file in (cross_attention,)}

DEFAULT = generic_attention.METHOD.name
_NEAR = 0.52  # likeness from which on an unknown name is taken for a method's; at one half it is chance


def nearest_method(name: str) -> str:
    """The method whose name looks most like this one; the default where none does."""
    return next(iter(difflib.get_close_matches(name, METHODS, 1, _NEAR)), DEFAULT)
