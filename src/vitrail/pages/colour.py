"""From the values of a heat to colours, and back to a range that a legend can state.

Two scales. A map without signs runs from dark to light, so that it also reads in grey and without colour vision. A map
with signs runs from blue (against) over white (zero) to red (for), and both ends lie equally far from zero.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

SEQUENTIAL = ((17, 20, 54), (62, 52, 128), (134, 66, 144), (206, 92, 110), (247, 160, 76), (255, 241, 168))
DIVERGING = ((23, 66, 138), (96, 150, 208), (248, 248, 246), (222, 120, 92), (140, 24, 34))
MISSING = (128, 128, 128)
STRENGTH = 0.65


@dataclass(frozen=True)
class Range:
    """What the colours of one map mean, in the units of its values.

    Args:
        smallest: Least finite value; NaN when there is none.
        largest: Greatest finite value; NaN when there is none.
        low: Value of the first colour of the scale.
        high: Value of the last colour of the scale.
        missing: How many values are not finite.
    """

    smallest: float
    largest: float
    low: float
    high: float
    missing: int

    @property
    def flat(self) -> bool:
        """Whether there is nothing to show: no finite value, or all equal up to rounding in single precision."""
        largest = max(abs(self.smallest), abs(self.largest))
        return not self.largest - self.smallest > 1e-6 * largest


def value_range(values: Float[np.ndarray, "rows columns"], signed: bool) -> Range:
    """Find what the colours of a map stand for: its own range, or for signs a range symmetric about zero."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return Range(np.nan, np.nan, np.nan, np.nan, values.size)
    smallest, largest = float(finite.min()), float(finite.max())
    reach = max(abs(smallest), abs(largest))
    low, high = (-reach, reach) if signed else (smallest, largest)
    return Range(smallest, largest, low, high, values.size - finite.size)


def heat_colours(values: Float[np.ndarray, "rows columns"], signed: bool) -> UInt8[np.ndarray, "rows columns 3"]:
    """One colour per square; squares without a finite value are grey.

    Args:
        values: The heat, in any unit.
        signed: Whether the sign means for and against.

    Returns:
        Colours between those of `SEQUENTIAL` or `DIVERGING`, linear in the value over `value_range`.
    """
    shown = value_range(values, signed)
    if shown.flat:
        return np.broadcast_to(np.array(MISSING, np.uint8), (*values.shape, 3)).copy()
    scale = np.array(DIVERGING if signed else SEQUENTIAL, np.float64)
    finite = np.isfinite(values)
    position = (np.where(finite, values, shown.low).astype(np.float64) - shown.low) / (shown.high - shown.low)
    stops = np.linspace(0, 1, len(scale))
    colours = np.stack([np.interp(position, stops, scale[:, channel]) for channel in range(3)], axis=-1)
    return np.where(finite[..., None], colours.round(), MISSING).astype(np.uint8)


def grey(picture: UInt8[np.ndarray, "h w *channels"]) -> UInt8[np.ndarray, "h w"]:
    """The luminance of a picture (weights of ITU-R BT.601)."""
    if picture.ndim == 2:
        return picture
    return (picture[..., :3] @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)


def heat_picture(
    picture: UInt8[np.ndarray, "h w *channels"], values: Float[np.ndarray, "rows columns"], signed: bool
) -> UInt8[np.ndarray, "h w 3"]:
    """Lay a heat over its picture, in squares as the model saw them.

    The picture is turned grey first, so that every colour in the result means heat. A map without signal leaves the
    grey picture as it is.

    Args:
        picture: (h, w) or (h, w, 3), as the model saw it.
        values: One number per patch, any grid.
        signed: Whether the sign means for and against.

    Returns:
        The overlay in the size of the picture.
    """
    base = np.repeat(grey(picture)[..., None], 3, axis=2)
    if value_range(values, signed).flat:
        return base
    (height, width), (rows, columns) = base.shape[:2], values.shape
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    squares = heat_colours(values, signed)[row[:, None], column]
    return (STRENGTH * squares + (1 - STRENGTH) * base).round().astype(np.uint8)
