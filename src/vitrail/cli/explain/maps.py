"""From pictures to maps with their verdicts, as values that the page and the sheets show."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vitrail.cli.explain.asked import EVERY_HAS, Asked
from vitrail.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.cli.shown import Shown
    from vitrail.explain import Comparison, Method
    from vitrail.explain.tested import Precision
    from vitrail.model import Model, Prediction
    from vitrail.pages.views import ExplainedPicture

BATCH = 16
SUMMED = "conservative"  # the method whose parts add up to what is explained

Result = tuple["Prediction", "ExplainedPicture"]
Classes = int | tuple[list[int], list[int]] | None


def explain(model: "Model", shown: Sequence["Shown"], asked: Asked) -> list[Result]:
    """What the model says of each picture, and the picture with its maps as values of a page.

    Raises:
        UsageError: If a picture's top class would be held against itself, or a method refuses its options.
    """
    from vitrail.cli.explain.precision import choose_precision

    with _waiting(asked.scored):
        precision = choose_precision(model, shown[0].picture, asked.precision) if asked.scored else "fp32"
        return [
            result
            for first in range(0, len(shown), BATCH)
            for result in _explain(model, shown[first : first + BATCH], asked, precision)
        ]


def _explain(model: "Model", shown: Sequence["Shown"], asked: Asked, precision: "Precision") -> list[Result]:
    from vitrail.cli.explain.pictures import mask_patches
    from vitrail.cli.explain.views import views_of
    from vitrail.pages.views import ExplainedPicture
    from vitrail.report import as_picture

    pictures = [one.picture for one in shown]
    images, predictions = model.tensor(pictures), model.predict(pictures)
    target, masks = _target(model, shown, predictions, asked), mask_patches(shown, model) if asked.scored else None
    compared = _compared(model, images, target, masks, asked, precision)
    parts = _parts(model, images, target, asked.methods)
    results = []
    for row, (one, prediction) in enumerate(zip(shown, predictions, strict=True)):
        views = views_of(model.classes, compared, row)
        views = [dataclasses.replace(v, parts=parts[row]) if v.method == SUMMED else v for v in views]
        picture = as_picture(model.preprocessing.to_uint8(one.picture))
        results.append((prediction, ExplainedPicture(one.name, picture, one.true_label, list(prediction.top), views)))
    return results


def _compared(
    model: "Model",
    images: "Tensor",
    target: Classes,
    masks: "Tensor | None",
    asked: Asked,
    precision: "Precision",
) -> "Comparison":
    """The maps, each with how far to trust it."""
    from vitrail.explain import compare

    methods = [dataclasses.replace(each, function=partial(each.function, **asked.options)) for each in asked.methods]
    try:
        return compare(
            model,
            images,
            methods,
            target,
            references=asked.references,
            masks=masks,
            scored=asked.scored,
            areas=False,
            precision=precision,
        )
    except UsageError as error:  # its hint speaks Python
        raise UsageError(error.problem, _typed_hint(error, asked.options)) from error


def _typed_hint(error: UsageError, options: Mapping[str, Any]) -> str:
    """A hint such as `layer=-1 for the last` as one types it: `--layer -1`; other hints as they are."""
    name, equals, value = error.hint.partition("=")
    if name not in options or not equals:
        return error.hint
    example = value.split()[0].strip("'")
    return EVERY_HAS[name] if example == "None" else f"--{name} {example}"


def _parts(
    model: "Model", images: "Tensor", target: Classes, methods: Sequence["Method"]
) -> list[tuple[tuple[str, float], ...]]:
    """What the explained number of each picture is the sum of, where a method shares it out without a rest."""
    from vitrail.explain import balance_sheet

    if all(method.name != SUMMED for method in methods):
        return []
    sheet = balance_sheet(model.network, images, target).parts
    names = ["squares" if name == "pixels" else name for name in sheet]
    return [
        tuple(zip(names, row, strict=True)) for row in zip(*(part.tolist() for part in sheet.values()), strict=True)
    ]


def _target(model: "Model", shown: Sequence["Shown"], predictions: Sequence["Prediction"], asked: Asked) -> Classes:
    """The target of a batch; of a contrast, the two classes of each picture."""
    if asked.rather_than is None:
        return asked.target
    tops = [model.classes.index(each.label) if asked.target is None else asked.target for each in predictions]
    same = [one.name for one, top in zip(shown, tops, strict=True) if top == asked.rather_than]
    if same:
        name = model.classes[asked.rather_than]
        what = "--target and --rather-than are both" if asked.target is not None else f"the model takes {same[0]} for"
        others = [each for each in model.classes if each != name]
        raise UsageError(f"{what} '{name}', which has nothing to be held against", f"--rather-than {others[0]}")
    return tops, [asked.rather_than] * len(tops)


@contextlib.contextmanager
def _waiting(scored: bool) -> Iterator[None]:
    """On a terminal, a line that says what takes so long."""
    from vitrail.cli.output import console

    on = console(to_stderr=True)
    says = "explaining, and testing each map; --no-trust leaves the test out" if scored else "explaining"
    if not on.is_terminal:
        yield
        return
    with on.status(says):
        yield
