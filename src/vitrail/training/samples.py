"""What each sample of a run was: where its data have changed, the first samples that differ are named.

samples.jsonl: split, name, mark of the content (`Images.marks`) and class (or mark of the target) of each sample. Named
sets do not change, and have none; nor has a set of more samples than `MOST`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vitrail.data.columns import Labels
from vitrail.data.dataset import Dataset, Samples
from vitrail.data.formats import is_named
from vitrail.data.images import Images
from vitrail.errors import some_of
from vitrail.io import to_json
from vitrail.training.run import RunFolder

MOST = 100_000
NAMED = 3  # of each kind of difference

Marks = dict[tuple[str, str], tuple[str, str]]  # content and class by split and name


def write_samples(folder: RunFolder, dataset: Dataset) -> None:
    """Write what each sample of a new run is."""
    renewed = isinstance(dataset.train.inputs, Images) and dataset.train.images.renewed  # in every epoch
    if not (renewed or is_named(dataset.name) or sum(map(len, dataset.splits.values())) > MOST):
        lines = [f"{to_json([*place, *marks], indent=None).strip()}\n" for place, marks in _marked(dataset)]
        folder.write_text(folder.samples.name, "".join(lines))


def _marked(dataset: Dataset) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for split, samples in dataset.splits.items():
        inputs, values = samples.inputs, _values(samples, dataset.column)
        contents = inputs.marks() if isinstance(inputs, Images) else [""] * len(inputs)  # the name of a text is all
        for name, content, value in zip(inputs.names(), contents, values, strict=True):
            yield (split, name), (content, value)


def _values(samples: Samples, column: str) -> list[str]:
    values = samples.column(column)
    if isinstance(values, Labels):
        return [values.names[number] for number in values.values]
    return [values.select(np.array([index])).digest().hex()[:8] for index in range(len(values))]


def changed(stored: Mapping[str, Any], dataset: Dataset, folder: RunFolder) -> str:
    """How the data have changed since a run was started, old -> new, with the first samples that differ.

    Args:
        stored: The `data.json` of the run.
        dataset: As it is now.
        folder: Of the run.
    """
    was, now = stored["images"], {name: len(samples) for name, samples in dataset.splits.items()}
    found = [
        f"{name} {was.get(name, 0):,} -> {now.get(name, 0):,}"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    for name, new in dataset.codec.to_dict().items():
        old = stored.get(name)
        if isinstance(old, list) and isinstance(new, list) and old != new:
            other = [f"-{each}" for each in old if each not in new] + [f"+{each}" for each in new if each not in old]
            found.append(f"{name} {len(old):,} -> {len(new):,} ({some_of(other) if other else 'in another order'})")
    found += _differing(folder, dataset)
    what = "; ".join(found) or "the same number of samples, with other names, contents or labels"
    return f"{dataset.name} has changed since {folder.path} was started: {what}"


def _differing(folder: RunFolder, dataset: Dataset) -> list[str]:
    """What kinds of samples differ, with the first of each; empty where the run does not know its samples."""
    try:
        lines = folder.samples.read_bytes().decode("utf-8", "surrogateescape").split("\n")
        rows = [json.loads(line) for line in lines if line]
        before: Marks = {(split, name): (content, value) for split, name, content, value in rows}
    except (OSError, ValueError):
        return []
    after: Marks = dict(_marked(dataset))
    both = [place for place in after if place in before]
    kinds = {
        "missing": [place for place in before if place not in after],
        "added": [place for place in after if place not in before],
        "other content": [place for place in both if _other(before[place][0], after[place][0])],
        "other label": [place for place in both if before[place][1] != after[place][1]],
    }
    return [
        f"{kind}: {some_of([f'{name} ({split})' for split, name in some], NAMED)}"
        for kind, some in kinds.items()
        if some
    ]


def _other(old: str, new: str) -> bool:
    """Whether marks differ; one of them may have no CRC-32."""
    return any(one != other for one, other in zip(old.split("-"), new.split("-"), strict=False))
