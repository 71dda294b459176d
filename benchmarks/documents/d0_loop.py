"""The rival D0: a small Vision Transformer for MNIST that loops in Python over images, patches and heads.

What the document builds: 7 x 7 patches of 4 x 4 pixels, a linear map to width 8, a class token, fixed sinusoidal
positions, two pre-norm blocks with two heads, and a linear map of the class token to ten *probabilities*, on which it
then takes the cross-entropy (a second softmax: the loss cannot fall below 1.46). Adam, lr 0.005, batch 128.

The arrangement with the document's 1,642 trainable numbers, every linear map with a bias:
patch map 16 -> 8 136, class token 8, two blocks of 704 (two LayerNorms 32, two heads of three maps 4 -> 4 120,
MLP 8 -> 32 -> 8 552), head 8 -> 10 90; no final norm, no output projection after the heads.

The digits lie in memory as one tensor, which is faster than decoding them one by one as the document does.
"""

import math
import time
from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.errors import UsageError

GRID, PATCH, WIDTH, HEADS, DEPTH, CLASSES = 7, 4, 8, 2, 2, 10
BATCH, LEARNING_RATE = 128, 0.005


def cut_patches(images: Float[Tensor, "b 1 28 28"]) -> Float[Tensor, "b 49 16"]:
    """Patches row by row, cut one at a time."""
    patches = torch.zeros(len(images), GRID * GRID, PATCH * PATCH)
    for index, image in enumerate(images):
        for row in range(GRID):
            for column in range(GRID):
                square = image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
                patches[index, row * GRID + column] = square.flatten()
    return patches


def position_table(tokens: int, width: int) -> Float[Tensor, "n d"]:
    """Sines in the even columns and cosines in the odd ones, filled element by element."""
    table = torch.ones(tokens, width)
    for token in range(tokens):
        for column in range(width):
            angle = token / 10000 ** ((column - column % 2) / width)
            table[token, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


@final
class LoopedAttention(nn.Module):
    """Self-attention, one image and one head at a time; a head sees only its own slice of the token."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = WIDTH // HEADS
        self.queries, self.keys, self.values = (
            nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(HEADS)) for _ in range(3)
        )

    def forward(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The heads' results side by side, without an output projection."""
        results = []
        for sequence in tokens:
            heads = []
            for head in range(HEADS):
                part = sequence[:, head * self.head_dim : (head + 1) * self.head_dim]
                query, key, value = self.queries[head](part), self.keys[head](part), self.values[head](part)
                weights = torch.softmax(query @ key.T / math.sqrt(self.head_dim), dim=-1)
                heads.append(weights @ value)
            results.append(torch.hstack(heads))
        return torch.stack(results)


@final
class Block(nn.Module):
    """A pre-norm encoder block with a GELU MLP of ratio 4."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = LoopedAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Attention and MLP, each added to what it read."""
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


@final
class LoopedViT(nn.Module):
    """D0's network: images to class probabilities."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.patch_map = nn.Linear(PATCH * PATCH, WIDTH)
        self.class_token = nn.Parameter(torch.rand(1, WIDTH))
        self.register_buffer("positions", position_table(GRID * GRID + 1, WIDTH), persistent=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Float[Tensor, "b 1 28 28"]) -> Float[Tensor, "b 10"]:
        """Probabilities, as the document returns them."""
        patches = self.patch_map(cut_patches(images))
        tokens = torch.cat([self.class_token.expand(len(images), 1, WIDTH), patches], dim=1)
        tokens = self.blocks(tokens + self.positions)
        return torch.softmax(self.head(tokens[:, 0]), dim=-1)


def build(seed: int) -> LoopedViT:
    """A fresh network drawn from `seed`, leaving torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LoopedViT()


def train(
    network: LoopedViT, images: Float[Tensor, "b 1 28 28"], labels: Int64[Tensor, " b"], epochs: int, seed: int
) -> Iterator[float]:
    """Train as the document does; each `next` is one step of Adam and gives its loss."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()


def train_images_per_second(
    images: Float[Tensor, "b 1 28 28"], labels: Int64[Tensor, " b"], steps: int, warmup: int = 3, seed: int = 0
) -> float:
    """The rate of `steps` training steps of 128 images, after `warmup` untimed ones, at torch's present threads.

    Raises:
        UsageError: One epoch of `images` has fewer full batches than `warmup + steps`.
    """
    if (warmup + steps) * BATCH > len(images):
        wanted = (warmup + steps) * BATCH
        raise UsageError(f"{wanted} images wanted, {len(images)} given", "fewer steps or more images")
    losses = train(build(seed), images, labels, epochs=1, seed=seed)
    for _ in range(warmup):
        next(losses)
    start = time.perf_counter()
    for _ in range(steps):
        next(losses)
    return steps * BATCH / (time.perf_counter() - start)
