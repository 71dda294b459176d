"""From a name or a path to the reader that fits: a set that is known by name, a folder of class folders, a manifest.

A name goes before a path; a folder that bears the name of a known set is written with a path, such as `./mnist`. Where
there is nothing, the error names the nearest name or path that is there.
"""

from pathlib import Path

from vitrail.data.digits import read_digits
from vitrail.data.folder import read_folder
from vitrail.data.idx import read_idx
from vitrail.data.manifest import read_manifest
from vitrail.data.mnist_m import read_mnist_m
from vitrail.data.parts import Found
from vitrail.data.planted_sets import is_planted, read_planted
from vitrail.data.sequence_source import NAMED_SEQUENCES
from vitrail.errors import DataError, UsageError, nearest

NAMED = ("digits", "mnist", "fashion-mnist", "mnist-m", "planted")
"""The sets that are known by name; `planted` may have options behind it, see `vitrail.data.planted_sets`."""

MANIFESTS = (".csv", ".jsonl")


def is_named(what: str) -> bool:
    """Whether these words name a set, with options or without."""
    return what in NAMED or is_planted(what)


def find(what: str, data_root: Path | None = None) -> Found:
    """Read what lies there, by the reader that fits.

    Args:
        what: The name of a known set, a folder of class folders, or a `.csv` or `.jsonl` manifest.
        data_root: Where the files of a named set are.

    Returns:
        What the reader brings back: parts whose classes are not yet numbered for a network.

    Raises:
        UsageError: There is no such named set, or an extra package is missing.
        DataError: The data is missing or damaged.
    """
    if what == "digits":
        return read_digits()
    if what == "mnist-m":
        return read_mnist_m(data_root)
    if is_planted(what):
        return read_planted(what, data_root)
    if what in NAMED:
        return read_idx(what, data_root)
    path = Path(what).expanduser()
    if path.is_dir():
        return read_folder(path)
    if path.is_file() and path.suffix.lower() in MANIFESTS:
        return read_manifest(path)
    if path.exists():
        raise DataError(f"{what} is neither a folder nor a .csv or .jsonl manifest", "give a folder of class folders")
    raise _missing(what, path)


def _missing(what: str, path: Path) -> UsageError | DataError:
    """The error for a path or name that is not there, with the nearest one that is."""
    if what in NAMED_SEQUENCES:
        return UsageError(f"{what} holds sequences, and pictures with classes are wanted here", f"vitrail train {what}")
    siblings = []
    if path.parent.is_dir():
        siblings = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix.lower() in MANIFESTS]
    bare = Path(what).name == what and path.suffix.lower() not in MANIFESTS
    known = nearest(what.lower(), (*NAMED, *NAMED_SEQUENCES)) if bare else None
    sibling = nearest(path.name, siblings)
    if known is not None or (bare and sibling is None):
        all_named = ", ".join((*NAMED, *NAMED_SEQUENCES))
        hint = f"{known}" if known is not None else f"one of {all_named}, or the path of a folder"
        return UsageError(f"there is no data set or folder {what}", hint)
    if not path.parent.is_dir():
        return DataError(f"{what} does not exist, nor does {path.parent}", "check the path")
    there = ", ".join(sorted(siblings)[:4])
    hint = f"one of {there} in {path.parent}" if there else f"the path of a folder; {path.parent} holds none"
    if sibling is not None:
        hint = str(path.with_name(sibling))
    return DataError(f"{what} does not exist", hint)
