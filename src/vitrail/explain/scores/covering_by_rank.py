"""Covering patches in the order of a map, and measuring what is left of the explained number.

Every score by covering comes down to one function: patches have *ranks* (0 for the largest value of the map), a *span*
of ranks is covered, and the network is asked again.

    (0, k)      the k largest are covered: deletion, positive perturbation, AOPC
    (k, P)      only the k largest are shown: insertion
    (P - k, P)  the k smallest are covered: negative perturbation
    (i, j)      one group is covered: SaCo
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.readout import check_eval, wide
from vitrail.explain.scores.fill import Fill, Pictures, composite, logits_in_chunks, logits_of, stream
from vitrail.explain.target import Aim, Target, choose_target
from vitrail.nn.embedding import Size

Measure = Literal["probability", "logit"]
Measured = Literal["probability", "logit", "top-1"]


@dataclass(frozen=True, eq=False)
class Covering:
    """How patches are covered, and what is measured.

    Attributes:
        fill: What stands in covered patches.
        draws: Over how many fillers a score is averaged; a fill in which nothing is drawn has one.
        seed: Of the fillers, and of the order of patches with equal values.
        measure: "probability" of the explained class (of a contrast: of the first class among the two), or "logit", the
            explained number itself.
        batch_size: How many covered pictures go through the network at a time.

    Raises:
        UsageError: If draws or batch size are below 1, or there is no such measure.
    """

    fill: Fill
    draws: int = 10
    seed: int = 0
    measure: Measure = "probability"
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.draws < 1 or self.batch_size < 1:
            raise UsageError(
                f"draws and batch_size are at least 1, got {self.draws} and {self.batch_size}",
                "draws=10, batch_size=64",
            )
        if self.measure not in get_args(Measure):
            raise UsageError(
                f"a score measures {' or '.join(get_args(Measure))}, not '{self.measure}'", "'probability'"
            )


@dataclass(frozen=True, eq=False)
class Setting:
    """Pictures with all that is needed to cover and measure them.

    Attributes:
        images: (b, c, h, w).
        filler: (m, b, c, h, w), what stands in covered patches, in each draw.
        aim: What is explained of each picture.
        measure: What is measured.
        batch_size: How many covered pictures go through the network at a time.
    """

    images: Pictures
    filler: Float[Tensor, "m b c h w"]
    aim: Aim
    measure: Measured
    batch_size: int

    @property
    def draws(self) -> int:
        """How many fillers there are: 1 for a fill in which nothing is drawn."""
        return self.filler.shape[0]

    def select(self, pictures: slice) -> "Setting":
        """The same for some of the pictures."""
        aim = self.aim.select(pictures)
        return Setting(self.images[pictures], self.filler[:, pictures], aim, self.measure, self.batch_size)

    def read(self, logits: Float[Tensor, "n v"], pictures: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
        """The number that is measured, of logits of the pictures with these indices."""
        aim, logits = self.aim.select(pictures), wide(logits)
        if self.measure == "logit":
            return aim.of(logits)
        if self.measure == "top-1":
            return (logits.argmax(dim=1) == aim.target).to(logits)
        if aim.rather_than is not None:
            return aim.of(logits).sigmoid()
        return logits.softmax(dim=1).gather(1, aim.target[:, None])[:, 0]


def opened(
    network: nn.Module, images: Pictures, grid: Size, target: Target, covering: Covering, measure: Measured
) -> Setting:
    """Check what a score is given, choose the target and make the fillers.

    Args:
        network: In eval mode.
        images: (b, c, h, w).
        grid: (rows, columns) of the maps.
        target: What is explained; `None` for the top class of each picture.
        covering: How patches are covered.
        measure: What is measured.

    Raises:
        UsageError: If the network is in training mode, if the grid does not divide the pictures, if the target does
            not fit, or if a function of the logits was to be measured as a probability.
    """
    check_eval(network, "a score")
    height, width = images.shape[2:]
    if height % grid[0] or width % grid[1]:
        raise UsageError(
            f"maps of {grid[0]}x{grid[1]} do not divide pictures of {height}x{width} pixels",
            "heat.values of the same pictures",
        )
    aim = choose_target(logits_in_chunks(network, images[None], covering.batch_size)[0], target)
    if aim.function is not None and measure != "logit":
        raise UsageError("a function of the logits has no probability", "measure='logit'")
    patch = (height // grid[0], width // grid[1])
    filler = covering.fill.make(images, patch, covering.draws, covering.seed)
    return Setting(images, filler, aim, measure, covering.batch_size)


def ranks_of(
    values: Float[Tensor, "b rows columns"], draws: int, seed: int, keys: Sequence[int]
) -> Int[Tensor, "m b rows columns"]:
    """The place of each patch when patches are put in order, 0 for the largest value.

    Patches of equal value come in random order, another for each draw and each picture, so that a constant map is a
    random one. (One order for all pictures would not average out over them: on the digits lab, a constant map was then
    off by up to 0.2, where random maps are at 0 and the truth at 1, at 10 draws and any number of pictures.)

    Args:
        values: The maps.
        draws: How many orders for each.
        seed: Decides the orders, with the keys.
        keys: A number for each picture, see `keys_of`: it has the same order in every batch.
    """
    flat = values.flatten(1)
    shape = (draws, flat.shape[1])
    random = torch.stack([torch.rand(shape, generator=stream(seed, "order", key), device="cpu") for key in keys], dim=1)
    shuffles = random.argsort(dim=2).to(flat.device)  # m b p
    mixed = flat.expand(draws, -1, -1).gather(2, shuffles)
    order = shuffles.gather(2, mixed.sort(dim=2, descending=True, stable=True).indices)
    places = torch.arange(flat.shape[1], dtype=torch.int32, device=flat.device).expand_as(order)
    ranks = torch.empty_like(places, memory_format=torch.contiguous_format).scatter_(2, order, places)
    return ranks.unflatten(2, values.shape[1:])


@torch.no_grad()
def measured(
    network: nn.Module, setting: Setting, ranks: Int[Tensor, "m b rows columns"], spans: Sequence[tuple[int, int]]
) -> Float[Tensor, "m b s"]:
    """What is measured of each picture with each span of ranks covered, in each draw; a few covered pictures at a time.

    Args:
        network: In eval mode.
        setting: The pictures, the fillers (as many draws as `ranks`, or one for all) and what is measured.
        ranks: The place of each patch in the order, see `ranks_of`; a grid of pixels covers single pixels.
        spans: [first, last) ranks that are covered.
    """
    draws, pictures, rows, columns = ranks.shape
    images, filler = setting.images, setting.filler
    patch = (images.shape[2] // rows, images.shape[3] // columns)
    low, high = torch.tensor(spans, device=ranks.device).T[..., None, None]  # s 1 1 each
    numbers = []
    for chunk in torch.arange(draws * pictures * len(spans), device=ranks.device).split(setting.batch_size):
        draw, picture, span = chunk // (pictures * len(spans)), chunk // len(spans) % pictures, chunk % len(spans)
        rank = ranks[draw, picture]
        covered = (rank >= low[span]) & (rank < high[span])
        stands = filler[draw % setting.draws, picture][None]
        made = composite(images[picture], stands, covered, patch)[0]
        numbers.append(setting.read(logits_of(network, made), picture))
    return torch.cat(numbers).view(draws, pictures, len(spans))


def finite_maps(values: Float[Tensor, "b rows columns"]) -> Bool[Tensor, "b"]:
    """Which maps are finite; the others have no order."""
    return values.flatten(1).isfinite().all(dim=1)
