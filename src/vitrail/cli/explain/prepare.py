"""What a page and a job begin with alike: the model, what is asked of it, and what lends patches to its tests."""

from typing import Any

from vitrail.cli.args import Explain
from vitrail.cli.explain.asked import Asked, check_asked
from vitrail.cli.output import warn
from vitrail.data.columns import Classes
from vitrail.features.headless import headless
from vitrail.model import Model
from vitrail.pages.views import ExplainedPicture
from vitrail.tasks import ClassPrediction, FeaturePrediction, TextPrediction

OTHERS = "the other images of this call"
SHIPPED = "ten photographs that come with vitrail, since its classes are ImageNet's"


def prepared(model: Model, typed: Explain) -> tuple[Model, Asked | None, Model | None]:
    """What explains itself, what is asked of it, and the same model with its head where that is left out.

    Raises:
        VitrailError: As `check_asked`.
    """
    no_class = typed.target is None and typed.rather_than is None
    answering = None
    if typed.similar_to is not None and no_class and isinstance(model.output, Classes):
        model, answering = headless(model), model
    return model, check_asked(model, typed), answering


def borrows(model: Model, asked: Asked) -> bool:
    """Whether maps are tested, and neither the model nor what was asked has images that lend patches to that."""
    return asked.scored and asked.references is None and model.background is None


def tell_lent(model: Model, typed: Explain, found: bool) -> None:
    """Say what lends patches; `found` where there are others than those that come with vitrail."""
    if found or model.borrows_background:
        warn(f"{typed.run} carries no background: maps are tested with {lent_by(model)}; --background DIR names others")


def lent_by(model: Model) -> str:
    """What lends patches where a model carries no background, in words."""
    return f"patches of {SHIPPED if model.borrows_background else OTHERS}"


def answer_of(said: ClassPrediction | FeaturePrediction | TextPrediction, one: ExplainedPicture) -> dict[str, Any]:
    """What the model says and what is true, under the names that JSON has for it."""
    if isinstance(said, FeaturePrediction):
        label = {"label": one.top[0][0], "probability": one.top[0][1], "true_label": one.true_label} if one.top else {}
        return {**label, "features": said.features.tolist()}
    if isinstance(said, TextPrediction):
        return {"text": said.text, "probability": said.probability, "true_text": one.true_label}
    return {"label": said.label, "probability": said.probability, "true_label": one.true_label}
