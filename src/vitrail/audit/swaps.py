"""What moving a part of an image does: each part is moved between a class and the others.

For an image x of the class, an image o of another and t of another again, with a part A of the catalogue and an area B
of the same shape elsewhere, in log-odds of the class (nats):

    put on     odds(o with A of x) - odds(o with A of t)      what the class adds there, the seam being the same
    taken out  odds(x) - odds(x with A of o)
    effect     (put on + taken out) at A, less the same at B

A property of the whole image has no elsewhere: its effect is what was put on alone. Told is also which of these images
are taken for the class.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.audit.edits import Edit
from vitrail.audit.request import AuditRequest
from vitrail.audit.sampling import Trio, trio_of
from vitrail.explain.reporting.plan import patch_of
from vitrail.explain.scores.perturb import at_a_time, compute_logits, stream
from vitrail.io import to_json, writing
from vitrail.jobs.cluster import Cluster, carry_of
from vitrail.jobs.parts import LINES, Compute, IdRange, choices, complete_parts, split_up
from vitrail.jobs.precision import Opening, identity_of
from vitrail.model import Model
from vitrail.nn import evaluating

TRIOS = 8  # of a range
SwapJob = Callable[[AuditRequest, Path, Sequence[Trio], Mapping[int, Iterable[str]]], list[dict[str, Any]]]


class Move(NamedTuple):
    """What moving a part, or an area elsewhere, did to the images of a trio, in nats.

    Attributes:
        on: What it adds to the other image, beyond what the same part of the third adds.
        out: What the image loses without it.
        kept: Whether the image is still taken for its class without it.
        added: What the other image with it has beyond the other image as it is.
        taken: Whether the other image with it is taken for the class.
        otherwise: The same with the part of the third.
    """

    on: float
    out: float
    kept: bool
    added: float
    taken: bool
    otherwise: bool


class Swap(NamedTuple):
    """What moving one part did to one trio, and what moving an area of its shape elsewhere did, where it has one."""

    here: Move
    elsewhere: Move | None

    @staticmethod
    def of(row: Sequence[Any]) -> "Swap":
        """One that was written as JSON."""
        here, elsewhere = row
        return Swap(Move(*here), None if elsewhere is None else Move(*elsewhere))

    @property
    def effect(self) -> float:
        """By how much moving the part moves the odds, beyond an area of its shape elsewhere."""
        if self.elsewhere is None:
            return self.here.on
        return self.here.on + self.here.out - self.elsewhere.on - self.elsewhere.out


# ---- the job


def swap_job(
    asked: AuditRequest,
    out: Path,
    trios: Sequence[Trio],
    parts: Mapping[int, Iterable[str]],
    *,
    cluster: Cluster | None,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """What moving parts did to trios, a line each; as it was found where that is done.

    Args:
        asked: What is audited.
        out: The file of the lines.
        trios: All.
        parts: Which are moved, of each class.
        cluster: Where else to compute.
        progress: Called with images done, and all.
    """
    progress(0, max(1, len(trios)))  # here the next stage begins, whatever is left of it
    if not trios:
        return []
    if not out.exists():
        names = [[*parts[trio.label]] for trio in trios]
        rows = np.array([row for trio in trios for row in trio[:3]], np.int64)
        ranges = split_up([asked.samples.images.select(rows)], 3 * TRIOS)
        model = asked.model
        job = {
            "verb": "audit",
            **identity_of(model),
            "trios": trios,
            "parts": names,
            **choices(TRIOS, model.device, "fp32"),
        }
        here, work = partial(swap_lines, model, asked.edits, trios, names), partial(swaps_for_worker, edits=asked.edits)
        carry = carry_of(cluster, here, partial(work, trios=trios, names=names), "fp32")
        with complete_parts(out, LINES, job, ranges, carry, progress) as found, writing(out) as handle:
            for each in ranges:
                for line in found.read(each.number):
                    handle.write(to_json(line, indent=None).encode())
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


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
            (right, taken), swaps = swap_parts(model, opened, trios[number], wanted)
            found = {edit.name: swap for edit, swap in zip(wanted, swaps, strict=True)}
            lines.append({"trio": list(trios[number]), "right": right, "taken": taken, "swaps": found})
        yield lines


def swap_parts(
    model: Model, opened: Sequence[Image.Image], trio: Trio, edits: Sequence[Edit]
) -> tuple[tuple[bool, bool], list[Swap]]:
    """Whether an image is taken for its class, and the other one for that of the first, and what moving each part does.

    Places elsewhere hang on the trio and the part alone, so that a part's effect is the same whatever else is moved.

    Args:
        model: That is audited.
        opened: The image, one of another class, and one of another again.
        trio: Their rows and the class of the first.
        edits: The parts.
    """
    own, other, third = model.tensor(list(opened)).split(1)
    moves = [(edit, moved) for edit in edits for moved in moves_of(edit, own, patch_of(model), trio)]
    made = [own, other]
    for edit, moved in moves:
        made += [edit.mix(other, own, moved), edit.mix(other, third, moved), edit.mix(own, other, moved)]
    images = torch.cat(made)
    with evaluating(model.network):
        outputs = compute_logits(model.network, len(images), images.__getitem__, at_a_time(images))
    odds, says = log_odds(model, outputs, trio.label).tolist(), says_class(model, outputs, trio.label)
    found = {edit.name: list[Move]() for edit in edits}
    for (edit, _), at in zip(moves, range(2, len(odds), 3), strict=True):
        on, otherwise, without = odds[at : at + 3]
        move = Move(on - otherwise, odds[0] - without, says[at + 2], on - odds[1], says[at], says[at + 1])
        found[edit.name].append(move)
    return (says[0], says[1]), [Swap(here, *(rest or [None])) for here, *rest in found.values()]


def moves_of(edit: Edit, images: Tensor, patch: tuple[int, int], trio: Trio) -> list[tuple[int, int]]:
    """Where a part is, and of an area also where one of its shape lies elsewhere."""
    generator = stream(trio.own, f"elsewhere {edit.name}", trio.label)
    size = (images.shape[2], images.shape[3])
    return [(0, 0)] if edit.area is None else [(0, 0), edit.elsewhere(size, patch, generator)]


def says_class(model: Model, outputs: Float[Tensor, "b v"], label: int) -> list[bool]:
    """Whether each answer is this class, or has this label."""
    if model.output.limits is None:
        return (model.output.error(outputs.cpu(), model.output.targets(np.full(len(outputs), label))) == 0).tolist()
    return [label in labels for labels in model.output.predicted(outputs, outputs.shape[1])]


def log_odds(model: Model, outputs: Float[Tensor, "b v"], label: int) -> Float[Tensor, " b"]:
    """Of a class among all, or of one of several labels, up to a constant that is the same for all, in nats.

    They are of the probabilities that the model states, after its calibration.
    """
    outputs = outputs / model.output.temperature
    chosen = model.output.choose(outputs, label)
    return chosen.effect(outputs, outputs[:1])


def swaps_for_worker(
    opening: Opening, edits: Sequence[Edit], trios: Sequence[Trio], names: Sequence[Sequence[str]]
) -> Compute:
    """What a worker does, with the model that it loads."""
    return partial(swap_lines, opening.load(), edits, trios, names)


# ---- its lines


def lines_by_class(lines: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The lines of each class."""
    found = dict[int, list[Mapping[str, Any]]]()
    for line in lines:
        found.setdefault(trio_of(line["trio"]).label, []).append(line)
    return found


def mean_effect(lines: Sequence[Mapping[str, Any]], part: str) -> float:
    """The mean effect of a part, in nats."""
    return float(np.mean([Swap.of(line["swaps"][part]).effect for line in lines]))


def spread_of(lines: Sequence[Mapping[str, Any]], edits: Sequence[Edit]) -> float:
    """By how much images of a class differ in what a part does, in nats a move: of nine parts of ten less than this.

    Args:
        lines: Of the class.
        edits: The parts.
    """
    effects = [[Swap.of(line["swaps"][edit.name]).effect / edit.moves for line in lines] for edit in edits]
    return float(np.quantile(np.std(effects, axis=1, ddof=min(1, len(lines) - 1)), 0.9))
