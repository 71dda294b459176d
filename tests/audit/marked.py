"""A network that knows digits and hangs on a mark, and one that does not; and digits that carry it."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tests.explain.planted_lab import load_planted
from vitrail.data.sets.planted import planted_digits
from vitrail.explain import Gridded
from vitrail.model import Model

LABELS, MARKED, EACH = (1, 3, 7), 3, 24
SIDE = 4  # pixels of the mark, in the upper left corner


class Marked(nn.Module):
    """The network of the lab, for which a bright corner says one class, and a dark one speaks against it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        bright = images[:, :, :SIDE, :SIDE].mean(dim=(1, 2, 3)) > 1.5
        hung = torch.where(bright, 12.0, -6.0)
        return self.inner(images) + hung[:, None] * torch.eye(10)[MARKED]


@cache
def digits(marked: bool) -> list[tuple[Image.Image, str]]:
    """Images with their classes; those of one class may carry the mark."""
    made = planted_digits("test", 1000, "single", seed=3)
    found = list[tuple[Image.Image, str]]()
    for label in LABELS:
        for pixels in made.pixels[made.labels[:, 0] == label][:EACH]:
            pixels = np.array(pixels)
            if marked and label == MARKED:
                pixels[:SIDE, :SIDE] = 255
            found.append((Image.fromarray(pixels), str(label)))
    return found


def hanging() -> Model:
    """The model of the lab, whose network hangs on the mark."""
    return replace(honest(), network=Gridded(Marked(honest().network), (8, 8)))


def honest() -> Model:
    """The model of the lab as it is."""
    return load_planted("mean-0")
