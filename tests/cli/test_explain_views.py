"""What is shown of a map: both classes of a contrast in its sentence, and the probabilities that it tells of."""

import dataclasses

import pytest
import torch

from tests.cli.planted import planted_model
from vitrail.cli.explain_json import heats_json
from vitrail.cli.explain_views import views_of
from vitrail.cli.pictures import Files
from vitrail.explain import Comparison, compare
from vitrail.explain.inside import find_sinks
from vitrail.pages import ExplainedPicture, HeatView


@pytest.fixture(scope="module")
def tested() -> tuple[torch.Tensor, Comparison]:
    """A picture, and one map of it whose verdict is made one of which a sentence tells."""
    model = planted_model(references=True)
    assert model.references is not None
    images = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    found = compare(model, images, ("generic_attention",), ([6], [5]))
    (trust,) = found.trusts
    before, covered, chance = (torch.tensor([value]) for value in (0.9, 0.2, 0.8))
    told = dataclasses.replace(trust, verdict=("weak",), before=before, covered=covered, covered_random=chance)
    return images, dataclasses.replace(found, trusts=(told,))


def view_of(tested: tuple[torch.Tensor, Comparison]) -> HeatView:
    images, found = tested
    model = planted_model()
    (view,) = views_of(model.classes, found, find_sinks(model.network, images), 0)
    return view


def test_the_sentence_of_a_contrast_names_both_classes(tested: tuple[torch.Tensor, Comparison]) -> None:
    view = view_of(tested)
    assert (view.target, view.rather_than) == ("6", "5")
    assert view.trust is not None
    assert " “6” rather than “5” from 90 % to 20 %; " in view.trust.sentence
    images, found = tested
    (heat,) = found.heats
    alone = dataclasses.replace(found, heats=(dataclasses.replace(heat, rather_than=None),))
    single = view_of((images, alone))
    assert single.trust is not None
    assert " “6” from 90 % to 20 %; " in single.trust.sentence


def test_json_has_what_the_sentence_says_and_no_rank_without_signal(tested: tuple[torch.Tensor, Comparison]) -> None:
    view = view_of(tested)
    assert view.trust is not None
    silent = dataclasses.replace(view, trust=dataclasses.replace(view.trust, faithful=None))
    shown = ExplainedPicture("a", torch.zeros(32, 32, dtype=torch.uint8).numpy(), None, [], [view, silent])
    first, second = (heat["trust"] for heat in heats_json(shown, Files("sheet.png", ["a.png", "b.png"])))
    told = [first[key] for key in ("before", "covered", "covered_random")]
    assert told == pytest.approx([0.9, 0.2, 0.8])
    assert first["squares"] == view.trust.squares
    assert (first["rank"] is None, second["rank"]) == (False, None)
