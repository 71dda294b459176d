"""What covering squares in the order of a map does, beside the orders of its random twins.

First as many twins as let a map pass that none of them equals; of a map that exactly one equals, more.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.explain.covered_pictures import CoveredPictures
from vitrail.explain.scores.fill import seed_of
from vitrail.explain.scores.random_maps import random_maps

TWINS, MORE_TWINS = 24, 25  # of each map; more where one of the first is as good


@dataclass(eq=False)
class Falls:
    """What covering squares did; one entry for each picture, on the CPU, nan where nothing was tested.

    Attributes:
        score: (b,), the mean fall of the explained number, over all covers.
        interval: (b, 2), of it.
        paired: (b,), the same under the covers that the twins met.
        random: (b, twins), the twins' falls.
        as_good: (b,), how many twins are as good as the map.
        twins: (b,), how many there were.
        covered: (b,), the target's probability with squares covered in the map's order.
        covered_random: (b,), in the twins' order.
        squares: (b,), how many squares that is; 0 where nothing was tested.
    """

    score: Float[Tensor, "b"]
    interval: Float[Tensor, "b 2"]
    paired: Float[Tensor, "b"]
    random: Float[Tensor, "b twins"]
    as_good: Int[Tensor, "b"]
    twins: Int[Tensor, "b"]
    covered: Float[Tensor, "b"]
    covered_random: Float[Tensor, "b"]
    squares: Int[Tensor, "b"]

    @classmethod
    def unknown(cls, before: Float[Tensor, "b"], twins: int) -> "Falls":
        """Of pictures that were not tested, with these numbers."""
        none = torch.full((len(before),), torch.nan, dtype=before.dtype, device="cpu")
        nothing = torch.zeros(len(before), dtype=torch.long, device="cpu")
        return cls(
            score=none.clone(),
            interval=none[:, None].repeat(1, 2),
            paired=none.clone(),
            random=none[:, None].repeat(1, twins),
            as_good=nothing.clone(),
            twins=nothing.clone(),
            covered=none.clone(),
            covered_random=none.clone(),
            squares=nothing.clone(),
        )


def falls_of(
    values: Float[Tensor, "b rows columns"],
    covering: CoveredPictures,
    whole: Float[Tensor, "b"],
    tested: Bool[Tensor, "b"],
) -> Falls:
    """What covering does in the order of a map and of its random twins.

    Args:
        values: The maps.
        covering: The pictures, and what covers their squares.
        whole: The explained number of the pictures as they are.
        tested: Which of them are tested; of the others nothing is known.
    """
    found = Falls.unknown(whole, TWINS)
    pictures = tested.nonzero()[:, 0].to(values.device)
    if not len(pictures):
        return found
    some, values, before = covering.select(pictures), values[pictures], whole[pictures]
    covers, keys = some.covers(values), some.keys(values)
    own, by_step = some.by_draw(values, covers)  # (draws, steps, b) each
    paired = (before - own.diagonal().T).mean(dim=0)
    score, interval = _mean_and_interval((before - own).mean(dim=1))
    twins = random_maps(values, TWINS, some.seed, keys).to(values)
    random, as_good, chance = _twins(some, twins, values, before, paired, covers)
    covered = by_step.mean(dim=0)  # (steps, b)
    told = (chance - covered)[: some.few].nan_to_num().argmax(dim=0)[None]
    at = pictures.cpu()
    found.score[at], found.interval[at], found.paired[at] = score.cpu(), interval.cpu(), paired.cpu()
    found.random[at], found.as_good[at], found.twins[at] = random.T.cpu(), as_good.sum(dim=0).cpu(), TWINS
    found.covered[at] = covered.gather(0, told)[0].cpu()
    found.covered_random[at] = chance.gather(0, told)[0].cpu()
    found.squares[at] = torch.tensor(some.steps, device="cpu")[told[0].cpu()]
    more = (as_good.sum(dim=0) == 1).nonzero()[:, 0]
    if not len(more):
        return found
    given = values[more], before[more], paired[more], covers[:, more]
    keys = [keys[row] for row in more.tolist()]
    twins = random_maps(given[0], MORE_TWINS, seed_of(some.seed, "more twins"), keys).to(values)
    random, as_good, _ = _twins(some.select(more), twins, *given)
    found.random = torch.cat([found.random, found.random.new_full((len(whole), MORE_TWINS), torch.nan)], dim=1)
    at = at[more.cpu()]
    found.random[at, TWINS:] = random.T.cpu()
    found.as_good[at] += as_good.sum(dim=0).cpu()
    found.twins[at] += MORE_TWINS
    return found


def _twins(
    covering: CoveredPictures,
    twins: Float[Tensor, "m b rows columns"],
    values: Float[Tensor, "b rows columns"],
    before: Float[Tensor, "b"],
    paired: Float[Tensor, "b"],
    covers: Float[Tensor, "draws b c h w"],
) -> tuple[Float[Tensor, "m b"], Bool[Tensor, "m b"], Float[Tensor, "steps b"]]:
    """The falls of random twins, which of them are as good as the map, and the mean probability after each step."""
    numbers, shares = covering.paired(twins, covers)
    random = (before - numbers).mean(dim=0)
    # what is no number, or covers the same squares, counts against the map
    return random, ~(random < paired) | covering.alike(twins, values), shares.mean(dim=1)


def _mean_and_interval(scores: Float[Tensor, "draws b"]) -> tuple[Float[Tensor, "b"], Float[Tensor, "b 2"]]:
    """The mean over draws and its 95 % interval, by Student's t."""
    mean, half = scores.mean(dim=0), _t_97_5(len(scores)) * scores.std(dim=0) / len(scores) ** 0.5
    return mean, torch.stack([mean - half, mean + half], dim=1)


def _t_97_5(count: int) -> float:
    """The 97.5 % point of Student's t with count - 1 degrees of freedom, to 0.1 % (Cornish-Fisher)."""
    z, freedom = 1.959964, count - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4
