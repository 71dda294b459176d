"""Image files of every kind, each with the pixels that it must give; none of them is asked of the library.

`readable()` has for each file its bytes, the pixels (height, width, 3) that were written into it, laid on mid grey
where they are transparent, how far they may be off (0 for what is stored without loss), and the array that is the same
image where there is one. `refused()` has the bytes of files that no rule reads.
"""

import io
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tifffile
from PIL import Image

HIGH, WIDE, BLOCK = 16, 24, 8
BACK = 128.0  # behind what is transparent
ORIENTATION = 274


@dataclass(frozen=True)
class Kept:
    """A file and what is in it.

    Attributes:
        content: Its bytes.
        pixels: (high, wide, 3), values 0..255.
        gap: By how much a value may differ.
        array: The same image in memory; None where there is none.
    """

    content: bytes
    pixels: np.ndarray
    gap: float = 0.0
    array: np.ndarray | None = None


def drawn(seed: int, channels: int = 3, block: int = 1, most: int = 256) -> np.ndarray:
    """Random values (high, wide, channels), the same in blocks of so many pixels; (high, wide) of one channel."""
    random = np.random.default_rng(seed).integers(0, most, (HIGH // block, WIDE // block, channels))
    values = np.kron(random, np.ones((block, block, 1), int)).astype(np.uint8 if most == 256 else np.uint16)
    return values[:, :, 0] if channels == 1 else values


def colour(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[:, :, None], 3, 2)


def laid_on(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Over mid grey, rounded, by numbers of 64 bits."""
    part = alpha[:, :, None] / 255.0
    return np.floor(rgb * part + BACK * (1 - part) + 0.5)


def saved(image: np.ndarray | Image.Image, kind: str, **options: Any) -> bytes:
    held = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(held, kind, **options)
    return held.getvalue()


def tif(values: np.ndarray, kind: str = "minisblack", **options: Any) -> bytes:
    held = io.BytesIO()
    tifffile.imwrite(held, values, photometric=kind, **options)
    return held.getvalue()


def indexed(seed: int, count: int = 16) -> tuple[Image.Image, np.ndarray, np.ndarray]:
    """An image with a palette, the number of each pixel, and the colours."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, count, (HIGH, WIDE), dtype=np.uint8)
    colours = random.integers(0, 256, (count, 3), dtype=np.uint8)
    image = Image.fromarray(numbers)
    image.putpalette(colours.tobytes())
    return image, numbers, colours


def png(values: np.ndarray, kind: int, bits: int = 8, interlaced: bool = False, more: bytes = b"") -> bytes:
    """A PNG, written here: kind 0 is grey, 2 colour, 3 a palette, 4 grey with alpha, 6 colour with alpha."""

    def lines(part: np.ndarray) -> bytes:
        rows = part.reshape(part.shape[0], -1)
        if bits == 16:
            return b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
        spread = (rows[:, :, None].astype(np.uint8) >> np.arange(bits)[::-1]) & 1
        return b"".join(b"\0" + np.packbits(row.ravel()).tobytes() for row in spread)

    adam7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    passes = [values[top::down, left::across] for top, left, down, across in adam7] if interlaced else [values]
    header = struct.pack(">2I5B", values.shape[1], values.shape[0], bits, kind, 0, 0, interlaced)
    data = zlib.compress(b"".join(map(lines, passes)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bmp(data: bytes, bits: int, colours: bytes = b"", masks: tuple[int, ...] = (), flipped: bool = True) -> bytes:
    """A BMP, written here: a header of 40 bytes, or of 124 with masks."""
    size = 124 if masks else 40
    about = (size, WIDE, HIGH if flipped else -HIGH, 1, bits, 3 if masks else 0, len(data), 0, 0, len(colours) // 4, 0)
    header = (struct.pack("<I2i2H6I", *about) + struct.pack(f"<{len(masks)}I", *masks)).ljust(size, b"\0")
    first = 14 + size + len(colours)
    return b"BM" + struct.pack("<I2HI", first + len(data), 0, 0, first) + header + colours + data


def without(content: bytes, marker: bytes) -> bytes:
    """A JPEG without its segment of this kind."""
    start = content.index(marker)
    return content[:start] + content[start + 2 + int.from_bytes(content[start + 2 : start + 4], "big") :]


def stored_as(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What must lie in a file that EXIF says to turn, by the inverse of each of its turns."""
    turned = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, 1),
        7: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(pixels, -1),
    }
    return np.ascontiguousarray(turned[orientation])


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


JPEG = {"quality": 100, "subsampling": 0}
SHOWN: dict[str, dict[str, Any]] = {"TIFF": {}, "PNG": {}, "WEBP": {"lossless": True}}


def jpegs() -> dict[str, Kept]:
    found, rgb = {}, drawn(1, block=BLOCK)
    for turn in range(1, 9):
        pixels = drawn(10 + turn, block=BLOCK)
        content = saved(stored_as(pixels, turn), "JPEG", exif=exif_of(turn), **JPEG)
        found[f"turned {turn}.jpg"] = Kept(content, pixels, 2)
    found["progressive.jpg"] = Kept(saved(rgb, "JPEG", progressive=True, **JPEG), rgb, 2)
    plain = colour_of(20, 130, 220)
    found["half colours.jpg"] = Kept(saved(plain.astype(np.uint8), "JPEG", quality=100, subsampling=2), plain, 2)
    found["rgb inside.jpg"] = Kept(
        saved(drawn(3, block=BLOCK), "JPEG", quality=100, keep_rgb=True), drawn(3, block=8), 1
    )
    grey = drawn(4, 1, BLOCK)
    found["grey.jpg"] = Kept(saved(grey, "JPEG", quality=100), colour(grey), 1)
    found["more behind.jpg"] = Kept(saved(drawn(5, block=8), "JPEG", **JPEG) + b"more", drawn(5, block=8), 2)
    first, second = drawn(6, block=8), drawn(7, block=8)
    two = saved(first, "MPO", save_all=True, append_images=[Image.fromarray(second)], **JPEG)
    found["two.jpg"] = Kept(two, first, 2)
    broken = b"Exif\0\0MM\0*\0\0\0\x08\0\xff\x01\x12\0\x03"
    found["broken exif.jpg"] = Kept(saved(drawn(8, block=8), "JPEG", exif=broken, **JPEG), drawn(8, block=8), 2)
    for seed, name in ((30, "adobe"), (31, "no marker")):  # both hold inks the other way round, 255 for none
        inks = drawn(seed, 4, BLOCK).astype(float)
        pixels = np.rint((255 - inks[:, :, :3]) * (255 - inks[:, :, 3:]) / 255)
        content = saved(Image.frombytes("CMYK", (WIDE, HIGH), inks.astype(np.uint8).tobytes()), "JPEG", **JPEG)
        found[f"cmyk {name}.jpg"] = Kept(content if name == "adobe" else without(content, b"\xff\xee"), pixels, 3)
    rgb, black = drawn(32, block=BLOCK).astype(float), drawn(33, 1, BLOCK)[:, :, None]
    to_ycc = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
    inside = np.dstack([np.rint(rgb @ to_ycc.T + (0, 128, 128)).clip(0, 255), black])
    inks = (255 - inside).astype(np.uint8)  # Pillow turns inks round when it writes
    content = bytearray(saved(Image.frombytes("CMYK", (WIDE, HIGH), inks.tobytes()), "JPEG", **JPEG))
    content[content.index(b"Adobe") + 11] = 2  # says that they are YCCK
    found["ycck.jpg"] = Kept(bytes(content), np.rint((255 - rgb) * black / 255), 4)
    return found


def pngs() -> dict[str, Kept]:
    found, rgb, alpha = {}, drawn(40), drawn(41, 1)
    found["colour.png"] = Kept(saved(rgb, "PNG"), rgb, array=rgb)
    grey = drawn(42, 1)
    found["grey.png"] = Kept(saved(grey, "PNG"), colour(grey), array=grey)
    rgba = np.dstack([drawn(43), alpha])
    found["alpha.png"] = Kept(saved(rgba, "PNG"), laid_on(rgba[:, :, :3], alpha), array=rgba)
    grey = drawn(44, 1)
    pair = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
    found["grey alpha.png"] = Kept(saved(pair, "PNG"), laid_on(colour(grey), alpha))
    for bits in (1, 2, 4):
        numbers = drawn(45 + bits, 1) >> (8 - bits)
        found[f"{bits} bits.png"] = Kept(png(numbers, 0, bits), colour(numbers * (255 // (2**bits - 1))))
    for bits in (4, 8):
        image, numbers, colours = indexed(50 + bits)
        found[f"palette {bits}.png"] = Kept(saved(image, "PNG", bits=bits), colours[numbers])
    image, numbers, colours = indexed(60)
    alphas = np.random.default_rng(61).integers(0, 256, 16, dtype=np.uint8)
    some = saved(image, "PNG", transparency=alphas.tobytes())
    found["palette alphas.png"] = Kept(some, laid_on(colours[numbers], alphas[numbers]))
    image, numbers, colours = indexed(62)
    one = laid_on(colours[numbers], 255 * (numbers != 3))
    found["palette alpha.png"] = Kept(saved(image, "PNG", transparency=3), one)
    keyed = drawn(63)
    keyed[3:9, 2:8] = 1, 2, 3
    clear = laid_on(keyed, 255 * (keyed != (1, 2, 3)).any(axis=2))
    found["colour key.png"] = Kept(saved(keyed, "PNG", transparency=(1, 2, 3)), clear)
    grey = drawn(64, 1)
    grey[3:9, 2:8] = 77
    found["grey key.png"] = Kept(saved(grey, "PNG", transparency=77), laid_on(colour(grey), 255 * (grey != 77)))
    deep = drawn(65, 1, most=65536)
    deep[0, :4] = 0, 65535, 128, 129
    found["16 bits.png"] = Kept(saved(deep, "PNG"), colour(np.rint(deep / 257)), array=deep)
    for kind, channels in ((2, 3), (4, 2), (6, 4)):
        deep = drawn(66 + kind, channels, most=65536)
        deep[0, 0] = 65535
        high = (deep >> 8).astype(np.uint8)
        pixels = high if kind == 2 else laid_on(high[:, :, :3] if kind == 6 else colour(high[:, :, 0]), high[:, :, -1])
        found[f"16 bits {kind}.png"] = Kept(png(deep, kind, 16), pixels)
    found["interlaced.png"] = Kept(png(drawn(73), 2, interlaced=True), drawn(73))
    frames = [drawn(74), drawn(75)]
    moving = saved(frames[0], "PNG", save_all=True, append_images=[Image.fromarray(frames[1])])
    found["moving.png"] = Kept(moving, frames[0])
    found["cut behind the pixels.png"] = Kept(saved(drawn(76), "PNG")[:-12], drawn(76))
    found["wrong ending.gif"] = Kept(saved(drawn(77), "PNG"), drawn(77))
    found["no ending"] = Kept(saved(drawn(78), "PNG"), drawn(78))
    for seed, (kind, options) in enumerate(SHOWN.items(), 80):
        pixels = drawn(seed)
        content = saved(stored_as(pixels, 6), kind, exif=exif_of(6), **options)
        found[f"turned 6.{kind.lower()}"] = Kept(content, pixels)
    return found


def gifs_and_bmps() -> dict[str, Kept]:
    found: dict[str, Kept] = {}
    for seed, name, options in ((100, "plain", {"interlace": 0}), (101, "interlaced", {"interlace": 1})):
        image, numbers, colours = indexed(seed)
        found[f"{name}.gif"] = Kept(saved(image, "GIF", **options), colours[numbers])
    image, numbers, colours = indexed(102)
    clear = laid_on(colours[numbers], 255 * (numbers != 5))
    found["clear.gif"] = Kept(saved(image, "GIF", transparency=5), clear)
    image, numbers, colours = indexed(103)
    moving = saved(image, "GIF", save_all=True, append_images=[indexed(104)[0]], duration=100)
    found["moving.gif"] = Kept(moving, colours[numbers])
    rgb = drawn(110)
    found["colour.bmp"] = Kept(saved(rgb, "BMP"), rgb)
    image, numbers, colours = indexed(111, 256)
    found["palette 8.bmp"] = Kept(saved(image, "BMP"), colours[numbers])
    _, numbers, colours = indexed(112)
    halves = (numbers[::-1, ::2] << 4) | numbers[::-1, 1::2]
    table = np.dstack([colours[None, :, ::-1], np.zeros((1, 16, 1), np.uint8)]).tobytes()
    found["palette 4.bmp"] = Kept(bmp(halves.tobytes(), 4, table), colours[numbers])
    flags = drawn(113, 1) > 127
    lines = np.hstack([np.packbits(flags, axis=1), np.zeros((HIGH, 1), np.uint8)])[::-1]
    found["1 bit.bmp"] = Kept(bmp(lines.tobytes(), 1, bytes((0, 0, 0, 0, 255, 255, 255, 0))), colour(flags * 255))
    fives = drawn(114) >> 3
    words = (fives.astype(np.uint16) << (10, 5, 0)).sum(axis=2).astype("<u2")
    found["15 bits.bmp"] = Kept(bmp(words[::-1].tobytes(), 16), np.floor(fives * 255.0 / 31))
    four = np.dstack([drawn(115)[:, :, ::-1], drawn(116, 1)])
    found["32 bits.bmp"] = Kept(bmp(four[::-1].tobytes(), 32), drawn(115))  # the fourth byte means nothing
    masks = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    four = np.dstack([drawn(117)[:, :, ::-1], drawn(118, 1)])
    found["alpha.bmp"] = Kept(bmp(four[::-1].tobytes(), 32, masks=masks), laid_on(drawn(117), drawn(118, 1)))
    found["from the top.bmp"] = Kept(bmp(drawn(119)[:, :, ::-1].tobytes(), 24, flipped=False), drawn(119))
    return found


def tiffs() -> dict[str, Kept]:
    rgb, grey = [drawn(seed) for seed in range(130, 136)], [drawn(seed, 1) for seed in range(136, 139)]
    deep = [drawn(seed, 1, most=65536) for seed in range(140, 146)]
    for each in deep:
        each[0, 0] = 65535
    alpha, flags, inks = drawn(147, 1), drawn(148, 1) > 127, drawn(149, 4)
    high = drawn(150, 3, most=65536)
    high[0, 0] = 65535
    numbers, table = drawn(151, 1), drawn(152, 3, most=65536).reshape(-1, 3)[:256]
    weighed = drawn(153)
    weighed = np.minimum(weighed, alpha[:, :, None])  # colours that are multiplied by alpha already
    found = {
        "colour.tif": Kept(tif(rgb[0], "rgb"), rgb[0]),
        "in planes.tif": Kept(tif(rgb[1].transpose(2, 0, 1), "rgb", planarconfig="separate"), rgb[1]),
        "deflated.tif": Kept(tif(rgb[2], "rgb", compression="zlib", predictor=2), rgb[2]),
        "big.tif": Kept(tif(rgb[3], "rgb", bigtiff=True), rgb[3]),
        "tiled.tif": Kept(tif(rgb[4], "rgb", tile=(16, 16)), rgb[4]),
        "pages.tif": Kept(tif(np.stack([rgb[5], 255 - rgb[5]]), "rgb"), rgb[5]),
        "grey.tif": Kept(tif(grey[0]), colour(grey[0])),
        "white is 0.tif": Kept(tif(grey[1], "miniswhite"), colour(255 - grey[1])),
        "1 bit.tif": Kept(tif(flags), colour(flags * 255)),
        "1 bit, white is 0.tif": Kept(tif(~flags[::-1], "miniswhite"), colour(flags[::-1] * 255)),
        "16 bits.tif": Kept(tif(deep[0]), colour(np.rint(deep[0] / 257))),
        "16 bits, big end.tif": Kept(tif(deep[1], byteorder=">"), colour(np.rint(deep[1] / 257))),
        "32 bits.tif": Kept(tif(deep[2].astype(np.uint32)), colour(np.rint(deep[2] / 257))),
        "32 bits, signed.tif": Kept(tif(deep[3].astype(np.int32)), colour(np.rint(deep[3] / 257))),
        "16 bits, deflated.tif": Kept(tif(deep[4], compression="zlib"), colour(np.rint(deep[4] / 257))),
        "16 bits a colour.tif": Kept(tif(high, "rgb"), high >> 8),
        "cmyk.tif": Kept(tif(inks, "separated"), (255.0 - inks[:, :, :3]) * (255.0 - inks[:, :, 3:]) / 255, 1),
        "alpha.tif": Kept(
            tif(np.dstack([rgb[0][::-1], alpha]), "rgb", extrasamples=["unassalpha"]), laid_on(rgb[0][::-1], alpha)
        ),
        "alpha multiplied.tif": Kept(
            tif(np.dstack([weighed, alpha]), "rgb", extrasamples=["assocalpha"]),
            weighed + BACK * (1 - alpha[:, :, None] / 255.0),
            2,
        ),
        "palette.tif": Kept(tif(numbers, "palette", colormap=np.ascontiguousarray(table.T)), table[numbers] >> 8),
    }
    return found


def others() -> dict[str, Kept]:
    alpha, smooth = drawn(170, 1), [drawn(seed, block=BLOCK) for seed in range(171, 178)]
    rgb, grey, deep = [drawn(seed) for seed in range(180, 187)], drawn(187, 1), drawn(188, 1, most=65536)
    deep[0, 0] = 65535
    still = {"lossless": True, "exact": True}
    clear = np.dstack([rgb[0], alpha])
    two = {"save_all": True, "append_images": [Image.fromarray(255 - rgb[1])]}
    flags, tenths = drawn(189, 1) > 127, grey % 101
    twelve = deep % 4096
    even = {"quality": 100, "subsampling": "4:4:4"}
    size = b"%d %d" % (WIDE, HIGH)
    return {
        "lossless.webp": Kept(saved(rgb[2], "WEBP", **still), rgb[2]),
        "alpha.webp": Kept(saved(clear, "WEBP", **still), laid_on(rgb[0], alpha)),
        "moving.webp": Kept(saved(rgb[1], "WEBP", **two, **still), rgb[1]),
        "lossy.webp": Kept(saved(np.full_like(rgb[0], (200, 90, 30)), "WEBP", quality=100), colour_of(200, 90, 30), 4),
        "colour.avif": Kept(saved(smooth[1], "AVIF", **even), smooth[1], 4),
        "alpha.avif": Kept(saved(np.dstack([smooth[2], alpha]), "AVIF", **even), laid_on(smooth[2], alpha), 5),
        "moving.avif": Kept(
            saved(smooth[3], "AVIF", save_all=True, append_images=[Image.fromarray(255 - smooth[3])], **even),
            smooth[3],
            6,
        ),
        "phone.heic": Kept(heic(smooth[4]), smooth[4], 4),
        "colour.jp2": Kept(saved(rgb[3], "JPEG2000", irreversible=False), rgb[3]),
        "codestream.j2k": Kept(saved(rgb[4], "JPEG2000", irreversible=False, no_jp2=True), rgb[4]),
        "alpha.jp2": Kept(saved(np.dstack([rgb[5], alpha]), "JPEG2000"), laid_on(rgb[5], alpha)),
        "16 bits.jp2": Kept(saved(deep, "JPEG2000"), colour(np.rint(deep / 257))),
        "colour.ppm": Kept(b"P6 %s 255\n" % size + rgb[6].tobytes(), rgb[6]),
        "words.ppm": Kept(b"P3 %s 255\n" % size + " ".join(map(str, rgb[6][::-1].ravel())).encode(), rgb[6][::-1]),
        "to 100.pgm": Kept(b"P5 %s 100\n" % size + tenths.tobytes(), colour(np.rint(tenths * 2.55)), 1),
        "to 4095.pgm": Kept(
            b"P5 %s 4095\n" % size + twelve.astype(">u2").tobytes(), colour(np.rint(twelve / 4095 * 255))
        ),
        "to 65535.pgm": Kept(
            b"P5 %s 65535\n" % size + deep[::-1].astype(">u2").tobytes(), colour(np.rint(deep[::-1] / 257))
        ),
        "bits.pbm": Kept(b"P4 %s\n" % size + np.packbits(~flags, axis=1).tobytes(), colour(flags * 255)),
        "words.pbm": Kept(
            b"P1 %s\n" % size + " ".join(map(str, (~flags[::-1]).astype(int).ravel())).encode(),
            colour(flags[::-1] * 255),
        ),
    }


def colour_of(*values: int) -> np.ndarray:
    return np.broadcast_to(np.array(values), (HIGH, WIDE, 3))


def heic(pixels: np.ndarray) -> bytes:
    from pillow_heif import register_heif_opener

    register_heif_opener()
    return saved(pixels, "HEIF", quality=100, chroma=444)


@cache
def readable() -> dict[str, Kept]:
    """Every kind that is read, by the name of a file."""
    return jpegs() | pngs() | gifs_and_bmps() | tiffs() | others()


@cache
def refused() -> dict[str, bytes]:
    """Every kind that is refused, by the name of a file."""
    kept, rgb, deep = readable(), drawn(200), drawn(201, 1, most=65536)
    deep[0, 0] = 65535
    whole = {
        "jpg": "progressive.jpg",
        "png": "colour.png",
        "gif": "plain.gif",
        "bmp": "colour.bmp",
        "tif": "colour.tif",
    }
    whole |= {
        "webp": "lossless.webp",
        "avif": "colour.avif",
        "heic": "phone.heic",
        "jp2": "colour.jp2",
        "ppm": "colour.ppm",
    }
    halves = {
        f"half.{ending}": content[: len(content) * 2 // 3]
        for ending, content in ((ending, kept[name].content) for ending, name in whole.items())
    }
    flipped = bytearray(kept["colour.png"].content)
    flipped[flipped.index(b"IDAT") + 40] ^= 1
    wide = bytearray(bmp(b"", 1, bytes(8)))
    wide[18:26] = struct.pack("<2i", 20000, 20000)
    far = chunk(b"IHDR", struct.pack(">2I5B", 30000, 30000, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(bytes(9)))
    square = drawn(202, 3, most=4096)
    return halves | {
        "empty.jpg": b"",
        "text.png": b"not an image",
        "flipped.png": bytes(flipped),
        "bomb.bmp": bytes(wide),
        "bomb.png": b"\x89PNG\r\n\x1a\n" + far,
        "bomb.gif": b"GIF89a" + struct.pack("<2H", 65535, 65535) + kept["plain.gif"].content[10:],
        "floats.tif": tif(rgb[:, :, 0].astype(np.float32)),
        "halves.tif": tif(rgb[:, :, 0].astype(np.float16)),
        "floats.pfm": b"Pf\n%d %d\n-1.0\n" % (WIDE, HIGH) + rgb[:, :, 0].astype("<f4").tobytes(),
        "signed 8.tif": tif(rgb[:, :, 0].astype(np.int8)),
        "signed 16.tif": tif(deep.astype(np.int16)),
        "32 bits.tif": tif(deep.astype(np.uint32) * 2),
        "64 bits.tif": tif(deep.astype(np.uint64)),
        "white is 0.tif": tif(deep, "miniswhite"),
        "white is 0, big end.tif": tif(deep, "miniswhite", byteorder=">"),
        "16 bits in planes.tif": tif(
            drawn(203, 3, most=65536).transpose(2, 0, 1).copy(), "rgb", planarconfig="separate"
        ),
        "five.tif": tif(drawn(204, 5), planarconfig="contig"),
        "12 of 16.png": saved(deep >> 4, "PNG"),
        "12 of 16 a colour.png": png(square, 2, 16),
        "drawing.svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "page.pdf": b"%PDF-1.4\n%%EOF",
        "drawing.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "icon.ico": saved(rgb, "ICO"),
        "old.tga": saved(rgb, "TGA"),
        "map.pam": b"P7\nWIDTH 24\nHEIGHT 16\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" + rgb.tobytes(),
    }
