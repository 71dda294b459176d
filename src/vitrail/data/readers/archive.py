"""Archives, read in place: a `.zip` or `.tar` as the folder that it was made of.

    photos.zip, photos.tar     class folders, splits, metadata, COCO's or YOLO's annotations or a list, as on disk; a
                               folder that wraps all is none
    train-000000.tar, ...      one or a folder of those that webdataset reads: see `readers.webdataset`

Nothing is unpacked. Where the members lie is found out once and kept in the user's cache; images are read there by
their places, in any order, by any number of processes.
"""

import errno
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.columns import LABEL, Labels, RawDataset, split_of
from vitrail.data.images import Images
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.readers.coco import annotations_in, read_annotated
from vitrail.data.readers.folder import (
    HIDDEN_NAMES,
    LISTS,
    beside_lists,
    lists_in,
    read_by_list,
    read_folder,
    read_tree,
    unpack,
)
from vitrail.data.readers.metadata import metadata_in, read_described
from vitrail.data.readers.yolo import config_in, read_boxes
from vitrail.data.shard_files import Words
from vitrail.data.sources import EXTENSIONS, TAR, TARS
from vitrail.data.stores import EncodedImages, Tree, remembered
from vitrail.errors import DataError, counted, raised_as

ENCRYPTED = 1  # a flag of a member of a zip
LINK = -1  # the place of a member that is a link, or no file
LOCAL = 30  # bytes before a member of a zip, and the lengths of its name and of more, which are their last ones

Place = tuple[str, int, int, int, int]  # name, and where it lies: see `EncodedImages`


def read_archive(what: str, data_root: Path | None = None, layout: Layout = AS_FOUND) -> RawDataset:
    """Read a `.zip`, a `.tar`, or a folder of `.tar` files, also in folders of splits, such as `train/0.tar`.

    Args:
        what: Its path. What holds folders or images beside tars is read as class folders.
        data_root: Not used: the path is enough.
        layout: The columns, where a person names them.

    Returns:
        What a folder of the members gives, which may also hold one list; of webdataset's tars what they say.

    Raises:
        UsageError: As for the list or metadata in it.
        DataError: It is damaged or encrypted, a member leads out of it, or there is no image; or as for a folder.
    """
    path = Path(what).expanduser().resolve()
    files = [path] if path.is_file() else sorted(file for mark in TARS for file in path.glob(mark))
    beside = [each for place in {file.parent for file in files} for each in place.iterdir()] if path.is_dir() else []
    seen = [each for each in beside if not each.name.startswith(HIDDEN_NAMES)]
    if any(each.is_dir() or (each.parent != path and each.suffix.lower() in EXTENSIONS) for each in seen):  # unpacked
        return read_folder(what, layout=layout)
    if path.is_dir() and any(path.glob("*.safetensors")):
        problem = f"{path} has {counted(len(files), 'shard')} but no index shards.json"
        raise DataError(problem, "a complete folder written by vitrail data pack; or pack the data again")
    tree = Archive(path, files)
    raw = _read(tree, what, layout)
    notes = [f"Left out what is no file of its own: {counted(tree.links, 'link')}."] * bool(tree.links)
    return replace(raw, root=str(path), notes=(*raw.notes, *notes))


def _read(tree: "Archive", what: str, layout: Layout) -> RawDataset:
    """What the members say: metadata, annotations, files beside each image, class folders, or else the only list."""
    from vitrail.data.readers.webdataset import read_beside  # of tars alone

    if lists := metadata_in(tree):
        return read_described(tree, lists, layout)
    if files := annotations_in(tree):
        return read_annotated(tree, files)
    if config := config_in(tree):
        return read_boxes(tree, config)
    if tree.files[0].suffix.lower() == TAR and (found := read_beside(tree, layout)) is not None:
        return found
    raw = read_tree(tree)
    columns = [samples.columns.get(LABEL) for samples in raw.splits.values()]
    classes = {name for column in columns if isinstance(column, Labels) for name in column.names}
    if len(classes) < 2 and lists_in(tree):
        return read_by_list(tree, what, layout)
    layout.check_columns(what)
    return beside_lists(raw, tree, what)


class Archive(Tree):
    """The files in archives, below a root that bears the name of what is read.

    Args:
        root: What is read.
        files: The archives: that itself, or those in it, each of which is a folder then.

    Raises:
        DataError: One is damaged or encrypted, or a member leads out of it.
    """

    def __init__(self, root: Path, files: Sequence[Path]) -> None:
        super().__init__(root)
        self.files, self.rows, self.inside = list(files), dict[str, int](), {str(root): dict[str, bool]()}
        places, self.links = list[NDArray[np.int64]](), 0
        for number, file in enumerate(files):
            found, _ = remembered(file, "members, links", _members)
            self.links += int(found["links"][0])
            words, place = Words(found["name"], found["name.ends"]), found["place"]
            above = str(file.with_suffix("") if file != root else root)
            first = sum(map(len, places))
            self.rows |= {f"{above}/{words[row]}": first + row for row in range(len(words))}
            places.append(np.concatenate([np.full_like(place[:, :1], number), place], axis=1))
        self.places = np.concatenate(places)
        for path in self.rows:
            self._add(path, is_folder=False)
        self._unwrap()

    def _add(self, path: str, is_folder: bool) -> None:
        """A member, and the folders that it lies in."""
        above, name = os.path.split(path)
        if above not in self.inside:
            self.inside[above] = {}
            self._add(above, is_folder=True)
        self.inside[above][name] = is_folder

    def _unwrap(self) -> None:
        """Go into a folder that alone lies in the root, unless it is a split, or a class: then it holds images only."""
        seen = [name for name in self.entries(self.root) if not name.startswith(HIDDEN_NAMES)]
        if len(seen) == 1 and not split_of(seen[0]):
            below = self.inside.get(str(self.root / seen[0]), {})
            if any(is_folder or name.lower().endswith(LISTS) for name, is_folder in below.items()):
                self.root /= seen[0]
                self._unwrap()

    def entries(self, folder: str | Path) -> Mapping[str, bool]:
        """What lies in a folder, by name, and whether it is a folder."""
        if (inside := self.inside.get(os.path.normpath(folder))) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        return inside

    def is_folder(self, path: Path) -> bool | None:
        """Whether a member is a folder, or a file; None where there is none."""
        name = os.path.normpath(path)
        return True if name in self.inside else False if name in self.rows else None

    def glob(self, mark: str) -> list[Path]:
        """The members below the root of such a name."""
        above, names, depth = f"{self.root}/", sorted(self.rows), mark.count("/")
        found = [name for name in names if name.startswith(above) and name.count("/") == above.count("/") + depth]
        return [Path(name) for name in found if PurePosixPath(name).match(mark)]

    def identity(self, folder: Path) -> Hashable:
        """The name itself."""
        return folder

    def content(self, file: Path) -> bytes:
        """The bytes of a member."""
        return self.images([file]).content(0)

    def images(self, files: Sequence[Path | str]) -> Images:
        """Some members as images."""
        paths = [os.path.normpath(file) for file in files]
        names = Words.of(path.removeprefix(f"{self.root}/") for path in paths)
        return EncodedImages(self.files, self.places[[self.rows[path] for path in paths]], names)


def _members(file: Path, _: Path) -> Mapping[str, NDArray[Any]]:
    """Where the files in an archive lie.

    Raises:
        DataError: It is damaged or encrypted, or a member leads out of it.
    """
    damage = (zipfile.BadZipFile, tarfile.TarError, struct.error, OSError, NotImplementedError, EOFError)
    names, places, links = list[str](), list[tuple[int, int, int, int]](), 0
    with raised_as(DataError, f"{file} cannot be read as an archive", "make or download it again", damage):
        for name, *place in (_in_tar if file.suffix.lower() == TAR else _in_zip)(file):
            parts = PurePosixPath(name.replace("\\", "/")).parts
            if not parts or {"/", ".."} & {*parts} or parts[0].endswith(":"):
                problem = f"{file}: the member {name} leads out of the archive"
                raise DataError(problem, "an archive of relative names, made anew")
            if place[0] == LINK:
                links += 1
                continue
            names.append("/".join(parts))
            places.append((place[0], place[1], place[2], place[3]))
    if not names:
        raise DataError(f"{file} contains no files", "an archive of class folders")
    words, place = Words.of(names), np.array(places, np.int64)
    return {"place": place, "name": words.content, "name.ends": words.ends, "links": np.array([links], np.int64)}


def _in_zip(file: Path) -> Iterator[Place]:
    """The files in a zip."""
    with zipfile.ZipFile(file) as archive, open(file, "rb") as handle:
        for member in archive.infolist():
            if member.is_dir():
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                yield member.filename, LINK, 0, 0, 0
                continue
            if member.flag_bits & ENCRYPTED:
                raise DataError(f"{file}: the member {member.filename} is encrypted", unpack(file))
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                problem = f"{file}: the member {member.filename} is compressed by method {member.compress_type}"
                raise DataError(problem, unpack(file))
            handle.seek(member.header_offset)
            lengths = struct.unpack("<2H", handle.read(LOCAL)[-4:])
            deflated = member.compress_type == zipfile.ZIP_DEFLATED
            first = member.header_offset + LOCAL + sum(lengths)
            yield member.filename, first, member.compress_size, member.file_size, deflated


def _in_tar(file: Path) -> Iterator[Place]:
    """The files in a tar, which must end with zeros: behind a damaged header nothing is found."""
    with tarfile.open(file, "r:") as archive, open(file, "rb") as handle:
        while (member := archive.next()) is not None:
            archive.members.clear()  # all that was found  # pyrefly: ignore[missing-attribute]
            if member.isreg() and not member.issparse():
                yield member.name, member.offset_data, member.size, member.size, False
            elif not member.isdir():
                yield member.name, LINK, 0, 0, 0
        handle.seek(archive.offset)
        if any(handle.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError(f"damaged at byte {archive.offset:,}")
