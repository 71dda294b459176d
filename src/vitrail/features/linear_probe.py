"""The probe of pretrained features before a training: nearest neighbours, and a linear map that becomes the head.

features     the input of the head for every image, computed once
neighbours   each image is answered by its five nearest training images, by cosine
linear map   fitted on standardised features, with the penalty that is best by cross-validation on the training
             images (`vitrail.tasks.linear`)
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.batches import Batches
from vitrail.features.poolings import head_features, heads_of
from vitrail.features.similar import nearest_vote
from vitrail.nn import ViT
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.tasks import Codec
from vitrail.tasks.linear import map_features

BY_FOLDS = "train, each by a head that was fitted on the others"  # which images a calibration is of
Enough = Callable[[int, int], bool]
MOST_BY_GREY = 1000  # images by which brightness alone is judged, of training as of those that are counted


@dataclass(frozen=True)
class Probed:
    """The result of a probe.

    Attributes:
        neighbours: Accuracy of the nearest neighbours on held-out images, or the mean error where an error is a
            distance; None where neighbours have no vote.
        accuracy: The same of the linear map.
        cross_validated: The same on training images, each by a map that was fitted on the others.
        penalty: On squared weights, chosen by it.
        images: Number of held-out images.
        trained: Number of training images.
        seconds: Of all.
        reading: Of these, for the features.
        calibration: By answers to training images of maps that were fitted on the others, where these may calibrate.
    """

    neighbours: float | None
    accuracy: float
    cross_validated: float
    penalty: float
    images: int
    trained: int
    seconds: float
    reading: float
    calibration: dict[str, Any] | None = None


@torch.no_grad()
def put_into_heads(network: ViT, both: Float[Tensor, "v d_and_1"]) -> None:
    """Make this linear map the head; two heads divide it, since their mean is taken."""
    maps = heads_of(network)
    weights = both[:, :-1].split([one.in_features for one in maps], dim=1)
    for one, weight in zip(maps, weights, strict=True):
        one.weight.copy_(len(maps) * weight)
        one.bias.copy_(both[:, -1])


def fit_probe(
    network: ViT, output: Codec, train: Batches, held_out: Batches, loss: Any = None, enough: Enough | None = None
) -> Probed:
    """Fit the head of a network on its features, and evaluate it on held-out images.

    Args:
        network: Gets the linear map as its head; all else is unchanged.
        output: What the outputs mean; with a `loss`.
        train: Training images, preprocessed as for an evaluation.
        held_out: Images to evaluate it on.
        loss: What is minimised, in place of the output's.
        enough: Asked, while held-out images are read and then those of training, how many of each are; where it says
            so, no more are.

    Raises:
        UsageError: The head is no linear map.
        DataError: No image can be read, or nothing can be learnt from them.
    """
    began, error = time.perf_counter(), output.error
    unseen = head_features(network, held_out, None if enough is None else lambda count: enough(count, 0))
    known = head_features(network, train, None if enough is None else partial(enough, len(unseen.labels)))
    reading = time.perf_counter() - began
    fitted = output.fit(known.values, known.labels, loss)
    put_into_heads(network, fitted.weights)
    held = ~fitted.outputs.isnan().any(dim=1)
    outputs, targets = fitted.outputs[held], known.labels[held]
    by_folds = output.calibrate(outputs, targets, BY_FOLDS) if output.folds_calibrate else output
    near = None if output.vote is None else error(nearest_vote(output.vote, known, unseen), unseen.labels)
    return Probed(
        neighbours=None if near is None else output.score(near),
        accuracy=output.score(error(map_features(unseen.values, fitted.weights), unseen.labels)),
        cross_validated=output.score(error(outputs, targets)),
        penalty=fitted.penalty,
        images=len(unseen.labels),
        trained=len(known.labels),
        seconds=time.perf_counter() - began,
        reading=reading,
        calibration=by_folds.calibration and asdict(by_folds.calibration),
    )


class MeanGrey(nn.Module):
    """A linear map of the mean grey value of an image, and of nothing else: what brightness alone reaches.

    Args:
        output: What the outputs mean; with a `loss`.
        train: Training images, of which some are read.
    """

    def __init__(self, output: Codec, train: Batches) -> None:
        super().__init__()
        every = [(each.inputs.mean(dim=(1, 2, 3)), each.targets) for each in thinned(train).in_order(MOST_BY_GREY)]
        greys, targets = map(torch.cat, zip(*every, strict=True))
        self.register_buffer("weights", output.fit(greys[:, None].cpu(), targets.cpu()).weights)

    def forward(self, images: Tensor, record: AnyRecord = SILENT) -> Tensor:
        """(b, v), of images as a network reads them."""
        greys = images.mean(dim=(1, 2, 3))[:, None]
        return map_features(greys, self.get_buffer("weights").to(greys.device)).to(images)


def thinned(batches: Batches) -> Batches:
    """At most a thousand of them, evenly spread."""
    ids = np.arange(len(batches))
    return batches.subset(ids[:: max(1, -(-len(ids) // MOST_BY_GREY))])
