"""What can be taken out of an image and put onto another: the catalogue in which shortcuts are looked for.

    mixed = edit.mix(receivers, donors)      # (b, c, h, w): receivers with this part of the donors

An edit of an area exchanges the pixels that lie there; around it the two images run into each other over a twentieth of
a side. A sharp tear is a mark by itself: a network that hangs on a frame takes every rim that was torn off for one. An
edit of the whole image exchanges a property: the mean colour, the fine structure, all colour. A row of `EDITS` is all
that an edit needs; one of your own is an `Edit` that is passed to `audit`.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.jobs.own_code import own_code
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

Area = Bool[Tensor, "h w"]
Side = float | int  # a fraction of one, 0 to 1

DEEP = 1 / 7  # of a side: of corners, strips and the rim
SOFT = 1 / 20  # of a side, over which an area runs into what lies around it
CELLS = 28  # across an image without its fine structure
DRAWS = 8  # of a place elsewhere, of which the one that overlaps least is taken


@dataclass(frozen=True)
class Edit:
    """A part of an image that can be exchanged.

    Attributes:
        name: Of the row.
        words: As a sentence has it, such as "the upper left corner".
        area: `area(height, width)`, where it lies; None of a property of the whole image.
        exchange: `exchange(receivers, donors)`, both (b, c, h, w); None of an area.
        expected: Whether the thing itself may well be there, as in the middle: it is measured, and never named as a
            shortcut.
        least: Pixels along a side from which on it is tried: in smaller images fine structure is the shape of things.
    """

    name: str
    words: str
    area: Callable[[int, int], Area] | None = None
    exchange: Callable[[Images, Images], Images] | None = None
    expected: bool = False
    least: int = 0

    @property
    def moves(self) -> int:
        """Of how many moves its effect is: of an area two, putting on and taking out; of a property one."""
        return 1 if self.area is None else 2

    def entry(self, size: Size) -> list[str]:
        """What a job knows it by: its name, whether it is expected, and where it lies in such images, or its code."""
        where = b"" if self.area is None else self.area(*size).numpy().tobytes()
        code = "" if self.exchange is None else own_code([self.exchange])
        return [self.name, str(self.expected), hashlib.blake2b(where, digest_size=8).hexdigest(), code]

    def mix(self, receivers: Images, donors: Images, moved: Size = (0, 0)) -> Images:
        """Receivers with this part of the donors.

        Args:
            receivers: (b, c, h, w), as the network reads them.
            donors: Of the same shape.
            moved: By how many pixels the area is moved; what leaves at one side comes in at the other. What would lie
                in the area itself stays out of it.
        """
        if self.exchange is not None:
            return self.exchange(receivers, donors)
        assert self.area is not None
        area = own = self.area(*receivers.shape[2:])
        if moved != (0, 0):
            area = own.roll(moved, (0, 1)) & ~own
        return torch.lerp(receivers, donors, softened(area).to(receivers))

    def elsewhere(self, size: Size, patch: Size, generator: torch.Generator) -> Size:
        """By how much to move the area, so that as large a one lies where chance puts it, mostly outside of it.

        Args:
            size: (height, width) of images.
            patch: Of those; it is moved by whole patches.
            generator: Of the draw, on the CPU.
        """
        if self.area is None:
            return 0, 0
        area, rows, columns = self.area(*size), size[0] // patch[0], size[1] // patch[1]
        draws = [
            (int(torch.randint(rows, (), generator=generator)), int(torch.randint(columns, (), generator=generator)))
            for _ in range(DRAWS)
        ]
        moves = [(down * patch[0], right * patch[1]) for down, right in draws]
        return min(moves, key=lambda move: int((area & area.roll(move, (0, 1))).sum()))


def softened(area: Area) -> Float[Tensor, "h w"]:
    """1 in an area, falling to 0 around it."""
    found, steps = area[None, None].float(), round(SOFT * min(area.shape))
    for _ in range(steps):
        found = torch.maximum(found, F.max_pool2d(found, 3, 1, 1) - 1 / (steps + 1))
    return found[0, 0]


def box(top: Side, left: Side, bottom: Side, right: Side, outside: bool = False) -> Callable[[int, int], Area]:
    """An area between fractions of the sides, or all that lies outside of it."""

    def area(height: int, width: int) -> Area:
        found = torch.zeros(height, width, dtype=torch.bool)
        found[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
        return ~found if outside else found

    return area


def single_patches(edit: Edit, size: Size, patch: Size) -> dict[str, Edit]:
    """The patches of which at least half lies in an area, each as a part of its own, by its name.

    Args:
        edit: Of an area; of others there are none.
        size: (height, width) of images.
        patch: Of those.
    """
    if edit.area is None:
        return {}
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    held = F.avg_pool2d(edit.area(*size)[None, None].float(), patch)[0, 0] >= 0.5
    found = [
        Edit(
            f"{edit.name}, row {row + 1}, column {column + 1}",
            f"the patch in row {row + 1} and column {column + 1}",
            box(row / rows, column / columns, (row + 1) / rows, (column + 1) / columns),
        )
        for row, column in held.nonzero().tolist()
    ]
    return {one.name: one for one in found}


def exchange_tint(receivers: Images, donors: Images) -> Images:
    """The mean of each channel."""
    return receivers + (donors - receivers).mean(dim=(2, 3), keepdim=True)


def exchange_fine(receivers: Images, donors: Images) -> Images:
    """What an image of 28 cells across has lost: edges, texture, small marks."""
    return coarse(receivers) + donors - coarse(donors)


def exchange_colour(receivers: Images, donors: Images) -> Images:
    """What differs from grey; of images of one channel nothing."""
    return receivers.mean(dim=1, keepdim=True) + donors - donors.mean(dim=1, keepdim=True)


def coarse(images: Images) -> Images:
    """Images without their fine structure, (b, c, h, w)."""
    size = (images.shape[2], images.shape[3])
    small = F.interpolate(images, [min(CELLS, side) for side in size], mode="area")
    return F.interpolate(small, size, mode="bilinear", align_corners=False)


EDITS = (
    Edit("upper-left", "the upper left corner", box(0, 0, DEEP, DEEP)),
    Edit("upper-right", "the upper right corner", box(0, 1 - DEEP, DEEP, 1)),
    Edit("lower-left", "the lower left corner", box(1 - DEEP, 0, 1, DEEP)),
    Edit("lower-right", "the lower right corner", box(1 - DEEP, 1 - DEEP, 1, 1)),
    Edit("top", "the upper edge", box(0, 0, DEEP, 1)),
    Edit("bottom", "the lower edge", box(1 - DEEP, 0, 1, 1)),
    Edit("left", "the left edge", box(0, 0, 1, DEEP)),
    Edit("right", "the right edge", box(0, 1 - DEEP, 1, 1)),
    Edit("rim", "the rim", box(DEEP / 2, DEEP / 2, 1 - DEEP / 2, 1 - DEEP / 2, outside=True)),
    Edit("centre", "the middle", box(0.25, 0.25, 0.75, 0.75), expected=True),
    Edit("fine", "the fine structure", exchange=exchange_fine, least=4 * CELLS),
    Edit("tint", "the mean colour", exchange=exchange_tint, expected=True),
    Edit("colour", "the colours", exchange=exchange_colour, expected=True),
)


def passes_of(edits: Sequence[Edit]) -> int:
    """Passes of the network that trying all takes of one trio: two, and three for each place."""
    return 2 + sum(3 * edit.moves for edit in edits)  # of an area here and elsewhere


def check_edits(edits: Sequence[Edit], size: Size) -> None:
    """Refuse an empty catalogue, two parts of one name, one that says neither or both of where and how, or is nowhere.

    Args:
        edits: The catalogue.
        size: (height, width) of images.

    Raises:
        UsageError: Names it.
    """
    names = [edit.name for edit in edits]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not names or twice is not None:
        problem = "there is no part to try" if not names else f"two parts are called '{twice}'"
        raise UsageError(problem, "edits=vitrail.audit.EDITS, or with parts of your own behind them")
    for edit in edits:
        if (edit.area is None) == (edit.exchange is None):
            raise UsageError(
                f"the part '{edit.name}' needs either area or exchange", "Edit(name, words, area=box(...))"
            )
        if edit.area is not None and not 0 < int(edit.area(*size).sum()) < size[0] * size[1]:
            problem = f"the part '{edit.name}' is none or all of an image of {size[0]} x {size[1]} pixels"
            raise UsageError(problem, "Edit(name, words, area=box(0, 0, 0.2, 0.2)), in fractions of the sides")
