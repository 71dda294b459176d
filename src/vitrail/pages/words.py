"""What a page, a sheet and the terminal say of a map's score, in the same words."""

from collections.abc import Sequence

from vitrail.pages.html import number
from vitrail.pages.views import HeatView, TrustView

SCORE_TITLE = "Fall of the score when squares are covered"
# Two numbers for one map look like a mistake unless somebody says what each is for.
TWO_SCORES = (
    "“This map” met the very covers that the random maps met, so they can be compared; “this map under other covers” "
    "is the mean over ten others, with its 95 % interval."
)
BIASES = "biases of the "  # how the parts that are summed up as `biases` begin


def unit_words(contrast: bool) -> str:
    """In what the fall of the score is counted: for one class, or for one rather than another."""
    return (
        "in logits, as the difference of two classes" if contrast else "in logits, counted from the mean of all classes"
    )


def rank_of(trust: TrustView) -> int:
    """The place of a map among its random maps, 1 for the largest fall; a tie counts against it."""
    return 1 + sum(other >= trust.paired for other in trust.random)


def rank_words(trust: TrustView) -> str:
    """The same in words: `1st of 40 (this map and 39 random ones)`."""
    others = len(trust.random)
    return f"{_ordinal(rank_of(trust))} of {others + 1} (this map and {others} random ones)"


def several_words(heats: Sequence[HeatView]) -> str:
    """Why one may not choose among several maps by their verdicts; empty where no two were tested."""
    tested = sum(heat.trust is not None for heat in heats)
    if tested < 2:
        return ""
    return (
        f"{tested} maps were tested. Of maps that are random, one in twenty would pass for faithful by chance: "
        "so do not pick the one that you like best."
    )


def parts_words(heat: HeatView) -> str:
    """What the explained number is the sum of: `Of the score 11.6: squares 7.2, positions 0.4, biases 3.9`."""
    what = "score" if heat.rather_than is None else "difference"
    plain = [(name, value) for name, value in heat.parts if not name.startswith(BIASES)]
    biases = [value for name, value in heat.parts if name.startswith(BIASES)]
    named = [*plain, ("biases", sum(biases))] if biases else plain
    return f"Of the {what} {_part(heat.logit)}: {', '.join(f'{name} {_part(value)}' for name, value in named)}."


def _part(value: float) -> str:
    """Two decimals, the same for all parts, so that one can add them up."""
    return f"{value:.2f}".replace("-", "−") if abs(value) >= 0.005 else number(0)


def _ordinal(place: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{place}{'th' if place % 100 in (11, 12, 13) else ends.get(place % 10, 'th')}"
