"""A heat laid over its picture, in squares as the model saw them."""

import numpy as np
from jaxtyping import Float, UInt8

from vitrail.pages.colour import Range, heat_colours, value_range

STRENGTH = 0.65
PALE = 0.35  # of a map that the evidence does not support


def grey(picture: UInt8[np.ndarray, "h w *channels"]) -> UInt8[np.ndarray, "h w"]:
    """The luminance of a picture (weights of ITU-R BT.601)."""
    if picture.ndim == 2:
        return picture
    return (picture[..., :3] @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)


def heat_picture(
    picture: UInt8[np.ndarray, "h w *channels"],
    values: Float[np.ndarray, "rows columns"],
    signed: bool,
    shown: Range | None = None,
    strength: float = STRENGTH,
) -> UInt8[np.ndarray, "h w 3"]:
    """Lay a heat over its picture, in squares as the model saw them.

    The picture is turned grey first, so that every colour in the result means heat. A map without signal leaves the
    grey picture as it is.

    Args:
        picture: (h, w) or (h, w, 3), as the model saw it.
        values: One number per patch, any grid.
        signed: Whether the sign means for and against.
        shown: What the colours stand for, as in `heat_colours`.
        strength: How much of the heat is seen, from 0 to 1; the rest is the picture.

    Returns:
        The overlay in the size of the picture.
    """
    base = np.repeat(grey(picture)[..., None], 3, axis=2)
    if (value_range(values, signed) if shown is None else shown).flat:
        return base
    (height, width), (rows, columns) = base.shape[:2], values.shape
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    squares = heat_colours(values, signed, shown)[row[:, None], column]
    return (strength * squares + (1 - strength) * base).round().astype(np.uint8)
