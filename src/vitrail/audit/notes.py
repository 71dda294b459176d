"""What an audit says of what it could not ask or use, in sentences: places, images, answers and masks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.audit.areas import LEAST_IMAGES, MASK, PROBLEM
from vitrail.audit.places import MOST, seen_places
from vitrail.audit.request import AuditRequest
from vitrail.errors import counted
from vitrail.statistics import LEVEL
from vitrail.text import percent, short_paths

SOME = 3  # reasons that are told
NEARLY_ALL = 0.9  # of an image, from which on a mask says too little of where the thing is


def untested_notes(asked: AuditRequest, tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """The places that the first half of a class proposed and nobody tested, since there were stronger ones."""
    words, name = {edit.name: edit.words for edit in asked.edits}, asked.model.output.name
    return [
        f"Of “{name(label)}” {MOST} places were tested, the strongest on the first half; not tested: "
        f"{', '.join(words[[*place][-1]] for place in places[MOST:])}."
        for label, places in seen_places(tried, asked.edits, asked.model.preprocessing.size).items()
        if len(places) > MOST
    ]


def unread_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many images could not be tested, and why the first."""
    broken = [(line["file"], line["problem"]) for line in lines if "problem" in line]
    unread = [f"{file}: {short_paths(_without_name(why, file), 1)}" for file, why in broken]
    return [f"{counted(len(unread), 'image')} could not be tested ({why})." for why in unread[:1]]


def unclear_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why nothing can be told of some images, but for those that hold no evidence, which is what the rates say."""
    tests = [line["attributions"][0]["trust"] for line in lines if "attributions" in line]
    unclear = [one for one in tests if one["verdict"] == "cannot tell" and not _lacks_evidence(one)]
    reasons = Counter(one["reason"] for one in unclear)
    notes = [f"Of {counted(many, 'image')} nothing can be told: {why}." for why, many in reasons.most_common(SOME)]
    others = sum(many for _, many in reasons.most_common()[SOME:])
    return [*notes, f"Of {counted(others, 'more image')} nothing can be told for other reasons."] if others else notes


def _lacks_evidence(test: Mapping[str, Any]) -> bool:
    """Whether images without evidence reach the answer too often, or nearly reach it."""
    p, effect, least = test["evidence_p"], test["effect"], test["minimum_effect"]
    return p is not None and (p > LEVEL or (effect is not None and least is not None and effect < least))


def areas_notes(asked: AuditRequest, drops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the evidence could not be measured, and why; and how many images have a mask, where not all have."""
    count, images, notes = sum(MASK in each for each in drops), counted(len(drops), "image"), list[str]()
    if problems := [each[PROBLEM] for each in drops if PROBLEM in each]:
        notes.append(f"{counted(len(problems), 'mask')} could not be used ({short_paths(problems[0], 1)}).")
    sizes = [each["sizes"][MASK] for each in drops if MASK in each]
    if sizes and float(np.mean(sizes)) >= NEARLY_ALL:
        fill = f"The masks fill {percent(float(np.mean(sizes)), 0)} of their images"
        notes.append(f"{fill}: all that is not black counts as the thing, also what stands for something else.")
    if len(drops) < LEAST_IMAGES:
        notes.append(
            f"The place of the evidence was not measured: {images} with evidence, and {LEAST_IMAGES} are needed."
        )
    if asked.masks is not None and count < min(LEAST_IMAGES, len(drops)):
        some = f"{count} of {images} with evidence have one that can be used, and {LEAST_IMAGES} are needed"
        notes.append(f"What lies in the masks was not measured: {some}.")
    elif asked.masks is not None and count < len(drops):
        notes.append(f"{count} of {images} with evidence have a mask that can be used; the others say nothing of it.")
    return notes


def _without_name(problem: str, file: str) -> str:
    """What is said of a file, without the path of it that stands before."""
    where, _, why = problem.partition(": ")
    return why if Path(where).name == Path(file).name else problem
