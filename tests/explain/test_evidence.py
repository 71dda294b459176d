"""Evidence: ranks among images that hold none, fair for classes that were chosen as the highest."""

import copy
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.explain.evidence_among import evidence_among
from tests.explain.planted_lab import known, load_planted
from tests.explain.reference import PLAIN, make_images, make_network
from vitrail.explain.evidence import (
    COMPOSITES,
    EVIDENCE,
    RARE,
    SURROGATES,
    Evidence,
    as_high,
    composites_of,
    find_evidence,
    is_decided,
    large_enough,
)
from vitrail.explain.sanity_check import scramble
from vitrail.explain.scores.faithfulness import MaskedImages
from vitrail.explain.scores.perturb import compute_logits, explained_number, from_background, own_patches
from vitrail.explain.target import choose_target, similarity
from vitrail.explain.verdict import prepare
from vitrail.nn import ViTConfig
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.target import LEAST_RISE, ChosenTarget, choose_class, of_function

pytestmark = pytest.mark.usefixtures("as_a_user")

CLASSES = 6


def p_of(some: Tensor, chosen: ChosenTarget, without: Tensor, background: int | None = None) -> Tensor:
    return (1 + as_high(some, chosen, without, background)).double() / (1 + len(without))


def logits(count: int, seed: int) -> Tensor:
    return torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_class_counts_from_the_mean_of_all() -> None:
    some = logits(5, 0)
    chosen = choose_class(some, [0, 1, 2, 3, 4])
    wanted = some[torch.arange(5), torch.arange(5)] - some.mean(dim=1)
    assert (explained_number(some, chosen) - wanted).abs().max() <= 1e-12
    assert (explained_number(some + 7.0, chosen) - wanted).abs().max() <= 1e-12  # softmax would not change either
    against = choose_class(some, (chosen.target, 5))
    assert torch.equal(explained_number(some, against), chosen(some) - some[:, 5])
    alone = some[:, :1]
    assert torch.equal(explained_number(alone, choose_class(alone)), some[:, 0])


def test_ranks_by_hand() -> None:
    without = torch.tensor([[0.0, 3.0], [2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # less the mean: 1.5, 1, 0, 0.5 at best
    image = torch.tensor([[1.0, -1.0]])
    assert p_of(image, choose_class(image, 0), without).item() == pytest.approx((1 + 2) / 5)
    without = torch.tensor([[4.0, 1.0, 1.0], [1.0, 1.0, 4.0], [4.0, 3.0, -1.0], [4.0, 1.0, 1.0]])  # the mean is 2
    image = torch.tensor([[6.0, 0.0, 3.0]])  # the mean is 3
    for target, contrast, above, itself in (
        (0, None, 0, 0),  # 3, the highest; the highest are 2, 2, 2, 2
        (2, None, 2, 1),  # 0, the second; itself -1, 2, -3, -1, the second -1, -1, 1, -1
        (1, None, 4, 4),  # -3, the third; itself -1, -1, 1, -1
        (
            2,
            1,
            2,
            1,
        ),  # as class 2 alone: two are higher; 3 more than 1: itself 0, 3, -4, 0 more, by rank 0, 0, 4, 0
        (0, 2, 4, 3),  # 3, the highest: none; 3 more than class 2: itself 3, -3, 5, 3 more, by rank 3, 3, 1, 3
    ):
        chosen = choose_class(image, target if contrast is None else (target, contrast))
        assert p_of(image, chosen, without).item() == pytest.approx((1 + above) / 5)
        assert chosen.as_high_itself(image, without, None).sum() == itself


@pytest.mark.parametrize("kind", ["top", "second", "fixed", "rather", "function"])
def test_without_evidence_p_is_uniform(kind: str) -> None:
    """Images like the composites: p <= 0.05 in 5 % of cases, also where the class was chosen as the highest.

    For a class that was given, is another than the highest, or is held against one, it is rarer: the rule is careful.
    """
    fractions = []
    for seed in range(60):
        without, some = logits(99, 2 * seed), logits(50, 2 * seed + 1)
        target = {
            "top": None,
            "second": some.argsort(dim=1, descending=True)[:, 1],
            "fixed": 3,
            "rather": (some[:, 1:].argmax(dim=1) + 1, 0),
            "function": lambda rows: rows[:, 0] * rows[:, 1],
        }[kind]
        if kind == "rather":  # ask only where the chosen class is the highest of all, as a person would
            some = some[some.argmax(dim=1) > 0]
            target = (some.argmax(dim=1), 0)
            without = torch.cat([without, logits(400, 9000 + seed)])
            without = without[without.argmax(dim=1) > 0][:99]
        fractions.append(p_of(some, choose_target(some, target), without))
    p = torch.cat(fractions)
    for limit in (0.05, 0.2, 0.5):
        found = float((p <= limit).double().mean())
        assert found <= limit + 0.02
        assert kind in ("fixed", "second", "rather") or found >= limit - 0.02 - 0.1 * limit


def test_a_class_chosen_as_the_highest_against_its_own_numbers_would_be_wrong() -> None:
    """The planted fault: compared with the same class of the composites, one image in three has 'evidence'."""
    without, some = logits(999, 0), logits(2000, 1)
    top = some.argmax(dim=1)
    chosen = choose_class(some, top)
    theirs = explained_number(without[:, None].expand(-1, 2000, -1), chosen)
    wrong = (1 + (theirs >= explained_number(some, chosen)).sum(dim=0)) / 1000
    assert float((wrong <= 0.05).double().mean()) > 0.15
    right = p_of(some, chosen, without)
    assert float((right <= 0.05).double().mean()) < 0.08


def test_composites_are_drawn_by_the_seed_alone() -> None:
    network, background = make_network(PLAIN), make_images(PLAIN, 6, seed=5)
    first = composites_of(network, background, 0, range(150))
    assert first.shape == (150, PLAIN.classes)
    assert torch.equal(first, composites_of(network, background.clone(), 0, range(150)))
    assert not torch.equal(first, composites_of(network, background, 1, range(150)))
    assert len(first.unique(dim=0)) == 150  # chunks do not repeat each other
    apart = [composites_of(network, background, 0, numbers) for numbers in (range(99), range(99, 150))]
    assert len(torch.cat(apart).unique(dim=0)) == 150  # nor do rounds


@pytest.mark.parametrize("distinct", [10, 20, 64])
def test_few_background_images_are_allowed_for(distinct: int) -> None:
    """A network that adds up patches, images of new patches: without the correction p is too small too often."""
    random, corrected, plain = torch.Generator().manual_seed(0), [], []
    for _ in range(150):
        background = torch.randn(distinct, 40, CLASSES, generator=random, dtype=torch.float64)  # of 40 positions
        picked = torch.randint(distinct, (999, 40), generator=random)
        without = background[picked, torch.arange(40)].sum(dim=1)
        new = torch.randn(30, 40, CLASSES, generator=random, dtype=torch.float64).sum(dim=1)
        chosen = choose_class(new)
        corrected.append(p_of(new, chosen, without, distinct))
        plain.append(p_of(new, chosen, without))
    fractions = [float((torch.cat(found) <= 0.05).double().mean()) for found in (corrected, plain)]
    assert abs(fractions[0] - 0.05) <= 0.02
    assert fractions[1] > fractions[0] + (0.01 if distinct < 20 else 0.0)


def urn(above: int, asked: int, drawn: int) -> list[Fraction]:
    """Chances of 0, 1, ... more that are as high among `drawn`, where `above` of `asked` were, and any fraction is as
    likely as any other: so it is where image and surrogates are exchangeable (Polya's urn)."""

    def beta(one: int, other: int) -> Fraction:
        return Fraction(math.factorial(one) * math.factorial(other), math.factorial(one + other + 1))

    whole = beta(above, asked - above)
    return [
        math.comb(drawn, more) * beta(above + more, asked + drawn - above - more) / whole for more in range(drawn + 1)
    ]


def test_asking_in_rounds_lets_hardly_more_pass_than_the_limit() -> None:
    """Exactly, in whole fractions: of images like their surrogates 5.1 % pass, however many rounds it takes."""
    open_, passed, asked = {0: Fraction(1)}, Fraction(0), 0
    for round_, count in enumerate(SURROGATES):
        chances: dict[int, Fraction] = {}
        for above, chance in open_.items():
            for more, fraction in enumerate(urn(above, asked, count - asked)):
                chances[above + more] = chances.get(above + more, Fraction(0)) + chance * fraction
        asked = count
        done = {above for above in chances if is_decided(above, round_)}
        for above in done:
            rare = Fraction(1 + above, 1 + count) <= Fraction(EVIDENCE).limit_denominator(1000)
            assert rare == (above <= RARE[round_]), "who is told that p is so much is told the same by the rule"
            passed += chances[above] if rare else 0
        open_ = {above: chance for above, chance in chances.items() if above not in done}
    assert not open_, "the last round is the end of it"
    assert Fraction(49, 1000) < passed <= Fraction(51, 1000)


def test_clear_cases_do_not_hang_on_the_draw() -> None:
    """A fraction of 1 % among surrogates passes nearly always, one of 15 % next to never; and both soon."""
    for fraction, least, most, rounds in ((0.002, 0.999, 1.0, 40), (0.01, 0.99, 1.0, 80), (0.15, 0.0, 0.011, 50)):
        open_, passed, asked, taken = {0: 1.0}, 0.0, 0, 0.0
        for round_, count in enumerate(SURROGATES):
            taken += (count - asked) * sum(open_.values())
            step = stats.binom.pmf(np.arange(count - asked + 1), count - asked, fraction)
            chances: dict[int, float] = {}
            for above, chance in open_.items():
                for more, each in enumerate(step):
                    chances[above + more] = chances.get(above + more, 0.0) + chance * each
            asked = count
            passed += sum(chance for above, chance in chances.items() if above <= RARE[round_])
            open_ = {above: chance for above, chance in chances.items() if not is_decided(above, round_)}
        assert least <= passed <= most, fraction
        assert taken <= rounds, fraction


SMOOTH = ViTConfig.from_dict({**vars(PLAIN), "image_size": 32, "patch_size": 4, "width": 32, "channels": 3})


def smooth_images(count: int, seed: int) -> Tensor:
    """Like photographs in what matters here: each of its own brightness, and smooth, with a little noise."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.randn((count, 3, 2, 2), generator=random)
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bicubic")
    level = torch.randn((count, 3, 1, 1), generator=random)
    return smooth + 2 * level + 0.02 * torch.randn((count, 3, 32, 32), generator=random)


def test_networks_that_learnt_nothing_find_little_even_in_photographs() -> None:
    """The planted fault is the old rule: among composites alone, a smooth image is exceptional for any weights."""
    background, by_rule, alone = smooth_images(64, 0), [], []
    composed = from_background(background).make(background[:1], (4, 4), 64, 0)[
        :, 0
    ]  # patches of many images, each at its place
    for seed in range(12):
        network = scramble(make_network(SMOOTH), seed)
        images = smooth_images(10, 100 + seed)
        with torch.no_grad():
            found = network(images)
        chosen = choose_target(found, None)
        by_rule.append(evidence_among(network, images, chosen, composed, seed).p)
        without = composites_of(network, composed, seed, range(199))
        alone.append(p_of(found, chosen, without, 64))
    fractions = [float((torch.cat(p) <= EVIDENCE).double().mean()) for p in (by_rule, alone)]
    assert fractions[0] <= 0.10
    assert fractions[1] >= 0.15


def test_an_image_is_tested_alike_in_every_batch_and_the_smaller_answer_does_not_count() -> None:
    network, background = make_network(SMOOTH), smooth_images(20, 0)
    images = smooth_images(6, 1)
    with torch.no_grad():
        chosen = choose_target(network(images), None)
    together = evidence_among(network, images, chosen, background)
    for image in range(6):
        one = slice(image, image + 1)
        alone = evidence_among(network, images[one], chosen.select(one), background)
        assert float(alone.p) == float(together.p[image])
        assert (int(alone.composites), int(alone.surrogates)) == (
            int(together.composites[image]),
            int(together.surrogates[image]),
        )
    assert set(together.composites.tolist()) == {COMPOSITES}
    assert set(together.surrogates.tolist()) <= {0, *SURROGATES}
    assert ((together.surrogates > 0) | (together.p > EVIDENCE)).all()


def test_labels_of_an_image_share_its_surrogates_and_no_other_s() -> None:
    """Images that are asked for several labels, in any order, are answered as each label of each image alone."""
    network, some = make_network(SMOOTH), smooth_images(4, 1)
    images, labels = some[[0, 1, 0, 2, 1, 3, 0, 2]], [0, 3, 1, 2, 0, 1, 3, 1]
    codec = MultiLabels(tuple("abcd"), rates=(0.5,) * 4)  # any effect will do
    without = torch.full((COMPOSITES, 4), -50.0)

    def answered(rows: list[int]) -> list[tuple[float, int, int]]:
        logits = compute_logits(network, len(rows), images[rows].__getitem__, 4)
        chosen = codec.choose(logits, [labels[row] for row in rows])
        masked = MaskedImages(network, images[rows], chosen, logits, own_patches(), 0)
        found = find_evidence(masked, without, COMPOSITES)
        return list(zip(*(each.tolist() for each in (found.p, found.surrogates, found.reached)), strict=True))

    alone = [answered([row])[0] for row in range(len(labels))]
    assert answered([*range(len(labels))]) == alone
    assert len({*alone}) >= 5, "they differ, so that one cannot stand for another"


def test_effects_by_hand() -> None:
    """Log-odds of a class against all others, less those of the middle image without evidence."""
    without = torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]], dtype=torch.float64).log() + 3.0
    images = torch.tensor([[0.9, 0.06, 0.04], [0.25, 0.25, 0.5]], dtype=torch.float64).log()
    odds = torch.tensor([0.9 / 0.1, 0.25 / 0.75], dtype=torch.float64)
    found = choose_class(images, [0, 1]).effect(images, without)
    assert (found - (odds / torch.tensor([0.2 / 0.8, 0.2 / 0.8])).log()).abs().max() <= 1e-12
    contrast = choose_class(images, ([0, 1], [1, 2])).effect(images, without)
    assert torch.equal(contrast, found)  # it asks for evidence for the one class, too
    assert of_function(images, lambda rows: rows[:, 0]).effect(images, without).isnan().all()
    sure = torch.tensor([[400.0, 0.0, 0.0]])
    assert float(choose_class(sure, 0).effect(sure, without)) < 40  # no infinity
    assert choose_class(sure, 0).effect(sure * torch.nan, without).isnan().all()


def test_the_effect_of_a_similarity_is_the_rise_of_its_cosine() -> None:
    """Of a network whose features all lie in a narrow cone, as half a shuffled one's do, it is small for any image."""
    other = torch.tensor([0.0, 1.0, 0.0])
    without = torch.tensor([[1.0, 0.0, 0.0], [3.0, 4.0, 0.0], [0.0, 1.0, 1.0]])  # cosines 0, 0.8, 0.7071
    chosen = similarity(5 * other)
    found = chosen.effect(torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, -1.0]]), without)
    assert (found - torch.tensor([1 - 0.5**0.5, -(0.5**0.5)], dtype=torch.float64)).abs().max() <= 1e-7
    assert (chosen.least, chosen.unit) == (LEAST_RISE, "cosine")
    cone = torch.tensor([1.0, 1.0, 1.0])
    narrow = similarity(cone + 0.3 * other).effect(cone + 0.3 * torch.eye(3)[:2], cone[None])
    assert (narrow < LEAST_RISE / 10).all()


def test_the_minimum_effect_is_the_log_of_the_number_of_classes() -> None:
    many, ten = torch.zeros(1, 1000), torch.zeros(1, 10)
    single = choose_class(torch.zeros(1, 1), 0)  # a number that stands for nothing
    for chosen, wanted in (
        (choose_class(many, 0), (math.log(1000), "nats")),
        (single, (None, None)),
        (choose_class(ten, (0, 1)), (math.log(10), "nats")),
        (of_function(ten, lambda rows: rows[:, 0]), (None, None)),
    ):
        assert (chosen.least, chosen.unit) == wanted
    effects, least = torch.tensor([0.0, 2.0, torch.nan, torch.nan, 2.0]), torch.tensor([2.0, 2.0, 2.0, torch.nan, 3.0])
    assert large_enough(effects, least).tolist() == [False, True, False, True, False]


def test_a_trifle_that_never_fails_is_no_evidence() -> None:
    """Logits times 0.02 keep every rank, and move the odds by next to nothing."""
    model, some = load_planted("class-0"), known("class-0", 3, seed=5)
    faint = copy.deepcopy(model.network)
    with torch.no_grad():
        faint.head.weight.mul_(0.02)
        faint.head.bias.mul_(0.02)
        chosen = choose_target(model.network(some.images), None)
    as_is, weak = (
        evidence_among(each, some.images, chosen, model.background_images) for each in (model.network, faint)
    )
    assert torch.equal(as_is.composites, weak.composites)
    assert int(as_is.found.sum()) >= 2
    assert (as_is.effect > 2 * math.log(10)).all()
    assert int((weak.p <= EVIDENCE).sum()) >= 2  # as rare as before
    assert not weak.found.any()
    assert (weak.surrogates == 0).all()  # and nothing more is asked


@pytest.mark.parametrize("count", [0, 1, 9])
def test_with_few_background_images_it_is_not_asked(count: int) -> None:
    network, images = make_network(SMOOTH), smooth_images(2, 0)
    background = None if count == 0 else smooth_images(count, 1)
    model = SimpleNamespace(network=network, background_images=background)
    found: Evidence = prepare(model, images, [0, 0]).evidence
    assert all(math.isnan(p) for p in found.p.tolist())
    assert found.effect.isnan().all()
    assert not found.found.any()
    assert found.composites.tolist() == found.surrogates.tolist() == [0, 0]
