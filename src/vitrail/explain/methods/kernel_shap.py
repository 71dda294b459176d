"""KernelSHAP on patches: "A unified approach to interpreting model predictions" (Lundberg and Lee, 2017), section 4.1.

A patch's Shapley value is what it adds to the logit, averaged over all orders in which the patches may be unmasked.
They are the weights of a linear model g of which patches are seen, z in {0, 1}^P, fitted to y (theorem 2):

    minimise  sum_z  k(|z|) (y(z) - g(z))^2,    k(s) = (P - 1) / (C(P, s) s (P - s))
    such that g(none) = y(none) and g(all) = y(all)

Both constraints are exact: the last patch's value is what the others leave, and is put in before the fit (the paper's
supplement). Where all 2^P - 2 other sets fit into `samples` they are all taken, and the values are exactly Shapley's.
Otherwise sizes are drawn in proportion to k(s) C(P, s), sets uniformly of each size, and each set with its complement
("Improving KernelSHAP", Covert and Lee, 2021, section 4.1): then the fit is unweighted.

The values always add up to y(all) - y(none); what that means depends on what masks a patch (see `masked_numbers`).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import Hint, UsageError, check_count, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Grid, forward_pass
from vitrail.explain.methods.pixels import attribution_of_numbers, masked_numbers
from vitrail.explain.scores.perturb import AnyFill
from vitrail.explain.target import Target
from vitrail.nn.vit import Images

FEWEST = 8  # sets for each patch: of so many enough differ, also where many hold one patch alone


def kernel(players: int, size: int) -> float:
    """The weight k(s) of one set of `size` of the players."""
    return (players - 1) / (math.comb(players, size) * size * (players - size))


def shapley_fit(
    sets: Float[Tensor, "m p"],
    weights: Float[Tensor, "m"],
    found: Float[Tensor, "m b"],
    none: Float[Tensor, "b"],
    every: Float[Tensor, "b"],
) -> Float[Tensor, "b p"]:
    """The weighted least-squares fit whose ends are exact, in float64, on the CPU.

    Args:
        sets: 1 where a player is in the set.
        weights: Of the sets.
        found: The answer to each set.
        none: The answer to the empty set.
        every: The answer to the full set.

    Raises:
        UsageError: If the sets cannot tell the players apart.
    """
    difference = every - none
    if sets.shape[1] == 1 or not len(difference):
        return difference[:, None].expand(-1, sets.shape[1])
    scale = weights.sqrt()[:, None]
    design = scale * (sets[:, :-1] - sets[:, -1:])
    wanted = scale * (found - none - sets[:, -1:] * difference)
    finite = wanted.isfinite().all(dim=0)  # LAPACK refuses what is not: such an image gets no numbers
    fit = torch.linalg.lstsq(design, wanted.where(finite, 0.0), driver="gelsd")
    if int(fit.rank) < design.shape[1]:
        raise UsageError(
            f"{len(sets)} subsets are too few to tell {sets.shape[1]} patches apart", Hint({"samples": 4 * len(sets)})
        )
    others = fit.solution.where(finite, torch.nan).T
    return torch.cat([others, difference[:, None] - others.sum(dim=1, keepdim=True)], dim=1)


def coalitions(players: int, samples: int, seed: int) -> tuple[Bool[Tensor, "m p"], Float[Tensor, "m"]]:
    """Sets of players, neither empty nor full, and their weights: all sets if there are at most `samples`.

    Args:
        players: How many, p.
        samples: How many sets to draw at most; pairs of a set and its complement.
        seed: Of the draws.

    Raises:
        UsageError: If the sets cannot tell the players apart.
    """
    if 2**players - 2 <= samples:
        numbers = torch.arange(1, 2**players - 1, device="cpu")
        sets = (numbers[:, None] >> torch.arange(players, device="cpu") & 1).bool()
        fractions = [kernel(players, size) for size in sets.sum(dim=1).tolist()]
        return sets, torch.tensor(fractions, dtype=torch.float64, device="cpu")
    wanted, least = f"at least {FEWEST} x {players} to tell {players} patches apart", FEWEST * players
    check_option("samples", samples, samples >= least, wanted, max(2048, least))
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.arange(1, players, device="cpu")
    fractions = 1.0 / (sizes * (players - sizes)).double()
    drawn = sizes[torch.multinomial(fractions, samples // 2, replacement=True, generator=generator)]
    order = torch.rand(samples // 2, players, generator=generator, dtype=torch.float64, device="cpu").argsort(dim=1)
    sets = order.argsort(dim=1) < drawn[:, None]
    both = torch.stack([sets, ~sets], dim=1).flatten(0, 1)
    return both, torch.ones(len(both), dtype=torch.float64, device="cpu")


@explaining
def kernel_shap(
    network: nn.Module,
    images: Images,
    target: Target = None,
    *,
    grid: Grid = None,
    samples: int = 2048,
    fill: AnyFill = "mean",
    seed: int = 0,
    batch_size: int = 64,
) -> Attribution:
    """What each patch adds to the target's logit, averaged over the sets of patches that may already be seen.

    Args:
        network: Any, in eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class, unmasked.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.
        samples: How many sets of patches are tried, at least eight for each patch; all sets when they fit.
        fill: What replaces masked patches, in normalised pixels: `"mean"` for the image's own mean colour, a number,
            one for each channel, or a tensor that broadcasts to them; or a `Fill`.
        seed: Seed of the sets; every image gets the same ones, whatever the batch.
        batch_size: How many masked images run at once.

    Returns:
        A signed number per patch, in logits; they add up to the difference from the image with all patches masked.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    check_count("samples", samples, 2048)
    forward = forward_pass(network, images, target, grid=grid)
    players = forward.grid[0] * forward.grid[1]
    sets, weights = coalitions(players, samples, seed)
    ends = torch.tensor([False, True], device="cpu")[:, None].expand(2, players)
    masks = ~torch.cat([ends, sets]).unflatten(1, forward.grid)
    found = masked_numbers(forward, masks, fill, batch_size)
    values = shapley_fit(sets.to(found), weights.to(found), found[2:], found[0], found[1])
    return attribution_of_numbers(values.unflatten(1, forward.grid), found, forward, "kernel_shap")
