"""The rival D2b: the lab's one-block Vision Transformer for MNIST, 91.45 % after five epochs in the document.

What the document builds: every 16 consecutive pixels are a patch (a plain reshape, no 4 x 4 squares), a linear map to
width 20, a class token, sinusoidal positions, one pre-norm block with two heads, and a linear map of the class token to
ten *probabilities*. Adam, lr 0.01, batch 16, 5 epochs. It carries these faults on purpose, since they cost time:

- the heads' maps sit in plain Python lists: 660 numbers that are never trained, though gradients flow into them;
- LayerNorm runs over tokens and features together, and the MLP (20 -> 20) ends in its ReLU;
- attention is computed twice in a block: once for the sum, once more for what the MLP reads;
- the position table is rebuilt in Python at every step;
- cross-entropy is taken on probabilities, and the mean over the batch is divided by the batch once more.

The 4,990 trained numbers, every linear map with a bias: patch map 16 -> 20 340, class token 20, two LayerNorms of
(50, 20) 4,000, MLP 20 -> 20 420, head 20 -> 10 210.

Whether the heads loop over the images of a batch is not described; `per_image` chooses, and False is the faster. The
digits lie in memory as one tensor, which is faster than decoding them one by one as the document does.
"""

import math
from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

TOKENS, PATCH_PIXELS, WIDTH, HEADS, CLASSES = 50, 16, 20, 2, 10
BATCH, LEARNING_RATE, EPOCHS = 16, 0.01, 5


def position_table() -> Float[Tensor, "50 20"]:
    """Sines in the even columns and cosines in the odd ones, number by number."""
    rows = []
    for token in range(TOKENS):
        row = []
        for column in range(WIDTH):
            angle = token / 10000 ** ((column - column % 2) / WIDTH)
            row.append(math.cos(angle) if column % 2 else math.sin(angle))
        rows.append(row)
    return torch.tensor(rows)


@final
class ListedAttention(nn.Module):
    """Heads on slices of the token, their maps in plain lists that `nn.Module` does not see."""

    def __init__(self, per_image: bool) -> None:
        super().__init__()
        self.per_image = per_image
        self.head_dim = WIDTH // HEADS
        self.queries, self.keys, self.values = (
            [nn.Linear(self.head_dim, self.head_dim) for _ in range(HEADS)] for _ in range(3)
        )

    def attend(self, tokens: Float[Tensor, "... n d"]) -> Float[Tensor, "... n d"]:
        """The heads' results side by side, for one sequence or for a batch."""
        heads = []
        for head in range(HEADS):
            part = tokens[..., head * self.head_dim : (head + 1) * self.head_dim]
            query, key, value = self.queries[head](part), self.keys[head](part), self.values[head](part)
            weights = torch.softmax(query @ key.mT / math.sqrt(self.head_dim), dim=-1)
            heads.append(weights @ value)
        return torch.cat(heads, dim=-1)

    def forward(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Attention without an output projection."""
        if self.per_image:
            return torch.stack([self.attend(sequence) for sequence in tokens])
        return self.attend(tokens)


@final
class LabViT(nn.Module):
    """D2b's network: images to class probabilities.

    Args:
        per_image: Loop over the images of a batch in attention, as D0 does.
    """

    def __init__(self, per_image: bool = False) -> None:
        super().__init__()
        self.patch_map = nn.Linear(PATCH_PIXELS, WIDTH)
        self.class_token = nn.Parameter(torch.rand(1, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm([TOKENS, WIDTH]), nn.LayerNorm([TOKENS, WIDTH])
        self.attention = ListedAttention(per_image)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Float[Tensor, "b 1 28 28"]) -> Float[Tensor, "b 10"]:
        """Probabilities, as the document returns them."""
        patches = self.patch_map(images.reshape(len(images), TOKENS - 1, PATCH_PIXELS))
        tokens = torch.cat([self.class_token.expand(len(images), 1, WIDTH), patches], dim=1) + position_table()
        summed = tokens + self.attention(self.norm1(tokens))
        again = tokens + self.attention(self.norm1(tokens))
        tokens = summed + self.mlp(self.norm2(again))
        return torch.softmax(self.head(tokens[:, 0]), dim=-1)


def build(seed: int, per_image: bool = False) -> LabViT:
    """A fresh network drawn from `seed`, leaving torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LabViT(per_image)


def train(
    network: LabViT, images: Float[Tensor, "b 1 28 28"], labels: Int64[Tensor, " b"], seed: int, epochs: int = EPOCHS
) -> Iterator[float]:
    """Train as the document does; each `next` is one step of Adam and gives its loss, already divided twice."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen]) / len(chosen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()


@torch.no_grad()
def accuracy(network: LabViT, images: Float[Tensor, "b 1 28 28"], labels: Int64[Tensor, " b"]) -> float:
    """The share of `images` that the network names rightly, from 0 to 1."""
    right = 0
    for chosen in torch.arange(len(images)).split(1000):
        right += int((network(images[chosen]).argmax(dim=-1) == labels[chosen]).sum())
    return right / len(images)
