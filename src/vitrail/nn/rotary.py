"""Rotary positions: queries and keys are turned by angles that depend on where their patch is.

"RoFormer" (Su et al., 2021), section 3.2.2, in the plane as "Rotary position embedding for vision transformer" (Heo et
al., 2024), section 3.1: numbers come in pairs; a pair turns by (coordinate of the patch) x (frequency of the pair), one
half of the pairs by the row, the other by the column. Nothing is stored, nothing is learnt: angles are made from the
grid once a pass, and every block gets them.

    rotation = network.rotation(grid)                              None where a network has no rotary positions
    tokens = network.run_blocks(tokens, rotation=rotation)

Families differ in four things, which are the fields of `Rotary`. Weights stay as they were published: another layout of
pairs is another field, no permutation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import UsageError, check_fields, check_keys, words_inside
from vitrail.nn.embedding import Size, height_and_width

Turned = Float[Tensor, "b k n e"]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How the angles of rotary positions are made, and which numbers make a pair.

    Attributes:
        coordinates: "centred": (i + 1/2 + offset) / side as a number in [-1, 1], times 2 pi, as DINOv3 ("DINOv3",
            2025, section 3.2); "index": i + offset, as EVA-02, Perception Encoder and RoPE-ViT.
        base: Pair j of the e / 4 of an axis has the frequency base ^ (-4 j / e).
        reference: (rows, columns) of the grid to whose length an index is stretched, as for an image of another size in
            EVA-02; None for no stretching.
        offset: Added to the coordinates, in patches.
        axes: Which axis has the first half of the pairs: "ij" the rows, "xy" the columns.
        layout: The pairs of e numbers: "halves" j and j + e/2, "interleaved" 2 j and 2 j + 1.
        periods: In place of those of the base, e / 4 numbers 1 / frequency, as a file has them in its own precision.
    """

    coordinates: Literal["centred", "index"] = "centred"
    base: float = 100.0
    reference: int | Size | None = None
    offset: float = 0.0
    axes: Literal["ij", "xy"] = "ij"
    layout: Literal["halves", "interleaved"] = "halves"
    periods: tuple | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong kind, a base of 1 or less, a reference of centred coordinates, and no periods."""
        check_fields(self)
        if self.reference is not None:
            object.__setattr__(self, "reference", height_and_width(self.reference))
        if self.base <= 1 or (self.reference is not None and self.coordinates == "centred"):
            problem = f"rotary positions with base {self.base} and reference {self.reference} are not possible"
            raise UsageError(problem, "a base above 1, and a reference with coordinates='index' alone")
        bad = [each for each in self.periods or () if not (isinstance(each, int | float) and 0 < each < math.inf)]
        if bad:
            raise UsageError(f"periods of a rotation must be finite numbers above 0, got {bad[0]}", "periods=None")

    def __str__(self) -> str:
        """The fields as they are typed, without those that are left open or change nothing."""
        unread = "base" if self.periods else ""
        return " ".join(words_inside({name: each for name, each in vars(self).items() if each and name != unread}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Rotary":
        """The inverse of `dataclasses.asdict`, also after a way through JSON; raises UsageError for an unknown key."""
        check_keys(cls, values)
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})  # pyrefly: ignore


class Rotation(NamedTuple):
    """The angles of all tokens of a grid; those in front of the patches are not turned.

    Attributes:
        cos: (n, e), of the angle of each number's pair; 1 in front of the patches.
        sin: (n, e); 0 there.
        interleaved: Whether pairs are neighbours.
    """

    cos: Float[Tensor, "n e"]
    sin: Float[Tensor, "n e"]
    interleaved: bool


Turn = Rotation | None


def turn(vectors: Turned, rotation: Turn) -> Turned:
    """Queries or keys (.., n, e), turned pair by pair; in products of at least float32, and as they are without one."""
    if rotation is None:
        return vectors
    if rotation.interleaved:
        first, second = vectors.unflatten(-1, (-1, 2)).unbind(-1)
        partner = torch.stack([-second, first], dim=-1).flatten(-2)
    else:
        first, second = vectors.chunk(2, dim=-1)
        partner = torch.cat([-second, first], dim=-1)
    return (vectors * rotation.cos + partner * rotation.sin).to(vectors.dtype)


class RotaryPositions(nn.Module):
    """Makes the rotation for a grid; without parameters.

    Args:
        rotary: How.
        head_dim: Numbers per head, e.
        prefix: How many tokens are in front of the patches.

    Raises:
        UsageError: If 4 does not divide the numbers per head, or there are not e / 4 periods.
    """

    def __init__(self, rotary: Rotary, head_dim: int, prefix: int) -> None:
        super().__init__()
        if head_dim % 4:
            problem = f"rotary positions need 4 to divide the numbers per head, got {head_dim}"
            raise UsageError(problem, f"head_dim={max(4, head_dim // 4 * 4)}")
        count = head_dim // 4
        if rotary.periods is not None and len(rotary.periods) != count:
            problem = f"rotary positions of heads of {head_dim} numbers need {count} periods, got {len(rotary.periods)}"
            raise UsageError(problem, f"{count} periods, or None for those of the base")
        self.rotary, self.head_dim, self.prefix = rotary, head_dim, prefix

    def forward(self, grid: Size, like: Tensor) -> Rotation:
        """The rotation for (rows, columns) of patches, on the device of `like` and in at least float32."""
        rotary, kind = self.rotary, torch.promote_types(like.dtype, torch.float32)
        down, across = (self._coordinates(grid, axis, kind, like.device) for axis in (0, 1))
        plane = torch.meshgrid(down, across, indexing="ij")[:: 1 if rotary.axes == "ij" else -1]
        if rotary.periods is None:
            steps = torch.arange(self.head_dim // 4, dtype=kind, device=like.device) / (self.head_dim // 4)
            periods = rotary.base**steps
        else:
            periods = torch.tensor(rotary.periods, dtype=kind, device=like.device)
        angles = (torch.stack(plane, dim=-1).flatten(0, 1)[..., None] / periods).flatten(1)
        angles = angles.tile(2) if rotary.layout == "halves" else angles.repeat_interleave(2, dim=1)
        front = angles.new_zeros(self.prefix, self.head_dim)
        angles = torch.cat([front, angles])
        return Rotation(angles.cos(), angles.sin(), rotary.layout == "interleaved")

    def _coordinates(self, grid: Size, axis: int, kind: torch.dtype, device: torch.device) -> Tensor:
        """Where the rows, or the columns, are."""
        rotary, places = self.rotary, torch.arange(grid[axis], dtype=kind, device=device)
        if rotary.coordinates == "centred":
            return 2 * math.pi * (2 * ((places + 0.5 + rotary.offset) / grid[axis]) - 1)
        places = places + rotary.offset
        return places if rotary.reference is None else places / grid[axis] * rotary.reference[axis]  # pyrefly: ignore


class QueryKeyValue(nn.Linear):
    """The map to queries, keys and values of which keys have no bias: its middle third stays zero and is never read."""

    def forward(self, input: Float[Tensor, "*b d"]) -> Float[Tensor, "*b three_k_e"]:
        """The three, one behind the other."""
        queries, keys, values = self.bias.chunk(3)
        return nn.functional.linear(input, self.weight, torch.cat([queries, torch.zeros_like(keys), values]))
