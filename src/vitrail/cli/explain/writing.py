"""What every explanation leaves: the page, the pictures beside it, and on stdout JSON or sentences for people."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.pages.views import ExplanationPage


def write_all(
    shown: "ExplanationPage", page: Path, answers: Sequence[dict[str, Any]], as_json: bool, tell: Callable[[], None]
) -> None:
    """Write the page and the pictures, and say what the model answered and where both are.

    Args:
        shown: What the page shows.
        page: Where it goes; the pictures go into a folder of the same name beside it.
        answers: What JSON says of the model's answer, for each picture.
        as_json: Whether JSON is printed in place of sentences.
        tell: Says the answers to a person.
    """
    from vitrail.cli.explain.as_json import explained_json
    from vitrail.cli.explain.files import write_pictures
    from vitrail.cli.output import print_json, say
    from vitrail.pages.explanation_page import write_explanation_page

    write_explanation_page(page, shown)
    written = write_pictures(page.with_suffix(""), shown)
    if as_json:
        each = zip(answers, shown.pictures, written, strict=True)
        print_json([explained_json(answer, one, page, files) for answer, one, files in each])
        return
    tell()
    say("")
    say(f"the page      {page}")
    say(f"the pictures  {page.with_suffix('')}")
