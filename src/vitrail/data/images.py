"""The images of a split, in memory or in files; how a file is decoded, and any kind of image becomes grey or colour.

Everything that reads images (training, evaluation, explanation, pages) uses `Images` only: their number, the name of
one, and the decoded image. Labels are columns beside the images, see `columns.py`.

    open_image                from a file to a decoded image
    convert                   from any kind of image to grey or colour, by one written rule
    ArrayImages, FileImages   the images of a split, in memory and in files; inside other files see `stores`
"""

import abc
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar, final

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitrail.arguments import Numbered, typed
from vitrail.errors import DEPTHS, DataError, Hint, UsageError, located

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "JPEG2000", "PPM")
"""The formats that are opened, known by the first bytes of a file and never by its name; and see `HEIF`."""

HEIF = "HEIF"
"""What phones write as HEIC, which another library opens: it is loaded when the first such file is met."""

HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

PIXEL_LIMIT = 100_000_000
"""The most pixels an image may have; checked in its header, before anything is decoded.

Pillow itself warns from 89 megapixels on. The warning is left alone: to silence it is not safe between threads.
"""

HASH = 16
"""Bytes by which the content of an image is known, whatever it is called and wherever it lies; zeros: not known."""

MOST_HASHED = 2**28
"""Bytes of a file that are hashed."""

SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
DEEP = "16 bits in each colour"  # of an opened image whose file has these: Pillow keeps the upper 8
_READABLE = "another image, or the same saved as an 8-bit or 16-bit PNG"


def open_image(path: object, content: bytes | None = None, least: int | None = None) -> Image.Image:
    """Read one image from a file, or from pixels; the file is never written to, and an opened image is not changed.

    Only the first frame of an animation or of a file with several pages is read. The EXIF orientation is applied; an
    EXIF block that cannot be read counts as none.

    Args:
        path: A file in one of `FORMATS`, whatever its name ends in; its bytes; an image that Pillow has opened; or
            pixels.
        content: Its bytes, where they are at hand; the path is only its name then.
        least: Pixels that each side is to keep at least: a JPEG is decoded at a half, a quarter or an eighth of its
            size where that leaves as many, which takes a fraction of the time. All of them when None.

    Returns:
        The decoded image, upright, in the mode that the file has.

    Raises:
        DataError: The file is missing, empty, damaged, of another format, larger than 100 megapixels, or holds values
            that no rule of `convert_mode` covers. The first line is the path and the reason.
        UsageError: It is none of these, or no array that `vitrail.data.preprocessing.image_of` takes.
    """
    if isinstance(path, bytes):
        path, content = "an image", path
    if not isinstance(path, str | Path | Image.Image):
        from vitrail.data.preprocessing import image_of  # with torch, which a file does not need

        path = image_of(path)
    of_caller = isinstance(path, Image.Image)
    name, start = Path((getattr(path, "filename", "") or "an image") if of_caller else path), content or b""
    if content is None and not of_caller:
        with suppress(OSError), name.open("rb") as file:  # which says below what is wrong
            start = file.read(64)
    formats = formats_of(start, name)
    try:
        place = name if content is None else io.BytesIO(content)
        with nullcontext(path) if of_caller else Image.open(place, formats=formats) as image:
            if image.width * image.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            if least is not None:
                image.draft(None, (least, least))  # of JPEG alone
            deep = ";16" in str(getattr(image, "tile", "")) and image.mode not in ("I", *SIXTEEN_BIT)
            image.load()
            refusal, turned = _refusal(image), upright(image)
            turned = turned.copy() if turned is image and not of_caller else turned  # which outlives its file
    except Exception as error:  # Pillow's readers raise nearly every kind of error on damaged files
        gone = isinstance(error, FileNotFoundError)
        hint = "the path of an image that is there" if gone else "remove the file or replace it by a readable one"
        if isinstance(error, IsADirectoryError):
            hint = Hint(text="an image in it", python=f"sorted(Path({str(name)!r}).iterdir()) for the images in it")
        raise DataError(f"{name}: {_reason(name, content, error)}", hint) from error
    if refusal:
        raise DataError(f"{name}: {refusal}", _READABLE)
    turned.info |= {DEEP: True} if deep else {}
    return turned


def opened_apart(name: object, content: bytes | None, least: int | None = None) -> Image.Image:
    """`open_image` of a file, by a process that may die of it where its bytes are at hand; see `vitrail.data.workers`.

    Args:
        name: Its path, or its name where that is no file.
        content: Its bytes; None or the first `MOST_HASHED` of them where it is read by its path.
        least: As for `open_image`.
    """
    if content is None or len(content) == MOST_HASHED:
        return open_image(name, None, least)
    from vitrail.data.workers import open_apart  # with torch, which a file does not need

    return open_apart(name, content, least)


def formats_of(start: bytes, name: object = "an image") -> tuple[str, ...]:
    """The formats that a file may be of, by its first bytes: also `HEIF`, where it begins so.

    Raises:
        DataError: It begins so, and pillow-heif is not installed.
    """
    if start[4:8] != b"ftyp" or start[8:12] not in HEIF_BRANDS or b"avif" in start[:64]:
        return FORMATS
    try:
        from pillow_heif import register_heif_opener
    except ImportError as error:
        raise DataError(
            f"{name}: is HEIC, which needs pillow-heif (vitrail[heif])", 'pip install "vitrail[heif]"'
        ) from error
    register_heif_opener()
    return (*FORMATS, HEIF)


def upright(image: Image.Image) -> Image.Image:
    """As the EXIF orientation wants it, which the result does not have any more; the image itself without one."""
    with suppress(Exception):  # a broken EXIF block says nothing about orientation
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            return ImageOps.exif_transpose(image)
    return image


def is_broken_link(path: Path) -> bool:
    """Whether a path is a link that leads to nothing, or round in a circle."""
    return path.is_symlink() and not path.exists()


def _reason(path: Path, content: bytes | None, error: Exception) -> str:
    """Why an image could not be read, in a few words."""
    if isinstance(error, Image.DecompressionBombError):
        return f"is larger than {PIXEL_LIMIT // 1_000_000} megapixels"
    if isinstance(error, UnidentifiedImageError):
        empty = (path.stat().st_size if content is None else len(content)) == 0
        known = f"{', '.join((*FORMATS, 'HEIC'))}, or of a kind of these that is not read"
        return "is empty (0 bytes)" if empty else f"is none of {known}"
    if isinstance(error, FileNotFoundError):
        return "is a link to a file that does not exist" if path.is_symlink() else "does not exist"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not an image"
    words = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be decoded ({words})"


def _refusal(image: Image.Image) -> str:
    """Why no rule of `convert_mode` covers this image; empty where one does."""
    if 0 in image.size:
        return "has no pixels"
    if image.mode == "F":
        return "has floating-point values, whose range is unknown"
    if image.mode == "I":
        values = np.asarray(image)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > 65535:
            return f"has 32-bit values {low}..{high}, outside 0..65535"
    tags, tag = getattr(image, "tag_v2", {}), ExifTags.Base  # of a TIFF, of which Pillow misreads some
    bits, inks = max(tags.get(tag.BitsPerSample, ()), default=8), tags.get(tag.PhotometricInterpretation, 1)
    if bits == 8 and 2 in tags.get(tag.SampleFormat, ()):
        return "has values of 8 bits with a sign"
    if bits == 16 and inks == 0:
        return "has 16 bits, of which 0 is white"
    if bits == 16 and inks > 1 and (tags.get(tag.PlanarConfiguration), tags.get(tag.Compression)) == (2, 1):
        return "has 16 bits in each colour, and one colour behind the other"
    return ""


def bits_of(image: Image.Image) -> int:
    """The fewest bits of `DEPTHS` that hold the values of an image of 16 bits; 0 of a black one, and of others."""
    deep, most = image.info.get(DEEP, False), 0
    if deep or image.mode == "I" or image.mode in SIXTEEN_BIT:
        most = int(np.asarray(image.convert("RGB") if deep else image).max()) << 8 * deep
    return next((bits for bits in DEPTHS if 0 < most < 2**bits), 0)


def _misread(image: Image.Image, bits: int | None) -> str:
    """Why values in 16 bits are not read as being of so many; empty where they are, or there are none."""
    used, deep = bits_of(image), image.info.get(DEEP, False)
    if deep and 0 < used < 16 != bits:
        return f"uses {used} of 16 bits in each colour, of which only the upper 8 are read"
    if bits is None and 0 < used < 16:
        return f"uses {used} of its 16 bits: it is of a camera of {used} bits, or dark"
    return f"has values of {used} bits, more than the {bits} stated" if bits and used > bits and not deep else ""


def convert_mode(
    image: Image.Image, channels: int, pad_value: tuple[int, int, int] = (128, 128, 128), bits: int | None = None
) -> Image.Image:
    """Turn an image of any mode into grey or colour.

    The rule, by Pillow's mode of the image, in this order:

    | mode | what is done |
    |---|---|
    | I;16, I (16-bit grey) | 255 value / (2^bits - 1), rounded, L; a colour key is ignored; larger values are refused |
    | colour of 16 bits | the upper 8 bits, as Pillow reads it; refused where fewer than 16 are used |
    | F | refused: its range is unknown |
    | LA, La, RGBA, RGBa, PA, P with transparency, any mode with a colour key | laid on `pad_value`, gives RGB |
    | P | its palette's colours, RGB |
    | 1 | 0 and 255, L |
    | L, RGB | as they are |
    | CMYK, YCbCr, HSV, LAB, RGBX | RGB by Pillow's formulas; an embedded colour profile is ignored |

    Then, for one channel, RGB becomes L = 0.299 R + 0.587 G + 0.114 B (ITU-R 601); for three, L is repeated.
    Transparency is laid on as (alpha * colour + (255 - alpha) * pad_value) / 255, rounded.

    Args:
        image: A decoded image.
        channels: 1 for grey, 3 for colour.
        pad_value: The colour behind transparent pixels, 0..255 each; mid grey by default.
        bits: How many of 16 bits are used, of `DEPTHS`; when None all are, and an image that uses fewer is refused.

    Returns:
        An image of mode L or RGB and the same size; the very same object when nothing has to be done.

    Raises:
        DataError: A mode or values that the rule refuses.
    """
    assert channels in (1, 3)
    mode = "L" if channels == 1 else "RGB"
    if refusal := _refusal(image):
        raise DataError(f"an image {refusal}", _READABLE)
    if problem := _misread(image, bits):
        deep = image.info.get(DEEP, False)
        used = 16 if deep else bits_of(image)
        dark = "if it is dark; else the same image in 8 bits" if deep else "or 16 if it is a dark image of 16 bits"
        raise DataError(f"an image {problem}", Hint({"bits": used}, text=dark if deep or used < 16 else ""))
    if image.mode == "I" or image.mode in SIXTEEN_BIT:
        most = 2 ** (bits or 16) - 1
        image = Image.fromarray(((np.asarray(image).astype(np.int64) * 510 + most) // (2 * most)).astype(np.uint8))
    elif image.has_transparency_data:
        coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = Image.new("RGB", image.size, pad_value)
        image.paste(coloured.convert("RGB"), mask=coloured.getchannel("A"))
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


# ---- the images of a split


@dataclass(frozen=True, eq=False)
class NamedImage:
    """An image with its name, label and mask, as explanations take it.

    Args:
        name: Its file, or its name in a set.
        image: Decoded; it is turned upright where its EXIF block says so.
        label: Its true class or text, where known.
        mask: Not black where the evidence lies, of the image's size; None where that is not known.
        fingerprint: `Images.content_hash` in hexadecimal digits; empty where it is not known.

    Raises:
        DataError: The mask has another size, or no rule of `convert_mode` covers the image.
        UsageError: One of both is no image.
    """

    name: str
    image: Image.Image
    label: str | None = None
    mask: Image.Image | None = None
    fingerprint: str = ""

    def __post_init__(self) -> None:
        """Refuse what no explanation can be made of."""
        with located(self.name):
            object.__setattr__(self, "image", open_image(self.image))
            object.__setattr__(self, "mask", None if self.mask is None else open_image(self.mask))
        if self.mask is not None and self.mask.size != self.image.size:
            sizes = [f"{width} x {height}" for width, height in (self.mask.size, self.image.size)]
            problem = f"the mask of {self.name} has {sizes[0]} pixels, but its image has {sizes[1]}"
            raise DataError(problem, "a mask of the image's own size")


LOOKED_INTO = 64  # files of a set that its hash looks into

Item = TypeVar("Item")


class Images(Numbered, abc.ABC):
    """Images by number, from 0; each is decoded when it is opened.

    Attributes:
        encoded: Whether each is decoded from the bytes of a file, which `content` returns.
        renewed: Whether the images are generated anew in every epoch; then only the first of them can be selected.
    """

    encoded: ClassVar[bool] = False
    renewed: ClassVar[bool] = False

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """The name of one image, for messages and pages: a file name, or `digits/17`.

        A name does not depend on where the data lies on this machine, and stays the same when images are selected.
        """

    def names(self) -> list[str]:
        """The names of all."""
        return [self.name(index) for index in range(len(self))]

    @abc.abstractmethod
    def open(self, index: int) -> Image.Image:
        """One decoded image.

        Raises:
            DataError: The image cannot be read; the message names it.
        """

    def read(self, index: int, least: int | None = None) -> tuple[Image.Image, bytes]:
        """One decoded image with its `content_hash`, by one reading.

        Args:
            index: Of the image.
            least: As for `open_image`.

        Raises:
            DataError: The image cannot be read; the message names it.
        """
        if not self.encoded:
            image = self.open(index)
            return image, hash_of(image.tobytes(), (image.mode, *image.size))
        content = self.content(index)
        return opened_apart(self.name(index), content, least), self.content_hash(index, content)

    def content_hash(self, index: int, content: bytes | None = None) -> bytes:
        """`HASH` bytes by which an image is known: a hash of the file that it came from, or of its pixels.

        Args:
            index: Of the image.
            content: What `content` returns, where that is at hand.

        Raises:
            DataError: The image cannot be read; the message names it.
        """
        if not self.encoded:
            return self.read(index)[1]
        return hash_of(self.content(index) if content is None else content)

    def content(self, index: int) -> bytes:
        """The bytes that an image is decoded from, where it is encoded.

        Raises:
            DataError: They cannot be read; the message names the image.
        """
        raise NotImplementedError

    def file(self, index: int) -> Path | None:
        """The file that one image lies in by itself; None where it lies in none."""
        return None

    @abc.abstractmethod
    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "Images":
        """The images with these numbers, in this order; their names stay the same."""

    def in_epoch(self, ids: NDArray[np.int64], epoch: int) -> "Images":
        """The images with these numbers in an epoch (counted from 0); only images that are `renewed` depend on it."""
        return self.select(ids)

    @abc.abstractmethod
    def digest(self) -> bytes:
        """A short hash that changes when an image is added, removed, renamed or (in size or pixels) changed."""

    def marks(self) -> list[str]:
        """Of each image a mark that changes with its content, as far as `digest` looks at it."""
        return [self.select([index]).digest().hex()[:8] for index in range(len(self))]


def hash_of(content: bytes, kind: tuple[str, int, int] | None = None) -> bytes:
    """The hash of an image by the bytes of its file; or by its values row by row, with PIL's mode, width and height."""
    about = b"" if kind is None else repr(kind).encode()
    return hashlib.blake2b(about + content[:MOST_HASHED], digest_size=HASH).digest()


def what_to_try(images: Images, read: Callable[[Image.Image], object] = bool) -> Hint | str:
    """The hint for images of which none can be read: that of the first; `read` is what was done with each."""
    try:
        read(images.open(0))
    except DataError as error:
        return error.hint
    return "repair or replace these files, or name other data"


@typed
@final
class ArrayImages(Images):
    """Images in memory.

    Args:
        pixels: Grey (n, h, w) or coloured (n, h, w, c) with c 1 or 3, uint8 from 0 to 255.
        label: The name of the set; the image with number 17 is called `label/17`.
        numbers: (n,), the number of each image in the set it was selected from; 0 to n - 1 by default.

    Raises:
        DataError: The pixels have another shape or type.
    """

    def __init__(
        self, pixels: UInt8[np.ndarray, "n h w *c"], label: str = "image", numbers: Sequence[int] | None = None
    ) -> None:
        grey = pixels.ndim == 3
        coloured = pixels.ndim == 4 and pixels.shape[3] in (1, 3)
        if pixels.dtype != np.uint8 or not (grey or coloured):
            problem = f"images in memory have the shape {pixels.shape} and the type {pixels.dtype}"
            raise DataError(problem, "give uint8 values of the shape (n, h, w), (n, h, w, 1) or (n, h, w, 3)")
        self.pixels = pixels
        self.label = label
        self.numbers = tuple(range(len(pixels))) if numbers is None else tuple(numbers)
        if len(self.numbers) != len(pixels):
            raise UsageError(f"{len(self.numbers)} numbers for {len(pixels)} images", "one for each, or none at all")

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.pixels)

    def name(self, index: int) -> str:
        """The set's label and the image's number in it, such as `digits/17`."""
        return f"{self.label}/{self.numbers[index]}"

    def open(self, index: int) -> Image.Image:
        """The image with mode L or RGB."""
        pixels = self.pixels[index]
        return Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)

    def content_hash(self, index: int, content: bytes | None = None) -> bytes:
        """A hash of its pixels."""
        pixels = self.pixels[index]
        mode = "L" if pixels.ndim == 2 or pixels.shape[2] == 1 else "RGB"
        return hash_of(pixels.tobytes(), (mode, pixels.shape[1], pixels.shape[0]))

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "ArrayImages":
        """A copy of the chosen images."""
        chosen = [int(index) for index in indices]
        return ArrayImages(self.pixels[chosen], self.label, [self.numbers[index] for index in chosen])

    def digest(self) -> bytes:
        """A hash of the names and of every pixel."""
        state = hashlib.blake2b(f"{self.label} {self.pixels.shape}".encode(), digest_size=16)
        state.update(np.asarray(self.numbers, dtype=np.int64).tobytes())
        state.update(np.ascontiguousarray(self.pixels).data)
        return state.digest()


class SizedImages(Images):
    """Images that are decoded from bytes, of which the sizes are known before they are read."""

    encoded = True

    @abc.abstractmethod
    def sizes(self) -> list[int]:
        """The bytes of each."""

    def open(self, index: int) -> Image.Image:
        """The decoded image; see `open_image`."""
        return opened_apart(self.name(index), self.content(index))

    def digest(self) -> bytes:
        """A hash of the names and sizes of all, and of what is in some of them; see `files_digest`."""
        checks = self._checks()
        return files_digest(zip(self.names(), self.sizes(), strict=True), checks.values())

    def marks(self) -> list[str]:
        """The size of each, and the CRC-32 of those that the hash looks into."""
        checks = self._checks()
        sizes = enumerate(self.sizes())
        return [f"{size}-{checks[index]:08x}" if index in checks else f"{size}" for index, size in sizes]

    def _checks(self) -> dict[int, int]:
        """The CRC-32 of some by their number; 0 of what is reported where it is needed."""
        checks = dict.fromkeys(evenly(range(len(self)), LOOKED_INTO), 0)
        for index in checks:
            with suppress(DataError):
                checks[index] = zlib.crc32(self.content(index))
        return checks


@typed
@final
class FileImages(SizedImages):
    """Images in files, decoded each time they are opened.

    Args:
        paths: One file for each image, in a format of `FORMATS`.
        root: The folder that names are relative to; when None a name is the whole path.
    """

    def __init__(self, paths: Sequence[Path | str], root: Path | None = None) -> None:
        self._files = list(map(_as_file, paths))  # texts: a million paths would take half a gigabyte
        self.root = root

    def __len__(self) -> int:
        """How many images there are."""
        return len(self._files)

    @property
    def paths(self) -> list[Path]:
        """Of all files."""
        return list(map(Path, self._files))

    def name(self, index: int) -> str:
        """The file's path below the root, with forward slashes."""
        file = self._files[index]
        name = file if self.root is None else file.removeprefix(os.path.join(self.root, ""))
        return name.replace(os.sep, "/")

    def file(self, index: int) -> Path:
        """Its path."""
        return Path(self._files[index])

    def open(self, index: int) -> Image.Image:
        """The decoded file; see `open_image`."""
        return opened_apart(self.file(index), self._start(index))

    def read(self, index: int, least: int | None = None) -> tuple[Image.Image, bytes]:
        """The decoded file and its hash; see `open_image` for a file that cannot be read."""
        content = self._start(index)
        return opened_apart(self.file(index), content, least), bytes(HASH) if content is None else hash_of(content)

    def _start(self, index: int) -> bytes | None:
        """What is hashed of a file; None where it cannot be read, which `open_image` says."""
        with suppress(OSError), open(self._files[index], "rb") as file:
            return file.read(MOST_HASHED)
        return None

    def content(self, index: int) -> bytes:
        """The file."""
        with self._reading(index):
            return self.file(index).read_bytes()

    def sizes(self) -> list[int]:
        """Of each file; 0 of a link that leads nowhere, which is reported where it is opened."""
        sizes = list[int]()
        for index, file in enumerate(self._files):
            with self._reading(index):
                sizes.append(0 if is_broken_link(Path(file)) else os.stat(file).st_size)
        return sizes

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> "FileImages":
        """The chosen files."""
        chosen = FileImages((), self.root)
        chosen._files = [self._files[int(index)] for index in indices]
        return chosen

    @contextmanager
    def _reading(self, index: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"{self._files[index]}: cannot be read ({error.strerror})"
            raise DataError(problem, "restore the file or remove it") from error


def _as_file(path: Path | str) -> str:
    """A path as a text, written as `Path` writes it; most are so, and a million of them are not parsed for it."""
    plain = isinstance(path, str) and not os.altsep and path[:1] != "."
    return path if plain and f"{os.sep}{os.sep}" not in path and f"{os.sep}." not in path else str(Path(path))


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of some items, evenly spread, in their order."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


def files_digest(files: Iterable[tuple[str, int]], checks: Iterable[int]) -> bytes:
    """A short hash of files, wherever these lie. To read all would take as long as an epoch, so it looks into some.

    Other images under the same names are noticed also where they have as many bytes, such as uncompressed ones; a
    single one that is exchanged is not, if its size is the same.

    Args:
        files: Name and size in bytes of each.
        checks: The CRC-32 of at most `LOOKED_INTO` of them, evenly spread.
    """
    state = hashlib.blake2b(digest_size=16)
    for name, size in files:
        state.update(os.fsencode(f"{name}\0{size}\0"))
    for check in checks:
        state.update(check.to_bytes(4, "little"))
    return state.digest()
