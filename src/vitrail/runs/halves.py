"""The halves of a validation split, which is cut in two where a training chooses its network on it.

    select    each epoch is evaluated on it; it selects the best checkpoint, and between probe and tuned network
    report    selects nothing: the final model is evaluated on it, if there is no test split

A figure on samples that chose among many networks is too high, since the luckiest was chosen. The half of a sample is
decided by a hash of its name, so it is the same on every machine and in every order.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from vitrail.data.columns import Labels
from vitrail.data.dataset import VALIDATION, Samples, Split
from vitrail.data.images import Images
from vitrail.errors import Hint, UsageError, counted
from vitrail.tasks import Result

SELECT, REPORT = "select", "report"
HALVES = (SELECT, REPORT)
LEAST = 16  # samples in the smaller half
WHOLE = "whole"  # in data.json, for a validation split that is too small to be cut


@dataclass(frozen=True, eq=False)
class Halves:
    """The two halves of a validation split.

    Attributes:
        select: (n,) the samples that select, in their order.
        report: (m,) the others; all samples in both if it is not cut.
        problem: Why it is not cut; empty if it is.
    """

    select: Int64[np.ndarray, " n"]
    report: Int64[np.ndarray, " m"]
    problem: str = ""

    @property
    def chosen_on(self) -> str:
        """Name of the split that selects."""
        return VALIDATION if self.problem else SELECT

    def to_dict(self) -> Any:
        """What `data.json` stores: the sizes of the halves, or that there are none."""
        return WHOLE if self.problem else {SELECT: len(self.select), REPORT: len(self.report)}

    @property
    def note(self) -> str:
        """A sentence on the cut."""
        if self.problem:
            return (
                f"the validation split is not cut ({self.problem}): all of it chooses the model, which is "
                "reported wherever it also evaluates it"
            )
        return (
            f"validation is cut by a hash of names: {len(self.select)} select the model, and {len(self.report)} "
            "select nothing"
        )


def cut(samples: Samples, column: str | None) -> Halves:
    """Cut samples in two by a hash of their names.

    A class with several samples, all in one half by chance, gives the one with the least hash to the other. Samples of
    one name stay together.

    Args:
        samples: Of the validation split.
        column: Of the task, which may have classes.
    """
    everyone = np.arange(len(samples), dtype=np.int64)
    if isinstance(samples.inputs, Images) and samples.inputs.renewed:
        return Halves(everyone, everyone, "its images are made, and not chosen from")
    names = map(os.fsencode, samples.inputs.names())
    ranks = np.array([hashlib.blake2b(name, digest_size=8, person=b"halves").hexdigest() for name in names])
    second = np.array([int(rank[-1], 16) % 2 == 1 for rank in ranks], dtype=bool)
    if isinstance(labels := samples.column(column), Labels):
        for label in np.unique(labels.values):
            own = np.flatnonzero(labels.values == label)
            if len(set(ranks[own])) > 1 and len(set(second[own])) == 1:
                moved = ranks == min(ranks[own].tolist())  # its namesakes, too
                second[moved] = ~second[moved]
    halves = everyone[~second], everyone[second]
    if (least := min(map(len, halves))) < LEAST:
        return Halves(
            everyone, everyone, f"of {counted(len(samples), 'sample')} a half has {least}, fewer than {LEAST}"
        )
    return Halves(*halves)


def half_of(split: Split, column: str | None, name: str) -> Split:
    """One half of a validation split.

    Raises:
        UsageError: It is too small to be cut.
    """
    halves = cut(split.samples, column)
    if halves.problem:
        raise UsageError(f"{split.name} has no split {name}: {halves.problem}", Hint({"split": "validation"}))
    return replace(split, samples=split.samples.select(getattr(halves, name)), split=name)


def chosen_words(split: str, halves: Any) -> str:
    """A sentence on a figure whose samples chose the model; empty if they did not.

    Args:
        split: Of the figure.
        halves: The cut in `data.json`, empty if nothing was chosen.
    """
    if not halves or split not in (VALIDATION, SELECT):
        return ""
    if halves == WHOLE or split == SELECT:
        return f"The samples of the {split} split chose this model, so the figure is too high."
    share = f"{halves[SELECT]} of {halves[SELECT] + halves[REPORT]}"
    return f"{share} samples of the {split} split chose this model, so the figure is too high; {REPORT} is clean."


def marked(result: Result, halves: Any) -> Result:
    """The result with sentences on samples that chose the model, if they did."""
    words = chosen_words(result.split, halves)
    if not words:
        return result
    about = (result.about[0], f"{result.about[1]} {words}".strip())
    return replace(result, sentence=f"{result.sentence} (on samples that chose the model)", about=about)
