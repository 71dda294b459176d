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
from vitrail.pages.colour import Range, grey, heat_colours
from vitrail.pages.explanation_page import scale_defs
from vitrail.pages.html import data_uri, document, escape, number, plural, small
from vitrail.pages.maps import grid_lines

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
        picture: As the model sees it; None where it is not at hand.
        sides: The patches of the image that was asked about, and its own; empty where a picture is not at hand.
    """

    name: str
    split: str
    label: str | None
    distance: float
    picture: UInt8[np.ndarray, "h w *c"] | None
    sides: tuple[SideView, ...] = ()


@dataclass(frozen=True)
class QueryView:
    """An image that was asked about.

    Args:
        name: What it is called.
        label: Its class, where known.
        picture: As the model sees it; None where it is not at hand.
        pairs: With its neighbours, the nearest first.
        explain: The command that tests what its likeness to the nearest depends on; empty where none does.
    """

    name: str
    label: str | None
    picture: UInt8[np.ndarray, "h w *c"] | None
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


def _photo(picture: np.ndarray, said: str) -> str:
    height, width = picture.shape[:2]
    return (
        f'<svg class="stage{small(picture)}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(said)}">'
        f'<image class="photo" width="{width}" height="{height}" href="{data_uri(picture)}"/></svg>'
    )


def _side(picture: str, size: tuple[int, int], side: SideView, shown: Range, said: str) -> str:
    """An image in grey under what its patches have beyond the usual; the script reads the rest from its attributes."""
    (height, width), (rows, columns) = size, side.cosines.shape
    squares = data_uri(heat_colours(np.maximum(side.beyond, 0), False, shown))
    told = " ".join(
        f'data-{name}="{",".join(f"{value:{form}}" for value in values.ravel().tolist())}"'
        for name, values, form in (
            ("cosines", side.cosines, ".2f"),
            ("usual", side.usual, ".2f"),
            ("partners", side.partners, "d"),
        )
    )
    return (
        f'<svg class="stage" data-rows="{rows}" data-columns="{columns}" {told} viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(said)}">{picture}<image class="heat" width="{width}" height="{height}" '
        f'preserveAspectRatio="none" href="{squares}"/>{grid_lines(height, width, rows, columns)}</svg>'
    )


def _pair(pair: PairView, query: QueryView, index: int, shown: Range) -> str:
    """A neighbour, and beside it both images under their agreement."""
    label = f"<b>{escape(pair.label)}</b>, " if pair.label is not None else ""
    split = "" if pair.split == "all" else f" ({escape(pair.split)})"
    head = f'{label}distance {pair.distance:.3f}<span class="name">{escape(pair.name)}{split}</span>'
    if pair.picture is None or query.picture is None or not pair.sides:
        photo = "" if pair.picture is None else _photo(pair.picture, pair.name)
        return f'<figure class="pair"><div><figcaption>{head}</figcaption>{photo}</div></figure>'
    size = pair.picture.shape[0], pair.picture.shape[1]
    theirs = f'<image class="photo" width="{size[1]}" height="{size[0]}" href="{data_uri(grey(pair.picture))}"/>'
    here, there = pair.sides
    best = int(here.beyond.argmax())
    row, column = divmod(best, here.cosines.shape[1])
    to_row, to_column = divmod(int(here.partners[row, column]), there.cosines.shape[1])
    usual = f", usually {here.usual[row, column]:.2f}" if here.usual.any() else ""
    most = (
        f"Most alike: row {row + 1}, column {column + 1} with row {to_row + 1}, column {to_column + 1} "
        f"(cosine {here.cosines[row, column]:.2f}{usual})."
    )
    asked, said = f'<use class="photo" href="#asked-{index}"/>', f"{query.name} and {pair.name}: where they agree"
    first = _side(asked, size, here, shown, f"{said}, in the first")
    second = _side(theirs, size, there, shown, f"{said}, in the other")
    return (
        f'<figure class="pair"><div><figcaption>{head}</figcaption>{_photo(pair.picture, pair.name)}</div>'
        f'<div class="agreed">{first}{second}<p class="readout" data-hint="{escape(most)}">{escape(most)}</p>'
        "</div></figure>"
    )


def _query(query: QueryView, index: int, shown: Range) -> str:
    pairs = "".join(_pair(pair, query, index, shown) for pair in query.pairs)
    subject = '<p class="empty">The picture is not at hand.</p>'
    if query.picture is not None:
        height, width = query.picture.shape[:2]
        under = data_uri(grey(query.picture))
        subject = (
            f"<figure><figcaption>The picture</figcaption>{_photo(query.picture, query.name)}"
            f'<p class="note">As the model sees it ({width} × {height}).</p></figure>'
            '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
            f'<image id="asked-{index}" width="{width}" height="{height}" href="{under}"/></defs>'
            "</svg>"
        )
    label = "" if query.label is None else f'<p class="verdict">Its label is <b>{escape(query.label)}</b>.</p>'
    votes = [pair.label for pair in query.pairs if pair.label is not None]
    if votes:
        most = max(dict.fromkeys(votes), key=votes.count)
        label += f"<p>{votes.count(most)} of {len(votes)} neighbours are <b>{escape(most)}</b>.</p>"
    proof = ""
    if query.explain:
        proof = f"<p>What the likeness to the nearest depends on is tested by</p><pre>{escape(query.explain)}</pre>"
    return (
        f'<section class="case"><h2>{escape(query.name)}</h2><div class="case-body"><div class="subject">{subject}'
        f'<div class="said">{label}</div></div><div class="shown pairs">{pairs}{proof}</div></div></section>'
    )


def _legend(page: SimilarPage, shown: Range) -> str:
    known = any(side.usual.any() for query in page.queries for pair in query.pairs for side in pair.sides)
    most = number(shown.high, 2)
    ends = ("0: as alike as usual", f"{most} above the usual cosine") if known else ("0", f"cosine {most}")
    return (
        '<div class="scale"><svg aria-hidden="true" viewBox="0 0 100 6" preserveAspectRatio="none">'
        '<rect width="100" height="6" fill="url(#scale-sequential)"/></svg><p class="ends">'
        f"<span>{ends[0]}</span><span>{ends[1]}</span></p></div>"
    )


def _about(page: SimilarPage, shown: Range) -> str:
    """What a reader may conclude, and what not."""
    agreed = any(pair.sides for query in page.queries for pair in query.pairs)
    head = "which is what the network's head reads" if page.head else "which is not what the network's head reads"
    colours = (
        "<li>Colours say how much more alike a patch is to its partner, the most similar patch of the other image, "
        "than usual: than it is, at best, to a middle one of other images of the data. All pairs have one scale. "
        f"Point at a patch to see its partner.{_legend(page, shown)}</li>"
        "<li><strong>That patches agree is no evidence of what the distance depends on.</strong> A patch token knows "
        "of the whole image, and nothing was covered to see whether the distance changes. "
        "<code>vitrail explain --similar-to</code> tests that, for what the head reads.</li>"
        if agreed
        else ""
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
    return (
        f'<section class="trust"><h2>How to read this</h2><ul class="notes"><li>Distance is 1 less the cosine of two '
        f"vectors, from 0 (the same direction) to 2. Compared is <b>{escape(page.pooling)}</b>, {head}. Near means "
        f"alike to this network, not to people.</li>{colours}{notes}</ul></section>"
    )


def similar_page(page: SimilarPage) -> str:
    """The page as text; the same values always give the same text."""
    shown = _scale(page)
    cases = "".join(_query(query, index, shown) for index, query in enumerate(page.queries))
    title = f"Nearest to {page.queries[0].name}" if len(page.queries) == 1 else "Nearest images"
    command = f"<section><h2>How it was made</h2><pre>{escape(page.command)}</pre></section>" if page.command else ""
    among = (
        f"Among {plural(page.known, 'image')} of <b>{escape(page.data)}</b>, by the model <b>{escape(page.model)}</b>."
    )
    head = f'<header><h1>{escape(title)}</h1><p class="interval">{among}</p></header>'
    body = f"{scale_defs()}<main>{head}{_about(page, shown)}{cases}{command}</main>"
    return document(f"{title} · vitrail", body, KIND)


def write_similar_page(path: Path, page: SimilarPage) -> None:
    """Write the page, replacing an older one in one step.

    Raises:
        OSError: The file cannot be written.
    """
    write_file(path, similar_page(page))
