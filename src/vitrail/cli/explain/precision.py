"""In which precision maps are tested: what was asked for, or what one timing found faster."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.explain.verdict import Precision
    from vitrail.model import Model

PICTURES = 4  # of a pass that is timed
PAYS = 0.8  # bf16 is taken where it needs less than this share of the time


def choose_precision(model: "Model", picture: "Image.Image", asked: Literal["auto", "fp32", "bf16"]) -> "Precision":
    """What was asked for, or the faster of both, timed on a network that is wide enough to gain.

    Two timings may differ, and a verdict may with the precision: so it is chosen once for all pictures of a command.

    Args:
        model: Whose network is timed.
        picture: Any that it can read.
        asked: The precision, or "auto".
    """
    from vitrail.training.execution import BF16_LEAST_WIDTH

    if asked != "auto":
        return asked
    if model.network.config.width < BF16_LEAST_WIDTH:
        return "fp32"

    import torch

    from vitrail.explain.trial import in_precision

    some, fewer = model.tensor([picture]).expand(PICTURES, -1, -1, -1), in_precision(model.network, "bf16")
    with torch.no_grad():
        full, half = seconds_of(lambda: model.network(some)), seconds_of(lambda: fewer(some.bfloat16()))
    return "bf16" if half < PAYS * full else "fp32"


def seconds_of(forward: Callable[[], Any]) -> float:
    """Seconds of one pass on a device that is warm and idle; to read a number waits for a device that works ahead."""
    forward().float().sum().item()  # the first takes longer
    began = time.perf_counter()
    forward().float().sum().item()
    return time.perf_counter() - began
