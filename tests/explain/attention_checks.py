"""Checks of attention x gradient on a whole package of explainers, and the faults that they must find.

As in `checks.py`: each check runs on the real package and on copies with a planted fault (test_mutants.py).
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.explain import checks
from tests.explain.attention_reference import gradient_rollout_matrix, oracle
from tests.explain.reference import PLAIN, VARIANTS, make_network

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
        moved = package.gradient_rollout_of(*ours, discard=discard)[0].numpy()
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

GRADIENT_ROLLOUT, GRAD_CAM, LAYERS = "methods/gradient_rollout.py", "methods/attention_grad_cam.py", "layers.py"

# name: (file, text, text with the fault, the checks that must go red)
MUTANTS: dict[str, tuple[str, str, str, tuple[Callable[[ModuleType], None], ...]]] = {
    "gradient rollout: columns divided, not rows (no keepdim)": (
        GRADIENT_ROLLOUT,
        "share = 1 / (1 + raising.sum(dim=-1))[:, None]",
        "share = 1 / (1 + raising.sum(dim=-2)[:, some])[:, None]",
        (gradient_rollout_is_exact, gradient_rollout_rows_sum_to_one),
    ),
    "gradient rollout: gradients of the last layer first": (
        GRADIENT_ROLLOUT,
        "recorded(opened.record, at_attended)",
        "recorded(opened.record, dict(zip(at_attended, reversed(at_attended.values()), strict=True)))",
        (gradient_rollout_is_exact,),
    ),
    "gradient rollout: the pure function, gradients of the last layer first": (
        GRADIENT_ROLLOUT,
        "given_layers(attentions, gradients)",
        "given_layers(attentions, list(reversed(gradients)))",
        (gradient_rollout_rows_sum_to_one,),
    ),
    "gradient rollout: each head clamped before the mean": (
        GRADIENT_ROLLOUT,
        "largest(layer, attention_x_gradient, queries, discard)",
        "largest(layer, lambda *of: attention_x_gradient(*of).clamp(min=0), queries, discard)",
        (gradient_rollout_is_exact, gradient_rollout_rows_sum_to_one),
    ),
    "gradient rollout: no clamp": (
        GRADIENT_ROLLOUT,
        "raising = piece.clamp(min=0)",
        "raising = piece",
        (gradient_rollout_is_exact, gradient_rollout_rows_sum_to_one),
    ),
    "gradient rollout: what stayed in its token shown with the rest": (
        GRADIENT_ROLLOUT,
        "    return moved\n",
        "    return moved + stays\n",
        (gradient_rollout_is_exact, gradient_rollout_rows_sum_to_one),
    ),
    "gradient rollout: from the first layer to the last": (
        GRADIENT_ROLLOUT,
        "for layer in reversed(layers):",
        "for layer in layers:",
        (gradient_rollout_is_exact, gradient_rollout_rows_sum_to_one),
    ),
    "Grad-CAM: each place its own weight": (
        GRAD_CAM,
        "[:, :, opened.prefix :].mean(dim=2, keepdim=True)",
        "",
        (attention_grad_cam_is_exact,),
    ),
    "Grad-CAM: prefix tokens weigh too": (
        GRAD_CAM,
        "[:, :, opened.prefix :].mean(dim=2, keepdim=True)",
        ".mean(dim=2, keepdim=True)",
        (attention_grad_cam_is_exact,),
    ),
    "Grad-CAM: each head clamped before the mean": (
        GRAD_CAM,
        ".mean(dim=1).clamp(min=0)",
        ".clamp(min=0).mean(dim=1)",
        (attention_grad_cam_is_exact,),
    ),
    "Grad-CAM: gradient of another layer": (
        GRAD_CAM,
        "at_attended[place])",
        "opened.record.kept(place).attended)",
        (attention_grad_cam_is_exact,),
    ),
    "head view: one patch too few": (
        "methods/head_view.py",
        "largest.gather(-1, enough.argmax(dim=-1, keepdim=True))",
        "largest.gather(-1, (enough.argmax(dim=-1, keepdim=True) - 1).clamp(min=0))",
        (head_view_is_exact,),
    ),
    "head view: the share of all tokens, not of the patches": (
        "methods/head_view.py",
        "kept = most_of(row[:, opened.prefix :], mass)",
        "kept = most_of(row, mass)[:, opened.prefix :]",
        (head_view_is_exact,),
    ),
    "head view: always the last layer": (
        "methods/head_view.py",
        '    place, heads = f"blocks.{block_of(network, layer)}", heads_of(network, head)',
        '    place, heads = f"blocks.{network.config.depth - 1}", heads_of(network, head)',
        (head_view_is_exact,),
    ),
    "AttCAT: without its sign": (
        "methods/attcat.py",
        "(wide(output.detach()) * wide(gradient)).sum(dim=-1)",
        "(wide(output.detach()) * wide(gradient)).sum(dim=-1).abs()",
        (attcat_is_exact,),
    ),
    "AttCAT: the gradient alone": (
        "methods/attcat.py",
        "wide(output.detach()) * wide(gradient)",
        "wide(gradient)",
        (attcat_is_exact,),
    ),
    "AttCAT: the mean over the tokens that are looked at": (
        LAYERS,
        "total += piece.sum(dim=1)",
        "total[:, _] += piece.sum(dim=2)",
        (attcat_is_exact, legrad_is_exact),
    ),
    "TAM: a probability": (
        "methods/tam.py",
        "opened.aim.of(logits).sum()",
        "opened.aim.of(logits.softmax(dim=-1)).sum()",
        (tam_is_exact,),
    ),
    "TAM: the gradient at the picture alone": ("methods/tam.py", "(step + 1) / steps)", "1.0)", (tam_is_exact,)),
    "TAM: without the walk": ("methods/tam.py", "reversed(before[first:])", "before[:0]", (tam_is_exact,)),
    "TAM: walked from the first layer": (
        "methods/tam.py",
        "reversed(before[first:])",
        "before[first:]",
        (tam_is_exact,),
    ),
    "TAM: each step clamped before the mean": (
        "methods/tam.py",
        "values[:, heads])) for",
        "values[:, heads]).clamp(min=0)) for",
        (tam_is_exact,),
    ),
    "TAM: nothing kept of what is after": (
        "methods/tam.py",
        "states = states + times(",
        "states = times(",
        (tam_is_exact,),
    ),
    "LeGrad: the logit's own gradient in every layer": (
        "methods/legrad.py",
        'score(network, record[f"{place}.output"], aim)',
        'score(network, record[f"{record.attentions()[-1]}.output"], aim)',
        (legrad_is_exact,),
    ),
    "LeGrad: read from the class token": (
        "methods/legrad.py",
        'if network.config.pooling == "class":',
        "if False:",
        (legrad_is_exact,),
    ),
    "LeGrad: no clamp": ("methods/legrad.py", ".clamp(min=0)", "", (legrad_is_exact,)),
    "LeGrad: times the attention": (
        "methods/legrad.py",
        "return layer.gradient(heads, queries)",
        "return layer.weights(heads, queries) * layer.gradient(heads, queries)",
        (legrad_is_exact,),
    ),
    "a piece of heads forgotten": (
        LAYERS,
        "heads_at_once = min(rows, len(heads))",
        "heads_at_once = min(rows, len(heads))\n    heads = heads[: max(1, len(heads) - 1)]",
        (gradient_rollout_is_exact, attcat_is_exact, tam_is_exact, legrad_is_exact),
    ),
}
