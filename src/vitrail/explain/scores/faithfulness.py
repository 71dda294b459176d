"""Is a map faithful? Does masking what it names change the number more than masking what random maps name?

Five steps mask a 32nd, a 16th, ... half of all patches, and five fills stand in for what is masked. All that is asked
of a map is which patches each step masks, its *levels*; the random maps are drawn from these, as smooth as they are
(`chance.py`). A map that names patches in another order between the same steps is the same map here.

Each step of a random map meets one of the fills, and so does each step of the map when the two are compared: the map is
exchangeable with its random maps, whatever the fills. It also meets each fill at every step, which gives its score, and
no more than one random map may drop as far as that. This can only make the test stricter, and who looks for a map that
the known fills favour has to please all of them at all steps. The fills are drawn by the image and the
seed alone. (Drawn by the map they are dice that a small change of the map throws again, see benchmarks/LOG.md.)

A map that none of 24 random maps equals is faithful, one that two equal is not; where one does, 25 more decide, of
which none may. Of maps that are as random as these at most 4.98 % pass.

The same passes are points of the curve whose area other tools call deletion; insertion takes a few more
(`_measure_areas`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import Gridded, WithGrid, all_finite
from vitrail.explain.scores.chance import random_maps
from vitrail.explain.scores.perturb import (
    Fill,
    Masks,
    Measure,
    composite,
    explained_number,
    keys_of,
    measure_masked,
    ranks_of,
    seed_of,
)
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images
from vitrail.tasks.target import ChosenTarget
from vitrail.text import ShortRepr

STEPS = 5  # in which patches are masked, and as many fills
RANDOM_MAPS, MORE_RANDOM_MAPS = 24, 25  # of each map; more where one of the first is as good
ALLOWED = 1  # of each of these: its drop may be as large as that of the map over all fills
EIGHTHS = 8  # of all patches, shown one after the other by insertion
FAITHFUL = 0.05  # the limit of p
STUDENT = 2.7764451  # the 97.5 % point of Student's t with STEPS - 1 degrees of freedom


def steps_of(patches: int) -> tuple[int, ...]:
    """How many patches each step masks: from a 32nd of them to half, evenly on a logarithmic scale."""
    fractions = torch.linspace(0, 1, STEPS, dtype=torch.float64, device="cpu")
    first, last = max(1.0, patches / 32), max(1.0, patches / 2)
    return tuple(int(k) for k in (first * (last / first) ** fractions).round().tolist())


class _Counting(nn.Module):
    """A network that says before and behind each batch how many passes are done, and how many are planned."""

    def __init__(self, network: nn.Module, planned: int, progress: Callable[[int, int], None]) -> None:
        super().__init__()
        self.network, self.done, self.planned, self.progress = network, 0, planned, progress
        self.training = False

    def forward(self, images: Images) -> Float[Tensor, "b v"]:
        if self.done + len(images) > self.planned:  # one random map of a map is as good
            self.planned += STEPS * MORE_RANDOM_MAPS
        if not self.done:
            self.progress(0, self.planned)
        found = self.network(images)
        self.done += len(images)
        self.progress(self.done, self.planned)
        return found


@dataclass(frozen=True, eq=False)
class MaskedImages:
    """Images whose patches are masked step by step.

    Attributes:
        network: In eval mode.
        images: (b, c, h, w).
        chosen: What is explained of them.
        logits: (b, v), of the images as they are.
        fill: What stands in masked patches.
        seed: Of fills, of random maps and of the order among equal values.
    """

    network: WithGrid
    images: Images
    chosen: ChosenTarget
    logits: Float[Tensor, "b v"]
    fill: Fill
    seed: int

    def select(self, images: Int[Tensor, "some"]) -> "MaskedImages":
        """The same for some of the images."""
        return replace(self, images=self.images[images], chosen=self.chosen.select(images), logits=self.logits[images])

    def counting(self, maps: int, areas: bool, bump: bool, progress: Callable[[int, int], None]) -> "MaskedImages":
        """The same, whose passes are counted while so many maps of each are tested: called with those done, and all."""
        each = STEPS * (STEPS + RANDOM_MAPS) + 2 * (EIGHTHS - 1) * areas
        inside = _Counting(self.network, len(self.images) * (maps * each + STEPS**2 * bump), progress)
        return replace(self, network=Gridded(inside, self.grid))

    @property
    def grid(self) -> Size:
        """(rows, columns) of patches."""
        return self.network.grid(self.images)

    @property
    def patch(self) -> Size:
        """(height, width) of a patch, in pixels."""
        return self.images.shape[2] // self.grid[0], self.images.shape[3] // self.grid[1]

    @property
    def steps(self) -> tuple[int, ...]:
        """How many patches each step masks."""
        return steps_of(self.grid[0] * self.grid[1])

    @property
    def measure(self) -> Measure:
        """What deletion and insertion are areas of: the probability, where there is one."""
        return "probability" if self.chosen.has_probability else "centred"

    @property
    def before(self) -> Float[Tensor, "b"]:
        """The explained number of the images as they are."""
        return explained_number(self.logits, self.chosen)

    @cached_property
    def fills(self) -> Float[Tensor, "fills b c h w"]:
        """Whole images to take masked patches from, the same for all maps of an image."""
        made = [
            self.fill.make(one[None], self.patch, STEPS, seed_of(self.seed, "fills", key))
            for one, key in zip(self.images, keys_of(self.images), strict=True)
        ]
        return torch.cat(made, dim=1)

    def ranks(self, maps: Float[Tensor, "m b rows columns"]) -> Int[Tensor, "m b rows columns"]:
        """Places of patches, 0 of the highest; equal values in an order of the image's own, the same in its maps."""
        return ranks_of(maps.flatten(0, 1), 1, self.seed, keys_of(self.images) * len(maps))[0].view(maps.shape)

    def masks(self, maps: Float[Tensor, "m b rows columns"]) -> Bool[Tensor, "steps m b rows columns"]:
        """Which patches each step masks: those with the highest values of the map."""
        ranks = self.ranks(maps)
        return torch.stack([ranks < step for step in self.steps])

    def random_maps(
        self, values: Float[Tensor, "b rows columns"], count: int, more: bool = False
    ) -> Float[Tensor, "m b rows columns"]:
        """Random maps of the levels of these maps: how many steps mask each patch."""
        levels = self.masks(values[None])[:, 0].sum(dim=0).to("cpu", values.dtype)
        seed = seed_of(self.seed, "more random maps") if more else self.seed
        return random_maps(levels, count, seed, keys_of(self.images)).to(values)

    def numbers_under(
        self, masks: Masks, measures: Sequence[Measure] = ("centred", "probability")
    ) -> Float[Tensor, "measures fills m b"]:
        """The number and the target's probability under masks (fills, m, b, rows, columns), each with its fill."""
        return measure_masked(self.network, self.images, self.chosen, masks, self.fills[:, None], measures)

    def hidden(self, without: Float[Tensor, "count v"] | None) -> Float[Tensor, "b"]:
        """Where the curve of deletion ends, and insertion begins: the mean over images with all patches masked.

        Args:
            without: Logits of composites, which are such images; whole fills take their place when None.
        """
        if without is None:
            every = torch.ones((1, 1, *self.grid), dtype=torch.bool, device=self.images.device)
            return self.numbers_under(every, (self.measure,))[0, :, 0].mean(dim=0)
        of_each = without[:, None].expand(-1, len(self.images), -1)
        return explained_number(of_each, self.chosen, self.measure).mean(dim=0)


class Areas(NamedTuple):
    """Areas under two curves of the target's probability (of a function, its number), one for each image.

    Attributes:
        deletion: (b,), patches masked in the map's order, from none to all: lower is better.
        insertion: (b,), patches shown in the map's order: higher is better.
    """

    deletion: Float[Tensor, "b"]
    insertion: Float[Tensor, "b"]


class Pictured(NamedTuple):
    """Two images of the test for each of some images, on the CPU: patches in the map's order, and random ones.

    Attributes:
        of: (s,), which images these are.
        masks: (2, s, rows, columns), the patches that are replaced.
        images: (2, s, c, h, w), as the network reads them.
        numbers: (2, s), the target's probability (of what has none, its number), of each of the two.
        means: (2, s), the same over all fills, and over all random maps.
        half: (s, rows, columns), the first patches in the map's order that carry at least half of the drop at this
            step, as few as a step of the test replaces; none where nothing drops.
    """

    of: Int[Tensor, " s"]
    masks: Bool[Tensor, "2 s rows columns"]
    images: Float[Tensor, "2 s c h w"]
    numbers: Float[Tensor, "2 s"]
    means: Float[Tensor, "2 s"]
    half: Bool[Tensor, "s rows columns"]


@dataclass(frozen=True, eq=False, repr=False)
class Drops(ShortRepr):
    """What masking patches did; one entry for each image, on the CPU, nan where nothing was tested.

    Attributes:
        score: (b,), the mean drop of the explained number over all steps and fills, in logits.
        interval: (b, 2), 95 % interval of it over the draws of the fill.
        random: (b, maps), the drops of random maps of the same smoothness and values; nan behind the last one made.
        faithful: (b,), p of "is the map faithful?", its place among its random maps, in float64: (1 + those as good) /
            (1 + all).
        random_maps: (b,), how many there were.
        masked: (b,), the target's probability with patches masked in the map's order.
        masked_random: (b,), in the random maps' order.
        patches: (b,), how many patches that is, up to a quarter of all, where the two differ most; 0 where nothing was
            tested.
        areas: Deletion and insertion of the maps, nan where they were not measured.
        random_areas: Those of their random maps.
        pictured: What the test of tested images looks like; None where none was tested.
    """

    score: Float[Tensor, "b"]
    interval: Float[Tensor, "b 2"]
    random: Float[Tensor, "b maps"]
    faithful: Float[Tensor, "b"]
    random_maps: Int[Tensor, "b"]
    masked: Float[Tensor, "b"]
    masked_random: Float[Tensor, "b"]
    patches: Int[Tensor, "b"]
    areas: Areas
    random_areas: Areas
    pictured: Pictured | None = None


def measure_drops(
    values: Float[Tensor, "b rows columns"],
    masked: MaskedImages,
    tested: Bool[Tensor, "b"],
    hidden: Float[Tensor, "b"] | None = None,
) -> Drops:
    """Mask patches in the order of maps and of random maps.

    Args:
        values: The maps.
        masked: The images, and what their patches are masked with.
        tested: Which of them are tested; of the others nothing becomes known.
        hidden: What deletion and insertion are areas of, with all patches masked; None where these are not measured.
    """
    none = torch.full((len(values),), torch.nan, dtype=masked.logits.dtype, device="cpu")
    nothing = torch.zeros(len(values), dtype=torch.long, device="cpu")
    found = Drops(
        score=none.clone(),
        interval=none[:, None].repeat(1, 2),
        random=none[:, None].repeat(1, RANDOM_MAPS + MORE_RANDOM_MAPS),
        faithful=none.double(),
        random_maps=nothing.clone(),
        masked=none.clone(),
        masked_random=none.clone(),
        patches=nothing.clone(),
        areas=Areas(*none.repeat(2, 1)),
        random_areas=Areas(*none.repeat(2, 1)),
    )
    images = tested.nonzero()[:, 0].to(values.device)
    if len(images):
        passes = _passes(masked.select(images), values[images])
        if hidden is not None:
            measured = _measure_areas(passes, hidden[images])
            for every, some in zip((*found.areas, *found.random_areas), measured, strict=True):
                every[images.cpu()] = some.to(every)
        _compare(found, passes, images.cpu())
        found = replace(found, pictured=_picture(passes, images))
    return found


class _Passes(NamedTuple):
    """Images masked in the order of their maps, at each step under each fill, and in that of random maps."""

    some: MaskedImages
    values: Float[Tensor, "b rows columns"]
    random_maps: Float[Tensor, "m b rows columns"]
    own_masks: Bool[Tensor, "steps 1 b rows columns"]
    random_masks: Bool[Tensor, "steps m b rows columns"]
    own: Float[Tensor, "2 fills steps b"]
    random: Float[Tensor, "2 steps m b"]

    @property
    def few(self) -> int:
        """Of how many steps a sentence may speak, and a picture show one: those of up to a quarter of all patches."""
        return sum(step <= max(1, self.values[0].numel() // 4) for step in self.some.steps)

    @property
    def measured(self) -> tuple[Float[Tensor, "fills steps b"], Float[Tensor, "steps m b"]]:
        """The probability of both, where there is one; else the number."""
        column = 1 if self.some.measure == "probability" else 0
        return self.own[column], self.random[column]


def _passes(some: MaskedImages, values: Float[Tensor, "b rows columns"]) -> _Passes:
    """All passes of a map and of its first random maps, in one queue."""
    maps, own = some.random_maps(values, RANDOM_MAPS), some.masks(values[None])
    drawn, every = some.masks(maps), own[None, :, 0].expand(STEPS, -1, -1, -1, -1)
    numbers = some.numbers_under(torch.cat([every, drawn], dim=1))
    return _Passes(some, values, maps, own, drawn, numbers[:, :, :STEPS], numbers[:, :, STEPS:])


def _picture(passes: _Passes, of: Int[Tensor, " s"]) -> Pictured:
    """What is shown of the test of some images; nothing is computed anew for it.

    The step is one that replaces up to a quarter of the patches, where the map and the random maps differ most; of the
    images that were made there, the one whose number lies nearest to the mean is shown. Random maps meet the fill of
    their step.
    """
    some, (own, random), every = passes.some, passes.measured, torch.arange(len(of), device=of.device)
    before = explained_number(some.logits, some.chosen, some.measure)
    mean, chance = own.mean(dim=0), random.mean(dim=1)  # (steps, s)
    step = (chance - mean)[: passes.few].nan_to_num().argmax(dim=0)
    fill = (own - mean)[:, step, every].abs().argmin(dim=0)
    which = (random - chance[:, None])[step, :, every].abs().argmin(dim=1)
    shown = torch.stack([passes.own_masks[step, 0, every], passes.random_masks[step, which, every]])
    made = composite(some.images, some.fills[torch.stack([fill, step]), every], shown, some.patch)
    wanted = (before - mean)[step, every] / 2
    half = passes.own_masks[(before - mean >= wanted).int().argmax(dim=0), 0, every] & (wanted > 0)[:, None, None]
    told = torch.stack([own[fill, step, every], random[step, which, every]])
    means = torch.stack([mean[step, every], chance[step, every]])
    return Pictured(*(each.cpu() for each in (of, shown, made, told, means, half)))


def _measure_areas(passes: _Passes, hidden: Float[Tensor, "b"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Deletion and insertion of maps, then of random maps (RISE: Petsiuk, Das and Saenko, 2018, section 4.1).

    All are trapezoids over the fractions of patches that were measured, 0 and 1 among them. Deletion masks a 32nd, a
    16th, an eighth, a quarter and half of them: the passes of the verdict, so each point is the mean over five fills
    (of random maps: over all of them, with one fill at each step). Insertion shows one eighth of them, two, ... seven,
    with the fills in turn; of the random maps only the first.
    """
    some = passes.some
    patches = passes.values[0].numel()
    counts = [round(patches * eighth / EIGHTHS) for eighth in range(1, EIGHTHS)]
    ranks = some.ranks(torch.stack([passes.values, passes.random_maps[0]]))
    masks = torch.stack([ranks >= count for count in counts])
    fills = some.fills[[index % STEPS for index in range(len(counts))], None]
    (shown,) = measure_masked(some.network, some.images, some.chosen, masks, fills, (some.measure,))  # (counts, 2, b)
    own, random = passes.measured
    masked = own.mean(dim=0), random.mean(dim=1)  # (steps, b) each
    seen, unknown = explained_number(some.logits, some.chosen, some.measure), ~all_finite(passes.values)

    def area(points: Tensor, known: list[int] | tuple[int, ...], first: Tensor, last: Tensor) -> Float[Tensor, "b"]:
        fractions = points.new_tensor([0, *known, patches]) / patches
        curve = torch.cat([first[None], points, last[None]])
        return torch.trapezoid(curve, fractions[:, None], dim=0).masked_fill(unknown, torch.nan)

    deleted = [area(points, some.steps, seen, hidden) for points in masked]
    inserted = [area(points, counts, hidden, seen) for points in shown.unbind(1)]
    return deleted[0], inserted[0], deleted[1], inserted[1]


def _compare(found: Drops, passes: _Passes, at: Int[Tensor, "b"]) -> None:
    """Write down what became of tested images; of a map that exactly one random map equals, draw more random maps."""
    some, before = passes.some, passes.some.before
    own = before - passes.own[0]  # (fills, steps, b)
    random, as_good = _count_as_good(passes.random[0], passes.random_masks, passes.own_masks, before, own)
    by_fill = own.mean(dim=1)
    score, half = by_fill.mean(dim=0), STUDENT * by_fill.std(dim=0) / STEPS**0.5
    own_probability, chance = passes.own[1].mean(dim=0), passes.random[1].mean(dim=1)  # (steps, b)
    shown = (chance - own_probability)[: passes.few].nan_to_num().argmax(dim=0)[None]
    found.score[at], found.interval[at] = score.cpu(), torch.stack([score - half, score + half], dim=1).cpu()
    found.random[at, :RANDOM_MAPS], found.random_maps[at] = random.T.cpu(), RANDOM_MAPS
    found.faithful[at] = (1 + as_good.cpu()).double() / (1 + RANDOM_MAPS)
    found.masked[at] = own_probability.gather(0, shown)[0].cpu()
    found.masked_random[at] = chance.gather(0, shown)[0].cpu()
    found.patches[at] = torch.tensor(some.steps, device="cpu")[shown[0].cpu()]
    more = (as_good == 1).nonzero()[:, 0]
    if not len(more):
        return
    open_, at = some.select(more), at[more.cpu()]
    drawn = open_.masks(open_.random_maps(passes.values[more], MORE_RANDOM_MAPS, more=True))
    (numbers,) = open_.numbers_under(drawn, ("centred",))
    random, as_good = _count_as_good(numbers, drawn, passes.own_masks[:, :, more], before[more], own[:, :, more])
    found.random[at, RANDOM_MAPS:] = random.T.cpu()
    found.random_maps[at] += MORE_RANDOM_MAPS
    found.faithful[at] = (2 + as_good.cpu()).double() / (1 + found.random_maps[at])


def _count_as_good(
    numbers: Float[Tensor, "steps m b"],
    drawn: Bool[Tensor, "steps m b rows columns"],
    masks: Bool[Tensor, "steps 1 b rows columns"],
    before: Float[Tensor, "b"],
    own: Float[Tensor, "fills steps b"],
) -> tuple[Float[Tensor, "m b"], Int[Tensor, "b"]]:
    """The drops of random maps, and how many of them are as good as the map."""
    random, alike = (before - numbers).mean(dim=0), (drawn == masks).all(dim=0).flatten(2).all(dim=2)
    paired = own.diagonal().T.mean(dim=0)  # each step under the fill that random maps meet there
    # what is not finite, or masks the same patches, counts against the map
    same_fills = (~(random < paired) | alike).sum(dim=0)
    all_fills = (~(random < own.mean(dim=(0, 1)))).sum(dim=0) - ALLOWED
    return random, torch.maximum(same_fills, all_fills)


def measure_true_masks(
    masks: Bool[Tensor, "b rows columns"], masked: MaskedImages, tested: Bool[Tensor, "b"]
) -> Float[Tensor, "b"]:
    """The mean drop when the true patches are masked first; nan where a mask is empty, or nothing is tested."""
    return mean_drops(masks.to(masked.before), masked, tested & masks.flatten(1).any(dim=1).cpu())


def mean_drops(
    values: Float[Tensor, "b rows columns"], masked: MaskedImages, tested: Bool[Tensor, "b"]
) -> Float[Tensor, "b"]:
    """The mean drop over all steps and fills in the order of these values, as of a map; nan where untested."""
    drops = torch.full_like(masked.before, torch.nan)
    images = tested.nonzero()[:, 0].to(drops.device)
    if len(images):
        some = masked.select(images)
        (numbers,) = some.numbers_under(some.masks(values[images][None])[None, :, 0], ("centred",))
        drops[images] = (some.before - numbers).mean(dim=(0, 1))
    return drops


def check_masks(grid: tuple[int, int], images: int, masks: Tensor | None) -> None:
    """Refuse masks that are not one number for each patch of each image."""
    if masks is not None and tuple(masks.shape) != (images, *grid):
        raise UsageError(
            f"masks must have one value per patch, shape {(images, *grid)}, got {tuple(masks.shape)}",
            "masks on the grid of patches",
        )


def check_attribution(attribution: Attribution, masked: MaskedImages) -> None:
    """Refuse an attribution that is not of these images, or explains something else."""
    wanted, chosen = (len(masked.images), *masked.grid), masked.chosen
    if tuple(attribution.values.shape) != wanted:
        raise UsageError(
            f"the attribution has the shape {tuple(attribution.values.shape)}, these images need {wanted}",
            "the images that the attribution explains",
        )
    mine = [None if one is None else one.tolist() for one in (attribution.target, attribution.contrast)]
    theirs = [None if one is None else one.tolist() for one in (chosen.target, chosen.contrast)]
    if mine != theirs:
        raise UsageError("the attribution and the test have different targets", "a test for each target")
