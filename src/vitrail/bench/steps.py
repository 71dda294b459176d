"""A step of training: of another library as anyone writes it, and of vitrail by its own loop."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.bench.contestants import answer
from vitrail.data.batches import Batch
from vitrail.data.plan import WHOLE, Share
from vitrail.tasks.classify import cross_entropy
from vitrail.training.loop import start, train_loop
from vitrail.training.settings import Execution, Optimization

RATE = 1e-6  # of learning: what is learnt does not matter here


def written_step(network: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> Callable[[], int]:
    """Forward, cross-entropy, backward, AdamW; in bf16 by autocast, with the fused optimizer.

    Args:
        network: (b, c, h, w) to logits, or to something that holds them.
        images: (b, c, h, w) the same in each step.
        labels: (b,) of them.
        bf16: Else fp32, and AdamW as torch has it without being asked.
    """
    optimizer = torch.optim.AdamW(network.parameters(), RATE, fused=True if bf16 else None)

    def step() -> int:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(answer(network(images)).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return len(images)

    return step


class Same:
    """Training data that is one batch, again and again.

    Args:
        images: (b, c, h, w) normalised.
        labels: (b,) of them.
        classes: How many there are.
        steps: In an epoch.
    """

    seed = 0

    def __init__(self, images: Tensor, labels: Tensor, classes: int, steps: int) -> None:
        self.images, self.labels, self.steps = images, labels, steps
        self.device = images.device
        self.targets = F.one_hot(labels, classes).to(images.dtype)

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self.steps * len(self.images)

    def batches(
        self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None, share: Share = WHOLE
    ) -> Iterator[Batch]:
        """The batch, as often as an epoch has it."""
        ids = np.arange(len(self.images), dtype=np.int64)
        for number in range(start, self.steps):
            yield Batch(self.images, self.targets, self.labels, ids, epoch, number)


def own_step(network: nn.Module, images: Tensor, labels: Tensor, classes: int, bf16: bool) -> Callable[[], int]:
    """The next step of vitrail's loop: with its guard, its clipping and its decay by groups.

    Args:
        network: (b, c, h, w) to logits.
        images: (b, c, h, w) the same in each step.
        labels: (b,) of them.
        classes: How many there are.
        bf16: By autocast; else fp32.
    """
    choices = Optimization(epochs=1, batch_size=len(images), learning_rate=RATE, warmup_epochs=0.0)
    execution = Execution(
        device=str(images.device), threads=torch.get_num_threads(), precision="bf16" if bf16 else "fp32"
    )
    data = Same(images, labels, classes, steps=1_000_000)  # more than any bench makes
    loop = train_loop(start(network, choices), data, cross_entropy, choices, execution)

    def step() -> int:
        next(loop)
        return len(images)

    return step
