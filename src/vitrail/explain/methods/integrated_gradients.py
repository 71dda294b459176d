"""Integrated Gradients: "Axiomatic attribution for deep networks" (Sundararajan, Taly and Yan, 2017), section 3.

    map_p = sum over the pixels and channels i of patch p of (x_i - x'_i) integral_0^1 (d y / d x_i)(x' + a (x - x')) da

x' is a baseline: an image without information. The map adds up to y(x) - y(x') (completeness). What is missing, as the
integral is a sum over nodes, is reported:

    gap = | sum_p map_p - (y(x) - y(x')) | / | y(x) - y(x') |

A gap above 1 % stands in the notes of the attribution. The baseline is 0 unless another is passed: zero in normalised
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
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.errors import check_count, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import ForwardPass, Grid, check_explainable, forward_pass, to_float64
from vitrail.explain.methods.pixels import by_patch, chunks, gradients_at
from vitrail.explain.scores.perturb import like_images
from vitrail.explain.target import Target
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images

NOTED = 0.01  # the gap from which on it is noted
SEGMENTS = 5  # of the path, at first: each twice as long as the one before it, but for the first two
FEWEST = 4  # nodes that a segment has, where there are as many
MOST = 8  # times `steps`: the nodes that an image may take
ROUNDING = 8  # units in the last place of a logit, below which a segment is not off


class _Segments(NamedTuple):
    """Segments of the paths of images, from a = low to a = high, and the explained number y at both; on the CPU."""

    image: Int[Tensor, "s"]
    low: Float[Tensor, "s"]
    high: Float[Tensor, "s"]
    y_low: Float[Tensor, "s"]
    y_high: Float[Tensor, "s"]

    def select(self, some: Tensor) -> "_Segments":
        """The segments at these places, or where a mask is True."""
        return _Segments(*(each[some] for each in self))

    def join(self, more: "_Segments") -> "_Segments":
        """These segments, then more."""
        return _Segments(*(torch.cat(both) for both in zip(self, more, strict=True)))

    def by_image(self, numbers: Float[Tensor, "s *x"], images: int) -> Float[Tensor, "b *x"]:
        """One number for each segment, summed for each image."""
        return numbers.new_zeros(images, *numbers.shape[1:]).index_add_(0, self.image, numbers)


@dataclass(frozen=True, eq=False)
class _Path:
    """The straight paths from baselines to images, both at least in float32, and the pass of the images."""

    forward: ForwardPass
    images: Images
    start: Images
    batch_size: int

    def points(self, image: Int[Tensor, "s"], along: Float[Tensor, "s"]) -> tuple[Images, Images]:
        """These images at these points of their paths, as the network reads them; and the whole way, x - x'."""
        start = self.start[image]
        way = self.images[image] - start
        return (start + _spread(along, way) * way).to(self.forward.pixels.dtype), way

    def sums(self, segments: _Segments, count: int) -> Float[Tensor, "s rows columns"]:
        """Each segment's part of the map: a Gauss-Legendre sum of so many nodes; on the CPU."""
        nodes, weights = np.polynomial.legendre.leggauss(count)
        nodes, weights = (torch.from_numpy(each).to(self.images.dtype) for each in ((nodes + 1) / 2, weights / 2))
        values = torch.zeros(len(segments.image), *self.forward.grid, dtype=self.images.dtype, device="cpu")
        index, found = torch.arange(len(values) * count, device="cpu"), [values[:0]]
        for some, _ in chunks(len(index), 1, self.batch_size):
            part, node = segments.select(index[some] // count), index[some] % count
            length = part.high - part.low
            versions, way = self.points(part.image, part.low + length * nodes[node])
            gradients = gradients_at(self.forward.network, versions[None], self.forward.chosen.select(part.image))[0]
            weighted = _spread(length * weights[node], way) * gradients
            found.append(by_patch(way * weighted, self.forward.grid).cpu())
        return values.index_add_(0, index // count, torch.cat(found))

    def numbers(self, image: Int[Tensor, "s"], along: Float[Tensor, "s"]) -> Float[Tensor, "s"]:
        """The explained number of these images at these points of their paths, in float64, on the CPU."""
        found = [along[:0]]
        for some, _ in chunks(len(image), 1, self.batch_size):
            versions, _ = self.points(image[some], along[some])
            with torch.no_grad():
                found.append(to_float64(self.forward.chosen.select(image[some])(self.forward.network(versions))))
        return torch.cat(found)

    def cut(self, pieces: int) -> _Segments:
        """Every image's path, cut at 1/2, 1/4, ... into so many segments."""
        edges = [0.0, *(0.5**power for power in range(pieces - 1, -1, -1))]
        images = len(self.images)
        low, high = (torch.tensor(ends, dtype=torch.float64, device="cpu") for ends in (edges[:-1], edges[1:]))
        low, high = low.repeat(images), high.repeat(images)
        image = torch.arange(images, device="cpu").repeat_interleave(pieces)
        y_low = self.numbers(image, low)
        y_end = to_float64(self.forward.logit)[:, None]
        y_high = torch.cat([y_low.view(images, pieces)[:, 1:], y_end], dim=1).flatten()
        return _Segments(image, low, high, y_low, y_high)

    def halves(self, whole: _Segments) -> _Segments:
        """Each in two: all first halves, then all second ones."""
        middle = (whole.low + whole.high) / 2
        y = self.numbers(whole.image, middle)
        return whole._replace(high=middle, y_high=y).join(whole._replace(low=middle, y_low=y))

    def refine(self, segments: _Segments, count: int, most: int, tolerance: float) -> Float[Tensor, "b rows columns"]:
        """The map, from segments of `count` nodes, halved until an image's add up; one takes at most `most` nodes."""
        images = len(self.images)
        values = self.sums(segments, count)
        whole = segments.by_image(segments.y_high - segments.y_low, images).abs()
        taken = count * torch.bincount(segments.image, minlength=images)
        while True:
            image, y_low, y_high = segments.image, segments.y_low, segments.y_high
            epsilon = torch.finfo(self.forward.pixels.dtype).eps
            rounding = ROUNDING * epsilon * torch.maximum(y_low.abs(), y_high.abs())
            off = (values.double().sum(dim=(1, 2)) - (y_high - y_low)).abs()
            off = torch.where(off > rounding, off, 0)
            fraction = tolerance * whole / torch.bincount(image, minlength=images)  # that each segment may be off
            is_open = segments.by_image(off, images) > tolerance * whole
            split = is_open[image] & (off > fraction[image])
            taken = taken + 2 * count * torch.bincount(image[split], minlength=images)
            split &= (taken <= most)[image]
            if not split.any():
                return segments.by_image(values, images)
            new = self.halves(segments.select(split))
            values = torch.cat([values[~split], self.sums(new, count)])
            segments = segments.select(~split).join(new)


def _spread(numbers: Float[Tensor, "p"], images: Tensor) -> Tensor:
    """One number for each image, in the images' type, to be multiplied with its pixels."""
    return numbers.to(images).view(-1, *[1] * (images.dim() - 1))


def gap_of(total: Float[Tensor, "b"], difference: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """How far a map's sum is from what it should add up to, as a fraction of that; 0 where both are equal."""
    missing = (total - difference).abs()
    return torch.where(missing == 0, missing, missing / difference.abs())


@explaining
def integrated_gradients(
    network: nn.Module,
    images: Images,
    target: Target = None,
    *,
    grid: Grid = None,
    steps: int = 50,
    baseline: float | Sequence[float] | Tensor = 0.0,
    batch_size: int = 64,
    tolerance: float | None = 1e-3,
) -> Attribution:
    """What each patch adds to the target's logit on the straight path from the baseline to the image.

    Args:
        network: Any, in eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.
        steps: Nodes on the path of an image; up to eight times as many where the tolerance needs them.
        baseline: The image at which the path starts, in normalised pixels: a number, one for each channel, or a tensor
            that broadcasts to the images.
        batch_size: How many points of the path run at once.
        tolerance: The gap to reach, as a fraction of y(x) - y(x'). None for one Gauss-Legendre sum over the whole path
            with exactly `steps` nodes, as other libraries take it.

    Returns:
        A signed number per patch, in logits, which add up to the difference from the baseline (a gap above 1 %
        is noted).

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    check_count("steps", steps, 50)
    fits = tolerance is None or 0 < tolerance < 1
    check_option("tolerance", tolerance, fits, "above 0 and below 1, or None", 1e-3)
    check_explainable(network, images, gradients=True)
    forward = forward_pass(network, images, target, grid=grid)
    ends = wide(images.detach())
    path = _Path(forward, ends, like_images("baseline", baseline, ends), batch_size)
    pieces = 1 if tolerance is None else min(SEGMENTS, max(1, steps // FEWEST))
    segments = path.cut(pieces)
    if tolerance is None:
        values = path.sums(segments, steps)
    else:
        values = path.refine(segments, -(-steps // pieces), MOST * steps, tolerance)
    gap = gap_of(values.double().sum(dim=(1, 2)), to_float64(forward.logit) - segments.y_low[::pieces])
    note = "completeness gap {:.1%}: the values do not add up to the difference from the baseline; take more steps"
    notes = [(note.format(one),) if one > NOTED else () for one in gap.tolist()]
    return forward.attribution(values.to(ends), "integrated_gradients", notes)
