"""Rare classes in a training: the file of weights, what cannot be had, and what becomes of loss and order.

Class weights and logit adjustment change the loss (`Codec.weighted`), balance the order (`vitrail.data.plan.balanced`).
"""

import csv
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from jaxtyping import Int64

from vitrail.data.columns import Labels, Samples
from vitrail.data.dataset import Dataset
from vitrail.errors import Hint, UsageError, some_of
from vitrail.runs.settings import Settings
from vitrail.text import canonical, number

if TYPE_CHECKING:
    from vitrail.training.configuration.request import Request

FILE = "a .csv file with a line class,weight for each class, such as cat,2.5; or the same as .json or .yaml"
FOR = {
    "balance": "one class an image",
    "logit_adjustment": "classes of which an image has one, and a loss of the library",
    "class_weights": "classes or labels, and a loss of the library",
    "asymmetric": "several labels an image, and a loss of the library",
}
UNLIKE = "probabilities will be those of data with other frequencies of classes: mostly too high for rare ones"


def read_class_weights(word: str) -> str | dict[str, float]:
    """The weight of each class, from a file; "auto" as it is.

    Raises:
        UsageError: There is no such file, it holds something else, or a weight is not finite or not above 0.
    """
    if word == "auto":
        return word
    try:
        text, listed = Path(word).read_text(encoding="utf-8-sig"), word.lower().endswith(".csv")
        rows = [row for row in csv.reader(text.splitlines() * listed) if row and row[-1].strip().lower() != "weight"]
        found: Any = dict(rows) if listed else yaml.safe_load(text)
        if not isinstance(found, dict) or not found or len(found) < len(rows):
            raise ValueError("no weights, or a class stands twice")
    except (OSError, ValueError, csv.Error, yaml.YAMLError) as error:
        problem = f"--class-weights {word} cannot be read as weights ({error})".replace("\n", " ")
        raise UsageError(problem, FILE) from error
    weights = {canonical(str(name).strip()): value for name, value in found.items()}
    for name, value in weights.items():
        with suppress(TypeError, ValueError):
            weights[name] = float(value) if not isinstance(value, bool) else math.nan
        if not isinstance(weights[name], float) or not 0 < weights[name] < math.inf:
            raise UsageError(
                f"{word}: a weight must be a finite number above 0, that of '{name}' is {value}", f"{name},1"
            )
    return weights


def read_asymmetric(word: str) -> list[float]:
    """Both gammas and the clip of the asymmetric loss.

    Raises:
        UsageError: They are not three numbers, the gammas 0 or more and the clip from 0 to below 1.
    """
    with suppress(ValueError):
        negative, positive, clip = found = [float(each) for each in word.split(",")]
        if 0 <= negative < math.inf and 0 <= positive < math.inf and 0 <= clip < 1:
            return found
    problem = f"asymmetric must be GAMMA-,GAMMA+,CLIP, two numbers of 0 or more and one of 0 to 1, got '{word}'"
    raise UsageError(problem, Hint({"asymmetric": "4,0,0.05"}))


def check_rare(request: "Request", settings: Settings, dataset: Dataset) -> None:
    """Refuse what the task has no use for, two answers to one question, and weights of other classes.

    Raises:
        UsageError: Names the option.
    """
    rare, codec, own, name = settings.rare, dataset.codec, request.own, settings.task
    single, plain = isinstance(dataset.train.column(dataset.column), Labels), own.task is None and own.objective is None
    useful = (*(codec.rare if plain else ()), *["balance"] * single)
    idle = {
        option: f"is for {what}, not for {name if plain else 'your own'}"
        for option, what in FOR.items()
        if option not in useful
    }
    if settings.distillation is not None:
        idle["logit_adjustment"] = "is not for a student: the teacher's logits are not adjusted"
    for option in (option for option in idle if getattr(rare, option)):
        shown, without = request.shown(option)
        raise UsageError(f"{shown} {idle[option]}", without)
    twice = [each for each in FOR if (value := getattr(rare, each)) and not isinstance(value, dict)]
    if len(twice) > 1:
        (first, _), (second, without) = map(request.shown, twice[:2])
        raise UsageError(f"{first} and {second} both make up for how often a class occurs", without)
    if isinstance(rare.class_weights, dict):
        (shown, without), given = request.shown("class_weights"), rare.class_weights
        kind, names = codec.describe()
        if unknown := [f"'{each}'" for each in given if each not in codec.names]:
            raise UsageError(f"{shown} has weights for {some_of(unknown, 3)}, but the {kind} are {names}", without)
        if missing := [f"'{each}'" for each in codec.names if each not in given]:
            problem = f"{shown} has no weight for {some_of(missing, 3)}"
            raise UsageError(problem, f"a weight for each of the {kind}, such as {codec.names[-1]},1")


def loss_of(settings: Settings, dataset: Dataset, probe: bool = False) -> Any:
    """The loss that is minimised, where it is not the codec's own; None where it is.

    Args:
        settings: Of the run.
        dataset: Its data.
        probe: Of a linear head, which sees every sample alike often: there weights stand for balance.
    """
    from vitrail.tasks.losses import Weighing  # which settings alone do not need

    rare, codec, even = settings.rare, dataset.codec, settings.rare.balance and not probe
    counts, given = dataset.train.column(dataset.column).counts(), rare.class_weights
    if rare.balance and probe and codec.weighted is not None:
        by_name = given if isinstance(given, dict) else dict.fromkeys(codec.names, 1.0)
        given = {name: weight / max(1, counts.get(name, 0)) for name, weight in by_name.items()}
    focus = (rare.asymmetric or None) if not probe else None  # of a head it is not convex
    if given is None and not rare.logit_adjustment and focus is None:
        return None
    smoothing = 0.0 if probe else settings.augmentation.label_smoothing
    return codec.weighted(counts, Weighing(given, even, rare.logit_adjustment, smoothing, focus))


def units_of(samples: Samples) -> Int64[np.ndarray, " n"]:
    """A number for each group, and for each sample without one: what takes turns in a class."""
    pairs = zip(samples.units(), samples.inputs.names(), strict=True)
    return np.unique([unit or name for unit, name in pairs], return_inverse=True)[1].astype(np.int64)


def rare_words(settings: Settings, dataset: Dataset) -> list[str]:
    """Sentences on what is done for rare classes."""
    rare, words = settings.rare, list[str]()
    if rare.balance:
        counts = dataset.train.column(dataset.column).counts()
        least = min(counts, key=lambda name: counts[name])
        times = number(len(dataset.train) / len(counts) / counts[least])
        words.append(f"every class is drawn equally often: a sample of '{least}' about {times} times an epoch")
        if settings.initial is not None:
            words.append("the linear probe sees every sample once: it weighs the classes instead")
    if rare.class_weights is not None or rare.logit_adjustment:
        how = f"logits are adjusted by {rare.logit_adjustment:g} times the logarithm of each class's frequency"
        how = how if rare.class_weights is None else "classes are weighted, with a mean of 1 over the samples"
        words.append(f"in the training loss {how}; every other loss is as without")
    if rare.asymmetric:
        words.append("the training loss is the asymmetric one; every other loss is the cross-entropy")
        if settings.initial is not None:
            words.append("the linear probe is fitted by the cross-entropy")
    return [*words, UNLIKE] if words else []
