"""From pictures to maps with their verdicts, as values that the page and the sheets show."""

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vitrail.errors import UsageError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.cli.explain_pictures import Shown
    from vitrail.explain import Comparison, Method, Trust
    from vitrail.explain.inside import Sinks
    from vitrail.model import Model, Prediction
    from vitrail.pages.views import ExplainedPicture, HeatView, TrustView

DEFAULT_METHOD = "generic_attention"
BATCH = 16
SQUARES = 256  # with more of them, a comparison leaves out what covers one square after another
SLOW_WITH_SQUARES = ("occlusion",)
NAMED = 6  # squares that a note names
SUMMED = "conservative"  # the method whose parts add up to what is explained
EVERY_HAS = {"layer": "--layer -1", "head": "--head 0"}  # what any network has, of what some methods read

Result = tuple["Prediction", "ExplainedPicture"]
Classes = int | tuple[list[int], list[int]] | None


@dataclass(frozen=True)
class Asked:
    """What is explained, and how.

    Args:
        methods: Which maps.
        options: The layer and the head that were asked for.
        target: Index of the class; each picture's top class when None.
        rather_than: Index of the class that it is held against.
        references: What covers squares, as the network reads pictures; the model's own when None.
        scored: Whether each map is tested.
        precision: Of the passes that test a map: "fp32", "bf16", or "auto" for the faster.
    """

    methods: tuple["Method", ...]
    options: Mapping[str, Any]
    target: int | None
    rather_than: int | None
    references: "Tensor | None"
    scored: bool
    precision: Literal["auto", "fp32", "bf16"] = "auto"


def choose_methods(
    model: "Model", method: str, compare: bool, named: str | None, contrast: bool
) -> tuple["Method", ...]:
    """The methods that were asked for.

    Args:
        model: Whose number of squares decides what a comparison leaves out.
        method: The name of one.
        compare: Whether several are compared.
        named: Their names, with commas between them; the ones that a comparison has by itself when None.
        contrast: Whether a class is held against another, which not every method can say.

    Raises:
        UsageError: If a method is unknown; or cannot say why one class rather than another, and was named.
    """
    from vitrail.cli.output import warn
    from vitrail.explain.methods import METHODS, nearest_method

    if named is not None and not compare:
        raise UsageError("--methods chooses what --compare shows", f"--compare --methods {named}")
    names = [method] if not compare else [part.strip() for part in (named or "").split(",") if part.strip()]
    if compare and named is not None and not names:
        raise UsageError(f"--methods '{named}' names no method", "--methods generic_attention,rollout")
    for name in names:
        if name not in METHODS:
            option = "--methods" if compare else "--method"
            raise UsageError(
                f"unknown method '{name}', there are {', '.join(METHODS)}", f"{option} {nearest_method(name)}"
            )
    if names:
        chosen = tuple(METHODS[name] for name in dict.fromkeys(names))
        blind = [each.name for each in chosen if not each.class_specific]
        if contrast and blind:
            raise UsageError(
                f"{', '.join(blind)} cannot tell classes apart, so not say why one class rather than another",
                f"--method {DEFAULT_METHOD}",
            )
        return chosen
    rows, columns = (
        side // patch for side, patch in zip(model.preprocessing.size, model.network.config.patch, strict=True)
    )
    slow = SLOW_WITH_SQUARES if rows * columns > SQUARES else ()
    costly = [each.name for each in METHODS.values() if each.costly or each.name in slow]
    blind = [each.name for each in METHODS.values() if contrast and not each.class_specific]
    if costly:
        warn(f"left out, since they take long: {', '.join(costly)}; --methods {','.join(costly)} takes them")
    if blind:
        warn(f"left out, since they cannot tell classes apart: {', '.join(blind)}")
    return tuple(each for each in METHODS.values() if each.name not in {*costly, *blind})


def choose_options(methods: Sequence["Method"], given: Mapping[str, str | int | None]) -> dict[str, Any]:
    """The options of one method that were typed, such as its layer, each of the kind that the method wants.

    Raises:
        UsageError: If there are several methods, or this one does not have the option or wants a number.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if len(methods) > 1:
            raise UsageError(f"--{name} is for one method, not for a comparison", f"leave --{name} out")
        method, known = methods[0].name, inspect.signature(methods[0].function).parameters
        if name not in known:
            raise UsageError(f"{method} has no --{name}", f"leave --{name} out")
        wants_number = known[name].annotation in (int, int | None)
        if wants_number and not str(value).removeprefix("-").isdecimal():
            raise UsageError(f"--{name} of {method} must be a number, got '{value}'", EVERY_HAS[name])
        options[name] = int(value) if wants_number else value
    return options


def class_index(model: "Model", name: str | None, option: str) -> int | None:
    """The index of a class.

    Raises:
        UsageError: If the model does not have it; names those that there are, or the nearest of many.
    """
    if name is None:
        return None
    if name not in model.classes:
        guess = nearest(name, model.classes) or model.classes[0]
        few = f", it has {', '.join(model.classes)}" if len(model.classes) <= 10 else ""
        raise UsageError(f"the model has no class '{name}'{few}", f"{option} {guess}")
    return model.classes.index(name)


def explain(model: "Model", shown: Sequence["Shown"], asked: Asked) -> list[Result]:
    """What the model says of each picture, and the picture with its maps as values of a page.

    Raises:
        UsageError: If a picture's top class would be held against itself, or a method refuses its options.
    """
    with _waiting(asked.scored):
        return [
            result
            for first in range(0, len(shown), BATCH)
            for result in _explain(model, shown[first : first + BATCH], asked)
        ]


def _explain(model: "Model", shown: Sequence["Shown"], asked: Asked) -> list[Result]:
    from vitrail.cli.explain_pictures import mask_patches
    from vitrail.explain.inside import find_sinks
    from vitrail.pages.views import ExplainedPicture
    from vitrail.report import as_picture

    pictures = [one.picture for one in shown]
    images, predictions = model.tensor(pictures), model.predict(pictures)
    target, masks = _target(model, shown, predictions, asked), mask_patches(shown, model) if asked.scored else None
    compared, sinks = _compared(model, images, target, masks, asked), find_sinks(model.network, images)
    parts = _parts(model, images, target, asked.methods)
    results = []
    for row, (one, prediction) in enumerate(zip(shown, predictions, strict=True)):
        views = _views(model, compared, asked.methods, _sink_notes(sinks, row), row)
        views = [dataclasses.replace(v, parts=parts[row]) if v.method == SUMMED else v for v in views]
        picture = as_picture(model.preprocessing.to_uint8(one.picture))
        results.append((prediction, ExplainedPicture(one.name, picture, one.true_label, list(prediction.top), views)))
    return results


def _compared(model: "Model", images: "Tensor", target: Classes, masks: "Tensor | None", asked: Asked) -> "Comparison":
    """The maps, each with how far to trust it."""
    from vitrail.explain import Comparison, compare, trust

    names = tuple(method.name for method in asked.methods)
    precision = _precision(model, images, asked.precision) if asked.scored else "fp32"
    if not asked.options:
        return compare(
            model,
            images,
            names,
            target,
            references=asked.references,
            masks=masks,
            scored=asked.scored,
            precision=precision,
        )
    try:
        heat = asked.methods[0].function(model.network, images, target, **asked.options)
    except UsageError as error:  # its hint speaks Python
        raise UsageError(error.problem, _typed_hint(error, asked.options)) from error
    lent = asked.references
    tested = (trust(model, images, heat, references=lent, masks=masks, precision=precision),) if asked.scored else ()
    return Comparison(names, (heat,), tested, (0.0,))


def _typed_hint(error: UsageError, options: Mapping[str, Any]) -> str:
    """A hint such as `layer=-1 for the last` as one types it: `--layer -1`; other hints as they are."""
    name, equals, value = error.hint.partition("=")
    if name not in options or not equals:
        return error.hint
    example = value.split()[0].strip("'")
    return EVERY_HAS[name] if example == "None" else f"--{name} {example}"


def _precision(model: "Model", images: "Tensor", asked: str) -> Literal["fp32", "bf16"]:
    """What was asked for, or the faster of both, timed on a few passes of a network that is wide enough to gain."""
    import torch

    from vitrail.training.execution import BF16_LEAST_WIDTH

    if asked == "fp32" or (asked == "auto" and model.network.config.width < BF16_LEAST_WIDTH):
        return "fp32"
    if asked == "bf16":
        return "bf16"
    seconds = []
    for half in (False, True):
        with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=half):
            taken = []
            for _ in range(2):  # the first warms up
                began = time.perf_counter()
                model.network(images[:1].expand(4, -1, -1, -1)).float().sum().item()
                taken.append(time.perf_counter() - began)
        seconds.append(taken[-1])
    return "bf16" if seconds[1] < 0.8 * seconds[0] else "fp32"


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


def _sink_notes(sinks: "Sinks", row: int) -> tuple[str, ...]:
    """A sentence for people on the sinks of one picture; rows and columns count from 1, as on the page."""
    places = [f"row {y + 1} column {x + 1}" for y, x in sinks.anywhere[row].nonzero().tolist()]
    if not places:
        return ()
    named = "; ".join(places[:NAMED]) + (f"; and {len(places) - NAMED} more" if len(places) > NAMED else "")
    are = "1 square is a sink" if len(places) == 1 else f"{len(places)} squares are sinks"
    return (
        f"{are} ({named}): the network uses such tokens as scratch paper, so heat there says little about the place",
    )


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


def _views(
    model: "Model", compared: "Comparison", methods: Sequence["Method"], notes: tuple[str, ...], row: int
) -> "list[HeatView]":
    """The maps of one picture; `notes` stand with each."""
    import numpy as np

    from vitrail.pages.views import HeatView

    views = []
    for number, (method, heat) in enumerate(zip(methods, compared.heats, strict=True)):
        target = model.classes[int(heat.target[row])]
        against = None if heat.rather_than is None else model.classes[int(heat.rather_than[row])]
        views.append(
            HeatView(
                method=method.name,
                title=method.title,
                target=target,
                logit=float(heat.logit[row]),
                values=np.asarray(heat.values[row].cpu().numpy(), dtype=np.float32),
                signed=heat.signed,
                class_specific=heat.class_specific,
                notes=(*heat.notes[row], *notes),
                rather_than=against,
                trust=_trust_view(compared.trusts[number], row, target) if compared.trusts else None,
            )
        )
    return views


def _trust_view(trust: "Trust", row: int, target: str) -> "TrustView":
    """How far to trust the map of one picture."""
    from vitrail.pages.views import TrustView

    low, high = trust.interval[row].tolist()
    return TrustView(
        verdict=trust.verdict[row],
        reason=trust.reason[row],
        sentence=trust.sentence(row, f"“{target}”"),
        score=float(trust.score[row]),
        interval=(low, high),
        paired=float(trust.paired[row]),
        random=tuple(trust.random[row].tolist()),
        oracle=None if trust.oracle is None else float(trust.oracle[row]),
        evidence=_known(float(trust.evidence[row])),
        faithful=_known(float(trust.faithful[row])),
        squares=int(trust.squares[row]),
        composites=trust.composites,
        fill=trust.fill,
    )


def _known(value: float) -> float | None:
    return None if value != value else value


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
