"""What is known of published weights: tables that scripts made from the libraries themselves, never by hand."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any


@cache
def timm_architectures() -> dict[str, Any]:
    """What timm says of its plain ViTs, by architecture; made by `benchmarks/timm_table.py` from timm itself."""
    return json.loads(Path(__file__).with_name("timm_table.json").read_text())


@cache
def timm_table() -> dict[str, Any]:
    """Those of them that somebody published weights of."""
    return {name: row for name, row in timm_architectures().items() if row["tags"]}


@cache
def known_table() -> dict[str, Any]:
    """Weights that were really run, by fingerprint; made by `benchmarks/known_weights.py`."""
    return json.loads(Path(__file__).with_name("known_weights.json").read_text())


@cache
def _imagenet() -> tuple[tuple[str, str], ...]:
    """WordNet's id and the name of each of ImageNet's 1,000 classes, in the order of the logits."""
    lines = Path(__file__).with_name("imagenet.txt").read_text(encoding="utf-8").splitlines()
    return tuple((wnid, name) for wnid, _, name in (line.partition(" ") for line in lines))


def imagenet_names() -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes, in the order of the logits."""
    return tuple(name for _, name in _imagenet())


def wordnet_ids(names: Sequence[str]) -> tuple[str, ...]:
    """WordNet's ids of ImageNet's 1,000 classes, where the names are theirs in their order; else none.

    Libraries spell some names otherwise, or give synonyms with commas between: one in ten may differ.
    """
    if len(names) != len(_imagenet()):
        return ()
    alike = sum(_plain(own) in map(_plain, name.split(",")) for name, (_, own) in zip(names, _imagenet(), strict=True))
    return tuple(wnid for wnid, _ in _imagenet()) if alike > 0.9 * len(names) else ()


def _plain(name: str) -> str:
    return name.partition(" (")[0].replace("_", " ").strip().lower()


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Published names so that no two are alike: the second of two cranes is no bird."""
    counts, known = Counter(names), imagenet_names() if wordnet_ids(names) else ()
    return tuple(
        name if counts[name] == 1 else known[index] if known else f"{name} ({index})"
        for index, name in enumerate(names)
    )
