"""How far to trust a map: what its test found (`faithfulness.py`), and the verdict, a pure function of two questions.

    evidence    Is the explained number exceptional among images that hold no evidence? Of two kinds of these, the one
                that reaches it more often counts. And are the odds of the class many times as high (`evidence.py`)?
    faithful    Does masking what the map names change that number more than masking what its random maps name does?
                p = (1 + random maps with at least that change) / (1 + random maps).

A number that is neither a class nor a similarity has no scale on which its rise would be large or small. Networks that
are half shuffled raise such numbers above those of all composites in two of five photographs, so "weak" is the most
that a map of one gets.

Either alone is not enough. A scrambled network does react to what a map of it names, so its maps are faithful, to
nothing; and evidence says that there is something to find, not that the map found it. A random map of an image is
faithful at 0.05 in one of 20 cases, for any network; a network that has learnt nothing finds numbers exceptional at
0.05 about as often, and some that are half shuffled more often. The figures behind the limits are in
benchmarks/explain.md, the rules that failed in benchmarks/LOG.md.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from vitrail.explain.evidence import EVIDENCE, Unit
from vitrail.text import percent_in_words, times

Verdict = Literal["supported", "supported, tiny", "weak", "no better than random", "cannot tell"]
Kind = Literal["composites", "surrogates"]
Precision = Literal["fp32", "bf16"]

FAITHFUL = 0.05
WEAK = 0.20
TINY: dict[Unit, float] = {"nats": 0.1, "cosine": 0.01}  # beyond random maps; less is called tiny
VISIBLE = 0.05  # difference of probabilities that a sentence speaks of
# What is nan where it is not known:
UNKNOWN = (
    *("score", "interval", "oracle", "evidence", "effect", "faithful", "before", "masked"),
    "masked_random",
)
_CARRY = "there is evidence, and the patches that the map highlights carry it"
TEN_OTHERS = "it takes ten background images or more (--background DIR, in Python background=)"

_NO_LEAST = "; how large an effect must be is not known for such a number"
_REACHED: dict[Kind, str] = {
    "composites": ", because composites of other images' patches score",
    "surrogates": " beyond colours and smoothness, because noise of the same colours and smoothness scores",
}


def verdict(
    evidence: float | None,
    faithful: float | None,
    distinct: int,
    kind: Kind = "composites",
    effect: float | None = None,
    least: float | None = None,
    unit: Unit | None = "nats",
    fall: float | None = None,
) -> tuple[Verdict, str]:
    """The verdict and the reason for it, in plain words.

    Args:
        evidence: p of the first question; None where it could not be asked.
        faithful: p of the second; None for a map without signal, which names nothing, and where nothing was tested.
        distinct: How many different background images fill masked patches. With none, a change may come from the fill
            itself; with few, it is not known what is exceptional: the verdict is "cannot tell".
        kind: Of the images without evidence, those that reached the number more often; for the reason.
        effect: By how much the log-odds of the class, or the cosine, lie above those of the middle composite.
        least: The least of it; None where none is known, as for a function: then "weak" is the best.
        unit: Of both.
        fall: How much more the number falls in the map's order than in that of random maps.
    """
    if distinct == 0:
        why = "there are no background images to fill masked patches with, so a change may come from the fill"
        return "cannot tell", f"{why}; {TEN_OTHERS}"
    if evidence is None:
        few = f"{distinct} different background image{'s are' if distinct > 1 else ' is'} too few"
        return "cannot tell", f"{few} to know how the network scores images without evidence; {TEN_OTHERS}"
    if evidence > EVIDENCE:
        limit = f"the limit is {percent_in_words(EVIDENCE)}"
        return "cannot tell", f"no evidence found{_REACHED[kind]} as high in {_above(evidence)} of cases ({limit})"
    if least is not None and not (effect is not None and effect >= least):
        return "cannot tell", f"no evidence found, because {_too_small(effect, least, unit)}"
    if faithful is None:
        return "cannot tell", "the map prefers no patch"
    if faithful <= FAITHFUL and least is None:
        return "weak", f"{_CARRY}, but how large an effect must be is known only for classes and similarities"
    if faithful <= FAITHFUL and fall is not None and unit is not None and fall < TINY[unit]:
        by = f"the score falls by {fall:.1g} more than in the order of random maps (the limit is {TINY[unit]:g})"
        return "supported, tiny", f"{_CARRY}, but only just: {by}"
    if faithful <= FAITHFUL:
        return "supported", _CARRY
    if faithful <= WEAK:
        return "weak", f"there is evidence, but {_as_good(faithful)}"
    return "no better than random", _as_good(faithful)


def _too_small(effect: float | None, least: float, unit: Unit | None) -> str:
    """Why an effect is none, in words."""
    theirs = "of a composite of other images' patches"
    if unit == "cosine":
        raised = "not known to be" if effect is None else f"{effect:.2f}"
        return f"the cosine is {raised} above that {theirs} (the limit is {least:.2f})"
    raised = "not known to be" if effect is None else f"only {times(effect)}"
    return f"the odds are {raised} those {theirs} (the limit is {times(least)}, the number of classes)"


def _as_good(p: float) -> str:
    return f"{percent_in_words(p)} of random maps do as well"


def _above(p: float) -> str:
    """A p above the limit, which must not read like the limit."""
    return percent_in_words(p) if round(100 * p) > 100 * EVIDENCE else f"{100 * p:.1f} %"


@dataclass(frozen=True, eq=False)
class Trust:
    """How far to trust each map of an attribution; one entry for each image.

    Attributes:
        verdict: "supported", "supported, tiny", "weak", "no better than random" or "cannot tell".
        reason: Why, in plain words.
        score: (b,), mean fall of the explained number when patches are masked in the map's order, in logits; nan, as
            all that follows from it, where the test ended with the image, which holds no evidence.
        interval: (b, 2), 95 % interval of the score over the draws of the fill.
        random: (b, maps), the same of random maps of the same smoothness and values; nan behind the last that was made.
        oracle: (b,), the same of the true mask; None where no mask was given, nan where one is empty.
        evidence: (b,), p of "is there evidence?"; nan where it could not be asked.
        effect: (b,), by how much the log-odds of the class, or the cosine of a similarity, lie above those of the
            middle composite; nan where that is not known.
        least_effect: From how much on there is evidence; None of a number that is neither: there p alone decides, and
            "weak" is the best verdict.
        effect_unit: Of both, "nats" or "cosine"; None where there is none.
        faithful: (b,), p of "is the map faithful?"; nan for a map without signal, and one that was not tested.
        random_maps: (b,), how many random maps were made; 0 of a map that was not tested.
        before: (b,), the target's probability, for a contrast that among the two classes; nan for a function, and for
            a network of one output.
        masked: (b,), the same with the map's first `patches` patches masked, mean over the draws.
        masked_random: (b,), the same with as many patches of the random maps masked, mean over these.
        patches: (b,), how many patches that is: up to a quarter of all, where the two differ most.
        composites: (b,), with how many images put together of other images' patches the number was compared.
        surrogates: (b,), with how many images of the same colours and smoothness.
        fill: What replaced masked patches.
        precision: In which the passes of the test were computed.
    """

    verdict: tuple[Verdict, ...]
    reason: tuple[str, ...]
    score: Float[Tensor, "b"]
    interval: Float[Tensor, "b 2"]
    random: Float[Tensor, "b maps"]
    oracle: Float[Tensor, "b"] | None
    evidence: Float[Tensor, "b"]
    effect: Float[Tensor, "b"]
    least_effect: float | None
    effect_unit: Unit | None
    faithful: Float[Tensor, "b"]
    random_maps: Int[Tensor, "b"]
    before: Float[Tensor, "b"]
    masked: Float[Tensor, "b"]
    masked_random: Float[Tensor, "b"]
    patches: Int[Tensor, "b"]
    composites: Int[Tensor, "b"]
    surrogates: Int[Tensor, "b"]
    fill: str
    precision: Precision

    def of(self, image: int) -> dict[str, Any]:
        """The values of one image, under the same names: words, numbers, and None for what is not known."""
        return {each.name: _of(getattr(self, each.name), image, each.name in UNKNOWN) for each in fields(self)}

    def sentence(self, image: int, name: str, among: str = "") -> str:
        """What masking patches of one image does to what is called `name`, and the verdict, for people.

        It speaks of the probability where that shows what the verdict says, and of the score, which decided, where it
        does not: a sure network can lose much of its score and be as sure as before. Of what the probability is stands
        behind it as `among`, such as " of the two" for a contrast.
        """
        says = self.verdict[image]
        if says == "cannot tell":
            return f"Cannot tell: {self.reason[image]}."
        before, after, chance = (float(each[image]) for each in (self.before, self.masked, self.masked_random))
        shown = chance - after >= VISIBLE  # False for nan, too
        if not shown or says == "no better than random":
            own, random = float(self.score[image]), float(self.random[image].nanmean())
            is_class = not math.isnan(before)
            what, places = (f"the score of {name}", 1) if is_class else (name, 2)
            lost, at_random = (_told(each, own, random, least=places) for each in (own, random))
            return (
                f"Masking patches in the map's order lowers {what} by {lost} on average, in the order of random maps "
                f"by {at_random}{_NO_LEAST if says == 'weak' and self.least_effect is None else ''}: {says}."
            )
        count = int(self.patches[image])
        brightest = "the brightest patch" if count == 1 else f"the {count} brightest patches"
        random = "a random patch" if count == 1 else f"{count} random patches"
        moves = "drops" if after < before else "takes"
        return (
            f"Masking {brightest} {moves} {name} from {percent_in_words(before)} to {percent_in_words(after)}{among}; "
            f"masking {random} leaves {percent_in_words(chance)}: {says}."
        )


def _of(values: Any, image: int, may_lack: bool) -> Any:
    """What one image has of them; what is no sequence concerns all images."""
    match values:
        case tuple():
            return values[image]
        case Tensor():
            own = values[image].tolist()
            if values.dim() > 1:
                known = tuple(value for value in own if value == value)
                return known if known or not may_lack else None
            return None if may_lack and own != own else own
    return values


def _told(value: float, *beside: float, least: int = 1) -> str:
    """A number with as many decimals as tell it from those beside it: so many at least, and at most four."""
    low, high = min(beside), max(beside)
    places = next((places for places in range(least, 4) if round(low, places) < round(high, places)), 4)
    return f"{round(value, places) + 0.0:.{places}f}"  # + 0.0 for zero without a sign
