"""The page of an explanation: each image, the model's answer, and the maps that show where it came from.

What a method cannot tell, and how far to trust its map, stands beside the map, not in a footnote. A map is shown as the
model saw the image: one colour per patch, not blurred, with its range in the legend. A map that the evidence does not
support is drawn pale, in a hatched frame. The values stand in the page once, as a table; the page's script reads them
from there. Of several maps, a table shows verdicts and scores at a glance, on one axis.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from vitrail.io import write_file
from vitrail.pages.render import document, environment
from vitrail.pages.views import ExplanationPage

KIND = "explanation"  # by which the page is known again


def explanation_page(page: ExplanationPage) -> str:
    """The page of an explanation as text; the same values always give the same text."""
    return document("explanation.html", f"{page.title} · explanation", KIND, {"page": page})


def write_explanation_page(path: Path, page: ExplanationPage) -> None:
    """Write the page of an explanation, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        page: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, explanation_page(page))


# ---- in a notebook

MOST_MAPS = 12
MOST_PATCHES = 8192  # in all maps; where there are more, fewer maps are shown


class NotebookMap(NamedTuple):
    """One map.

    Args:
        title: What it is of, such as "image 0: class 3 (logit 8.21)".
        values: One number per patch.
        notes: Its caveats.
    """

    title: str
    values: Float[np.ndarray, "rows columns"]
    notes: Sequence[str]


def attribution_html(heading: str, maps: Sequence[NotebookMap], signed: bool, class_specific: bool) -> str:
    """Maps side by side.

    Args:
        heading: Name of the method.
        maps: What to show, in order; at most a dozen are, and what is left out is counted.
        signed: Whether the sign means for and against.
        class_specific: Whether another class would give other maps.
    """
    patches = maps[0].values.size if maps else 1
    most = max(1, min(MOST_MAPS, MOST_PATCHES // max(1, patches)))
    macros: Any = environment().get_template("notebook.html").module
    return str(macros.attribution(heading, maps[:most], max(0, len(maps) - most), signed, class_specific))
