"""From the values of an attribution to colours and over its image, and back to a range that a legend can state.

Two scales. A map without signs runs from dark to light, so that it also reads in grey and without colour vision. A map
with signs runs from blue (against) over white (zero) to red (for), and both ends lie equally far from zero.

A scale starts at zero, and its last colour stands for the map's largest value; or for three times the map's mean, where
no patch has as much: a map that prefers no patch stays dull all over, and is not stretched until it looks like one.

Maps of several methods have units that nothing converts into one another. Side by side they are shown as fractions:
each patch's fraction of its map's total absolute value, and one range of colours for all. There colours go with the
square root of the fraction, and the last one stands for at most twice the median of the maps' largest fractions: one
map with nearly everything in one patch would leave all others black otherwise. The legend shows it.

Pages and notebooks take their colours from here. numpy is all that it takes, so that pages need no torch.
"""

import dataclasses
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, PngImagePlugin

from vitrail.pages.image_views import AttributionView, ImageView

Values = Float[np.ndarray, "rows columns"]
Pixels = UInt8[np.ndarray, "h w *channels"]

SEQUENTIAL = ((17, 20, 54), (62, 52, 128), (134, 66, 144), (206, 92, 110), (247, 160, 76), (255, 241, 168))
DIVERGING = ((23, 66, 138), (96, 150, 208), (248, 248, 246), (222, 120, 92), (140, 24, 34))
MISSING = (128, 128, 128)
ROUNDING = 1024  # units in the last place within which a map counts as constant
EVEN = 3  # times the mean: patches that have less are never shown in the last colour
TICKS = (0.01, 0.05, 0.25)  # fractions that a legend names between its ends
VEIL = 0.75  # of white over an image where a map without colour is low
STRENGTH, PALE = 0.65, 0.35  # of the colours over an image; of these, in a map that the evidence does not support
BRIGHT, MEAN = 0.8, 0.25  # of an image below a map, of which white has 1
APART, FROM_END = 0.085, 0.2  # how near two names on a legend may stand, and one to an end, as fractions of its width


@dataclass(frozen=True)
class ColourRange:
    """What the colours of one map mean, in the units of its values.

    Args:
        smallest: Least finite value; NaN when there is none.
        largest: Greatest finite value; NaN when there is none.
        low: Value of the first colour of the scale.
        high: Value of the last colour of the scale.
        missing: How many values are not finite.
        flat: Whether there is nothing to show, see `is_flat`.
        rooted: Whether colours go with the square root of a value, with its sign, and not with the value itself.
    """

    smallest: float
    largest: float
    low: float
    high: float
    missing: int
    flat: bool
    rooted: bool = False

    def place(self, values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Where values lie on the colour scale: 0 at its first colour, 1 at its last."""
        ends = np.array([self.low, self.high], np.float64)
        if self.rooted:
            values, ends = _signed_root(values), _signed_root(ends)
        return (values - ends[0]) / (ends[1] - ends[0])

    def ticks(self) -> list[tuple[float, float]]:
        """Fractions that the legend of a common scale names between its ends, and where each lies on it."""
        before, *places = self.place(np.array([0.0, *TICKS])).tolist()
        found = list[tuple[float, float]]()
        for fraction, place in zip(TICKS, places, strict=True):
            if before + APART <= place <= 1 - FROM_END:
                found.append((fraction, place))
                before = place
        return found


def is_flat(values: Values) -> bool:
    """Whether a map prefers no patch: no value is finite, or those that are differ by rounding alone.

    By at most 1024 units in the last place of the largest, which are 1.2e-4 of it in single precision: gradients that
    nearly cancel leave some hundreds on a constant map. An attribution's own "no signal" goes by the same number.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return True
    return float(np.ptp(finite)) <= ROUNDING * float(np.finfo(values.dtype).eps) * float(np.abs(finite).max())


def value_range(values: Values, signed: bool) -> ColourRange:
    """Find what the colours of a map stand for on a scale of its own, which holds zero; for signs, in its middle."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return ColourRange(np.nan, np.nan, np.nan, np.nan, values.size, True)
    smallest, largest, total = float(finite.min()), float(finite.max()), float(np.abs(finite).sum())
    even = total * min(1.0, EVEN / finite.size)
    high = max(abs(smallest), largest, even) if signed else max(largest, even)
    low = -high if signed else min(0.0, smallest)
    return ColourRange(smallest, largest, low, high, values.size - finite.size, is_flat(values))


def fractions(values: Values) -> Values:
    """Each patch's fraction of the map's total absolute value, with its sign; all zero for a map of zeros."""
    total = np.abs(values[np.isfinite(values)].astype(np.float64)).sum()
    return values.astype(np.float64) / (total if total > 0 else 1.0)


def common_top(maps: Sequence[Values]) -> float:
    """The fraction that the last colour stands for, of all maps of an image; 0 where none has a signal."""
    largest = [float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for part in map(fractions, maps)]
    found = [fraction for fraction in largest if fraction > 0]
    if not found:
        return 0.0
    even = min(1.0, EVEN / max(part.size for part in maps))
    return max(min(max(found), 2 * float(np.median(found))), even)


def scaled(values: Values, signed: bool, top: float | None) -> tuple[ColourRange, Values]:
    """What the colours of a map stand for, and the values that have them.

    Where maps have a common top these are fractions, coloured from 0 (for signs from -top) to it, by the square root.
    """
    if top is None:
        return value_range(values, signed), values
    low, flat = -top if signed else 0.0, is_flat(values)  # and not of the fractions, which have more digits
    parts = fractions(values)
    return dataclasses.replace(value_range(parts, signed), low=low, high=top, flat=flat, rooted=True), parts


def patch_colours(
    values: Values, signed: bool, shown: ColourRange | None = None
) -> UInt8[np.ndarray, "rows columns 3"]:
    """One colour per patch; patches without a finite value are grey.

    Args:
        values: The attribution, in any unit.
        signed: Whether the sign means for and against.
        shown: What the colours stand for, in the unit of the values; the map's own range when None.

    Returns:
        Colours between those of `SEQUENTIAL` or `DIVERGING`, linear in the value; in its root if `rooted`.
        What lies beyond the range has the colour of its end.
    """
    shown = value_range(values, signed) if shown is None else shown
    if shown.flat:
        return np.broadcast_to(np.array(MISSING, np.uint8), (*values.shape, 3)).copy()
    finite = np.isfinite(values)
    colours = colours_at(_places(values, signed, shown), signed).round()
    return np.where(finite[..., None], colours, MISSING).astype(np.uint8)


def patch_layer(values: Values, signed: bool, shown: ColourRange | None = None) -> UInt8[np.ndarray, "rows columns 4"]:
    """The same with an opacity, to be laid over an image: clear at the lower end of the scale, of signs at zero."""
    places = _places(values, signed, shown)
    opacity = np.where(np.isfinite(values), abs(2 * places - 1) if signed else places, 1)  # the grey of others is seen
    return np.dstack([patch_colours(values, signed, shown), (255 * opacity).round().astype(np.uint8)])


def veil(values: Values, signed: bool, shown: ColourRange | None = None) -> UInt8[np.ndarray, "rows columns 4"]:
    """A map without colour: white over an image, clear at the upper end of the scale and dense where values are low."""
    places = _places(values, signed, shown)
    opacity = VEIL * (1 - (np.maximum(2 * places - 1, 0) if signed else places))
    return np.dstack([np.full((*values.shape, 3), 255, np.uint8), (255 * opacity).round().astype(np.uint8)])


def _places(values: Values, signed: bool, shown: ColourRange | None) -> Float[np.ndarray, "rows columns"]:
    """Where values lie on their scale, 0 to 1; what is not finite at its lower end."""
    shown = value_range(values, signed) if shown is None else shown
    return shown.place(np.where(np.isfinite(values), values, shown.low).astype(np.float64)).clip(0, 1)


def colours_at(places: Float[np.ndarray, "*shape"], signed: bool) -> Float[np.ndarray, "*shape 3"]:
    """The colours at places of a scale, from 0 at its first to 1 at its last."""
    scale = np.array(DIVERGING if signed else SEQUENTIAL, np.float64)
    stops = np.linspace(0, 1, len(scale))
    return np.stack([np.interp(places, stops, scale[:, channel]) for channel in range(3)], axis=-1)


def _signed_root(values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.sign(values) * np.sqrt(np.abs(values))


def grey_value(image: Pixels) -> UInt8[np.ndarray, "h w"]:
    """The luminance of an image (weights of ITU-R BT.601)."""
    if image.ndim == 2:
        return image
    return (image[..., :3] @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)


def grey_below(image: Pixels) -> UInt8[np.ndarray, "h w"]:
    """The same, as it lies below a map: lightened where it is dark, so that it can be seen.

    Multiplied until its brightest hundredth has `BRIGHT` (at most by 12), then raised to a power below 1 until its mean
    has `MEAN` (at least to that of 0.4).
    """
    grey = grey_value(image) / 255.0
    grey = np.minimum(1.0, grey * np.clip(BRIGHT / max(1e-9, np.quantile(grey, 0.99)), 1.0, 12.0))
    mean = float(grey.mean())
    power = max(0.4, math.log(MEAN) / math.log(mean)) if 0 < mean < MEAN else 1.0
    return (255 * grey**power).round().astype(np.uint8)


def overlay_pixels(
    image: Pixels, values: Values, signed: bool, shown: ColourRange | None = None, pale: bool = False
) -> UInt8[np.ndarray, "h w 3"]:
    """Lay an attribution over its image, in patches as the model saw them.

    The image is turned grey first, and light enough, so that every colour in the result means attribution. Where the
    map is low, and where it has no signal, the grey image stays as it is.

    Args:
        image: (h, w) or (h, w, 3), as the model saw it.
        values: One number per patch, any grid.
        signed: Whether the sign means for and against.
        shown: What the colours stand for, as in `patch_colours`.
        pale: Whether its colours would show more than is known, so that more of the image is seen.

    Returns:
        The overlay in the size of the image.
    """
    base = np.repeat(grey_below(image)[..., None], 3, axis=2)
    if (value_range(values, signed) if shown is None else shown).flat:
        return base
    (height, width), (rows, columns) = base.shape[:2], values.shape
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    patches = patch_layer(values, signed, shown)[row[:, None], column]
    strength = STRENGTH * (PALE if pale else 1.0) * patches[..., 3:] / 255
    return (strength * patches[..., :3] + (1 - strength) * base).round().astype(np.uint8)


LEAST = 448  # pixels of the longer side: smaller images are enlarged by a whole factor, so that patches can be seen


def overlay(
    image: Pixels, values: Values, signed: bool, shown: ColourRange | None = None, pale: bool = False
) -> Image.Image:
    """An attribution over its image.

    Args:
        image: (h, w) or (h, w, 3), as the model saw it.
        values: One number for each patch.
        signed: Whether the sign means for and against.
        shown: What the colours stand for, as of `patch_colours`; the attribution's own range when None.
        pale: Whether its colours would show more than is known.

    Returns:
        RGB, of the size of the image, or the smallest multiple of it with 448 pixels on the longer side.
    """
    drawn = overlay_pixels(image, values, signed, shown, pale)
    factor = -(-LEAST // max(drawn.shape[:2]))
    return Image.fromarray(drawn.repeat(factor, axis=0).repeat(factor, axis=1))


def overlay_of(view: AttributionView, explained: ImageView) -> Image.Image:
    """One of the attributions of an image in the colours of its page: pale where nothing supports it.

    Args:
        view: The attribution.
        explained: The image with all its attributions.
    """
    top = common_top([each.values for each in explained.attributions]) if explained.one_scale else None
    shown, values = scaled(view.values, view.signed, top)
    return overlay(explained.image, values, view.signed, shown, view.pale)


def png(drawn: Image.Image, texts: Mapping[str, str]) -> bytes:
    """An image as a file with texts on what it shows, in text chunks that image viewers list."""
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_itxt(name, text.encode(errors="replace").decode())  # names of files may be no UTF-8
    content = io.BytesIO()
    drawn.save(content, "PNG", pnginfo=info, compress_level=4, compress_type=zlib.Z_DEFAULT_STRATEGY)  # half the time
    return content.getvalue()
