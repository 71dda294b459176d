"""Sequences from files of one's own, and how some are held out where a file brings no split.

pairs.tsv               source<TAB>target[<TAB>split], one pair a line; a first line of just these names is a header
labels.csv, .jsonl      path,text[,split]: pictures, and what stands on them
"""

import hashlib
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from vitrail.data.parts import ALL, TRAIN, VALIDATION
from vitrail.data.pictures import FilePictures
from vitrail.data.readers import PAIRS
from vitrail.data.readers.manifest import part_named, read_rows, read_text
from vitrail.data.samples import PictureSamples, Samples, TextSamples
from vitrail.errors import DataError, counted

MOST_HELD_OUT = 5000
_COLUMNS = ("source", "target", "split")


def read_parts(path: Path) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """The samples of a file by the split that each line names, or all in one part; and what is odd.

    Args:
        path: A `.tsv` of pairs, or a `.csv` or `.jsonl` with `path,text`.

    Raises:
        DataError: The file is damaged, or a line is.
    """
    parts = _pairs(path) if path.suffix.lower() in PAIRS else _labelled(path)
    return parts, _repeated(parts)


def _pairs(path: Path) -> dict[str, Samples]:
    """The parts of a file with a pair of texts on each line."""
    rows: list[tuple[str, str, str]] = []
    lines = enumerate(read_text(path).split("\n"), start=1)
    filled = [(number, line.rstrip("\r")) for number, line in lines if line.strip() or "\t" in line]
    header = bool(filled) and _is_header(filled[0][1])
    for number, line in filled[header:]:
        cells = [unicodedata.normalize("NFC", cell.strip()) for cell in line.split("\t")]
        where = f"{path}, line {number}"
        if len(cells) not in (2, 3):
            raise DataError(
                f"{where} has {counted(len(cells), 'column')}", "source<TAB>target or source<TAB>target<TAB>split"
            )
        for name, cell in zip(_COLUMNS, cells, strict=False):
            if not cell:
                raise DataError(f"{where}: the {name} is empty", f"give it a {name} or remove the line")
        rows.append((cells[0], cells[1], part_named(cells[2], where) if len(cells) == 3 else ALL))
    if not rows:
        raise DataError(f"{path} holds no pairs", "one pair a line: source<TAB>target")
    if len({part == ALL for _, _, part in rows}) > 1:
        raise DataError(f"{path} has a split in some lines only", "give every line a split, or none")
    parts: dict[str, Samples] = {}
    for part in dict.fromkeys(part for _, _, part in rows):
        some = [row for row in rows if row[2] == part]
        parts[part] = TextSamples(tuple(row[0] for row in some), tuple(row[1] for row in some))
    return parts


def _is_header(line: str) -> bool:
    """Whether a line names the columns, in small letters or capitals, and nothing else."""
    return tuple(cell.strip().lower() for cell in line.split("\t")) in (_COLUMNS[:2], _COLUMNS)


def _labelled(path: Path) -> dict[str, Samples]:
    """The parts of a manifest with the columns path and text."""
    rows = read_rows(path, "text")
    parts: dict[str, Samples] = {}
    for part in dict.fromkeys(row.part for row in rows):
        some = [row for row in rows if row.part == part]
        pictures = FilePictures([row.path for row in some], path.parent)
        parts[part] = PictureSamples(pictures, tuple(row.label for row in some))
    return parts


def _repeated(parts: Mapping[str, Samples]) -> tuple[str, ...]:
    """A note on sources that stand in more than one split: what was learnt is then tested."""
    names = [{samples.name(index) for index in range(len(samples))} for samples in parts.values()]
    shared = sum(len(names[a] & names[b]) for a in range(len(names)) for b in range(a))
    return (f"In more than one split: {counted(shared, 'source')}.",) if shared else ()


def with_validation(parts: Mapping[str, Samples], seed: int, path: Path) -> dict[str, Samples]:
    """A tenth of the training samples held out, chosen by a hash of seed and source: the same source, the same side.

    Args:
        parts: From `read_parts`; given back as they are where there is nothing to learn from.
        seed: Of the choice.
        path: The file, for the message.

    Raises:
        DataError: There are fewer than two different sources.
    """
    name = ALL if ALL in parts else TRAIN
    whole = parts.get(name)
    if whole is None:
        return dict(parts)
    ranks = [hashlib.blake2b(os.fsencode(f"{seed}:{whole.name(i)}"), digest_size=8).digest() for i in range(len(whole))]
    distinct = sorted(set(ranks))
    if len(distinct) < 2:
        raise DataError(f"{path} has too few samples to hold some out for validation", "add samples to it")
    most = max(1, min(MOST_HELD_OUT, round(len(distinct) / 10)))
    held = set(distinct[:most])
    chosen = np.array([rank in held for rank in ranks])
    rest = {key: samples for key, samples in parts.items() if key != name}
    return {TRAIN: _chosen(whole, np.flatnonzero(~chosen)), VALIDATION: _chosen(whole, np.flatnonzero(chosen)), **rest}


def _chosen(samples: Samples, ids: Int64[np.ndarray, " n"]) -> Samples:
    targets = tuple(samples.texts(ids))
    if isinstance(samples, TextSamples):
        return TextSamples(tuple(samples.sources[number] for number in ids.tolist()), targets)
    assert isinstance(samples, PictureSamples)
    return PictureSamples(samples.pictures.select(ids.tolist()), targets)
