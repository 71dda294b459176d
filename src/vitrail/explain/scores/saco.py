"""SaCo: do groups of patches with more of the map matter more? A score by covering, as those of `removal.py`.

"On the faithfulness of Vision Transformer explanations" (Wu et al., CVPR 2024).
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.readout import exact
from vitrail.explain.scores.covering_by_rank import Covering, finite_maps
from vitrail.explain.scores.fill import Pictures
from vitrail.explain.scores.removal import Maps, Removal, of_patches, points_of
from vitrail.explain.target import Target


def saco(
    network: nn.Module, images: Pictures, values: Maps, target: Target, covering: Covering, *, groups: int = 10
) -> Removal:
    """SaCo, salience-guided faithfulness coefficient: does more of the map mean more of an effect?

    The patches are put in order and cut into K groups of equal size (within one patch); s_k is the sum of the map over
    group k, d_k = f(picture) - E_draws f(picture with group k covered), and over all pairs i < j

        w_ij = s_i - s_j if d_i >= d_j else -(s_i - s_j)          score = sum w_ij / sum |w_ij|

    Unit: patches. Measured: probability or logit. Range: [-1, 1]. Higher is better. Random maps have 0 where all drops
    differ, and more where many groups change nothing, because equal drops count as agreement. The size of the values
    counts, so maps must not be rescaled picture by picture. Not a number for a constant map.

    Args:
        network: In eval mode; gives logits.
        images: (b, c, h, w).
        values: The maps.
        target: What was explained.
        covering: The fill, the draws, and what is measured.
        groups: K, from 2 to the number of patches.

    Raises:
        UsageError: If anything does not fit, or if the network is in training mode.
    """
    patches = values[0].numel()
    if not 2 <= groups <= patches:
        raise UsageError(f"saco compares 2 to {patches} groups of patches, got {groups}", "groups=10")
    edges = [round(patches * index / groups) for index in range(groups + 1)]
    spans = list(pairwise(edges))
    points, draws = points_of(network, images, values, target, covering, [(0, 0), *spans])
    drops = points[:, :1] - points[:, 1:]
    flat = values.flatten(1)
    usable = finite_maps(values) & (flat.amax(dim=1) > flat.amin(dim=1))
    score = saco_of(group_sums(values, spans), drops.cpu()).to(drops).masked_fill(~usable, torch.nan)
    return of_patches("saco", score, drops, [(high - low) / patches for low, high in spans], covering, draws)


def saco_of(salience: Float[Tensor, "b k"], drops: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
    """SaCo of what each group has of the map and how much covering it changes; see `saco`."""
    groups = salience.shape[1]
    first, second = torch.triu_indices(groups, groups, offset=1, device=salience.device)
    weights = salience[:, first] - salience[:, second]
    agree = drops[:, first] >= drops[:, second]
    return torch.where(agree, weights, -weights).sum(dim=1) / weights.abs().sum(dim=1)


def group_sums(values: Maps, spans: Sequence[tuple[int, int]]) -> Float[Tensor, "b k"]:
    """The sum of the map over each span of ranks; on the CPU."""
    in_order = exact(values).flatten(1).sort(dim=1, descending=True).values
    return torch.stack([in_order[:, low:high].sum(dim=1) for low, high in spans], dim=1)
