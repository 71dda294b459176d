"""The README of a saved model: what it is, what it learnt from, how well it does, how to use it."""

from collections.abc import Mapping
from typing import Any

from vitrail.model import Model
from vitrail.training.evaluation import Evaluated


def model_card(model: Model, name: str, training: Mapping[str, Any], evaluated: Evaluated) -> str:
    """The README of a saved model: what it is, what it was trained on, how well it does, how to use it.

    Args:
        model: What is saved.
        name: Of the data.
        training: Facts of the training, by name.
        evaluated: How well it does.
    """
    scores = evaluated.scores
    low, high = scores.interval
    facts: dict[str, Any] = {
        **training,
        "classes": ", ".join(model.classes[:20]) + (", ..." if len(model.classes) > 20 else ""),
        "parameters": f"{sum(p.numel() for p in model.network.parameters()):,}",
        "picture size": " x ".join(str(side) for side in model.network.config.image) + " pixels",
    }
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    return (
        f"# A Vision Transformer for {name}\n\n"
        f"{scores.accuracy:.2%} of {scores.images:,} {evaluated.split} pictures are classified correctly "
        f"(95 % interval {low:.2%} to {high:.2%}).\n\n"
        f"| fact | value |\n|---|---|\n{rows}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\n'
        'print(model.predict(["picture.png"])[0].label)\n```\n\n'
        "The files hold tensors and plain text only. Preprocessing and class names are part of the model.\n"
    )
