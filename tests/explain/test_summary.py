"""The plain sentences say no more than the test does: those of 600 verdicts are read back against their numbers."""

import dataclasses
import math
import re
from collections import Counter
from functools import partial

import numpy as np
import pytest

from tests.pages import samples
from vitrail.explain.reporting.summary import areas_of, summary_of
from vitrail.explain.verdict import EVIDENCE, FAITHFUL, VISIBLE, verdict
from vitrail.pages import AttributionView, ImageView, TrustView
from vitrail.pages.image_views import ReplacedView
from vitrail.pages.trust import spot_words
from vitrail.text import percent_in_words, times_words

GRIDS = ((1, 9), (4, 4), (7, 5), (14, 14))
KINDS = ("class", "class", "other", "contrast", "number", "similarity", "labels", "data")


def one(draw: np.random.Generator) -> ImageView:
    """An image whose test came out somehow: what may stand together, drawn at random."""
    kind = KINDS[draw.integers(len(KINDS))]
    has_scale, is_cosine = kind != "number", kind == "similarity"
    composites, surrogates = 499, int(draw.choice([0, 29, 59]))
    compared = surrogates or composites
    reached = int(draw.integers(compared)) if draw.random() < 0.3 else int(draw.integers(1 + compared // 40))
    least, effect = (0.25, draw.uniform(0, 0.6)) if is_cosine else (math.log(10), draw.uniform(-1, 12))
    is_data, lowers = kind == "data", kind == "data" and bool(draw.random() < 0.5)
    least, effect = (draw.uniform(0.02, 90), draw.uniform(0, 300)) if is_data else (least, effect)
    unit = "cosine" if is_cosine else "data" if is_data else "nats"
    maps = int(draw.choice([24, 49]))
    faithful = None if draw.random() < 0.1 else (1 + int(draw.integers(12) ** 2 // 9)) / (1 + maps)
    score, at_random = sorted(draw.uniform(-0.2, 4, 2), reverse=faithful is None or faithful < 0.3)
    at_random = score - 0.001 if draw.random() < 0.15 else at_random
    p = None if draw.random() < 0.05 else (1 + reached) / (1 + compared)
    word, reason = verdict(
        p,
        faithful,
        59,
        "surrogates" if surrogates else "composites",
        effect if has_scale else None,
        least if has_scale else None,
        unit if has_scale else None,
        score - at_random,
    )
    values, before = draw.random(GRIDS[draw.integers(len(GRIDS))]), draw.random()
    count = max(1, values.size // 4)
    chance = draw.uniform(0, 1)
    after = chance * draw.random() if draw.random() < 0.7 else chance * 0.99
    is_probability = kind not in ("number", "similarity", "data")
    tested = word != "cannot tell" or draw.random() < 0.5
    trust = TrustView(
        verdict=word,
        reason=reason,
        sentence="",
        score=score,
        interval=None,
        random=(at_random,) * maps if tested else (),
        oracle=None,
        evidence=p,
        effect=effect if has_scale else None,
        minimum_effect=least if has_scale else None,
        effect_unit=unit,
        faithful=faithful,
        random_maps=maps,
        passes=175,
        before=before if is_probability else None,
        masked=after,
        masked_random=chance,
        patches=count,
        composites=composites,
        surrogates=surrogates,
        fill="background",
        precision="fp32",
        reached=reached,
        reached_itself=int(reached * draw.random()) if kind in KINDS[:4] else reached,
    )
    order = values.ravel().argsort().argsort().reshape(values.shape)
    masks = order >= values.size - count, order < count
    pieces = np.zeros((*values.shape, 4), np.uint8)
    values_of = [400 - 300 * each if lowers else 300 * each for each in (after, chance)] if is_data else (after, chance)
    pair = tuple(ReplacedView(m, pieces, v, v) for m, v in zip(masks, values_of, strict=True))
    function = {"number": "number", "similarity": "similarity", "data": "number"}.get(kind)
    view = AttributionView(
        "m",
        "M",
        {
            "other": "second",
            "number": "amount",
            "similarity": "likeness",
            "data": "-amount" if lowers else "amount",
        }.get(kind, "first"),
        draw.uniform(-300, 300) if is_data else 2.0,
        values,
        False,
        True,
        contrast="second" if kind == "contrast" else None,
        function=function,
        trust=trust,
        replaced=pair if tested else None,
        in_data=200.0 if is_data else None,
    )
    top = [("first", before), ("second", 0.1)] if is_probability and kind != "labels" else []
    limits = {"first": draw.random()} if kind == "labels" and draw.random() < 0.7 else {}
    explained = ImageView("a.png", samples.an_image(), None, top, [view], "" if top else "words", limits=limits)
    return dataclasses.replace(explained, summary=summary_of(explained))


@pytest.fixture(scope="module")
def images() -> list[ImageView]:
    draw = np.random.default_rng(0)
    return [one(draw) for _ in range(600)]


def figures(text: str) -> list[str]:
    return re.findall(r"(?:over |under )?-?\d(?:[\d,]*\d)?(?:\.\d+)?(?: %| times)?|over a million times|\bnone\b", text)


def shortened(value: float, half: float) -> str:
    """With as many decimals as two digits of half the width of its interval have."""
    return f"{value:.{max(0, 1 - math.floor(math.log10(half)))}f}"


def wanted(explained: ImageView) -> list[str]:
    """The figures that the sentences may have, in order, from the numbers of the test."""
    (view,) = explained.attributions
    trust, named = view.trust, []
    assert trust is not None
    if explained.top:
        named.append(percent_in_words(explained.top[0][1]))
    if trust.before is not None and (view.contrast or view.target != explained.predicted):
        in_answer = [p for name, p in explained.top if name == view.target and not view.contrast]
        named.append(percent_in_words(*in_answer or [trust.before]))
        named += [percent_in_words(limit) for name, limit in explained.limits.items() if name == view.target]
    if view.in_data is not None:
        named.append(shortened(abs(view.logit), trust.minimum_effect))
    if trust.verdict == "cannot tell":
        if trust.evidence is None:
            return named
        if trust.evidence > EVIDENCE:
            count = trust.surrogates or trust.composites
            both = (trust.reached, trust.reached_itself)[trust.reached == trust.reached_itself :]
            return [*named, str(count), *(percent_in_words(each / count) if each else "none" for each in both)]
        if trust.effect is not None and trust.minimum_effect is not None and trust.effect < trust.minimum_effect:
            write = "{:.2f}".format if trust.effect_unit == "cosine" else times_words
            if trust.effect_unit == "data":
                write = partial(shortened, half=trust.minimum_effect)
            return [*named, write(trust.effect), write(trust.minimum_effect)]
        return named
    as_good = [str(round(trust.faithful * (1 + trust.random_maps)) - 1), str(trust.random_maps)]
    if trust.verdict == "no better than random":
        return named + as_good
    shown = [percent_in_words(each) for each in (trust.masked, trust.masked_random)]
    if trust.before is None:
        pair = [each.value for each in view.replaced or ()]
        half = trust.minimum_effect if view.in_data is not None else 0.1
        while view.in_data is None and half > 1e-4 and len({shortened(v, half) for v in pair}) < 2:
            half /= 10
        shown = [shortened(v, half) for v in pair]
    if view.replaced is not None and len({*shown}) == 2 and trust.masked_random > trust.masked:
        count = [str(trust.patches)] if trust.patches > 1 else []
        named += [*count, shown[0], *count, shown[1]]
    else:
        drops = trust.score, sum(trust.random) / len(trust.random)
        told = figures(" ".join(explained.summary))[len(named) : len(named) + 2]
        places = [len(each.partition(".")[2]) for each in told]
        assert all(abs(float(a) - b) <= 0.51 * 10.0**-n for a, b, n in zip(told, drops, places, strict=True)), told
        named += told
    return named + (as_good if trust.verdict == "weak" and trust.faithful > FAITHFUL else [])


def test_of_every_kind_of_verdict_there_are_many(images: list[ImageView]) -> None:
    counts = Counter(explained.attributions[0].trust.verdict for explained in images)
    assert len(images) >= 200
    assert len(counts) == 5
    assert min(counts.values()) >= 8, counts


def test_every_figure_is_one_of_the_test(images: list[ImageView]) -> None:
    for explained in images:
        assert figures(" ".join(explained.summary)) == wanted(explained), explained.summary


def test_at_most_60_words_and_none_that_a_clerk_does_not_know(images: list[ImageView]) -> None:
    jargon = re.compile(
        r"logit|patch|composite|surrogate|fill|mask|p =|p-value|attribution|faithful|nats|cosine|sink|rank|score as|"
        r"None|nan"
    )
    for explained in images:
        said = " ".join(explained.summary)
        assert len(re.findall(r"[^\s%]+", said)) <= 60, said
        assert not jargon.search(said), said


def claims(explained: ImageView) -> tuple[bool, bool]:
    """Whether the sentences say that the answer rests on parts of the image, and whether that parts matter."""
    said = " ".join(explained.summary)
    return "This rests" in said, "matter" in said


def test_no_sentence_claims_what_the_verdict_does_not(images: list[ImageView]) -> None:
    for explained in images:
        word = explained.attributions[0].trust.verdict
        supported = word.startswith("supported")
        assert claims(explained) == (supported, supported), explained.summary
        assert ("may rest" in explained.summary[-3]) == (word == "weak")
        assert "right" in explained.summary[-1]
        assert re.search(r"\bnot\b|\bnothing\b", explained.summary[-1]), "whether it is right is never said"
        if word == "supported, tiny":
            assert "little" in explained.summary[-2]


def where(words: str, high: float, wide: float) -> bool:
    """Whether a place of the image (0 to 1 downwards, and to the right) lies in what words name; a word has a half."""
    if words == "both sides":
        return not 1 / 3 <= wide <= 2 / 3
    if words == "top and bottom":
        return not 1 / 3 <= high <= 2 / 3
    if words in ("band across the middle", "band down the middle"):
        return 1 / 3 <= (high if "across" in words else wide) <= 2 / 3
    first, *more = words.split()
    if more in (["part"], ["side"], ["two", "thirds"]):
        most = 2 / 3 if more[0] == "two" else 1 / 3
        at = high if first in ("upper", "lower") else wide
        return at <= most if first in ("upper", "left") else at >= 1 - most
    down = {"upper": high < 1 / 2, "lower": high >= 1 / 2}.get(first, 1 / 4 <= high <= 3 / 4)
    across = {"left": wide < 1 / 2, "right": wide >= 1 / 2}.get(words.split()[-1], 1 / 4 <= wide <= 3 / 4)
    return down and across


def held(mask: np.ndarray, *places: str) -> float:
    """The fraction of the parts that lies in one of some places."""
    high, wide = ((at + 0.5) / size for at, size in zip(np.nonzero(mask), mask.shape, strict=True))
    return float(np.mean([any(where(each, *at) for each in places) for at in zip(high, wide, strict=True)]))


BANDS = "upper part", "band across the middle", "lower part", "left side", "band down the middle", "right side"


def is_true(words: str, mask: np.ndarray) -> bool:
    """Whether most of the parts lie there; of two thirds nearly all; of what is all over, no third has most or none."""
    named = words.removesuffix(" of the image").removeprefix("the ").removeprefix("a ")
    if words == "places all over the image":
        every = [(held(mask, each), held(np.ones_like(mask), each)) for each in BANDS]
        return min(mask.shape) < 5 or all(1 / 9 <= part <= max(1 / 2, 1.5 * even) for part, even in every)
    if named in ("both sides", "top and bottom") or named.endswith("two thirds"):
        return held(mask, named) > min(8 / 9, 1.5 * held(np.ones_like(mask), named))
    return held(mask, *named.split(" and ")) > 1 / 2


def test_where_it_rests_is_where_the_replaced_parts_lie(images: list[ImageView]) -> None:
    told = Counter[str]()
    for explained in images:
        replaced = explained.attributions[0].replaced
        found = re.search(r"This (?:may rest|rests) (?:partly |mainly )?on ([a-z ]+): ", " ".join(explained.summary))
        words = "parts of the image" if found is None else found[1]
        if replaced is not None and words != "parts of the image":
            told[words] += 1
            assert is_true(words, replaced[0].mask), explained.summary
    assert len(told) > 15


@pytest.mark.parametrize("grid", [(14, 14), (16, 16), (7, 7), (5, 9)])
def test_each_place_is_named_where_the_parts_lie_and_all_over_where_they_are_spread(grid: tuple[int, int]) -> None:
    draw, told = np.random.default_rng(0), Counter[str]()
    for _ in range(400):  # some in a box, some anywhere
        ends = [np.sort(draw.choice(size + 1, 2, replace=False)) for size in grid]
        mask = draw.random(grid) < draw.choice([0, 0.05, 0.2])
        mask[slice(*ends[0]), slice(*ends[1])] |= draw.random() < 0.7
        words = areas_of(mask)
        told[words] += 1
        assert not mask.any() or is_true(words, mask), (words, mask.astype(int))
    assert len(told) > 20
    middle = np.zeros(grid, bool)
    middle[:, grid[1] // 3 + 1 : grid[1] - grid[1] // 3 - 1] = True
    assert areas_of(middle) == "a band down the middle of the image"
    assert areas_of(np.ones(grid, bool)) == "places all over the image"


def test_areas_by_hand() -> None:
    mask = np.zeros((6, 6), bool)
    mask[0, 0] = True
    assert areas_of(mask) == "the upper left of the image"
    mask[2:4, 2:4] = True
    assert areas_of(mask) == "the middle of the image"
    mask[0, 1] = mask[1, 0] = True
    assert areas_of(mask) == "the middle and upper left of the image"
    assert areas_of(np.ones((6, 6), bool)) == "places all over the image"
    mask = np.zeros((14, 14), bool)
    mask[3:8, 3:8] = True  # in four ninths
    assert areas_of(mask) == "the middle of the image"
    mask = np.ones((14, 14), bool)
    mask[:5] = mask[5:, ::2] = False
    assert areas_of(mask) == "the lower two thirds of the image"
    assert areas_of(mask.T) == "the right two thirds of the image"
    assert areas_of(np.tile(np.abs(np.arange(14) - 6.5) > 3, (14, 1))) == "both sides of the image"
    assert areas_of(np.arange(6)[:, None].repeat(6, 1) < 2) == "the upper part of the image"
    mask = np.tile(np.arange(6) > 3, (6, 1))
    mask[0] = True
    assert areas_of(mask) == "the right side of the image"
    assert areas_of(np.eye(3, dtype=bool)[:1]) == "the left of the image"


def test_a_planted_exaggeration_is_found(images: list[ImageView]) -> None:
    """A verdict that is taken for another, another count, another probability: the tests above see each."""
    weak = next(each for each in images if each.attributions[0].trust.verdict == "weak")
    view = weak.attributions[0]
    for planted in (
        dataclasses.replace(view.trust, verdict="supported"),
        dataclasses.replace(view.trust, random_maps=view.trust.random_maps * 2 + 1),
    ):
        other = dataclasses.replace(weak, attributions=[dataclasses.replace(view, trust=planted)])
        other = dataclasses.replace(other, summary=summary_of(other), attributions=weak.attributions)
        assert claims(other) != (False, False) or figures(" ".join(other.summary)) != wanted(weak)


def test_a_text_and_an_untested_map_claim_nothing() -> None:
    view = AttributionView("m", "M", "first", 2.0, np.eye(3), False, True)
    untested = summary_of(ImageView("a", samples.an_image(), None, [("first", 0.9)], [view]))
    assert figures(" ".join(untested)) == ["90 %"]
    assert "not tested" in untested[1]
    written = summary_of(
        ImageView("a", samples.an_image(), None, [("some words", 0.9)], [dataclasses.replace(view, function="token")])
    )
    assert "some words" in written[0]
    assert "not tested" in written[1]
    assert summary_of(ImageView("a", samples.an_image(), None, [], [])) == ()


def test_the_conclusion_is_no_stronger_than_the_two_pictures(images: list[ImageView]) -> None:
    """What random parts do as well is no merit of these; what stays without them does not rest mainly on them."""
    seen = Counter[str]()
    for explained in images:
        (view, *_), said = explained.attributions, " ".join(summary_of(explained))
        before = explained.sure_of(view)
        if "This rests" not in said or view.replaced is None or before is None:
            continue
        own, random = (each.value for each in view.replaced)
        only, done = random - own, max(before - own, VISIBLE)
        kind = "more than others" if 5 * only >= done and 20 * only >= before else "little more than others"
        kind = "to the model" if 2 * only >= done and 5 * only >= before else kind
        kind = "little more than others" if view.trust.verdict != "supported" else kind
        seen[kind] += 1
        assert f"matter {kind}" in said
        shown = percent_in_words(own) != percent_in_words(random) and own < random
        assert ("the two pictures do not" in said) == (not shown)
        assert ("mainly" not in said) or 2 * only > before
        assert ("partly" in said) == (2 * only <= before)
    assert len(seen) == 3
    assert min(seen.values()) > 2, seen


def test_what_is_said_of_a_spot_is_what_it_does_of_what_the_map_does(images: list[ImageView]) -> None:
    """Never that it does as well where its drop is smaller; and nothing where it does little."""
    seen, draw = Counter[str](), np.random.default_rng(1)
    for explained in images:
        trust = explained.attributions[0].trust
        bump = float(draw.uniform(-1, 1.3) * (trust.score or 1))
        said, chance = spot_words(bump, trust), sum(trust.random) / max(1, len(trust.random))
        if not trust.random or trust.score <= chance or bump - chance < 0.5 * (trust.score - chance):
            assert not said
            continue
        seen["as well" if "as well" in said else "part"] += 1
        assert ("as well" in said) == (bump >= trust.score)
        part = [] if bump >= trust.score else [percent_in_words((bump - chance) / (trust.score - chance))]
        assert figures(said) == part
    assert min(seen["as well"], seen["part"]) > 20
