"""The page of the nearest images: each with its distance, and where the two agree, patch to patch.

An image and its neighbour stand side by side, each under the agreement of its own patches; all pairs of a page have one
colour scale. Pointing at a patch marks its partner in the other image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from vitrail.io import write_file
from vitrail.pages.colour import Range, patch_colours
from vitrail.pages.html import number
from vitrail.pages.render import document

KIND = "similar"  # by which the page is known again
LEAST = 0.05  # of the scale: pairs that have less beyond the usual everywhere stay dark


class SideView(NamedTuple):
    """What the patches of one image of a pair have in the other.

    Attributes:
        partners: (rows, columns) the number of the most similar patch of the other, in reading order.
        cosines: (rows, columns) of both.
        usual: (rows, columns) what the patch reaches in a middle one of other images.
    """

    partners: Int[np.ndarray, "_ _"]
    cosines: Float[np.ndarray, "_ _"]
    usual: Float[np.ndarray, "_ _"]

    @property
    def beyond(self) -> Float[np.ndarray, "_ _"]:
        """What is above the usual."""
        return self.cosines - self.usual


@dataclass(frozen=True)
class PairView:
    """One of the nearest images.

    Args:
        name: What it is called.
        split: Which split it belongs to.
        label: Its class, where known.
        distance: 1 less the cosine.
        image: As the model sees it; None where it is not at hand.
        sides: The patches of the image that was asked about, and its own; empty where an image is not at hand.
    """

    name: str
    split: str
    label: str | None
    distance: float
    image: UInt8[np.ndarray, "h w *c"] | None
    sides: tuple[SideView, ...] = ()


@dataclass(frozen=True)
class QueryView:
    """An image that was asked about.

    Args:
        name: What it is called.
        label: Its class, where known.
        image: As the model sees it; None where it is not at hand.
        pairs: With its neighbours, the nearest first.
        explain: The command that tests what its likeness to the nearest depends on; empty where none does.
    """

    name: str
    label: str | None
    image: UInt8[np.ndarray, "h w *c"] | None
    pairs: Sequence[PairView]
    explain: str = ""


@dataclass(frozen=True)
class SimilarPage:
    """Everything that the page shows.

    Args:
        model: Name of the model.
        data: Among whose images neighbours were looked for.
        pooling: Which vectors were compared.
        head: Whether these are what the head reads.
        known: How many images there are.
        queries: What was asked about.
        notes: What to know of it, one sentence each.
        command: The command line that made the page.
    """

    model: str
    data: str
    pooling: str
    head: bool
    known: int
    queries: Sequence[QueryView]
    notes: tuple[str, ...] = ()
    command: str = ""


def _scale(page: SimilarPage) -> Range:
    """One scale of all pairs: from the usual to the most that any patch has beyond it."""
    values = [side.beyond for query in page.queries for pair in query.pairs for side in pair.sides]
    every = np.concatenate([value.ravel() for value in values]) if values else np.zeros(1)
    high = max(float(every.max()), LEAST)
    return Range(float(every.min()), high, 0.0, high, 0, False)


@dataclass(frozen=True)
class ShownSide:
    """An image of a pair as it is shown, and what the script reads from its attributes.

    Args:
        rows: How many patches stand below each other.
        columns: How many stand side by side.
        colours: One pixel per patch, of what it has beyond the usual.
        cosines: Of the patches, in reading order, with commas between; so are
        usual: the usual ones
        partners: and the numbers of their partners.
    """

    rows: int
    columns: int
    colours: UInt8[np.ndarray, "rows columns 3"]
    cosines: str
    usual: str
    partners: str


@dataclass(frozen=True)
class ShownPair:
    """A neighbour, and both images under their agreement.

    Args:
        pair: The neighbour.
        sides: The image that was asked about, and its own; empty where an image is not at hand.
        most_alike: The two patches that agree most, in words.
    """

    pair: PairView
    sides: Sequence[ShownSide] = ()
    most_alike: str = ""


@dataclass(frozen=True)
class Case:
    """An image that was asked about, and its neighbours.

    Args:
        query: The image.
        pairs: Its neighbours.
        elected: The class that most neighbours have,
        votes: how many have it,
        voters: and how many have a class that is known.
    """

    query: QueryView
    pairs: Sequence[ShownPair]
    elected: str
    votes: int
    voters: int


def _side(side: SideView, shown: Range) -> ShownSide:
    rows, columns = side.cosines.shape
    return ShownSide(
        rows=rows,
        columns=columns,
        colours=patch_colours(np.maximum(side.beyond, 0), False, shown),
        cosines=",".join(f"{value:.2f}" for value in side.cosines.ravel().tolist()),
        usual=",".join(f"{value:.2f}" for value in side.usual.ravel().tolist()),
        partners=",".join(f"{value:d}" for value in side.partners.ravel().tolist()),
    )


def _pair(pair: PairView, query: QueryView, shown: Range) -> ShownPair:
    if pair.image is None or query.image is None or not pair.sides:
        return ShownPair(pair)
    here, there = pair.sides
    row, column = divmod(int(here.beyond.argmax()), here.cosines.shape[1])
    to_row, to_column = divmod(int(here.partners[row, column]), there.cosines.shape[1])
    usual = f", usually {here.usual[row, column]:.2f}" if here.usual.any() else ""
    most = (
        f"Best match: row {row + 1}, column {column + 1} with row {to_row + 1}, column {to_column + 1} "
        f"(cosine {here.cosines[row, column]:.2f}{usual})."
    )
    return ShownPair(pair, [_side(side, shown) for side in pair.sides], most)


def _case(query: QueryView, shown: Range) -> Case:
    labels = [pair.label for pair in query.pairs if pair.label is not None]
    elected = max(dict.fromkeys(labels), key=labels.count) if labels else ""
    return Case(query, [_pair(pair, query, shown) for pair in query.pairs], elected, labels.count(elected), len(labels))


def similar_page(page: SimilarPage) -> str:
    """The page as text; the same values always give the same text."""
    shown = _scale(page)
    sides = [side for query in page.queries for pair in query.pairs for side in pair.sides]
    most, known = number(shown.high, 2), any(side.usual.any() for side in sides)
    heading = f"Nearest to {page.queries[0].name}" if len(page.queries) == 1 else "Nearest images"
    values = {
        "page": page,
        "heading": heading,
        "agreed": bool(sides),
        "ends": ("0: as similar as usual", f"{most} above the usual cosine") if known else ("0", f"cosine {most}"),
        "cases": [_case(query, shown) for query in page.queries],
    }
    return document("similar.html", f"{heading} · vitrail", KIND, values)


def write_similar_page(path: Path, page: SimilarPage) -> None:
    """Write the page, replacing an older one in one step.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, similar_page(page))
