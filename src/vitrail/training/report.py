"""From a run to its page: the values that `run.html` shows, from facts only."""

import json

from vitrail.data.images import Images
from vitrail.pages.run_page import write_run_page
from vitrail.pages.views import EvaluationView, Example, RunView, Table
from vitrail.tasks import Result
from vitrail.text import percent
from vitrail.training.events import Reported
from vitrail.training.recipes import document_figure
from vitrail.training.settings import settings_to_dict


def write_report(report: Reported) -> None:
    """Write `run.html`."""
    folder, prepared, result = report.folder, report.prepared, report.evaluated
    task = prepared.task
    curves = [
        ("training" if name == task.metric.key else f"training, {name.replace('_', ' ')}", f"training_{name}")
        for name in task.measures.values()
    ]
    view = RunView(
        title=prepared.settings.data,
        state=report.state,
        facts=prepared.page_facts(),
        history=folder.history(),
        metric=task.metric.label,
        fraction=task.metric.fraction,
        curves=[*curves, ("validation", f"validation_{task.metric.key}")],
        evaluation=None if result is None else evaluation_view(result, prepared.unit),
        settings=settings_to_dict(prepared.settings),
        environment=json.loads((folder.path / "env.json").read_text(encoding="utf-8")),
        notes=list(prepared.notes),
        command=(folder.path / "command.txt").read_text(encoding="utf-8").strip(),
        examples=() if result is None or prepared.dataset.reads_text else images_of(result, report),
        unit=prepared.unit,
        document=document_figure(prepared.settings),
        about_probabilities=prepared.model.about,
    )
    write_run_page(folder.page, view)


def evaluation_view(result: Result, unit: str) -> EvaluationView:
    """An evaluation as values of a page; what are no images is shown as tables."""
    tables = list(result.tables)
    if unit != "image":
        for title, right in (("Mistakes, the surest first", False), ("Right answers, the surest first", True)):
            some = [one for one in result.examples if one.right == right]
            rows = [(one.name, one.truth, one.answer, percent(one.probability, 1)) for one in some]
            if rows:
                tables.append(Table(title, ("Source", "Right", "Written", "Probability"), tuple(rows)))
    return EvaluationView(
        split=result.split,
        count=result.count,
        unit=unit,
        value=result.metric.shown(result.value),
        metric=result.metric.label,
        statement=result.about[0],
        about=result.about[1],
        loss=result.loss,
        sections=tuple(tables),
        unknown=dict(result.unknown or {}),
        unreadable=list(result.unreadable),
    )


def images_of(result: Result, report: Reported) -> tuple[Example, ...]:
    """The images that an evaluation names as worth a look."""
    prepared = report.prepared
    samples = prepared.dataset.splits[result.split]
    assert isinstance(samples.inputs, Images)
    shape = prepared.model.preprocessing
    return tuple(
        Example(shape.to_array(samples.inputs.open(one.id)), one.name, one.truth, one.answer, one.probability)
        for one in result.examples
    )
