"""An attribution over its image, as an image file that any program shows."""

import io
import zlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, PngImagePlugin

from vitrail.pages.colour import PALE, STRENGTH, Range, common_scale, overlay_pixels, scaled
from vitrail.pages.views import AttributionView, ImageView

LEAST = 448  # pixels of the longer side: smaller images are enlarged by a whole factor, so that patches can be seen


def overlay(
    image: UInt8[np.ndarray, "h w *channels"],
    values: Float[np.ndarray, "rows columns"],
    signed: bool,
    shown: Range | None = None,
    pale: bool = False,
) -> Image.Image:
    """An attribution over its image.

    Args:
        image: (h, w) or (h, w, 3), as the model saw it.
        values: One number for each patch.
        signed: Whether the sign means for and against.
        shown: What the colours stand for, as of `patch_colours`; the attribution's own range when None.
        pale: Whether its colours would say more than is known.

    Returns:
        RGB, of the size of the image, or the smallest multiple of it with 448 pixels on the longer side.
    """
    drawn = overlay_pixels(image, values, signed, shown, STRENGTH * (PALE if pale else 1.0))
    factor = -(-LEAST // max(drawn.shape[:2]))
    return Image.fromarray(drawn.repeat(factor, axis=0).repeat(factor, axis=1))


def overlay_of(view: AttributionView, explained: ImageView, one_scale: bool) -> Image.Image:
    """One of the attributions of an image in the colours of its page: pale where nothing supports it.

    Args:
        view: The attribution.
        explained: The image with all its attributions.
        one_scale: Whether these have one colour scale, of fractions.
    """
    common = common_scale([each.values for each in explained.attributions]) if one_scale else None
    shown, values = scaled(view.values, view.signed, common)
    return overlay(explained.image, values, view.signed, shown, view.pale)


def png(drawn: Image.Image, texts: Mapping[str, str]) -> bytes:
    """An image as a file that says what it shows, in text chunks that image viewers list."""
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_itxt(name, text)
    content = io.BytesIO()
    drawn.save(content, "PNG", pnginfo=info, compress_level=4, compress_type=zlib.Z_DEFAULT_STRATEGY)  # half the time
    return content.getvalue()
