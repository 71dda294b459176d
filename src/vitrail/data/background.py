"""The background of a model: what a patch is replaced by when an explanation is put to the test.

A patch that is painted grey is unlike anything the network has learnt. A patch of another image, at the same place, is
not. So a trained model carries a background: images put together from patches of training images, see
`background_sources.py`; a model of ImageNet's classes that carries none borrows photographs.

It is stored in one file of at most 1 MB: as it is where all fits, else as JPEG of one quality. JPEG works on blocks of
8 x 8 pixels and, where the colour has the resolution of the brightness (4:4:4, as here), on each by itself. So a patch
is first enlarged to a multiple of 8 pixels by repeating its last row and column: no block holds pixels of two patches,
and nothing of one shows in another. What is used is what is stored: values that JPEG leaves unchanged.

    background               the values as they are
    jpeg, lengths, patch     JPEG files one behind the other, their bytes, and (height, width) of a patch
"""

import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vitrail.data.images import open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import read_tensors, tensors_to_bytes
from vitrail.errors import DataError, counted
from vitrail.io import write_file

MOST = 64

BACKGROUND = "background.safetensors"
REFERENCES = "references.safetensors"  # its name in format 1, which is read and never written
MOST_BYTES = 2**20 - 4096  # of the images in the file; the rest is for its header
MOST_VALUES = 12 * 2**20  # of all images together: so much is decoded at most
QUALITY = 85
LONGEST_SIDE = 65_500  # of a JPEG image
BLOCK = 8  # pixels on a side of what JPEG works on
ROUNDS = 100  # of compressing again until nothing changes; photographs need about 15

PLACE = Path(__file__).with_name("photographs")
NAMES = ("astronaut", "brick", "camera", "coffee", "coins", "grass", "gravel", "hubble_deep_field", "retina", "rocket")
PART = 0.7  # of the shorter side: the squares in the four corners

Patch = tuple[int, int]  # height and width in pixels
Pixels = UInt8[Tensor, "_ c h w"]


@lru_cache(maxsize=2)
def photographs(preprocessing: Preprocessing) -> UInt8[Tensor, "r c h w"]:
    """Ten photographs, each as a whole, and its four corners: 50 images, fewer where they are very large.

    They come from scikit-image, which states of each that it is in the public domain, under CC0 or without known
    copyright restrictions: an astronaut and a galaxy cluster (NASA), a rocket (SpaceX), a cup of coffee (Rachel
    Michetti), a man with a camera (Lav Varshney), bricks and gravel (CC0Textures), grass (linolafett), a retina (Mikael
    Häggström), and coins (Brooklyn Museum). `benchmarks/photographs.py` made the files.

    How often "supported" is right and wrong with them on a real network stands in benchmarks/explain.md. For other
    classes than ImageNet's, such as those of X-rays, any image differs from these photographs, whatever it shows: they
    are not used there.

    Args:
        preprocessing: How images become what the network expects.

    Returns:
        Values 0..255, which the caller must not change.
    """
    images = [open_image(PLACE / f"{name}.jpg") for name in NAMES]
    for corner in range(4):
        for image in images[: len(NAMES)]:
            side = int(PART * min(image.size))
            left, upper = (image.width - side) * (corner % 2), (image.height - side) * (corner // 2)
            images.append(image.crop((left, upper, left + side, upper + side)))
    height, width = preprocessing.size
    most = max(len(NAMES), MOST_VALUES // (preprocessing.channels * height * width))
    return torch.stack([preprocessing.to_uint8(image) for image in images[:most]])


# ---- the file


def background_in(folder: Path) -> Path | None:
    """The file with the background in a model folder; None where there is none."""
    return next((folder / name for name in (BACKGROUND, REFERENCES) if (folder / name).exists()), None)


def read_background(file: Path, preprocessing: Preprocessing) -> Pixels:
    """The background in a file that a model was saved with, today or in format 1.

    Args:
        file: `background.safetensors`, or `references.safetensors` of format 1; nothing in it is trusted.
        preprocessing: The model's, which decides the size.

    Raises:
        DataError: The file is missing or damaged, or its images are of another size.
    """
    hint = "delete the file (the model works without it), or the folder of another run"
    tensors = read_tensors(file, hint)
    if file.name == REFERENCES:  # named so inside, too; and it holds the quality of its JPEG files, which varied
        tensors.pop("quality", None)
        tensors = {"background" if name == "references" else name: tensor for name, tensor in tensors.items()}
    try:
        pixels = tensors["background"] if tensors.keys() == {"background"} else _decompressed(tensors, preprocessing)
    except ValueError as error:
        raise DataError(f"{file}: {error}", hint) from error
    problem = misfit(pixels, preprocessing)
    if problem:
        raise DataError(f"{file}: {problem}", hint)
    return pixels


def _decompressed(tensors: dict[str, Tensor], preprocessing: Preprocessing) -> Pixels:
    """The images in the JPEG files of a file; raises ValueError where these are not what `background_bytes` writes."""
    kinds = {name: (tensor.dtype, tensor.dim()) for name, tensor in sorted(tensors.items())}
    if kinds != {"jpeg": (torch.uint8, 1), "lengths": (torch.int64, 1), "patch": (torch.int64, 1)}:
        raise ValueError(
            f"it contains {', '.join(' '.join(name.split()) for name in kinds) or 'nothing'}, and no background"
        )
    content, lengths, patch = tensors["jpeg"].numpy().tobytes(), tensors["lengths"].tolist(), tensors["patch"].tolist()
    if min(lengths, default=0) < 1 or sum(lengths) != len(content) or len(patch) != 2:
        raise ValueError(
            f"the sizes of its {len(lengths)} images do not add up to the {len(content)} bytes of the file"
        )
    (height, width), channels = preprocessing.size, preprocessing.channels
    few = len(lengths) <= MOST and len(lengths) * channels * height * width <= MOST_VALUES
    if not (few and _is_jpeg(channels, (height, width), (patch[0], patch[1]))):
        raise ValueError(f"it holds {len(lengths)} images of {height} x {width} pixels in patches of {patch}")
    pixels, ends = torch.empty(len(lengths), channels, height, width, dtype=torch.uint8), np.cumsum(lengths).tolist()
    for number, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        try:
            pixels[number] = from_jpeg(content[end - length : end], (patch[0], patch[1]), channels, (height, width))
        except Exception as error:  # Pillow's readers raise nearly every kind of error on damaged files
            words = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"image {number + 1} cannot be used: {words}") from error
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
    fitting, files = that_fit(pixels.cpu(), patch)
    if not files:
        return tensors_to_bytes({"background": fitting.contiguous()})
    return tensors_to_bytes(
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
    fitting, files = that_fit(pixels, patch)
    if not files:
        return fitting
    settled = fitting.clone()
    for image in settled:
        for _ in range(ROUNDS):
            again = from_jpeg(to_jpeg(image, patch), patch, image.shape[0], (image.shape[1], image.shape[2]))
            if torch.equal(again, image):
                break
            image.copy_(again)
    return that_fit(settled, patch)[0]


def that_fit(pixels: Pixels, patch: Patch) -> tuple[Pixels, list[bytes]]:
    """As many of the first as the file holds, and their JPEG files; no files where they are stored as they are."""
    room = min(MOST, MOST_BYTES // max(1, pixels[:1].numel()))
    if len(pixels) <= room or not _is_jpeg(pixels.shape[1], (pixels.shape[2], pixels.shape[3]), patch):
        return pixels[:room], []
    files = [to_jpeg(image, patch) for image in pixels]
    fit = min(MOST, int((np.cumsum([len(file) for file in files]) <= MOST_BYTES).sum()))
    return (pixels[:fit], files[:fit]) if fit > room else (pixels[:room], [])


def to_jpeg(image: UInt8[Tensor, "c h w"], patch: Patch) -> bytes:
    """An image as JPEG, each of its patches enlarged by its last row and column."""
    rows, columns = (_repeated(side, part) for side, part in zip(image.shape[1:], patch, strict=True))
    values, content = image.permute(1, 2, 0).numpy()[rows][:, columns], io.BytesIO()
    plain = Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)
    plain.save(content, "JPEG", quality=QUALITY, subsampling=0)
    return content.getvalue()


def from_jpeg(content: bytes, patch: Patch, channels: int, size: tuple[int, int]) -> UInt8[Tensor, "c h w"]:
    """The way back, of an image of some size; raises any kind of error where it is not one."""
    rows, columns = (_repeated(side, part) for side, part in zip(size, patch, strict=True))
    wanted = (len(rows), len(columns), "L" if channels == 1 else "RGB")
    with JpegImageFile(io.BytesIO(content)) as image:
        found = (image.height, image.width, image.mode)
        if found != wanted:  # compared before anything is decoded
            raise ValueError("{} x {} pixels of mode {}, not {} x {} of mode {}".format(*found, *wanted))
        decoded = np.array(image).reshape(len(rows), len(columns), channels)
    first_row, first_column = (np.unique(each, return_index=True)[1] for each in (rows, columns))
    return torch.from_numpy(decoded[first_row][:, first_column]).permute(2, 0, 1)


def _repeated(side: int, part: int) -> Int64[np.ndarray, " _"]:
    """For each row of an image whose patches are enlarged to multiples of 8 pixels, the row that it shows."""
    within = np.minimum(np.arange(part + -part % BLOCK), part - 1)
    return (np.arange(0, side, part)[:, None] + within).ravel()


def _is_jpeg(channels: int, size: tuple[int, int], patch: Patch) -> bool:
    """Whether an image can be stored as JPEG: patches divide it, and enlarged it is not too large."""
    if min(patch) < 1 or size[0] % patch[0] or size[1] % patch[1]:
        return False
    height, width = (side // part * (part + -part % BLOCK) for side, part in zip(size, patch, strict=True))
    return max(height, width) <= LONGEST_SIDE and channels * height * width <= MOST_VALUES


def misfit(pixels: Tensor, preprocessing: Preprocessing) -> str:
    """Why this is no background for a model with this preprocessing; empty where it is."""
    wanted = (preprocessing.channels, *preprocessing.size)
    if pixels.dtype == torch.uint8 and pixels.dim() == 4 and tuple(pixels.shape[1:]) == wanted:
        return "" if len(pixels) else "the background is empty"
    shape, kind = " x ".join(map(str, pixels.shape)), str(pixels.dtype).removeprefix("torch.")
    return f"the background is {shape} of {kind}, the model takes r x {' x '.join(map(str, wanted))} of uint8"


def card_text(pixels: Pixels) -> str:
    """The text of a model card on the background that lies beside it, and how to leave it out."""
    how = " (as JPEG, with a small loss)" if pixels.numel() > MOST_BYTES else ""
    return (
        f"`{BACKGROUND}` holds {counted(len(pixels), 'image')}{how} put together from patches of training images, each "
        "patch from an image drawn at random, against which explanations are tested; delete the file, or train with "
        "`--no-background`, to leave them out."
    )
