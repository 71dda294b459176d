"""What is shown of a map: both classes of a contrast in its sentence, and the probabilities that it tells of."""

import dataclasses

import pytest
import torch

from tests.cli.planted import planted_model
from vitrail.explain import METHODS, Comparison, compare
from vitrail.explain.reporting.explained import views_of
from vitrail.explain.reporting.plan import ReportPlan
from vitrail.pages import AttributionView
from vitrail.pages.image_views import RENAMED
from vitrail.runs.beside import RunKnowledge


@pytest.fixture(scope="module")
def tested() -> Comparison:
    """One map of an image, whose verdict is made one of which a sentence tells."""
    model = planted_model(background=True)
    assert model.background is not None
    images = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    found = compare(model, images, ("generic_attention",), ([6], [5]), full=True)
    (trust,) = found.trusts
    before, masked, chance = (torch.tensor([value]) for value in (0.9, 0.2, 0.8))
    drops = dataclasses.replace(trust.drops, masked=masked, masked_random=chance)
    told = dataclasses.replace(trust, verdict=("weak",), before=before, drops=drops)
    return dataclasses.replace(found, trusts=(told,))


def view_of(tested: Comparison) -> AttributionView:
    model = planted_model()
    (view,) = views_of(ReportPlan(model, (METHODS["generic_attention"],), RunKnowledge(model)), tested, 0)
    return view


def test_the_sentence_of_a_contrast_names_both_classes(tested: Comparison) -> None:
    view = view_of(tested)
    assert (view.target, view.contrast) == ("6", "5")
    assert view.trust is not None
    assert all(part in view.trust.sentence for part in ("6", "5", "90 %", "20 %"))
    alone = dataclasses.replace(tested, chosen=dataclasses.replace(tested.chosen, contrast=None))
    single = view_of(alone)
    assert single.trust is not None
    assert all(part in single.trust.sentence for part in ("6", "90 %", "20 %"))
    assert "“5”" not in single.trust.sentence


def test_json_has_what_the_sentence_says_and_no_rank_without_signal(tested: Comparison) -> None:
    view = view_of(tested)
    assert view.trust is not None
    silent = dataclasses.replace(view, trust=dataclasses.replace(view.trust, faithful=None))
    first, second = (each.to_dict(file)["trust"] for each, file in ((view, "a.png"), (silent, None)))
    fractions = [first[key] for key in RENAMED.values() if "probability" in key]
    assert fractions == pytest.approx([0.9, 0.2, 0.8])
    assert first["patches"] == view.trust.patches
    assert (first["rank"] is None, second["rank"]) == (False, None)
