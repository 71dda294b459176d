"""The first sentences on an image, for who has never heard of a patch or a logit: at most 60 words, a name being one.

What the model answers and how sure it is; where in the image that rests; what happens when those parts are replaced;
and what may be concluded. They say no more than the test does: each figure is one of its own, and what it could not
tell is said with the reason. Of several maps the first is summed up, whichever it is, so that none is picked.
"""

import math

import numpy as np
from jaxtyping import Bool

from vitrail.explain.evidence import EVIDENCE
from vitrail.explain.scores.faithfulness import FAITHFUL
from vitrail.explain.verdict import VISIBLE, write_apart
from vitrail.pages.views import AttributionView, ImageView, TrustView
from vitrail.text import number, percent_in_words, times_words

LOOKED = "The maps show where it looked for each word; whether that mattered was not tested."
RIGHT = "This does not say that the prediction is right."
BELOW = "no label reaches its threshold; this is the most probable one"  # a note of its map
NO_REASON = "So the map shows no reason, and does not say what is right."
NO_SCALE = "How much is a lot is not known for such a number: weak at best."
PIECES = "shuffled pieces of other images"
AREAS = "upper left,upper middle,upper right,left,middle,right,lower left,lower middle,lower right"
NAMED, MOST = 0.25, 2  # of the decisive parts, an area that holds so many is named; and so many areas at most
SIDES = "upper part", "lower part", "left side", "right side"
MUCH, LITTLE = 1 / 2, 1 / 5  # of what replacing the decisive parts does, what random ones do not


def summary_of(explained: ImageView) -> tuple[str, ...]:
    """The sentences on an image; none where it has no map."""
    if not explained.attributions:
        return ()
    view, said, top = explained.attributions[0], explained.predicted, explained.top
    if view.explains == "token":
        return f"The model writes “{said}”.", LOOKED, RIGHT
    sure = f", {percent_in_words(top[0][1])} sure" if top and not explained.answer else ""
    answer = f"The model answers “{said}”{sure}." if said else "The model gives no answer."
    if sure and view.explains == "class" and view.target == said:
        return answer, *_tested(explained, view)
    if view.in_data is not None:
        why = f"why it lies {view.beside_mean}"
        if view.logit < 0:  # on the other side than the one that is explained
            why = f"what {'lowers' if view.lowers else 'raises'} it; it lies {view.beside_mean}"
        return answer, f"Of “{view.named}” it is explained {why}.", *_tested(explained, view)
    named = view.target if view.function is not None else f"“{view.target}”"
    against = "" if view.contrast is None else f", not “{view.contrast}”"
    before = explained.sure_of(view)
    if explained.answer and view.explains == "class" and before is not None:  # one of several labels
        most = BELOW in view.notes
        about = f"The most probable is {named}, {{}}." if most else f"Of {named} it is {{}} sure."
        return answer, about.format(percent_in_words(before)), *_tested(explained, view)
    sure = "" if before is None else f" ({percent_in_words(before)}{' of the two' if against else ''})"
    return answer, f"Asked: {named}{against}{sure}.", *_tested(explained, view)


def _tested(explained: ImageView, view: AttributionView) -> tuple[str, ...]:
    """What the test found, and what follows."""
    trust = view.trust
    if trust is None:
        return "What this rests on was not tested, so the map may mislead.", RIGHT
    name = f"“{view.target}”" if view.explains == "class" else "it"
    if trust.verdict == "cannot tell":
        return f"What this rests on cannot be told: {_no_evidence(explained, view, trust, name)}.", NO_REASON
    as_good = f"{(trust.rank or 1) - 1} of {trust.random_maps} random choices did as well"
    if trust.verdict == "no better than random":
        return f"What this rests on is not known: {as_good} as the map.", NO_REASON
    where = "parts of the image" if view.replaced is None else areas_of(view.replaced[0].mask)
    rests = f"on {where}: {_moved(view, trust, name)}."
    if trust.verdict == "weak":
        return f"This may rest {rests}", f"But {as_good}." if (trust.faithful or 0) > FAITHFUL else NO_SCALE, RIGHT
    before = explained.sure_of(view)
    if view.replaced is None or before is None:
        beyond, how = 1 - (trust.random_mean or 0.0) / (trust.score or math.inf), ""
    else:  # what these parts do and random ones do not, of what they do, and of the whole
        without, at_random = (each.value for each in view.replaced)
        beyond = (at_random - without) / max(before - without, VISIBLE)
        how = "in part " if at_random - without <= before / 2 else "mainly " * where.startswith("the ")
    matter = "to the model" if beyond >= MUCH else "more than others" if beyond >= LITTLE else "little more than others"
    return (
        f"This rests {how}{rests}",
        f"So these parts matter {matter if trust.verdict == 'supported' else 'little more than others'}.",
        RIGHT,
    )


def _moved(view: AttributionView, trust: TrustView, name: str) -> str:
    """What replacing the decisive parts does, beside random ones: to the probability, as pictures show it.

    To the mean score of the test where no probability is lower for these parts.
    """
    if view.replaced is not None and trust.before is not None:
        own, random = view.replaced
        count, (after, chance) = int(own.mask.sum()), (percent_in_words(each.value) for each in (own, random))
        if random.value > own.value and after != chance:
            parts, others = ("the most decisive of all", "a random one")
            if count > 1:
                parts, others = f"the {count} most decisive parts", f"{count} random ones"
            return f"replacing {parts} takes {name} to {after}, {others} to {chance}"
    drops = trust.score or 0.0, trust.random_mean or 0.0
    lost, at_random = (write_apart(each, *drops, least=2 if trust.before is None else 1) for each in drops)
    what = "its score" if view.function is None else "it"
    moves = "raises" if view.lowers else "lowers"
    return f"replacing what the map names {moves} {what} by {lost} on average, random parts by {at_random}"


def _no_evidence(explained: ImageView, view: AttributionView, trust: TrustView, name: str) -> str:
    """Why nothing can be told."""
    if not np.isfinite(view.values).all():
        return "the map has values that are no numbers"
    if trust.evidence is None:
        return "there are too few other images to compare with"
    if trust.evidence > EVIDENCE:
        count = trust.surrogates or trust.composites
        some, same = (percent_in_words(k / count) if k else "none" for k in (trust.reached, trust.reached_itself))
        is_top = view.explains == "class" and explained.top and view.target == explained.top[0][0]
        other = "some answer" if is_top else "answers at the same place of their list"
        kind = "noise in its colours" if trust.surrogates else PIECES
        found = f"{same} have it as high" if view.function is not None else f"{same} speak as strongly for {name}"
        found = f"{same} reach as far" if view.in_data is not None else found
        if trust.reached != trust.reached_itself:
            found = f"{some} speak as strongly for {other}, {same} for {name}"
        return f"of {count} images of {kind}, {found}"
    effect, least = math.nan if trust.effect is None else trust.effect, trust.minimum_effect
    if least is None or effect >= least:
        return "the map gives all parts the same value"
    if trust.effect_unit == "cosine":
        return f"it is only {effect:.2f} more similar than {PIECES}, and {least:.2f} is needed"
    if trust.effect_unit == "data":
        return f"it is only {number(effect, 3)} beyond {PIECES}, and {number(least, 3)} is needed"
    return f"the odds of {name} are only {times_words(effect)} those with {PIECES}, and {times_words(least)} is needed"


def areas_of(mask: Bool[np.ndarray, "rows columns"]) -> str:
    """Where more than half of some parts lie, in ninths of the image: `the middle and upper left of the image`."""
    rows, columns = ((2 * np.arange(size) + 1) * 3 // (2 * size) for size in mask.shape)
    held = np.bincount((3 * rows[:, None] + columns)[mask], minlength=9) / max(1, mask.sum())
    order = np.argsort(-held, kind="stable")
    named = (held[order].cumsum() - held[order] <= 0.5) | (held[order] >= NAMED)
    *words, last = (AREAS.split(",")[place] for place in order[named])
    thirds = held.reshape(3, 3)
    if len(words) >= MOST:  # and the last
        sides = [*thirds.sum(axis=1)[[0, 2]].tolist(), *thirds.sum(axis=0)[[0, 2]].tolist()]
        most, side = max(zip(sides, SIDES, strict=True))
        return f"the {side} of the image" if most > 0.5 else "parts spread over the whole image"
    return f"the {', '.join(words)}{' and ' if words else ''}{last}{' of the image' if len(words) < 2 else ''}"
