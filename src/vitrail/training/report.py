"""What a run shows of itself: the values of its page and the text of its model card, from facts only."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from vitrail.model import Model
from vitrail.pages.run_page import EvaluationSummary, Example, RunSummary, write_run_page
from vitrail.training.evaluation import Evaluated
from vitrail.training.prepare import Prepared
from vitrail.training.run import RunFolder

SHOWN = 12  # examples of each kind


@dataclass(frozen=True, eq=False)
class RunReport:
    """What a page is made of.

    Attributes:
        folder: The run.
        prepared: Its settings and data.
        state: "running", "finished" or "stopped".
        evaluated: The final evaluation, once there is one.
    """

    folder: RunFolder
    prepared: Prepared
    state: str
    evaluated: Evaluated | None


def write_report(report: RunReport) -> None:
    """Write `run.html`."""
    folder, prepared, evaluated = report.folder, report.prepared, report.evaluated
    settings, source, network = prepared.settings, prepared.source, prepared.model.network
    count = sum(parameter.numel() for parameter in network.parameters())
    splits = [("training", source.train), ("validation", source.validation), ("test", source.test)]
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in splits if split is not None)
    height, width = settings.network.image
    write_run_page(
        folder.page,
        RunSummary(
            title=f"{settings.data}",
            state=report.state,  # pyrefly: ignore[bad-argument-type]
            facts=[
                ("pictures", sizes),
                ("classes", str(len(source.classes))),
                ("recipe", settings.recipe),
                ("network", f"{count:,} parameters, {settings.network.depth} blocks of width {settings.network.width}"),
                (
                    "picture size",
                    f"{height} x {width}, patches of {settings.network.patch[0]} x {settings.network.patch[1]}",
                ),
            ],
            history=folder.history(),
            evaluation=None if evaluated is None else summary(evaluated),
            classes=source.classes,
            settings=asdict(settings),
            environment=json.loads((folder.path / "env.json").read_text(encoding="utf-8")),
            notes=list(prepared.notes),
            command=(folder.path / "command.txt").read_text(encoding="utf-8").strip(),
            examples=() if evaluated is None else examples(evaluated),
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


def as_picture(pixels: UInt8[Tensor, "c h w"]) -> UInt8[np.ndarray, "h w *c"]:
    """Pixels as pages want them: (h, w) for one channel, (h, w, 3) for three."""
    array = pixels.cpu().numpy()
    return array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0))


def model_card(model: Model, prepared: Prepared, evaluated: Evaluated) -> str:
    """The README of a saved model: what it is, what it was trained on, how well it does, how to use it."""
    settings, scores = prepared.settings, evaluated.scores
    low, high = scores.interval
    facts: dict[str, Any] = {
        "data": settings.data,
        "training pictures": f"{len(prepared.source.train):,}",
        "classes": ", ".join(model.classes[:20]) + (", ..." if len(model.classes) > 20 else ""),
        "parameters": f"{sum(p.numel() for p in model.network.parameters()):,}",
        "picture size": " x ".join(str(side) for side in settings.network.image) + " pixels",
        "recipe": settings.recipe,
        "epochs": settings.optimization.epochs,
        "seed": settings.seed,
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return (
        f"# A Vision Transformer for {settings.data}\n\n"
        f"{scores.accuracy:.2%} of {scores.images:,} {evaluated.split} pictures are classified correctly "
        f"(95 % interval {low:.2%} to {high:.2%}).\n\n"
        f"| fact | value |\n|---|---|\n{rows}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\n'
        'print(model.predict(["picture.png"])[0].label)\n```\n\n'
        "The files hold tensors and plain text only. Preprocessing and class names are part of the model.\n"
    )
