"""What is explained: for each image, one number made of its logits.

    None            each image's top class
    3               one class for all images
    [3, 1]          one for each image; a tensor (b,) too
    (3, 5)          class 3 rather than class 5: the difference of their logits; `Contrast` is the same by name
    a function      of logits (n, classes) to numbers (n,), each row by itself

It is always made of logits, never of probabilities: a probability's gradient shrinks with p (1 - p), and a sure network
would have nothing to explain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.errors import UsageError

Classes = int | Sequence[int] | Tensor
OfLogits = Callable[[Tensor], Tensor]


class Contrast(NamedTuple):
    """One class rather than another: the logit of `target` less that of `contrast`; each as in `Target`."""

    target: Classes
    contrast: Classes


Target = None | Classes | Contrast | tuple[Classes, Classes] | OfLogits

FUNCTION = -1  # stands for the class where a function of the logits is explained


@dataclass(frozen=True, eq=False)
class ChosenTarget:
    """The target of each image, checked.

    Attributes:
        target: (b,), index of the class; `FUNCTION` (-1) where a function of the logits is explained.
        contrast: (b,), the class it is held against; None where there is none.
        function: The function of the logits; None where a class is explained.
    """

    target: Int[Tensor, "b"]
    contrast: Int[Tensor, "b"] | None = None
    function: OfLogits | None = None

    def of(self, logits: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The number that is explained, of logits of the same images; axes may stand before the images.

        Raises:
            UsageError: If the caller's function does not give one number for each row.
        """
        if self.function is not None:
            rows = logits.flatten(0, -2)
            numbers = self.function(rows)
            if not isinstance(numbers, Tensor) or numbers.shape != rows.shape[:1]:
                got = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
                raise UsageError(
                    f"a target function must return one number per row of logits ({len(rows)},), got {got}",
                    "lambda logits: logits[:, 3]",
                )
            return numbers.unflatten(0, logits.shape[:-1])
        chosen = _picked(logits, self.target)
        return chosen if self.contrast is None else chosen - _picked(logits, self.contrast)

    def select(self, images: slice | Tensor) -> "ChosenTarget":
        """The targets of some of the images."""
        against = None if self.contrast is None else self.contrast[images]
        return ChosenTarget(self.target[images], against, self.function)


@dataclass(frozen=True, eq=False)
class Similarity:
    """A function of logits that describe an image: the cosine of the angle between them and a direction.

    Attributes:
        direction: (v,), of length 1.
    """

    direction: Float[Tensor, " v"]

    def __call__(self, logits: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
        """The cosines, -1 to 1."""
        norms = logits.norm(dim=1).clamp(min=torch.finfo(logits.dtype).tiny)
        return logits @ self.direction.to(logits) / norms


def similarity(reference: Float[Tensor, " v"]) -> Similarity:
    """A target for networks whose logits describe an image: how alike they are to another image's, as a cosine.

    Args:
        reference: The other image's numbers.
    """
    return Similarity(reference.detach().float() / reference.detach().float().norm().clamp(min=1e-30))


def one_output(index: int) -> OfLogits:
    """A target for the same networks: one of their outputs as it is. An index would be taken for a class, with odds.

    Args:
        index: Which one, from 0.
    """
    return lambda logits: logits[:, index]


def choose_target(logits: Float[Tensor, "b v"], target: Target) -> ChosenTarget:
    """What to explain, for each image.

    Args:
        logits: (b, classes), which decide the top class and the range of indices.
        target: See the module.

    Raises:
        UsageError: If a class is no index, there is not one per image, or it is out of range, whose message names the
            range; or if a function gives NaN or infinity where the logits are finite.
    """
    if target is None:
        return ChosenTarget(logits.argmax(dim=1))
    if isinstance(target, tuple):
        if len(target) != 2:
            raise UsageError(
                f"a tuple is a target and a contrast, so it needs two entries, got {len(target)}",
                "a list for one class per image, or (3, 5) for 3 rather than 5",
            )
        chosen, against = (_classes(logits, one) for one in target)
        if (chosen == against).any():
            same = int(chosen[chosen == against][0])
            raise UsageError(f"target and contrast are the same class, {same}", "two different classes")
        return ChosenTarget(chosen, against)
    if callable(target):
        chosen = ChosenTarget(torch.full(logits.shape[:1], FUNCTION, device=logits.device), function=target)
        broken = (
            (logits.isfinite().all(dim=1) & ~chosen.of(logits.detach().clone()).isfinite()).nonzero()[:, 0].tolist()
        )
        if broken:
            problem = f"the target function gives NaN or infinity for image {broken[0]} of {len(logits)}"
            raise UsageError(problem, "lambda logits: logits[:, 3]")
        return chosen
    return ChosenTarget(_classes(logits, target))


def refuse_constant(numbers: Float[Tensor, "*n"]) -> None:
    """Refuse explained numbers that no gradient leaves, before they are differentiated.

    Raises:
        UsageError: If a target function gives numbers that do not depend on the logits.
    """
    if not numbers.requires_grad:
        raise UsageError(
            "the result of the target function does not depend on the logits, so it has no gradient",
            "lambda logits: logits[:, 3]",
        )


def _classes(logits: Float[Tensor, "b v"], classes: Classes) -> Int[Tensor, "b"]:
    images, count = logits.shape
    wanted, hint = f"target must be a class index of 0..{count - 1}", "target=None for the top class"
    try:
        chosen = torch.as_tensor(classes, device=logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{wanted}, got {classes!r}", hint) from error
    if chosen.dtype == torch.bool or chosen.is_floating_point() or chosen.is_complex():
        raise UsageError(f"{wanted}, got {chosen.dtype}", hint)
    if chosen.shape not in ((), (images,)):
        raise UsageError(
            f"target must be one index or one for each of {images} images (each of 0..{count - 1}), "
            f"got shape {tuple(chosen.shape)}",
            f"an integer tensor of shape ({images},), each of 0..{count - 1}",
        )
    outside = (chosen < 0) | (chosen >= count)
    if outside.any():
        raise UsageError(f"{wanted}, got {chosen[outside].flatten()[0].item()}", hint)
    return chosen.long().expand(images).clone()


def _picked(logits: Float[Tensor, "*m b v"], classes: Int[Tensor, "b"]) -> Float[Tensor, "*m b"]:
    return logits.gather(-1, classes[:, None].expand(*logits.shape[:-1], 1))[..., 0]
