"""Methods side by side: each as it is alone, all of them on one question."""

import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import vitrail.explain.trial
from tests.explain.planted_lab import load_planted
from vitrail.data.readers.planted import planted_digits
from vitrail.errors import UsageError
from vitrail.explain import METHODS, compare, raw_attention, trust
from vitrail.explain.evidence import find_evidence
from vitrail.explain.scores.covering_by_rank import Covering
from vitrail.explain.scores.fill import donor
from vitrail.explain.scores.removal import deletion, insertion
from vitrail.model import Model

NAMES = ("generic_attention", "rollout", "conservative")


class Case(NamedTuple):
    """A model, pictures and where their digits are."""

    model: Model
    images: Tensor
    masks: Tensor


@pytest.fixture(scope="module")
def case() -> Case:
    model, made = load_planted("mean-0"), planted_digits("test", 3, seed=4)
    masks = torch.from_numpy(made.masks(model.network.config.patch))[:, 0]
    return Case(model, model.preprocessing.normalise(torch.from_numpy(made.pixels)[:, None]), masks)


def test_each_method_is_as_it_is_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*given: object) -> object:
        asked.append(1)
        return find_evidence(*given)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(vitrail.explain.trial, "find_evidence", counted)
    found = compare(case.model, case.images, NAMES, masks=case.masks, seed=5)
    assert len(asked) == 1  # the evidence is the pictures', not the maps'
    assert found.methods == NAMES
    assert all(seconds > 0 for seconds in found.seconds)
    for name, heat, held in zip(NAMES, found.heats, found.trusts, strict=True):
        alone = METHODS[name].function(case.model.network, case.images)
        assert torch.equal(heat.values, alone.values)
        assert torch.equal(heat.target, alone.target)
        one = trust(case.model, case.images, alone, masks=case.masks, seed=5)
        assert held.verdict == one.verdict
        for field in ("score", "paired", "random", "oracle", "evidence", "faithful", "covered"):
            assert torch.equal(getattr(held, field), getattr(one, field)), field


def test_all_methods_explain_one_class(case: Case) -> None:
    """Also where two classes are level, so that rounding decides which of them is the first."""
    network = copy.deepcopy(case.model.network)
    with torch.no_grad():
        network.head.weight[1:] = network.head.weight[:1]
        network.head.bias.fill_(0.0)
    level = replace(case.model, network=network)
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
    assert (shares[0] - 1 / 64).abs().max() <= 1e-7
    assert torch.equal(shares[1], one / 5)
    assert torch.equal(shares[2], empty)
    assert (found.shares().abs().sum(dim=(2, 3)) - 1).abs().max() <= 1e-5


def test_which_methods_are_taken(case: Case) -> None:
    quick = compare(case.model, case.images[:1], scored=False).methods
    assert quick == tuple(name for name in METHODS if name not in ("rise", "kernel_shap", "conservative"))
    rather = compare(case.model, case.images[:1], None, (3, 5), scored=False)
    assert rather.methods == tuple(name for name in quick if METHODS[name].class_specific)
    assert all(heat.rather_than is not None for heat in rather.heats)


def test_a_function_of_the_logits(case: Case) -> None:
    def third(logits: Tensor) -> Tensor:
        return logits[:, 3]

    found = compare(case.model, case.images[:1], ["saliency", "conservative"], third)
    assert all(held.before.isnan().all() for held in found.trusts)
    assert len(found.trusts) == 2


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        (["generic_atention"], r"unknown method 'generic_atention', there are .*\ntry: 'generic_attention'"),
        ([], r"there is no method to compare\ntry: methods=None"),
    ],
)
def test_methods_that_are_not_there(case: Case, methods: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compare(case.model, case.images, methods)


def test_a_method_that_knows_no_class_cannot_hold_one_against_another(case: Case) -> None:
    with pytest.raises(UsageError, match="rollout"):
        compare(case.model, case.images, ["rollout"], (3, 5))


def test_a_network_in_training_mode(case: Case) -> None:
    network = copy.deepcopy(case.model.network).train()
    with pytest.raises(UsageError, match="eval mode"):
        compare(replace(case.model, network=network), case.images)


def test_deletion_and_insertion_stand_beside_a_random_order(case: Case) -> None:
    """Against the same curves drawn by hand, with the covers that the score itself draws."""
    found = compare(case.model, case.images, ["conservative", "saliency"], seed=3)
    assert found.random_areas is not None
    fill, target = donor(case.model.donors), found.heats[0].target
    for heat, areas in zip(found.heats, found.areas, strict=True):
        covering = Covering(fill, draws=3, seed=3)
        whole = deletion(case.model.network, case.images, heat.values, target, covering)
        shown = insertion(case.model.network, case.images, heat.values, target, covering)
        assert (areas.deletion - whole.score).abs().max() <= 0.08  # ten steps in place of one for each of 64 squares
        assert (areas.insertion - shown.score).abs().max() <= 0.08
    assert found.areas[0].deletion.mean() < found.random_areas.deletion.mean() - 0.1
    assert found.areas[0].insertion.mean() > found.random_areas.insertion.mean() + 0.1
    assert compare(case.model, case.images, ["saliency"], areas=False).random_areas is None


def test_deletion_and_insertion_of_a_function_and_of_a_contrast(case: Case) -> None:
    contrast = compare(case.model, case.images[:1], ["conservative"], (3, 5))
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
    assert torch.equal(found.heats[1].values, raw_attention(case.model.network, case.images, layer=0).values)
    assert len(found.trusts) == len(found.areas) == 2


def test_a_name_in_place_of_a_list_and_a_name_twice(case: Case) -> None:
    with pytest.raises(UsageError, match=r"methods is a list of names, got the text 'rollout'\ntry: \['rollout'\]"):
        compare(case.model, case.images, "rollout")
    twice = compare(case.model, case.images[:1], ["rollout", "rollout"], scored=False)
    assert twice.methods == ("rollout",)


def test_sinks_are_named_in_the_notes(case: Case) -> None:
    """One token is made three times as long by a planted position."""
    network = copy.deepcopy(case.model.network)
    with torch.no_grad():
        network.pos_embed[:, network.config.prefix + 5] *= 30
    found = compare(replace(case.model, network=network), case.images, ["rollout"], scored=False)
    assert all(any("row 1 column 6" in note for note in notes) for notes in found.heats[0].notes)
