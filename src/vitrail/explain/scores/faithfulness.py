"""Is a map faithful? Does masking what it names change the number more than masking what random maps name?

Five steps mask a 32nd, a 16th, ... half of all patches, and five fills stand in for what is masked. All that is asked
of a map is which patches each step masks, its *levels*; the random maps are drawn from these, as smooth as they are
(`random_maps`). A map that names patches in another order between the same steps is the same map here.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.arguments import typed
from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import WithGrid, all_finite, to_float64
from vitrail.explain.scores.perturb import (
    Fill,
    Masks,
    Measure,
    explained_number,
    keys_of,
    measure_masked,
    ranks_of,
    seed_of,
    stream,
)
from vitrail.explain.scores.pictured import Pictured, picture
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
REFINEMENTS = 10  # more change the autocorrelation by less than 0.01
SWAPS = 24  # that are tried for each patch, up to `MOST_SWAPS`
MOST_SWAPS = 2000
LIKE_ENOUGH = 0.005  # of the autocorrelation: swaps end here


def steps_of(patches: int) -> tuple[int, ...]:
    """How many patches each step masks: from a 32nd of them to half, evenly on a logarithmic scale."""
    fractions = torch.linspace(0, 1, STEPS, dtype=torch.float64, device="cpu")
    first, last = max(1.0, patches / 32), max(1.0, patches / 2)
    return tuple(int(k) for k in (first * (last / first) ** fractions).round().tolist())


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

    @property
    def grid(self) -> Size:
        """(rows, columns) of patches."""
        return self.network.grid(self.images)

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
        patch = self.images.shape[2] // self.grid[0], self.images.shape[3] // self.grid[1]
        made = [
            self.fill.make(one[None], patch, STEPS, seed_of(self.seed, "fills", key))
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
        found = replace(found, pictured=picture(images, passes, _few(passes)))
    return found


class Passes(NamedTuple):
    """Images masked in the order of their maps, at each step under each fill, and in that of random maps."""

    some: MaskedImages
    values: Float[Tensor, "b rows columns"]
    random_maps: Float[Tensor, "m b rows columns"]
    own_masks: Bool[Tensor, "steps 1 b rows columns"]
    random_masks: Bool[Tensor, "steps m b rows columns"]
    own: Float[Tensor, "2 fills steps b"]
    random: Float[Tensor, "2 steps m b"]


def _passes(some: MaskedImages, values: Float[Tensor, "b rows columns"]) -> Passes:
    """All passes of a map and of its first random maps, in one queue."""
    maps, own = some.random_maps(values, RANDOM_MAPS), some.masks(values[None])
    drawn, every = some.masks(maps), own[None, :, 0].expand(STEPS, -1, -1, -1, -1)
    numbers = some.numbers_under(torch.cat([every, drawn], dim=1))
    return Passes(some, values, maps, own, drawn, numbers[:, :, :STEPS], numbers[:, :, STEPS:])


def _few(passes: Passes) -> int:
    """Of how many steps a sentence may speak, and a picture show one: those of up to a quarter of all patches."""
    return sum(step <= max(1, passes.values[0].numel() // 4) for step in passes.some.steps)


def _measure_areas(passes: Passes, hidden: Float[Tensor, "b"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    column = 1 if some.measure == "probability" else 0
    masked = passes.own[column].mean(dim=0), passes.random[column].mean(dim=1)  # (steps, b) each
    seen, unknown = explained_number(some.logits, some.chosen, some.measure), ~all_finite(passes.values)

    def area(points: Tensor, known: list[int] | tuple[int, ...], first: Tensor, last: Tensor) -> Float[Tensor, "b"]:
        fractions = points.new_tensor([0, *known, patches]) / patches
        curve = torch.cat([first[None], points, last[None]])
        return torch.trapezoid(curve, fractions[:, None], dim=0).masked_fill(unknown, torch.nan)

    deleted = [area(points, some.steps, seen, hidden) for points in masked]
    inserted = [area(points, counts, hidden, seen) for points in shown.unbind(1)]
    return deleted[0], inserted[0], deleted[1], inserted[1]


def _compare(found: Drops, passes: Passes, at: Int[Tensor, "b"]) -> None:
    """Write down what became of tested images; of a map that exactly one random map equals, draw more random maps."""
    some, before = passes.some, passes.some.before
    own = before - passes.own[0]  # (fills, steps, b)
    random, as_good = _count_as_good(passes.random[0], passes.random_masks, passes.own_masks, before, own)
    by_fill = own.mean(dim=1)
    score, half = by_fill.mean(dim=0), STUDENT * by_fill.std(dim=0) / STEPS**0.5
    own_probability, chance = passes.own[1].mean(dim=0), passes.random[1].mean(dim=1)  # (steps, b)
    shown = (chance - own_probability)[: _few(passes)].nan_to_num().argmax(dim=0)[None]
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


# ---- random maps


@typed
@torch.no_grad()
def random_maps(
    values: Float[Tensor, "b rows columns"], count: int, seed: int, keys: Sequence[int] | None = None
) -> Float[Tensor, "count b rows columns"]:
    """Random maps that are as smooth as each map and hold the same values: what a map must do better than.

    A map of white noise is easily beaten: digits and dogs lie in one piece, and any smooth map covers more of a piece
    than scattered patches do. So a map is held against random maps that differ from it in one thing only, the place.
    They are Fourier surrogates of two dimensions. The start is amplitude-adjusted (Theiler, Eubank, Longtin, Galdrikian
    and Farmer, "Testing for nonlinearity in time series: the method of surrogate data", Physica D 1992):

        z = the Gaussian numbers that have the ranks of the map's values
        s = Re F^-1(e^(i phase) F z)           phases at random, those of a real map; F the Fourier transform
        r = the map's own values, put in the order of s

    r has the map's values but is rougher than the map where few values stand out, as they do in most maps. So it is
    refined by turns (Schreiber and Schmitz, "Improved surrogate data for nonlinearity tests", Physical Review Letters
    1996):

        s = Re F^-1(|F map| e^(i phase of F r))     the power of the map at each frequency, hence its autocorrelation
        r = the map's own values, put in the order of s

    On a grid of few patches, and where few values stand out, r is still rougher than the map, and a map that is
    smoother than all of its random maps beats them for that alone: of random maps, 7 in 100 then passed for the best of
    40 (2 in 40 is 5). So pairs of values are swapped, at random, where that brings the likeness of neighbours, along
    rows and along columns, nearer to the map's.

    All of it sees the map on a torus: a spot may lie across the edge, half of it on either side. Maps are small, so
    they are made on the CPU: in float64, and the same on every machine.

    Measured on the lab's maps (8 x 8 patches; generic attention, rollout, conservative propagation): the mean
    autocorrelation of neighbours is that of the map within 0.02. Maps of two values only come out rougher (one spot of
    2 x 2 patches in 8 x 8): order carries little about them.

    Args:
        values: Maps on any grid.
        count: How many for each map.
        seed: Decides the phases, with the keys.
        keys: A number for each map, such as `keys_of(images)`, which gives each image its own phases, the same in
            every batch. Without keys all maps get the same phases: right for a single map, but over many images the
            random maps then succeed and fail together. Of 200 maps with one spot on 8 x 8 patches, one of 39 phases
            left the peak where it was in 17 to 21 % (in 1.6 % by chance); with keys in 3 % at most.

    Returns:
        (count, b, rows, columns): each holds exactly the values of its map. A constant map stays as it is.
    """
    given, values, grid = values, values.cpu(), values.shape[1:]
    drawn = [
        torch.randn((count, *grid), generator=stream(seed, "random maps", key), dtype=torch.float64, device="cpu")
        for key in (keys or [0])
    ]
    noise = torch.stack(drawn, dim=1)  # (count, b or 1, rows, columns)
    own = values.flatten(1).sort(dim=1).values.expand(count, -1, -1)
    map_ = to_float64(values)
    middle = twice_ranks(map_.flatten(1)) / (2 * own.shape[2])  # equal values share the middle of their ranks
    gaussian, power = torch.special.ndtri(middle.double()).unflatten(1, grid), torch.fft.fft2(map_).abs()
    found = in_order_of(turn_phases(gaussian, noise), own)
    for _ in range(REFINEMENTS):
        phases = torch.fft.fft2(found.double()).sgn()
        found = in_order_of(torch.fft.ifft2(power * phases).real, own)
    return _swap_pairs(found, values, stream(seed, "swaps")).to(given.device)


def _swap_pairs(
    maps: Float[Tensor, "m b rows columns"], like: Float[Tensor, "b rows columns"], random: torch.Generator
) -> Float[Tensor, "m b rows columns"]:
    """The maps with pairs of values swapped, as long as that makes neighbours more nearly as alike as in `like`.

    A swap of a at i and d at j changes the sum over neighbours along an axis by (d - a) (n_i - n_j + k (a - d)): n is
    the sum of the two neighbours, and k tells how often i and j are neighbours themselves.
    """
    (rows, columns), count = like.shape[1:], maps.shape[0]
    places = torch.arange(rows * columns, device="cpu").view(rows, columns)
    beside = torch.stack([places.roll((one, two), (0, 1)) for one, two in ((1, 0), (-1, 0), (0, 1), (0, -1))])
    beside = beside.flatten(1)  # (4, p): two along the rows' axis, two along the columns'
    values, wanted = maps.double().flatten(2), like.double().flatten(1)
    size = (wanted - wanted.mean(dim=1, keepdim=True)).square().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    off = (_neighbour_products(values, beside) - _neighbour_products(wanted, beside)) / size[:, None]  # (m, b, 2)
    tries = min(MOST_SWAPS, SWAPS * rows * columns)
    pairs = torch.randint(rows * columns, (tries, 2, count), generator=random, device="cpu")
    near = beside[:, pairs]  # (4, tries, 2, m)
    links = (near[:, :, 0] == pairs[:, 1]).unflatten(0, (2, 2)).sum(dim=1).movedim(0, 1)  # (tries, 2, m)
    around = torch.cat([pairs, *near.permute(2, 1, 0, 3)], dim=1)[..., None].numpy()  # (tries, 2 + 4 + 4, m, 1)
    # thousands of steps over few numbers: NumPy takes a fifth of torch's time, to the same bits
    mixed, apart, scale = values.numpy().copy(), off.movedim(2, 0).numpy(), size.numpy()
    whose = np.arange(count)[:, None], np.arange(values.shape[1])
    with np.errstate(all="ignore"):  # a map that is not finite stays so
        for at, link in zip(around, links[..., None].numpy(), strict=True):
            rough = np.abs(apart).max(axis=0) > LIKE_ENOUGH
            if not rough.any():
                break
            a, d, *both = mixed[*whose, at]
            near_a, near_d = (np.stack([four[0] + four[1], four[2] + four[3]]) for four in (both[:4], both[4:]))
            moved = apart + (d - a) * (near_a - near_d + link * (a - d)) / scale
            better = (np.square(moved).sum(axis=0) < np.square(apart).sum(axis=0)) & rough
            mixed[*whose, at[0]], mixed[*whose, at[1]] = np.where(better, d, a), np.where(better, a, d)
            apart = np.where(better, moved, apart)
    return torch.from_numpy(mixed).view_as(maps).to(maps)


def _neighbour_products(values: Float[Tensor, "*m p"], beside: Int[Tensor, "4 p"]) -> Float[Tensor, "*m 2"]:
    """Sums of products of neighbours, along the rows' axis and along the columns'."""
    return torch.stack([(values * values[..., beside[axis]]).sum(dim=-1) for axis in (0, 2)], dim=-1)


def turn_phases(
    whole: Float[Tensor, "*some rows columns"], noise: Float[Tensor, "*more rows columns"]
) -> Float[Tensor, "*all rows columns"]:
    """What has the amplitudes of `whole` at each frequency, and its phases turned by those of noise."""
    turn = torch.fft.fft2(noise).sgn()  # phases of real numbers: opposite frequencies turn oppositely
    turn[..., 0, 0] = 1.0
    return torch.fft.ifft2(torch.fft.fft2(whole) * turn).real


def in_order_of(maps: Float[Tensor, "m b rows columns"], own: Float[Tensor, "m b p"]) -> Float[Tensor, "m b r c"]:
    """The values `own`, from the least to the largest, put where `maps` has its least to its largest."""
    flat = maps.flatten(2)
    # on a processor NumPy sorts in a fifth of torch's time
    order = torch.from_numpy(flat.numpy().argsort(axis=2)) if flat.device.type == "cpu" else flat.argsort(dim=2)
    return torch.empty_like(own, memory_format=torch.contiguous_format).scatter_(2, order, own).view(maps.shape)


def twice_ranks(rows: Float[Tensor, "b p"]) -> Int[Tensor, "b p"]:
    """Twice the rank of each value of a row, so that it is whole where equal values share the middle of theirs."""
    in_order, rows = rows.sort(dim=1).values, rows.contiguous()
    below, not_above = (torch.searchsorted(in_order, rows, right=right) for right in (False, True))
    return below + not_above
