"""Training from pretrained weights: any that `vitrail.load` opens, with a new head for the classes at hand.

Images are preprocessed as they were for these weights. `TrainOptions.init` names them, `Settings.initial` stores what
was found; the run's folder holds the network before the first step (`probe/`), so that a resumed run needs no source.

`--init auto` takes, of the networks in the caches of the hubs, the one whose features separate the training classes
best: a few hundred training images are divided in two halves, and each is classified by its five nearest neighbours in
the other half. No held-out image is used. Of two networks that are equally good it takes the one with fewer parameters.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.batches import Batches
from vitrail.data.columns import Texts
from vitrail.data.dataset import Dataset
from vitrail.data.images import Images
from vitrail.data.loader import open_loader
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import Hint, UsageError, VitrailError
from vitrail.features.linear_probe import Probed
from vitrail.features.poolings import head_features
from vitrail.features.similar import nearest_vote
from vitrail.model import Model, load, open_model, save
from vitrail.model.confidence import load_checked
from vitrail.model.facts import origin_words
from vitrail.nn import ViT
from vitrail.runs.folder import RunFolder
from vitrail.runs.settings import Optimization, Settings
from vitrail.tasks import Task
from vitrail.text import percent
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import open_readable
from vitrail.training.events import Listen
from vitrail.training.lora import adapt, check_rank, freeze, merge_adapters
from vitrail.weights.adapt import start_network
from vitrail.weights.names import caches, list_cached
from vitrail.weights.places import check_inside, is_foreign

KNOWN_WELL = 0.9  # cross-validated accuracy of the probe, below which the learning rate is `STRONGER` times as high
STRONGER = 10.0
AUTO = "auto"
SMALL = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"  # 23 MB, Apache-2.0; if the caches have none
COMPARED = 256  # training images on which candidates are compared
LOOKED_AT = 16  # images, for colours


def open_source(request: Request, images: Images | Texts | None = None) -> tuple[Model | None, tuple[str, ...]]:
    """The model that a training starts from, None for random weights; and what is known of its origin.

    Args:
        request: Names it.
        images: Those that are trained on, where it is not verified how images go in.

    Raises:
        UsageError: It is no ViT, or has nothing to adapt.
        DataError: It cannot be read.
    """
    initial, rank = request.section("initial"), request.section("optimization").get("lora")
    if (source := initial.get("source")) is None:
        return None, ()
    check_inside(source, Hint({"init": "auto"}))
    known: dict[str, Any] = {"assume": initial.get("assume") or None, "image_size": request.options.image_size}
    own = request.own.task
    if own is not None and not is_foreign(source) and open_model(source)[1].get("task") == own.name:
        known["task"] = own  # which opens what it was trained with before
    model, warning = load_checked(source, lambda: images, **known)
    if isinstance(images, Images) and isinstance(model.input, Preprocessing):
        _check_colours(source, model.input, images)
    if not isinstance(model.network, ViT):
        kind = type(model.network).__name__
        raise UsageError(f"{source} contains a {kind}, which is not a ViT", Hint({"init": "auto"}))
    if rank:
        check_rank(model.network, rank)
    facts = (*origin_words(model.facts), *filter(None, [warning]))
    return model, tuple(words if words.startswith(source) else f"{source}: {words}" for words in facts)


def rate_for(optimization: Optimization, probed: Probed, is_wrong: bool = True) -> tuple[Optimization, str]:
    """The recipe's learning rate, or ten times as much for features that separate the classes badly, with a sentence.

    If a linear map of the features is nearly always right, they are worth keeping. The two rates and the limit were
    measured on two data sets: benchmarks/README.md.
    """
    if not is_wrong:  # of a distance no limit was measured
        return optimization, f"learning rate {optimization.learning_rate:g}, the recipe's"
    gentle, correct = probed.cross_validated >= KNOWN_WELL, percent(probed.cross_validated)
    rate = optimization.learning_rate * (1 if gentle else STRONGER)
    why = f"learning rate {rate:g}: cross-validated probes classify {correct} of the training images correctly"
    limit = f"{'at least' if gentle else 'less than'} {percent(KNOWN_WELL, 0)}"
    return replace(optimization, learning_rate=rate), f"{why}, {limit}"


def _check_colours(source: str, reads: Preprocessing, images: Images) -> None:
    """Refuse images with colours for a network that reads grey ones.

    Raises:
        UsageError: Names the first image with colours.
    """
    for index, image in open_readable(images, range(min(LOOKED_AT, len(images)) if reads.channels == 1 else 0)):
        if image.mode in ("RGB", "RGBA", "P", "CMYK") and np.ptp(np.asarray(image.convert("RGB")), axis=2).any():
            problem = f"{source} reads grey images, but {images.name(index)} has colours"
            raise UsageError(problem, Hint({"init": "timm:vit_tiny_patch16_224"}))


def write_start(folder: RunFolder, model: Model, probed: Probed | None) -> None:
    """Save the model before the first step, with the head and the result of the probe, where there is one."""
    save(replace(model, network=merge_adapters(model.network), facts={**model.facts, "epochs": 0}), folder.probe)
    if probed is not None:
        folder.write_json("probe.json", vars(probed))


def freeze_or_adapt(network: nn.Module, settings: Settings) -> None:
    """Prepare a network for training by the settings: all of it, the heads, or these and adapters."""
    if settings.initial is None:
        return
    assert isinstance(network, ViT)
    if settings.fits_head:
        freeze(network)
    elif settings.optimization.lora:
        adapt(network, settings.optimization.lora, settings.seed)


@dataclass(frozen=True)
class Candidate:
    """A network that could be the initial one.

    Attributes:
        name: What `vitrail.load` opens.
        error: Mean error of the answers of the neighbours of some images.
        shown: The same, as a score for people.
        parameters: Number of parameters.
    """

    name: str
    error: float
    shown: str
    parameters: int


def with_source(request: Request, dataset: Dataset, task: Task, listen: Listen) -> Request:
    """The request with the best network in the caches for `--init auto`; else unchanged.

    Raises:
        UsageError: No network in the caches opens.
    """
    if request.options.init != AUTO:
        return request
    if dataset.codec.vote is None or dataset.codec.error is None:
        problem = f"--init auto compares networks by neighbours, which have no vote in the task {task.name}"
        raise UsageError(problem, Hint({"init": f"timm:{SMALL.partition('/')[2]}"}))
    names, found = list_cached(), list[Candidate]()
    for name in names:
        listen(f"looking at {name}")
        try:
            found.append(_candidate(name, request, dataset, task))
        except VitrailError as error:
            listen(f"left out: {name}: {error.problem}")
    if not found:
        where = " and ".join(str(folder) for folder in caches())
        raise UsageError(f"--init auto found no plain ViT that opens in {where}", f"hf download {SMALL}")
    best = min(found, key=lambda one: (one.error, one.parameters))
    others = ", ".join(f"{one.name} {one.shown}" for one in found if one is not best)
    listen(f"--init {best.name}: 5-NN {best.shown} of training images{f' (others: {others})' * bool(others)}")
    return replace(request, options=replace(request.options, init=best.name))


def _candidate(name: str, request: Request, dataset: Dataset, task: Task) -> Candidate:
    """A network with its k-NN accuracy on some of the training images."""
    model = load(name, assume=dict(request.assume) or None, image_size=request.options.image_size)
    codec = dataset.codec
    if not isinstance(model.network, ViT):
        raise UsageError(f"{name} contains {type(model.network).__name__}", "a ViT")
    network = start_network(model.network, replace(model.network.config, classes=1, head_bias=True))
    some = dataset.train.select(np.random.default_rng(0).permutation(len(dataset.train))[:COMPARED])
    loader = open_loader(some.inputs, model.preprocessing, workers=request.options.workers or 1)
    batches = Batches(loader, some.column(task.column), dataset.codec, model.preprocessing)
    known = head_features(network, batches)
    first, second = (replace(known, values=known.values[k::2], labels=known.labels[k::2]) for k in (0, 1))
    pairs = ((first, second), (second, first))
    errors = torch.cat([codec.error(nearest_vote(codec.vote, *pair), pair[1].labels) for pair in pairs])
    shown = codec.shown(codec.score(errors))
    return Candidate(name, float(errors.nanmean()), shown, sum(each.numel() for each in network.parameters()))
