"""Integrated Gradients: "Axiomatic attribution for deep networks" (Sundararajan, Taly and Yan, 2017), section 3.

    map_p = sum over the pixels and channels i of patch p of (x_i - x'_i) integral_0^1 (d y / d x_i)(x' + a (x - x')) da

x' is a baseline: an image that says nothing. The map adds up to y(x) - y(x') (completeness). What is missing, as the
integral is a sum over nodes, is reported:

    gap = | sum_p map_p - (y(x) - y(x')) | / | y(x) - y(x') |

A gap above 1 % stands in the notes of the attribution. The baseline is 0 unless another is given: zero in normalised
pixels is the colour that the model's preprocessing subtracts, so it is the middle of what the network has seen, and no
pixel value of interest such as black is blind to the method. The answer is always relative to it.

Where the nodes lie. At the baseline a token holds its position and little else, and LayerNorm divides by how large the
token is: near it, twice as much image is another token; far from it, the same one. On trained networks nearly all of
what the logit gains lies at small a, and attention makes it steep there. So the path is cut at 1/2, 1/4, 1/8 and 1/16,
and each segment has its own Gauss-Legendre sum. What each must add up to is known, the difference of the logits at its
two ends; while the segments of an image are off by more than `tolerance` of the whole, those that are off most are
halved. Sums over nodes and segments are taken on the CPU: in float64 where they are held against each other, and in the
same order every time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.pixels import at_least, by_patch, chunks, gradients_at, numbers_at
from vitrail.explain.readout import attribution_of, check, exact, open_run, wide
from vitrail.explain.scores.fill import like_images
from vitrail.explain.target import ChosenTarget, Target
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

NOTED = 0.01  # the gap from which on it is noted
SEGMENTS = 5  # of the path, at first: each twice as long as the one before it, but for the first two
FEWEST = 4  # nodes that a segment has, where there are as many
MOST = 8  # times `steps`: the nodes that an image may take
ROUNDING = 8  # units in the last place of a logit, below which a segment is not off


@torch.inference_mode(False)
def integrated_gradients(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    steps: int = 50,
    baseline: float | Sequence[float] | Tensor = 0.0,
    batch_size: int = 64,
    tolerance: float | None = 1e-3,
) -> Attribution:
    """What each patch adds to the target's logit on the straight path from the baseline to the image.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        steps: Nodes on the path of an image; up to eight times as many where the tolerance needs them.
        baseline: In normalised pixels: a number, one for each channel, or a tensor that broadcasts to the images.
        batch_size: How many points of the path run at once.
        tolerance: The gap to reach, as a fraction of y(x) - y(x'). None for one Gauss-Legendre sum over the whole path
            with exactly `steps` nodes, as other libraries take it.

    Returns:
        A signed number per patch, in logits, which add up to the difference from the baseline.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    attribution, _ = integrated_gradients_with_gap(
        network, images, target, steps=steps, baseline=baseline, batch_size=batch_size, tolerance=tolerance
    )
    return attribution


@torch.inference_mode(False)
def integrated_gradients_with_gap(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    steps: int = 50,
    baseline: float | Sequence[float] | Tensor = 0.0,
    batch_size: int = 64,
    tolerance: float | None = 1e-3,
) -> tuple[Attribution, Float[Tensor, "b"]]:
    """The same attribution, and each image's completeness gap, a fraction of y(x) - y(x'); 0 where both are equal.

    Returns:
        The attribution, and the gaps (b,) in float64, on the CPU.
    """
    at_least("steps", steps, 1, "steps=50")
    if tolerance is not None and not 0 < tolerance < 1:
        raise UsageError(f"tolerance must be above 0 and below 1, or None, got {tolerance!r}", "tolerance=1e-3")
    check(network, images, gradients=True)
    opened = open_run(network, images, target, "logits")
    ends = wide(images.detach())
    start = like_images("baseline", baseline, ends)
    path = _Path(network, ends, start, opened.chosen, opened.grid, images.dtype, batch_size)
    pieces = 1 if tolerance is None else min(SEGMENTS, max(1, steps // FEWEST))
    segments, end = _cut(len(images), pieces), exact(opened.logit)
    low = path.numbers(segments.of_image, segments.low).view(len(images), pieces)
    if tolerance is None:
        values = path.sums(segments, steps)
    else:
        high = torch.cat([low[:, 1:], end[:, None]], dim=1)
        measured = _Measured(segments, low.flatten(), high.flatten())
        values = _refined(path, measured, -(-steps // pieces), MOST * steps, tolerance)
    gap = gap_of(values.double().sum(dim=(1, 2)), end - low[:, 0])
    notes = [(_note(fraction),) if fraction > NOTED else () for fraction in gap.tolist()]
    values = values.to(ends)
    attribution = attribution_of(values, opened.chosen, opened.logit, METHOD, notes)
    return attribution, gap


def gap_of(total: Float[Tensor, "b"], difference: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """How far a map's sum is from what it should add up to, as a fraction of that; 0 where both are equal."""
    missing = (total - difference).abs()
    return torch.where(missing == 0, missing, missing / difference.abs())


@dataclass(frozen=True, eq=False)
class _Segments:
    """Segments of the paths of images, from a = low to a = high; on the CPU."""

    of_image: Int[Tensor, "s"]
    low: Float[Tensor, "s"]
    high: Float[Tensor, "s"]


@dataclass(frozen=True, eq=False)
class _Measured:
    """Segments, and the explained number where each begins and where it ends."""

    segments: _Segments
    low: Float[Tensor, "s"]
    high: Float[Tensor, "s"]

    def select(self, some: Tensor) -> "_Measured":
        """Some of them."""
        all_ = self.segments
        selected = _Segments(all_.of_image[some], all_.low[some], all_.high[some])
        return _Measured(selected, self.low[some], self.high[some])

    def halves(self, path: "_Path") -> "_Measured":
        """Each in two: all first halves, then all second ones."""
        whole, middle = self.segments, (self.segments.low + self.segments.high) / 2
        half = _Segments(whole.of_image.repeat(2), torch.cat([whole.low, middle]), torch.cat([middle, whole.high]))
        between = path.numbers(whole.of_image, middle)
        return _Measured(half, torch.cat([self.low, between]), torch.cat([between, self.high]))

    def join(self, more: "_Measured") -> "_Measured":
        """These, then those."""
        (a, b), join = (self.segments, more.segments), torch.cat
        segments = _Segments(join([a.of_image, b.of_image]), join([a.low, b.low]), join([a.high, b.high]))
        return _Measured(segments, join([self.low, more.low]), join([self.high, more.high]))


@dataclass(frozen=True, eq=False)
class _Path:
    """From baselines to images, and what is explained on the way."""

    network: ViT
    images: Images
    start: Images
    chosen: ChosenTarget
    grid: Size
    precision: torch.dtype  # of what the network is asked
    batch_size: int

    def sums(self, segments: _Segments, count: int) -> Float[Tensor, "s rows columns"]:
        """Each segment's fraction of the map: a Gauss-Legendre sum of so many nodes; on the CPU."""
        nodes, weights = np.polynomial.legendre.leggauss(count)
        nodes, weights = (torch.from_numpy(each).to(self.images.dtype) for each in ((nodes + 1) / 2, weights / 2))
        index = torch.arange(len(segments.of_image) * count, device="cpu")
        segment, node, found = index // count, index % count, []
        for some, _ in chunks(len(index), 1, self.batch_size):
            part = segment[some]
            which, low, length = segments.of_image[part], segments.low[part], (segments.high - segments.low)[part]
            images, start = self.images[which], self.start[which]
            way = images - start
            along = (low + length * nodes[node[some]]).to(way)
            versions = start + _spread(along, way) * way
            gradients = gradients_at(self.network, versions[None].to(self.precision), self.chosen.select(which))[0]
            gathered = _spread((length * weights[node[some]]).to(way), way) * gradients
            found.append(by_patch(way * gathered, self.grid))
        values = torch.zeros(len(segments.of_image), *self.grid, dtype=self.images.dtype, device="cpu")
        return values.index_add_(0, segment, torch.cat([values[:0], *(each.cpu() for each in found)]))

    def numbers(self, image: Int[Tensor, "s"], along: Float[Tensor, "s"]) -> Float[Tensor, "s"]:
        """The explained number of these images at these points of their paths, in float64, on the CPU."""
        found = []
        for some, _ in chunks(len(image), 1, self.batch_size):
            which = image[some]
            start = self.start[which]
            versions = start + _spread(along[some].to(start), start) * (self.images[which] - start)
            found.append(numbers_at(self.network, versions[None].to(self.precision), self.chosen.select(which))[0])
        return torch.cat([along[:0], *(exact(each) for each in found)])


def _refined(
    path: _Path, measured: _Measured, count: int, most: int, tolerance: float
) -> Float[Tensor, "b rows columns"]:
    """The map, from segments of `count` nodes, halved until an image's add up; one takes at most `most` nodes."""
    images = len(path.images)
    values = path.sums(measured.segments, count)
    whole = _by_image(measured.high - measured.low, measured.segments.of_image, images).abs()
    taken = count * torch.bincount(measured.segments.of_image, minlength=images)
    while True:
        image = measured.segments.of_image
        rounding = ROUNDING * torch.finfo(path.precision).eps * torch.maximum(measured.low.abs(), measured.high.abs())
        off = (values.double().sum(dim=(1, 2)) - (measured.high - measured.low)).abs()
        off = torch.where(off > rounding, off, 0)
        fraction = tolerance * whole / torch.bincount(image, minlength=images)  # that each segment may be off
        open_ones = _by_image(off, image, images) > tolerance * whole
        split = open_ones[image] & (off > fraction[image])
        taken = taken + 2 * count * torch.bincount(image[split], minlength=images)
        split &= (taken <= most)[image]
        if not split.any():
            return values.new_zeros(images, *path.grid).index_add_(0, image, values)
        new = measured.select(split).halves(path)
        values = torch.cat([values[~split], path.sums(new.segments, count)])
        measured = measured.select(~split).join(new)


def _by_image(numbers: Float[Tensor, "s"], image: Int[Tensor, "s"], count: int) -> Float[Tensor, "b"]:
    return numbers.new_zeros(count).index_add_(0, image, numbers)


def _cut(images: int, pieces: int) -> _Segments:
    """Every image's path, cut at 1/2, 1/4, ... into so many segments."""
    edges = [0.0, *(0.5**power for power in range(pieces - 1, -1, -1))]
    low, high = (torch.tensor(ends, dtype=torch.float64, device="cpu") for ends in (edges[:-1], edges[1:]))
    image = torch.arange(images, device="cpu").repeat_interleave(pieces)
    return _Segments(image, low.repeat(images), high.repeat(images))


def _spread(numbers: Float[Tensor, "p"], images: Tensor) -> Tensor:
    """One number for each image, to be multiplied with its pixels."""
    return numbers.view(-1, *[1] * (images.dim() - 1))


def _note(gap: float) -> str:
    return f"completeness gap {gap:.1%}: the values do not add up to the difference from the baseline; take more steps"


METHOD = Method(
    function=integrated_gradients,
    name="integrated_gradients",
    title="Integrated Gradients",
    signed=True,
    class_specific=True,
    says="what each patch adds to the class's logit on the path from an image of one colour to this one",
    about=(
        "Integrated Gradients (Sundararajan and others, 2017) sums the gradients of the score on the path from a plain "
        "image (the baseline) to this one. Its values sum to the difference of the two scores; another baseline would "
        "give another map."
    ),
    paper="Axiomatic attribution for deep networks (Sundararajan, Taly and Yan, 2017), section 3",
    options={
        "steps": "points on the path; up to eight times as many if the tolerance needs them",
        "baseline": "the image at which the path starts, in normalised pixels: a number, or one per channel",
        "batch_size": "points of the path per batch",
        "tolerance": "the completeness gap to reach; none for a single sum with exactly this many steps",
    },
    cost="6 + 3 x steps (156), up to eight times as many",
)
