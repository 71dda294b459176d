"""Methods side by side: each as it is alone, all of them on one question."""

import ast
import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import vitrail.explain.trial
from tests.explain.planted_lab import load_planted, shown
from tests.explain.reference import PLAIN, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain import METHODS, compare, raw_attention, trust
from vitrail.explain.evidence import find_evidence
from vitrail.explain.scores.fill import donor
from vitrail.explain.scores.removal import Covering, deletion, insertion
from vitrail.explain.trial import Explainable
from vitrail.nn import ViT

pytestmark = pytest.mark.usefixtures("as_a_user")

NAMES = ("generic_attention", "rollout")


class Case(NamedTuple):
    """What can be explained, pictures, and where the truth lies in them."""

    model: Explainable
    images: Tensor
    masks: Tensor

    @property
    def network(self) -> ViT:
        return self.model.network


class Small(NamedTuple):
    """A network, and pictures that lend their patches."""

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

    monkeypatch.setattr(vitrail.explain.trial, "find_evidence", counted)
    found = compare(case.model, case.images, NAMES, masks=case.masks, seed=5, full=True)
    assert len(asked) == 1  # the evidence is the pictures', not the maps'
    assert found.methods == NAMES
    assert all(seconds > 0 for seconds in found.seconds)
    for name, heat, held in zip(NAMES, found.heats, found.trusts, strict=True):
        alone = METHODS[name].function(case.network, case.images)
        assert torch.equal(heat.values, alone.values)
        assert torch.equal(heat.target, alone.target)
        one = trust(case.model, case.images, alone, masks=case.masks, seed=5, full=True)
        assert held.verdict == one.verdict
        for field in ("score", "paired", "random", "oracle", "evidence", "faithful", "covered"):
            both = getattr(held, field), getattr(one, field)
            assert torch.allclose(*both, rtol=0, atol=0, equal_nan=True), field


def test_all_methods_explain_one_class(case: Case) -> None:
    """Also where two classes are level, so that rounding decides which of them is the first."""
    network = make_network(PLAIN)
    with torch.no_grad():
        network.head.weight[1:] = network.head.weight[:1]
        network.head.bias.fill_(0.0)
    level = Small(network, case.model.background_images)
    found = compare(level, case.images, scored=False)
    assert all(torch.equal(heat.target, found.heats[0].target) for heat in found.heats)
    assert found.trusts == ()


def test_all_maps_on_one_scale(case: Case) -> None:
    found = compare(case.model, case.images, NAMES, scored=False)
    even, one, empty = (torch.zeros_like(found.heats[0].values) for _ in range(3))
    even += 7.0
    one[:, 2, 3] = -5.0
    heats = tuple(replace(found.heats[0], values=values) for values in (even, one, empty))
    shares = replace(found, heats=heats).shares()
    assert (shares[0] - 1 / 15).abs().max() <= 1e-7
    assert torch.equal(shares[1], one / 5)
    assert torch.equal(shares[2], empty)
    assert (found.shares().abs().sum(dim=(2, 3)) - 1).abs().max() <= 1e-5


def test_which_methods_are_taken(case: Case) -> None:
    quick = compare(case.model, case.images[:1], scored=False).methods
    assert quick == tuple(name for name in METHODS if name not in ("rise", "kernel_shap", "conservative"))
    rather = compare(case.model, case.images[:1], None, (3, 1), scored=False)
    assert rather.methods == tuple(name for name in quick if METHODS[name].class_specific)
    assert all(heat.rather_than is not None for heat in rather.heats)


def test_a_function_of_the_logits(case: Case) -> None:
    def third(logits: Tensor) -> Tensor:
        return logits[:, 3]

    found = compare(case.model, case.images[:1], ["saliency", "conservative"], third)
    assert all(held.before.isnan().all() for held in found.trusts)
    assert len(found.trusts) == 2


def test_what_cannot_be_compared_is_refused(case: Case) -> None:
    with must_refuse("'generic_atention'") as caught:
        compare(case.model, case.images, ["generic_atention"])
    assert ast.literal_eval(caught.value.hint) in METHODS
    with must_refuse():
        compare(case.model, case.images, [])
    with must_refuse("'rollout'") as caught:
        compare(case.model, case.images, "rollout")
    assert ast.literal_eval(caught.value.hint) == ["rollout"]
    with must_refuse("rollout"):  # it cannot hold one class against another
        compare(case.model, case.images, ["rollout"], (3, 1))
    with must_refuse("eval mode"):
        compare(Small(make_network(PLAIN).train(), case.model.background_images), case.images)


def test_deletion_and_insertion_stand_beside_a_random_order() -> None:
    """On the lab, against the same curves drawn by hand, with the covers that the score itself draws."""
    model, images = load_planted("mean-0"), shown("mean-0", 2, seed=4).images
    found = compare(model, images, ["conservative"], seed=3)
    assert found.random_areas is not None
    fill, target = donor(model.background_images), found.heats[0].target
    for heat, areas in zip(found.heats, found.areas, strict=True):
        covering = Covering(fill, draws=3, seed=3)
        whole = deletion(model.network, images, heat.values, target, covering)
        shown_ = insertion(model.network, images, heat.values, target, covering)
        assert (areas.deletion - whole.score).abs().max() <= 0.08  # ten steps in place of one for each of 64 squares
        assert (areas.insertion - shown_.score).abs().max() <= 0.08
    assert found.areas[0].deletion.mean() < found.random_areas.deletion.mean() - 0.1
    assert found.areas[0].insertion.mean() > found.random_areas.insertion.mean() + 0.1


def test_areas_are_left_out_where_they_are_not_wanted(case: Case) -> None:
    assert compare(case.model, case.images, ["saliency"], areas=False).random_areas is None


def test_deletion_and_insertion_of_a_function_and_of_a_contrast(case: Case) -> None:
    contrast = compare(case.model, case.images[:1], ["conservative"], (3, 1))
    assert 0 <= float(contrast.areas[0].deletion) <= 1
    function = compare(case.model, case.images[:1], ["conservative"], lambda logits: 100 + logits[:, 3])
    assert float(function.areas[0].deletion) > 50  # the function's own numbers


def test_one_that_has_to_be_named_is_left_out(case: Case) -> None:
    assert METHODS["conservative"].opt_in
    assert "conservative" not in compare(case.model, case.images[:1], scored=False).methods


def test_a_method_of_ones_own(case: Case) -> None:
    """Here one of the table with an option, under another name."""
    first = replace(METHODS["raw_attention"], name="first layer", function=partial(raw_attention, layer=0))
    found = compare(case.model, case.images, ["raw_attention", first])
    assert found.methods == ("raw_attention", "first layer")
    assert torch.equal(found.heats[1].values, raw_attention(case.network, case.images, layer=0).values)
    assert len(found.trusts) == len(found.areas) == 2


def test_a_name_twice_is_one_method(case: Case) -> None:
    twice = compare(case.model, case.images[:1], ["rollout", "rollout"], scored=False)
    assert twice.methods == ("rollout",)


def test_sinks_are_named_in_the_notes() -> None:
    """On the lab: one token is made thirty times as long by a planted position."""
    model = load_planted("mean-0")
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        network.pos_embed[:, network.config.prefix + 5] *= 30
    found = compare(replace(model, network=network), shown("mean-0", 2, seed=4).images, ["rollout"], scored=False)
    assert all(any("row 1 column 6" in note for note in notes) for notes in found.heats[0].notes)
