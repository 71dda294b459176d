"""What the scores are compared with: numpy loops over images, draws and patches, and networks with known answers.

Nothing here uses ranks, spans or chunks: a composite is made by copying one patch after the other.
"""

import itertools
import math

import numpy as np
import torch
from torch import Tensor, nn

PATCH = (2, 3)
GRID = (3, 4)  # 3 rows of 4 columns, patches of 2 x 3 pixels: nothing is patch
CHANNELS, CLASSES = 2, 4


class Pixels(nn.Module):
    """A small network that is not linear: any pixel may change any logit."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        numbers = CHANNELS * GRID[0] * PATCH[0] * GRID[1] * PATCH[1]
        self.first = nn.Parameter(torch.randn(numbers, 16, generator=generator) * numbers**-0.5)
        self.second = nn.Parameter(torch.randn(16, CLASSES, generator=generator))
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        return (images.flatten(1) @ self.first).tanh() @ self.second


class Linear(nn.Module):
    """Logits that are sums over patches, so that the right order of patches is known."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights  # v c h w

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weights.flatten(1).T

    def contributions(self, images: Tensor, filler: Tensor, target: int, patch: tuple[int, int]) -> Tensor:
        """(b, rows, columns): what each patch adds to the logit beside the filler; the true map."""
        gained = self.weights[target] * (images - filler)
        return gained.unflatten(3, (-1, patch[1])).unflatten(2, (-1, patch[0])).sum(dim=(1, 3, 5))


def make_network() -> Pixels:
    return Pixels().double().eval()


def make_images(count: int = 3, seed: int = 1) -> Tensor:
    size = (count, CHANNELS, GRID[0] * PATCH[0], GRID[1] * PATCH[1])
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_maps(count: int = 3, seed: int = 2) -> Tensor:
    """Maps in which no two values are equal, of both signs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(12, generator=generator) - 4.5 for _ in range(count)]).view(-1, *GRID).double()


def replaced(image: np.ndarray, filler: np.ndarray, patches: list[int], grid: tuple[int, int]) -> np.ndarray:
    """`image` (c, h, w) in which these patches, counted along the rows, are those of `filler`."""
    height, width = image.shape[1] // grid[0], image.shape[2] // grid[1]
    made = image.copy()
    for patch in patches:
        row, column = patch // grid[1] * height, patch % grid[1] * width
        for y, x in itertools.product(range(row, row + height), range(column, column + width)):
            made[:, y, x] = filler[:, y, x]
    return made


def logits_of(network: nn.Module, image: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network(torch.tensor(image)[None])[0].numpy()


def probability(logits: np.ndarray, target: int) -> float:
    powers = [math.exp(logit - logits.max()) for logit in logits]
    return powers[target] / sum(powers)


def measure_of(logits: np.ndarray, target: int, measure: str) -> float:
    return float(logits[target]) if measure == "logit" else probability(logits, target)


def measured_with(
    network: nn.Module,
    image: np.ndarray,
    fillers: np.ndarray,
    patches: list[int],
    grid: tuple[int, int],
    target: int,
    measure: str,
) -> float:
    """The mean over fillers of what is measured when these patches are masked."""
    made = [replaced(image, filler, patches, grid) for filler in fillers]
    return sum(measure_of(logits_of(network, one), target, measure) for one in made) / len(made)


def area(heights: list[float], places: list[float]) -> float:
    """By the trapezoid rule."""
    pairs = zip(itertools.pairwise(places), itertools.pairwise(heights), strict=True)
    return sum((right - left) * (high + low) / 2 for (left, right), (low, high) in pairs)


def order_of(values: np.ndarray) -> list[int]:
    """Patches by value, the largest first."""
    return sorted(range(values.size), key=lambda patch: -values.flat[patch])


def bilinear(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """The map at the centre of every pixel, by the four nearest patch centres; beyond the outer centres it is flat."""
    made = np.empty((height, width))
    for y, x in itertools.product(range(height), range(width)):
        row = min(max((y + 0.5) * values.shape[0] / height - 0.5, 0), values.shape[0] - 1)
        column = min(max((x + 0.5) * values.shape[1] / width - 0.5, 0), values.shape[1] - 1)
        top, left = int(row), int(column)
        bottom, right = min(top + 1, values.shape[0] - 1), min(left + 1, values.shape[1] - 1)
        upper = values[top, left] * (1 - column + left) + values[top, right] * (column - left)
        lower = values[bottom, left] * (1 - column + left) + values[bottom, right] * (column - left)
        made[y, x] = upper * (1 - row + top) + lower * (row - top)
    return made
