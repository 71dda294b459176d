"""Promises of the methods that cover patches: loops over windows, masks and sets, with covers laid by hand."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.explain.methods.kernel_shap import kernel_shap
from vitrail.explain.methods.occlusion import occlusion
from vitrail.explain.methods.rise import random_masks, rise
from vitrail.explain.selftest.witness import Promise, Witness, off
from vitrail.nn import ViT

WINDOWS = (((1, 1), (1, 1)), ((2, 2), (1, 1)), ((2, 3), (2, 2)))
PLAYERS = (2, 3)  # rows and columns of patches, of which all sets are tried


def answers(network: ViT, picture: Tensor, target: int, seen: Sequence[Sequence[float]], fill: Tensor) -> Tensor:
    """The logit of a picture (c, h, w) whose patches are seen by these shares, each list in reading order."""
    height, width = network.config.patch
    columns, covered = picture.shape[2] // width, []
    for shares in seen:
        one = picture.clone()
        for index, share in enumerate(shares):
            row, column = divmod(index, columns)
            place = (slice(None), slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width))
            one[place] = share * picture[place] + (1 - share) * fill[place]
        covered.append(one)
    with torch.no_grad():
        return network(torch.stack(covered))[:, target]


def mean_colour(picture: Tensor) -> Tensor:
    """(c, h, w): each channel's mean everywhere."""
    return torch.stack([torch.full_like(channel, float(channel.mean())) for channel in picture])


def occlusion_is_a_loop(witness: Witness) -> float:
    """Every window covered by hand, the falls averaged over the windows that a patch lies in."""
    rows, columns = witness.grid
    count, worst = 2 if witness.random else 1, 0.0
    for window, stride in WINDOWS:
        corners = itertools.product(*(_starts(*each) for each in zip(witness.grid, window, stride, strict=True)))
        seen = [[float(not _inside(i, columns, corner, window)) for i in range(rows * columns)] for corner in corners]
        hidden = 1 - torch.tensor(seen, dtype=torch.float64)
        for picture, target in list(zip(witness.images, witness.target.tolist(), strict=True))[:count]:
            found = answers(witness.network, picture, target, [[1.0] * len(seen[0]), *seen], mean_colour(picture))
            falls = found[0] - found[1:]
            wanted = (falls[:, None] * hidden).sum(dim=0) / hidden.sum(dim=0)
            heat = occlusion(witness.network, picture[None], target, window=window, stride=stride)
            worst = max(worst, off(heat.values.flatten(), wanted, found))
    return worst


def _starts(side: int, long: int, far: int) -> list[int]:
    """Where windows begin, until one reaches the border."""
    starts = [0]
    while starts[-1] + long < side:
        starts.append(starts[-1] + far)
    return starts


def _inside(index: int, columns: int, corner: tuple[int, ...], window: tuple[int, int]) -> bool:
    return all(
        start <= at < start + long for at, start, long in zip(divmod(index, columns), corner, window, strict=True)
    )


def rise_is_a_loop(witness: Witness) -> float:
    """The mean answer while a patch is seen, less the mean answer, of masks laid by hand."""
    masks = random_masks(witness.grid, 40 if witness.random else 12, 3, 0.4, 7).double().flatten(1)
    picture, target = witness.images[0], int(witness.target[0])
    found = answers(witness.network, picture, target, masks.tolist(), mean_colour(picture))
    wanted = torch.stack([(found * shares).sum() / shares.sum() for shares in masks.T]) - found.mean()
    options = {"masks": len(masks), "cells": 3, "seen": 0.4, "seed": 7, "batch_size": 5}
    heat = rise(witness.network, picture[None], target, **options)
    return off(heat.values.flatten(), wanted.where(masks.sum(dim=0) > 0, 0.0), found)


def masks_favour_no_patch(_: Witness) -> float:
    """Every patch is seen as often as every other, and as sharply; also in a corner."""
    masks = random_masks((6, 10), 4000, 3, 0.3, 1)
    often, sharply = (masks.mean(dim=0) - 0.3).abs().max(), (masks.std(dim=0) / masks.std() - 1).abs().max()
    return float(torch.stack([often, sharply, -masks.min(), masks.max() - 1]).max())


def kernel_shap_is_shapley(witness: Witness) -> float:
    """All sets of 2 x 3 patches by Shapley's own sum; and what a linear network adds for each of more patches."""
    height, width = witness.network.config.patch
    rows, columns = PLAYERS
    picture, target = witness.images[0, :, : rows * height, : columns * width], int(witness.target[0])
    sets = [*itertools.product((0.0, 1.0), repeat=rows * columns)]
    found = answers(witness.network, picture, target, sets, mean_colour(picture))
    value = dict(zip(sets, found.tolist(), strict=True))
    heat = kernel_shap(witness.network, picture[None], target, samples=len(sets) - 2)
    whole = off(heat.values.flatten(), torch.tensor(_shapley(value, rows * columns), dtype=torch.float64), found)

    fills = torch.stack([mean_colour(one) for one in witness.images])
    adds = witness.summed((witness.images - fills) * witness.slope)
    drawn = kernel_shap(witness.linear, witness.images, witness.target, samples=150).values
    covered = occlusion(witness.linear, witness.images, witness.target).values
    size = witness.linear(witness.images).abs().max() + adds.abs().max()
    return max(whole, off(drawn, adds, size), off(covered, adds, size))


def _shapley(value: dict[tuple[float, ...], float], players: int) -> list[float]:
    """What each adds to every set without it, weighed by how many orders begin with that set."""
    shapley = [0.0] * players
    for chosen, before in value.items():
        size = int(sum(chosen))
        for player in (each for each in range(players) if not chosen[each]):
            orders = math.factorial(size) * math.factorial(players - size - 1) / math.factorial(players)
            joined = (*chosen[:player], 1.0, *chosen[player + 1 :])
            shapley[player] += orders * (value[joined] - before)
    return shapley


PROMISES = (
    Promise("occlusion by a loop over windows", occlusion_is_a_loop, ("occlusion",)),
    Promise("RISE by a loop over masks", rise_is_a_loop, ("rise",)),
    Promise("RISE's masks favour no patch", masks_favour_no_patch, ("rise",), limit=0.05, random_alone=True),
    Promise("KernelSHAP by Shapley's own sum", kernel_shap_is_shapley, ("kernel_shap",)),
)
