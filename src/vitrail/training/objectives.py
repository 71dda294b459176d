"""What is learnt: functions of network and batch that return sums and counts, never means.

Sums and counts add up exactly over parts of a batch, uneven ends and pictures that were left out; the loop divides
once. An objective calls only `network(...)`; what else it wants, it reads from a record.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.data.batches import Batch
from vitrail.data.sequence_batches import SequenceBatch
from vitrail.data.vocabulary import PADDING

Measures = dict[str, Float[Tensor, ""]]
Network = Callable[..., Tensor]  # a module, or one that was compiled or wrapped: only called
Objective = Callable[[Network, Any], tuple[Float[Tensor, ""], int, Measures]]


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


def teacher_forcing(label_smoothing: float = 0.0) -> Objective:
    """The objective of a network that writes: each id of the true text, from the true ids before it.

    "Attention is all you need" (2017), sections 3.2.3 and 5.4. The network is given the target without its last
    column and is asked for the target without its first. Padding is neither asked for nor counted.

    Args:
        label_smoothing: Share of the target that is spread evenly over all ids, e: the loss of an id y is
            -(1 - e) log p(y) - e / v * sum_i log p(i).

    Returns:
        An objective: the summed loss in nats, the number of ids that were asked for (each end included), and
        `correct_tokens`: how many of them have the greatest logit.
    """

    def objective(network: Network, batch: SequenceBatch) -> tuple[Float[Tensor, ""], int, Measures]:
        given, wanted = batch.target[:, :-1], batch.target[:, 1:]
        logits = network(batch.inputs, given).float()
        asked = wanted != PADDING
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            wanted.flatten(),
            reduction="sum",
            ignore_index=PADDING,
            label_smoothing=label_smoothing,
        )
        correct = ((logits.detach().argmax(dim=-1) == wanted) & asked).sum().float()
        return loss, int(asked.sum()), {"correct_tokens": correct}

    return objective
