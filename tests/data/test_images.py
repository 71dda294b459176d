"""Decoding: every mode by an independent rule, every orientation, and every way in which a file can be bad."""

import hashlib
import io
import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.errors import must_raise
from vitrail.data import images as images_module
from vitrail.data.images import FileImages, NamedImage, bits_of, convert_mode, open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError

HIGH, WIDE = 6, 9
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (HIGH, WIDE, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (HIGH, WIDE), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (HIGH, WIDE), dtype=np.uint8)
ALPHA[0, :3] = 0, 255, 128
DEEP = RNG.integers(0, 65536, (HIGH, WIDE)).astype(np.uint16)
DEEP[0, :4] = 0, 65535, 128, 129


def luma(rgb: np.ndarray) -> np.ndarray:
    """ITU-R 601 in float64."""
    return rgb.astype(np.float64) @ np.array([0.299, 0.587, 0.114])


def laid_on(rgb: np.ndarray, alpha: np.ndarray, behind: tuple[int, int, int]) -> np.ndarray:
    share = alpha[..., None] / 255.0
    return np.floor(rgb * share + np.array(behind) * (1 - share) + 0.5)


def palette_image() -> tuple[Image.Image, np.ndarray]:
    colours = RNG.integers(0, 256, (16, 3), dtype=np.uint8)
    numbers = RNG.integers(0, 16, (HIGH, WIDE), dtype=np.uint8)
    image = Image.fromarray(numbers)
    image.putpalette(colours.tobytes())
    assert image.mode == "P"
    return image, colours[numbers]


def through_file(image: Image.Image, tmp_path: Path, ending: str, **options: object) -> Image.Image:
    path = tmp_path / f"image.{ending}"
    image.save(path, **options)
    return open_image(path)


@pytest.mark.parametrize("pad_value", [(128, 128, 128), (255, 0, 64)])
def test_alpha_is_laid_on_the_pad_value(tmp_path: Path, pad_value: tuple[int, int, int]) -> None:
    image = through_file(Image.fromarray(np.dstack([COLOUR, ALPHA])), tmp_path, "png")
    expected = laid_on(COLOUR, ALPHA, pad_value)
    assert image.mode == "RGBA"
    np.testing.assert_array_equal(np.asarray(convert_mode(image, 3, pad_value)), expected)
    grey = np.asarray(convert_mode(image, 1, pad_value)).astype(float)
    np.testing.assert_allclose(grey, luma(expected), atol=0.51)


def test_grey_with_alpha(tmp_path: Path) -> None:
    image = through_file(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]), tmp_path, "png")
    expected = laid_on(GREY[..., None], ALPHA, (128, 128, 128))
    assert image.mode == "LA"
    np.testing.assert_array_equal(np.asarray(convert_mode(image, 1)), expected[..., 0])
    np.testing.assert_array_equal(np.asarray(convert_mode(image, 3)), np.repeat(expected[..., :1], 3, 2))


@pytest.mark.parametrize("ending", ["png", "gif", "bmp", "tiff"])
def test_palette(tmp_path: Path, ending: str) -> None:
    image, expected = palette_image()
    opened = through_file(image, tmp_path, ending)
    assert opened.mode == "P"
    np.testing.assert_array_equal(np.asarray(convert_mode(opened, 3)), expected)


@pytest.mark.parametrize("several", [False, True])
def test_palette_with_transparency(tmp_path: Path, several: bool) -> None:
    image, rgb = palette_image()
    numbers = np.asarray(image)
    alphas = np.full(256, 255, dtype=np.uint8)
    if several:
        alphas[:16] = RNG.integers(0, 256, 16)
    else:
        alphas[3] = 0
    transparency = alphas[:16].tobytes() if several else 3
    opened = through_file(image, tmp_path, "png", transparency=transparency)
    expected = laid_on(rgb, alphas[numbers], (10, 200, 30))
    assert opened.mode == "P"
    np.testing.assert_array_equal(np.asarray(convert_mode(opened, 3, (10, 200, 30))), expected)


def test_colour_key(tmp_path: Path) -> None:
    rgb = COLOUR.copy()
    rgb[2:4, 2:4] = 1, 2, 3
    opened = through_file(Image.fromarray(rgb), tmp_path, "png", transparency=(1, 2, 3))
    expected = rgb.copy()
    expected[2:4, 2:4] = 128
    np.testing.assert_array_equal(np.asarray(convert_mode(opened, 3)), expected)
    grey = GREY.copy()
    grey[grey == 77] = 78
    grey[1, 1] = 77
    opened = through_file(Image.fromarray(grey), tmp_path, "png", transparency=77)
    assert np.asarray(convert_mode(opened, 1))[1, 1] == 128


def test_sixteen_bit_is_divided_not_clipped(tmp_path: Path) -> None:
    expected = np.rint(DEEP / 257.0)
    for ending in ("png", "tiff"):
        opened = through_file(Image.fromarray(DEEP), tmp_path, ending)
        assert opened.mode == "I;16"
        np.testing.assert_array_equal(np.asarray(convert_mode(opened, 1)), expected)
        np.testing.assert_array_equal(np.asarray(convert_mode(opened, 3)), np.repeat(expected[..., None], 3, 2))
    clipped = np.minimum(DEEP, 255)
    assert (clipped != expected).any(), "the planted fault must differ"
    opened = through_file(Image.fromarray(DEEP.astype(np.int32)), tmp_path, "tiff")
    assert opened.mode == "I"
    np.testing.assert_array_equal(np.asarray(convert_mode(opened, 1)), expected)
    big_endian = Image.frombytes("I;16B", (WIDE, HIGH), DEEP.astype(">u2").tobytes())
    np.testing.assert_array_equal(np.asarray(convert_mode(big_endian, 1)), expected)


def test_values_without_a_rule_are_refused(tmp_path: Path) -> None:
    for values in (GREY.astype(np.float32), np.full((2, 2), 70000, np.int32), np.full((2, 2), -1, np.int32)):
        image = Image.fromarray(values)
        with pytest.raises(DataError):
            convert_mode(image, 1)
        path = tmp_path / "measured.tiff"
        image.save(path)
        with pytest.raises(DataError, match=r"measured\.tiff"):
            open_image(path)
    with pytest.raises(DataError):
        convert_mode(Image.new("L", (0, 0)), 3)


def test_plain_modes() -> None:
    one_bit = Image.fromarray(GREY > 100)
    assert one_bit.mode == "1"
    np.testing.assert_array_equal(np.asarray(convert_mode(one_bit, 1)), (GREY > 100) * 255)
    grey, colour = Image.fromarray(GREY), Image.fromarray(COLOUR)
    assert convert_mode(grey, 1) is grey
    assert convert_mode(colour, 3) is colour
    np.testing.assert_array_equal(np.asarray(convert_mode(grey, 3)), np.repeat(GREY[..., None], 3, 2))
    np.testing.assert_allclose(np.asarray(convert_mode(colour, 1)).astype(float), luma(COLOUR), atol=0.51)


def test_printing_and_television_colours() -> None:
    inks = RNG.integers(0, 256, (HIGH, WIDE, 4), dtype=np.uint8)
    naive = (255.0 - inks[..., :3]) * (255.0 - inks[..., 3:]) / 255
    cmyk = Image.frombytes("CMYK", (WIDE, HIGH), inks.tobytes())
    np.testing.assert_allclose(np.asarray(convert_mode(cmyk, 3)).astype(float), naive, atol=1.01)
    ycc = Image.fromarray(COLOUR).convert("YCbCr")
    np.testing.assert_allclose(np.asarray(convert_mode(ycc, 3)).astype(float), COLOUR, atol=3)
    way = {"RGBa": "RGBA", "La": "LA", "PA": "P", "LAB": "RGB", "HSV": "RGB", "RGBX": "RGB"}
    for mode, between in way.items():
        image = Image.fromarray(GREY).convert(between)
        converted = convert_mode(image.convert(mode), 1)
        assert converted.mode == "L"
        np.testing.assert_allclose(np.asarray(converted).astype(float), GREY, atol=2, err_msg=mode)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(tmp_path: Path, ending: str, orientation: int) -> None:
    """The stored image is made by the inverse of what EXIF's table says must be done to show it."""
    upright = np.zeros((16, 32, 3), dtype=np.uint8)
    upright[:8, :16], upright[:8, 16:], upright[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    options = {"jpg": {"quality": 95, "subsampling": 0}, "webp": {"lossless": True}}.get(ending, {})
    found = through_file(Image.fromarray(np.ascontiguousarray(stored)), tmp_path, ending, exif=exif, **options)
    assert found.size == (32, 16)
    np.testing.assert_allclose(np.asarray(found).astype(int), upright, atol=8)
    (path,) = tmp_path.glob(f"*.{ending}")
    reads, wanted = Preprocessing((16, 32)), Preprocessing((16, 32))(path)
    for given in (Image.open(path), open_image(path)):  # a file that a person has opened, and one that is upright
        torch.testing.assert_close(reads(given), wanted, rtol=0, atol=0)
        torch.testing.assert_close(reads.normalise(reads.to_uint8(given)[None])[0], wanted, rtol=0, atol=0)
        assert NamedImage("an image", given).image.size == (32, 16)
    with Image.open(path) as file:  # the pixels that are there are the caller's
        given = file if ending == "tiff" else file.convert("RGB")  # Pillow drops the tag of a TIFF in a conversion
        torch.testing.assert_close(reads(given), wanted, rtol=0, atol=0)
        assert ending == "tiff" or given.size == stored.shape[1::-1]  # of a TIFF Pillow itself turns what it opens


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
@pytest.mark.parametrize("kind", ["I;16 png", "I;16 tiff", "I;16B tiff", "I tiff"])
def test_values_that_use_only_some_of_16_bits(kind: str, bits: int, tmp_path: Path) -> None:
    """As a camera of so many bits writes them: read as such where it is stated, else asked for."""
    most, (mode, ending) = 2**bits - 1, kind.split()
    values = np.rint(GREY / 255.0 * most)
    values[0, 0] = most
    content = values.astype({"I;16": "<u2", "I;16B": ">u2", "I": "<i4"}[mode]).tobytes()
    image = through_file(Image.frombytes(mode, (WIDE, HIGH), content), tmp_path, ending)
    assert bits_of(image) == bits
    for channels in (1, 3):
        found = np.asarray(convert_mode(image, channels, bits=bits)).reshape(HIGH, WIDE, channels)
        np.testing.assert_array_equal(found[:, :, 0], np.rint(values / most * 255))
        dark = np.asarray(convert_mode(image, channels, bits=16)).reshape(HIGH, WIDE, channels)
        np.testing.assert_array_equal(dark[:, :, 0], np.rint(values / 257))
    with must_raise(DataError, rf"\b{bits}\b.*\b16\b") as caught:
        convert_mode(image, 1)
    assert caught.value.hint.flags == {"bits": bits}
    if bits > 8:
        with must_raise(DataError, f"{bits} bits"):
            convert_mode(image, 1, bits=8)


def test_a_portable_grey_map_of_16_bits_is_grey_of_16_bits() -> None:
    """Pillow opens it as mode I, from a tile of 16 bits: these are no colours, and no value wraps round."""
    values = np.array([[0, 4095, 65535, 3000]], dtype=">u2")
    image = open_image(b"P5\n4 1\n65535\n" + values.tobytes())
    np.testing.assert_array_equal(np.asarray(convert_mode(image, 1)), np.rint(values / 257))
    with must_raise(DataError, "16 bits") as caught:
        convert_mode(image, 1, bits=12)
    assert caught.value.hint.flags == {"bits": 16}


def test_16_bits_that_need_no_statement(tmp_path: Path) -> None:
    black = through_file(Image.fromarray(np.zeros((4, 4), np.uint16)), tmp_path, "png")
    assert (bits_of(black), np.asarray(convert_mode(black, 1)).max()) == (0, 0)
    assert bits_of(through_file(Image.fromarray(DEEP), tmp_path, "tiff")) == 16
    assert bits_of(Image.fromarray(GREY)) == bits_of(Image.fromarray(COLOUR)) == 0


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colours_of_16_bits_of_which_few_are_used(channels: int, tmp_path: Path) -> None:
    """Pillow keeps the upper 8 bits of each, which leaves nothing of 12."""
    path = tmp_path / "deep.png"
    for most in (4095, 65535):
        values = RNG.integers(0, most, (HIGH, WIDE, channels))
        values[0, 0], values[:, :, -1] = most, most if channels == 3 else 65535
        path.write_bytes(png_of_16_bits(values))
        image = open_image(path)
        if most == 65535:
            assert convert_mode(image, 3).mode == convert_mode(image, 3, bits=16).mode == "RGB"
            continue
        for bits in (None, 12):
            with must_raise(DataError, "12 of 16 bits"):
                convert_mode(image, 3, bits=bits)
        assert convert_mode(image, 3, bits=16).mode == "RGB"


def png_of_16_bits(values: np.ndarray) -> bytes:
    """A PNG of (height, width, channels) values 0..65535, which Pillow reads and does not write."""
    height, width, channels = values.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_an_opened_file_that_is_damaged_is_an_error_of_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.fromarray(COLOUR).resize((200, 200)).save(path)
    path.write_bytes(path.read_bytes()[:3000])
    with Image.open(path) as file, must_raise(DataError, r"cut\.png"):
        open_image(file)
    with Image.open(path) as closed:
        pass
    with must_raise(DataError):
        open_image(closed)
    assert np.array_equal(np.asarray(open_image(COLOUR)), COLOUR)
    with must_raise(UsageError, "float64"):
        open_image(COLOUR / 255)


def test_format_is_told_by_content_and_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (10, 200)]
    for ending in ("gif", "tiff", "png", "webp"):
        path = tmp_path / f"frames.{ending}"
        options = {"lossless": True} if ending == "webp" else {}
        frames[0].save(path, save_all=True, append_images=frames[1:], **options)
        assert np.asarray(convert_mode(open_image(path), 1)).max() <= 11, ending
    path = tmp_path / "phone.jpg"
    colour = [frame.convert("RGB") for frame in frames]
    colour[0].save(path, "MPO", save_all=True, append_images=colour[1:])
    assert np.asarray(open_image(path)).max() <= 11
    lying = tmp_path / "lying.jpg"
    Image.fromarray(COLOUR).save(lying, "PNG")
    np.testing.assert_array_equal(np.asarray(open_image(str(lying))), COLOUR)


def bad_files(folder: Path) -> list[str]:
    whole = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(whole, "JPEG")
    portable = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(portable, "PNG")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("not an image")
    (folder / "half.jpg").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    (folder / "half.png").write_bytes(portable.getvalue()[: len(portable.getvalue()) // 2])
    (folder / "start.png").write_bytes(portable.getvalue()[:20])
    (folder / "drawing.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    Image.fromarray(COLOUR).save(folder / "portable.tga")
    (folder / "folder.jpg").mkdir()
    return [*(path.name for path in folder.iterdir()), "missing.jpg"]


def test_unreadable_files_are_named_in_one_line(tmp_path: Path) -> None:
    for name in bad_files(tmp_path):
        with pytest.raises(DataError) as caught:
            open_image(tmp_path / name)
        assert caught.value.problem.startswith(f"{tmp_path / name}: ")
        assert "\n" not in caught.value.problem
        assert caught.value.exit_code == 3
        assert pickle.loads(pickle.dumps(caught.value)).problem == caught.value.problem


def test_pixel_limit_is_checked_in_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(COLOUR).save(path)
    monkeypatch.setattr(images_module, "PIXEL_LIMIT", HIGH * WIDE)
    open_image(path)
    monkeypatch.setattr(images_module, "PIXEL_LIMIT", HIGH * WIDE - 1)

    def decoded(image: Image.Image) -> None:
        raise AssertionError("decoded before the check")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    with pytest.raises(DataError, match=r"large\.png"):
        open_image(path)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    memory = io.BytesIO()
    Image.new("1", (8, 8)).save(memory, "BMP")
    header = bytearray(memory.getvalue())
    header[18:26] = (20000).to_bytes(4, "little") + (20000).to_bytes(4, "little")
    path = tmp_path / "bomb.bmp"
    path.write_bytes(header)
    with pytest.raises(DataError, match="100"):
        open_image(path)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_is_no_exif(tmp_path: Path) -> None:
    path = tmp_path / "camera.jpg"
    Image.fromarray(COLOUR).save(path, exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\xff\x01\x12\x00\x03")
    assert open_image(path).size == (WIDE, HIGH)


def test_files_are_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(COLOUR).save(path)
    before = hashlib.sha256(path.read_bytes()).digest(), os.stat(path).st_mtime_ns
    path.chmod(0o400)
    opened = open_image(path)
    opened.putpixel((0, 0), (0, 0, 0))
    assert (hashlib.sha256(path.read_bytes()).digest(), os.stat(path).st_mtime_ns) == before


# Names


def test_the_name_of_a_file_is_its_path_below_the_root_however_it_is_written(tmp_path: Path) -> None:
    forms = ("a/b.png", "./a/b.png", "a//b.png", "a/./b.png", ".hidden/b.png", "a/../b.png", "aa/b.png")
    for root in (None, tmp_path, tmp_path / "a", Path(), Path("/")):
        given = [*(os.path.join(tmp_path, form) for form in forms), *forms, "/x/../y.png"]
        files, paths = FileImages(given, root), [Path(each) for each in given]
        below = [each.relative_to(root) if root and each.is_relative_to(root) else each for each in paths]
        assert files.names() == FileImages(paths, root).names() == [each.as_posix() for each in below]
        assert files.paths == paths
        assert files.select([1, 3]).paths == [paths[1], paths[3]]


# The hash of a set


def test_other_images_under_the_same_names_and_of_as_many_bytes_are_noticed(tmp_path: Path) -> None:
    """Uncompressed images all have the same size; a file that cannot be read spoils nothing."""
    paths = [tmp_path / f"{number}.bmp" for number in range(5)]

    def drawn(seed: int) -> bytes:
        for path, pixels in zip(paths, np.random.default_rng(seed).integers(0, 256, (5, 8, 8), np.uint8), strict=True):
            Image.fromarray(pixels).save(path)
        return FileImages(paths).digest()

    assert drawn(0) == drawn(0) != drawn(1)
    paths[2].unlink()
    paths[2].mkdir()
    assert FileImages(paths).digest() == FileImages(paths).digest()
