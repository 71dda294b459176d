"""`--init auto`: of the networks in the caches, that whose features tell the training images apart best.

A few hundred training images are divided in two halves, and each image is given the class of its five nearest
neighbours in the other half; no held-out image is looked at. Of two networks as good, the one with fewer parameters.
"""

from dataclasses import dataclass, replace

import numpy as np

from vitrail.data.batches import Batches
from vitrail.data.dataset import Dataset
from vitrail.data.loader import open_loader
from vitrail.errors import UsageError, VitrailError
from vitrail.features.head import features
from vitrail.features.neighbours import nearest
from vitrail.model import load
from vitrail.nn import ViT
from vitrail.tasks import Task
from vitrail.text import percent
from vitrail.training.events import Listen
from vitrail.training.request import Request
from vitrail.training.tuning.initial import start_network
from vitrail.weights.names import cached, caches, nothing_fetched

AUTO = "auto"
SMALL = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"  # where there is none: 23 MB, Apache-2.0
ASKED = 256  # training images that a network is asked about


@dataclass(frozen=True)
class Candidate:
    """A network that a training could start from.

    Attributes:
        name: What `vitrail.load` opens.
        right: Fraction of the images whose class most of their neighbours have.
        parameters: How many.
    """

    name: str
    right: float
    parameters: int


def with_source(request: Request, dataset: Dataset, task: Task, listen: Listen) -> Request:
    """The same, with the name of a network where any was to be found.

    Raises:
        UsageError: No network in the caches opens.
    """
    if request.options.init != AUTO:
        return request
    names, found = cached(), list[Candidate]()
    for name in names:
        listen(f"looking at {name}")
        try:
            with nothing_fetched():
                found.append(_judged(name, request, dataset, task))
        except VitrailError as error:
            listen(f"left out: {name}: {error.problem}")
    if not found:
        where = " and ".join(str(folder) for folder in caches())
        raise UsageError(f"--init auto found no plain ViT that opens in {where}", f"hf download {SMALL}")
    best = min(found, key=lambda one: (-one.right, one.parameters))
    others = ", ".join(f"{one.name} {percent(one.right)}" for one in found if one is not best)
    listen(f"--init {best.name}: 5-NN {percent(best.right)} of training images{f' (others: {others})' * bool(others)}")
    return replace(request, options=replace(request.options, init=best.name))


def _judged(name: str, request: Request, dataset: Dataset, task: Task) -> Candidate:
    """How well a network tells some of the training images apart."""
    model = load(name, assume=dict(request.assume) or None, image_size=request.options.image_size)
    if not isinstance(model.network, ViT):
        raise UsageError(f"{name} holds a {type(model.network).__name__}", "a ViT")
    network = start_network(model.network, replace(model.network.config, classes=1, head_bias=True))
    some = dataset.train.select(np.random.default_rng(0).permutation(len(dataset.train))[:ASKED])
    loader = open_loader(some.inputs, model.preprocessing, workers=request.options.workers or 1)
    batches = Batches(loader, some.column(task.column), dataset.codec, model.preprocessing)
    known = features(network, batches)
    first, second = (replace(known, values=known.values[k::2], labels=known.labels[k::2]) for k in (0, 1))
    right = int((nearest(first, second) == second.labels).sum() + (nearest(second, first) == first.labels).sum())
    return Candidate(name, right / len(known.labels), sum(each.numel() for each in network.parameters()))
