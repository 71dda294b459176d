"""What the page and the sheets show of each map, as plain values: its numbers, its caveats and its verdict."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.explain import Comparison, Trust
    from vitrail.pages.views import AreasView, HeatView, TrustView


def views_of(classes: Sequence[str], compared: "Comparison", row: int) -> "list[HeatView]":
    """The maps of one picture.

    Args:
        classes: Names of the model's classes.
        compared: The maps of a batch, each with how far to trust it.
        row: The place of the picture in the batch.
    """
    from vitrail.explain.methods import METHODS
    from vitrail.explain.readout import wide
    from vitrail.pages.views import HeatView

    views = []
    for number, (name, heat) in enumerate(zip(compared.methods, compared.heats, strict=True)):
        target = classes[int(heat.target[row])]
        against = None if heat.rather_than is None else classes[int(heat.rather_than[row])]
        views.append(
            HeatView(
                method=name,
                title=METHODS[name].title,
                target=target,
                logit=float(heat.logit[row]),
                values=wide(heat.values[row]).cpu().numpy(),
                signed=heat.signed,
                class_specific=heat.class_specific,
                notes=heat.notes[row],
                rather_than=against,
                trust=_trusted(compared.trusts[number], row, _named(target, against)) if compared.trusts else None,
                areas=_areas(compared, number, row),
                seconds=compared.seconds[number] / len(heat.values),
            )
        )
    return views


def _areas(compared: "Comparison", number: int, row: int) -> "AreasView | None":
    """Deletion and insertion of one map, beside those of a random order."""
    from vitrail.pages.views import AreasView

    if compared.random_areas is None:
        return None
    both = compared.areas[number], compared.random_areas
    return AreasView(*(float(area[row]) for one in both for area in (one.deletion, one.insertion)))


def _named(target: str, against: str | None) -> str:
    """What is explained, as a sentence says it."""
    return f"“{target}”" if against is None else f"“{target}” rather than “{against}”"


def _trusted(trust: "Trust", row: int, name: str) -> "TrustView":
    """How far to trust the map of one picture."""
    from vitrail.pages.views import TrustView

    return TrustView(**trust.of(row), sentence=trust.sentence(row, name))
