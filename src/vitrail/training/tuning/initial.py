"""What a training starts from that does not start from nothing: weights that `vitrail.load` opens.

The network keeps its numbers but those of its head, which is made anew for the classes at hand; images go in as they
did. What is chosen is `TrainOptions.init`, what is stored the `Initial` of the settings; once a run has begun it needs
the source no more, since the start lies in its folder (`probe/`).

`--init auto` takes, of the networks in the caches, that whose features tell the training images apart best: a few
hundred of these are divided in two halves, and each image is given the class of its five nearest neighbours in the
other half; no held-out image is looked at. Of two networks as good, the one with fewer parameters.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.features.head import HEADS, features
from vitrail.features.neighbours import nearest
from vitrail.model import Model, load, save
from vitrail.model.confidence import load_checked
from vitrail.model.model import origin_words
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.networks import weights_hash
from vitrail.tasks import Task
from vitrail.text import percent
from vitrail.training.events import Listen
from vitrail.training.options import TrainOptions
from vitrail.training.request import Request
from vitrail.training.run import RunFolder
from vitrail.training.settings import Initial, Optimization, Settings
from vitrail.training.tuning.lora import adapt, check_rank, freeze, merged
from vitrail.training.tuning.probe import Probed
from vitrail.weights.names import cached, caches, nothing_fetched

KNOWN_WELL = 0.9  # accuracy by cross-validation; below it the rate is `STRONGER` times as high
STRONGER = 10.0
AUTO = "auto"
SMALL = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"  # where there is none: 23 MB, Apache-2.0
LOOKED_UP = 256  # training images that candidates are compared on
LOOKED_AT = 16  # images, for colours


def open_source(request: Request, images: Images | Texts | None = None) -> tuple[Model | None, tuple[str, ...]]:
    """The model that a training is to start from, None where it starts from nothing; and what is known of its origin.

    Args:
        request: What is asked for.
        images: Those that are trained on, where it is not verified how images go in.

    Raises:
        UsageError: It is no ViT, a student is to start from it, `--probe` or `--lora` is asked for without one, or
            there is nothing in it to adapt.
        DataError: It cannot be read.
    """
    options, assume = request.options, request.assume
    stored = request.config.get("initial") or {}
    source = options.init or stored.get("source")
    rank = request.config.get("optimization", {}).get("lora") if options.lora is None else options.lora
    if options.lora is not None and options.lora < 1:
        raise UsageError(f"--lora must be a rank of at least 1, got {options.lora}", "--lora 8")
    if source is None:
        if assume:
            raise UsageError(
                "assume= describes the weights that training starts from, and --init is missing", "init='auto'"
            )
        if options.probe:
            raise UsageError("--probe trains a head on pretrained weights, and --init is missing", "--init auto")
        if rank:
            raise UsageError("--lora adapts pretrained weights, and --init is missing", "--init auto")
        return None, ()
    if rank and (options.probe or stored.get("probe")):
        raise UsageError("--probe trains only the head, but --lora also adapters", "leave --lora out")
    if request.teacher:
        words = shlex.join(["vitrail", "train", request.data, "--init", source])
        raise UsageError(f"a student starts from random weights, so --init {source} is not possible", words)
    if options.size is not None:
        problem = f"--size {options.size} is for a new network, but {source} has its own size"
        raise UsageError(problem, "leave --size out")
    known = {"assume": (assume or stored.get("assume")) or None, "image_size": options.image_size}
    model, doubt = load_checked(source, lambda: images, **known)
    if isinstance(images, Images) and isinstance(model.input, Preprocessing):
        _check_colours(source, model.input, images)
    if not isinstance(model.network, ViT):
        raise UsageError(f"{source} contains a {type(model.network).__name__}, which is not a ViT", "--init auto")
    if rank:
        check_rank(model.network, rank)
    return model, tuple(f"{source}: {words}" for words in (*origin_words(model.facts), *filter(None, [doubt])))


def check_fits(source: str | None, kinds: Sequence[str], task: str, others: bool) -> None:
    """Refuse weights to start from where no ViT is learnt, or where a person gives the network or its parts.

    Raises:
        UsageError: Names both.
    """
    if source is not None and "ViT" not in kinds:
        problem = f"--init is for a ViT with one answer per image, which the task {task} does not have"
        raise UsageError(problem, "leave --init out")
    if source is not None and others:
        raise UsageError(
            f"--init {source} has a network with its own parts, but other parts were passed", "leave --init out"
        )


def initial_of(source: Model, request: Request) -> dict[str, Any]:
    """What the settings hold of it, as plain values."""
    options, stored = request.options, request.config.get("initial") or {}
    return asdict(
        Initial(
            source=options.init or stored["source"],
            assume=dict(request.assume or stored.get("assume") or {}),
            identity=weights_hash(source.network),
            reads=source.preprocessing.to_dict(),
            licence=str(source.facts.get("licence", "")),
            probe=options.probe or bool(stored.get("probe", False)),
        )
    )


def rate_for(choices: Optimization, probed: Probed) -> tuple[Optimization, str]:
    """The recipe's learning rate, or ten times as much where the features tell little, with a sentence.

    What the network knows is worth keeping where a linear map of it is nearly always right; else there is more to learn
    than to lose. The two rates and the limit were measured on two sets: benchmarks/README.md.
    """
    gentle, correct = probed.cross_validated >= KNOWN_WELL, percent(probed.cross_validated)
    rate = choices.learning_rate * (1 if gentle else STRONGER)
    why = f"learning rate {rate:g}: cross-validated probes classify {correct} of the training images correctly"
    limit = f"{'at least' if gentle else 'less than'} {percent(KNOWN_WELL, 0)}"
    return replace(choices, learning_rate=rate), f"{why}, {limit}"


def _check_colours(source: str, reads: Preprocessing, images: Images) -> None:
    """Refuse to start images with colours from a network that would never see them.

    Raises:
        UsageError: The first image that has any is named.
    """
    for index in range(min(LOOKED_AT, len(images)) if reads.channels == 1 else 0):
        try:
            image = images.open(index)
        except DataError:  # reported where it is left out
            continue
        if image.mode in ("RGB", "RGBA", "P", "CMYK") and np.ptp(np.asarray(image.convert("RGB")), axis=2).any():
            problem = f"{source} reads grey images, but {images.name(index)} has colours"
            raise UsageError(problem, "--init timm:vit_tiny_patch16_224")


def check_keeps(options: TrainOptions, settings: Settings) -> None:
    """Refuse a choice among networks that has no effect.

    Raises:
        UsageError: Says why.
    """
    keep, patience, initial = settings.keep, settings.optimization.patience, settings.initial
    if options.verdicts and (options.verdicts < 0 or (initial is not None and initial.probe)):
        problem = f"--verdicts {options.verdicts} is not possible with --probe, which trains no network"
        raise UsageError(problem, "--verdicts 24" if options.verdicts < 0 else "only one of --probe and --verdicts")
    if options.verdicts and (settings.task != "classify" or not isinstance(settings.network, ViTConfig)):
        problem = f"--verdicts is for classifiers, but this run has the task {settings.task}"
        raise UsageError(problem, "the same without --verdicts")
    if options.verdicts and not settings.background:
        raise UsageError("--verdicts needs a background, which --no-background omits", "one of the two")
    if options.patience is not None and options.patience < 1:
        raise UsageError(f"--patience must be at least 1 epoch, got {options.patience}", "--patience 3")
    if keep == "probe" and initial is None:
        raise UsageError("--keep probe is for a run with --init, which is missing", "--init auto")
    if initial is not None and initial.probe and keep != "auto":
        raise UsageError(f"--keep {keep} selects a network, but --probe trains only the head", "leave --keep out")
    if settings.fits_head:
        for name, value in (("patience", patience), ("epochs", options.epochs), ("lr", options.lr)):
            if value:
                problem = f"--{name} {value:g} has no effect with --probe, which fits only the head"
                raise UsageError(problem, f"leave --{name} out")


def write_start(folder: RunFolder, model: Model, probed: Probed) -> None:
    """Put what a training starts from into its folder: a model with the head of the probe, and what that is worth."""
    save(replace(model, network=merged(model.network), facts={**model.facts, "epochs": 0}), folder.probe)
    folder.write_json("probe.json", probed.to_dict())


def freeze_or_adapt(network: nn.Module, settings: Settings) -> None:
    """Leave to training what the settings leave to it: all, the heads, or these and adapters of some rank."""
    if settings.initial is None:
        return
    assert isinstance(network, ViT)
    if settings.fits_head:
        freeze(network)
    elif settings.optimization.lora:
        adapt(network, settings.optimization.lora, settings.seed)


@torch.no_grad()
def start_network(source: ViT, config: ViTConfig) -> ViT:
    """A network with the numbers of the source, and a head that starts from zero.

    Args:
        source: Is not changed.
        config: Its configuration, but for the classes and what happens in training alone, such as dropout.
    """
    network = ViT(config, source.parts)
    kept = {name: tensor for name, tensor in source.state_dict().items() if name.partition(".")[0] not in HEADS}
    lost = network.load_state_dict(kept, strict=False)
    assert not lost.unexpected_keys
    assert all(name.partition(".")[0] in HEADS for name in lost.missing_keys)
    return network


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
        raise UsageError(f"{name} contains a {type(model.network).__name__}", "a ViT")
    network = start_network(model.network, replace(model.network.config, classes=1, head_bias=True))
    some = dataset.train.select(np.random.default_rng(0).permutation(len(dataset.train))[:LOOKED_UP])
    loader = open_loader(some.inputs, model.preprocessing, workers=request.options.workers or 1)
    batches = Batches(loader, some.column(task.column), dataset.codec, model.preprocessing)
    known = features(network, batches)
    first, second = (replace(known, values=known.values[k::2], labels=known.labels[k::2]) for k in (0, 1))
    right = int((nearest(first, second) == second.labels).sum() + (nearest(second, first) == first.labels).sum())
    return Candidate(name, right / len(known.labels), sum(each.numel() for each in network.parameters()))
