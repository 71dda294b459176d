"""The file that holds the background of a model: at most 1 MB, as it is where all fits, else as JPEG of one quality.

JPEG works on blocks of 8 x 8 pixels and, where the colour has the resolution of the brightness (4:4:4, as here), on
each by itself. So a patch is first enlarged to a multiple of 8 pixels by repeating its last row and column: no block
holds pixels of two patches, and nothing of one shows in another. What is used is what is stored: values that JPEG
leaves unchanged.

    background               the values as they are
    jpeg, lengths, patch     JPEG files one behind the other, their bytes, and (height, width) of a patch
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import read_tensors, with_checksum
from vitrail.errors import DataError, counted
from vitrail.io import write_file

BACKGROUND = "background.safetensors"
REFERENCES = "references.safetensors"  # its name in format 1, which is read and never written
MOST = 64
MOST_BYTES = 2**20 - 4096  # of the images in the file; the rest is for its header
MOST_VALUES = 12 * 2**20  # of all images together: so much is decoded at most
QUALITY = 85
BLOCK = 8  # pixels on a side of what JPEG works on
LONGEST_SIDE = 65_500  # of a JPEG image
ROUNDS = 100  # of compressing again until nothing changes; photographs need about 15

Patch = tuple[int, int]  # height and width in pixels
Pixels = UInt8[Tensor, "_ c h w"]


def background_in(folder: Path) -> Path | None:
    """The file with the background in a model folder; None where there is none."""
    return next((folder / name for name in (BACKGROUND, REFERENCES) if (folder / name).exists()), None)


def read_background(file: Path, preprocessing: Preprocessing) -> Pixels:
    """The background in a file that a model was saved with, today or in format 1.

    Args:
        file: `background.safetensors`, or `references.safetensors` of format 1.
        preprocessing: The model's, which says the size.

    Raises:
        DataError: The file is missing or damaged, or its images are of another size.
    """
    hint = "delete the file (the model works without it), or the folder of another run"
    tensors = read_tensors(file, hint)
    if file.name == REFERENCES:  # called so, and their quality, which varied, is said
        tensors.pop("quality", None)
        tensors = {"background" if name == "references" else name: tensor for name, tensor in tensors.items()}
    try:
        if tensors.keys() == {"background"}:
            pixels = tensors["background"]
        else:
            pixels = decompress(*_files(tensors), preprocessing.channels, preprocessing.size)
    except ValueError as error:
        raise DataError(f"{file}: {error}", hint) from error
    problem = misfit(pixels, preprocessing)
    if problem:
        raise DataError(f"{file}: {problem}", hint)
    return pixels


def write_background(folder: Path, pixels: Pixels | None, patch: Patch | None) -> None:
    """Write the background into a model folder, and remove that of a former model where there is none."""
    if pixels is not None and patch is not None:
        write_file(folder / BACKGROUND, background_bytes(pixels, patch))
    else:
        (folder / BACKGROUND).unlink(missing_ok=True)
    (folder / REFERENCES).unlink(missing_ok=True)


def background_bytes(pixels: Pixels, patch: Patch) -> bytes:
    """The content of a file from which `read_background` gives back these images; of settled ones, these very values.

    Args:
        pixels: The background; what does not fit in the file is left out.
        patch: Height and width of a patch, in pixels.
    """
    kept, files = that_fit(pixels.cpu(), patch)
    if not files:
        return with_checksum({"background": kept.contiguous()})
    return with_checksum(
        {
            "jpeg": torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8),
            "lengths": torch.tensor([len(file) for file in files], dtype=torch.int64),
            "patch": torch.tensor(patch, dtype=torch.int64),
        }
    )


def settle(pixels: Pixels, patch: Patch) -> Pixels:
    """What the file gives back of these: the same where they are stored as they are, else without what JPEG leaves out.

    They are compressed until nothing changes any more, so that what is settled is stored without a loss.

    Args:
        pixels: Values 0..255.
        patch: Height and width of a patch, in pixels; they divide those of an image.

    Returns:
        As many of the first as fit in the file.
    """
    kept, files = that_fit(pixels, patch)
    if not files:
        return kept
    size, settled = (pixels.shape[2], pixels.shape[3]), []
    for one in kept.split(1):
        for _ in range(ROUNDS):
            again = decompress(_jpegs(one, patch), patch, pixels.shape[1], size)
            if torch.equal(again, one):
                break
            one = again
        settled.append(one)
    return that_fit(torch.cat(settled), patch)[0]


def that_fit(pixels: Pixels, patch: Patch) -> tuple[Pixels, list[bytes]]:
    """As many of the first as the file holds, and their JPEG files; no files where they are stored as they are."""
    room = min(MOST, MOST_BYTES // max(1, pixels[:1].numel()))
    if len(pixels) <= room:
        return pixels, []
    files = _jpegs(pixels, patch)
    fit = min(MOST, int((np.cumsum([len(file) for file in files]) <= MOST_BYTES).sum()))
    return (pixels[:fit], files[:fit]) if fit > room else (pixels[:room], [])


def is_large(pixels: Pixels) -> bool:
    """Whether these are more bytes than the file may have."""
    return pixels.numel() > MOST_BYTES


def misfit(pixels: Tensor, preprocessing: Preprocessing) -> str:
    """Why this is no background for a model with this preprocessing; empty where it is."""
    wanted = (preprocessing.channels, *preprocessing.size)
    if pixels.dtype == torch.uint8 and pixels.dim() == 4 and tuple(pixels.shape[1:]) == wanted:
        return "" if len(pixels) else "there is not one image in the background"
    shape, kind = " x ".join(map(str, pixels.shape)), str(pixels.dtype).removeprefix("torch.")
    return f"the background is {shape} of {kind}, the model takes r x {' x '.join(map(str, wanted))} of uint8"


def card_words(pixels: Pixels) -> str:
    """What a model card says of the background that lies beside it, and how to leave it out."""
    how = " (as JPEG, with a small loss)" if is_large(pixels) else ""
    return (
        f"`{BACKGROUND}` holds {counted(len(pixels), 'image')}{how} put together from patches of training images, each "
        "patch from an image drawn at random, against which explanations are tested; delete the file, or train with "
        "`--no-background`, to leave them out."
    )


def _jpegs(pixels: Pixels, patch: Patch) -> list[bytes]:
    """Each image as JPEG, its patches enlarged by their last row and column; none where that is too large."""
    channels, height, width = pixels.shape[1:]
    sheet = _sheet_size(channels, (height, width), patch)
    if sheet is None:
        return []
    below, beside = -patch[0] % BLOCK, -patch[1] % BLOCK
    cut = pixels.permute(0, 2, 3, 1).numpy()
    cut = cut.reshape(-1, height // patch[0], patch[0], width // patch[1], patch[1], channels)
    enlarged = np.pad(cut, ((0, 0), (0, 0), (0, below), (0, 0), (0, beside), (0, 0)), mode="edge")
    files = []
    for values in enlarged.reshape(-1, *sheet, channels):
        content = io.BytesIO()
        Image.fromarray(values[..., 0] if channels == 1 else values).save(
            content, "JPEG", quality=QUALITY, subsampling=0
        )
        files.append(content.getvalue())
    return files


def _sheet_size(channels: int, size: tuple[int, int], patch: Patch) -> tuple[int, int] | None:
    """(height, width) of an image whose patches are enlarged to multiples of 8 pixels; None where it is no JPEG."""
    if min(patch) < 1 or size[0] % patch[0] or size[1] % patch[1]:
        return None
    height, width = (length // part * -(-part // BLOCK) * BLOCK for length, part in zip(size, patch, strict=True))
    return (height, width) if max(height, width) <= LONGEST_SIDE and channels * height * width <= MOST_VALUES else None


def decompress(files: Sequence[bytes], patch: Patch, channels: int, size: tuple[int, int]) -> Pixels:
    """The images in JPEG files.

    Args:
        files: From anyone; nothing in them is trusted.
        patch: Height and width of a patch, in pixels.
        channels: Of an image.
        size: Its height and width, in pixels.

    Raises:
        ValueError: A file cannot be decoded or is not of this size, or there are too many; says which.
    """
    sheet = _sheet_size(channels, size, patch)
    if sheet is None or not 1 <= len(files) <= MOST or len(files) * channels * size[0] * size[1] > MOST_VALUES:
        raise ValueError(f"it says {len(files)} images of {size[0]} x {size[1]} pixels in patches of {patch}")
    rows, columns, mode = size[0] // patch[0], size[1] // patch[1], "L" if channels == 1 else "RGB"
    pixels = torch.empty(len(files), channels, *size, dtype=torch.uint8)
    for number, file in enumerate(files):
        try:
            with JpegImageFile(io.BytesIO(file)) as image:
                found = (image.height, image.width, image.mode)
                if found != (*sheet, mode):  # compared before anything is decoded
                    raise ValueError(f"{found[0]} x {found[1]} pixels of mode {found[2]}, not {sheet} of mode {mode}")
                decoded = np.array(image)
        except Exception as error:  # Pillow's readers raise nearly every kind of error on damaged files
            words = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"image {number + 1} cannot be used: {words}") from error
        cut = decoded.reshape(rows, sheet[0] // rows, columns, sheet[1] // columns, channels)
        cut = cut[:, : patch[0], :, : patch[1]].reshape(*size, channels)
        pixels[number] = torch.from_numpy(np.ascontiguousarray(cut)).permute(2, 0, 1)
    return pixels


def _files(tensors: dict[str, Tensor]) -> tuple[list[bytes], Patch]:
    """The JPEG files in the tensors of a file, and the patch.

    Raises:
        ValueError: They are not what `background_bytes` writes.
    """
    kinds = {name: (tensor.dtype, tensor.dim()) for name, tensor in sorted(tensors.items())}
    if kinds != {"jpeg": (torch.uint8, 1), "lengths": (torch.int64, 1), "patch": (torch.int64, 1)}:
        raise ValueError(f"it holds {', '.join(' '.join(name.split()) for name in kinds) or 'nothing'}, no background")
    content, lengths, patch = tensors["jpeg"].numpy().tobytes(), tensors["lengths"].tolist(), tensors["patch"].tolist()
    if min(lengths, default=0) < 1 or sum(lengths) != len(content) or len(patch) != 2:
        raise ValueError(f"its {len(lengths)} images do not have the {len(content)} bytes of the file")
    ends = np.cumsum(lengths).tolist()
    return [content[end - length : end] for end, length in zip(ends, lengths, strict=True)], (patch[0], patch[1])
