"""The page of an explanation: each image, the model's answer, and the maps that say where it came from.

What a method cannot tell, and how far to trust its map, stands beside the map, not in a footnote. A map is shown as the
model saw the image: one colour per patch, not blurred, with its range in the legend. A map that the evidence does not
support is drawn pale, in a hatched frame. The values stand in the page once, as a table; the page's script reads them
from there. Of several maps, a table shows verdicts and scores at a glance, on one axis.
"""

from pathlib import Path

from vitrail.io import write_file
from vitrail.pages.render import document
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
