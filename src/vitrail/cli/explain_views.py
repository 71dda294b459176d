"""What the page and the sheets show of each map, as plain values: its numbers, its caveats and its verdict."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.explain import Comparison, Trust
    from vitrail.explain.inside import Sinks
    from vitrail.pages.views import HeatView, TrustView

NAMED = 6  # squares that a note names


def views_of(classes: Sequence[str], compared: "Comparison", sinks: "Sinks", row: int) -> "list[HeatView]":
    """The maps of one picture.

    Args:
        classes: Names of the model's classes.
        compared: The maps of a batch, each with how far to trust it.
        sinks: The squares of that batch that the network uses as scratch paper, which a note with each map names.
        row: The place of the picture in the batch.
    """
    import numpy as np

    from vitrail.explain.methods import METHODS
    from vitrail.pages.views import HeatView

    views, notes = [], _sink_notes(sinks, row)
    for number, (name, heat) in enumerate(zip(compared.methods, compared.heats, strict=True)):
        target = classes[int(heat.target[row])]
        against = None if heat.rather_than is None else classes[int(heat.rather_than[row])]
        views.append(
            HeatView(
                method=name,
                title=METHODS[name].title,
                target=target,
                logit=float(heat.logit[row]),
                values=np.asarray(heat.values[row].cpu().numpy(), dtype=np.float32),
                signed=heat.signed,
                class_specific=heat.class_specific,
                notes=(*heat.notes[row], *notes),
                rather_than=against,
                trust=_trust_view(compared.trusts[number], row, _named(target, against)) if compared.trusts else None,
            )
        )
    return views


def _named(target: str, against: str | None) -> str:
    """What is explained, as a sentence says it."""
    return f"“{target}”" if against is None else f"“{target}” rather than “{against}”"


def _trust_view(trust: "Trust", row: int, name: str) -> "TrustView":
    """How far to trust the map of one picture."""
    from vitrail.pages.views import TrustView

    low, high = trust.interval[row].tolist()
    return TrustView(
        verdict=trust.verdict[row],
        reason=trust.reason[row],
        sentence=trust.sentence(row, name),
        score=float(trust.score[row]),
        interval=(low, high),
        paired=float(trust.paired[row]),
        random=tuple(trust.random[row].tolist()),
        oracle=None if trust.oracle is None or trust.oracle[row].isnan() else float(trust.oracle[row]),
        evidence=_known(float(trust.evidence[row])),
        faithful=_known(float(trust.faithful[row])),
        before=_known(float(trust.before[row])),
        covered=_known(float(trust.covered[row])),
        covered_random=_known(float(trust.covered_random[row])),
        squares=int(trust.squares[row]),
        composites=int(trust.composites[row]),
        surrogates=int(trust.surrogates[row]),
        fill=trust.fill,
    )


def _known(value: float) -> float | None:
    return None if value != value else value


def _sink_notes(sinks: "Sinks", row: int) -> tuple[str, ...]:
    """A sentence for people on the sinks of one picture; rows and columns count from 1, as on the page."""
    places = [f"row {y + 1} column {x + 1}" for y, x in sinks.anywhere[row].nonzero().tolist()]
    if not places:
        return ()
    named = "; ".join(places[:NAMED]) + (f"; and {len(places) - NAMED} more" if len(places) > NAMED else "")
    are = "1 square is a sink" if len(places) == 1 else f"{len(places)} squares are sinks"
    return (
        f"{are} ({named}): the network uses such tokens as scratch paper, so heat there says little about the place",
    )
