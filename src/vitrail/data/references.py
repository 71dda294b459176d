"""Reference pictures: what a patch is replaced by when an explanation is put to the test.

A patch that is painted grey is unlike anything the network has learnt. A patch of another picture, at the same place,
is not. So a trained model carries references, which are put together from patches of training pictures: the patch at
position p of reference j comes from picture pi_p(j), and every position has a permutation pi_p of its own. Two patches
of a reference belong together no more than by chance, and most patches of a picture are in no reference at all.
How they are stored, and at which loss, is in `reference_files.py`.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.data.decode import open_picture
from vitrail.data.images import Images
from vitrail.data.loader import load_resident
from vitrail.data.plan import uniforms
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.folder import picture_files
from vitrail.data.reference_files import (
    ENOUGH_AT,
    MOST,
    MOST_BYTES,
    MOST_VALUES,
    REFERENCES,
    Compressed,
    Patch,
    References,
    compress,
    decompress,
    most_uncompressed,
    read_references,
    still_of,
)
from vitrail.errors import DataError, UsageError

SOURCES = 4  # pictures that a reference is drawn from, at least: a picture gives a quarter of its patches, on average
FEW = 10  # with fewer, pictures put together of them are too much alike to say what is exceptional
LEAST_PATCHES = 4  # where a picture has fewer, a patch shows too much of it

_CHOICE, _PLACES = 20, 21  # streams of random numbers, see `plan.py`


def make_references(pictures: UInt8[Tensor, "k c h w"], patch: Patch, seed: int) -> UInt8[Tensor, "r c h w"]:
    """Images whose patches come from different ones of the given pictures, each patch from where it stood.

    The patch at position p of reference j is that of picture pi_p(j), where pi_p is a random permutation of the
    pictures, drawn for each position independently.

    Args:
        pictures: Values 0..255, of the network's size.
        patch: Height and width of a patch, in pixels; they divide those of a picture.
        seed: Of the permutations.

    Returns:
        r = min(64, k / 4) references, rounded down; fewer where pictures have more than 192 KB, since no more could be
        stored; none where there are fewer than four patches in a picture.

    Raises:
        UsageError: The patches do not divide the pictures.
    """
    count, channels, height, width = pictures.shape
    if height % patch[0] or width % patch[1]:
        raise UsageError(
            f"pictures of {height}x{width} pixels cannot be cut into patches of {patch[0]}x{patch[1]}",
            "the patch size of the network that the pictures are for",
        )
    rows, columns = height // patch[0], width // patch[1]
    kept = references_of(count, channels, (height, width), patch)
    order = uniforms(np.arange(count, dtype=np.int64), rows * columns, seed=seed, epoch=0, stream=_PLACES)
    chosen = torch.from_numpy(np.argsort(order, axis=0, kind="stable")[:kept]).unflatten(1, (rows, columns))
    patches = pictures.unflatten(3, (columns, patch[1])).unflatten(2, (rows, patch[0]))  # k c gh ph gw pw
    down, across = torch.arange(rows)[:, None], torch.arange(columns)
    picked = patches.permute(0, 2, 4, 1, 3, 5)[chosen, down, across]  # r gh gw c ph pw
    return picked.permute(0, 3, 1, 4, 2, 5).reshape(kept, channels, height, width).contiguous()


def references_of(count: int, channels: int, size: tuple[int, int], patch: Patch) -> int:
    """How many references are put together; as many as can be stored are kept.

    Args:
        count: Images that they may be drawn from.
        channels: Of a picture.
        size: Its height and width in pixels.
        patch: Height and width of a patch, in pixels.
    """
    if (size[0] // patch[0]) * (size[1] // patch[1]) < LEAST_PATCHES:
        return 0
    return min(MOST, MOST_VALUES // (channels * size[0] * size[1]), count // SOURCES)


def said_of_references(references: References | None, preprocessing: Preprocessing, patch: Patch, count: int) -> str:
    """What a training says of the references that its model will carry, or why `draw_references` found none.

    Args:
        references: What was drawn.
        preprocessing: The model's.
        patch: Height and width of the network's patches, in pixels.
        count: Of the training pictures.
    """
    if references is not None:
        kept, compressed = len(references.pixels), references.compressed
        what = "1 reference" if kept == 1 else f"{kept} references"
        how = "" if compressed is None else f" (stored as JPEG of quality {compressed.quality})"
        few = "" if kept >= FEW else "; so few say little: test explanations with a folder of pictures too"
        return (
            f"{what}, shuffled patches of training pictures{how}, will travel with the model; "
            f"--no-background for none{few}"
        )
    (height, width), channels = preprocessing.size, preprocessing.channels
    if (height // patch[0]) * (width // patch[1]) < LEAST_PATCHES:
        why = f"in patches of {patch[0]} x {patch[1]}, one of {height} x {width} pixels would show too much"
    elif count >= SOURCES and not most_uncompressed(channels, (height, width)):
        worst, limit = min(ENOUGH_AT), MOST_BYTES // 1024
        why = f"one of {height} x {width} pixels has more than {limit} KB, even as JPEG of quality {worst}"
    else:
        why = f"they are drawn from {SOURCES} training pictures or more"
    return f"no references: {why}; explanations can be tested with a folder of pictures"


def about_references(references: UInt8[Tensor, "r c h w"], compressed: Compressed | None = None) -> str:
    """What a model card says of the references that lie beside it, and how to leave them out.

    Args:
        references: The model's.
        compressed: What they were decoded from, if anything.
    """
    holds = "a picture" if len(references) == 1 else f"{len(references)} pictures"
    compressed = still_of(compressed, references)
    how = "" if compressed is None else f" (as JPEG of quality {compressed.quality}, with a small loss)"
    return (
        f"`{REFERENCES}` holds {holds}{how} put together from patches of training pictures, each patch from a picture "
        "drawn at random, against which explanations are tested; delete the file, or train with `--no-background`, to "
        "leave them out."
    )


def draw_references(
    pictures: Images, preprocessing: Preprocessing, patch: Patch, seed: int, threads: int = 1
) -> References | None:
    """References for a model, from pictures that it is trained on, as it sees them and without augmentation.

    Args:
        pictures: Those of the training split, and no others.
        preprocessing: The model's.
        patch: Height and width of the network's patches, in pixels.
        seed: Decides which pictures and which patches.
        threads: Images decoded at the same time.

    Returns:
        The references as they can be stored in 300 KB: as they are where all fit so, else compressed where that keeps
        more of them, with the values that are decoded again. None where not one can be kept. Images that cannot be
        read are passed over.
    """
    wanted = references_of(len(pictures), preprocessing.channels, preprocessing.size, patch)
    if not wanted:
        return None
    order = uniforms(np.arange(len(pictures), dtype=np.int64), 1, seed=seed, epoch=0, stream=_CHOICE)[:, 0]
    drawn = np.argsort(order, kind="stable")[: SOURCES * wanted]
    loader = load_resident(pictures.select(drawn.tolist()), preprocessing, threads)
    (loaded,) = loader.fetch([np.arange(len(drawn))])
    made = make_references(loaded.pixels[loaded.readable], patch, seed)
    uncompressed = most_uncompressed(preprocessing.channels, preprocessing.size)
    compressed = compress(made, patch) if len(made) > uncompressed else None
    if compressed is not None and len(compressed.pictures) > uncompressed:
        return References(decompress(compressed, preprocessing.channels, preprocessing.size), compressed)
    kept = made[:uncompressed].clone()
    return References(kept) if len(kept) else None


def open_references(
    place: Path, preprocessing: Preprocessing, note: Callable[[str], None] = lambda sentence: None
) -> Float[Tensor, "r c h w"]:
    """Reference pictures of a person's own, for a model that carries none or to test it against others.

    Args:
        place: A folder of pictures, of which 64 are taken, evenly spread over the sorted files; a single picture; or
            the run, model folder or `references.safetensors` of a model of the same size.
        preprocessing: The model's; pictures of any size are brought to its size.
        note: Gets a sentence for each picture that is left out because it cannot be read, and one where pictures are
            smaller than the model's.

    Returns:
        Normalised pictures, as the network takes them.

    Raises:
        DataError: There is no such place, no picture in it or none that can be read, or references of another size.
    """
    for saved in (place, place / REFERENCES, place / "model" / REFERENCES):
        if saved.suffix == ".safetensors" and saved.is_file():
            return preprocessing.normalise(read_references(saved, preprocessing).pixels)
    files = _spread(_files(place))
    pixels, problems, small = [], [], 0
    for file in files:
        try:
            picture = open_picture(file)
            pixels.append(preprocessing.to_uint8(picture))
        except DataError as error:
            problems.append(error.problem)
        else:
            small += picture.height < preprocessing.size[0] or picture.width < preprocessing.size[1]
    if not pixels:
        others = f" (and {len(problems) - 1} more that cannot be read)" if len(problems) > 1 else ""
        raise DataError(f"no reference can be read: {problems[0]}{others}", "--reference with a folder of pictures")
    for problem in problems:
        note(f"left out: {problem}")
    if small:
        height, width = preprocessing.size
        note(
            f"{small} of {len(pixels)} reference pictures are smaller than {width} x {height} pixels: they are enlarged"
        )
    return preprocessing.normalise(torch.stack(pixels))


def _files(place: Path) -> list[Path]:
    """The picture files in a place.

    Raises:
        DataError: There is no such place, or no picture in it.
    """
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise DataError(f"there is no folder {place} with reference pictures", "--reference with a folder of pictures")
    try:
        files = picture_files(place)
    except OSError as error:
        raise DataError(
            f"{error.filename or place} cannot be read ({error.strerror})", "check its permissions"
        ) from error
    if not files:
        raise DataError(f"{place} has no reference picture", "--reference with a folder of pictures")
    return files


def _spread(files: list[Path]) -> list[Path]:
    return [files[index * len(files) // MOST] for index in range(MOST)] if len(files) > MOST else files
