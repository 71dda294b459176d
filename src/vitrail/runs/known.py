"""The images that a model was trained on, and how others hang together with them.

    content    the same file, or the same pixels where there are no files, wherever it lies
    group      an image of the same recording, patient or scene, where the data name groups
    near       the same picture saved again, resized or mirrored, where such are told from strangers

An image has the first of these ties that holds.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray

from vitrail.data.batches import Batches
from vitrail.data.columns import GROUP, TRAIN, Samples
from vitrail.data.images import HASH
from vitrail.data.loader import CONTENT, OF_GROUP, OF_PICTURE, Contents, Loader, are_read, no_contents, of_hashes
from vitrail.data.pictures import Hashes, are_alike, are_told_apart
from vitrail.data.tensor_files import write_tensors

INITIAL, EVALUATED = "initial", "evaluated"  # among the splits of which a run knows the images
TIES = "content", "group", "near"  # how an image hangs together with one that was trained on, the closest first


class TrainedOn:
    """The images that a model was trained on, known wherever they lie.

    Args:
        contents: (n, 64) as `Loader.contents` has it; images that were not read do not count.

    Attributes:
        by_picture: Whether near copies are looked for: not where strangers are as near, such as digits are.
    """

    def __init__(self, contents: Contents) -> None:
        read = contents[are_read(contents)]
        self._known, groups = np.sort(_keys(read[:, CONTENT])), read[:, OF_GROUP]
        self._groups = np.unique(_keys(groups[groups.any(axis=1)]))
        self._pictures = _pictures(read[read[:, OF_PICTURE].any(axis=1)])
        self.by_picture = len(self._pictures) > 0 and are_told_apart(self._pictures)

    def __len__(self) -> int:
        """How many there are; 0 where none is known."""
        return len(self._known)

    @property
    def has_groups(self) -> bool:
        """Whether groups of them are known."""
        return len(self._groups) > 0

    def has(self, contents: Contents) -> Bool[np.ndarray, " n"]:
        """Whether each of some images is one of them, by its content."""
        return _among(self._known, contents[:, CONTENT])

    def ties(self, contents: Contents) -> Int64[np.ndarray, " n"]:
        """How each of some images hangs together with them: 1 + its number in `TIES`, or 0."""
        groups = contents[:, OF_GROUP]
        of_group = groups.any(axis=1) & _among(self._groups, groups)
        found = np.select([self.has(contents), of_group], [1, 2], 0)
        asked = np.flatnonzero((found == 0) & contents[:, OF_PICTURE].any(axis=1))
        if self.by_picture and len(asked):
            found[asked[are_alike(_pictures(contents[asked]), self._pictures)]] = 3
        return found


def _keys(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Their first half, which is sorted in a moment: of 5,000,000 images and as many others two agree once in 10^6."""
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64)[:, 0]


def _among(known: NDArray[np.uint64], hashes: NDArray[np.uint8]) -> Bool[np.ndarray, " n"]:
    """Whether each of some hashes is one of those that are known, in order."""
    keys = _keys(hashes)
    if not len(known):
        return np.zeros(len(keys), dtype=bool)
    return known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys


def _pictures(contents: Contents) -> Hashes:
    return np.ascontiguousarray(contents[:, OF_PICTURE]).view(np.uint64)


NOT_KNOWN = TrainedOn(no_contents(0))


def learn_groups(loader: Loader, samples: Samples) -> None:
    """Have a loader know the group of each of its images, where the samples name groups; one alone has none."""
    if GROUP not in samples.columns or not len(loader.contents):
        return
    pairs = zip(samples.units(), samples.inputs.names(), strict=True)
    hashes = [b"" if unit in ("", name) else _hash_of(unit) for unit, name in pairs]
    loader.learn(np.arange(len(samples)), of_hashes(hashes, OF_GROUP))


def _hash_of(group: str) -> bytes:
    name = group.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(name, digest_size=HASH, person=b"group").digest()


class Seen:
    """What a training knows of the images that it reads.

    Args:
        loaders: That read them, by split.
        earlier: (n, 64) the images that its initial weights, or a teacher, were trained on.
    """

    def __init__(self, loaders: Mapping[str, Loader], earlier: Contents) -> None:
        self.loaders, self.earlier, self._written = loaders, earlier, 0
        self._trained = NOT_KNOWN

    @property
    def trained(self) -> TrainedOn:
        """The images that the network has been trained on."""
        known = np.concatenate([self.loaders[TRAIN].contents, self.earlier])
        if are_read(known).sum() != len(self._trained):
            self._trained = TrainedOn(known)
        return self._trained

    def others(self, batches: Batches) -> Batches:
        """Of some images those that have no tie with what it was trained on; all of them if there are none."""
        ids = np.arange(len(batches), dtype=np.int64)
        others = ids[self.trained.ties(batches.contents(ids)) == 0]
        return batches.subset(others) if 0 < len(others) < len(ids) else batches

    def recall(self, contents: Mapping[str, Contents]) -> None:
        """Take what was known when a run was saved; see `Run.contents`."""
        for name, loader in self.loaders.items():
            if len(known := contents.get(name, no_contents(0))) == len(loader.contents):
                loader.learn(np.arange(len(known)), known)
        self.earlier = contents.get(INITIAL, self.earlier)

    def write(self, file: Path, evaluated: Contents | None = None) -> None:
        """Write it, with the images of the evaluation, where there is more to know than was written before."""
        known = {name: loader.contents for name, loader in self.loaders.items()} | {INITIAL: self.earlier}
        known |= {} if evaluated is None else {EVALUATED: evaluated}
        count = sum(int(are_read(each).sum()) for each in known.values())
        if count > self._written:
            write_tensors(file, {name: torch.from_numpy(each) for name, each in known.items()})
            self._written = count
