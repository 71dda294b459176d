"""Which images belong together: a recording, a patient, a scene. What the data say, and what may be found in them.

    given     by a column or a pattern of names
    names     several common parts before a counter, each of several images with numbers in a row: `clip03_000123`;
              or some, each with frames in a row that lie on both sides of a split
    folders   a folder level below the classes that holds few images each
    camera    one camera, within seconds
    features  with a model: `vitrail.check.neighbours`

What is found is proposed and never acted on. Of names that merely count (`IMG_0001`, `cat.123`, `000000123`) nothing is
found: a common part without a number of its own is a word, a camera or a class; one that is the class, or of a data
set, is none.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from vitrail.arguments import typed
from vitrail.check.survey import Survey
from vitrail.data.columns import GROUP, RawDataset, split_of
from vitrail.data.layout import Layout
from vitrail.data.pictures import differing_bits, picture_hashes
from vitrail.text import ShortRepr, percent_in_words

IN_A_ROW = 0.6  # of the gaps between the numbers of a group that are as in a row, at least
LARGEST = 1 / 3  # of all images that a folder holds, at most, and
FEW = 100  # images that a middle one does
WITHIN = 5  # seconds from one image of a camera to the next
AT_ONCE = 50  # images of a camera in one second, from which on its clock says nothing
ALIKE = 0.55  # of draws in which two images of a group look more alike than two of different ones, at least
DRAWN = 2000  # pairs
FRAMES = 4  # images that a recording alone among other names has, at least
NEAR = 30  # from one number of such a recording to the next, at most
FORMS = 50  # of names that are looked at, the most frequent
ENOUGH = 100  # pairs from which on looks count against a grouping
BY = {"names": 0.7, "folders": 0.6, "camera": 0.8, "features": 0.9}  # how sure where looks say nothing
SUREST = 0.98

_COUNTED = re.compile(r"(.*?)([ _.-]*)(\d+)[^\d(]*")
_SAVED_AGAIN = r"[^/()]*\d[^/()]*?)(?: ?\((\d+)\)| - Copy[^/]*)?\.\w+$"  # `IMG_1234 (2).jpg` beside `IMG_1234.jpg`
_NUMBER = re.compile(r"(?<![A-Za-z0-9])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{6,}(?![A-Za-z0-9])|\d+")
_OF_DATA = re.compile(  # what ends in a number and is no recording: a part of a data set, a class, a camera's folder
    r"(?:.*[ _.-])?(?:class|cls|label|category|fold|set|part|batch|shard|split|chunk|train\w*|val\w*|test\w*)[ _-]?\d+",
    re.IGNORECASE,
)
_CAMERAS_FOLDER = re.compile(r"(?:^|/)1\d\d[ _-]\d{4}\D*$")


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Grouping(ShortRepr):
    """One way in which n images belong together.

    Attributes:
        kind: column, pattern, names, folders, camera or features.
        members: (n,) the group of each; empty where it is alone.
        sure: From 0 to 1; 1 where the data say it. No probability: it orders what is found.
        reason: Why, in words.
        layout: By which the data are read so; None where no pattern makes it.
    """

    kind: str
    members: tuple[str, ...]
    sure: float
    reason: str
    layout: Layout | None

    @property
    def given(self) -> bool:
        """Whether the data or a person say so."""
        return self.kind not in BY

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The rows of each group of two images or more."""
        return _groups_of(self.members)

    @property
    def images(self) -> int:
        """How many images are in such groups."""
        return sum(map(len, self.groups.values()))


def _groups_of(members: Sequence[str]) -> dict[str, list[int]]:
    rows = defaultdict[str, list[int]](list)
    for row, group in enumerate(members):
        rows[group].append(row)
    return {group: some for group, some in rows.items() if group and len(some) > 1}


def given_groups(raw: RawDataset, survey: Survey, layout: Layout) -> Grouping | None:
    """The groups that a column or a pattern names; None where there are none."""
    if GROUP not in raw.columns():
        return None
    units = [samples.units() for samples in raw.splits.values()]
    places = survey.rows[["split", "index"]].tolist()
    names = [(units[split][index], name) for (split, index), name in zip(places, survey.names, strict=True)]
    members = tuple("" if group == name else group for group, name in names)
    kind = "pattern" if layout.group_pattern else "column"
    return Grouping(kind, members, 1.0, f"the {kind} of the data says so", layout)


def found_groups(survey: Survey, labels: Sequence[str]) -> list[Grouping]:
    """The groups that names, folders and cameras show, the surest first.

    Args:
        survey: Of n images.
        labels: Their classes; empty texts where there are none.
    """
    found = [*_by_names(survey, labels), *_by_folders(survey, labels), *_by_cameras(survey)]
    found += _saved_again(survey, labels)
    kept = [grouping for each in found if (grouping := _by_looks(each, survey, labels)) is not None]
    return sorted(kept, key=lambda each: (-each.sure, -each.images))


# ---- names, and folders


def _by_names(survey: Survey, labels: Sequence[str]) -> list[Grouping]:
    """Of each form of names in which a counter stands behind a part with a number: by that part, if it groups."""
    parts, found = defaultdict[tuple[str, str], list[str]](list), list[Grouping]()
    for name in survey.names:
        match = _COUNTED.fullmatch(name.rpartition("/")[2])
        if match and re.search(r"\d", match[1]) and not _OF_DATA.fullmatch(match[1]):
            numbers, rest = _NUMBER.findall(match[1]), _NUMBER.split(match[1])
            kinds = [r"\d+" if each.isdecimal() else "[0-9a-f]+" for each in numbers] + [""]
            form = "".join(_plain(words) + kind for words, kind in zip(rest, kinds, strict=True))
            parts[form, _plain(match[2])].append(match[1])
    for (part, between), of in sorted(parts.items(), key=lambda each: -len(each[1]))[:FORMS]:
        sizes = Counter(of).values()
        if sum(count for count in sizes if count > 1) <= max(5, len(of) / 2) and max(sizes) < FRAMES:
            continue
        ways = rf"(?:^|/)({part})", rf"([^/]+/{part})", rf"^(.*/{part})"
        if (split := _split_by(survey.names, [rf"{way}{between}(\d+)\D*$" for way in ways])) is None:
            continue
        pattern, members, numbers = split
        groups = _groups_of(members)
        if len(groups) < 2 or sum(map(len, groups.values())) <= max(5, sum(map(bool, members)) / 2):
            groups = {group: rows for group, rows in groups.items() if _is_recording(rows, numbers, survey)}
            members = tuple(group if group in groups else "" for group in members)
            part = "|".join(map(_plain, groups))
            pattern = rf"(?:^|/)({part}){between}(\d+)\D*$"
        steady = _in_a_row(groups, numbers)
        folder = all(_CAMERAS_FOLDER.search(name) for name, group in zip(survey.names, members, strict=True) if group)
        if groups and steady >= IN_A_ROW and not folder and not _is_class(members, labels):
            reason = f"numbers in a row behind a common part, at {percent_in_words(steady)} of the places"
            short = rf"({part}){between}\d+"
            same = all((match and match[1]) == (group or None) for match, group in zip(
                (re.search(short, name) for name in survey.names), members, strict=True))  # fmt: skip
            layout = Layout(group_pattern=short if same else pattern)
            found.append(Grouping("names", members, BY["names"], reason, layout))
    return found


def _saved_again(survey: Survey, labels: Sequence[str]) -> list[Grouping]:
    """An image and those that a computer saved under its name with a number in brackets."""
    split = _split_by(survey.names, [rf"((?:[^/]+/)?{_SAVED_AGAIN}", rf"^((?:.*/)?{_SAVED_AGAIN}"], unique=1.0)
    if split is None or _is_class(split[1], labels):
        return []
    pattern, members, numbers = split
    again = {members[row] for row, number in enumerate(numbers) if number}
    kept = tuple(group if group in again else "" for group in members)
    reason = "a number in brackets behind the name of another image"
    return [Grouping("names", kept, BY["names"], reason, Layout(group_pattern=pattern))] if _groups_of(kept) else []


def _plain(text: str) -> str:
    """A text in a regular expression, as a person would write it."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def _split_by(
    names: Sequence[str], patterns: Sequence[str], unique: float = 0.9
) -> tuple[str, tuple[str, ...], list[str]] | None:
    """The first pattern by which no group has one number twice: the group and the number of each image.

    Else a number begins anew in each class or split, so that the class or split belongs to the group.
    """
    for pattern in patterns:
        matches = [re.search(pattern, name) for name in names]
        members = tuple((match and match[1]) or "" for match in matches)
        numbers = [(match and match[2]) or "" for match in matches]
        pairs = [pair for pair in zip(members, numbers, strict=True) if pair[0]]
        if len({*pairs}) >= unique * len(pairs):
            return pattern, members, numbers
    return None


def _in_a_row(groups: dict[str, list[int]], numbers: Sequence[str]) -> float:
    """The part of the gaps between the numbers of a group that are at most twice the usual one."""
    each = (np.diff(sorted({int(numbers[row]) for row in rows})).tolist() for rows in groups.values())
    gaps = Counter(gap for some in each for gap in some)
    usual = min(gaps, key=lambda gap: (-gaps[gap], gap), default=0)
    return sum(count for gap, count in gaps.items() if gap <= 2 * usual) / max(1, gaps.total())


def _is_recording(rows: Sequence[int], numbers: Sequence[str], survey: Survey) -> bool:
    """Whether a group alone is one: frames near each other, on both sides of a split, that count on or begin with 0."""
    gaps = np.diff(sorted({int(numbers[row]) for row in rows}))
    if len(gaps) < FRAMES - 1 or len(rows) > LARGEST * len(survey) or not np.ptp(survey.rows["split"][rows]):
        return False
    usual, padded = np.median(gaps), any(numbers[row].startswith("0") for row in rows)
    return bool(usual <= (NEAR if padded else 1) and np.mean(gaps <= 2 * usual) >= IN_A_ROW)


def _is_class(members: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether most classes have one group, which holds at least half of their images or is called as they are."""
    of = defaultdict[str, Counter[str]](Counter)
    for group, label in zip(members, labels, strict=True):
        if group:
            of[label][group] += 1
    largest = [max(counts.values()) / counts.total() for counts in of.values()]
    if not any(labels) or not largest or float(np.median(largest)) < 0.9:
        return False
    half = 2 * sum(map(bool, members)) >= sum(label in of for label in labels)
    return half or any(group.rpartition("/")[2] == label for label, counts in of.items() for group in counts)


def _by_folders(survey: Survey, labels: Sequence[str]) -> list[Grouping]:
    """The folders in which images lie at once, where these are many, below the classes, and hold few images each."""
    depth = max(Counter(name.count("/") for name in survey.names).items(), key=lambda each: each[1], default=(0, 0))[0]
    ways = [f"^{'[^/]+/' * (depth - n)}({'/'.join(['[^/]+'] * n)})/([^/]+)$" for n in range(1, depth + 1)]
    if (split := _split_by(survey.names, ways)) is None:
        return []
    pattern, members, files = split
    groups, folders = _groups_of(members), [name.rpartition("/")[0].rpartition("/")[2] for name in survey.names]
    inside = [(folders[row], labels[row], files[row]) for rows in groups.values() for row in rows]
    outer = sum(folder == label or split_of(folder) is not None for folder, label, _ in inside)
    shared = sum(re.match(rf"{re.escape(folder)}[^\W_]", file) is not None for folder, _, file in inside)
    sizes = [*map(len, groups.values())]
    many = len(groups) >= 3 * max(1, len({*labels}))
    if not many or outer or shared > len(inside) / 2 or float(np.median(sizes)) > FEW or _is_class(members, labels):
        return []
    if max(sizes) > LARGEST * len(survey):
        return []
    reason = f"folders of {min(sizes)} to {max(sizes)} images below the classes"
    return [Grouping("folders", members, BY["folders"], reason, Layout(group_pattern=pattern))]


def _by_cameras(survey: Survey) -> list[Grouping]:
    """Images of one camera, each taken within seconds of the next."""
    camera, time = survey.rows["camera"].tolist(), survey.rows["time"].tolist()
    at = Counter(zip(camera, time, strict=True))
    known = [row for row in range(len(survey)) if camera[row] and time[row] and at[camera[row], time[row]] < AT_ONCE]
    members, last = [""] * len(survey), -1
    for row in sorted(known, key=lambda row: (camera[row], time[row])):
        follows = last >= 0 and camera[row] == camera[last] and time[row] - time[last] <= WITHIN
        members[row] = members[last] if follows else f"{survey.cameras[camera[row]]} {time[row]}"
        last = row
    contents = survey.rows["content"]
    groups = {group: rows for group, rows in _groups_of(members).items() if np.ptp(contents[rows], axis=0).any()}
    kept = tuple(group if group in groups else "" for group in members)
    reason = f"taken by one camera, each within {WITHIN} seconds of the next"
    return [Grouping("camera", kept, BY["camera"], reason, None)] if groups else []


# ---- what looks say of it


def _by_looks(found: Grouping, survey: Survey, labels: Sequence[str]) -> Grouping | None:
    """How sure a grouping is, by how alike its images look; None where those of a group are no more alike than others.

    Images next to each other in a group are compared with images of different groups, of the same class if there are
    some, by the bits of their hashes that differ.
    """
    draw = np.random.default_rng(0)
    pairs = [pair for rows in found.groups.values() for pair in pairwise(rows)]
    grouped = np.array([row for rows in found.groups.values() for row in rows])
    pairs = [pairs[place] for place in draw.permutation(len(pairs))[:DRAWN]]
    drawn = draw.choice(grouped, (3 * DRAWN, 2))
    if len(found.groups) == 1:  # then all others are the different ones
        drawn[:, 1] = draw.integers(0, len(survey), len(drawn))
    strangers = [(one, other) for one, other in drawn.tolist() if found.members[one] != found.members[other]]
    alike = [pair for pair in strangers if labels[pair[0]] == labels[pair[1]]]
    strangers = (alike if len(alike) > ENOUGH else strangers)[:DRAWN]
    if not strangers:
        return found
    hashes = picture_hashes(survey.rows["grey"])
    near, far = (differing_bits(hashes, np.array(some)).min(axis=0) for some in (pairs, strangers))
    order = np.sort(far)
    below, above = (len(far) - np.searchsorted(order, near, side) for side in ("right", "left"))
    looks = float((below + above).mean()) / (2 * len(far))
    if looks < ALIKE and len(pairs) >= ENOUGH:
        return None
    sure = found.sure + (SUREST - found.sure) * max(0.0, 2 * looks - 1)
    reason = f"{found.reason}; two of a group look more alike than two of different ones in "
    reason += f"{percent_in_words(looks)} of draws"
    return Grouping(found.kind, found.members, round(sure, 2), reason, found.layout)
