"""Occlusion: "Visualizing and understanding convolutional networks" (Zeiler and Fergus, 2014), section 4.2.

    map_p = mean over the windows W that hold patch p of  y(x) - y(x with W masked)        y the logit of the target

A window of patches slides over the grid; the last one of a row or column is cut at the border, so that every patch is
masked. The simplest test, and of the network itself; but of one window at a time (two patches with the same evidence
hide each other), and with a fill that no network was trained on (see `masked_numbers`).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import Hint, UsageError, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Grid, forward_pass, to_float64
from vitrail.explain.methods.pixels import attribution_of_numbers, masked_numbers
from vitrail.explain.scores.perturb import AnyFill
from vitrail.explain.target import Target
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images


@explaining
def occlusion(
    network: nn.Module,
    images: Images,
    target: Target = None,
    *,
    grid: Grid = None,
    window: int | Size = 1,
    stride: int | Size = 1,
    fill: AnyFill = "mean",
    batch_size: int = 64,
) -> Attribution:
    """How far the target's logit falls when patches are masked.

    Args:
        network: Any, in eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class, unmasked.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.
        window: Patches that are masked together, (rows, columns) or one number for both.
        stride: Patches from one window to the next, at most the window.
        fill: What replaces masked patches, in normalised pixels: `"mean"` for the image's own mean colour, a number,
            one for each channel, or a tensor that broadcasts to them; or a `Fill`.
        batch_size: How many masked images run at once.

    Returns:
        A signed number per patch, in logits: positive where the patch speaks for the target.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    forward = forward_pass(network, images, target, grid=grid)
    hidden = windows(forward.grid, _pair("window", window), _pair("stride", stride))
    found = masked_numbers(forward, hidden.bool(), fill, batch_size)
    falls = to_float64(forward.logit) - found
    hidden = hidden.to(falls)
    values = torch.einsum("mb,mij->bij", falls, hidden) / hidden.sum(dim=0)
    return attribution_of_numbers(values, found, forward, "occlusion")


def windows(grid: Size, window: Size, stride: Size) -> Float[Tensor, "m rows columns"]:
    """Every place of a sliding window, 1 where it lies; cut at the border.

    Raises:
        UsageError: If the window is larger than the grid, or the stride than the window.
    """
    along = []
    for side, long, far in zip(grid, window, stride, strict=True):
        if not 1 <= far <= long <= side:
            raise UsageError(
                f"window and stride must be at least 1, the stride at most the window and the window at most the grid "
                f"{grid[0]}x{grid[1]}, got window {window[0]}x{window[1]} and stride {stride[0]}x{stride[1]}",
                Hint({"window": 1, "stride": 1}),
            )
        places = torch.arange(side, device="cpu")
        starts = far * torch.arange(math.ceil((side - long) / far) + 1, device="cpu")
        along.append(((places >= starts[:, None]) & (places < starts[:, None] + long)).float())
    rows, columns = along
    return (rows[:, None, :, None] * columns[None, :, None, :]).flatten(0, 1)


def _pair(name: str, value: int | Size) -> Size:
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    fits = len(pair) == 2 and all(type(side) is int for side in pair)
    check_option(name, value, fits, "patches, one number or (rows, columns)", 1)
    return pair[0], pair[1]
