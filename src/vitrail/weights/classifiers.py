"""Classifiers of torchvision and timm by name, as teachers: nothing of them is converted.

A network comes with the preprocessing of its source and with its class names, ImageNet's as the library has them.
Weights are the library's own (downloaded by it), random, or a file, as `files.py` reads it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, Hint, UsageError, located, nearest, raised_as
from vitrail.weights import timm as of_timm, torchvision
from vitrail.weights.files import check_tensors_fit, read_weights
from vitrail.weights.published import distinguish

SEED = 0  # of random weights, so that the same name gives the same network


class Classifier(NamedTuple):
    """A network with its preprocessing and class names."""

    network: nn.Module
    preprocessing: Preprocessing
    classes: tuple[str, ...]  # empty when it is without a head


def open_classifier(library: str, name: str, weights: str = "pretrained", head: bool = True) -> Classifier:
    """A network by its name in a library.

    Args:
        library: torchvision or timm.
        name: Such as resnet50.
        weights: `pretrained`, `random`, or a file with its state dict (see `read_weights`).
        head: Whether it gives logits; else features, the input of its last linear map.

    Raises:
        UsageError: If the library is missing or knows no such name; offers the nearest.
        DataError: If the weights cannot be downloaded or do not fit.
    """
    found = {"torchvision": _torchvision, "timm": _timm}[library](name, weights == "pretrained")
    if weights not in ("pretrained", "random"):
        tensors, right = read_weights(Path(weights)), found.network.state_dict()
        with located(weights):
            check_tensors_fit(tensors, right, f"the state dict of {library}:{name}")
        found.network.load_state_dict(tensors)
    if not head:
        _without_head(found.network, len(found.classes))
        found = found._replace(classes=())
    return found._replace(network=found.network.eval())


def _torchvision(name: str, pretrained: bool) -> Classifier:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise _unknown("torchvision", name, known)
    kinds: Any = models.get_model_weights(name)
    published = kinds.DEFAULT
    make = partial(models.get_model, name, weights=published if pretrained else None)
    reads, classes = torchvision.preprocessing_of(published.transforms()), published.meta["categories"]
    return Classifier(_make(make, f"torchvision:{name}"), reads, distinguish(classes))


def _timm(name: str, pretrained: bool) -> Classifier:
    try:
        import timm
        from timm.data import ImageNetInfo, infer_imagenet_subset
    except ImportError as error:
        raise UsageError("timm is missing", 'pip install "vitrail[compat]"') from error
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise _unknown("timm", name, known)
    network: Any = _make(lambda: timm.create_model(name, pretrained=pretrained), f"timm:{name}")
    facts = network.pretrained_cfg
    try:
        reads = of_timm.preprocessing_of(facts)
    except (UsageError, KeyError) as error:
        why = error.problem if isinstance(error, UsageError) else f"it states no {error}"
        problem = f"timm:{name} needs a preprocessing that vitrail does not have: {why}"
        raise DataError(problem, "vitrail.Teacher(network, preprocessing, classes) in Python") from error
    subset = infer_imagenet_subset(network)
    info = ImageNetInfo(subset) if subset else None
    count = facts["num_classes"]
    names = [str(i) if info is None else info.index_to_description(i).split(",")[0] for i in range(count)]
    return Classifier(network, reads, distinguish(names))


def _make(make: Callable[[], nn.Module], name: str) -> nn.Module:
    """The network, with the same random weights at every call; torch's generator is not changed."""
    hint = Hint({"teacher_weights": "random"}, text="or a file with its state dict")
    failed = raised_as(DataError, f"the weights of {name} cannot be downloaded", hint, (OSError, RuntimeError))
    with torch.random.fork_rng(devices=[]), failed:
        torch.manual_seed(SEED)
        return make()


def _without_head(network: nn.Module, outputs: int) -> None:
    """Replace the linear map that gives the logits by the identity; of a network without one, logits are features."""
    heads = [name for name, m in network.named_modules() if isinstance(m, nn.Linear) and m.out_features == outputs]
    if heads:
        network.set_submodule(heads[-1], nn.Identity())


def _unknown(library: str, name: str, known: list[str]) -> UsageError:
    close = f"{library}:{nearest(name, known) or 'resnet50'}"
    return UsageError(f"{library} has no classifier '{name}'", Hint(instead={f"{library}:{name}": close}))
