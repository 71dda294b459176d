"""Maps that are optimised against the very score of the verdict, with all that decides it known.

`benchmarks/optimised_maps.py` makes them and counts; benchmarks/explain.md has the rates of a thousand images.
"""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.optimised_maps import (
    ATTACKS,
    UNSEEN,
    VISIBLE,
    Attacked,
    at_random,
    climbed,
    measure,
    order_of,
    ordered,
    rerolled,
)
from benchmarks.planted_networks import PLACE
from benchmarks.trust_power import shuffled_weights
from tests.explain.planted_lab import Shown, known, load_planted, shown
from vitrail.explain.faithfulness import prepare
from vitrail.explain.falls import MaskedImages
from vitrail.explain.scores.fill import keys_of, stream
from vitrail.explain.target import choose_target
from vitrail.explain.verdict import FAITHFUL
from vitrail.model import Model
from vitrail.nn.twin import wide

pytestmark = pytest.mark.usefixtures("as_a_user")

FEW = 3


def attacked(model: Model, some: Shown, seed: int, allowed: Tensor | None = None) -> Attacked:
    """All images are tested, with evidence or without."""
    chosen = choose_target(wide(model.network(some.images).detach()), None)
    test = prepare(model, some.images, chosen, seed=seed, full=True)
    every = torch.ones(len(some.images), *model.network.grid(some.images), dtype=torch.bool)
    return Attacked(test, every if allowed is None else allowed)


def test_without_evidence_a_map_can_be_made_faithful_and_is_not_supported() -> None:
    """What a network says of nothing falls, too, when the patches that it hangs on are masked; evidence decides."""
    model, some = load_planted("mean-0"), shown("mean-0", FEW, "empty")
    values = ordered(attacked(model, some, VISIBLE))
    one = attacked(model, some, UNSEEN)
    assert set(one.evaluate(values, one.test.evidence.found).verdict) == {"cannot tell"}
    found = replace(one.test.evidence, p=torch.full((FEW,), 0.01), effect=torch.full((FEW,), 9.0))
    fault = one._replace(test=replace(one.test, evidence=found))
    held = fault.evaluate(values)
    assert int((held.faithful <= FAITHFUL).sum()) >= FEW - 1
    assert held.verdict.count("supported") >= FEW - 1, "nothing else keeps such a map from it"


def test_maps_that_avoid_the_evidence_are_not_faithful_however_they_are_made() -> None:
    """Of the 60 patches without the digit those that matter most; the digit's own patches make them faithful."""
    model, some = load_planted("mean-0"), known("mean-0", FEW)
    truth = some.masks[:, 0]
    away = attacked(model, some, VISIBLE, ~truth)
    values = ordered(away)
    assert not (away.masked.masks(values[None])[:, 0] & truth).any(), "no step masks a patch of the digit"
    again = rerolled(away, values, 1, stream(0, "attacks"))
    for one in (values, again):
        assert not (away.evaluate(one).faithful <= FAITHFUL).any()
    held = away.evaluate(torch.where(truth, values.amax() + 1, values))
    assert held.verdict.count("supported") >= FEW - 1


def test_rolling_again_changes_fills_and_no_mask() -> None:
    model, some = load_planted("mean-0"), shown("mean-0", FEW, "empty")
    one = attacked(model, some, VISIBLE)
    values = at_random(one, stream(1, "attacks"))
    again = rerolled(one, values, 1, stream(2, "attacks"))
    assert torch.equal(one.masked.masks(values[None]), one.masked.masks(again[None]))
    assert not torch.equal(order_of(values), order_of(again))
    assert not torch.equal(one.masked.fills(values), one.masked.fills(again))


def test_fills_that_stay_when_the_order_changes_are_easier_to_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a map draws its fills anew, so that what was gained under others is lost; kept ones are learnt."""
    trained, some = load_planted("class-0"), shown("class-0", FEW, "empty")
    model = replace(trained, network=shuffled_weights(trained.network, 1))

    def gained() -> float:
        one = attacked(model, some, VISIBLE)
        start = at_random(one, stream(3, "attacks"))
        made = climbed(one, start, 40, stream(4, "attacks"))
        return float((one.fall(made) - one.fall(start)).mean())

    as_it_is = gained()
    monkeypatch.setattr(MaskedImages, "keys", lambda self, values: keys_of(self.images))
    assert gained() > 1.3 * as_it_is > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("condition", ["empty", "shuffled", "drawn anew"])
def test_optimised_maps_are_supported_in_at_most_a_twentieth_of_images_without_evidence(condition: str) -> None:
    given = Namespace(count=300, first=12, evaluations=60, tries=3, seed=47, place=PLACE)
    evidence, n, rows = measure(condition, given)
    assert n >= 300
    assert tuple(rows) == ATTACKS
    for seed in (VISIBLE, UNSEEN):
        assert evidence[seed] <= 0.05 * n
        for row in rows.values():
            assert row.words[seed]["supported"] + row.words[seed]["supported, tiny"] <= evidence[seed]
