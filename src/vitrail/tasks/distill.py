"""Learning from a teacher: "Distilling the knowledge in a neural network" (2015), and DeiT (2021), section 4.

The loss of an image is, with the weight w of the teacher:

    soft   (1 - w) CE(labels) + w T^2 KL(softmax(teacher / T) || softmax(student / T))
    hard   (1 - w) CE(labels) + w CE(the teacher's first choice)

Why T^2: dividing both logits by T makes the gradient of KL with respect to the student's logits about T^2 times smaller
(one 1/T from the student's own division, another since the two softened distributions lie closer by 1/T; exact for
large T). Times T^2, the weight w means the same at every temperature (2015, section 2).

With a distillation token (DeiT) the labels teach the class head and the teacher teaches the head of its own token; at
inference both are averaged, which the ViT does by itself. Without one, both teach the class head.
"""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.data.batches import Batch
from vitrail.nn import Record
from vitrail.tasks.task import Measures, Network, Objective

TeacherLogits = Callable[[Batch], Float[Tensor, "b v"]]  # the teacher's logits, in the order of the student's classes
Kind = Literal["soft", "hard"]

CLASS, DISTILLATION = "class_logits", "distillation_logits"  # as the ViT calls them in its record


def distillation(
    teacher: TeacherLogits, kind: Kind = "soft", temperature: float = 3.0, weight: float = 0.5, token: bool = False
) -> Objective:
    """The objective of a student.

    Args:
        teacher: From a batch to logits (b, classes); `Teacher` and its stored answers are such functions.
        kind: Learn the teacher's probabilities, or its first choice.
        temperature: T, above 0 (soft only).
        weight: w, from 0 to 1.
        token: Whether the student has a distillation token; else the class head learns from both.

    Returns:
        A function of network and batch: the summed loss in nats, the number of images, and `correct` (by what the
        student answers at inference) and `label_loss` (its summed cross-entropy with the labels).
    """

    def objective(network: Network, batch: Batch) -> tuple[Float[Tensor, ""], int, Measures]:
        by_labels, by_teacher, logits = _heads(network, batch, token)
        label_loss = F.cross_entropy(by_labels, batch.targets, reduction="sum")
        teacher_part = teacher_loss(by_teacher, teacher(batch).to(by_teacher.dtype), kind, temperature)
        correct = (logits.detach().argmax(dim=1) == batch.labels).sum().float()
        measures = {"correct": correct, "label_loss": label_loss.detach()}
        return (1 - weight) * label_loss + weight * teacher_part, len(batch.labels), measures

    return objective


def teacher_loss(
    student: Float[Tensor, "b v"], teacher: Float[Tensor, "b v"], kind: Kind = "soft", temperature: float = 3.0
) -> Float[Tensor, ""]:
    """The teacher's part of the loss, summed over the images, in nats; nothing flows back into the teacher."""
    teacher = teacher.detach()
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(dim=1), reduction="sum")
    ours, theirs = ((logits / temperature).log_softmax(dim=1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="sum", log_target=True) * temperature**2


def _heads(network: Network, batch: Batch, token: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The logits that the labels teach, those that the teacher teaches, and the answer; at least in fp32."""
    if not token:
        logits = _precise(network(batch.inputs))
        return logits, logits, logits
    record = Record(CLASS, DISTILLATION, gradients=True)
    logits = network(batch.inputs, record=record)
    return _precise(record[CLASS]), _precise(record[DISTILLATION]), logits


def _precise(logits: Tensor) -> Tensor:
    return logits if logits.dtype.itemsize > 4 else logits.float()
