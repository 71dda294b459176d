"""What can be opened, as one list, and the one way from what a person names to samples, for every verb.

Readers stand in `vitrail.data.readers`, sets that are made in `vitrail.data.sets`. Help, messages and docs are made
from `FORMATS`; a format is a reader and one row. A reader is imported when it is first called, so that asking for the
list costs nothing.

    read           a named set, a folder, a list, shards: with its columns, in splits
    read_images    the same and images that nothing sorts, for verbs that need no labels

A name goes before a path; a folder that bears the name of a known set is written with a path, such as `./mnist`. Where
there is nothing, the error names the nearest name or path that is there.
"""

import mimetypes
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from vitrail.arguments import Later, check_kind, typed
from vitrail.errors import DataError, Hint, UsageError, VitrailError, look_at, nearest
from vitrail.io import PARQUET, free_name

if TYPE_CHECKING:
    from vitrail.data.columns import RawDataset
    from vitrail.data.dataset import Counts
    from vitrail.data.layout import Layout


@runtime_checkable
class Items(Protocol):
    """A Python object that holds data: see `vitrail.data.readers.memory`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...


Data = str | Path | Items
"""A name, a path, or an object."""

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
        suffixes: Of a file that it reads, in small letters.
        marks: A folder that holds one of these files is of this format; "." is in every folder, `*.x` is any file
            that ends so, and `*/*.x` one in a folder in it; so `DIR/*.x`, `*/NAME` and `NAME*.x`.
        says: What a `*.yaml` or `*.yml` in a folder says that is of this format under any name.
        served: Whether it may lie behind an http(s) address.
        columns: Whether it has columns that a person may name: its reader takes a `Layout` as well.
        sorts: Whether it sorts files by the names of folders; a verb that needs no labels takes all files in them.
        made: Whether it is made, of a seed and as many samples as are wanted.
        texts: Whether it gives sequences only: something to be read, and a text to be written.
        files: The set whose files it reads, which may lie anywhere; of a set with options only where one names it.
        varies: Whether it may be another set on another machine.
        recipe: The training recipe that was made for it.
        adapted: From its name with options to what the recipe is for then, and the fields of its network that differ.
    """

    name: str
    help: str
    read: Callable[..., "RawDataset"]
    is_set: bool = False
    options: bool = False
    suffixes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    says: "re.Pattern[bytes] | None" = None
    served: bool = False
    columns: bool = False
    sorts: bool = False
    made: bool = False
    texts: bool = False
    files: str = ""
    varies: bool = False
    recipe: str = ""
    adapted: Callable[[str], tuple[str, Mapping[str, Any]]] | None = None

    def names(self, what: str) -> bool:
        """Whether these words are its name, with options or without."""
        return self.is_set and (what == self.name or (self.options and what.startswith(f"{self.name}:")))

    def holds(self, what: str) -> bool:
        """Whether what lies at this path or address is of this format."""
        path = Path(what).expanduser()
        if is_address(what):
            return self.served and not str(mimetypes.guess_type(what)[0]).startswith("image/")
        if path.is_dir():
            return any(_has(path, mark) for mark in self.marks) or (self.says is not None and _says(path, self.says))
        return path.suffix.lower() in self.suffixes and path.is_file()


def _has(folder: Path, mark: str) -> bool:
    """Whether a folder has a file that is called so; of each folder in it a few are enough to know what lies there."""
    above, _, name = mark.rpartition("/")
    try:
        places = [each for each in folder.iterdir() if each.is_dir()] if above == "*" else [folder / above]
        if "*" not in name:
            return any((place / name).exists() for place in places)
        for place in places:
            with os.scandir(place) as entries:
                if any(fnmatchcase(entry.name, name) for entry in islice(entries, FEW if above == "*" else None)):
                    return True
    except OSError:  # whoever reads it says so
        pass
    return False


def _says(folder: Path, words: "re.Pattern[bytes]") -> bool:
    """Whether a YAML file in a folder says this, at its beginning."""
    with suppress(OSError):  # whoever reads it says so
        for file in [*folder.glob("*.yaml"), *folder.glob("*.yml")]:
            with file.open("rb") as handle:
                if words.search(handle.read(SAID)):
                    return True
    return False


def _reader(module: str) -> Reader:
    """The function `read_NAME` of the file NAME."""
    return Later(f"vitrail.data.{module}:read_{module.rpartition('.')[2]}")


_PLANTED_HELP = (
    "one digit among shuffled ones; planted:mnist, planted:2x3, planted:mnist,2x3 choose the digits and the grid"
)
_MNIST_M_HELP = "MNIST's digits on photographs"
_SHARDS_HELP = "a folder that vitrail data pack wrote, or its http(s) address"
_ARRAYS_HELP = "arrays of numpy such as train_images and train_labels, or X and y; or a folder of .npy files"
_METADATA_HELP = "a folder of images with metadata.csv or metadata.jsonl, whose column file_name names them"
_ARCHIVE_HELP = "what a folder holds, read in place; or a folder of .tar files as webdataset has them"
_HUB_HELP = "a table of images, as one file or a folder of files"
_COCO_HELP = "COCO's annotations, whose categories are the labels of images; or a folder with them and the images"
_YOLO_HELP = "YOLO's data.yaml, or its folder with images and labels"
_FOLDER_HELP = "a folder of class folders, or of one folder of images beside a list"
_LIST_HELP = "images with path[,label][,split], or path,text[,split]; a .tsv with a first line of these names"

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif", ".apng", ".mpo"),
    *(".avif", ".avifs", ".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif"),
)
"""The endings, in small letters, of the files that are taken for images; also of some that hold what is not opened."""

UNLABELLED = "one folder for each class, or a list with the columns path,label"
FEATURES = (".npz", PARQUET)  # of the files that vitrail embed writes
MAKES_FEATURES = Hint(
    text="vitrail embed --help  # makes such a file",
    python="vitrail.embed(model, images, 'features.npz'), which makes such a file",
)
METADATA = ("metadata.csv", "metadata.jsonl")  # beside images, in the root or in the folder of a split
SAID = 100_000  # bytes of a file by which it is known what it says
FEW = 100  # files of a folder by which it is known what lies there
TAR = ".tar"
IN_SPLITS = ("", "train/", "validation/", "val/", "test/")  # a folder, and those of its splits
TARS = tuple(f"{at}*{TAR}" for at in IN_SPLITS)
SHARDS = "shards.json"  # in a folder that `vitrail data pack` wrote, when all of it is there
PACKING = "packing.json"  # in one that is not finished
ANNOTATIONS = ("annotations/*.json", "*/_annotations.coco.json", "_annotations.coco.json")
AT_ROOT = ("annotations.json", "instances_*.json")  # COCO's where none of those are, or others' of the same name
YOLO = ("data.yaml", "data.yml", "dataset.yaml")
YOLO_NAMES = re.compile(rb"^names\s*:", re.MULTILINE)  # what one of another name says
ARRAYS = tuple(f"{name}.npy" for name in ("images", "train_images", "x_train", "X_train", "X"))

_BESIDE = tuple(f"{at}{name}" for at in IN_SPLITS for name in METADATA)
_TABLES = ("*.parquet", "*/*.parquet")

_set = partial(Format, is_set=True)
_planted = partial(_set, read=_reader("sets.planted"), adapted=Later("vitrail.data.sets.planted:fit_to_model"))
_digits = Later("vitrail.data.readers.idx:read_digits")
_strings = partial(_set, read=_reader("sets.digit_strings"), made=True, texts=True)

FORMATS = (
    _set("digits", "1,797 handwritten digits of 8 x 8 pixels", _digits, recipe="digits"),
    _set("mnist", "70,000 handwritten digits of 28 x 28 pixels", _reader("readers.idx"), files="mnist", recipe="mnist"),
    _set("fashion-mnist", "70,000 images of clothing", _reader("readers.idx"), files="fashion-mnist", recipe="mnist"),
    _set("mnist-m", _MNIST_M_HELP, _reader("sets.mnist_m"), files="mnist", recipe="mnist-m", varies=True),
    _planted("planted", _PLANTED_HELP, options=True, files="mnist", recipe="planted"),
    Format("shards", _SHARDS_HELP, _reader("readers.shards"), marks=(SHARDS, PACKING), served=True),
    Format("arrays", _ARRAYS_HELP, _reader("readers.arrays"), suffixes=(".npz", ".npy"), marks=ARRAYS, columns=True),
    Format("metadata", _METADATA_HELP, _reader("readers.metadata"), marks=_BESIDE, columns=True),
    Format("hub", _HUB_HELP, _reader("readers.hub"), suffixes=(".parquet",), marks=_TABLES, columns=True),
    Format("coco", _COCO_HELP, _reader("readers.coco"), suffixes=(".json",), marks=(*ANNOTATIONS, *AT_ROOT)),
    Format("yolo", _YOLO_HELP, _reader("readers.yolo"), suffixes=(".yaml", ".yml"), marks=YOLO, says=YOLO_NAMES),
    Format("archive", _ARCHIVE_HELP, _reader("readers.archive"), suffixes=(".zip", TAR), marks=TARS, columns=True),
    Format("folder", _FOLDER_HELP, _reader("readers.folder"), marks=(".",), sorts=True, columns=True),
    Format("list", _LIST_HELP, _reader("readers.manifest"), suffixes=(".csv", ".jsonl", ".tsv", ".txt"), columns=True),
    _strings("sort-digits", "strings of digits to sort", recipe="sort-digits"),
    _strings("mnist-strings", "images of one to five digits to read", files="mnist", recipe="mnist-strings"),
    Format("pairs", "source<TAB>target[<TAB>split]", _reader("readers.manifest"), suffixes=(".tsv",), texts=True),
)
"""Everything that can be opened. A file is known by its suffix; what is learnt from it, by its columns."""

NAMED = tuple(each.name for each in FORMATS if each.is_set)
"""The sets that are known by name."""


def overview(*, texts: bool = True) -> str:
    """What can be opened, for a help text.

    Args:
        texts: With what gives sequences only.
    """
    fit = [each for each in FORMATS if texts or not each.texts]
    sets = [each.name + (f" ({each.help})" if each.options else "") for each in fit if each.is_set]
    files = [f"{' or '.join(each.suffixes)}{': ' * bool(each.suffixes)}{each.help}" for each in fit if not each.is_set]
    return f"{', '.join(sets)}; {'; '.join(files)}"


def format_of(what: str) -> Format | None:
    """The row for these words: a set of that name, else the format of what lies there; None where none fits."""
    fitting = [each for each in FORMATS if each.names(what)]
    fitting = fitting or [each for each in FORMATS if what.strip() and each.holds(what)]
    return fitting[0] if fitting else None


def is_named(what: str) -> bool:
    """Whether these words name a set, with options or without."""
    return any(each.names(what) for each in FORMATS)


def is_address(what: str) -> bool:
    """Whether these words are the http(s) address of a folder."""
    return what.startswith(("http://", "https://"))


def files_of(what: str) -> str:
    """The set whose files are read for these words; empty where they name no set with files."""
    row = format_of(what)
    if row is None or (row.options and row.files not in what.partition(":")[2].split(",")):
        return ""
    return row.files


def is_passed(data: object) -> TypeGuard[Items]:
    """Whether this is an object that holds data, and not what names some: pairs, rows, a data set, or columns."""
    if isinstance(data, list | tuple):
        pairs = len(data) > 0 and isinstance(data[0], list | tuple) and len(data[0]) == 2
        return pairs or (len(data) > 0 and all(isinstance(each, Mapping) and each for each in data))
    has = all(hasattr(data, name) for name in ("__len__", "__getitem__"))
    return has and not isinstance(data, str | bytes | Path) and (hasattr(data, "columns") or not hasattr(data, "ndim"))


def name_passed(data: Data, reader: Reader | None, layout: "Layout") -> tuple[str, Reader | None]:
    """The name of data, and their reader, where they are an object or have one.

    Raises:
        UsageError: They are no data; or an object and a reader stand side by side.
        DataError: The object cannot be used.
    """
    if isinstance(data, str | Path):
        return str(data), reader
    if not is_passed(data):
        problem = f"data must be a name, a path, or an object that has images, got {type(data).__name__} {data!r:.60}"
        raise UsageError(problem, "[(image, label), ...], a torch Dataset, or {'image': [..], 'label': [..]}")
    if reader is not None:
        raise UsageError("data that are an object need no reader", Hint(drop=["reader"]))
    from vitrail.data.readers.memory import Passed  # with torch

    held = Passed(data, layout)
    return held.name, held


def check_root(what: str, data_root: Path | None) -> None:
    """Refuse a folder of named sets where none is looked for.

    Raises:
        UsageError: Names what is read.
    """
    if data_root is not None and not files_of(what):
        problem = f"--data-root is for named data sets with files, and {what} has none"
        raise UsageError(problem, Hint(drop=["data_root"]))


def known_format(what: str) -> Format:
    """The row for what can be opened; nothing is read, and torch is not loaded.

    Raises:
        UsageError, DataError: It names no set and nothing that can be opened.
    """
    if (chosen := format_of(what)) is None:
        raise _missing(what)
    return chosen


def check_images(words: str | Path | Sequence[str | Path], *, texts: bool = True) -> None:
    """Refuse images, lists, folders and feature files that are not there.

    Args:
        words: That name them.
        texts: Whether a word that looks like no path may be a text.

    Raises:
        DataError: Names the nearest that is there.
    """
    endings = *EXTENSIONS, *FEATURES, *(each for row in FORMATS for each in row.suffixes)
    for word in [words] if isinstance(words, str | Path) else words:
        path, what = Path(word).expanduser(), str(word)
        looks = not texts or isinstance(word, Path) or path.suffix.lower() in endings
        there = what.strip() and (path.exists() or path.is_symlink() or format_of(what))
        if not there and (looks or what.startswith(("./", "../", "/", "~"))):
            raise _missing(what, (*EXTENSIONS, *FEATURES))


def check_path(path: Path, kind: type[VitrailError] = DataError) -> None:
    """Refuse a file or folder that is not there; raises an error of this kind, which names the nearest."""
    if not path.expanduser().exists():
        error = _missing(str(path), [path.suffix.lower()])
        raise kind(error.problem, error.hint)


def outside(file: Path, data: Data) -> Path:
    """The file, or where it would lie in a folder of data, in which nothing is written, a free one beside that."""
    folder = Path() if is_passed(data) or is_named(str(data)) else Path(str(data)).expanduser().resolve()
    inside = folder.is_absolute() and folder.is_dir() and file.expanduser().resolve().is_relative_to(folder)
    return free_name(folder.parent / file.name) if inside else file


def check_outside(file: Path, data: Data, option: str = "out") -> None:
    """Refuse a file that would lie in a folder of data."""
    if (beside := outside(file, data)) != file:
        problem = f"{file} would lie in the folder of the data, {Path(str(data)).expanduser().resolve()}"
        raise UsageError(f"{problem}, where nothing is written", Hint({option: str(beside)}))


@typed
def read(
    what: Data,
    data_root: Path | None = None,
    *,
    split_seed: int = 0,
    counts: "Counts | None" = None,
    layout: "Layout | None" = None,
) -> "RawDataset":
    """Read what lies there, by the reader that fits.

    Args:
        what: The name of a known set, or a path; see `FORMATS`; or an object that holds data.
        data_root: Where the files of a named set are.
        split_seed: Of samples that are made.
        counts: How many samples are made, of a set that is made; the usual numbers when None.
        layout: Its columns, groups and fractions, where a person names them.

    Returns:
        What the reader found: splits with columns that are not yet matched to a codec.

    Raises:
        UsageError: There is no such named set, an extra package is missing, or the layout has no effect here.
        DataError: The data is missing or damaged.
    """
    from vitrail.data.layout import AS_FOUND, Layout  # columns, which a list of formats does not need

    check_kind("layout", layout, Layout, "vitrail.data.Layout(label_column='name')")
    how = layout or AS_FOUND
    if is_passed(what):
        from vitrail.data.readers.memory import Passed  # with torch

        return how.apply(Passed(what, how)(layout=how))
    named = str(what)
    chosen = known_format(named)
    if not chosen.columns:
        how.check_columns(named)
    more = (split_seed, counts) if chosen.made else (how,) if chosen.columns else ()
    raw = chosen.read(named, data_root, *more)
    return how.apply(replace(raw, name=named if chosen.names(named) else raw.root))


def read_images(
    words: Data | Sequence[str | Path],
    data_root: str | Path | None = None,
    *,
    flat: bool = False,
    layout: "Layout | None" = None,
) -> "RawDataset":
    """The images that words name, for verbs that need no labels.

    Args:
        words: What `read` takes, also an object; an image; or several images and folders.
        data_root: Where the files of a named set are.
        flat: Whether a folder stands for all images in it, at any depth, under paths that can be typed; else its
            folders are classes and splits, and names hold wherever the data lie.
        layout: As for `read`.

    Returns:
        The images, with the columns that they have; those that nothing sorts as one split, without columns.

    Raises:
        UsageError: There is no such named set; or a set, a list or shards stand beside others.
        DataError: The data cannot be read, hold no image, or hold texts.
    """
    if is_passed(words):
        return read(words, layout=layout)
    names = [str(words)] if isinstance(words, str | Path) else [str(word) for word in words]
    if not names:
        raise UsageError("data is empty, so there is no image", "a path, or several")
    root, row = None if data_root is None else Path(data_root).expanduser(), format_of(names[0])
    check_root(names[0], root)
    alone = len(names) == 1 and row is not None and not (flat and row.sorts)
    if layout is not None and not alone:
        layout.check_columns(names[0])
    raw = read(names[0], root, layout=layout) if alone else _read_unsorted(names, flat)
    if not next(iter(raw.splits.values())).has_images:
        raise DataError(f"{names[0]} contains texts, but images are wanted", "name images, or a folder or list of them")
    if not any(map(len, raw.splits.values())):  # the first that is not empty is enough: some make their splits
        raise DataError(f"{names[0]} contains no image", look_at(names[0], "-A"))
    return raw


def _read_unsorted(names: Sequence[str], flat: bool) -> "RawDataset":
    """Image files, and those in folders, as one split without columns."""
    from vitrail.data.columns import ALL, RawDataset, Samples
    from vitrail.data.images import FileImages

    files, notes = list[Path](), list[str]()
    for name in names:
        path, row = Path(name).expanduser(), format_of(name)
        if row is not None and not row.sorts:
            kind = "a named set" if row.is_set else row.name
            alone = Hint(python=f"{name} alone", instead={each: "" for each in names if each != name})
            raise UsageError(f"{name} ({kind}) cannot be combined with other inputs", alone)
        if not name.strip() or not (path.exists() or path.is_symlink()):
            raise _missing(name, EXTENSIONS)
        if not path.is_dir():
            files.append(path)
            continue
        from vitrail.data.readers.folder import image_files  # which files do not need

        found, others = image_files(path)
        if not found:
            problem = " ".join([f"{path} contains no image.", *others])
            raise DataError(problem, f"a folder with {', '.join(EXTENSIONS)} files")
        files += found
        notes += others
    images = FileImages(files, None if flat else files[0].parent)
    root = str(Path(names[0]).expanduser().resolve())
    return RawDataset(root, {ALL: Samples(images, {})}, tuple(notes), name=root)


def _missing(what: str, images: Sequence[str] = ()) -> UsageError | DataError:
    """The error for what cannot be opened, with the nearest name or path that can; `images` are suffixes, too."""
    path = Path(what).expanduser()
    suffixes = list(dict.fromkeys(suffix for each in FORMATS for suffix in each.suffixes))
    if is_address(what):
        return UsageError(
            f"{what} is an image, and only shards are read from an address", shlex.join(["curl", "-O", what])
        )
    if what.strip() and path.exists():
        wanted = f"neither a folder nor a {', '.join(suffixes[:-1])} or {suffixes[-1]} file"
        from vitrail.data.readers.folder import ARCHIVES, unpack  # of archives alone

        packed = path.name.lower().endswith(ARCHIVES)
        return DataError(f"{what} is {wanted}", unpack(path) if packed else "give a folder of class folders")
    suffixes += images
    bare = Path(what).name == what and path.suffix.lower() not in suffixes
    known = nearest(what.lower(), NAMED, 0.75) if bare else None
    beside = path.parent.iterdir() if path.parent.is_dir() else ()  # among many something is always a little alike
    names = [one.name for one in beside if one.is_dir() or one.suffix.lower() in suffixes]
    close = nearest(path.name, names, 0.7)
    if known is not None or (bare and close is None):
        problem = f"there is no {what} here and no data set of that name; the data sets are {', '.join(NAMED)}"
        return UsageError(problem, Hint(instead={what: known}) if known else look_at("."))
    too = "" if path.parent.is_dir() else f", and neither does {path.parent}"
    around = next(folder for folder in path.absolute().parents if folder.is_dir())
    other = MAKES_FEATURES if path.suffix in FEATURES else look_at(around)
    hint = Hint(instead={what: str(path.with_name(close))}) if close else other
    return DataError(f"{what} does not exist{too}", hint)
