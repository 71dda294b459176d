"""What a page shows of attributions: numbers, caveats and verdicts of one image, as plain values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.compare import Comparison
from vitrail.explain.methods import METHODS_OF_TEXTS
from vitrail.explain.methods.conservative import NOT_LINEAR, balance_sheet
from vitrail.explain.methods.options import as_typed
from vitrail.explain.readout import wide
from vitrail.explain.reporting.request import WRITTEN, Methods, Request
from vitrail.explain.target import Target
from vitrail.model import Model
from vitrail.pages.views import AreasView, AttributionView, TrustView
from vitrail.tasks import TextPrediction

SUMMED = "conservative"  # the method whose parts add up to what is explained

Parts = tuple[tuple[str, float], ...]


def views_of(
    model: Model, request: Request, compared: Comparison, row: int, parts: Parts = ()
) -> list[AttributionView]:
    """The attributions of one image.

    Args:
        model: Whose classes name what is explained.
        request: What was asked for.
        compared: The attributions of a batch, each with how far to trust it.
        row: The place of the image in the batch.
        parts: What the explained number is the sum of, where a method says it.
    """
    views = []
    for place, (method, attribution) in enumerate(zip(request.methods, compared.attributions, strict=True)):
        target = request.name_of(model.output, int(attribution.target[row]))
        against = (
            None if attribution.contrast is None else request.name_of(model.output, int(attribution.contrast[row]))
        )
        trust = areas = None
        if compared.trusts:
            tested = compared.trusts[place]
            explained = f"“{target}”" if against is None else f"“{target}” rather than “{against}”"
            if request.kind is not None:  # no name that somebody gave
                explained = f"the {target}" if request.kind == "similarity" else target
            sentence = tested.sentence(row, explained, "" if against is None else " of the two")
            trust = TrustView(**tested.of(row), sentence=sentence)
        if compared.random_areas is not None:  # deletion and insertion, beside those of a random order
            both = compared.areas[place], compared.random_areas
            areas = AreasView(*(float(area[row]) for one in both for area in (one.deletion, one.insertion)))
        views.append(
            AttributionView(
                method=method.name,
                title=method.title,
                target=target,
                logit=float(attribution.logit[row]),
                values=wide(attribution.values[row]).cpu().numpy(),
                signed=attribution.signed,
                class_specific=attribution.class_specific,
                notes=attribution.notes[row],
                contrast=against,
                trust=trust,
                parts=parts if method.name == SUMMED else (),
                areas=areas,
                seconds=compared.seconds[place] / len(attribution.values),
                function=request.kind,
                about=method.about,
                passes=method.cost,
            )
        )
    return views


def parts_of(model: Model, images: Tensor, target: Target, methods: Methods) -> list[Parts]:
    """What the explained number of each image is the sum of, where a method shares it out; a rest has no part."""
    if all(method.name != SUMMED for method in methods):
        return [()] * len(images)
    sheet = balance_sheet(model.network, images, target)
    shared = {"patches" if name == "pixels" else name: part.tolist() for name, part in sheet.parts.items()}
    if bool((sheet.gap.abs() > NOT_LINEAR * sheet.logit.abs()).any()):  # of a cosine
        shared["no part"] = sheet.gap.tolist()
    return [tuple(zip(shared, row, strict=True)) for row in zip(*shared.values(), strict=True)]


def token_views(
    model: Model, written: TextPrediction, images: Tensor, options: Mapping[str, Any]
) -> tuple[list[Attribution], list[AttributionView]]:
    """Where the decoder looked for each token of the text that it writes for one image."""
    assert isinstance(model.output, Vocabulary)
    if not written.ids:
        return [], []
    method, attributions, views = METHODS_OF_TEXTS[WRITTEN], [], []
    try:
        attribution = method.function(
            model.network, images, torch.tensor([written.ids], device=images.device), **options
        )
    except UsageError as error:  # its hint speaks Python
        raise as_typed(method, error) from None
    for place, number in enumerate(written.ids):
        token = model.output.decode([number])
        one = attribution.token(place)
        attributions.append(one)
        views.append(
            AttributionView(
                method=method.name,
                title=f"Token {place + 1}: {token}",
                target=token,
                logit=float(one.logit[0]),
                values=wide(one.values[0]).cpu().numpy(),
                signed=method.signed,
                class_specific=method.class_specific,
                notes=one.notes[0],
                function="token",
                about=method.about,
            )
        )
    return attributions, views
