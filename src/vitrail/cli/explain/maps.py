"""From pictures to maps with their verdicts, as plain values that the page and the sheets show."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from PIL import Image
from torch import Tensor

from vitrail.cli.explain.asked import WRITTEN, Asked
from vitrail.cli.explain.pictures import Lenders, mask_patches
from vitrail.cli.output import console, warn
from vitrail.cli.sources import Shown
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import UsageError
from vitrail.explain import Comparison, Method, balance_sheet, compare
from vitrail.explain.methods import METHODS_OF_TEXTS
from vitrail.explain.methods.conservative import NOT_LINEAR
from vitrail.explain.methods.options import as_typed
from vitrail.explain.readout import wide
from vitrail.explain.target import Target
from vitrail.explain.verdict import Precision
from vitrail.jobs.precision import Asked as AskedPrecision, chosen_for
from vitrail.model import Model
from vitrail.model.model import opened
from vitrail.pages.views import AreasView, ExplainedPicture, Function, HeatView, TrustView
from vitrail.tasks import ClassPrediction, FeaturePrediction, TextPrediction

BATCH = 16
BATCH_OF_WIDE = 4  # images, so that one sees how far a wide network is, and an interruption loses little
WIDE = 192
SUMMED = "conservative"  # the method whose parts add up to what is explained
BESIDE = 15  # images of the background on which a precision is chosen, too
NOTHING_AGAINST = "which has nothing to be held against"

Result = tuple[ClassPrediction | FeaturePrediction | TextPrediction, ExplainedPicture]


def at_a_time(model: Model, methods: int) -> int:
    """How many images are explained together."""
    return max(1, (BATCH_OF_WIDE if model.network.config.width >= WIDE else BATCH) // methods)


def explain(
    model: Model,
    shown: Sequence[Shown],
    asked: Asked | None,
    lenders: Lenders | None = None,
    answering: Model | None = None,
    aloud: bool = True,
    run: str | None = None,
) -> Iterator[Result]:
    """What the model says of each picture, and the picture with its maps as values of a page, some at a time.

    A picture whose top class is the one that it would be held against is left out, and named on stderr.

    Args:
        model: What explains itself.
        shown: The pictures.
        asked: Of a model of classes; None of one that writes.
        lenders: What lends patches where neither the model nor `asked` has images for that.
        answering: The same model with its head, where what is explained lies before that.
        aloud: Whether to say how far it is, and what is left out.
        run: Where the model came from.

    Raises:
        UsageError: If a method refuses its options.
        DataError: If a mask names no square.
    """
    if asked is None:
        yield from (_explain_text(model, one) for one in shown)
        return
    masks = mask_patches(shown, model) if asked.scored else None
    together = at_a_time(model, len(asked.methods))
    with _waiting(asked.scored) if aloud else contextlib.nullcontext(lambda done, of: None) as say:
        precision = choose_precision(model, shown[0].picture, asked.precision, run) if asked.scored else "fp32"
        for first in range(0, len(shown), together):
            say(first, len(shown))
            some = slice(first, first + together)
            lent = None if lenders is None else lenders.besides(shown[some])
            here = asked if lent is None else dataclasses.replace(asked, references=lent)
            found = _explain(model, shown[some], None if masks is None else masks[some], here, precision, aloud)
            yield from found if answering is None else _answered(answering, shown[some], found)


def _explain(
    model: Model, shown: Sequence[Shown], masks: Tensor | None, asked: Asked, precision: Precision, aloud: bool
) -> list[Result]:
    against = None if asked.rather_than is None else model.classes[asked.rather_than]
    kept, predictions = [], []
    for row, said in enumerate(model.predict([one.picture for one in shown])):
        assert isinstance(said, ClassPrediction | FeaturePrediction)
        if against is not None and asked.target is None and getattr(said, "label", "") == against:
            if aloud:
                warn(f"left out: the model takes {shown[row].name} for '{against}', {NOTHING_AGAINST}")
        else:
            kept.append(row)
            predictions.append(said)
    if not kept:
        return []
    target: Target = asked.function or asked.target
    if asked.rather_than is not None:
        tops = [model.classes.index(each.label) if asked.target is None else asked.target for each in predictions]
        target = tops, [asked.rather_than] * len(tops)
    shown = [shown[row] for row in kept]
    images, masks = model.tensor([one.picture for one in shown]), None if masks is None else masks[kept]
    compared = _compared(model, images, target, masks, asked, precision)
    parts = _parts(model, images, target, asked.methods)
    other = None
    if asked.other is not None:
        other = asked.other.name, model.preprocessing.to_array(opened(asked.other))
    results: list[Result] = []
    for row, (one, prediction) in enumerate(zip(shown, predictions, strict=True)):
        views = views_of(partial(asked.name_of, model.output), asked.methods, compared, row, asked.kind)
        views = [dataclasses.replace(v, parts=parts[row]) if v.method == SUMMED else v for v in views]
        picture = model.preprocessing.to_array(one.picture)
        top, answer = [], ""
        if isinstance(prediction, ClassPrediction):
            top = list(prediction.top)
        else:
            answer = prediction.sentence()
        explained = ExplainedPicture(one.name, picture, one.true_label, top, views, answer, other)
        results.append((prediction, explained))
    return results


def _answered(model: Model, shown: Sequence[Shown], results: list[Result]) -> Iterator[Result]:
    """The same with the classes that the model names."""
    answers = model.predict([one.picture for one in shown])
    for (said, explained), answer in zip(results, answers, strict=True):
        assert isinstance(answer, ClassPrediction)
        yield said, explained if answer.notes else dataclasses.replace(explained, top=list(answer.top), answer="")


def _compared(
    model: Model, images: Tensor, target: Target, masks: Tensor | None, asked: Asked, precision: Precision
) -> Comparison:
    """The maps, each with how far to trust it."""
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
            full=asked.full,
        )
    except UsageError as error:  # its hint speaks Python
        if len(methods) > 1:
            raise
        raise as_typed(methods[0], error) from error


def _parts(
    model: Model, images: Tensor, target: Target, methods: Sequence[Method]
) -> list[tuple[tuple[str, float], ...]]:
    """What the explained number of each picture is the sum of, where a method shares it out; a rest has no part."""
    if all(method.name != SUMMED for method in methods):
        return []
    sheet = balance_sheet(model.network, images, target)
    shared = {"squares" if name == "pixels" else name: part.tolist() for name, part in sheet.parts.items()}
    if bool((sheet.gap.abs() > NOT_LINEAR * sheet.logit.abs()).any()):  # of a cosine
        shared["no part"] = sheet.gap.tolist()
    return [tuple(zip(shared, row, strict=True)) for row in zip(*shared.values(), strict=True)]


@contextlib.contextmanager
def _waiting(scored: bool) -> Iterator[Callable[[int, int], None]]:
    """On a terminal, a line that says what takes so long and how far it is."""
    on = console(to_stderr=True)
    says = "explaining, and testing each map; --no-trust leaves the test out" if scored else "explaining"
    if not on.is_terminal:
        yield lambda done, of: None
        return
    with on.status(says) as line:
        yield lambda done, of: line.update(f"{done} of {of} pictures; {says}" if of > 1 else says)


# ---- in which precision maps are tested


def choose_precision(model: Model, picture: Image.Image, asked: AskedPrecision, run: str | None = None) -> Precision:
    """What was asked for, or what is chosen for the model: on this picture and its background where nothing is kept.

    A verdict may differ with the precision, so it is one for all pictures of a command.

    Args:
        model: Whose network is asked.
        picture: Any that it can read.
        asked: The precision, or "auto".
        run: Where the model came from.
    """
    if asked != "auto":
        return asked
    images, background = model.tensor([picture]), model.background_images
    if background is not None:
        images = torch.cat([images, background[:BESIDE]])
    return chosen_for(model, images, run).precision


# ---- what is shown of each map


def views_of(
    called: Callable[[int], str],
    methods: Sequence[Method],
    compared: Comparison,
    row: int,
    function: Function | None = None,
) -> list[HeatView]:
    """The maps of one picture: numbers, caveats and verdicts.

    Args:
        called: The name of what is explained, by its index.
        methods: By which they were made.
        compared: The maps of a batch, each with how far to trust it.
        row: The place of the picture in the batch.
        function: What is explained where it is no class.
    """
    views = []
    for number, (method, heat) in enumerate(zip(methods, compared.heats, strict=True)):
        target = called(int(heat.target[row]))
        against = None if heat.rather_than is None else called(int(heat.rather_than[row]))
        trust = areas = None
        if compared.trusts:
            tested = compared.trusts[number]
            explained = f"“{target}”" if against is None else f"“{target}” rather than “{against}”"
            if function is not None:  # no name that somebody gave
                explained = f"the {target}" if function == "similarity" else target
            sentence = tested.sentence(row, explained, "" if against is None else " of the two")
            trust = TrustView(**tested.of(row), sentence=sentence)
        if compared.random_areas is not None:  # deletion and insertion, beside those of a random order
            both = compared.areas[number], compared.random_areas
            areas = AreasView(*(float(area[row]) for one in both for area in (one.deletion, one.insertion)))
        views.append(
            HeatView(
                method=method.name,
                title=method.title,
                target=target,
                logit=float(heat.logit[row]),
                values=wide(heat.values[row]).cpu().numpy(),
                signed=heat.signed,
                class_specific=heat.class_specific,
                notes=heat.notes[row],
                rather_than=against,
                trust=trust,
                areas=areas,
                seconds=compared.seconds[number] / len(heat.values),
                function=function,
                about=method.about,
                passes=method.cost,
            )
        )
    return views


# ---- a model that writes


def _explain_text(model: Model, shown: Shown) -> Result:
    """What the model writes for a picture, and the picture with a map for each token: where the decoder looked."""
    (written,) = model.predict([shown.picture])
    assert isinstance(written, TextPrediction)
    assert isinstance(model.output, Vocabulary)
    method, images, views = METHODS_OF_TEXTS[WRITTEN], model.tensor([shown.picture]), []
    if written.ids:
        heat = method.function(model.network, images, torch.tensor([written.ids], device=images.device))
        for place, number in enumerate(written.ids):
            token = model.output.decode([number])
            views.append(
                HeatView(
                    method=method.name,
                    title=f"Token {place + 1}: {token}",
                    target=token,
                    logit=float(heat.logit[0, place]),
                    values=wide(heat.values[0, place]).cpu().numpy(),
                    signed=method.signed,
                    class_specific=method.class_specific,
                    notes=tuple(note for note in heat.notes[0] if note.startswith(f"token {place + 1}:")),
                    function="token",
                    about=method.about,
                )
            )
    picture = model.preprocessing.to_array(shown.picture)
    top = [(written.shown, written.probability)]
    return written, ExplainedPicture(shown.name, picture, shown.true_label, top, views)
