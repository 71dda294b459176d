"""A new head for a teacher whose classes are other ones: multinomial logistic regression on its frozen features.

Features are taken from unchanged training pictures, standardised, and one linear map is fitted to them by L-BFGS: a
convex problem, so there is nothing to tune and the same data give the same head.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.training.distill.teacher import Teacher

FITTED = 10_000  # most pictures that a head is fitted on
TOGETHER = 256  # pictures that are asked about at a time
STEPS = 100  # of L-BFGS, each with its line search
DECAY = 1e-4  # on the squares of the weights, for standardised features


def with_new_head(features: Teacher, data: Batches, classes: tuple[str, ...], most: int = FITTED) -> Teacher:
    """A teacher of these classes: what it had before its head, and a linear map fitted on top.

    Args:
        features: Its answers are features, or logits of other classes.
        data: The student's training pictures and labels.
        classes: Of the labels.
        most: Pictures that the head is fitted on.
    """
    assert isinstance(data.input, Preprocessing)
    answers, labels, count = [], [], 0
    for batch in unchanged(data).batches(0, TOGETHER):
        answers.append(features.answer(batch.inputs, data.input).flatten(1))
        labels.append(batch.labels)
        count += len(batch)
        if count >= most:
            break
    head = fitted(torch.cat(answers), torch.cat(labels), len(classes))
    return replace(features, network=nn.Sequential(features.module, nn.Flatten(), head), classes=classes)


def unchanged(data: Batches) -> Batches:
    """The same pictures without augmentation."""
    return replace(data, augmentation=Augmentation(), blend=None)


def fitted(features: Float[Tensor, "n f"], labels: Int[Tensor, " n"], classes: int) -> nn.Linear:
    """The linear map whose softmax fits the labels best, with a little weight decay."""
    mean, std = features.mean(dim=0), features.std(dim=0, correction=0).clamp_min(1e-6)
    standard = (features - mean) / std
    weight = torch.zeros(classes, features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(classes, device=features.device, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(F.linear(standard, weight, bias), labels) + DECAY * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    head = nn.Linear(features.shape[1], classes, device="meta")  # no random numbers for what is known
    head.weight = nn.Parameter((weight / std).detach(), requires_grad=False)
    head.bias = nn.Parameter((bias - (weight / std) @ mean).detach(), requires_grad=False)
    return head
