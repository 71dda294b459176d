"""The page of an explanation: each picture, the model's answer, and the maps that say where it came from.

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
from vitrail.pages.views import ExplainedPicture, ExplanationPage
from vitrail.pages.words import one_verdict, shared_words, tests_of

KIND = "explanation"  # by which the page is known again
FEW = 3  # maps that stand beside the picture; more stand below it


@dataclass(frozen=True)
class Case:
    """One picture with its maps.

    Args:
        explained: What is explained.
        maps: Its maps.
        glance: Those that were tested, where there are several maps.
        verdict: The verdict that all tested maps have; empty where they differ.
        shared: What is told alike of all of them.
    """

    explained: ExplainedPicture
    maps: Sequence[DrawnMap]
    glance: Glance | None
    verdict: str
    shared: Sequence[str]

    @property
    def many(self) -> bool:
        """Whether the maps stand below the picture."""
        return len(self.maps) > FEW


def _case(explained: ExplainedPicture, one_scale: bool) -> Case:
    heats = explained.heats
    common = common_scale([heat.values for heat in heats]) if one_scale and heats else None
    return Case(
        explained=explained,
        maps=[drawn_map(heat, explained, common) for heat in heats],
        glance=at_a_glance(heats) if len(heats) > 1 else None,
        verdict=one_verdict(heats),
        shared=shared_words(heats),
    )


def explanation_page(page: ExplanationPage) -> str:
    """The page of an explanation as text; the same values always give the same text."""
    heats = [heat for explained in page.pictures for heat in explained.heats]
    trusts, methods = tests_of(heats), {heat.method: heat for heat in heats}.values()
    values = {
        "page": page,
        "cases": [_case(explained, page.one_scale) for explained in page.pictures],
        "tests": how_tested(trusts, heats[0].explains) if trusts else None,
        "about": [heat.about for heat in methods if heat.about],
        "of_no_class": heats[0].target if any(heat.explains in ("similarity", "number") for heat in heats) else "",
        "blind": not all(heat.class_specific for heat in methods),
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
