"""How far to trust a map: a pure function of two questions.

    evidence    Is the explained number exceptional among pictures that hold no evidence? Of two kinds of these, the one
                that reaches it more often counts (`evidence.py`).
    faithful    Does covering what the map names change that number more than covering what its random twins name does?
                p = (1 + twins with at least that change) / (1 + twins).

Both are ranks, and either alone is not enough. A scrambled network does react to what a map of it names, so its maps
are faithful, to nothing; and evidence says that there is something to find, not that the map found it. A random map of
a picture is faithful at 0.05 in one of 20 cases, for any network; a network that has learnt nothing finds evidence at
0.05 about as often. The figures behind the limits are in benchmarks/explain.md, the rules that failed in
benchmarks/LOG.md.
"""

from typing import Literal

from vitrail.text import percent_in_words

Verdict = Literal["supported", "weak", "no better than random", "cannot tell"]
Kind = Literal["composites", "surrogates"]

EVIDENCE = 0.05
FAITHFUL = 0.05
WEAK = 0.20

_REACHED: dict[Kind, str] = {
    "composites": ", since pictures put together of other pictures' squares score",
    "surrogates": " beyond colours and smoothness, since noise of the same colours and smoothness scores",
}


def verdict(
    evidence: float | None, faithful: float | None, references: int, kind: Kind = "composites"
) -> tuple[Verdict, str]:
    """The verdict and the reason for it, in plain words.

    Args:
        evidence: p of the first question; None where it could not be asked.
        faithful: p of the second; None for a map without signal, which names nothing.
        references: Pictures whose patches covered squares. With none, a change may come from the cover itself; with
            few, it is not known what is exceptional: the verdict is "cannot tell".
        kind: Of the pictures without evidence, those that reached the number more often; for the reason.
    """
    if faithful is None:
        return "cannot tell", "the map prefers no square"
    if references == 0:
        why = "there are no reference pictures to cover squares with, so a change may come from the cover"
        return "cannot tell", why
    if evidence is None:
        few = f"{references} different reference picture{'s are' if references > 1 else ' is'} too few"
        return "cannot tell", f"{few} to know what the network says of pictures without evidence"
    if evidence > EVIDENCE:
        return (
            "cannot tell",
            f"no evidence found{_REACHED[kind]} as high in {_above(evidence)} of cases (the limit is 5 %)",
        )
    if faithful <= FAITHFUL:
        return "supported", "there is evidence, and the squares that the map names carry it"
    if faithful <= WEAK:
        return "weak", f"there is evidence, but {_as_good(faithful)}"
    return "no better than random", _as_good(faithful)


def _as_good(p: float) -> str:
    return f"{percent_in_words(p)} of random maps name squares that matter as much"


def _above(p: float) -> str:
    """A p above the limit, which must not read like the limit."""
    return percent_in_words(p) if round(100 * p) > 100 * EVIDENCE else f"{100 * p:.1f} %"
