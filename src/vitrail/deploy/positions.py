"""Positions for a grid that is known only when images come in: an interpolation as two products of matrices.

The rules are those of `vitrail.nn.embedding.RESIZE_RULES`, which torch's `interpolate` follows. Its kernels have no
exact counterpart in ONNX; here each axis has a matrix (new, old) of the weights by which old rows make new ones.

    bicubic, kernel of Keys ("Cubic convolution interpolation", 1981): a = -0.75, with antialias a = -0.5 and stretched
"""

import copy
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.nn import ViT
from vitrail.nn.embedding import RESIZE_RULES, Size


def cubic(distance: Float[Tensor, "..."], a: float) -> Float[Tensor, "..."]:
    """Keys' kernel: 1 at 0, 0 at 1 and from 2 on."""
    far = distance.abs()
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    away = a * (((far - 5) * far + 8) * far - 4)
    return torch.where(far <= 1, near, torch.where(far < 2, away, torch.zeros_like(far)))


def axis_weights(old: int, at: Float[Tensor, " new"], rule: str, other: Float[Tensor, ""]) -> Float[Tensor, "new old"]:
    """By which weights the old rows make each new one, in float64.

    Args:
        old: How many there were.
        at: Numbers of the new ones.
        rule: As of `resized`.
        other: 1 where the grid is another one, else 0.
    """
    count, rows = torch.ones_like(at).sum(), torch.arange(old, dtype=torch.float64)
    how = RESIZE_RULES[rule]
    if "antialias" in how:
        scale = old / count
        found = cubic((rows - (at[:, None] + 0.5) * scale + 0.5) / scale.clamp(min=1), -0.5)
        return found / found.sum(dim=1, keepdim=True)
    if "align_corners" in how:
        places = at * (old - 1) / (count - 1).clamp(min=1)
    else:
        places = (at + 0.5) * (old / (count + 0.1 * other * (rule == "dinov2"))) - 0.5
    first = places.floor()
    found = torch.zeros_like(at[:, None] * rows)
    for step in (-1, 0, 1, 2):  # beyond the edge is the edge
        weight = cubic(places - first - step, -0.75)
        found = found + weight[:, None] * ((first + step).clamp(0, old - 1)[:, None] == rows)
    return found


def resized(positions: Float[Tensor, "1 n d"], prefix: int, old: Size, new: Size, rule: str) -> Float[Tensor, "1 m d"]:
    """What `vitrail.nn.embedding.resize_positions` gives, also of a symbolic grid."""
    front, patches = positions[:, :prefix], positions[:, prefix:].double().unflatten(1, old)
    axes = [torch.arange(side, dtype=torch.float64) for side in new]
    same = [torch.ones_like(at).sum() == own for at, own in zip(axes, old, strict=True)]
    other = 1.0 - (same[0] & same[1]).double()
    down, across = (axis_weights(own, at, rule, other) for own, at in zip(old, axes, strict=True))
    plane = torch.einsum("xr,yc,brcd->bxyd", down, across, patches)
    return torch.cat([front, plane.flatten(1, 2).to(positions.dtype)], dim=1)


def for_any_size(network: ViT) -> ViT:
    """The same network, sharing its parameters, whose graph takes images of any size that patches divide."""
    made = copy.copy(network)
    if network.pos_embed is not None:
        config = network.config
        made.positions = partial(_positions, network.pos_embed, config.prefix, config.grid, config.position_resize)
    return made


def _positions(positions: Tensor, prefix: int, old: Size, rule: str, grid: Size) -> Tensor:
    return resized(positions, prefix, old, grid, rule)
