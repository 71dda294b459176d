"""The linear head that fits features best: a convex loss with a penalty, which cross-validation chooses.

A linear map is the solution of a convex problem, so it needs no schedule and is the same every time; fine-tuning from
it does not distort the features at first (Kumar, Raghunathan, Jones, Ma and Liang, "Fine-tuning can
distort pretrained features and underperform out-of-distribution", ICLR 2022).
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from vitrail.tasks.codec import Codec

PENALTIES = tuple(10.0**power for power in range(1, -7, -1))  # of squared weights, beside the mean loss
FOLDS = 5
ONE_FOLD = 5_000  # samples from which on a penalty is evaluated on one fold only
Folds = Int[Tensor, " n"] | None
STEPS, FEW_STEPS = 100, 25  # of L-BFGS at most: for the map, and to evaluate a penalty


class LinearFit(NamedTuple):
    """A fitted head.

    Attributes:
        weights: (v, d + 1) float64: weights, and the bias last.
        penalty: On squared weights, chosen by cross-validation.
        outputs: Of samples, each by a map that was fitted on the others; NaN of what was not held out.
    """

    weights: Float[Tensor, "v d_and_1"]
    penalty: float
    outputs: Float[Tensor, "n v"]


def linear_map(
    codec: "Codec",
    values: Float[Tensor, "n d"],
    targets: Tensor,
    penalty: float,
    start: Tensor | None = None,
    steps: int = STEPS,
    loss: Any = None,
) -> Float[Tensor, "v d_and_1"]:
    """The map that minimises the codec's mean loss and half the penalty times squared weights, by L-BFGS.

    Args:
        codec: Of the targets; its loss is convex in its v outputs.
        values: Of training samples.
        targets: (n, ...), as the loss takes them.
        penalty: Above 0; for cross-entropy that of scikit-learn is 1 / (C n). Biases are free.
        start: Initial map; zero when None.
        steps: Of L-BFGS at most.
        loss: In place of the codec's.

    Returns:
        (v, d + 1) float64: weights, and the bias last.
    """
    x = torch.cat([values.double(), torch.ones(len(values), 1, dtype=torch.float64)], dim=1)
    both = torch.zeros(codec.outputs, x.shape[1], dtype=torch.float64) if start is None else start.clone()
    targets = targets.double() if targets.is_floating_point() else targets  # torch's losses take one precision
    both.requires_grad_(True)
    loss = loss or codec.loss
    solver = torch.optim.LBFGS(
        [both], max_iter=steps, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        solver.zero_grad()
        mean = loss(x @ both.T, targets) + 0.5 * penalty * both[:, :-1].square().sum()
        mean.backward()
        return mean

    with torch.enable_grad():
        solver.step(objective)
    return both.detach()


def map_features(values: Float[Tensor, "n d"], weights: Float[Tensor, "v d_and_1"]) -> Float[Tensor, "n v"]:
    """What a map gives for features, in float64."""
    return values.double() @ weights[:, :-1].T + weights[:, -1]


def folds_of(codec: "Codec", targets: Tensor, units: Int[np.ndarray, " n"] | None = None) -> Int[Tensor, " n"]:
    """The fold of each sample, from 0: by the codec's `strata`, if it has some, each has its part of those alike.

    Args:
        codec: Of the targets.
        targets: (n, ...).
        units: Samples of one number are in one fold; each is alone when None.
    """
    units = np.arange(len(targets)) if units is None else units
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    strata = torch.zeros(len(targets), dtype=torch.long) if codec.strata is None else codec.strata(targets)
    strata, place = strata[first], torch.zeros(len(first), dtype=torch.long)  # of a unit among those like it
    for each in strata.unique():
        place[strata == each] = torch.arange(int((strata == each).sum()))
    return (place % FOLDS)[unit]


def choose_penalty(
    codec: "Codec", values: Float[Tensor, "n d"], targets: Tensor, folds: Folds = None, loss: Any = None
) -> tuple[float, Float[Tensor, "n v"]]:
    """The penalty with the least cross-validated loss on the training samples.

    Args:
        codec: Of the targets.
        values: Of training samples.
        targets: (n, ...).
        folds: Of each sample, all of which are held out in turn; as `folds_of` has them when None, and of many samples
            one is held out alone.
        loss: In place of the codec's.

    Returns:
        The penalty, and the outputs under it, each by a map fitted on other folds; NaN of what was not held out.
    """
    count = FOLDS if folds is not None or len(values) < ONE_FOLD else 1
    folds = folds_of(codec, targets) if folds is None else folds
    losses, nothing = dict.fromkeys(PENALTIES, 0.0), torch.full((len(values), codec.outputs), torch.nan).double()
    outputs = {penalty: nothing.clone() for penalty in PENALTIES}
    for fold in range(count):
        held, found = folds == fold, None
        if not held.any() or held.all():
            continue
        for penalty in PENALTIES:  # each begins where the stronger one before it ended
            found = linear_map(codec, values[~held], targets[~held], penalty, found, FEW_STEPS, loss)
            outputs[penalty][held] = answers = map_features(values[held], found)
            losses[penalty] += float((loss or codec.loss)(answers, targets[held], reduction="sum"))
    best = min(losses, key=lambda penalty: (losses[penalty], -penalty))
    return best, outputs[best]


def held_out_outputs(
    codec: "Codec", features: Float[Tensor, "n d"], targets: Tensor, units: Int[np.ndarray, " n"]
) -> Float[Tensor, "n v"]:
    """What a linear head gives for each sample, fitted on the samples of the other folds: see `folds_of`.

    Args:
        codec: Of the targets.
        features: What a head reads.
        targets: (n, ...), of each class in two folds or more.
        units: Samples of one number are in one fold.
    """
    return choose_penalty(codec, _standardised(features)[0], targets, folds_of(codec, targets, units))[1]


def _standardised(features: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Features of mean 0 and standard deviation 1, which were these."""
    std, mean = torch.std_mean(features.double(), dim=0, correction=0)
    std = std.clamp(min=1e-6 * float(std.max().clamp(min=1e-30)))  # for features that never change
    return (features.double() - mean) / std, mean, std


def fit_linear(codec: "Codec", features: Float[Tensor, "n d"], targets: Tensor, loss: Any = None) -> LinearFit:
    """The head that fits features best; they are standardised for that, and the head is of them as they are.

    Args:
        codec: Of the targets.
        features: What a head reads, of training samples.
        targets: (n, ...).
        loss: In place of the codec's.
    """
    standard, mean, std = _standardised(features)
    penalty, outputs = choose_penalty(codec, standard, targets, loss=loss)
    both = linear_map(codec, standard, targets, penalty, loss=loss)
    weight = both[:, :-1] / std
    return LinearFit(torch.cat([weight, (both[:, -1] - weight @ mean)[:, None]], dim=1), penalty, outputs)
