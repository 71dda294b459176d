"""From pictures to maps with their verdicts, as values that the page and the sheets show."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vitrail.cli.explain.asked import EVERY_HAS, Asked
from vitrail.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.cli.shown import Shown
    from vitrail.explain import Comparison, Method
    from vitrail.explain.verdict import Precision
    from vitrail.model import Model
    from vitrail.pages.views import ExplainedPicture
    from vitrail.tasks import ClassPrediction

BATCH = 16
FEW = 4  # pictures at a time by a wide network, so that one sees how far it is, and an interruption loses little
WIDE = 192
SUMMED = "conservative"  # the method whose parts add up to what is explained

Result = tuple["ClassPrediction", "ExplainedPicture"]
Classes = int | tuple[list[int], list[int]] | None


def explain(model: "Model", shown: Sequence["Shown"], asked: Asked) -> Iterator[Result]:
    """What the model says of each picture, and the picture with its maps as values of a page, some at a time.

    A picture whose top class is the one that it would be held against is left out, and named on stderr.

    Raises:
        UsageError: If a method refuses its options.
        DataError: If a mask names no square.
    """
    from vitrail.cli.explain.pictures import mask_patches
    from vitrail.cli.explain.precision import choose_precision

    masks = mask_patches(shown, model) if asked.scored else None
    at_a_time = max(1, (FEW if model.network.config.width >= WIDE else BATCH) // len(asked.methods))
    with _waiting(asked.scored) as say:
        precision = choose_precision(model, shown[0].picture, asked.precision) if asked.scored else "fp32"
        for first in range(0, len(shown), at_a_time):
            say(first, len(shown))
            some = slice(first, first + at_a_time)
            yield from _explain(model, shown[some], None if masks is None else masks[some], asked, precision)


def _explain(
    model: "Model",
    shown: Sequence["Shown"],
    masks: "Tensor | None",
    asked: Asked,
    precision: "Precision",
) -> list[Result]:
    from vitrail.cli.explain.views import views_of
    from vitrail.pages.views import ExplainedPicture
    from vitrail.tasks import ClassPrediction

    found = model.predict([one.picture for one in shown])
    predictions = [one for one in found if isinstance(one, ClassPrediction)]
    kept = [row for row, said in enumerate(predictions) if not _same(model, shown[row].name, said, asked)]
    if not kept:
        return []
    shown, predictions = [shown[row] for row in kept], [predictions[row] for row in kept]
    images, masks = model.tensor([one.picture for one in shown]), None if masks is None else masks[kept]
    target = _target(model, predictions, asked)
    compared = _compared(model, images, target, masks, asked, precision)
    parts = _parts(model, images, target, asked.methods)
    results = []
    for row, (one, prediction) in enumerate(zip(shown, predictions, strict=True)):
        views = views_of(model.classes, compared, row)
        views = [dataclasses.replace(v, parts=parts[row]) if v.method == SUMMED else v for v in views]
        picture = model.preprocessing.to_array(one.picture)
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
            areas=len(methods) > 1,
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


def _same(model: "Model", name: str, said: "ClassPrediction", asked: Asked) -> bool:
    """Whether a picture's top class would be held against itself; it is named then."""
    from vitrail.cli.output import warn

    if asked.rather_than is None or asked.target is not None:
        return False
    against = model.classes[asked.rather_than]
    if said.label != against:
        return False
    warn(f"left out: the model takes {name} for '{against}', which has nothing to be held against")
    return True


def _target(model: "Model", predictions: Sequence["ClassPrediction"], asked: Asked) -> Classes:
    """The target of a batch; of a contrast, the two classes of each picture."""
    if asked.rather_than is None:
        return asked.target
    tops = [model.classes.index(each.label) if asked.target is None else asked.target for each in predictions]
    return tops, [asked.rather_than] * len(tops)


@contextlib.contextmanager
def _waiting(scored: bool) -> "Iterator[Callable[[int, int], None]]":
    """On a terminal, a line that says what takes so long and how far it is."""
    from vitrail.cli.output import console

    on = console(to_stderr=True)
    says = "explaining, and testing each map; --no-trust leaves the test out" if scored else "explaining"
    if not on.is_terminal:
        yield lambda done, of: None
        return
    with on.status(says) as line:
        yield lambda done, of: line.update(f"{done} of {of} pictures; {says}" if of > 1 else says)
