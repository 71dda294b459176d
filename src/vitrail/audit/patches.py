"""Where inside a named area its effect lies: the single patch that does most alone.

As a part it is found on the first half of the images and measured on the second, so that its effect is of images that
did not choose it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitrail.audit.edits import Edit, single_patches
from vitrail.audit.request import AuditRequest
from vitrail.audit.sampling import SearchedImages, Trio
from vitrail.audit.shortcuts import Shortcut
from vitrail.audit.swaps import SwapJob, lines_by_class, mean_effect
from vitrail.explain.reporting.plan import patch_of


class Place(NamedTuple):
    """A class, by its output, and the name of an area that was named for it."""

    label: int
    part: str


def with_patches(
    asked: AuditRequest, searched: SearchedImages, folder: Path, shortcuts: Sequence[Shortcut], job: SwapJob
) -> list[Shortcut]:
    """The same shortcuts, of which the named areas of more than one patch tell which does most alone.

    Args:
        asked: What is audited.
        searched: The images of each half.
        folder: Where the jobs write.
        shortcuts: What was tested.
        job: That moves parts, see `swap_job`.
    """
    model, by_name = asked.model, {edit.name: edit for edit in asked.edits}
    numbers = {model.output.name(label): label for label in searched.asked}
    inside = dict[Place, dict[str, Edit]]()
    for one in shortcuts:
        patches = single_patches(by_name[one.part], model.preprocessing.size, patch_of(model)) if one.named else {}
        if len(patches) > 1:
            inside[Place(numbers[one.label], one.part)] = patches
    first, second = searched.halves
    tried = _effects(asked, inside, first, folder / "first-patches.jsonl", job)
    best = {place: max(effects, key=effects.__getitem__) for place, effects in tried.items()}
    alone = {place: {name: inside[place][name]} for place, name in best.items()}
    measured = _effects(asked, alone, second, folder / "second-patches.jsonl", job)
    found = list[Shortcut]()
    for one in shortcuts:
        place = Place(numbers[one.label], one.part)
        if one.named and place in best:
            words, effect = inside[place][best[place]].words, measured[place][best[place]]
            one = replace(one, patch=words, patch_effect=effect)
        found.append(one)
    return found


def _effects(
    asked: AuditRequest, inside: Mapping[Place, Mapping[str, Edit]], half: Sequence[Trio], file: Path, job: SwapJob
) -> dict[Place, dict[str, float]]:
    """The mean effect of each patch of some areas on images of a half, in nats."""
    names, edits, trios = dict[int, list[str]](), dict[str, Edit](), list[Trio]()
    for place, patches in inside.items():
        names.setdefault(place.label, []).extend(patches)
        edits |= patches
    for label, own in names.items():
        some = [trio for trio in half if trio.label == label]
        trios += some[: max(2, len(some) * len(asked.edits) // len(own))]  # no longer than the catalogue of the class
    lines = lines_by_class(job(asked._replace(edits=tuple(edits.values())), file, trios, names))
    return {
        place: {name: mean_effect(lines[place.label], name) for name in patches} for place, patches in inside.items()
    }
