"""What is learnt: functions of network and batch that return sums and counts, never means.

Sums and counts add up exactly over parts of a batch, uneven ends and pictures that were left out; the loop divides
once. An objective calls only `network(...)`; what else it wants, it reads from a record.
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.data.batches import Batch

Measures = dict[str, Float[Tensor, ""]]
Network = Callable[..., Tensor]  # a module, or one that was compiled or wrapped: only called
Objective = Callable[[Network, Batch], tuple[Float[Tensor, ""], int, Measures]]


def classification(network: Network, batch: Batch) -> tuple[Float[Tensor, ""], int, Measures]:
    """Cross-entropy of the logits with hard targets (b,) or mixed ones (b, classes).

    Args:
        network: Gives logits (b, classes).
        batch: Pictures and targets.

    Returns:
        The summed loss in nats, the number of pictures, and `correct`: how many have their own label as top class.
    """
    logits = network(batch.images).float()
    loss = F.cross_entropy(logits, batch.targets, reduction="sum")
    correct = (logits.detach().argmax(dim=1) == batch.labels).sum().float()
    return loss, len(batch.labels), {"correct": correct}
