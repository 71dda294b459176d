"""Pictures for the lessons: pixels, maps, patches, bars and curves, side by side under titles. Pillow draws them.

    panels("A digit and its patches", [("the digit", drawing(image)), ("16 patches", apart(image, 7))])

Every function returns a Pillow image, which a notebook shows when it is the last line of a cell; so does the page of a
lesson. What is said of it stands in its `info`: it is read out to those who do not see it.
"""

import math
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitrail.pages.colour import patch_colours

WHITE, INK, FAINT, MARK = (255, 255, 255), (32, 32, 40), (190, 203, 222), (214, 60, 40)
LINES = ((214, 60, 40), (46, 94, 170), (120, 120, 128), (40, 140, 90))  # red, blue, grey, green
SIDE = 168  # pixels of the longer side of what is shown, where it can be enlarged by a whole factor

Panel = tuple[str, Image.Image]


def font(size: int = 13) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font that comes with Pillow."""
    return ImageFont.load_default(size)


def enlarged(image: Image.Image, side: int = SIDE) -> Image.Image:
    """Enlarged by the largest whole factor that keeps its longer side within `side`: pixels stay squares."""
    factor = max(1, side // max(image.size))
    return image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)


def drawing(pixels: Tensor, side: int = SIDE) -> Image.Image:
    """Pixels (h, w) or (c, h, w), from 0 to 1; what lies beyond is cut off."""
    pixels = (255 * pixels.detach().float().clamp(0, 1)).round().byte()
    planes = pixels if pixels.dim() == 2 else pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    return enlarged(Image.fromarray(planes.contiguous().numpy()).convert("RGB"), side)


def heat(values: Tensor, signed: bool = False, side: int = SIDE) -> Image.Image:
    """Numbers (rows, columns) as colours: dark is 0 and light is most; with signs blue below zero and red above."""
    return enlarged(Image.fromarray(patch_colours(values.detach().float().numpy(), signed)), side)


def apart(pixels: Tensor, patch: int, numbers: bool = True, side: int = SIDE, by_rows: bool = True) -> Image.Image:
    """A picture (c, h, w) whose patches stand apart, each with its number in a sequence by rows, or by columns."""
    rows, columns = pixels.shape[-2] // patch, pixels.shape[-1] // patch
    scale, gap = max(1, side // pixels.shape[-1]), 4
    whole = drawing(pixels, scale * pixels.shape[-1])
    step = scale * patch
    drawn = Image.new("RGB", (step * columns + gap * (columns - 1), step * rows + gap * (rows - 1)), FAINT)
    pen = ImageDraw.Draw(drawn)
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        corner = (column * (step + gap), row * (step + gap))
        drawn.paste(whole.crop((column * step, row * step, (column + 1) * step, (row + 1) * step)), corner)
        if numbers:
            place = number if by_rows else column * rows + row
            pen.text((corner[0] + 2, corner[1]), str(place + 1), MARK, font(10 if step < 30 else 12))
    return drawn


def in_a_row(pixels: Tensor, patch: int, cell: int = 28, gap: int = 5) -> Image.Image:
    """The patches of a picture (c, h, w) one behind the other, as the network gets them, with their numbers below."""
    rows, columns = pixels.shape[-2] // patch, pixels.shape[-1] // patch
    cell = max(1, cell // patch) * patch
    drawn = Image.new("RGB", (rows * columns * (cell + gap) - gap, cell + 16), WHITE)
    pen = ImageDraw.Draw(drawn)
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        part = pixels[..., row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
        left = number * (cell + gap)
        drawn.paste(drawing(part, cell), (left, 0))
        pen.text((left + cell // 2, cell + 8), str(number + 1), INK, font(11), anchor="mm")
    return drawn


def strip(colours: Tensor, cell: int = 10) -> Image.Image:
    """A row of small squares, of colours (n, 3) from 0 to 1."""
    row = (255 * colours.float().clamp(0, 1)).round().byte()[None].numpy()
    return Image.fromarray(row).resize((cell * len(colours), 2 * cell), Image.Resampling.NEAREST)


def outlined(image: Image.Image, chosen: Sequence[int], grid: tuple[int, int]) -> Image.Image:
    """A red frame around some patches of a picture, counted from 0 in reading order."""
    drawn = image.copy()
    pen, high, wide = ImageDraw.Draw(drawn), image.height // grid[0], image.width // grid[1]
    for number in chosen:
        row, column = divmod(int(number), grid[1])
        box = (column * wide, row * high, (column + 1) * wide - 1, (row + 1) * high - 1)
        pen.rectangle(box, outline=MARK, width=2)
    return drawn


def bars(values: Sequence[float], names: Sequence[str], marked: int | None = None, side: int = SIDE) -> Image.Image:
    """Horizontal bars from 0 to 1 with their names; one of them red."""
    line = max(15, side // len(values))
    drawn = Image.new("RGB", (side + 60, line * len(values)), WHITE)
    pen, start = ImageDraw.Draw(drawn), 6 + round(max(font(12).getlength(name) for name in names))
    for number, (value, name) in enumerate(zip(values, names, strict=True)):
        top, colour = number * line, MARK if number == marked else INK
        pen.text((start - 4, top + line // 2), name, colour, font(12), anchor="rm")
        full = drawn.width - start - 44
        pen.rectangle((start, top + 3, start + round(full * min(1.0, value)), top + line - 4), fill=colour)
        end = start + round(full * min(1.0, value)) + 5
        pen.text((end, top + line // 2), f"{100 * value:.0f} %", colour, font(11), anchor="lm")
    return drawn


def ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers, the first at most `low` and the last at least `high`."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)
    return [step * number for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def curves(
    lines: Mapping[str, Sequence[float]], over: Sequence[float], below: str, size: tuple[int, int] = (380, 230)
) -> Image.Image:
    """Lines over a common axis, which `below` names, and their own names under it. The other axis holds zero."""
    width, height, left, bottom, right = *size, 46, 54, 12
    values = [value for line in lines.values() for value in line]
    marks = ticks(min(0.0, *values), max(values))
    drawn = Image.new("RGB", size, WHITE)
    pen = ImageDraw.Draw(drawn)

    def place(x: float, y: float) -> tuple[float, float]:
        along, up = (x - min(over)) / (max(over) - min(over)), (y - marks[0]) / (marks[-1] - marks[0])
        return left + along * (width - left - right), height - bottom - up * (height - bottom - 8)

    for mark in marks:
        at = place(min(over), mark)[1]
        pen.line((left, at, width - right, at), FAINT)
        pen.text((left - 6, at), f"{mark:.3g}", INK, font(11), anchor="rm")
    for end in (min(over), max(over)):
        pen.text((place(end, 0)[0], height - bottom + 9), f"{end:g}", INK, font(11), anchor="mm")
    pen.text(((left + width - right) / 2, height - bottom + 22), below, INK, font(12), anchor="mm")
    start = float(left)
    for number, (name, line) in enumerate(lines.items()):
        colour = LINES[number % len(LINES)]
        pen.line([place(x, y) for x, y in zip(over, line, strict=True)], colour, 2)
        pen.text((start, height - 8), name, colour, font(12), anchor="lm")
        start += font(12).getlength(name) + 16
    return drawn


def panels(says: str, *rows: Sequence[Panel], gap: int = 18) -> Image.Image:
    """Rows of images, each under its title, on white; `says` is what the whole shows, in one sentence."""
    title, words = 18, font()
    sizes = [
        [(max(image.width, round(words.getlength(name)) + 2), image.height) for name, image in row] for row in rows
    ]
    width = gap + max(sum(wide + gap for wide, _ in row) for row in sizes)
    height = gap // 2 + sum(title + max(high for _, high in row) + gap // 2 for row in sizes)
    drawn = Image.new("RGB", (width, height), WHITE)
    pen, top = ImageDraw.Draw(drawn), gap // 2
    for row, row_sizes in zip(rows, sizes, strict=True):
        left = gap
        for (name, image), (wide, _) in zip(row, row_sizes, strict=True):
            pen.text((left, top), name, INK, words)
            drawn.paste(image, (left, top + title))
            left += wide + gap
        top += title + max(high for _, high in row_sizes) + gap // 2
    drawn.info["says"] = says
    return drawn
