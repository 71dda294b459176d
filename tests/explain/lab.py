"""Pictures in which it is known where the evidence lies, made of scikit-learn's real handwritten digits.

A picture has 4 x 4 cells of 8 x 8 pixels. One cell holds a digit, the other 15 hold digits whose pixels are shuffled:
the same histogram, and nothing to tell a class by. A map should lie on the digit's cell.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from vitrail.nn import ViT, ViTConfig

CELLS = 4


@dataclass(frozen=True)
class Pictures:
    """images (b, 1, 32, 32), the digits' classes (b,), and the cell of 0..15 in which each stands (b,)."""

    images: Tensor
    classes: Tensor
    cells: Tensor


def single(count: int, generator: torch.Generator, test: bool) -> Pictures:
    """Fresh pictures with one digit each, from 1,400 training or 397 test digits."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    pool = order[1400:] if test else order[:1400]
    chosen = pool[torch.randint(len(pool), (count, CELLS**2), generator=generator)]
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32)[chosen].flatten(2)
    shuffled = pixels.gather(2, torch.rand(pixels.shape, generator=generator).argsort(dim=2))
    cells, every = torch.randint(CELLS**2, (count,), generator=generator), torch.arange(count)
    shuffled[every, cells] = pixels[every, cells]
    images = shuffled.view(count, CELLS, CELLS, 8, 8).permute(0, 1, 3, 2, 4).reshape(count, 1, 32, 32)
    noise = 0.1 * torch.randn(images.shape, generator=generator)
    return Pictures(images + noise, torch.tensor(digits.target)[chosen[every, cells]], cells)


@dataclass(frozen=True)
class Pairs:
    """images (b, 1, 32, 32) with two digits; classes (b, 2) and cells (b, 2), different within each picture."""

    images: Tensor
    classes: Tensor
    cells: Tensor


def double(count: int, generator: torch.Generator) -> Pairs:
    """Test pictures with two digits of different classes; somewhat fewer than `count`."""
    one, two = single(count, generator, test=True), single(count, generator, test=True)
    every = torch.arange(count)
    images = one.images.view(count, CELLS, 8, CELLS, 8).clone()
    row, column = two.cells // CELLS, two.cells % CELLS
    images[every, row, :, column] = two.images.view_as(images)[every, row, :, column]
    kept = (one.classes != two.classes) & (one.cells != two.cells)
    classes, cells = torch.stack([one.classes, two.classes], 1), torch.stack([one.cells, two.cells], 1)
    return Pairs(images.reshape(count, 1, 32, 32)[kept], classes[kept], cells[kept])


def make(config: ViTConfig, seed: int) -> ViT:
    torch.manual_seed(seed)
    return ViT(config)


def train(config: ViTConfig, steps: int, seed: int) -> ViT:
    """A small network trained on fresh pictures; in eval mode."""
    network, generator = make(config, seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(steps):
        batch = single(64, generator, test=False)
        loss = F.cross_entropy(network(batch.images), batch.classes)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return network.eval()


def by_cell(values: Tensor) -> Tensor:
    """(b, 16, patches of a cell) from a map (b, rows, columns)."""
    patches = values.shape[1] // CELLS
    return values.unflatten(1, (CELLS, patches)).unflatten(3, (CELLS, patches)).transpose(2, 3).flatten(3).flatten(1, 2)


def pointing(values: Tensor, cells: Tensor) -> float:
    """Pointing game: the share of pictures whose largest value lies in the digit's cell."""
    return float((by_cell(values).amax(dim=2).argmax(dim=1) == cells).float().mean())


def mass(values: Tensor, cells: Tensor) -> float:
    """The mean share of a map that lies in the digit's cell; 1 / 16 by chance."""
    shares = by_cell(values).sum(dim=2)
    return float((shares.gather(1, cells[:, None])[:, 0] / shares.sum(dim=1)).mean())


def discrimination(maps: tuple[Tensor, Tensor], cells: Tensor) -> float:
    """The share of (picture, class) whose own digit gets more than the other; 0.5 for maps that know no class.

    Where both get the same, which of them is first would be chance: that counts half.
    """
    own = [by_cell(values).sum(dim=2).gather(1, cells) for values in maps]
    more = torch.stack([own[0][:, 0] - own[0][:, 1], own[1][:, 1] - own[1][:, 0]])
    return float((more.sign().double() / 2 + 0.5).mean())
