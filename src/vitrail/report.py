"""From a run to its page: the values that `run.html` shows, from facts only."""

import json
from dataclasses import asdict

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from vitrail.pages.run_page import EvaluationSummary, Example, RunSummary, WrittenSummary, write_run_page
from vitrail.training.evaluation import Evaluated
from vitrail.training.events import Reported
from vitrail.training.recipes import document_figure
from vitrail.training.sequence_metrics import SequenceOutcome

SHOWN = 12  # examples of each kind


def write_report(report: Reported) -> None:
    """Write `run.html`."""
    folder, prepared = report.folder, report.prepared
    evaluated = report.evaluated if isinstance(report.evaluated, Evaluated) else None
    outcome = report.evaluated if isinstance(report.evaluated, SequenceOutcome) else None
    shown = () if evaluated is None else examples(evaluated)
    write_run_page(
        folder.page,
        RunSummary(
            title=prepared.settings.data,
            state=report.state,
            facts=prepared.page_facts(),
            history=folder.history(),
            evaluation=None if evaluated is None else summary(evaluated),
            classes=() if evaluated is None else evaluated.classes,
            settings=asdict(prepared.settings),
            environment=json.loads((folder.path / "env.json").read_text(encoding="utf-8")),
            notes=list(prepared.notes),
            command=(folder.path / "command.txt").read_text(encoding="utf-8").strip(),
            examples=shown if outcome is None else read_examples(outcome),
            written=None if outcome is None else written_summary(outcome),
            unit=prepared.unit,
            beside=document_figure(prepared.settings),
            about_probabilities=prepared.about_probabilities,
        ),
    )


def summary(evaluated: Evaluated) -> EvaluationSummary:
    """An evaluation as values of a page."""
    scores = evaluated.scores
    return EvaluationSummary(
        split=evaluated.split,
        images=scores.images,
        accuracy=scores.accuracy,
        interval=scores.interval,
        loss=scores.loss,
        confusion=scores.confusion,
        per_class=scores.per_class(evaluated.classes),
        unknown=dict(evaluated.unknown),
        unreadable=list(evaluated.feed.unreadable.values()),
    )


def examples(evaluated: Evaluated) -> tuple[Example, ...]:
    """The pictures that the model was most wrong about, then those it was surest of and right."""
    scores = evaluated.scores
    order = np.argsort(scores.own_probability, kind="stable")
    true = evaluated.labels[scores.ids]
    wrong = [row for row in order if scores.predicted[row] != true[row]][:SHOWN]
    right = [row for row in order[::-1] if scores.predicted[row] == true[row]][:SHOWN]
    rows = np.array([*wrong, *right], dtype=np.int64)
    if not len(rows):
        return ()
    (fetched,) = evaluated.feed.fetch([scores.ids[rows]])
    return tuple(
        Example(
            picture=as_picture(pixels),
            name=evaluated.pictures.name(int(scores.ids[row])),
            label=evaluated.classes[true[row]],
            predicted=evaluated.classes[scores.predicted[row]],
            probability=float(scores.probability[row]),
        )
        for row, pixels in zip(rows, fetched.pixels, strict=True)
    )


def written_summary(outcome: SequenceOutcome) -> WrittenSummary:
    """An evaluation of a model that writes, as values of a page."""
    wrong, right = outcome.examples()
    texts = [] if outcome.pictures else [*wrong, *right]
    return WrittenSummary(
        split=outcome.split,
        sequences=outcome.count,
        exact=outcome.headline[1],
        interval=outcome.interval,
        loss=outcome.loss,
        tokens=outcome.tokens,
        edit_distance=outcome.edits,
        by_length=outcome.by_length(),
        examples=[(one.written.name, one.wanted, one.written.shown, one.written.probability) for one in texts],
        unreadable=list(outcome.unreadable),
    )


def read_examples(outcome: SequenceOutcome) -> tuple[Example, ...]:
    """Pictures that the model misread, then some that it read right, the surest first; empty where it reads texts."""
    wrong, right = outcome.examples()
    readings = [*wrong, *right]
    if not outcome.pictures or not readings:
        return ()
    ((feed, _),) = outcome.pictures
    (fetched,) = feed.fetch([np.array([reading.index for reading in readings], dtype=np.int64)])
    return tuple(
        Example(as_picture(pixels), one.written.name, one.wanted, one.written.shown, one.written.probability)
        for one, pixels in zip(readings, fetched.pixels, strict=True)
    )


def as_picture(pixels: UInt8[Tensor, "c h w"]) -> UInt8[np.ndarray, "h w *c"]:
    """Pixels as pages want them: (h, w) for one channel, (h, w, 3) for three."""
    array = pixels.cpu().numpy()
    return array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0))
