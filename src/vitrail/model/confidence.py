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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.data.columns import Texts
from vitrail.data.images import Images, evenly
from vitrail.errors import DataError, Hint, as_word
from vitrail.model.foreign import Unstated
from vitrail.model.loading import load
from vitrail.model.model import UNVERIFIED, Model
from vitrail.nn.networks import evaluating
from vitrail.weights.assume import hint_for
from vitrail.weights.names import is_foreign

LEAST, MOST = 8, 24  # images that are answered under each pair; with fewer nothing is claimed
CLEARLY = 2.0  # standard errors of the difference
LARGELY = 0.03  # of probability
APART = 0.05  # of probability, between 0.5 and the better of the other two, where a model has no pair of its own

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
OWN, HALF = "as it is", "0.5"
USUAL: dict[str, Statistics] = {
    HALF: ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP's": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


@dataclass(frozen=True)
class Confidence:
    """How confident a network is about the same images under each pair.

    Attributes:
        images: How many.
        means: Mean of the top class's probability, by the name of the pair; "as it is" is the model's own.
        better: The pair under which it is clearly more confident than under its own; None where there is none.
    """

    images: int
    means: dict[str, float]
    better: str | None

    def sentence(self, own: str = OWN) -> str:
        """What was found, in words, where the model's own pair is called `own`."""
        names = {OWN: own} | {name: f"with {name}" for name in self.means if name != OWN}
        each = ", ".join(f"{value:.2f} {names[name]}" for name, value in self.means.items())
        return f"on {self.images} images the mean top probability is {each}"


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
    try:
        model = load(name, device=device, **options)
    except Unstated as error:
        assume = dict(options.get("assume") or {})
        half: dict[str, Any] = {**options, "assume": {**assume, "mean": 0.5, "std": 0.5}}
        found = confidence_of(load(name, **half), _readable(images()))
        if found is None:
            raise
        problem = f"{error.problem}; {found.sentence(f'with {HALF}')}"
        likely = likeliest({(HALF if pair == OWN else pair): value for pair, value in found.means.items()})
        if likely is None:
            none = "of its training; none of these is clearly better"
            hint = Hint(text=f"--mean and --std {none}", python=f"assume= with the mean and std {none}")
        else:
            mean, std = (each[:1] if len({*each}) == 1 else each for each in USUAL[likely])
            hint = hint_for({**assume, "mean": mean, "std": std})
        raise Unstated(problem, hint) from error
    doubtful = "trained_with" not in model.facts and model.facts.get("verified") == UNVERIFIED and is_foreign(name)
    if doubtful and (found := confidence_of(model, _readable(images()))) and found.better:
        mean, std = map(as_word, USUAL[found.better])
        words = f"clearly more confident with {found.better}, --mean {mean} --std {std}"
        return model, f"{found.sentence()}: {words}"
    return model, ""


def _readable(images: Images | Texts | None) -> list[Image.Image]:
    """At most 24 of those that can be read, evenly spread where they all can."""
    found: list[Image.Image] = []
    if not isinstance(images, Images):
        return found
    count = len(images)
    first = set(evenly(range(count), MOST))
    for index in sorted(range(count), key=lambda index: (index not in first, index)):
        with contextlib.suppress(DataError):
            found.append(images.open(index))
        if len(found) == MOST:
            break
    return found


def confidence_of(model: Model, images: Sequence[Image.Image]) -> Confidence | None:
    """How confident a model of classes is under each of the usual pairs; None for fewer than 8 images, or other models.

    Args:
        model: Of colour images.
        images: All are answered.
    """
    if len(images) < LEAST or model.reads_text or model.preprocessing.channels != 3 or model.output.confidence is None:
        return None
    pixels = torch.stack([model.preprocessing.to_uint8(image) for image in images])
    own = model.preprocessing.mean, model.preprocessing.std
    pairs = {OWN: own, **{name: pair for name, pair in USUAL.items() if pair != own}}
    found = {name: _tops(model, pixels, pair) for name, pair in pairs.items()}
    best = max(found, key=lambda name: float(found[name].mean()))
    more = found[best] - found[OWN]
    clear = float(more.mean()) > max(LARGELY, CLEARLY * float(more.std()) / len(images) ** 0.5)
    return Confidence(len(images), {name: float(tops.mean()) for name, tops in found.items()}, best if clear else None)


def likeliest(means: Mapping[str, float]) -> str | None:
    """The usual pair that a model without one of its own is clearly most confident with; None where none is.

    Args:
        means: Mean of the top class's probability, by the name of each usual pair.
    """
    near = max((name for name in means if name != HALF), key=lambda name: means[name])  # they differ too little
    more = means[near] - means[HALF]
    return None if abs(more) <= APART else near if more > 0 else HALF


@torch.no_grad()
def _tops(model: Model, pixels: UInt8[Tensor, "b c h w"], pair: Statistics) -> Float[Tensor, " b"]:
    mean, std = (torch.tensor(values, device=model.device)[:, None, None] for values in pair)
    with evaluating(model.network):
        logits = [model.network((some.to(model.device) / 255 - mean) / std) for some in pixels.split(8)]
    return model.output.confidence(torch.cat(logits)).cpu()
