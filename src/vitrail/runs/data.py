"""The data of a run, or others, opened to evaluate or explain its model.

Its validation split is cut into parts where it decides anything:

    select      each epoch is evaluated on it; it selects the best checkpoint, and between probe and tuned network
    calibrate   selects nothing: probabilities, sets and intervals are fitted to it (`vitrail.tasks.calibration`)
    report      decides nothing: the final model is evaluated on it, if there is no test split

A figure on samples that chose among many networks is too high, since the luckiest was chosen. The part of a sample is
decided by a hash of its name, so it is the same on every machine and in every order. Where thirds would have fewer than
40 samples there are two parts, or one: then a sample decides more than one thing, which is said.
"""

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from vitrail.arguments import PASSED, check_passed, python_call
from vitrail.data.columns import TEST, TRAIN, VALIDATION, RawDataset, Samples
from vitrail.data.dataset import Split, make_dataset, match_split
from vitrail.data.images import HASH
from vitrail.data.layout import AS_FOUND, Layout, with_groups
from vitrail.data.loader import Contents, no_contents
from vitrail.data.sources import Reader, check_root, files_of, format_of, is_named, read
from vitrail.data.tensor_files import read_tensors
from vitrail.errors import DataError, Hint, UsageError, counted, remove
from vitrail.model import Model, open_model, own_objects_of
from vitrail.runs.folder import RunFolder
from vitrail.runs.known import INITIAL
from vitrail.runs.settings import read_yaml, settings_from_dict
from vitrail.tasks import Codec, Result, check_column
from vitrail.weights.places import is_foreign, is_onnx

GROUPS = ("group_column", "group_pattern")  # of a layout
MODEL = "model"  # the folder of the model in a run
CHANGED = "The data have changed since the training."
SELECT, CALIBRATE, REPORT = "select", "calibrate", "report"
PARTS = (SELECT, CALIBRATE, REPORT)
LEAST = 16  # samples in the smaller half
LEAST_CALIBRATE = 40  # in the smallest part, where one calibrates
WHOLE = "whole"  # in data.json, for a validation split that is too small to be cut
MAY_BE_LEARNT = "Images that are held out now may have been used for training."  # by a run that does not know them


@dataclass(frozen=True)
class Run:
    """A run as it is looked at: its `data.json` and `config.yaml` are read when they are first needed, once.

    Args:
        name: Its folder; that of a model alone, another name of a model, or None, has stored no data.
    """

    name: str | Path | None

    def __repr__(self) -> str:
        """Where it is, and what was trained on what."""
        counts = ", ".join(f"{split} {count:,}" for split, count in self.facts.get("images", {}).items())
        task, data = self.config.get("task", "not stored"), self.facts.get("name", "none stored")
        return f"Run {self.name}\n  task   {task}\n  data   {data} {counts}".rstrip()

    @property
    def path(self) -> Path:
        """Its folder, which may not be there."""
        return Path("" if self.name is None else self.name)

    @property
    def hashes(self) -> Path:
        """Where its images are known; that of the run around a model."""
        return RunFolder(self.path.resolve().parent if self.path.name == MODEL else self.path).hashes

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Those of its data, the content of `data.json`; empty without it.

        Raises:
            DataError: It is damaged.
        """
        if self.name is None or not (self.path / "data.json").is_file():
            return {}
        return RunFolder(self.path).read_data(f"add the data after the model: {self.path / 'model'} DATA")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of `config.yaml`; empty without it.

        Raises:
            UsageError: It is damaged.
        """
        if self.name is None or not (folder := RunFolder(self.path)).config.is_file():
            return {}
        model = shlex.quote(str(folder.model))
        return read_yaml(folder.config, f"vitrail evaluate {model} ./photos  # or vitrail explain {model} photo.jpg")

    @cached_property
    def contents(self) -> dict[str, Contents]:
        """By split what each image that it read is known by, "initial" of those that came before; see `Seen`.

        "evaluated" are those of its evaluation, also of another split.

        It belongs to the model in the run, too. Empty where the images are not known; older runs know contents alone.

        Raises:
            DataError: The file is damaged.
        """
        file = self.hashes
        if self.name is None or not file.is_file():
            return {}
        found = {name: each.numpy() for name, each in read_tensors(file, remove(file)).items()}
        wide = no_contents(0).shape[1]
        if any(each.dtype != np.uint8 or each.shape[1:] not in ((HASH,), (wide,)) for each in found.values()):
            raise DataError(f"{file} does not have {wide} bytes per image", remove(file))
        return {name: np.pad(each, ((0, 0), (0, wide - each.shape[1]))) for name, each in found.items()}

    @cached_property
    def trained_on(self) -> Contents:
        """(n, 64) by what the images are known that it was trained on, and its initial weights before."""
        return np.concatenate([self.contents.get(name, no_contents(0)) for name in (TRAIN, INITIAL)])

    @property
    def reader(self) -> str:
        """Name of the user's own reader of its data; empty if the library reads them."""
        return (self.config.get("own") or {}).get("reader", "")

    def knows(self, data: str) -> bool:
        """Whether this names the data that it was trained on, and not other data of the same name."""
        if not self.facts or is_named(data) or self.reader:
            return bool(self.facts) and data == self.facts["name"]
        root, path = Path(self.facts["root"]), Path(data).expanduser().resolve()
        beside = path == root.parent and Path(self.facts["name"]).name != root.name  # a list that its folder stood for
        return data.rstrip("/") == self.facts["root"] or path == root or beside

    def root_for(self, data: str, data_root: Path | None) -> Path | None:
        """Where files of a named set are looked for: `data_root`, or where it read files of the same set."""
        facts = self.facts if data_root is None and files_of(data) else {}
        same, root = files_of(facts.get("name", "")) == files_of(data), Path(facts.get("root", ""))
        return root if facts and same and root.is_dir() else data_root


def open_run(name: str | Path | None) -> Run:
    """The run of that name; the same one as long as its files stay as they are, so that they are read once."""
    run = Run(None if name is None else str(name))
    return _kept(run, *map(_stamp, (run.path / "config.yaml", run.path / "data.json", run.hashes)))


@lru_cache(maxsize=8)
def _kept(run: Run, *stamps: tuple[int, ...]) -> Run:
    return run


def _stamp(file: Path) -> tuple[int, ...]:
    """What a file is known by that is not read."""
    with suppress(OSError):
        found = file.stat()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return ()


def run_of(model: Model) -> Run:
    """The run that a model was loaded from, by itself or by its model; of other weights it knows nothing."""
    path = Path(model.loaded_from).expanduser()
    if path.name == MODEL and not RunFolder(path).config.is_file():
        path = path.resolve().parent
    return open_run(path if model.loaded_from else None)


def check_objects(run: Run, data: str | None, reader: Reader | None, loaded: bool = False) -> None:
    """Refuse to evaluate a run or model that was made with a user's own objects without them.

    Args:
        run: Of the model, or the folder of a model alone.
        data: As for `evaluate`; the data of the run when None, for which its reader is needed, too.
        reader: Of the data, if one is passed.
        loaded: Whether its model is loaded, with the objects that it was made with.

    Raises:
        UsageError: Some are missing; its hint is the call in Python.
        DataError: There is no model.
    """
    if is_foreign(str(run.name)) or is_onnx(str(run.name)):
        return
    own, name = own_objects_of(open_model(run.path)[1]), repr(str(run.name))
    words = [python_call("load", [name], own) if own else name, *([] if data is None else [repr(data)])]
    passed: dict[str, object] = dict.fromkeys(own, loaded or None)
    if run.reader and (data is None or run.knows(data)):
        own, passed = {**own, "reader": run.reader}, {**passed, "reader": reader}
        words += [repr(run.facts["name"])] if run.reader.startswith(PASSED) and data is None else []
    check_passed(own, passed, name, python_call("evaluate", words, {"reader": run.reader} if "reader" in own else {}))


def open_for(
    model: Model,
    run: Run,
    data: str | None,
    data_root: Path | None = None,
    split: str | None = None,
    reader: Reader | None = None,
    layout: Layout = AS_FOUND,
) -> Split:
    """The samples to evaluate or explain a model on, with a column that is matched to its codec.

    Args:
        model: With its codec.
        run: Its run, which stores its data.
        data: A named set, folder or file; the data of the run when None.
        data_root: Folder of the named sets.
        split: Name of the split; test, else validation, else all samples when None.
        reader: A reader of the user's own.
        layout: Columns and groups of other data than the run's, which has stored how they are read: of its own data
            groups are those that are reported, and the split stays as it was.

    Raises:
        UsageError: There are no data and none stored, or no such split.
        DataError: The data cannot be used.
    """
    remembered = run.facts if data is None or run.knows(data) else {}
    parts = remembered.get("parts")  # by the name of files; there may be three
    if not remembered and data is None:
        kinds = "or a named set or a list"
        problem = f"{run.name or 'this model'} has stored no data"
        command = f"vitrail evaluate {run.name or 'RUN'} ./photos  # {kinds}"
        raise UsageError(problem, Hint(text=command, python="data=..., a named set, a folder or a list"))
    what, seed, counts, reported = str(data), 0, None, layout
    if reader is None:
        check_root(remembered.get("name", what), data_root)
    if remembered:
        if reader is None and run.reader:
            check_objects(run, None, reader, loaded=True)
        what, root, seed = remembered["name"], Path(remembered["root"]), remembered["split_seed"] or 0
        if reader is None and not is_named(what):
            what = remembered["root"]
        if data_root is None and root.exists():
            data_root = root
        if run.config:
            settings = settings_from_dict(run.config)
            counts, own = settings.counts, vars(settings.layout)
            layout = replace(
                settings.layout,
                **{name: value or own[name] for name, value in vars(layout).items()}
                | {name: own[name] for name in GROUPS},
            )
        unseen = VALIDATION if not parts or parts == WHOLE else REPORT
        split = split or (TEST if TEST in remembered["images"] else unseen)
    data_root = run.root_for(what, data_root)
    if reader is None:
        opened = partial(read, what, data_root, split_seed=seed, counts=counts)
        try:
            raw = opened(layout=layout)
        except UsageError:  # several columns may be the label: those that the run has learnt
            learnt = "" if layout.label_column or not run.config else settings_from_dict(run.config).layout.label_column
            if not learnt:
                raise
            layout = replace(layout, label_column=learnt)
            raw = opened(layout=layout)
    else:
        from vitrail.runs.contracts import read_own  # which the library's own readers do not need

        opened = partial(read_own, reader, what, data_root)
        raw = opened(layout=layout)
    check_column(what, raw.columns(), model.task)
    column = model.task.column
    found = match_split(what, raw, column, model.output, VALIDATION if split in PARTS else split, seed)
    if split in PARTS:
        names = tuple(parts) if isinstance(parts, dict) else (SELECT, REPORT)
        found = part_of(found, column, model.output, split, names)
    groups = {name: getattr(reported, name) for name in GROUPS}
    if any(groups.values()) and replace(layout, **groups) != layout:  # by which the run was not split
        found = _in_groups(found, opened(layout=replace(layout, **groups)))
    words = chosen_words(found.split, parts)
    if not remembered and found.split != TEST and "chosen_on" in model.facts:  # a model without its run
        words = f"{model.facts['chosen_on']} chose this model; if they are among these, the figure is too high."
    if words:
        found = replace(found, notes=(*found.notes, words))
    _check_inputs(model, found)
    row = format_of(what) if is_named(what) else None
    if remembered and (row is None or row.varies):  # other named sets never change
        now = make_dataset(what, raw, column, lambda raw, parts: model.task.codec(raw, parts), seed).fingerprint
        if now != remembered["fingerprint"]:
            found = replace(found, notes=(*found.notes, CHANGED, *[MAY_BE_LEARNT] * (not run.contents)))
    return found


def _in_groups(found: Split, raw: RawDataset) -> Split:
    """A split, as it was made, whose samples have the groups that the same data have here."""
    pairs = (zip(each.inputs.names(), each.units(), strict=True) for each in raw.splits.values())
    group_of = {name: unit for each in pairs for name, unit in each}
    samples = with_groups(found.samples, [group_of.get(name, "") for name in found.samples.inputs.names()])
    return replace(found, samples=samples, notes=tuple(dict.fromkeys((*found.notes, *raw.notes))))


def _check_inputs(model: Model, found: Split) -> None:
    """Refuse texts for a model that reads images, and the reverse; and unknown tokens."""
    if model.reads_text == found.samples.has_images:
        kinds = ("images", "texts")
        problem = f"{found.name} contains {kinds[not model.reads_text]}, but this model reads {kinds[model.reads_text]}"
        raise DataError(problem, f"name data with {kinds[model.reads_text]}")
    if model.reads_text:
        model.vocabulary.check(found.samples.texts.values)


# ---- the parts of a validation split


@dataclass(frozen=True, eq=False)
class Cut:
    """A validation split in parts.

    Attributes:
        parts: The samples of each part by its name, in their order; all samples in each if it is not cut.
        problem: Why it is not cut; empty if it is.
        place_of: The number of the part of each name or group, by its hash.
    """

    parts: Mapping[str, Int64[np.ndarray, " n"]]
    problem: str = ""
    place_of: Mapping[str, int] = field(default_factory=dict)

    @property
    def selects(self) -> bool:
        """Whether some of the samples choose the network."""
        return SELECT in self.parts

    @property
    def chosen_on(self) -> str:
        """Name of the split that selects."""
        return VALIDATION if self.problem else SELECT

    def calibrates(self, tested: bool) -> str:
        """Name of the part that calibrates: its own; where there is none, what is not reported.

        Args:
            tested: Whether the figure is of a test split.
        """
        if self.problem:
            return VALIDATION
        return CALIBRATE if CALIBRATE in self.parts else REPORT if tested else SELECT

    def take(self, split: Split, name: str, column: str | None, codec: Codec) -> Split:
        """A part of a split; samples that the codec does not know belong where their hash says."""
        found = replace(split, samples=split.samples.select(self.parts[name]), split=name)
        if self.problem or split.given is None:
            return found
        part, count = [*self.parts].index(name), len(self.parts)
        mine = [self.place_of.get(rank, _place(rank, count)) == part for rank in _ranks(split.given)]
        return replace(found, unknown=codec.match(split.given.column(column).select(np.flatnonzero(mine))).unknown)

    def to_dict(self) -> Any:
        """What `data.json` stores: the sizes of the parts, or that there are none."""
        return WHOLE if self.problem else {name: len(ids) for name, ids in self.parts.items()}

    @property
    def note(self) -> str:
        """A sentence on the cut."""
        if self.problem:
            chooses = "all of it chooses the model, which is reported wherever it also evaluates it"
            return f"the validation split is not cut ({self.problem}): {chooses}"
        verbs = {SELECT: "select the model", CALIBRATE: "calibrate its probabilities", REPORT: "decide nothing"}
        sizes = [f"{len(ids)} {verbs[name]}" for name, ids in self.parts.items()]
        return f"validation is cut by a hash of names: {', '.join(sizes[:-1])}, and {sizes[-1]}"


def cut(samples: Samples, column: str | None, codec: Codec, names: Sequence[str] = (SELECT, REPORT)) -> Cut:
    """Cut samples into parts by a hash of their names.

    Where a part has none of the samples that are alike, such as those of a class, the part with most of them gives it
    the one with the least hash. Samples of one name or group stay together. Where one calibrates, a part that is too
    small is filled in the same way, unless that takes the last of its kind; if it stays too small, none calibrates.

    Args:
        samples: Of the validation split, matched to the codec.
        column: Of the task.
        codec: Says which are alike.
        names: Of the parts, in their order.
    """
    everyone = np.arange(len(samples), dtype=np.int64)
    if samples.inputs.renewed:
        return Cut(dict.fromkeys(names, everyone), "its images are made, and not chosen from")
    ranks = np.array(_ranks(samples))
    place = np.array([_place(rank, len(names)) for rank in ranks], dtype=np.int64)
    strata = np.zeros_like(everyone)
    if codec.strata is not None:
        strata = codec.strata(codec.targets(samples.column(column).take(everyone))).numpy()
    for stratum in np.unique(strata):
        alike = np.flatnonzero(strata == stratum)
        where = dict(zip(ranks[alike].tolist(), place[alike].tolist(), strict=True))
        for part in range(len(names)) if len(where) >= len(names) else ():
            taken = [*where.values()]
            if part not in taken:
                giver = max(range(len(names)), key=taken.count)
                rank = min(rank for rank, its in where.items() if its == giver)
                where[rank] = part
                place[ranks == rank] = part  # its namesakes, too
    if CALIBRATE in names:
        _fill(place, ranks, strata, len(names))
    parts = {name: np.flatnonzero(place == part) for part, name in enumerate(names)}
    least, wanted = min(map(len, parts.values())), LEAST_CALIBRATE if CALIBRATE in names else LEAST
    if least >= wanted:
        return Cut(parts, place_of=dict(zip(ranks.tolist(), place.tolist(), strict=True)))
    if len(names) > 2:
        return cut(samples, column, codec, (SELECT, REPORT))
    part = "half" if len(names) == 2 else "part"
    problem = f"of {counted(len(samples), 'sample')} a {part} has {least}, fewer than {wanted}"
    return Cut(dict.fromkeys(names, everyone), problem)


def _ranks(samples: Samples) -> list[str]:
    """A hash of each sample's group, or name."""
    units = map(os.fsencode, samples.units())
    return [hashlib.blake2b(name, digest_size=8, person=b"halves").hexdigest() for name in units]


def _place(rank: str, count: int) -> int:
    return int(rank[-4:], 16) % count


def _fill(place: Int64[np.ndarray, " n"], ranks: np.ndarray, strata: Int64[np.ndarray, " n"], count: int) -> None:
    """Move samples from the largest part to the smallest, in place, while that has fewer than it takes to calibrate."""
    while min(sizes := np.bincount(place, minlength=count).tolist()) < LEAST_CALIBRATE <= len(place) / count:
        giver, surplus = place == sizes.index(max(sizes)), max(sizes) - min(sizes)
        for rank in np.unique(ranks[giver]):
            moved = ranks == rank
            if moved.sum() < surplus and np.isin(strata[moved], strata[giver & ~moved]).all():
                place[moved] = sizes.index(min(sizes))
                break
        else:
            return


def part_of(split: Split, column: str | None, codec: Codec, name: str, names: Sequence[str]) -> Split:
    """One part of a validation split that was cut into those of these names.

    Raises:
        UsageError: It is too small to be cut, or has no such part.
    """
    found = cut(split.samples, column, codec, names)
    problem = found.problem or f"its parts are {' and '.join(found.parts)}"
    if found.problem or name not in found.parts:
        raise UsageError(f"{split.name} has no split {name}: {problem}", Hint({"split": "validation"}))
    return found.take(split, name, column, codec)


def chosen_words(split: str, parts: Any) -> str:
    """A sentence on a figure whose samples chose the model; empty if they did not.

    Args:
        split: Of the figure.
        parts: The cut in `data.json`, empty if nothing was chosen.
    """
    if not parts or split not in (VALIDATION, SELECT) or (parts != WHOLE and SELECT not in parts):
        return ""
    if parts == WHOLE or split == SELECT:
        return f"The samples of the {split} split chose this model, so the figure is too high."
    share = f"{parts[SELECT]} of {sum(parts.values())}"
    return f"{share} samples of the {split} split chose this model, so the figure is too high; {REPORT} is clean."


def mark_chosen(result: Result, parts: Any) -> Result:
    """The result with sentences on samples that chose the model, if they did."""
    words = chosen_words(result.split, parts)
    if not words:
        return result
    about = (result.about[0], f"{result.about[1]} {words}".strip())
    return replace(result, sentence=f"{result.sentence} (on samples that chose the model)", about=about)
