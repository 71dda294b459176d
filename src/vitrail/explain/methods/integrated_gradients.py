"""Integrated Gradients: "Axiomatic attribution for deep networks" (Sundararajan, Taly and Yan, 2017), section 3.

    map_p = sum over the pixels and channels i of patch p of (x_i - x'_i) integral_0^1 (d y / d x_i)(x' + a (x - x')) da

x' is a baseline: a picture that says nothing. The map adds up to y(x) - y(x') (completeness). The integral is a
Gauss-Legendre sum of `steps` nodes, exact for polynomials in a of degree 2 steps - 1; what is missing is reported:

    gap = | sum_p map_p - (y(x) - y(x')) | / | y(x) - y(x') |

A gap above 1 % stands in the notes of the heat. The baseline is 0 unless another is given: zero in normalised pixels is
the colour that the model's preprocessing subtracts, so it is the middle of what the network has seen, and no pixel
value of interest such as black is blind to the method. The answer is always relative to it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.heat import Heat
from vitrail.explain.methods.pixels import at_least, by_patch, chunks, gradients_at, like_pictures, numbers_at
from vitrail.explain.readout import check, heat_of, open_run, wide
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images

NOTED = 0.01  # the gap from which on it is noted


@torch.inference_mode(False)
def integrated_gradients(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    steps: int = 50,
    baseline: float | Sequence[float] | Tensor = 0.0,
    batch_size: int = 64,
) -> Heat:
    """What each patch adds to the target's logit on the straight way from the baseline to the picture.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each picture's top class.
        steps: Nodes of the Gauss-Legendre sum.
        baseline: In normalised pixels: a number, one for each channel, or a tensor that broadcasts to the pictures.
        batch_size: How many points of the way run at once.

    Returns:
        A signed number per patch, in logits, which add up to the difference from the baseline.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    heat, _ = integrated_gradients_with_gap(
        network, images, target, steps=steps, baseline=baseline, batch_size=batch_size
    )
    return heat


@torch.inference_mode(False)
def integrated_gradients_with_gap(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    steps: int = 50,
    baseline: float | Sequence[float] | Tensor = 0.0,
    batch_size: int = 64,
) -> tuple[Heat, Float[Tensor, "b"]]:
    """The same heat, and each picture's completeness gap, a share of y(x) - y(x'); 0 where both are exactly equal."""
    at_least("steps", steps, 1, "steps=50")
    check(network, images, gradients=True)
    opened = open_run(network, images, target, "logits")
    pictures = wide(images.detach())
    start = like_pictures("baseline", baseline, pictures)
    way = pictures - start
    nodes, weights = (torch.from_numpy(each).to(pictures) for each in np.polynomial.legendre.leggauss(steps))
    nodes, weights = (nodes + 1) / 2, weights / 2
    shape = (-1, *[1] * images.dim())
    gathered = torch.zeros_like(pictures)
    for which, some in chunks(len(images), steps, batch_size):
        versions = start[which] + nodes[some].view(shape) * way[which]
        gradients = gradients_at(network, versions.to(images.dtype), opened.aim.select(which))
        gathered[which] += (weights[some].view(shape) * gradients).sum(dim=0)
    values = by_patch(way * gathered, opened.grid)

    at_start = torch.zeros(len(images), dtype=torch.float64, device=images.device)
    for which, _ in chunks(len(images), 1, batch_size):
        at_start[which] = numbers_at(network, start[None, which].to(images.dtype), opened.aim.select(which))[0]
    gap = gap_of(values.double().sum(dim=(1, 2)), opened.logit.double() - at_start)
    notes = [(_note(share),) if share > NOTED else () for share in gap.tolist()]
    heat = heat_of(
        values, opened.aim, opened.logit, "integrated_gradients", signed=True, class_specific=True, notes=notes
    )
    return heat, gap


def gap_of(total: Float[Tensor, "b"], difference: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """How far a map's sum is from what it should add up to, as a share of that; 0 where both are equal."""
    missing = (total - difference).abs()
    return torch.where(missing == 0, missing, missing / difference.abs())


def _note(share: float) -> str:
    return (
        f"completeness gap {share:.1%}: the values do not add up to the difference from the baseline; take more steps"
    )
