"""The page of an explanation: each image, the model's answer, and the maps that say where it came from.

What a method cannot tell, and how far to trust its map, is said beside the map, not in a footnote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.io import write_file
from vitrail.pages.colour import EVEN, common_scale
from vitrail.pages.maps import DrawnMap, Glance, at_a_glance, drawn_map
from vitrail.pages.render import document
from vitrail.pages.trust import how_tested
from vitrail.pages.views import ExplanationPage, ImageView
from vitrail.pages.words import one_verdict, shared_words, tests_of

KIND = "explanation"  # by which the page is known again
FEW = 3  # maps that stand beside the image; more stand below it


@dataclass(frozen=True)
class Case:
    """One image with its maps.

    Args:
        explained: What is explained.
        maps: Its maps.
        glance: Those that were tested, where there are several maps.
        verdict: The verdict that all tested maps have; empty where they differ.
        shared: What is told alike of all of them.
    """

    explained: ImageView
    maps: Sequence[DrawnMap]
    glance: Glance | None
    verdict: str
    shared: Sequence[str]

    @property
    def many(self) -> bool:
        """Whether the maps stand below the image."""
        return len(self.maps) > FEW


def _case(explained: ImageView, one_scale: bool) -> Case:
    attributions = explained.attributions
    common = common_scale([attribution.values for attribution in attributions]) if one_scale and attributions else None
    return Case(
        explained=explained,
        maps=[drawn_map(attribution, explained, common) for attribution in attributions],
        glance=at_a_glance(attributions) if len(attributions) > 1 else None,
        verdict=one_verdict(attributions),
        shared=shared_words(attributions),
    )


def explanation_page(page: ExplanationPage) -> str:
    """The page of an explanation as text; the same values always give the same text."""
    attributions = [attribution for explained in page.images for attribution in explained.attributions]
    trusts, methods = tests_of(attributions), {attribution.method: attribution for attribution in attributions}.values()
    values = {
        "page": page,
        "cases": [_case(explained, page.one_scale) for explained in page.images],
        "tests": how_tested(trusts, attributions[0].explains) if trusts else None,
        "about": [attribution.about for attribution in methods if attribution.about],
        "of_no_class": attributions[0].target
        if any(attribution.explains in ("similarity", "number") for attribution in attributions)
        else "",
        "blind": not all(attribution.class_specific for attribution in methods),
        "even": EVEN,
    }
    return document("explanation.html", f"{page.title} · explanation", KIND, values)


def write_explanation_page(path: Path, page: ExplanationPage) -> None:
    """Write the page of an explanation, replacing an older one in one step.

    Args:
        path: Where to; its folder is made where needed.
        page: What to show.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, explanation_page(page))
