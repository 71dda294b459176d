"""From a file to a decoded image, and from any kind of image to grey or colour by one written rule."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitrail.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""The formats that are opened, told by the first bytes of a file and never by its name."""

PIXEL_LIMIT = 100_000_000
"""The most pixels an image may have; checked in its header, before anything is decoded.

Pillow itself warns from 89 megapixels on. The warning is left alone: to silence it is not safe between threads.
"""

_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")


def open_image(path: Path | str, content: bytes | None = None, least: int | None = None) -> Image.Image:
    """Read one image from a file; the file is never written to.

    Only the first frame of an animation or of a file with several pages is read. The EXIF orientation is applied; an
    EXIF block that cannot be read counts as none.

    Args:
        path: A JPEG, PNG, WebP, BMP, TIFF or GIF file, whatever its name ends in.
        content: Its bytes, where they are at hand; the path is only its name then.
        least: Pixels that each side is to keep at least: a JPEG is decoded at a half, a quarter or an eighth of its
            size where that leaves as many, which takes a fraction of the time. All of them when None.

    Returns:
        The decoded image, upright, in the mode that the file has.

    Raises:
        DataError: The file is missing, empty, damaged, of another format, larger than 100 megapixels, or holds values
            that no rule of `convert` covers. The first line is the path and the reason.
    """
    path = Path(path)
    try:
        with Image.open(path if content is None else io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            if least is not None:
                image.draft(None, (least, least))  # of JPEG alone
            image.load()
            upright = _upright(image)
    except Exception as error:  # Pillow's readers raise nearly every kind of error on damaged files
        raise DataError(
            f"{path}: {_reason(path, content, error)}", "remove the file or replace it by a readable one"
        ) from error
    refusal = _refusal(upright)
    if refusal is not None:
        raise DataError(f"{path}: {refusal}", "save it as an 8-bit or 16-bit PNG")
    return upright


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block says nothing about orientation
        return image.copy()


def _reason(path: Path, content: bytes | None, error: Exception) -> str:
    """Say in a few words why an image could not be read."""
    if isinstance(error, Image.DecompressionBombError):
        return f"is larger than {PIXEL_LIMIT // 1_000_000} megapixels"
    if isinstance(error, UnidentifiedImageError):
        empty = (path.stat().st_size if content is None else len(content)) == 0
        return "is empty (0 bytes)" if empty else "is not a JPEG, PNG, WebP, BMP, TIFF or GIF image"
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not an image"
    words = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be decoded ({words})"


def _refusal(image: Image.Image) -> str | None:
    """Why no rule of `convert` covers this image, or None when one does."""
    if image.mode == "F":
        return "holds floating-point values, whose range is unknown"
    if image.mode == "I":
        values = np.asarray(image)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > 65535:
            return f"holds 32-bit values {low}..{high}, outside 0..65535"
    return None


def convert(image: Image.Image, channels: int, background: tuple[int, int, int] = (128, 128, 128)) -> Image.Image:
    """Turn an image of any mode into grey or colour.

    The rule, by Pillow's mode of the image, in this order:

    | mode | what is done |
    |---|---|
    | I;16, I (16-bit grey) | value / 257, rounded, L; a colour key is ignored; values beyond 0..65535 are refused |
    | F | refused: its range is unknown |
    | LA, La, RGBA, RGBa, PA, P with transparency, any mode with a colour key | laid on `background`, gives RGB |
    | P | its palette's colours, RGB |
    | 1 | 0 and 255, L |
    | L, RGB | as they are |
    | CMYK, YCbCr, HSV, LAB, RGBX | RGB by Pillow's formulas; an embedded colour profile is ignored |

    Then, for one channel, RGB becomes L = 0.299 R + 0.587 G + 0.114 B (ITU-R 601); for three, L is repeated.
    Transparency is laid on as (alpha * colour + (255 - alpha) * background) / 255, rounded.

    Args:
        image: A decoded image.
        channels: 1 for grey, 3 for colour.
        background: The colour behind transparent pixels, 0..255 each; mid grey unless told otherwise.

    Returns:
        An image of mode L or RGB and the same size; the very same object when nothing has to be done.

    Raises:
        DataError: A mode or values that the rule refuses.
    """
    assert channels in (1, 3)
    mode = "L" if channels == 1 else "RGB"
    refusal = _refusal(image)
    if refusal is not None:
        raise DataError(f"an image {refusal}", "save it as an 8-bit or 16-bit PNG")
    if image.mode == "I" or image.mode in _SIXTEEN_BIT:
        image = _from_sixteen_bit(image)
    elif image.has_transparency_data:
        image = _on_background(image, background)
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _from_sixteen_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _on_background(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(coloured.convert("RGB"), mask=coloured.getchannel("A"))
    return canvas
