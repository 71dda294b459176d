"""Where the four files of MNIST and of Fashion-MNIST may lie, which `readers.idx` reads; nothing is read here."""

import os
from pathlib import Path

from vitrail.errors import DataError, Hint, nearest
from vitrail.io import user_cache

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
OF_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def data_folder(name: str, data_root: Path | None = None) -> tuple[Path, bool]:
    """Where to look for a named set, and whether a person chose it (`data_root` or VITRAIL_DATA) or it is the cache."""
    chosen = data_root or os.environ.get("VITRAIL_DATA")
    return (Path(chosen).expanduser(), True) if chosen else (user_cache() / name, False)


def check_folder(name: str, data_root: Path | None) -> Path:
    """The folder to look in for a named set.

    Raises:
        DataError: A person chose one that is not there.
    """
    root, chosen = data_folder(name, data_root)
    if chosen and not root.is_dir():
        siblings = root.parent.iterdir() if root.parent.is_dir() else ()
        whole = [each.name for each in siblings if not all(missing_files(place) for place in usual_folders(name, each))]
        close = nearest(root.name, whole)
        hint = Hint({"data_root": str(root.with_name(close))}) if close else f"mkdir -p {root}, to download {name}"
        raise DataError(f"the data root {root} does not exist", hint)
    return root


def usual_folders(name: str, root: Path) -> list[Path]:
    """Where the files may lie below a root, the folders with the name of the set first."""
    named = OF_TORCHVISION[name]
    below = (f"{name}/{named}/raw", f"{name}/raw", name, f"{named}/raw", named, f"raw/{name}", ".", "raw")
    return [root / each for each in below]


def missing_files(folder: Path) -> list[str]:
    """Those of the four files that do not lie in a folder."""
    return [file for file in FILES if file_in(folder, file) is None]


def file_in(folder: Path, file: str) -> Path | None:
    """The file in the folder, the gzipped one first: its checksum is the published one."""
    return next((path for path in (folder / f"{file}.gz", folder / file) if path.is_file()), None)
