"""What masking patches in the order of a map does to the explained number, beside the orders of its random twins.

The steps mask a 32nd, a 16th, ... up to half of all patches, each step with a fill of its own. A map and its twins go
through the same steps and the same fills: what differs between them is the patches alone. The fills are drawn for each
map anew, by the order in which it names patches: who would make a map that does well under known fills gets other ones
with every change of it. First there are as many twins as let a map pass that none of them equals; of a map that exactly
one equals, more.
"""

import zlib
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.explain.perturb import Masks, measured, ranks_of
from vitrail.explain.scores.fill import Fill, keys_of, seed_of
from vitrail.explain.scores.random_maps import random_maps
from vitrail.explain.target import Aim
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

STEPS = 5  # in which patches are masked, and fills for each map
TWINS, MORE_TWINS = 24, 25  # of each map; more where one of the first is as good


def steps_of(patches: int, count: int) -> tuple[int, ...]:
    """How many patches each step masks: from a 32nd of them to half, evenly on a logarithmic scale."""
    shares = torch.linspace(0, 1, count, dtype=torch.float64, device="cpu")
    first, last = max(1.0, patches / 32), max(1.0, patches / 2)
    return tuple(int(k) for k in (first * (last / first) ** shares).round().tolist())


@dataclass(frozen=True, eq=False)
class MaskedImages:
    """Images whose patches are masked step by step.

    Attributes:
        network: In eval mode.
        images: (b, c, h, w).
        aim: What is explained of them.
        fill: What stands in masked patches.
        seed: Of fills and of the order among equal values.
        draws: How many steps there are, and how many fills.
    """

    network: ViT
    images: Images
    aim: Aim
    fill: Fill
    seed: int
    draws: int = STEPS

    def select(self, images: Int[Tensor, "some"]) -> "MaskedImages":
        """The same for some of the images."""
        return replace(self, images=self.images[images], aim=self.aim.select(images))

    @property
    def grid(self) -> Size:
        """(rows, columns) of patches."""
        return self.network.grid(self.images)

    @property
    def steps(self) -> tuple[int, ...]:
        """How many patches each step masks."""
        return steps_of(self.grid[0] * self.grid[1], self.draws)

    @property
    def few(self) -> int:
        """How many steps mask at most a quarter of the patches: those that are told of in words."""
        return sum(step <= max(1, self.grid[0] * self.grid[1] // 4) for step in self.steps)

    def keys(self, values: Float[Tensor, "b rows columns"]) -> list[int]:
        """A number for each map, made of its image and of the order in which it names patches."""
        orders = self._ranks(values[None])[0].flatten(1).argsort(dim=1).cpu().numpy()
        return [zlib.crc32(order.tobytes(), key) for order, key in zip(orders, keys_of(self.images), strict=True)]

    def fills(self, values: Float[Tensor, "b rows columns"]) -> Float[Tensor, "draws b c h w"]:
        """What stands in masked patches, in each draw: whole images to take them from, drawn for these maps."""
        patch = (self.images.shape[2] // self.grid[0], self.images.shape[3] // self.grid[1])
        made = [
            self.fill.make(one[None], patch, self.draws, seed_of(self.seed, "covers", key))
            for one, key in zip(self.images, self.keys(values), strict=True)
        ]
        return torch.cat(made, dim=1)

    def masks(self, maps: Float[Tensor, "m b rows columns"]) -> Bool[Tensor, "steps m b rows columns"]:
        """Which patches each step masks: those with the highest values of the map."""
        ranks = self._ranks(maps)
        return torch.stack([ranks < step for step in self.steps])

    def _ranks(self, maps: Float[Tensor, "m b rows columns"]) -> Int[Tensor, "m b rows columns"]:
        """Equal values come in an order of the image's own, at random: the same in all its maps."""
        return ranks_of(maps.flatten(0, 1), 1, self.seed, keys_of(self.images) * len(maps))[0].view(maps.shape)

    def measured(self, masks: Masks, fills: Float[Tensor, "draws b c h w"]) -> Float[Tensor, "2 draws m b"]:
        """The number and the target's probability under masks (draws, m, b, rows, columns), each draw with its fill."""
        return measured(self.network, self.images, self.aim, masks, fills[:, None], ("centred", "probability"))


@dataclass(eq=False)
class Falls:
    """What masking patches did; one entry for each image, on the CPU, nan where nothing was tested.

    Attributes:
        score: (b,), the mean fall of the explained number, over all fills.
        interval: (b, 2), of it.
        paired: (b,), the same under the fills that the twins met.
        random: (b, twins), the twins' falls.
        as_good: (b,), how many twins are as good as the map.
        twins: (b,), how many there were.
        covered: (b,), the target's probability with patches masked in the map's order.
        covered_random: (b,), in the twins' order.
        squares: (b,), how many patches that is; 0 where nothing was tested.
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
        """Of images that were not tested, with these numbers."""
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
    values: Float[Tensor, "b rows columns"], masked: MaskedImages, whole: Float[Tensor, "b"], tested: Bool[Tensor, "b"]
) -> Falls:
    """What masking does in the order of a map and of its random twins.

    Args:
        values: The maps.
        masked: The images, and what their patches are masked with.
        whole: The explained number of the images as they are.
        tested: Which of them are tested; of the others nothing is known.
    """
    found = Falls.unknown(whole, TWINS)
    images = tested.nonzero()[:, 0].to(values.device)
    if not len(images):
        return found
    some, values, before = masked.select(images), values[images], whole[images]
    fills, keys, own = some.fills(values), some.keys(values), some.masks(values[None])
    twins = some.masks(random_maps(values, TWINS, some.seed, keys).to(values))
    # with each fill: the map after every step, and each twin after the step of this fill
    numbers, probabilities = some.measured(
        torch.cat([own[None, :, 0].expand(len(own), *own[:, 0].shape), twins], 1), fills
    )
    of_map = before - numbers[:, : len(own)]  # (draws, steps, b)
    paired = of_map.diagonal().T.mean(dim=0)
    score, interval = _mean_and_interval(of_map.mean(dim=1))
    random, as_good = _compared(numbers[:, len(own) :], twins, own, before, paired)
    covered = probabilities[:, : len(own)].mean(dim=0)  # (steps, b)
    chance = probabilities[:, len(own) :].mean(dim=1)
    told = (chance - covered)[: some.few].nan_to_num().argmax(dim=0)[None]
    at = images.cpu()
    found.score[at], found.interval[at], found.paired[at] = score.cpu(), interval.cpu(), paired.cpu()
    found.random[at], found.as_good[at], found.twins[at] = random.T.cpu(), as_good.sum(dim=0).cpu(), TWINS
    found.covered[at] = covered.gather(0, told)[0].cpu()
    found.covered_random[at] = chance.gather(0, told)[0].cpu()
    found.squares[at] = torch.tensor(some.steps, device="cpu")[told[0].cpu()]
    more = (as_good.sum(dim=0) == 1).nonzero()[:, 0]
    if not len(more):
        return found
    few, keys = some.select(more), [keys[row] for row in more.tolist()]
    twins = few.masks(random_maps(values[more], MORE_TWINS, seed_of(some.seed, "more twins"), keys).to(values))
    numbers, _ = few.measured(twins, fills[:, more])
    random, as_good = _compared(numbers, twins, own[:, :, more], before[more], paired[more])
    found.random = torch.cat([found.random, found.random.new_full((len(whole), MORE_TWINS), torch.nan)], dim=1)
    at = at[more.cpu()]
    found.random[at, TWINS:] = random.T.cpu()
    found.as_good[at] += as_good.sum(dim=0).cpu()
    found.twins[at] += MORE_TWINS
    return found


def _compared(
    numbers: Float[Tensor, "steps m b"],
    twins: Bool[Tensor, "steps m b rows columns"],
    own: Bool[Tensor, "steps 1 b rows columns"],
    before: Float[Tensor, "b"],
    paired: Float[Tensor, "b"],
) -> tuple[Float[Tensor, "m b"], Bool[Tensor, "m b"]]:
    """The falls of random twins, and which of them are as good as the map."""
    random, alike = (before - numbers).mean(dim=0), (twins == own).all(dim=0).flatten(2).all(dim=2)
    # what is no number, or masks the same patches, counts against the map
    return random, ~(random < paired) | alike


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
