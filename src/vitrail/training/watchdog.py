"""What watches a training: numbers that are not finite never reach the weights; a run that learns nothing says so."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.errors import RunError

PATIENCE = 10  # steps within which a run stops after the first bad number, on devices where looking costs a wait


class FiniteGuard:
    """Lets a step pass only when loss and gradients are finite.

    On a processor every step is looked at before it is applied. On an accelerator looking means waiting, so the bad
    step and all behind it are skipped by the optimizer's own kernel (`found_inf`) until the next look, within ten steps
    and at the end of an epoch at the latest; that look stops the run.

    Args:
        names: One name for each gradient.
        device: Where the gradients are.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = names
        self.every = 1 if device.type == "cpu" else PATIENCE
        self._step = torch.full((), -1, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), device=device)
        self._norms = torch.zeros(len(names), device=device)

    def judge(self, step: int, loss: Tensor, norms: Tensor) -> Tensor:
        """1.0 when this step must be skipped, else 0.0; remembers the first bad step, after which none passes.

        Args:
            step: Counted from 0.
            loss: Of the step.
            norms: (len(names),) the norm of each gradient.
        """
        bad = ~(loss.isfinite() & norms.isfinite().all())
        first = bad & (self._step < 0)
        self._step = torch.where(first, step, self._step)
        self._loss = torch.where(first, loss, self._loss)
        self._norms = torch.where(first, norms, self._norms)
        return (self._step >= 0).float()

    def check(self, step: int) -> None:
        """Look, if it is time: at every step on a processor, at every tenth elsewhere.

        Raises:
            RunError: If a bad step was seen.
        """
        if (step + 1) % self.every == 0:
            self.look()

    def look(self) -> None:
        """Stop the run if a bad step was seen.

        Raises:
            RunError: Names the step and the first tensor that is not finite.
        """
        if int(self._step) >= 0:
            wrong = [n for n, norm in zip(self.names, self._norms.tolist(), strict=True) if not math.isfinite(norm)]
            loss = float(self._loss)
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient of {wrong[0]} is not finite"
            if not math.isfinite(loss) and wrong:
                what += f", and with it the gradient of {wrong[0]}"
            raise RunError(
                f"step {int(self._step)}: {what}; the weights are still those of the step before",
                "a lower --lr; or --precision fp32; if it is step 0, look at the images and the start weights",
            )


def stuck(loss: float, chance: float, done: float, learning_rate: float, gradient: float) -> str | None:
    """A sentence on a training whose loss is still that of guessing, or None when it learns.

    Args:
        loss: Mean training loss of the last epoch in nats.
        chance: Loss of a network that has learnt nothing.
        done: Fraction of the schedule that is over, 0..1.
        learning_rate: The highest one of the schedule.
        gradient: Norm of the last gradient.
    """
    if done < 0.5 or loss < 0.97 * chance:
        return None
    if learning_rate > 3e-3:
        cause = f"the learning rate {learning_rate:g} is high for AdamW; try --lr {learning_rate / 10:g}"
    elif learning_rate < 1e-5 or gradient < 1e-4:
        cause = f"the weights hardly move; try --lr {max(1e-3, learning_rate * 10):g}"
    else:
        cause = "the labels may not belong to the images, or patches are too large for what they show; try smaller"
    return f"the loss is still {loss:.3f}, that of guessing is {chance:.3f}, at {done:.0%} of the schedule: {cause}"
