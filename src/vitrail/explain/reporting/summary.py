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
from vitrail.pages.image_views import AttributionView, ImageView, TrustView
from vitrail.text import percent_in_words, times_words

LOOKED = "The maps show where it looked for each word; whether that mattered was not tested."
RIGHT = "This does not say that the prediction is right."
BELOW = "no label reaches its threshold; this is the most probable one"  # a note of its map
NO_REASON = "So the map shows no reason, and does not say what is right."
NO_SCALE = "How much is a lot is not known for such a number: weak at best."
PIECES = "shuffled pieces of other images"
AREAS = tuple(f"{down} {across}".strip() for down in ("upper", "", "lower") for across in ("left", "middle", "right"))
NAMED, MOST = 0.25, 2  # of the decisive parts, a ninth that holds so many is named; and so many ninths at most
THIRDS = {  # of the height, then of the width: what holds all parts between these thirds, and in no other
    "the upper part of": (1, 0, 0),
    "a band across the middle of": (0, 1, 0),
    "the lower part of": (0, 0, 1),
    "the upper two thirds of": (1, 1, 0),
    "the top and bottom of": (1, 0, 1),
    "the lower two thirds of": (0, 1, 1),
    "the left side of": (1, 0, 0),
    "a band down the middle of": (0, 1, 0),
    "the right side of": (0, 0, 1),
    "the left two thirds of": (1, 1, 0),
    "both sides of": (1, 0, 1),
    "the right two thirds of": (0, 1, 1),
}
SPREAD = "places all over the image"
NEARLY_ALL = 8 / 9  # of the decisive parts: the third that is left out has a third of what it has where they are spread
MUCH, LITTLE = 1 / 2, 1 / 5  # of what replacing the decisive parts does, what random ones do not
OF_ALL, BARELY = 1 / 5, 1 / 20  # the same of the whole probability: below the second it is next to nothing


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
        why = f"why “{view.named}” lies {view.beside_mean}"
        if view.logit < 0:  # on the other side than the one that is explained
            why = f"what {'lowers' if view.lowers else 'raises'} “{view.named}”, which lies {view.beside_mean}"
        return answer, f"Explained: {why}.", *_tested(explained, view)
    named = view.target if view.function is not None else f"“{view.target}”"
    against = "" if view.contrast is None else f", not “{view.contrast}”"
    before = explained.sure_of(view)
    if explained.answer and view.explains == "class" and before is not None:  # one of several labels
        most = BELOW in view.notes
        words = percent_in_words(before)
        about = f"The most probable is {named}, {words}" if most else f"Of {named} it is {words} sure"
        limit = explained.limits.get(view.target)
        says = "" if limit is None else f"; {percent_in_words(limit)} is {'needed' if most else 'enough'}"
        return answer, f"{about}{says}.", *_tested(explained, view)
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
    moved, unseen = _moved(view, trust, name)
    rests = f"on {where}: {moved}."
    if trust.verdict == "weak":
        return f"This may rest {rests}", f"But {as_good}." if (trust.faithful or 0) > FAITHFUL else NO_SCALE, RIGHT
    before = explained.sure_of(view)
    if view.replaced is None or before is None:
        beyond, how, part = 1 - (trust.random_mean or 0.0) / (trust.score or math.inf), "", 1.0
    else:  # what these parts do and random ones do not, of what they do, and of the whole
        without, at_random = (each.value for each in view.replaced)
        beyond, part = ((at_random - without) / max(each, VISIBLE) for each in (before - without, before))
        how = "partly " if at_random - without <= before / 2 else "mainly " * (where != SPREAD)
    matter = "more than others" if beyond >= LITTLE and part >= BARELY else "little more than others"
    if beyond >= MUCH and part >= OF_ALL:
        matter = "to the model"
    matter = matter if trust.verdict == "supported" else "little more than others"
    return f"This rests {how}{rests}", f"So these parts matter {matter}{unseen}.", RIGHT


def _moved(view: AttributionView, trust: TrustView, name: str) -> tuple[str, str]:
    """What replacing the decisive parts does, beside random ones: to the probability or number, as pictures show it.

    To the mean score of the test where that is no lower for these parts; and then, behind it, that pictures do not.
    """
    unseen = ""
    if view.replaced is not None:
        own, random = view.replaced
        count, ends = int(own.mask.sum()), (own.value, random.value)
        after, chance = (
            write_apart(each, *ends, least=2) if view.in_data is None else view.write(each) for each in ends
        )
        if trust.before is not None:
            after, chance = map(percent_in_words, ends)
        if (own.value > random.value if view.lowers else random.value > own.value) and after != chance:
            parts, others = ("the most decisive of all", "a random one")
            if count > 1:
                parts, others = f"the {count} decisive parts", f"{count} random ones"
            return f"replacing {parts} takes {name} to {after}, {others} to {chance}", ""
        unseen = "; the two pictures do not show it"
    drops = trust.score or 0.0, trust.random_mean or 0.0
    lost, at_random = (write_apart(each, *drops, least=2 if trust.before is None else 1) for each in drops)
    what = "its score" if view.function is None else "it"
    moves = "raises" if view.lowers else "lowers"
    return f"replacing what the map names {moves} {what} by {lost} on average, random parts by {at_random}", unseen


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
        other = "some answer" if is_top else "another answer as high among theirs"
        kind = "noise in its colours" if trust.surrogates else PIECES
        found = f"{same} have it as high" if view.function is not None else f"{same} speak as strongly for {name}"
        found = f"{same} give a number that stands out as much" if view.in_data is not None else found
        if trust.reached != trust.reached_itself:
            found = f"{some} speak as strongly for {other}, {same} for {name}"
        return f"of {count} images of {kind}, {found}"
    effect, least = math.nan if trust.effect is None else trust.effect, trust.minimum_effect
    if least is None or effect >= least:
        return "the map gives all parts the same value"
    if trust.effect_unit == "cosine":
        return f"it is only {effect:.2f} more similar than {PIECES}, and {least:.2f} is needed"
    if trust.effect_unit == "data":
        return f"it is only {view.write(effect)} beyond {PIECES}, and {view.write(least)} is needed"
    return f"the odds of {name} are only {times_words(effect)} those with {PIECES}, and {times_words(least)} is needed"


def areas_of(mask: Bool[np.ndarray, "rows columns"]) -> str:
    """Where more than half of some parts lie: `the middle and upper left of the image`.

    One or two ninths of the image; or a quarter, a third of its height or width, or two, of which nearly all are asked.
    It is the area that holds most beyond what it would hold of parts that are spread evenly.
    """
    count, found = max(1, int(mask.sum())), dict[str, tuple[float, float]]()  # of parts, and of the image
    high, wide = ((np.arange(size) + 0.5) / size for size in mask.shape)
    ninths = 3 * (3 * high).astype(int)[:, None] + (3 * wide).astype(int)
    held = np.bincount(ninths[mask], minlength=9) / count
    order = np.argsort(-held, kind="stable")
    named = order[(held[order].cumsum() - held[order] <= 0.5) | (held[order] >= NAMED)]
    if len(named) <= MOST:
        words = " and ".join(AREAS[place] for place in named)
        found[f"the {words} of"] = float(held[named].sum()), float(np.isin(ninths, named).mean())
    for place, area in enumerate(AREAS):
        down, across = (
            (at >= begin / 4) & (at < begin / 4 + 0.5) for at, begin in ((high, place // 3), (wide, place % 3))
        )
        found.setdefault(f"the {area} of", _part(mask, down[:, None] & across))
    for place, (area, thirds) in enumerate(THIRDS.items()):
        chosen = np.array(thirds, bool)
        found[area] = _part(mask, chosen[ninths // 3 if place < len(THIRDS) / 2 else ninths % 3])
    enough = {
        area: held - size for area, (held, size) in found.items() if held > max(0.5, size, min(1.5 * size, NEARLY_ALL))
    }
    return f"{max(enough, key=lambda area: enough[area])} the image" if enough else SPREAD


def _part(mask: Bool[np.ndarray, "rows columns"], area: Bool[np.ndarray, "rows columns"]) -> tuple[float, float]:
    """The fraction of some parts that lies in an area, and of all parts."""
    return float((mask & area).sum() / max(1, mask.sum())), float(area.mean())
