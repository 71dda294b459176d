"""Places in an image: which parts of the catalogue lie in one, what the best name of it is, and which are proposed.

A mark in a corner lies in the rim and in two edges as well. So that another mark is tested, too, places are proposed,
and not the parts with the largest effects.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vitrail.audit.edits import Edit
from vitrail.audit.swaps import lines_by_class, mean_effect

PROPOSED = 0.5  # nats a move, from which on the first half proposes one
MOST = 3  # places of a class that are tested
SAME = 0.5  # of the strongest effect, from which on a smaller area that overlaps is the better name


class Overlap:
    """Which parts of the catalogue lie in one place, in images of one size.

    Args:
        edits: The catalogue, by name.
        size: (height, width) of images.
    """

    def __init__(self, edits: Mapping[str, Edit], size: tuple[int, int]) -> None:
        everywhere = torch.ones(size, dtype=torch.bool)
        self.areas = {name: everywhere if edit.area is None else edit.area(*size) for name, edit in edits.items()}
        self.moves = {name: edit.moves for name, edit in edits.items()}

    def pixels(self, part: str) -> int:
        """Of its area; all of them for a property of the whole image."""
        return int(self.areas[part].sum())

    def __call__(self, part: str, other: str) -> bool:
        """Whether at least half of the smaller lies in the other; properties lie together, and in no area."""
        if self.moves[part] != self.moves[other]:
            return False
        both = int((self.areas[part] & self.areas[other]).sum())
        return part == other or 2 * both >= min(self.pixels(part), self.pixels(other))

    def place(self, effects: Mapping[str, float]) -> tuple[str, list[str]]:
        """The best name of the place of the first part, and all parts that lie there.

        Best is the smallest area with half of the effect that meets all others with so much, as a corner meets both
        edges and the rim; where two corners have it, it is what holds both.

        Args:
            effects: Of parts, in nats; the first has the largest of its place.
        """
        strongest = next(iter(effects))
        enough = [part for part in effects if self(part, strongest) and effects[part] >= SAME * effects[strongest]]
        best = min((one for one in enough if all(self(one, other) for other in enough)), key=self.pixels)
        return best, [part for part in effects if part == strongest or self(part, best)]


def seen_places(
    lines: Sequence[Mapping[str, Any]], edits: Sequence[Edit], size: tuple[int, int]
) -> dict[int, list[dict[str, float]]]:
    """Of each class the places where the first half sees something, the strongest first: parts with mean effects.

    Of a place these are its strongest part, the strongest smaller one in it, and its best name: of a mark in a corner
    the rim, an edge and the corner.

    Args:
        lines: Of the first half.
        edits: The catalogue.
        size: (height, width) of images.
    """
    found, overlap = dict[int, list[dict[str, float]]](), Overlap({edit.name: edit for edit in edits}, size)
    least = {edit.name: PROPOSED * edit.moves for edit in edits}
    for label, own in lines_by_class(lines).items():
        effects = {edit.name: mean_effect(own, edit.name) for edit in edits if not edit.expected}
        largest_first = sorted(effects.items(), key=lambda pair: -pair[1])
        left = {part: effect for part, effect in largest_first if effect >= least[part]}
        places = found[label] = []
        while left:
            strongest, (best, alike) = next(iter(left)), overlap.place(left)
            smaller = [
                part for part in left if overlap(part, strongest) and overlap.pixels(part) < overlap.pixels(strongest)
            ]
            places.append({part: left[part] for part in (strongest, *smaller[:1], best)})
            left = {part: effect for part, effect in left.items() if part not in alike}
    return found


def propose(places: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[int, dict[str, float]]:
    """Of each class the parts of its strongest places, which the second half tests; no class without any."""
    found = {label: [part for place in own[:MOST] for part in place.items()] for label, own in places.items()}
    return {label: dict(parts) for label, parts in found.items() if parts}
