"""The page of the nearest images: each with its distance, and where the two agree, patch to patch.

An image and its neighbour stand side by side, each under the agreement of its own patches; all pairs of a page have one
colour scale. Pointing at a patch marks its partner in the other image.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from vitrail.pages.colour import Range, patch_colours
from vitrail.pages.render import document, place_of
from vitrail.text import number

KIND = "similar"  # by which the page is known again
page_at = partial(place_of, kind=KIND, what="a page of neighbours")
LEAST = 0.05  # of the scale: pairs that have less beyond the usual everywhere stay dark


def similar_page(similar: Any, model: str, data: str, command: str = "") -> str:
    """The page as text; the same values always give the same text.

    Args:
        similar: A `vitrail.features.similar.Similar`, whose values the template reads.
        model: Name of the model, as it may be typed.
        data: What the images are called among which neighbours were looked for.
        command: The command line that made the page.
    """
    neighbours = [each for one in similar.found for each in one.neighbours]
    sides = [side for each in neighbours for side in (each.here, each.there) if side is not None]
    beyond = np.concatenate([side.beyond.ravel() for side in sides]) if sides else np.zeros(1)
    high = max(float(beyond.max()), LEAST)  # the most that any patch of a pair has beyond the usual
    scale, most = Range(float(beyond.min()), high, 0.0, high, 0, False), number(high, 2)
    heading = f"Nearest to {similar.found[0].name}" if len(similar.found) == 1 else "Nearest images"
    ends = "0", f"cosine {most}"
    if any(side.usual.any() for side in sides):
        ends = "0: as similar as usual", f"{most} above the usual cosine"
    labels = [[each.label for each in one.neighbours if each.label is not None] for one in similar.found]
    values = {
        "similar": similar,
        "model": model,
        "data": data,
        "command": command,
        "heading": heading,
        "agreed": bool(sides),
        "ends": ends,
        "colours": lambda side: patch_colours(np.maximum(side.beyond, 0), False, scale),
        "votes": [[(*first, len(each)) for first in Counter(each).most_common(1)] for each in labels],
        "tests": [similar.test_of(one, model) for one in similar.found],
    }
    return document("similar.html", f"{heading} · vitrail", KIND, values)
