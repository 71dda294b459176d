"""Which parts decide where they should not: each part of the catalogue is moved between a class and the others.

For an image x of the class, an image o of another and t of another again, with a part A of the catalogue and an area B
of the same shape elsewhere, in log-odds of the class (nats):

    put on     odds(o with A of x) - odds(o with A of t)      what the class adds there, the seam being the same
    taken out  odds(x) - odds(x with A of o)
    effect     (put on + taken out) at A, less the same at B

A shortcut is looked for on one half of the images and tested on the other (`sampling`), so that what the first half
proposes is a hypothesis that the second has not seen. There the exact sign test asks whether more than half of the
images have an effect above zero; Holm's method holds the chance of any false name at 5 % over all that were tested. One
is named from a mean effect of 1 nat on: a weak network moves a little by everything. Of an area that are both moves, so
that each takes even odds to 62 %. A property of the whole image has no elsewhere: its effect is what was put on alone,
which takes them to 73 %.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.audit.edits import Edit
from vitrail.audit.sampling import Trio, trio_of
from vitrail.explain.reporting.plan import patch_of
from vitrail.explain.scores.perturb import at_a_time, compute_logits, seed_of
from vitrail.jobs.parts import Compute, IdRange
from vitrail.jobs.precision import Opening
from vitrail.model import Model
from vitrail.nn import evaluating
from vitrail.text import ShortRepr, percent

LEAST = 1.0  # nats, from which mean effect on a part is named
PROPOSED = 0.5  # nats, from which on the first half proposes one
MOST = 3  # proposals of a class
LEVEL = 0.05  # of Holm's method
POWER = 0.8  # with which a shortcut is named, where it is said how small a one would be missed
SHOWN = 10  # images that prove a shortcut
SAME = 0.8  # of the strongest effect, from which on a smaller area that overlaps is the better name


class Swap(NamedTuple):
    """What moving one part did to one trio, in nats; `kept` is whether the image is still taken for its class.

    Attributes:
        on: What the part adds to the other image.
        on_elsewhere: The same of an area elsewhere; 0 of a property of the whole image.
        out: What the image loses without the part.
        out_elsewhere: The same elsewhere.
        kept: Whether the class is still predicted without the part.
        kept_elsewhere: Without an area elsewhere.
    """

    on: float
    on_elsewhere: float
    out: float
    out_elsewhere: float
    kept: bool
    kept_elsewhere: bool

    @property
    def effect(self) -> float:
        """By how much moving the part moves the odds, beyond an area of its shape elsewhere."""
        return self.on - self.on_elsewhere + self.out - self.out_elsewhere


# ---- the job


def swap_lines(
    model: Model,
    edits: Sequence[Edit],
    trios: Sequence[Trio],
    names: Sequence[Sequence[str]],
    ranges: Sequence[IdRange],
) -> Iterator[list[dict[str, Any]]]:
    """A line for each trio of each range: what moving each of its parts did.

    Args:
        model: That is audited.
        edits: The catalogue.
        trios: Of all ranges; the images of a range are those of its trios, one behind the other.
        names: For each trio the parts that are moved.
        ranges: In order.
    """
    by_name = {edit.name: edit for edit in edits}
    for each in ranges:
        lines = []
        for place in range(0, len(each.ids), 3):
            number = (each.first + place) // 3
            opened = [each.images.open(row) for row in each.ids[place : place + 3].tolist()]
            wanted = [by_name[name] for name in names[number]]
            right, swaps = swap_parts(model, opened, trios[number].label, wanted, number)
            found = {edit.name: swap._asdict() for edit, swap in zip(wanted, swaps, strict=True)}
            lines.append({"trio": list(trios[number]), "right": right, "swaps": found})
        yield lines


def swap_parts(
    model: Model, opened: Sequence[Image.Image], label: int, edits: Sequence[Edit], seed: int
) -> tuple[bool, list[Swap]]:
    """Whether an image is taken for its class, and what moving each part of it does.

    Args:
        model: That is audited.
        opened: The image, one of another class, and one of another again.
        label: The class of the first.
        edits: The parts.
        seed: Of the places elsewhere.
    """
    own, other, third = model.tensor(list(opened)).split(1)
    patch, made = patch_of(model), [own, other]
    generator = torch.Generator().manual_seed(seed_of(seed, "elsewhere"))
    for edit in edits:
        for moved in moves_of(edit, own, patch, generator):
            made += [edit.mix(other, own, moved), edit.mix(other, third, moved), edit.mix(own, other, moved)]
    images = torch.cat(made)
    with evaluating(model.network):
        outputs = compute_logits(model.network, len(images), images.__getitem__, at_a_time(images))
    odds = log_odds(model, outputs, label).tolist()
    right = says_class(model, outputs, label)
    swaps, at = list[Swap](), 2
    for edit in edits:
        here = odds[at] - odds[at + 1], odds[0] - odds[at + 2], right[at + 2]
        at, there = at + 3, (0.0, 0.0, right[0])
        if edit.area is not None:
            there = odds[at] - odds[at + 1], odds[0] - odds[at + 2], right[at + 2]
            at += 3
        else:
            here = here[0], 0.0, here[2]
        swaps.append(Swap(here[0], there[0], here[1], there[1], here[2], there[2]))
    return right[0], swaps


def moves_of(edit: Edit, images: Tensor, patch: tuple[int, int], generator: torch.Generator) -> list[tuple[int, int]]:
    """Where a part is, and of an area also where one of its shape lies elsewhere."""
    size = (images.shape[2], images.shape[3])
    return [(0, 0)] if edit.area is None else [(0, 0), edit.elsewhere(size, patch, generator)]


def says_class(model: Model, outputs: Float[Tensor, "b v"], label: int) -> list[bool]:
    """Whether each answer is this class, or has this label."""
    if model.output.limits is None:
        return (model.output.error(outputs.cpu(), model.output.targets(np.full(len(outputs), label))) == 0).tolist()
    return [label in labels for labels in model.output.predicted(outputs, outputs.shape[1])]


def log_odds(model: Model, outputs: Float[Tensor, "b v"], label: int) -> Float[Tensor, " b"]:
    """Of a class among all, or of one of several labels, up to a constant that is the same for all, in nats."""
    chosen = model.output.choose(outputs, label)
    return chosen.effect(outputs, outputs[:1])


def swaps_for_worker(
    opening: Opening, edits: Sequence[Edit], trios: Sequence[Trio], names: Sequence[Sequence[str]]
) -> Compute:
    """What a worker does, with the model that it loads."""
    return partial(swap_lines, opening.load(), edits, trios, names)


# ---- what was found


class Proof(NamedTuple):
    """Two images that show a shortcut: rows of one of the class and of another, and what moving the part did, in nats.

    Attributes:
        own: The row of the image of the class.
        other: That of the other.
        on: What the part adds to the other, beyond the same part of a third image.
        out: What the image loses without it; of a property of the whole image nothing.
    """

    own: int
    other: int
    on: float
    out: float


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
        share_elsewhere: And so many not without an area elsewhere.
        recall: Of the class on these images, as they are.
        without: Without the part.
        elsewhere: Without an area elsewhere.
        named: Whether it is a shortcut.
        also: Other names of the same place that were named as well.
        against: Classes from which the same place takes away, as far as these trios show.
        proofs: Images that show it, the strongest first.
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
    share_elsewhere: float
    recall: float
    without: float
    elsewhere: float
    named: bool
    also: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()
    moves: int = 2
    patch: str = ""
    patch_effect: float = 0.0

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
            {"file": name(one.own), "other": name(one.other), "put_on": one.on, "taken_out": one.out}
            for one in self.proofs
        ]
        return {**asdict(self), "also": list(self.also), "against": list(self.against), "proofs": proofs}


def propose(lines: Sequence[Mapping[str, Any]], edits: Sequence[Edit]) -> dict[int, dict[str, float]]:
    """Of each class the parts that the first half proposes, with their mean effects, the largest first."""
    found = dict[int, dict[str, float]]()
    for label, own in lines_by_class(lines).items():
        effects = {edit.name: mean_effect(own, edit.name) for edit in edits if not edit.expected}
        best = sorted(effects, key=lambda name: -effects[name])[:MOST]
        found[label] = {name: effects[name] for name in best if effects[name] >= PROPOSED}
    return found


def lines_by_class(lines: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The lines of each class."""
    found = dict[int, list[Mapping[str, Any]]]()
    for line in lines:
        found.setdefault(trio_of(line["trio"]).label, []).append(line)
    return found


def mean_effect(lines: Sequence[Mapping[str, Any]], part: str) -> float:
    """The mean effect of a part, in nats."""
    return float(np.mean([Swap(**line["swaps"][part]).effect for line in lines]))


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
            tuple((trio_of(line["trio"]), Swap(**line["swaps"][part]), line["right"]) for line in own[label]),
        )
        for label, parts in proposed.items()
        for part, first in parts.items()
        if label in own
    ]
    adjusted = holm([one.p for one in tests])
    found = [one.described(name, by_name, p) for one, p in zip(tests, adjusted, strict=True)]
    pairs = [(one, test) for one, test in zip(found, tests, strict=True) if one.named]
    pairs.sort(key=lambda pair: (by_name[pair[0].part].area is None, -pair[0].effect))
    named = _one_name_a_place(pairs, by_name, size, len(tests))
    places = {(one.label, one.part) for one in named}
    return named + [replace(one, named=False) for one in found if (one.label, one.part) not in places]


class Tested(NamedTuple):
    """A part that was proposed for a class, and what moving it did on the second half: (trio, swap, recognised)."""

    label: int
    part: str
    first: float
    rows: tuple[tuple[Trio, Swap, bool], ...]

    @property
    def effects(self) -> list[float]:
        """Of each image, in nats."""
        return [swap.effect for _, swap, _ in self.rows]

    @property
    def p(self) -> float:
        """Of the exact sign test."""
        return sign_test(self.effects)

    def without(self, labels: set[int]) -> "Tested":
        """The same on the trios with no image of these classes."""
        return self._replace(rows=tuple(row for row in self.rows if labels.isdisjoint(row[0].others)))

    def described(self, name: Callable[[int], str], edits: Mapping[str, Edit], adjusted: float) -> Shortcut:
        """As it is reported; named if it is significant over all tests, and large enough."""
        effects, right = self.effects, [before for *_, before in self.rows]
        kept, elsewhere = zip(*((swap.kept, swap.kept_elsewhere) for _, swap, _ in self.rows), strict=True)
        order = np.argsort(effects)[::-1][:SHOWN].tolist()
        effect, count = float(np.mean(effects)), max(1, sum(right))
        return Shortcut(
            label=name(self.label),
            part=self.part,
            words=edits[self.part].words,
            effect=effect,
            found=self.first,
            p=self.p,
            adjusted=adjusted,
            images=len(effects),
            share=sum(a and not b for a, b in zip(right, kept, strict=True)) / count,
            share_elsewhere=sum(a and not b for a, b in zip(right, elsewhere, strict=True)) / count,
            recall=float(np.mean(right)),
            without=float(np.mean(kept)),
            elsewhere=float(np.mean(elsewhere)),
            named=adjusted <= LEVEL and effect >= LEAST,
            moves=1 + (edits[self.part].area is not None),
            proofs=tuple(
                Proof(trio.own, trio.other, swap.on, swap.out) for trio, swap, _ in (self.rows[at] for at in order)
            ),
        )


def sign_test(effects: Sequence[float]) -> float:
    """p of the exact one-sided sign test: that so many effects are above zero where either sign is as likely."""
    above, below = sum(value > 0 for value in effects), sum(value < 0 for value in effects)
    count = above + below
    return sum(math.comb(count, k) for k in range(above, count + 1)) / 2**count if count else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """Values of p adjusted for being so many (Holm, 1979): below a limit with at most that chance of any false one."""
    order, found, worst = np.argsort(values, kind="stable").tolist(), [1.0] * len(values), 0.0
    for place, number in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[number]))
        found[number] = worst
    return found


def least_share(images: int, tests: int) -> float:
    """The least part of a class that a shortcut decides to be named in four of five audits; above 1 where none is.

    The images that it does not decide are taken to fall on either side of zero alike.

    Args:
        images: Of the class, in the second half.
        tests: Over which Holm's method counts.
    """

    def beyond(k: int, chance: float) -> float:
        return sum(math.comb(images, j) * chance**j * (1 - chance) ** (images - j) for j in range(k, images + 1))

    needed = next((k for k in range(images + 1) if beyond(k, 0.5) <= LEVEL / tests), images + 1)
    return next((share / 100 for share in range(101) if beyond(needed, (1 + share / 100) / 2) >= POWER), 1.01)


def _one_name_a_place(
    pairs: Sequence[tuple[Shortcut, Tested]], edits: Mapping[str, Edit], size: tuple[int, int], tests: int
) -> list[Shortcut]:
    """One name for each place of a class, and none for a class from which the mark of another only takes away.

    Of areas that overlap it is the smallest whose effect is nearly that of the strongest. A class is not named for a
    place that was named for another if its effect is gone on trios without images of that one.

    Args:
        pairs: What is significant, areas before properties of the whole image, since a mark has edges and colours and
            where it lies says more; the strongest first.
        edits: By name.
        size: (height, width) of images.
        tests: How many there were.
    """

    def area(one: Shortcut) -> Tensor:  # all of it for a property of the whole image
        where = edits[one.part].area
        return torch.ones(size, dtype=torch.bool) if where is None else where(*size)

    def overlap(one: Shortcut, other: Shortcut) -> bool:
        if (edits[one.part].area is None) != (edits[other.part].area is None):
            return False
        own, others = area(one), area(other)
        return one.part == other.part or 2 * int((own & others).sum()) >= min(int(own.sum()), int(others.sum()))

    named, owners, left = list[Shortcut](), list[tuple[Shortcut, int]](), list(pairs)
    while left:
        first, test = left[0]
        alike = [one for one, _ in left if one.label == first.label and (one is first or overlap(one, first))]
        left = [pair for pair in left if pair[0] not in alike]
        before = {label for one, label in owners if overlap(one, first)}
        apart = test.without(before)
        if before and (len(apart.rows) == 0 or apart.p * tests > LEVEL or np.mean(apart.effects) < LEAST):
            named = [replace(one, against=(*one.against, first.label)) if overlap(one, first) else one for one in named]
            continue
        near = [one for one in alike if one.effect >= SAME * first.effect]
        best = min(near, key=lambda one: int(area(one).sum()))
        alike += [one for one, _ in left if one.label == best.label and overlap(one, best)]  # as the edges of a corner
        left = [pair for pair in left if pair[0] not in alike]
        named.append(replace(best, also=tuple(one.words for one in alike if one is not best)))
        owners.append((best, test.label))
    return named
