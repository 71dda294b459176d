"""Which parts of an image speak for a class by themselves: proposed by one half of the images, tested on the other.

What the first half proposes is a hypothesis that the second has not seen (`sampling`). There the exact sign test asks
whether more than half of the images have an effect above zero; Holm's method holds the chance of any false name at 5 %
over all that were tested. One is named where the lower end of the 95 % interval of its mean effect is also at least 1
nat a move, on average, which takes even odds to 73 %: things reach into the rim of some images, so that honest networks
move, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from vitrail.audit.edits import Edit
from vitrail.audit.places import Overlap
from vitrail.audit.sampling import Trio, trio_of
from vitrail.audit.swaps import Swap, lines_by_class
from vitrail.statistics import LEVEL, bootstrap_of_ratios, holm, sign_test, wilson_interval
from vitrail.text import ShortRepr, percent

LEAST = 1.0  # nats a move, on average: at the lower end of its interval that of a part that is named
SHOWN = 10  # images that prove a shortcut


class Proof(NamedTuple):
    """Two images that show a shortcut: rows of one of the class and of another, and what moving the part did, in nats.

    Attributes:
        own: The row of the image of the class.
        other: That of the other.
        on: What the part adds to the other, beyond the same part of a third image.
        out: What the image loses without it.
        added: What the other has with it, beyond the other as it is.
    """

    own: int
    other: int
    on: float
    out: float
    added: float


@dataclass(frozen=True, repr=False)
class Shortcut(ShortRepr):
    """A part that was tested on a class.

    Attributes:
        label: The class, by its name.
        part: The name of the edit.
        words: What it is, as a sentence has it.
        effect: The mean effect on the images of the second half, in nats; of an area that of putting on and taking out
            together.
        moves: Of how many moves it is: 2 of an area, 1 of a property of the whole image.
        found: The same on the first half, which proposed it.
        p: Of the exact sign test.
        adjusted: The same by Holm's method.
        images: On so many.
        share: Of the images that are taken for their class, so many are not without the part.
        share_elsewhere: And so many not without an area elsewhere; None of a property of the whole image.
        recall: Of the class on these images, as they are.
        without: Without the part.
        elsewhere: Without an area elsewhere; None of a property of the whole image.
        taken: Of as many images of other classes, so many are taken for the class with the part.
        taken_before: And so many as they are.
        taken_otherwise: And so many with the part of an image of other classes.
        interval: 95 % of the effect, by drawing images again.
        intervals: 95 % (Wilson) of `recall`, `without` and, where there is one, `elsewhere`, in this order.
        named: Whether it is a shortcut.
        also: Other names of the same place that were named as well, with the recall without them.
        against: Classes from which the same place takes away, as far as these trios show.
        proofs: Images that show it each way: with it the odds are higher, without it lower; the strongest first.
        patch: In words the patch of it that does most alone, by the first half; empty where it has no two patches.
        patch_effect: The mean effect of that patch on the second half, in nats.
    """

    label: str
    part: str
    words: str
    effect: float
    found: float
    p: float
    adjusted: float
    images: int
    share: float
    share_elsewhere: float | None
    recall: float
    without: float
    elsewhere: float | None
    taken: float
    taken_before: float
    taken_otherwise: float
    interval: tuple[float, float]
    intervals: tuple[tuple[float, float], ...]
    named: bool
    also: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()
    moves: int = 2
    patch: str = ""
    patch_effect: float = 0.0

    @property
    def same_place(self) -> bool:
        """Whether the tests would have named it, and another name or another class of its place is given."""
        return not self.named and speaks(self.adjusted, self.interval[0], self.moves)

    def count_of(self, share: float) -> int:
        """How many of its images such a share is."""
        return round(share * self.images)

    @property
    def sentence(self) -> str:
        """What it does, in numbers of images; without a full stop."""
        shares, name = (self.taken_before, self.taken, self.recall, self.without), f"“{self.label}”"
        before, taken, recognised, without = map(self.count_of, shares)
        return (
            f"For {name} {self.words} speaks by itself: of {self.images} other images the network takes {before} for "
            f"{name}, and {taken} if they get this part of a {name}; of {self.images} images of {name} it recognises "
            f"{recognised}, and {without} if they get this part of another image"
        )

    @property
    def inside(self) -> str:
        """Where in it most lies, in a sentence; empty where that is not known."""
        if not self.patch:
            return ""
        share = self.patch_effect / self.effect
        some = f"{percent(min(share, 1.0), 0)} of that effect" if share >= 0.5 else "less than half of that effect"
        return f"By itself, {self.patch} has {some}; no other in it has more."

    def to_dict(self, name: Callable[[int], str]) -> dict[str, Any]:
        """Plain values, with the names of files."""
        proofs = [
            {
                "file": name(one.own),
                "other": name(one.other),
                "put_on": one.on,
                "taken_out": one.out,
                "added": one.added,
            }
            for one in self.proofs
        ]
        return {**asdict(self), "also": list(self.also), "against": list(self.against), "proofs": proofs}


def speaks(adjusted: float, low: float, moves: int) -> bool:
    """Whether a part is named: p of its test, with all that were tested, and the lower end of its mean effect."""
    return adjusted <= LEVEL and low >= LEAST * moves


def tested_parts(
    lines: Sequence[Mapping[str, Any]],
    proposed: Mapping[int, Mapping[str, float]],
    edits: Sequence[Edit],
    name: Callable[[int], str],
    size: tuple[int, int],
) -> list[Shortcut]:
    """What was proposed, tested on the second half; the named ones first.

    Args:
        lines: Of the second half.
        proposed: By the first half.
        edits: The catalogue.
        name: Of a class.
        size: (height, width) of images.
    """
    by_name, own = {edit.name: edit for edit in edits}, lines_by_class(lines)
    tests = [
        Tested(
            label,
            part,
            first,
            by_name[part].moves,
            tuple(
                TestedTrio(trio_of(line["trio"]), Swap.of(line["swaps"][part]), line["right"], line["taken"])
                for line in own[label]
            ),
        )
        for label, parts in proposed.items()
        for part, first in parts.items()
        if label in own
    ]
    adjusted = holm([one.p for one in tests])
    found = [one.described(name, by_name, p) for one, p in zip(tests, adjusted, strict=True)]
    pairs = [(one, test) for one, test in zip(found, tests, strict=True) if one.named]
    pairs.sort(key=lambda pair: (-pair[0].moves, -pair[0].effect))  # areas first: where it lies says more
    overlap = Overlap(by_name, size)
    named = [place.shortcut for place in _without_rivals(named_places(pairs, overlap), overlap, len(tests))]
    places = {(one.label, one.part) for one in named}
    return named + [replace(one, named=False) for one in found if (one.label, one.part) not in places]


class TestedTrio(NamedTuple):
    """What moving a part did to a trio; whether its image, and the other one, are taken for the class as they are."""

    trio: Trio
    swap: Swap
    right: bool
    taken: bool


class Tested(NamedTuple):
    """A part that was proposed for a class, by its effect on the first half, and what its moves did on the second."""

    label: int
    part: str
    first: float
    moves: int
    rows: tuple[TestedTrio, ...]

    @property
    def effects(self) -> list[float]:
        """Of each image, in nats."""
        return [row.swap.effect for row in self.rows]

    @property
    def p(self) -> float:
        """Of the exact sign test."""
        return sign_test(self.effects)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the mean effect."""
        low, high = bootstrap_of_ratios(np.array([(1.0, each) for each in self.effects]))[:, 0].tolist()
        return low, high

    def without(self, labels: set[int]) -> "Tested":
        """The same on the trios with no image of these classes."""
        return self._replace(rows=tuple(row for row in self.rows if labels.isdisjoint(row.trio.others)))

    def described(self, name: Callable[[int], str], edits: Mapping[str, Edit], adjusted: float) -> Shortcut:
        """As it is reported; named if it is significant over all tests, and large enough."""
        effects, right, here = self.effects, [row.right for row in self.rows], [row.swap.here for row in self.rows]
        kept = [[move.kept for move in here]]
        if self.moves == 2:
            kept.append([row.swap.elsewhere is not None and row.swap.elsewhere.kept for row in self.rows])
        order = [at for at in np.argsort(effects)[::-1].tolist() if min(here[at].on, here[at].out, here[at].added) > 0]
        interval, count = self.interval, max(1, sum(right))
        shares = [sum(a and not b for a, b in zip(right, each, strict=True)) / count for each in kept]
        recalls = [float(np.mean(each)) for each in (right, *kept)]
        return Shortcut(
            label=name(self.label),
            part=self.part,
            words=edits[self.part].words,
            effect=float(np.mean(effects)),
            found=self.first,
            p=self.p,
            adjusted=adjusted,
            images=len(effects),
            share=shares[0],
            share_elsewhere=shares[1] if len(shares) > 1 else None,
            recall=recalls[0],
            without=recalls[1],
            elsewhere=recalls[2] if len(recalls) > 2 else None,
            taken=float(np.mean([move.taken for move in here])),
            taken_before=float(np.mean([row.taken for row in self.rows])),
            taken_otherwise=float(np.mean([move.otherwise for move in here])),
            named=speaks(adjusted, interval[0], self.moves),
            moves=self.moves,
            interval=interval,
            intervals=tuple(wilson_interval(sum(each), len(each)) for each in (right, *kept)),
            proofs=tuple(
                Proof(row.trio.own, row.trio.other, move.on, move.out, move.added)
                for row, move in ((self.rows[at], here[at]) for at in order[:SHOWN])
            ),
        )


class NamedPlace(NamedTuple):
    """A place that was named for a class.

    Attributes:
        best: Its best name: the smallest area with at least half of the strongest effect, since there the mark lies.
        strongest: The part with the strongest effect.
        test: Of the strongest.
        also: Its other names.
        against: Classes from which it only takes away.
    """

    best: Shortcut
    strongest: Shortcut
    test: Tested
    also: list[Shortcut]
    against: list[str]

    @property
    def shortcut(self) -> Shortcut:
        """As it is reported."""
        also = tuple(f"{one.words} ({percent(one.without, 0)} are recognised without it)" for one in self.also)
        return replace(self.best, also=also, against=tuple(self.against))


def named_places(pairs: Sequence[tuple[Shortcut, Tested]], overlap: Overlap) -> list[NamedPlace]:
    """What is significant, one place of a class behind the other.

    Args:
        pairs: In their order: the first of a place is its strongest.
        overlap: Tells which lie in one place.
    """
    found, left = list[NamedPlace](), list(pairs)
    while left:
        strongest, test = left[0]
        own = {one.part: one for one, _ in left if one.label == strongest.label}
        best, alike = overlap.place({part: one.effect for part, one in own.items()})
        also = [own[part] for part in alike if part != best]
        found.append(NamedPlace(own[best], strongest, test, also, []))
        left = [pair for pair in left if pair[0].label != strongest.label or pair[0].part not in alike]
    return found


def _without_rivals(places: Sequence[NamedPlace], overlap: Overlap, tests: int) -> list[NamedPlace]:
    """No place of a class from which the mark of another only takes away: there its effect is gone on other trios.

    Args:
        places: The strongest first.
        overlap: Tells which lie together.
        tests: How many there were.
    """
    found = list[NamedPlace]()
    for place in places:
        rivals = [one for one in found if overlap(one.best.part, place.strongest.part)]
        apart = place.test.without({one.test.label for one in rivals})
        if not rivals or (apart.rows and speaks(apart.p * tests, apart.interval[0], apart.moves)):
            found.append(place)
        else:
            for one in rivals:
                one.against.append(place.best.label)
    return found
