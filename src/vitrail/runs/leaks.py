"""What a result says of images that hang together with what was trained on, and of images that belong together.

An image is left out of the first figure where it was trained on, or another of its group, or a near copy: see
`vitrail.runs.known`. Beside it stand the figure of those images, and that of all: what the leak is worth.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from vitrail.data.columns import ALL
from vitrail.data.loader import OF_GROUP, Contents
from vitrail.errors import counted
from vitrail.statistics import Z95, wilson_interval
from vitrail.tasks import Result
from vitrail.tasks.task import without_interval
from vitrail.text import percent

FEWEST = 10  # groups from which an interval is made; images from which it is said what a leak is worth
TOO_FEW = "too few to say what the leak is worth"
BY_GROUP = "by_group"  # in the details of a result

WORDS = {
    "content": ("have the content of images that were trained on", "the same content"),
    "group": ("are of groups that were trained on", "the same group"),
    "near": ("are near copies (saved again, resized or mirrored) of images that were trained on", "a near copy"),
}
"""Of each tie: that images have it alone, and its name."""
NOT_TOLD_APART = "Near copies of training images were not looked for: here unrelated images look as much alike."


def _of_group(result: Result) -> dict[str, Any]:
    """What `by_groups` has added to its details."""
    return {name: value for name, value in result.details.items() if name == BY_GROUP}


def set_apart(
    others: Result | None, learnt: Result | None, both: Result | None, ties: Mapping[str, int | None], split: str
) -> Result:
    """The result of images without a tie to what was trained on, if there are any, with what to know of the rest.

    Args:
        others: Of images without; None where there are none.
        learnt: Of images with one; None where there are none, but one of both is there.
        both: Of all images; None where one of both is missing.
        ties: How many have each of `TIES`; None where that was not looked for.
        split: Its name.
    """
    result = others or learnt
    assert result is not None
    metric, count = result.metric, 0 if learnt is None else learnt.count
    whole = sum(each.count for each in (others, learnt) if each)
    facts: dict[str, Any] = {"images": count, "of": whole, metric.key: None if learnt is None else learnt.value}
    facts |= {"ties": dict(ties)}
    if both is not None:
        facts["all"] = {metric.key: both.value, "interval": both.details.get("interval"), **_of_group(both)}
    result = replace(result, details={**result.details, "trained_on": facts})
    if ties["near"] is None:
        result = replace(result, about=(result.about[0], f"{result.about[1]} {NOT_TOLD_APART}".strip()))
    if learnt is None:
        return result
    there = [(many, WORDS[name]) for name, many in ties.items() if many]
    have = f"of {whole:,} {'' if split == ALL else f'{split} '}images {there[0][1][0]}"
    if len(there) > 1:
        have = f"{have.partition(' images ')[0]} images hang together with images that were trained on"
        have += f" ({', '.join(f'{words[1]} {many:,}' for many, words in there)})"
    if both is None:
        notes = [f"All {have[3:]}: the figure says nothing about other images."]
        which = "which were trained on" + (", or hang together with these" if ties["content"] != whole else "")
        result = without_interval(replace(result, sentence=f"{result.sentence} ({which})"))
    else:
        assert others is not None
        if others.count < FEWEST:
            sentence = f"{result.sentence} (without the {count:,} that hang together with training images: {TOO_FEW})"
            result = replace(result, sentence=sentence)
        value = f"{metric.label} {metric.shown(learnt.value)}"
        notes = [f"{count:,} {have}: the figure is of the other {others.count:,}.", f"On these {count:,}: {value}."]
        notes.append(_worth(both, others))
    about = (result.about[0], " ".join([result.about[1], *notes]).strip())
    return replace(result, about=about, notes=(*result.notes, *notes))


def _worth(both: Result, others: Result) -> str:
    """A sentence on the figure of all images, and what the leak is worth."""
    metric, found = both.metric, f"Of all {both.count:,} the {both.metric.label} is {both.metric.shown(both.value)}"
    if both.interval is not None:
        found += f" (95 % interval {_ends(both.interval)})"
    if not metric.fraction:
        return f"{found}."
    if others.count < FEWEST:
        return f"{found}; the other {others.count:,} are {TOO_FEW}."
    points = 100 * (both.value - others.value)
    return f"{found}: the leak is worth {points:.1f} points." if points > 0 else f"{found}, which is not higher."


# ---- an interval where images belong together


class Clustered(NamedTuple):
    """A 95 % interval of a fraction of images in groups.

    Attributes:
        interval: Both ends.
        groups: How many there are.
        effect: The design effect: as many times fewer images on their own would say as much.
    """

    interval: tuple[float, float]
    groups: int
    effect: float


def clustered_interval(right: Bool[np.ndarray, " n"], groups: Int64[np.ndarray, " n"]) -> Clustered:
    """A 95 % interval of the fraction of images that are right, where those of one group are alike.

    Wilson's interval of as many images as say the same on their own: of n / d, by the design effect d of Rao and Scott,
    "A simple method for the analysis of clustered binary data", Biometrics 48 (1992). Of n images in m groups, of which
    group i has n_i images and x_i that are right, with p = sum x_i / n:

        v = m / (m - 1) * sum (x_i - p n_i)^2 / n^2        d = n v / (p (1 - p)), at least 1

    times (t / z)^2, with t of m - 1 degrees of freedom, for few groups: Korn and Graubard, "Confidence intervals for
    proportions with small expected number of positive counts", Survey Methodology 24 (1998); t by Abramowitz and
    Stegun 26.7.5. Where all are right or all wrong, every group counts as one image.

    Args:
        right: Of each image.
        groups: The number of its group, any.

    Returns:
        The interval, which is (0, 1) of a single group.
    """
    count, (_, of) = len(right), np.unique(groups, return_inverse=True)
    sizes = np.bincount(of)
    many, fraction = len(sizes), right.mean()
    if many < 2:
        return Clustered((0.0, 1.0), many, float(count))
    rests = np.bincount(of, right) - fraction * sizes
    variance, free = many / (many - 1) * (rests**2).sum() / count**2, many - 1
    effect = count * variance / (fraction * (1 - fraction)) if 0 < fraction < 1 else count / many
    student = 1 + (Z95**2 + 1) / (4 * free) + (5 * Z95**4 + 16 * Z95**2 + 3) / (96 * free**2)  # t / z
    effect = float(max(1.0, effect) * student**2)
    return Clustered(wilson_interval(float(right.sum()) / effect, count / effect), many, effect)


def by_groups(result: Result, contents: Contents) -> Result:
    """The result with an interval by group, where images have groups and the figure is a fraction that are right.

    Args:
        result: Of some images.
        contents: (n, 64) by what these are known, in the order of `Result.errors`.
    """
    groups, count, right = contents[:, OF_GROUP], len(result.errors), result.errors == 0
    known = groups.any(axis=1)
    if result.interval is None or count != result.count or count != len(groups) or not known.any():
        return result
    if not math.isclose(result.value, right.mean()):  # another figure, as the mean error of numbers
        return result
    numbers = np.unique(groups, axis=0, return_inverse=True)[1].ravel()
    numbers[~known] = numbers.max() + 1 + np.arange((~known).sum())  # each alone
    found = clustered_interval(right, numbers)
    facts: dict[str, Any] = {"groups": found.groups, "interval": None, "design_effect": None}
    if found.groups >= FEWEST:
        facts |= {"interval": list(found.interval), "design_effect": found.effect}
        words = f"by their {found.groups:,} groups {_ends(found.interval)}"
    else:
        words = f"{counted(found.groups, 'group')}, too few for one by group"
    sentence = re.sub(r"(\(95 % interval [^)]*)\)", rf"\1; {words})", result.sentence)
    about = f"{result.about[1]} Images of a group are alike; the interval: {words}.".strip()
    details = {**result.details, BY_GROUP: facts}
    return replace(result, sentence=sentence, about=(result.about[0], about), details=details)


def _ends(interval: tuple[float, float]) -> str:
    """Both ends, for people."""
    return " to ".join(percent(end, 2) for end in interval)
