"""Which mean and standard deviation a network was trained with, where that is not verified: the most confident pair.

A wrong pair costs a real ViT-Ti 37 of 85 points without a word, and its answers get less confident. So the same images
are answered under each of the usual pairs. Measured on that network, whole and with its first map changed so that it
expects the other pairs (1,000 draws of 24 of 100 photographs): a pair that was right is called in question in at most
0.2 %, ImageNet's for 0.5 in 99 %, 0.5 for ImageNet's in 69 %, and ImageNet's and CLIP's for each other hardly ever:
they differ too little. Where a model has no pair of its own (`likeliest`) it is therefore 0.5 or the better of these
two: 0.5 is named in 96 %, and ImageNet's or CLIP's where one is right in 71 % and 54 %, of which every sixth and every
fourth time the other of the two. 0.5 was never named for them, nor they for 0.5.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.columns import Texts
from vitrail.data.images import Images, evenly
from vitrail.errors import DataError, Hint, as_word
from vitrail.model.facts import UNVERIFIED
from vitrail.model.foreign import Unstated
from vitrail.model.loading import load
from vitrail.model.model import Model
from vitrail.nn.networks import evaluating
from vitrail.weights.assume import hint_for
from vitrail.weights.places import is_foreign

LEAST, MOST = 8, 24  # images that are answered under each pair; with fewer nothing is claimed
CLEARLY = 2.0  # standard errors of the difference
LARGELY = 0.03  # of probability
APART = 0.05  # of probability, between 0.5 and the better of the other two, where a model has no pair of its own

HALF = "0.5"
USUAL: dict[str, dict[str, tuple[float, ...]]] = {
    HALF: {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    "ImageNet's": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "CLIP's": {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)},
}


def load_checked(
    name: str | Path, images: Callable[[], Images | Texts | None], device: str | torch.device = "cpu", **options: Any
) -> tuple[Model, str]:
    """The model that a name means; where it is not verified how images go in, also with which pair it does better.

    Args:
        name: As for `load`.
        images: Those at hand, where there are any; opened only where they are needed.
        device: Where the network goes.
        options: Of `load`.

    Returns:
        The model; and that it is clearly more confident with another pair, in words, or nothing.

    Raises:
        Unstated: The preprocessing is not stated; the message names the pair that is clearly better, if one is.
        VitrailError: As `load`.
    """
    unstated, assume = None, dict[str, Any](options.get("assume") or {})
    try:
        model = load(name, device=device, **options)
    except Unstated as error:
        unstated = error
        half: dict[str, Any] = {**options, "assume": {**assume, "mean": 0.5, "std": 0.5}}
        model = load(name, device=device, **half)
    if "trained_with" in model.facts or model.facts.get("verified") != UNVERIFIED or not is_foreign(name):
        return model, ""
    tops = answer_under_pairs(model, images())
    if not tops:
        if unstated is None:
            return model, ""
        raise unstated
    means = {pair: float(each.mean()) for pair, each in tops.items()}
    each = ", ".join(f"{value:.2f} with {pair}" for pair, value in means.items())
    found = f"on the same images the mean top probability is {each}"
    pair = surest(tops) if unstated is None else likeliest(means)
    typed = {name: values[:1] if len({*values}) == 1 else values for name, values in USUAL.get(pair, {}).items()}
    if unstated is None:
        flags = " ".join(f"--{name} {as_word(values)}" for name, values in typed.items())
        return model, f"{found}: clearly more confident with {pair}, {flags}" if pair else ""
    none = "of its training; none of these is clearly better"
    hint = Hint(text=f"--mean and --std {none}", python=f"assume= with the mean and std {none}")
    raise Unstated(f"{unstated.problem}; {found}", hint_for({**assume, **typed}) if pair else hint) from unstated


@torch.no_grad()
def answer_under_pairs(model: Model, images: Images | Texts | None) -> dict[str, Float[Tensor, " b"]]:
    """How sure a model is of each image under each pair: its own, which is the first, and the usual ones.

    Args:
        model: Is asked; nothing is found of one that is never sure, or reads no colours.
        images: Those at hand, of which at most 24 are answered, evenly spread where all can be read; at least 8.
    """
    if not isinstance(images, Images) or model.output.confidence is None or model.preprocessing.channels != 3:
        return {}
    reads, pixels = model.preprocessing, []
    first = evenly(range(len(images)), MOST)
    for index in chain(first, (each for each in range(len(images)) if each not in first)):
        with contextlib.suppress(DataError):
            pixels.append(reads.to_uint8(images.open(index)))
        if len(pixels) == MOST:
            break
    if len(pixels) < LEAST:
        return {}
    own, tops = {"mean": reads.mean, "std": reads.std}, {}
    called = next((name for name, pair in USUAL.items() if pair == own), "its own")
    with evaluating(model.network):
        for name, pair in {called: own, **USUAL}.items():
            under = replace(reads, mean=pair["mean"], std=pair["std"])
            logits = [model.network(under.normalise(some).to(model.device)) for some in torch.stack(pixels).split(8)]
            tops[name] = model.output.confidence(torch.cat(logits)).cpu()
    return tops


def surest(tops: Mapping[str, Float[Tensor, " b"]]) -> str:
    """The pair with which a model is clearly more confident than with its own, the first; empty where none is."""
    own, best = next(iter(tops.values())), max(tops, key=lambda name: float(tops[name].mean()))
    more = tops[best] - own
    return best if float(more.mean()) > max(LARGELY, CLEARLY * float(more.std()) / len(own) ** 0.5) else ""


def likeliest(means: Mapping[str, float]) -> str:
    """The usual pair that a model without one of its own is clearly most confident with; empty where none is.

    Args:
        means: Mean of the top class's probability, by the name of each usual pair.
    """
    near = max((name for name in means if name != HALF), key=lambda name: means[name])  # they differ too little
    more = means[near] - means[HALF]
    return "" if abs(more) <= APART else near if more > 0 else HALF
