"""The probe of pretrained features before a training: nearest neighbours, and a linear map that becomes the head.

    features     the input of the head for every image, computed once
    neighbours   each image is classified by its five nearest training images, by cosine
    linear map   logistic regression on standardised features, with the penalty that is best by cross-validation on the
                 training images

A linear map is the solution of a convex problem, so it needs no schedule and is the same every time; fine-tuning from
it does not distort the features at first (Kumar, Raghunathan, Jones, Ma and Liang, "Fine-tuning can
distort pretrained features and underperform out-of-distribution", ICLR 2022).
"""

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.data.batches import Batches
from vitrail.errors import DataError
from vitrail.features.poolings import head_features, heads_of
from vitrail.features.similar import nearest
from vitrail.nn import ViT

PENALTIES = tuple(10.0**power for power in range(1, -7, -1))  # of squared weights, beside the mean loss in nats
FOLDS = 5
ONE_FOLD = 5_000  # images from which on a penalty is evaluated on one fold only
STEPS, FEW_STEPS = 100, 25  # of L-BFGS at most: for the map, and to evaluate a penalty


@dataclass(frozen=True)
class Probed:
    """The result of a probe.

    Attributes:
        neighbours: Accuracy of the nearest neighbours on held-out images.
        accuracy: Of the linear map on held-out images.
        cross_validated: Accuracy on training images, each by a map that was fitted on the others.
        penalty: On squared weights, chosen by it.
        images: Number of held-out images.
        trained: Number of training images.
        seconds: Of all.
        reading: Of these, for the features.
    """

    neighbours: float
    accuracy: float
    cross_validated: float
    penalty: float
    images: int
    trained: int
    seconds: float
    reading: float


def logistic(
    values: Float[Tensor, "n d"],
    labels: Int[Tensor, "n"],
    classes: int,
    penalty: float,
    start: Tensor | None = None,
    steps: int = STEPS,
) -> Float[Tensor, "v d_and_1"]:
    """Logistic regression: the map that minimises the mean cross-entropy and half the penalty times squared weights.

    Args:
        values: Of training images.
        labels: Their classes.
        classes: Their number, whether they occur or not.
        penalty: Above 0; that of scikit-learn is 1 / (C n). Biases are free.
        start: Initial map; zero when None.
        steps: Of L-BFGS at most.

    Returns:
        (classes, d + 1) float64: weights, and the bias last.
    """
    x = torch.cat([values.double(), torch.ones(len(values), 1, dtype=torch.float64)], dim=1)
    both = torch.zeros(classes, x.shape[1], dtype=torch.float64) if start is None else start.clone()
    both.requires_grad_(True)
    solver = torch.optim.LBFGS(
        [both], max_iter=steps, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        solver.zero_grad()
        mean = F.cross_entropy(x @ both.T, labels) + 0.5 * penalty * both[:, :-1].square().sum()
        mean.backward()
        return mean

    with torch.enable_grad():
        solver.step(loss)
    return both.detach()


def choose_penalty(values: Float[Tensor, "n d"], labels: Int[Tensor, "n"], classes: int) -> tuple[float, float]:
    """The penalty with the least cross-validated loss on the training images.

    Folds are cut class by class, so that each has its part of every class.

    Returns:
        The penalty, and the fraction of these images that is classified correctly under it.
    """
    place = torch.zeros_like(labels)  # of an image among those of its class
    for label in labels.unique():
        own = labels == label
        place[own] = torch.arange(int(own.sum()))
    folds = range(FOLDS if len(labels) < ONE_FOLD else 1)
    losses, right, count = dict.fromkeys(PENALTIES, 0.0), dict.fromkeys(PENALTIES, 0), 0
    for fold in folds:
        held, found = place % FOLDS == fold, None
        if not held.any() or held.all():
            continue
        count += int(held.sum())
        for penalty in PENALTIES:  # each begins where the stronger one before it ended
            found = logistic(values[~held], labels[~held], classes, penalty, found, FEW_STEPS)
            answers = _answers(values[held], found)
            losses[penalty] += float(F.cross_entropy(answers, labels[held], reduction="sum"))
            right[penalty] += int((answers.argmax(dim=1) == labels[held]).sum())
    best = min(losses, key=lambda penalty: (losses[penalty], -penalty))
    return best, right[best] / max(1, count)


def _answers(values: Tensor, both: Tensor) -> Tensor:
    return values.double() @ both[:, :-1].T + both[:, -1]


@torch.no_grad()
def put_into_heads(network: ViT, both: Float[Tensor, "v d_and_1"]) -> None:
    """Make this linear map the head; two heads divide it, since their mean is taken."""
    maps = heads_of(network)
    weights = both[:, :-1].split([one.in_features for one in maps], dim=1)
    for one, weight in zip(maps, weights, strict=True):
        one.weight.copy_(len(maps) * weight)
        one.bias.copy_(both[:, -1])


def probe(network: ViT, train: Batches, held_out: Batches) -> Probed:
    """Fit the head of a network on its features, and evaluate it on held-out images.

    Args:
        network: Gets the linear map as its head; all else is unchanged.
        train: Training images, preprocessed as for an evaluation.
        held_out: Images to evaluate it on.

    Raises:
        UsageError: The head is no linear map.
        DataError: No image can be read, or there is one class only.
    """
    began = time.perf_counter()
    known, unseen = head_features(network, train), head_features(network, held_out)
    reading = time.perf_counter() - began
    if len(known.labels.unique()) < 2:
        raise DataError("all training images are of one class", "images of two")
    classes = heads_of(network)[0].out_features
    std, mean = torch.std_mean(known.values.double(), dim=0, correction=0)
    std = std.clamp(min=1e-6 * float(std.max().clamp(min=1e-30)))  # for features that never change
    standard = (known.values.double() - mean) / std
    penalty, cross_validated = choose_penalty(standard, known.labels, classes)
    both = logistic(standard, known.labels, classes, penalty)
    weight = both[:, :-1] / std
    both = torch.cat([weight, (both[:, -1] - weight @ mean)[:, None]], dim=1)
    put_into_heads(network, both)
    right = _answers(unseen.values, both).argmax(dim=1) == unseen.labels
    near = nearest(known, unseen) == unseen.labels
    return Probed(
        neighbours=float(near.double().mean()),
        accuracy=float(right.double().mean()),
        cross_validated=cross_validated,
        penalty=penalty,
        images=len(right),
        trained=len(known.labels),
        seconds=time.perf_counter() - began,
        reading=reading,
    )
