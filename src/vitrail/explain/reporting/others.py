"""What fills masked patches where a model carries no background: the other images of the call, or photographs.

A model of ImageNet's classes borrows ten photographs that come with vitrail; of any other, the images of a call serve
each other: each is tested with patches of those that it is not explained together with.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.data.background import FEW, MOST
from vitrail.data.images import NamedImage
from vitrail.errors import DataError
from vitrail.explain.methods import DEFAULT
from vitrail.explain.reporting.request import BLIND, LONG, Request
from vitrail.model import Model

OTHERS = "the other images of this call"
SHIPPED = "ten photographs that come with vitrail, since its classes are ImageNet's"

Thing = TypeVar("Thing")
Opener = tuple[str, Callable[[], Image.Image]]
"""The name of an image, and what opens it."""


@dataclass(frozen=True, eq=False)
class Others:
    """The images of a call, which fill each other's masked patches.

    Args:
        names: Of the images, as `NamedImage` has them.
        images: (n, c, h, w), as the network reads them, on its device.
    """

    names: tuple[str, ...]
    images: Float[Tensor, "n c h w"]

    def besides(self, together: Sequence[NamedImage]) -> Float[Tensor, "r c h w"] | None:
        """All but those that are explained together; None where they are too few for a verdict."""
        own = {one.name for one in together}
        rows = [row for row, name in enumerate(self.names) if name not in own]
        return self.images[rows] if len(rows) >= FEW else None


def borrows(model: Model, request: Request) -> bool:
    """Whether attributions are tested, and neither the model nor the request has images that fill masked patches."""
    return request.trust and request.background is None and model.background is None


def fills_of(model: Model) -> str:
    """What fills masked patches where a model carries no background, in words."""
    return f"patches of {SHIPPED if model.borrows_background else OTHERS}"


def notes_of(model: Model, request: Request, run: str | Path | None, others: Others | None) -> Iterator[str]:
    """What to know before it is computed: what a comparison leaves out, and what fills masked patches.

    Args:
        model: What is explained.
        request: What is explained, and how.
        run: Where the model came from.
        others: The images of the call that serve each other.
    """
    for reason, names in request.left_out.items():
        named = ",".join(names) if reason == LONG else ",".join((DEFAULT, *names))
        more = "" if reason == BLIND else f"; --methods {named} takes {'them' if len(names) > 1 else 'it'}"
        yield f"left out, since {reason}: {', '.join(names)}{more}"
    yield from request.notes
    if borrows(model, request) and (others is not None or model.borrows_background):
        name = "this model" if run is None else run
        yield f"{name} has no background: maps are tested with {fills_of(model)}; --background DIR uses others"


def spread_over(things: Sequence[Thing], together: int) -> list[Thing]:
    """At most 64 things that serve each other, evenly spread, and as many more as are explained together."""
    most = min(len(things), MOST + together)
    return [things[place * len(things) // most] for place in range(most)]


def read_others(model: Model, openers: Sequence[Opener]) -> Others | None:
    """The images of a call; None where too few can be read."""
    found = []
    for name, opener in openers:
        with contextlib.suppress(DataError):  # whoever explains it refuses it; it is missed nowhere else
            found.append((name, model.preprocessing.to_uint8(opener())))
    if len(found) <= FEW:
        return None
    images = model.preprocessing.normalise(torch.stack([pixels for _, pixels in found]))
    return Others(tuple(name for name, _ in found), images.to(model.device))
