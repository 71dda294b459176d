"""The README of a saved model: what it is, what it learnt from, how well it does, how to use it."""

from typing import TYPE_CHECKING

from vitrail.data.references import about_references
from vitrail.data.vocabulary import Vocabulary
from vitrail.shares import percent
from vitrail.tasks.task import Result

if TYPE_CHECKING:
    from vitrail.model import Model


def card(model: "Model", result: Result | None = None) -> str:
    """The text of the README.

    Args:
        model: What is saved; its facts are shown.
        result: How well it does, where that was counted.
    """
    name, holds = model.output.describe()
    facts = {
        **{fact.replace("_", " "): value for fact, value in model.facts.items()},
        name: holds,
        "parameters": f"{sum(parameter.numel() for parameter in model.network.parameters()):,}",
    }
    if isinstance(model.input, Vocabulary):
        reads = "a text"
        facts["reads"] = model.input.describe()[1]
    else:
        reads = "an image"
        facts["image size"] = " x ".join(str(side) for side in model.input.size) + " pixels"
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    kind, data = type(model.network).__name__, model.facts.get("data")
    title = f"# {kind} for {data}" if data else f"# {kind} made with vitrail"
    background = ""
    if model.background is not None:
        background = f"{about_references(model.background, model.compressed_background)}\n\n"
    about = f"{model.about}\n\n" if model.about else ""
    return (
        f"{title}\n\nIt reads {reads} and gives {model.task.help}.{_result(result)}\n\n"
        f"| fact | value |\n|---|---|\n{rows}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\n'
        f"print(model.predict([{model.example!r}])[0])\n```\n\n{about}{background}"
        "The files hold tensors and plain text only. How inputs are read, and what answers are called, is part of the "
        "model.\n"
    )


def _result(result: Result | None) -> str:
    if result is None:
        return ""
    name, value = result.headline
    shown = percent(value, 2) if result.metric.fraction else f"{value:.4g}"
    return f" {name.capitalize()} {shown} {result.sentence}."
