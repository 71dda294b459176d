"""What an audit found, as a value that knows its sentences, its figures, its JSON and its page."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from vitrail.arguments import typed
from vitrail.audit.changes import Change, PartChange, PartTest, changes_since, parts_since, read_audit
from vitrail.audit.rules import NAMES, Figure
from vitrail.audit.shortcuts import LEAST, Shortcut
from vitrail.data.columns import ALL
from vitrail.errors import counted, some_of
from vitrail.explain.reporting.report import ORDER, SUPPORTED
from vitrail.io import audit_place, check_writable, to_json, write_file
from vitrail.pages.image_views import MadeView, Rates
from vitrail.pages.render import audit_page
from vitrail.statistics import least_mean, least_share, wilson_interval
from vitrail.text import percent, times_words


class ProofPictures(NamedTuple):
    """Where a shortcut lies, and the images that prove it.

    Attributes:
        area: (rows, columns), the cells of an image in which it lies; None of a property of the whole image.
        images: Of each proof the image as it is, without the part, and the other one with it: (h, w) or (h, w, 3).
    """

    area: Bool[np.ndarray, "rows columns"] | None
    images: tuple[tuple[np.ndarray, ...], ...]


@typed
@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found; it knows its JSON and its page.

    Attributes:
        model: What the model is called.
        data: What was audited.
        split: Which split of it; `all` of data that is not divided.
        images: Of how many images.
        drawn: How many of them were to be explained and tested.
        verdicts: Rates of verdicts: of all, and by `class`, `group`, and for right and wrong predictions.
        areas: Where the evidence is, see `vitrail.audit.areas.shares`.
        shortcuts: What was tested, the named ones first.
        parts: Of each class that was asked the mean effect of every part on the first half, in nats.
        catalogue: The parts that were tried, in words.
        spread: By how much images of a class differ in what a part does, in nats a move.
        asked: How many images of each class stood in each half.
        left: Which classes were not searched for shortcuts.
        notes: What was not asked, and why, in sentences.
        names: Of the images by their rows.
        made: When and with what.
        fingerprints: Of the weights, the images, and their labels and groups.
        options: How explanations were made: the method and the masks.
        command: The command line; empty for a call in Python.
        changes: Of shares since an earlier audit, if there is one.
        parts_changed: And of the parts that are named now, or were then.
        rules: That were asked of it, and why each does not hold, or nothing.
        pictures: Of named shortcuts by class and part, for the page.
    """

    model: str
    data: str
    split: str
    images: int
    drawn: int
    verdicts: Mapping[str, tuple[Rates, ...]]
    areas: Mapping[str, Mapping[str, Any]]
    shortcuts: tuple[Shortcut, ...]
    parts: Mapping[str, Mapping[str, float]]
    catalogue: tuple[str, ...]
    spread: Mapping[str, float]
    asked: Mapping[str, tuple[int, int]]
    left: tuple[str, ...]
    notes: tuple[str, ...]
    names: Mapping[int, str]
    made: MadeView
    fingerprints: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    changes: tuple[Change, ...] = ()
    parts_changed: tuple[PartChange, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[tuple[str, str], ProofPictures] = field(default_factory=dict)

    @property
    def supported(self) -> Rates:
        """Of how many images the explanation is supported."""
        return self.verdicts["all"][0]

    @property
    def named(self) -> tuple[Shortcut, ...]:
        """The shortcuts that were found."""
        return tuple(one for one in self.shortcuts if one.named)

    @property
    def class_figures(self) -> tuple[str, ...]:
        """The names of the figures that are of one class."""
        return tuple(f"{SUPPORTED}:{one.name}" for one in self.verdicts.get("class", ()))

    @property
    def figures(self) -> dict[str, Figure]:
        """What a rule can ask for, by name: verdicts, areas, each class's own, and the number of shortcuts."""
        every, named, found = self.supported, len(self.named), dict[str, Figure]()
        if self.asked:  # else a rule must not hold because nobody looked; nor of a class where nothing would be found
            seen = {one.label for one in self.named}
            blind = [label for label in self.asked if label not in seen and self._least_share(label) > 1]
            found["shortcuts"] = Figure(named, (named, named + len(self.left) + len(blind)), len(self.asked))
        for name in (each for each in ORDER if each in NAMES or each in every.counts):
            count, images = every.counts.get(name, 0), every.images
            found[name] = Figure(count / max(1, images), wilson_interval(count, images), images)
        for name, one in zip(self.class_figures, self.verdicts.get("class", ()), strict=True):
            found[name] = Figure(one.supported / one.images, one.interval, one.images)
        for name, row in self.areas.items():
            found[name] = Figure(row["share"], tuple(row["interval"]), row["images"])
        return found

    def _least_share(self, label: str) -> float:
        """The least part of a class in which a shortcut would be found; above 1 where none would."""
        return least_share(self.asked[label][1], max(1, len(self.shortcuts)))

    @property
    def missed(self) -> str:
        """How small a shortcut would have been missed, in words; empty where none was looked for."""
        if not self.asked:
            return ""
        few = min(self.asked, key=lambda label: self.asked[label][1])
        share = self._least_share(few)
        rare = "any"
        if share <= 1:
            odds = max(least_mean(LEAST, self.spread[label], count[1]) for label, count in self.asked.items())
            rare = f"one that works in fewer than {percent(share, 0)} of the images of a class, or makes its odds less "
            rare += f"than {times_words(odds)} as high on average,"
        return f"{rare} would probably be missed where its tests are of {counted(self.asked[few][1], 'image')}"

    @property
    def sentences(self) -> tuple[str, str, str]:
        """What was asked, what holds, and what does not, for a person who has to decide."""
        every = self.supported
        how = "class by class" if self.asked or "class" in self.verdicts else "at random"
        split = "" if self.split == ALL else f"the {self.split} split of "
        of = f"{counted(self.images, 'image')} of {split}{self.data}"
        if every.images == self.images > 1:
            asked = f"All {of} were"
        elif self.drawn == self.images:
            asked = f"{every.images:,} of {of} could be"
        else:
            asked = f"{every.images:,} of {of}, drawn {how}, {'was' if every.images == 1 else 'were'}"
        asked += " explained and tested"
        if self.asked:
            classes = counted(len(self.asked) + len(self.left), "class", "classes")
            count = f"{len(self.asked)} of {classes}" if self.left else classes
            searched = f"{count} {'was' if len(self.asked) == 1 else 'were'} searched"
            asked += f", and {searched} for parts of the image that speak for a class by themselves"
        holds = f"{every.words}" if every.images else "No image could be tested"
        if unclear := every.counts.get("cannot tell"):
            holds += f"; of {counted(unclear, 'image')} nothing can be told"
        if border := self.areas.get("border"):
            low, high = (percent(end, 0) for end in border["interval"])
            holds += (
                f"; on {counted(border['images'], 'image')} the border ({percent(border['size'], 0)} of the image) "
                f"holds {percent(border['share'], 0)} of the evidence (95 %: {low} to {high}), an area of its shape "
                f"elsewhere {percent(border['moved'], 0)}"
            )
        if mask := self.areas.get("mask"):
            low, high = (percent(end, 0) for end in mask["interval"])
            holds += (
                f"; on {counted(mask['images'], 'image')} the mask ({percent(mask['size'], 0)} of the image) holds "
                f"{percent(mask['share'], 0)} (95 %: {low} to {high}), an area of its shape elsewhere "
                f"{percent(mask['moved'], 0)}"
            )
        if not self.asked:
            fails = "Whether a part of the image speaks for a class by itself was not asked"
        elif not self.named:
            fails = f"No part of the image was found that speaks for a class by itself; {self.missed}"
        else:
            fails = self.named[0].sentence
            if len(self.named) > 1:
                fails += f"; {counted(len(self.named) - 1, 'more shortcut')} below"
        if self.asked and self.left:
            fails += f"; not searched: {some_of([f'“{each}”' for each in self.left], 3)}"
        return f"{asked}.", f"{holds}.", f"{fails}."

    @typed
    def since(self, earlier: str | Path) -> "Audit":
        """The same audit with what changed since an earlier one, and what was other there.

        Args:
            earlier: The file of its JSON.

        Raises:
            DataError: There is none, or it is something else.
        """
        then = read_audit(Path(earlier))
        notes, before = list(self.notes), then["fingerprints"]
        for name, own in self.fingerprints.items():
            known = {"images": before.get("data", own), **before}  # as it was called once
            if known.get(name, own) != own:
                about = f" ({then.get({'weights': 'model'}.get(name, 'data'), 'not said')})"
                notes.append(f"The earlier audit was of other {name}{about}.")
        for name, own in self.options.items():
            if own != (theirs := then.get("options", {}).get(name, "not said")):
                notes.append(f"The earlier audit had other {name}: {theirs} there, {own} here.")
        both = {*self.asked} & {*then["asked"]}
        if not both and self.asked:
            notes.append("No class was searched for shortcuts in both audits.")
        if (drawn := then.get("drawn", self.drawn)) != self.drawn:
            notes.append(f"The earlier audit tested {counted(drawn, 'image')}, this one {self.drawn:,}.")
        here = {(one.label, one.words): PartTest.of(vars(one)) for one in self.shortcuts}
        there = {(row["label"], row["words"]): PartTest.of(row) for row in then["shortcuts"]}
        moved = parts_since(here, there, both)
        for known, other, what in ((here, there, "New since"), (there, here, "No longer found, but in")):
            some = [key for key, one in known.items() if one.named and not (key in other and other[key].named)]
            if named := sorted(f"“{label}”: {words}" for label, words in some if label in both):
                notes.append(f"{what} the earlier audit: {', '.join(named)}.")
        changes = tuple(changes_since(self.figures, then["figures"]))
        return replace(self, notes=tuple(notes), changes=changes, parts_changed=tuple(moved))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "model": self.model,
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "drawn": self.drawn,
            "sentences": list(self.sentences),
            "verdicts": {
                key: [{"name": each.name, **each.numbers()} for each in own] for key, own in self.verdicts.items()
            },
            "areas": {name: dict(row) for name, row in self.areas.items()},
            "shortcuts": [one.to_dict(self.names.__getitem__) for one in self.shortcuts],
            "parts": {label: dict(own) for label, own in self.parts.items()},
            "catalogue": list(self.catalogue),
            "asked": {label: list(count) for label, count in self.asked.items()},
            "left": list(self.left),
            "figures": {name: each.to_dict() for name, each in self.figures.items()},
            "changes": [each.to_dict() for each in self.changes],
            "parts_changed": [each.to_dict() for each in self.parts_changed],
            "rules": [{"rule": rule, "holds": not why, "why": why} for rule, why in self.rules.items()],
            "notes": list(self.notes),
            "fingerprints": dict(self.fingerprints),
            "options": dict(self.options),
            "made": {**vars(self.made), "command": self.command},
        }

    def page(self) -> str:
        """One HTML page to sign: sentences first, then tables and images, then limits."""
        return audit_page(self)

    @typed
    def save(self, out: str | Path) -> Path:
        """Write the page, and beside it the JSON under the same name.

        Raises:
            UsageError: That place is taken, or nothing can be written there.
        """
        page = audit_place(Path(out))
        check_writable(page)
        write_file(page, self.page())
        write_file(page.with_suffix(".json"), to_json(self.to_dict()))
        return page
