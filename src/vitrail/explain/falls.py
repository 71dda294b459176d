"""What masking patches in the order of a map does to the explained number, beside the orders of random maps.

The steps mask a 32nd, a 16th, ... up to half of all patches, each step with a fill of its own. A map and its random
maps go through the same steps and the same fills: what differs between them is the patches alone. The fills are drawn
for each map anew, by the order in which it names patches: who would make a map that does well under known fills gets
other ones with every change of it. First there are as many random maps as let a map pass that none of them equals; of a
map that exactly one equals, more.

The same passes are points of the curve whose area other tools call deletion; insertion takes a few more (`_areas`).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.explain.perturb import Masks, Measure, measured, ranks_of
from vitrail.explain.scores.fill import Fill, keys_of, seed_of
from vitrail.explain.scores.random_maps import random_maps
from vitrail.explain.target import ChosenTarget
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

STEPS = 5  # in which patches are masked, and fills for each map
RANDOM_MAPS, MORE_RANDOM_MAPS = 24, 25  # of each map; more where one of the first is as good
EIGHTHS = 8  # of all patches, shown one after the other by insertion


def steps_of(patches: int, count: int) -> tuple[int, ...]:
    """How many patches each step masks: from a 32nd of them to half, evenly on a logarithmic scale."""
    fractions = torch.linspace(0, 1, count, dtype=torch.float64, device="cpu")
    first, last = max(1.0, patches / 32), max(1.0, patches / 2)
    return tuple(int(k) for k in (first * (last / first) ** fractions).round().tolist())


@dataclass(frozen=True, eq=False)
class MaskedImages:
    """Images whose patches are masked step by step.

    Attributes:
        network: In eval mode.
        images: (b, c, h, w).
        chosen: What is explained of them.
        fill: What stands in masked patches.
        seed: Of fills and of the order among equal values.
        draws: How many steps there are, and how many fills.
    """

    network: ViT
    images: Images
    chosen: ChosenTarget
    fill: Fill
    seed: int
    draws: int = STEPS

    def select(self, images: Int[Tensor, "some"]) -> "MaskedImages":
        """The same for some of the images."""
        return replace(self, images=self.images[images], chosen=self.chosen.select(images))

    @property
    def grid(self) -> Size:
        """(rows, columns) of patches."""
        return self.network.grid(self.images)

    @property
    def steps(self) -> tuple[int, ...]:
        """How many patches each step masks."""
        return steps_of(self.grid[0] * self.grid[1], self.draws)

    @property
    def patch(self) -> Size:
        """(height, width) of a patch in pixels."""
        return self.images.shape[2] // self.grid[0], self.images.shape[3] // self.grid[1]

    @property
    def measure(self) -> Measure:
        """What deletion and insertion are areas of: the probability, where there is one."""
        return "centred" if self.chosen.function is not None or self.network.config.classes == 1 else "probability"

    @property
    def few(self) -> int:
        """How many steps mask at most a quarter of the patches: those that are told of in words."""
        return sum(step <= max(1, self.grid[0] * self.grid[1] // 4) for step in self.steps)

    def keys(self, values: Float[Tensor, "b rows columns"]) -> list[int]:
        """A number for each map, made of its image and of the order in which it names patches."""
        orders = self.ranks(values[None])[0].flatten(1).argsort(dim=1).cpu().numpy()
        return [zlib.crc32(order.tobytes(), key) for order, key in zip(orders, keys_of(self.images), strict=True)]

    def fills(self, values: Float[Tensor, "b rows columns"]) -> Float[Tensor, "draws b c h w"]:
        """What stands in masked patches, in each draw: whole images to take them from, drawn for these maps."""
        made = [
            self.fill.make(one[None], self.patch, self.draws, seed_of(self.seed, "covers", key))
            for one, key in zip(self.images, self.keys(values), strict=True)
        ]
        return torch.cat(made, dim=1)

    def masks(self, maps: Float[Tensor, "m b rows columns"]) -> Bool[Tensor, "steps m b rows columns"]:
        """Which patches each step masks: those with the highest values of the map."""
        ranks = self.ranks(maps)
        return torch.stack([ranks < step for step in self.steps])

    def ranks(self, maps: Float[Tensor, "m b rows columns"]) -> Int[Tensor, "m b rows columns"]:
        """Places of patches, 0 of the highest; equal values in an order of the image's own, the same in its maps."""
        return ranks_of(maps.flatten(0, 1), 1, self.seed, keys_of(self.images) * len(maps))[0].view(maps.shape)

    def measured(
        self,
        masks: Masks,
        fills: Float[Tensor, "draws b c h w"],
        measures: Sequence[Measure] = ("centred", "probability"),
    ) -> Float[Tensor, "measures draws m b"]:
        """The number and the target's probability under masks (draws, m, b, rows, columns), each draw with its fill."""
        return measured(self.network, self.images, self.chosen, masks, fills[:, None], measures)


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas under two curves of the target's probability (of a function, its number), one for each image.

    Attributes:
        deletion: (b,), patches masked in the map's order, from none to all: lower is better.
        insertion: (b,), patches shown in the map's order: higher is better.
    """

    deletion: Float[Tensor, "b"]
    insertion: Float[Tensor, "b"]


@dataclass(frozen=True)
class Ends:
    """Where the curves of deletion and insertion begin and end.

    Attributes:
        seen: (b,), of the images as they are.
        hidden: (b,), with all patches masked, in the mean over fills.
    """

    seen: Float[Tensor, "b"]
    hidden: Float[Tensor, "b"]


@dataclass(eq=False)
class Falls:
    """What masking patches did; one entry for each image, on the CPU, nan where nothing was tested.

    Attributes:
        score: (b,), the mean fall of the explained number, over all fills.
        interval: (b, 2), of it.
        paired: (b,), the same under the fills that the random maps met.
        random: (b, random), their falls.
        as_good: (b,), how many random maps are as good as the map.
        random_maps: (b,), how many there were.
        masked: (b,), the target's probability with patches masked in the map's order.
        masked_random: (b,), in the random maps' order.
        patches: (b,), how many patches that is; 0 where nothing was tested.
        areas: Deletion and insertion of all images, tested or not; nan where they were not asked for.
        random_areas: The same of random maps.
    """

    score: Float[Tensor, "b"]
    interval: Float[Tensor, "b 2"]
    paired: Float[Tensor, "b"]
    random: Float[Tensor, "b random"]
    as_good: Int[Tensor, "b"]
    random_maps: Int[Tensor, "b"]
    masked: Float[Tensor, "b"]
    masked_random: Float[Tensor, "b"]
    patches: Int[Tensor, "b"]
    areas: Areas
    random_areas: Areas

    @classmethod
    def unknown(cls, before: Float[Tensor, "b"], count: int) -> "Falls":
        """Of images that were not tested, with these numbers."""
        none = torch.full((len(before),), torch.nan, dtype=before.dtype, device="cpu")
        nothing = torch.zeros(len(before), dtype=torch.long, device="cpu")
        return cls(
            score=none.clone(),
            interval=none[:, None].repeat(1, 2),
            paired=none.clone(),
            random=none[:, None].repeat(1, count),
            as_good=nothing.clone(),
            random_maps=nothing.clone(),
            masked=none.clone(),
            masked_random=none.clone(),
            patches=nothing.clone(),
            areas=Areas(none.clone(), none.clone()),
            random_areas=Areas(none.clone(), none.clone()),
        )


def falls_of(
    values: Float[Tensor, "b rows columns"],
    masked: MaskedImages,
    whole: Float[Tensor, "b"],
    tested: Bool[Tensor, "b"],
    ends: Ends | None = None,
) -> Falls:
    """What masking does in the order of a map and of random maps.

    Args:
        values: The maps.
        masked: The images, and what their patches are masked with.
        whole: The explained number of the images as they are.
        tested: Which of them are tested; of the others no more is known than their areas.
        ends: Of the curves of deletion and insertion; None where these are not asked for.
    """
    found = Falls.unknown(whole, RANDOM_MAPS)
    for which, drawn in ((tested, RANDOM_MAPS), (~tested, 0 if ends is None else 1)):
        images = which.nonzero()[:, 0].to(values.device)
        if not len(images) or not drawn:
            continue
        passes = _passes(masked.select(images), values[images], drawn)
        if ends is not None:
            of = _areas(passes, Ends(ends.seen[images], ends.hidden[images]))
            for areas, of_map in zip((found.areas, found.random_areas), of, strict=True):
                areas.deletion[images.cpu()] = of_map.deletion.cpu()
                areas.insertion[images.cpu()] = of_map.insertion.cpu()
        if which is tested:
            _evaluate(found, passes, whole[images], images)
    return found


@dataclass(frozen=True, eq=False)
class _Passes:
    """Images masked in the order of their maps, under each fill after every step, and of random maps."""

    some: MaskedImages
    values: Float[Tensor, "b rows columns"]
    keys: list[int]
    random_maps: Float[Tensor, "m b rows columns"]
    fills: Float[Tensor, "draws b c h w"]
    own_masks: Bool[Tensor, "steps 1 b rows columns"]
    random_masks: Bool[Tensor, "steps m b rows columns"]
    own: Float[Tensor, "2 draws steps b"]
    random: Float[Tensor, "2 steps m b"]


def _passes(some: MaskedImages, values: Float[Tensor, "b rows columns"], count: int) -> _Passes:
    """All that a map and so many random maps are asked, in one queue."""
    fills, keys, own = some.fills(values), some.keys(values), some.masks(values[None])
    maps = random_maps(values, count, some.seed, keys).to(values)
    drawn, every = some.masks(maps), own[None, :, 0].expand(len(own), -1, -1, -1, -1)
    numbers = some.measured(torch.cat([every, drawn], dim=1), fills)
    return _Passes(some, values, keys, maps, fills, own, drawn, numbers[:, :, : len(own)], numbers[:, :, len(own) :])


def _areas(passes: _Passes, ends: Ends) -> tuple[Areas, Areas]:
    """Deletion and insertion of maps and of random maps (RISE: Petsiuk, Das and Saenko, 2018, section 4.1).

    Both are trapezoids over the fractions of patches that were measured, 0 and 1 among them. Deletion masks a 32nd, a
    16th, an eighth, a quarter and half of them: the passes of the verdict, so each point is the mean over five fills
    (of random maps: over all of them, with one fill at each step). Insertion shows one eighth of them, two, ... seven,
    with one fill at each, which all maps of the image meet; of the random maps the first is asked.
    """
    some = passes.some
    patches = passes.values[0].numel()
    counts = [round(patches * eighth / EIGHTHS) for eighth in range(1, EIGHTHS)]
    keys = keys_of(some.images)
    filled = [
        some.fill.make(one[None], some.patch, len(counts), seed_of(some.seed, "insertion", key))
        for one, key in zip(some.images, keys, strict=True)
    ]
    ranks = some.ranks(torch.stack([passes.values, passes.random_maps[0]]))
    hidden = torch.stack([ranks >= count for count in counts])
    (shown,) = some.measured(hidden, torch.cat(filled, dim=1), (some.measure,))  # (counts, 2, b)
    column = 1 if some.measure == "probability" else 0
    masked = passes.own[column].mean(dim=0), passes.random[column].mean(dim=1)  # (steps, b) each
    unknown = ~passes.values.flatten(1).isfinite().all(dim=1)

    def area(points: Tensor, known: list[int] | tuple[int, ...], first: Tensor, last: Tensor) -> Float[Tensor, "b"]:
        fractions = points.new_tensor([0, *known, patches]) / patches
        curve = torch.cat([first[None], points, last[None]])
        return torch.trapezoid(curve, fractions[:, None], dim=0).masked_fill(unknown, torch.nan)

    deleted = [area(points, some.steps, ends.seen, ends.hidden) for points in masked]
    inserted = [area(points, counts, ends.hidden, ends.seen) for points in shown.unbind(1)]
    return Areas(deleted[0], inserted[0]), Areas(deleted[1], inserted[1])


def _evaluate(found: Falls, passes: _Passes, before: Float[Tensor, "b"], images: Int[Tensor, "b"]) -> None:
    """Write down what became of tested images; of a map that exactly one random map equals, ask more random maps."""
    some, values = passes.some, passes.values
    of_map = before - passes.own[0]  # (draws, steps, b)
    paired = of_map.diagonal().T.mean(dim=0)
    score, interval = _mean_and_interval(of_map.mean(dim=1))
    random, as_good = _compared(passes.random[0], passes.random_masks, passes.own_masks, before, paired)
    own_probability, chance = passes.own[1].mean(dim=0), passes.random[1].mean(dim=1)  # (steps, b)
    told = (chance - own_probability)[: some.few].nan_to_num().argmax(dim=0)[None]
    at = images.cpu()
    found.score[at], found.interval[at], found.paired[at] = score.cpu(), interval.cpu(), paired.cpu()
    found.random[at], found.as_good[at], found.random_maps[at] = random.T.cpu(), as_good.sum(dim=0).cpu(), RANDOM_MAPS
    found.masked[at] = own_probability.gather(0, told)[0].cpu()
    found.masked_random[at] = chance.gather(0, told)[0].cpu()
    found.patches[at] = torch.tensor(some.steps, device="cpu")[told[0].cpu()]
    more = (as_good.sum(dim=0) == 1).nonzero()[:, 0]
    if not len(more):
        return
    few, keys = some.select(more), [passes.keys[row] for row in more.tolist()]
    drawn = few.masks(random_maps(values[more], MORE_RANDOM_MAPS, seed_of(some.seed, "more twins"), keys).to(values))
    (numbers,) = few.measured(drawn, passes.fills[:, more], ("centred",))
    random, as_good = _compared(numbers, drawn, passes.own_masks[:, :, more], before[more], paired[more])
    found.random = torch.cat(
        [found.random, found.random.new_full((len(found.score), MORE_RANDOM_MAPS), torch.nan)], dim=1
    )
    at = at[more.cpu()]
    found.random[at, RANDOM_MAPS:] = random.T.cpu()
    found.as_good[at] += as_good.sum(dim=0).cpu()
    found.random_maps[at] += MORE_RANDOM_MAPS


def _compared(
    numbers: Float[Tensor, "steps m b"],
    drawn: Bool[Tensor, "steps m b rows columns"],
    own: Bool[Tensor, "steps 1 b rows columns"],
    before: Float[Tensor, "b"],
    paired: Float[Tensor, "b"],
) -> tuple[Float[Tensor, "m b"], Bool[Tensor, "m b"]]:
    """The falls of random maps, and which of them are as good as the map."""
    random, alike = (before - numbers).mean(dim=0), (drawn == own).all(dim=0).flatten(2).all(dim=2)
    # what is not finite, or masks the same patches, counts against the map
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
