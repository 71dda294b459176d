"""Methods side by side: each as it is alone, all of them on one question."""

import ast
import copy
import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail.explain.verdict
from benchmarks.scores.removal import Masking, deletion, insertion
from tests.explain.planted_lab import known, load_planted, shown
from tests.explain.reference import PLAIN, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain import METHODS, Attribution, compare, generic_attention, raw_attention, trust
from vitrail.explain.evidence import composites_of, find_evidence
from vitrail.explain.methods import methods_of
from vitrail.explain.scores.faithfulness import MaskedImages
from vitrail.explain.scores.perturb import from_background
from vitrail.explain.target import Target, choose_target
from vitrail.explain.verdict import Explainable
from vitrail.nn import ViT

pytestmark = pytest.mark.usefixtures("as_a_user")

NAMES = ("generic_attention", "rollout")


class Case(NamedTuple):
    """What can be explained, images, and where the truth lies in them."""

    model: Explainable
    images: Tensor
    masks: Tensor

    @property
    def network(self) -> ViT:
        return self.model.network


class Small(NamedTuple):
    """A network, and images whose patches fill masked ones."""

    network: ViT
    background_images: Tensor


@pytest.fixture(scope="module")
def case() -> Case:
    """A small network that learnt nothing: what does not hang on truth is asked of it."""
    masks = torch.zeros(3, 3, 5, dtype=torch.bool)
    masks[:, 1, 2] = True
    return Case(Small(make_network(PLAIN), make_images(PLAIN, 12, seed=2)), make_images(PLAIN, 3), masks)


def test_each_method_is_as_it_is_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*given: object, **more: object) -> object:
        asked.append(1)
        return find_evidence(*given, **more)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(vitrail.explain.verdict, "find_evidence", counted)
    found = compare(case.model, case.images, NAMES, masks=case.masks, seed=5, full=True)
    assert len(asked) == 1  # the evidence is the images', not the maps'
    assert found.methods == NAMES
    assert all(seconds > 0 for seconds in found.seconds)
    for name, attribution, held in zip(NAMES, found.attributions, found.trusts, strict=True):
        alone = METHODS[name].function(case.network, case.images)
        assert torch.equal(attribution.values, alone.values)
        assert torch.equal(attribution.target, alone.target)
        one = trust(case.model, case.images, alone, masks=case.masks, seed=5, full=True)
        assert held.verdict == one.verdict
        assert held.oracle is not None
        assert one.oracle is not None
        for many, few in (
            (held.oracle, one.oracle),
            (held.evidence.p, one.evidence.p),
            (held.drops.score, one.drops.score),
            (held.drops.random, one.drops.random),
            (held.drops.faithful, one.drops.faithful),
            (held.drops.masked, one.drops.masked),
        ):
            assert torch.allclose(many, few, rtol=0, atol=0, equal_nan=True)


def test_a_bump_that_looks_at_nothing_is_scored_as_a_map_is(case: Case) -> None:
    """By the formula of a Gaussian, passed as if it were somebody's map; where nothing is tested, nothing is known."""
    found = compare(case.model, case.images, NAMES[:1], seed=5, full=True, bump=True)
    rows, columns = np.linspace(-2, 2, 3), np.linspace(-2, 2, 5)
    bump = np.exp(-0.5 * rows[:, None] ** 2) * np.exp(-0.5 * columns**2)
    assert bump.argmax() == 7  # the middle one of 15
    values = torch.tensor(bump, dtype=torch.float32).expand(3, -1, -1)
    alone = trust(case.model, case.images, replace(found.attributions[0], values=values), seed=5, full=True)
    assert found.bump is not None
    assert torch.allclose(found.bump, alone.drops.score, rtol=0, atol=1e-6)
    assert found.bump.isfinite().all()
    short = compare(case.model, case.images, NAMES[:1], seed=5, bump=True)
    assert short.bump is not None
    assert torch.equal(short.bump.isnan(), short.trusts[0].drops.score.isnan())
    assert compare(case.model, case.images, NAMES[:1], seed=5).bump is None


def test_all_methods_explain_one_class(case: Case) -> None:
    """Also where two classes are level, so that rounding decides which of them is the first."""
    network = make_network(PLAIN)
    with torch.no_grad():
        network.head.weight[1:] = network.head.weight[:1]
        network.head.bias.fill_(0.0)
    level = Small(network, case.model.background_images)
    found = compare(level, case.images, scored=False)
    assert all(torch.equal(attribution.target, found.attributions[0].target) for attribution in found.attributions)
    assert found.trusts == ()


def test_all_maps_on_one_scale(case: Case) -> None:
    found = compare(case.model, case.images, NAMES, scored=False)
    even, one, empty = (torch.zeros_like(found.attributions[0].values) for _ in range(3))
    even += 7.0
    one[:, 2, 3] = -5.0
    attributions = tuple(replace(found.attributions[0], values=values) for values in (even, one, empty))
    fractions = replace(found, attributions=attributions).fractions()
    assert (fractions[0] - 1 / 15).abs().max() <= 1e-7
    assert torch.equal(fractions[1], one / 5)
    assert torch.equal(fractions[2], empty)
    assert (found.fractions().abs().sum(dim=(2, 3)) - 1).abs().max() <= 1e-5


def test_which_methods_are_taken(case: Case) -> None:
    quick = compare(case.model, case.images[:1], scored=False).methods
    assert quick == tuple(name for name in METHODS if name not in ("rise", "kernel_shap", "conservative"))
    assert methods_of(["all"], False, 16) == methods_of(("all",), False, 16) == methods_of("all", False, 16)
    rather = compare(case.model, case.images[:1], "all", (3, 1), scored=False)
    assert rather.methods == tuple(name for name in quick if METHODS[name].class_specific)
    assert all(attribution.contrast is not None for attribution in rather.attributions)


def test_usually_four_of_different_kinds_are_taken() -> None:
    """Those that can answer: one class rather than another, a network without tokens, and images of many patches."""
    for patches, contrast, tokens in itertools.product((196, 400), (False, True), (True, False)):
        (named, told), (every, _) = (methods_of(each, contrast, patches, tokens) for each in ("usual", "all"))
        assert len({each.name for each in named}) == 4
        assert all(each in every for each in named)
        assert told[0].split()[:3] == ["4", "of", str(len(METHODS))]
    usual = [each.name for each in methods_of(["usual"], False, 196)[0]]
    assert usual == ["generic_attention", "rollout", "attcat", "saliency"]
    assert sum(float(METHODS[name].cost) for name in usual) <= 10


def test_a_function_of_the_logits(case: Case) -> None:
    def third(logits: Tensor) -> Tensor:
        return logits[:, 3]

    found = compare(case.model, case.images[:1], ["saliency", "conservative"], third)
    assert all(held.before.isnan().all() for held in found.trusts)
    assert len(found.trusts) == 2


def test_what_cannot_be_compared_is_refused(case: Case) -> None:
    with must_refuse("'generic_atention'") as caught:
        compare(case.model, case.images, ["generic_atention"])
    assert ast.literal_eval(str(caught.value).rpartition("try: methods=")[2]) in METHODS
    with must_refuse():
        compare(case.model, case.images, [])
    with must_refuse("rollout"):  # it cannot hold one class against another
        compare(case.model, case.images, ["rollout"], (3, 1))
    with must_refuse("eval mode"):
        compare(Small(make_network(PLAIN).train(), case.model.background_images), case.images)


@torch.no_grad()
def test_deletion_and_insertion_by_hand() -> None:
    """Of an image with evidence and one without: each point by passes of its own; without --full of the first only."""
    model, images = load_planted("mean-0"), shown("mean-0", 16, seed=4).images
    both = [1, 0]
    tested = compare(model, images[both], ["conservative", "raw_attention"], seed=3)
    found = compare(model, images[both], ["conservative", "raw_attention"], seed=3, full=True)
    assert tested.trusts[0].drops.random_maps.bool().tolist() == [True, False]
    for short, full in zip(tested.trusts, found.trusts, strict=True):
        for one, other in zip(short.drops.areas, full.drops.areas, strict=True):
            assert one[1].isnan()
            torch.testing.assert_close(one[0], other[0])
    fill = from_background(model.background_images)
    composites = composites_of(model.network, model.background_images, 3).softmax(dim=1)
    for (attribution, held), row in itertools.product(zip(found.attributions, found.trusts, strict=True), (0, 1)):
        areas, image = held.drops.areas, images[both[row]]
        target = int(attribution.target[row])

        def chance(hidden: Tensor, filled: Tensor, image: Tensor = image, target: int = target) -> float:
            side = image.shape[1] // 8
            pixels = hidden.view(8, 8).repeat_interleave(side, 0).repeat_interleave(side, 1)
            return float(model.network(torch.where(pixels, filled, image)[None]).softmax(dim=1)[0, target])

        logits = model.network(image[None])
        chosen = choose_target(logits, attribution.target[row, None])
        masked = MaskedImages(model.network, image[None], chosen, logits, fill, 3)
        values = attribution.values[row]
        fills = masked.fills[:, 0]
        order = values.flatten().argsort(descending=True)  # on the lab no two patches are equal
        rank = order.argsort()
        ends = chance(rank < 0, fills[0]), float(composites[:, target].mean())
        deleted = [np.mean([chance(rank < step, one) for one in fills]) for step in (2, 4, 8, 16, 32)]
        inserted = [chance(rank >= 8 * (index + 1), fills[index % 5]) for index in range(7)]
        assert float(areas.deletion[row]) == pytest.approx(
            np.trapezoid([ends[0], *deleted, ends[1]], [0, 2 / 64, 4 / 64, 8 / 64, 16 / 64, 32 / 64, 1]), abs=1e-5
        )
        assert float(areas.insertion[row]) == pytest.approx(
            np.trapezoid([ends[1], *inserted, ends[0]], np.linspace(0, 1, 9)), abs=1e-5
        )


@pytest.mark.soak
def test_deletion_and_insertion_are_near_those_of_every_patch_and_many_fills() -> None:
    """In the mean over images: nothing else is promised of so few passes (benchmarks/LOG.md has the spread)."""
    model, some = load_planted("mean-0"), known("mean-0", 12, seed=4)
    found = compare(model, some.images, ["conservative", "raw_attention"], seed=3, full=True)
    target, masking = found.attributions[0].target, Masking(from_background(model.background_images), draws=4)
    assert found.random_areas is not None
    for attribution, held in zip(found.attributions, found.trusts, strict=True):
        areas = held.drops.areas
        for score, few in ((deletion, areas.deletion), (insertion, areas.insertion)):
            whole = score(model.network, some.images, attribution.values, target, masking).score
            assert abs(float((few - whole).mean())) <= 0.1
    even = torch.rand(found.attributions[0].values.shape, generator=torch.Generator().manual_seed(0))
    for score, few in ((deletion, found.random_areas.deletion), (insertion, found.random_areas.insertion)):
        whole = score(model.network, some.images, even, target, masking).score
        assert abs(float((few - whole).mean())) <= 0.1
    assert found.trusts[0].drops.areas.deletion.mean() < found.random_areas.deletion.mean() - 0.1
    assert found.trusts[0].drops.areas.insertion.mean() > found.random_areas.insertion.mean() + 0.1


def test_what_a_verdict_and_a_comparison_cost() -> None:
    """Images that go through the network, but for composites (499, once for a network) and what methods take."""
    model, some = load_planted("class-0"), shown("class-0", 40, seed=4).images
    clear, close, lacking = 0, 24, 1  # of the second exactly one of 24 random maps is as good
    passes: list[int] = []

    def cost(index: int, maps: int, areas: bool = True, bump: bool = False) -> int:
        """Of so many maps of an image, which take no pass themselves; 0 is a verdict by itself."""
        image = some[index : index + 1]
        attribution = generic_attention(model.network, image)
        method = replace(METHODS["generic_attention"], function=lambda *_: attribution)
        passes.clear()
        with model.network.register_forward_pre_hook(lambda _, given: passes.append(len(given[0]))):
            if not maps:
                told = trust(model, image, attribution).passes.tolist()
                assert told == [sum(passes)] or sum(passes) == 1 + 499
            else:
                methods = [replace(method, name=f"map {number}") for number in range(maps)]
                compare(model, image, methods, areas=areas, bump=bump)
        return sum(passes)

    assert cost(lacking, 0) in (1 + 499, 1)  # composites are kept from here on
    assert cost(clear, 0) == 1 + 29 + 25 + 120 <= 190
    assert cost(clear, 1, areas=False) == 1 + 29 + 25 + 120
    assert cost(clear, 1) == 1 + 29 + 159 <= 190
    assert cost(clear, 3) == cost(clear, 1) + 2 * 159
    assert cost(clear, 3, bump=True) == cost(clear, 3) + 25
    assert cost(close, 0) == cost(clear, 0) + 5 * 25
    assert cost(lacking, 0) == 1 <= 40
    assert cost(lacking, 2) == cost(lacking, 1) == 1


def test_areas_are_left_out_where_they_are_not_wanted(case: Case) -> None:
    assert compare(case.model, case.images, ["saliency"], areas=False).random_areas is None


def test_deletion_and_insertion_of_a_function_and_of_a_contrast(case: Case) -> None:
    contrast = compare(case.model, case.images[:1], ["conservative"], (3, 1), full=True)
    assert 0 <= float(contrast.trusts[0].drops.areas.deletion) <= 1
    function = compare(case.model, case.images[:1], ["conservative"], lambda logits: 100 + logits[:, 3], full=True)
    assert float(function.trusts[0].drops.areas.deletion) > 50  # the function's own numbers


def test_one_that_has_to_be_named_is_left_out(case: Case) -> None:
    assert METHODS["conservative"].opt_in
    assert "conservative" not in compare(case.model, case.images[:1], scored=False).methods


def test_a_method_of_ones_own(case: Case) -> None:
    """Here one of the table with an option, under another name."""

    def of_first_layer(network: ViT, images: Tensor, target: Target = None) -> Attribution:
        return replace(raw_attention(network, images, target, layer=0), size=None)

    first = replace(METHODS["raw_attention"], name="first layer", function=of_first_layer)
    found = compare(case.model, case.images, ["raw_attention", first])
    assert found.methods == ("raw_attention", "first layer")
    assert torch.equal(found.attributions[1].values, raw_attention(case.network, case.images, layer=0).values)
    assert {each.size for each in found.attributions} == {tuple(case.images.shape[2:])}
    assert len(found.trusts) == 2


def test_a_name_twice_is_one_method(case: Case) -> None:
    twice = compare(case.model, case.images[:1], ["rollout", "rollout"], scored=False)
    assert twice.methods == compare(case.model, case.images[:1], "rollout", scored=False).methods == ("rollout",)


def test_sinks_are_named_in_the_notes() -> None:
    """On the lab: one token is made thirty times as long by a planted position."""
    model = load_planted("mean-0")
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        network.pos_embed[:, network.config.prefix + 5] *= 30
    found = compare(replace(model, network=network), shown("mean-0", 2, seed=4).images, ["rollout"], scored=False)
    assert all(any("row 1 column 6" in note for note in notes) for notes in found.attributions[0].notes)
