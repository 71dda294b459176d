"""Losses of classes and labels, some of which may be rare: each weighted, or its logits adjusted, in a training.

A loss takes outputs, targets and a reduction, and gives nats. The weights of a training have a mean of 1 over its
samples, so that sums and counts are those of the plain loss.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SHARP = 1e-6  # what of a target is the class at least, beside what smoothing spreads
SUREST = 1e-4  # a base rate is at least this, and at most 1 less this

Given = Mapping[str, float] | Literal["auto"] | None  # weights by name, by frequency, or none
Focus = tuple[float, float, float]  # of `asymmetric`
Loss = Callable[..., Float[Tensor, ""]]


class Weighing(NamedTuple):
    """What becomes of the loss of a training where some classes are rare.

    Attributes:
        given: The weight of each class or label by its name; "auto" by its frequency; None for none.
        even: Whether every class is drawn equally often.
        tau: The loss sees logits + tau log(frequency).
        smoothing: Of the targets, where they are probabilities.
        focus: Of `asymmetric`; None for the cross-entropy.
    """

    given: Given = None
    even: bool = False
    tau: float = 0.0
    smoothing: float = 0.0
    focus: Focus | None = None


Outputs = Float[Tensor, "b v"]
Targets = Float[Tensor, "b v"]


def blend_known(
    own: Tensor, partners: Tensor, weights: Float[Tensor, " b"] | None, smoothing: float, outputs: int
) -> Tensor:
    """Targets of mixed images: both by their weights, unknown (NaN) where one of them is; smoothed behind that.

    Args:
        own: Of each image, (b, v) of labels that are there or not, or (b, columns, v) of the classes of columns, NaN
            for those of other columns.
        partners: Of what is mixed in.
        weights: Of its own targets, 0 to 1; None where nothing is mixed.
        smoothing: e: of each target 1 - e stays, and e goes evenly to what it could be: there or not, or the classes of
            its column.
        outputs: How many outputs there are.
    """
    if weights is not None:
        weight = weights.cpu().view(-1, *[1] * (own.dim() - 1))
        own = weight * own + (1 - weight) * partners
    could_be = 2 if own.dim() == 2 else (~own.isnan()).sum(dim=2, keepdim=True)
    return own if not smoothing else (1 - smoothing) * own + smoothing / could_be


def by_name(given: Given, names: Sequence[str], auto: Float[Tensor, " v"]) -> Float[Tensor, " v"]:
    """Weights in the order of names: those given, ones where none are, or those that "auto" stands for."""
    if given == "auto":
        return auto
    return torch.tensor([1.0 if given is None else given[name] for name in names], dtype=torch.float64)


def class_loss(counts: Sequence[int], names: Sequence[str], by: Weighing) -> Loss:
    """Cross-entropy in which each class of a target has its weight, of mean 1 over the samples that are drawn.

    A mixed target is weighted class by class, as by torch's `weight`; labels are smoothed behind that: else the bit
    that smoothing gives a rare class would outweigh the frequent class of the image. Logits are adjusted as in
    "Long-tail learning via logit adjustment" (Menon et al., ICLR 2021), equation 10; answers are the plain ones.

    Args:
        counts: Training samples of each class; none counts as one.
        names: Of the classes.
        by: Weights, of which "auto" is the inverse of the frequency, or how far logits are adjusted.
    """
    given, even, tau, smoothing, _ = by
    found = torch.tensor(counts, dtype=torch.float64).clamp(min=1)
    frequency = found / found.sum()
    weights = by_name(given, names, 1 / frequency)
    weights = weights / weights.mean() if even else weights / (weights * frequency).sum()
    shift, rest = tau * frequency.log(), smoothing / len(names)

    def loss(outputs: Outputs, targets: Tensor, reduction: str = "mean") -> Float[Tensor, ""]:
        each = weights.to(outputs)
        if targets.is_floating_point():
            own = each * (targets.to(outputs) - rest) / max(1 - smoothing, SHARP)
            wanted = (1 - smoothing) * own + rest * own.sum(dim=1, keepdim=True)
        else:
            wanted = each * F.one_hot(targets, len(each))
        summed = F.cross_entropy(outputs + shift.to(outputs), wanted, reduction="sum")
        return summed / max(1, len(outputs)) if reduction == "mean" else summed

    return loss


def binary_cross_entropy(
    outputs: Outputs,
    targets: Targets,
    reduction: str = "mean",
    weights: Targets | None = None,
    focus: Focus | None = None,
) -> Float[Tensor, ""]:
    """The mean over an image's labels, in nats, of which unknown ones (NaN) add nothing; the sum or mean over images.

    Args:
        outputs: Log-odds (b, v).
        targets: 1 where a label is there, 0 where not, between them where images are mixed, NaN where nobody knows.
        reduction: "mean" or "sum".
        weights: Of each pair of image and label.
        focus: Of `asymmetric`, which stands in place of the cross-entropy then.
    """
    unknown = targets.isnan()
    wanted = targets.masked_fill(unknown, 0.0).to(outputs)
    if focus is None:
        each = F.binary_cross_entropy_with_logits(outputs, wanted, weights, reduction="none")
    else:
        each = asymmetric(outputs, wanted, focus) * (1.0 if weights is None else weights)
    whole = each.masked_fill(unknown, 0.0).mean(dim=1).sum()
    return whole / max(1, len(outputs)) if reduction == "mean" else whole


def asymmetric(outputs: Outputs, targets: Targets, focus: Focus) -> Outputs:
    """The loss of each pair of image and label in which those that are found easily count less, absent ones the most.

    With p the probability of the label and q = max(p - clip, 0), by equations 4, 5 and 7 of Ridnik et al., "Asymmetric
    loss for multi-label classification", ICCV 2021:

        there   -(1 - p)^positive log p        absent   -q^negative log(1 - q)

    Args:
        outputs: Log-odds (b, v).
        targets: As of `binary_cross_entropy`, 0 to 1: both parts by these.
        focus: negative, positive and clip; 0, 0, 0 is the cross-entropy.
    """
    negative, positive, clip = focus
    found, missed = F.logsigmoid(outputs), F.logsigmoid(-outputs)  # log p, log (1 - p)
    there = (positive * missed).exp() * found
    absent = (negative * found).exp() * missed
    if clip:
        sure = outputs.sigmoid()
        counts = sure > clip  # else q is 0, and so is the loss
        q = torch.where(counts, sure - clip, 0.5)
        absent = torch.where(counts, q**negative * (1 - q).log(), 0.0)
    return -(targets * there + (1 - targets) * absent)


def label_loss(names: Sequence[str], rates: Sequence[float], by: Weighing) -> Loss:
    """Binary cross-entropy in which images with a label weigh more than those without, as by torch's `pos_weight`.

    Then all known pairs of a label are scaled so that their mean weight over the training images is 1. Targets are
    weighted as they were before smoothing.

    Args:
        names: Of the labels.
        rates: The fraction of the training images that have each, of those where it is known.
        by: Weights say how many times an image without it one with it weighs; "auto" for as many times as there are
            more of those, so that both halves weigh the same.
    """
    given, _, _, smoothing, focus = by
    had = torch.tensor(rates, dtype=torch.float64)
    likely = had.clamp(SUREST, 1 - SUREST)
    weights = by_name(given, names, (1 - likely) / likely)
    without = 1 / (had * weights + 1 - had)

    def loss(outputs: Outputs, targets: Targets, reduction: str = "mean") -> Float[Tensor, ""]:
        own = (targets.to(outputs) - smoothing / 2) / max(1 - smoothing, SUREST)
        there, absent = (each.to(outputs) * part for each, part in ((weights * without, own), (without, 1 - own)))
        both = there + absent
        wanted = (1 - smoothing) * there / both + smoothing / 2
        return binary_cross_entropy(outputs, wanted, reduction, both.nan_to_num(), focus)

    return loss
