"""The file of a model's references: their values as they are, or as JPEG where these would take too much room.

At most 300 KB hold 64 pictures of 28 x 28 pixels, but only two of 224 x 224 in colour. Larger ones are compressed, each
reference as a JPEG picture of its own. JPEG works on blocks of 8 x 8 pixels and, where the colour has the resolution of
the brightness (4:4:4, as here), on each block by itself. So a patch is first enlarged to a multiple of 8 pixels by
repeating its last row and column: no block holds pixels of two patches, and nothing of one shows in another.

A compressed picture that is compressed again loses again. So a model keeps the JPEG pictures that its references were
decoded from, and saving it writes the same bytes.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import read_tensors, with_checksum
from vitrail.errors import DataError

REFERENCES = "references.safetensors"
MOST = 64
MOST_BYTES = 300 * 1024  # of the whole file
HEADER_BYTES = 1024  # more than the header of the file ever has
LENGTH_BYTES = 1024  # more than the lengths of the JPEG pictures take, and what else is not their bytes
MOST_VALUES = 12 * 2**20  # of all references together: more never fit in 300 KB, and this much is decoded at most
BLOCK = 8  # pixels on a side of what JPEG works on
LONGEST_SIDE = 65_500  # of a JPEG picture
ENOUGH_AT = {95: 16, 90: 16, 85: 16, 80: 16, 75: 10, 70: 10, 65: 10, 60: 10}
"""The qualities that are tried, and how many references let one do; below ten, no test is calibrated."""

Patch = tuple[int, int]
Sheet = UInt8[np.ndarray, "_ _"] | UInt8[np.ndarray, "_ _ 3"]  # what Pillow takes for grey and for colour


@dataclass(frozen=True)
class Compressed:
    """References as JPEG pictures.

    Attributes:
        pictures: The bytes of a JPEG picture for each reference, its patches enlarged to multiples of 8 pixels.
        patch: Height and width of a patch, in pixels, before that.
        quality: Pillow's, 1..95.
    """

    pictures: tuple[bytes, ...]
    patch: Patch
    quality: int


class References(NamedTuple):
    """Reference pictures, and what they were decoded from where they are stored with a loss."""

    pixels: UInt8[Tensor, "r c h w"]
    compressed: Compressed | None = None


def most_uncompressed(channels: int, size: tuple[int, int]) -> int:
    """How many references the file holds as they are."""
    return min(MOST, (MOST_BYTES - HEADER_BYTES) // (channels * size[0] * size[1]))


def compress(pictures: UInt8[Tensor, "r c h w"], patch: Patch) -> Compressed | None:
    """The first of some references as JPEG, as many as the file holds.

    The quality is the highest of 95, 90, 85 and 80 at which 16 of them fit (or all, where there are fewer); else 75
    with as many as fit. Only where these are fewer than ten, it goes down further, to 60.

    Args:
        pictures: Values 0..255; one channel (grey) or three.
        patch: Height and width of a patch, in pixels; they divide those of a picture.

    Returns:
        None where not even one fits.
    """
    channels, size = pictures.shape[1], (pictures.shape[2], pictures.shape[3])
    if problem_of_sheet(channels, size, patch):
        return None
    kept: tuple[bytes, ...] = ()
    quality = 0
    for quality, enough in ENOUGH_AT.items():
        kept = tuple(_that_fit(_jpeg(sheet_of(picture, patch), quality) for picture in pictures))
        if len(kept) >= min(enough, len(pictures)):
            break
    return Compressed(kept, patch, quality) if kept else None


def _that_fit(files: Iterable[bytes]) -> Iterator[bytes]:
    left = MOST_BYTES - HEADER_BYTES - LENGTH_BYTES
    for file in files:
        left -= len(file)
        if left < 0:
            return
        yield file


def _jpeg(sheet: Sheet, quality: int) -> bytes:
    """No chroma subsampling. Pillow's `optimize` would save 4 %, and fails on noise (its buffer is too small)."""
    content = io.BytesIO()
    Image.fromarray(sheet).save(content, "JPEG", quality=quality, subsampling=0)
    return content.getvalue()


def sheet_size(size: tuple[int, int], patch: Patch) -> tuple[int, int]:
    """Height and width of a picture whose patches are enlarged to multiples of 8 pixels."""
    height, width = (length // part * -(-part // BLOCK) * BLOCK for length, part in zip(size, patch, strict=True))
    return height, width


def problem_of_sheet(channels: int, size: tuple[int, int], patch: Patch) -> str:
    """Why pictures of this size and patches are not compressed; empty where they are."""
    if min(patch) < 1 or size[0] % patch[0] or size[1] % patch[1]:
        return f"patches of {patch[0]} x {patch[1]} pixels do not divide pictures of {size[0]} x {size[1]}"
    height, width = sheet_size(size, patch)
    if max(height, width) > LONGEST_SIDE or channels * height * width > MOST_VALUES:
        return f"a JPEG picture of {height} x {width} pixels is too large"
    return ""


def sheet_of(picture: UInt8[Tensor, "c h w"], patch: Patch) -> Sheet:
    """A picture whose patches are enlarged to multiples of 8 pixels, by their last row and column."""
    channels, height, width = picture.shape
    cut = picture.permute(1, 2, 0).numpy().reshape(height // patch[0], patch[0], width // patch[1], patch[1], channels)
    below, beside = -patch[0] % BLOCK, -patch[1] % BLOCK
    enlarged = np.pad(cut, ((0, 0), (0, below), (0, 0), (0, beside), (0, 0)), mode="edge")
    sheet = enlarged.reshape(*sheet_size((height, width), patch), channels)
    return sheet[..., 0] if channels == 1 else sheet


def decompress(compressed: Compressed, channels: int, size: tuple[int, int]) -> UInt8[Tensor, "r c h w"]:
    """The references in JPEG pictures.

    Args:
        compressed: From anyone; nothing in it is trusted.
        channels: Of a reference.
        size: Its height and width, in pixels.

    Raises:
        ValueError: A picture cannot be decoded or is not of this size, or there are too many; says which.
    """
    count, patch = len(compressed.pictures), compressed.patch
    problem = problem_of_sheet(channels, size, patch)
    if problem:
        raise ValueError(problem)
    if not 1 <= count <= MOST or count * channels * size[0] * size[1] > MOST_VALUES:
        raise ValueError(f"there are {count} references of {size[0]} x {size[1]} pixels")
    (height, width), rows, columns = sheet_size(size, patch), size[0] // patch[0], size[1] // patch[1]
    pixels = torch.empty(count, channels, *size, dtype=torch.uint8)
    for number, file in enumerate(compressed.pictures):
        try:
            sheet = _decoded(file, (height, width), channels)
        except Exception as error:  # Pillow's readers raise nearly every kind of error on damaged files
            words = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"picture {number + 1} cannot be used: {words}") from error
        cut = sheet.reshape(rows, height // rows, columns, width // columns, channels)[:, : patch[0], :, : patch[1]]
        pixels[number] = torch.from_numpy(cut.reshape(*size, channels)).permute(2, 0, 1)
    return pixels


def _decoded(file: bytes, size: tuple[int, int], channels: int) -> Sheet:
    """A JPEG picture's values; its size is compared before anything is decoded.

    Raises:
        ValueError: It is of another size or mode. Pillow may raise other errors.
    """
    mode = "L" if channels == 1 else "RGB"
    with JpegImageFile(io.BytesIO(file)) as picture:
        if (picture.height, picture.width, picture.mode) != (*size, mode):
            raise ValueError(
                f"it has {picture.height} x {picture.width} pixels of mode {picture.mode}, "
                f"the model takes {size[0]} x {size[1]} of mode {mode}"
            )
        return np.array(picture)


def still_of(compressed: Compressed | None, pixels: UInt8[Tensor, "r c h w"]) -> Compressed | None:
    """What references were decoded from; None where there is no such thing, or where they have been replaced since."""
    if compressed is None or len(compressed.pictures) != len(pixels):
        return None
    try:
        decoded = decompress(compressed, pixels.shape[1], (pixels.shape[2], pixels.shape[3]))
    except ValueError:
        return None
    return compressed if torch.equal(decoded, pixels.cpu()) else None


def references_file(pixels: UInt8[Tensor, "r c h w"], compressed: Compressed | None = None) -> bytes:
    """The content of a file from which `read_references` gives back just these references.

    Args:
        pixels: The references.
        compressed: What they were decoded from. These bytes are stored where they still are of these references; else,
            and where there are none, the values themselves are, however many bytes that takes.
    """
    compressed = still_of(compressed, pixels)
    if compressed is None:
        return with_checksum({"references": pixels.cpu().contiguous()})
    lengths = [len(picture) for picture in compressed.pictures]
    return with_checksum(
        {
            "jpeg": torch.frombuffer(bytearray(b"".join(compressed.pictures)), dtype=torch.uint8),
            "lengths": torch.tensor(lengths, dtype=torch.int64),
            "patch": torch.tensor(compressed.patch, dtype=torch.int64),
            "quality": torch.tensor([compressed.quality], dtype=torch.int64),
        }
    )


def read_references(file: Path, preprocessing: Preprocessing) -> References:
    """The references in a file that a model was saved with.

    Args:
        file: Its `references.safetensors`.
        preprocessing: The model's, which says the size.

    Raises:
        DataError: The file is missing or damaged, or its pictures are of another size.
    """
    hint = "delete the file (the model works without it), or the folder of another run"
    tensors = read_tensors(file, hint)
    if "jpeg" not in tensors:
        found = tensors.get("references")
        if found is None or len(tensors) != 1:
            names = ", ".join(" ".join(name.split()) for name in sorted(tensors)) or "nothing"
            raise DataError(f"{file} holds {names}, not references", hint)
        problem = misfit(found, preprocessing)
        if problem:
            raise DataError(f"{file}: {problem}", hint)
        return References(found)
    try:
        compressed = _compressed(tensors)
        return References(decompress(compressed, preprocessing.channels, preprocessing.size), compressed)
    except ValueError as error:
        raise DataError(f"{file}: {error}", hint) from error


def _compressed(tensors: dict[str, Tensor]) -> Compressed:
    """What the tensors of a file hold.

    Raises:
        ValueError: They are not what `references_file` writes.
    """
    kinds = {name: (tensor.dtype, tensor.dim()) for name, tensor in sorted(tensors.items())}
    numbers = (torch.int64, 1)
    if kinds != {"jpeg": (torch.uint8, 1), "lengths": numbers, "patch": numbers, "quality": numbers}:
        raise ValueError("it holds other tensors than those of compressed references")
    content = tensors["jpeg"].numpy().tobytes()
    if len(content) > MOST_BYTES or len(tensors["lengths"]) > MOST:
        raise ValueError(f"it holds {len(tensors['lengths'])} pictures in {len(content)} bytes, more than a model has")
    lengths, patch, quality = (tensors[name].tolist() for name in ("lengths", "patch", "quality"))
    if min(lengths, default=0) < 1 or sum(lengths) != len(content):
        raise ValueError(f"its {len(lengths)} pictures do not have the {len(content)} bytes of the file")
    if len(patch) != 2 or len(quality) != 1 or not 1 <= quality[0] <= 100:
        raise ValueError("it does not say the patch and the quality")
    ends = np.cumsum(lengths).tolist()
    pictures = tuple(content[end - length : end] for end, length in zip(ends, lengths, strict=True))
    return Compressed(pictures, (patch[0], patch[1]), quality[0])


def misfit(references: Tensor, preprocessing: Preprocessing) -> str:
    """Why these are no references for a model with this preprocessing; empty where they are."""
    wanted = (preprocessing.channels, *preprocessing.size)
    if references.dtype == torch.uint8 and references.dim() == 4 and tuple(references.shape[1:]) == wanted:
        return "" if len(references) else "there is not one reference"
    shape, kind = " x ".join(map(str, references.shape)), str(references.dtype).removeprefix("torch.")
    return f"references are {shape} of {kind}, the model takes r x {' x '.join(map(str, wanted))} of uint8"
