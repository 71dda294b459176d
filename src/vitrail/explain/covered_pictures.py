"""What becomes of the explained number when squares are covered in a map's order.

The steps cover a 32nd, a 16th, ... up to half of all squares, each step by covers of its own. A map and what it is
compared with go through the same steps and the same covers: what differs between them is the squares alone. The covers
are drawn for each map anew, by the order in which it names squares: who would make a map that does well under known
covers gets other ones with every change of it.
"""

import zlib
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.explain.evidence import explained
from vitrail.explain.readout import wide
from vitrail.explain.scores.fill import Fill, composite, keys_of, logits_in_chunks, seed_of, stream
from vitrail.explain.target import FUNCTION, Aim
from vitrail.explain.without_evidence import at_a_time
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

STEPS = 5  # in which squares are covered, and covers for each map


def steps_of(squares: int, count: int) -> tuple[int, ...]:
    """How many squares each step covers: from a 32nd of them to half, evenly on a logarithmic scale."""
    shares = torch.linspace(0, 1, count, dtype=torch.float64, device="cpu")
    first, last = max(1.0, squares / 32), max(1.0, squares / 2)
    return tuple(int(k) for k in (first * (last / first) ** shares).round().tolist())


@dataclass(frozen=True, eq=False)
class CoveredPictures:
    """Pictures whose squares are covered step by step.

    Attributes:
        network: In eval mode.
        images: (b, c, h, w).
        aim: What is explained of them.
        fill: What covers squares.
        seed: Of covers and of the order among equal values.
        draws: How many steps there are, and how many covers.
    """

    network: ViT
    images: Images
    aim: Aim
    fill: Fill
    seed: int
    draws: int = STEPS

    def select(self, pictures: Int[Tensor, "some"]) -> "CoveredPictures":
        """The same for some of the pictures."""
        return replace(self, images=self.images[pictures], aim=self.aim.select(pictures))

    @property
    def grid(self) -> Size:
        """(rows, columns) of squares."""
        return self.network.grid(self.images)

    @property
    def patch(self) -> Size:
        """(height, width) of a square in pixels."""
        rows, columns = self.grid
        return self.images.shape[2] // rows, self.images.shape[3] // columns

    @property
    def steps(self) -> tuple[int, ...]:
        """How many squares each step covers."""
        return steps_of(self.grid[0] * self.grid[1], self.draws)

    @property
    def few(self) -> int:
        """How many steps cover at most a quarter of the squares: those that are told of in words."""
        return sum(step <= max(1, self.grid[0] * self.grid[1] // 4) for step in self.steps)

    def covers(self, maps: Float[Tensor, "b rows columns"]) -> Float[Tensor, "draws b c h w"]:
        """What stands in covered squares, for each draw: whole pictures to take them from, drawn for these maps."""
        return torch.cat(
            [
                self.fill.make(one[None], self.patch, self.draws, seed_of(self.seed, "covers", key))
                for one, key in zip(self.images, self.keys(maps), strict=True)
            ],
            dim=1,
        )

    def keys(self, maps: Float[Tensor, "b rows columns"]) -> list[int]:
        """A number for each map, made of its picture and of the order in which it names squares."""
        orders, pictures = self._order(maps[None])[0].cpu().numpy(), keys_of(self.images)
        return [zlib.crc32(order.tobytes(), key) for order, key in zip(orders, pictures, strict=True)]

    def paired(
        self, maps: Float[Tensor, "m b rows columns"], covers: Float[Tensor, "draws b c h w"]
    ) -> tuple[Float[Tensor, "steps m b"], Float[Tensor, "steps m b"]]:
        """The number and the target's probability after each step, one of the covers for each step."""
        order, numbers, shares = self._order(maps), [], []
        for step, squares in enumerate(self.steps):
            logits = self._logits(covers[step], self._first(order, squares))
            numbers.append(explained(logits, self.aim))
            shares.append(probability(logits, self.aim))
        return torch.stack(numbers), torch.stack(shares)

    def by_draw(
        self, maps: Float[Tensor, "b rows columns"], covers: Float[Tensor, "draws b c h w"]
    ) -> tuple[Float[Tensor, "draws steps b"], Float[Tensor, "draws steps b"]]:
        """The number and the target's probability after each step, under each of the covers.

        There are as many covers as steps, and `paired` takes step i under cover i: the diagonal of these.
        """
        order = self._order(maps[None])
        masks = torch.cat([self._first(order, squares) for squares in self.steps])  # (steps, b, rows, columns)
        numbers, shares = [], []
        for cover in covers:
            logits = self._logits(cover, masks)
            numbers.append(explained(logits, self.aim))
            shares.append(probability(logits, self.aim))
        return torch.stack(numbers), torch.stack(shares)

    def alike(
        self, maps: Float[Tensor, "m b rows columns"], other: Float[Tensor, "b rows columns"]
    ) -> Bool[Tensor, "m b"]:
        """Which maps cover the very squares that the other covers, at every step."""
        order, others = self._order(maps), self._order(other[None])
        same = [self._first(order, k) == self._first(others, k) for k in self.steps]
        return torch.stack(same).all(dim=0).flatten(2).all(dim=2)

    def _order(self, maps: Float[Tensor, "m b rows columns"]) -> Tensor:
        """(m, b, squares), highest value first; equal values come in an order of the picture's own, at random."""
        flat = maps.flatten(2)
        random = [stream(self.seed, "equals", key) for key in keys_of(self.images)]
        shuffles = torch.stack([torch.randperm(flat.shape[2], device="cpu", generator=one) for one in random])
        mixed = shuffles.to(flat.device).expand_as(flat)
        return mixed.gather(2, flat.gather(2, mixed).argsort(dim=2, descending=True, stable=True))

    def _first(self, order: Tensor, squares: int) -> Bool[Tensor, "m b rows columns"]:
        masks = torch.zeros(order.shape, dtype=torch.bool, device=order.device)
        return masks.scatter_(2, order[..., :squares], True).unflatten(2, self.grid)

    def _logits(
        self, cover: Float[Tensor, "b c h w"], masks: Bool[Tensor, "m b rows columns"]
    ) -> Float[Tensor, "m b v"]:
        """Of the pictures with these squares covered, some at a time."""
        maps, pictures = masks.shape[:2]
        parts = []
        for some in torch.arange(maps * pictures, device=masks.device).split(at_a_time(self.images)):
            picture = some % pictures
            covered = masks.flatten(0, 1)[some]
            made = composite(self.images[picture], cover[None, picture], covered, self.patch)
            parts.append(logits_in_chunks(self.network, made, len(some))[0])
        return wide(torch.cat(parts)).unflatten(0, (maps, pictures))


def probability(logits: Float[Tensor, "*m b v"], aim: Aim) -> Float[Tensor, "*m b"]:
    """Of the aim's class: among all, or among the two of a contrast; nan for a function, and for one logit."""
    if aim.function is not None or (aim.target == FUNCTION).any() or logits.shape[-1] == 1:
        return torch.full(logits.shape[:-1], torch.nan, device=logits.device)
    if aim.rather_than is not None:
        return aim.of(wide(logits)).sigmoid()
    return aim.of(wide(logits).softmax(dim=-1))
