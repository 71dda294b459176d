"""What can be opened, as one list, and the way from a name or a path to the reader that fits.

Readers stand in `vitrail.data.readers`. Help, messages and docs are made from `FORMATS`; a format is a reader and one
row. A reader is imported when it is first called, so that asking for the list costs nothing.

A name goes before a path; a folder that bears the name of a known set is written with a path, such as `./mnist`. Where
there is nothing, the error names the nearest name or path that is there.
"""

import importlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import DataError, Hint, UsageError, nearest

if TYPE_CHECKING:
    from vitrail.data.dataset import Counts, RawDataset

Reader = Callable[..., "RawDataset"]
"""(a name or path, the folder of named sets or None) to what lies there, as a `RawDataset`."""


@dataclass(frozen=True)
class Format:
    """One kind of data that can be opened.

    Attributes:
        name: What a person types, for a set that is known by name; else what the format is called.
        help: One line about it.
        read: Its reader.
        is_set: Whether it is a set that is known by name.
        options: Whether more may stand behind its name and a colon.
        rooted: Whether it reads files of its own, which may lie anywhere.
        suffixes: Of a file that it reads, in small letters.
        made: Whether it is made, of a seed and as many samples as are wanted.
        classes: Whether it may give images with classes; else it gives sequences only: something to be read, and a
            text to be written.
    """

    name: str
    help: str
    read: Callable[..., "RawDataset"]
    is_set: bool = False
    options: bool = False
    rooted: bool = False
    suffixes: tuple[str, ...] = ()
    made: bool = False
    classes: bool = True

    def names(self, what: str) -> bool:
        """Whether these words are its name, with options or without."""
        return what == self.name or (self.options and what.startswith(f"{self.name}:"))


def _reader(module: str) -> Callable[..., "RawDataset"]:
    """The function `read_NAME` of the file NAME of readers, which is imported when it is called."""

    def read(what: str, data_root: Path | None, *made: Any) -> "RawDataset":
        home = importlib.import_module(f"vitrail.data.readers.{module}")
        return getattr(home, f"read_{module}")(what, data_root, *made)

    return read


_PLANTED_HELP = (
    "one digit among shuffled ones; planted:mnist, planted:2x3, planted:mnist,2x3 choose the digits and the grid"
)

_STRINGS_HELP = "images of one to five digits to read"

SHARDS = "shards.json"  # in a folder that `vitrail data pack` wrote, when all of it is there
PACKING = "packing.json"  # in one that is not finished

FORMATS = (
    Format("digits", "1,797 handwritten digits of 8 x 8 pixels", _reader("digits"), is_set=True),
    Format("mnist", "70,000 handwritten digits of 28 x 28 pixels", _reader("idx"), is_set=True, rooted=True),
    Format("fashion-mnist", "70,000 images of clothing", _reader("idx"), is_set=True, rooted=True),
    Format("mnist-m", "MNIST's digits on photographs", _reader("mnist_m"), is_set=True, rooted=True),
    Format("planted", _PLANTED_HELP, _reader("planted"), is_set=True, rooted=True, options=True),
    Format("folder", "a folder of class folders", _reader("folder")),
    Format("shards", "a folder that vitrail data pack wrote, or its http(s) address", _reader("shards")),
    Format(
        "manifest",
        "images with path,label[,split] or path,text[,split]",
        _reader("manifest"),
        suffixes=(".csv", ".jsonl"),
    ),
    Format("sort-digits", "strings of digits to sort", _reader("digit_strings"), is_set=True, made=True, classes=False),
    Format(
        "mnist-strings", _STRINGS_HELP, _reader("digit_strings"), is_set=True, rooted=True, made=True, classes=False
    ),
    Format("pairs", "source<TAB>target[<TAB>split]", _reader("manifest"), suffixes=(".tsv",), classes=False),
)
"""Everything that can be opened. A file is known by its suffix; what is learnt from it, by its columns."""

NAMED = tuple(each.name for each in FORMATS if each.is_set)
"""The sets that are known by name."""

MANIFESTS = next(each.suffixes for each in FORMATS if each.name == "manifest")
"""The suffixes of lists of image files."""


def overview(*, texts: bool = True) -> str:
    """What can be opened, for a help text.

    Args:
        texts: With what gives sequences only.
    """
    fit = [each for each in FORMATS if each.classes or texts]
    sets = [each.name + (f" ({each.help})" if each.options else "") for each in fit if each.is_set]
    files = [f"{' or '.join(each.suffixes)}{': ' * bool(each.suffixes)}{each.help}" for each in fit if not each.is_set]
    return f"{', '.join(sets)}; {'; '.join(files)}"


def format_of(what: str) -> Format | None:
    """The row for these words: a set of that name, a folder, a file with one of the suffixes; None where none fits."""
    path = Path(what).expanduser()
    for each in FORMATS:
        if each.is_set and each.names(what):
            return each
    name = "shards" if is_packed(what) else "folder" if path.is_dir() else ""
    suffix = path.suffix.lower() if path.is_file() else ""
    return next((each for each in FORMATS if each.name == name or suffix in each.suffixes), None)


def is_named(what: str) -> bool:
    """Whether these words name a set, with options or without."""
    return any(each.is_set and each.names(what) for each in FORMATS)


def is_planted(what: str) -> bool:
    """Whether these words name one of the planted sets, with options that are right or wrong."""
    return what.partition(":")[0] == "planted"


def is_address(what: str) -> bool:
    """Whether these words are the http(s) address of a folder."""
    return what.startswith(("http://", "https://"))


def is_packed(what: str) -> bool:
    """Whether these words mean shards, finished or not: a folder of them, or an address."""
    path = Path(what).expanduser()
    return is_address(what) or (path / SHARDS).is_file() or (path / PACKING).is_file()


def check_root(what: str, data_root: Path | None) -> None:
    """Refuse a folder of named sets where none is looked for.

    Raises:
        UsageError: Names what is read.
    """
    row = format_of(what)
    options = what.partition(":")[2].split(",")  # of planted sets, those of MNIST's digits read files
    if data_root is not None and not (row and row.rooted and (not row.options or "mnist" in options)):
        raise UsageError(
            f"--data-root is for named data sets with files, and {what} has none", Hint(drop=["data_root"])
        )


def named_files(names: Sequence[str]) -> list[tuple[Path, bool]]:
    """The image files that are named, and those in the folders that are; each with whether it was named itself.

    Raises:
        DataError: A name does not exist, and the nearest beside it is offered; or a folder holds no image.
    """
    found: list[tuple[Path, bool]] = []
    for path in (Path(name).expanduser() for name in names):
        if path.exists() and not path.is_dir():
            found.append((path, True))
            continue
        from vitrail.data.readers.folder import EXTENSIONS, image_files  # which files that are there do not need

        if path.is_dir():
            files = image_files(path)
            if not files:
                raise DataError(f"{path} contains no image", "a folder with JPEG, PNG, WebP, BMP, TIFF or GIF files")
            found += [(file, False) for file in files]
        else:
            raise DataError(f"there is no image {path}", _nearest_path(path, EXTENSIONS) or _look_around(path))
    return found


def read(
    what: str, data_root: Path | None = None, *, split_seed: int = 0, counts: "Counts | None" = None
) -> "RawDataset":
    """Read what lies there, by the reader that fits.

    Args:
        what: The name of a known set, or a path; see `FORMATS`.
        data_root: Where the files of a named set are.
        split_seed: Of samples that are made.
        counts: How many samples are made, of a set that is made; the usual numbers when None.

    Returns:
        What the reader found: splits with columns that are not yet matched to a codec.

    Raises:
        UsageError: There is no such named set, or an extra package is missing.
        DataError: The data is missing or damaged.
    """
    chosen = format_of(what)
    if chosen is None:
        raise _missing(what)
    if chosen.made:
        return chosen.read(what, data_root, split_seed, counts)
    return chosen.read(what, data_root)


def _missing(what: str) -> UsageError | DataError:
    """The error for what cannot be opened, with the nearest name or path that can."""
    path = Path(what).expanduser()
    suffixes = [suffix for each in FORMATS for suffix in each.suffixes]
    if path.exists():
        wanted = f"neither a folder nor a {', '.join(suffixes[:-1])} or {suffixes[-1]} file"
        return DataError(f"{what} is {wanted}", "give a folder of class folders")
    bare = Path(what).name == what and path.suffix.lower() not in suffixes
    known = nearest(what.lower(), NAMED) if bare else None
    close = _nearest_path(path, suffixes, 0.7)  # among many folders something is always a little alike
    if known is not None or (bare and close is None):
        problem = f"there is no folder {what} here and no data set of that name; the data sets are {', '.join(NAMED)}"
        return UsageError(problem, known or "ls")
    too = "" if path.parent.is_dir() else f", and neither does {path.parent}"
    return DataError(f"{what} does not exist{too}", close or _look_around(path))


def _nearest_path(path: Path, suffixes: Sequence[str], least: float = 0.5) -> str | None:
    """The folder, or file with one of the suffixes, beside a missing path whose name looks most like its own."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    close = nearest(path.name, [one.name for one in beside if one.is_dir() or one.suffix.lower() in suffixes], least)
    return None if close is None else str(path.with_name(close))


def _look_around(path: Path) -> str:
    """A command that lists the nearest folder that is there."""
    return shlex.join(["ls", str(next(folder for folder in path.absolute().parents if folder.is_dir()))])
