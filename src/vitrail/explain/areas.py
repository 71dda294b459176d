"""Deletion and insertion, the two scores by which other tools judge a map, beside those of a random order.

They stand beside the verdict and do not enter it: what a value is worth depends on the picture, the network and the
fill, and only the random order says how far a map could fall or rise (`scores/removal.py` has the definitions).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.covered_pictures import CoveredPictures
from vitrail.explain.evidence import at_a_time
from vitrail.explain.scores.covering_by_rank import Covering
from vitrail.explain.scores.removal import deletion, insertion
from vitrail.explain.target import Target

STEPS = 10  # from no square to all of them
DRAWS = 3  # covers that each point is the mean of
RANDOM_DRAWS = 10  # the same of the random order, which is another in each


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas under two curves of the target's probability (of a function, its number), one for each picture.

    Attributes:
        deletion: (b,), squares covered in the map's order, from none to all: lower is better.
        insertion: (b,), squares shown in the map's order: higher is better.
    """

    deletion: Float[Tensor, "b"]
    insertion: Float[Tensor, "b"]


@torch.no_grad()
def areas_of(covering: CoveredPictures, values: Float[Tensor, "b rows columns"], draws: int = DRAWS) -> Areas:
    """Deletion and insertion of maps (RISE: Petsiuk, Das and Saenko, 2018, section 4.1), with the covers' own fill.

    Args:
        covering: The pictures, what is explained of them, and what covers their squares.
        values: The maps.
        draws: Covers that each point is the mean of.
    """
    aim = covering.aim
    target: Target = aim.target if aim.rather_than is None else (aim.target, aim.rather_than)
    measure = "probability"
    if aim.function is not None:
        target, measure = aim.function, "logit"
    covered = Covering(covering.fill, draws, covering.seed, measure, at_a_time(covering.images))
    of = covering.network, covering.images, values, target, covered
    return Areas(deletion(*of, steps=STEPS).score.cpu(), insertion(*of, steps=STEPS).score.cpu())


def random_areas_of(covering: CoveredPictures) -> Areas:
    """The same of a random order, the mean of `RANDOM_DRAWS`."""
    even = torch.zeros((len(covering.images), *covering.grid), device=covering.images.device)
    return areas_of(covering, even, RANDOM_DRAWS)
