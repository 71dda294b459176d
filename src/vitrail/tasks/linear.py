"""The linear head that fits features best: a convex loss with a penalty, which cross-validation chooses.

A linear map is the solution of a convex problem, so it needs no schedule and is the same every time; fine-tuning from
it does not distort the features at first (Kumar, Raghunathan, Jones, Ma and Liang, "Fine-tuning can
distort pretrained features and underperform out-of-distribution", ICLR 2022).
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from vitrail.tasks.codec import Codec

PENALTIES = tuple(10.0**power for power in range(1, -7, -1))  # of squared weights, beside the mean loss
FOLDS = 5
ONE_FOLD = 5_000  # samples from which on a penalty is evaluated on one fold only
STEPS, FEW_STEPS = 100, 25  # of L-BFGS at most: for the map, and to evaluate a penalty


class LinearFit(NamedTuple):
    """A fitted head.

    Attributes:
        weights: (v, d + 1) float64: weights, and the bias last.
        penalty: On squared weights, chosen by cross-validation.
        errors: Of samples, each by a map that was fitted on the others.
    """

    weights: Float[Tensor, "v d_and_1"]
    penalty: float
    errors: Float[Tensor, " n"]


def linear_map(
    codec: "Codec",
    values: Float[Tensor, "n d"],
    targets: Tensor,
    penalty: float,
    start: Tensor | None = None,
    steps: int = STEPS,
) -> Float[Tensor, "v d_and_1"]:
    """The map that minimises the codec's mean loss and half the penalty times squared weights, by L-BFGS.

    Args:
        codec: Of the targets; its loss is convex in its v outputs.
        values: Of training samples.
        targets: (n, ...), as the loss takes them.
        penalty: Above 0; for cross-entropy that of scikit-learn is 1 / (C n). Biases are free.
        start: Initial map; zero when None.
        steps: Of L-BFGS at most.

    Returns:
        (v, d + 1) float64: weights, and the bias last.
    """
    x = torch.cat([values.double(), torch.ones(len(values), 1, dtype=torch.float64)], dim=1)
    both = torch.zeros(codec.outputs, x.shape[1], dtype=torch.float64) if start is None else start.clone()
    targets = targets.double() if targets.is_floating_point() else targets  # torch's losses take one precision
    both.requires_grad_(True)
    solver = torch.optim.LBFGS(
        [both], max_iter=steps, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        solver.zero_grad()
        mean = codec.loss(x @ both.T, targets) + 0.5 * penalty * both[:, :-1].square().sum()
        mean.backward()
        return mean

    with torch.enable_grad():
        solver.step(objective)
    return both.detach()


def map_features(values: Float[Tensor, "n d"], weights: Float[Tensor, "v d_and_1"]) -> Float[Tensor, "n v"]:
    """What a map gives for features, in float64."""
    return values.double() @ weights[:, :-1].T + weights[:, -1]


def choose_penalty(codec: "Codec", values: Float[Tensor, "n d"], targets: Tensor) -> tuple[float, Float[Tensor, " m"]]:
    """The penalty with the least cross-validated loss on the training samples.

    Args:
        codec: Of the targets; by its `strata`, if it has some, each fold has its part of those that are alike.
        values: Of training samples.
        targets: (n, ...).

    Returns:
        The penalty, and the errors under it of the samples that were held out.
    """
    strata = torch.zeros(len(values), dtype=torch.long) if codec.strata is None else codec.strata(targets)
    place = torch.zeros_like(strata)  # of a sample among those like it
    for each in strata.unique():
        own = strata == each
        place[own] = torch.arange(int(own.sum()))
    losses, errors = dict.fromkeys(PENALTIES, 0.0), {penalty: list[Tensor]() for penalty in PENALTIES}
    for fold in range(FOLDS if len(values) < ONE_FOLD else 1):
        held, found = place % FOLDS == fold, None
        if not held.any() or held.all():
            continue
        for penalty in PENALTIES:  # each begins where the stronger one before it ended
            found = linear_map(codec, values[~held], targets[~held], penalty, found, FEW_STEPS)
            answers = map_features(values[held], found)
            losses[penalty] += float(codec.loss(answers, targets[held], reduction="sum"))
            errors[penalty].append(codec.error(answers, targets[held]))
    best = min(losses, key=lambda penalty: (losses[penalty], -penalty))
    return best, torch.cat(errors[best]) if errors[best] else torch.zeros(0)


def fit_linear(codec: "Codec", features: Float[Tensor, "n d"], targets: Tensor) -> LinearFit:
    """The head that fits features best; they are standardised for that, and the head is of them as they are.

    Args:
        codec: Of the targets.
        features: What a head reads, of training samples.
        targets: (n, ...).
    """
    std, mean = torch.std_mean(features.double(), dim=0, correction=0)
    std = std.clamp(min=1e-6 * float(std.max().clamp(min=1e-30)))  # for features that never change
    standard = (features.double() - mean) / std
    penalty, errors = choose_penalty(codec, standard, targets)
    both = linear_map(codec, standard, targets, penalty)
    weight = both[:, :-1] / std
    return LinearFit(torch.cat([weight, (both[:, -1] - weight @ mean)[:, None]], dim=1), penalty, errors)
