"""The README of a saved model: what it is, what it learnt from, how well it does, how to use it."""

from collections.abc import Mapping
from typing import Any

from vitrail.data.references import about_references
from vitrail.errors import counted
from vitrail.model import Model
from vitrail.sequence_model import SequenceModel
from vitrail.training.evaluation import Evaluated
from vitrail.training.sequence_metrics import SequenceOutcome


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
    about = ""
    if model.references is not None:
        about = f"{about_references(model.references, model.compressed_references)}\n\n"
    return (
        f"# A Vision Transformer for {name}\n\n"
        f"{scores.accuracy:.2%} of {counted(scores.images, f'{evaluated.split} picture')} "
        f"{'is' if scores.images == 1 else 'are'} classified correctly "
        f"(95 % interval {low:.2%} to {high:.2%}).\n\n"
        f"| fact | value |\n|---|---|\n{rows}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\n'
        f'print(model.predict(["picture.png"])[0].label)\n```\n\n{about}'
        "The files hold tensors and plain text only. Preprocessing and class names are part of the model.\n"
    )


def sequence_card(model: SequenceModel, name: str, training: Mapping[str, Any], outcome: SequenceOutcome) -> str:
    """The README of a saved model that writes.

    Args:
        model: What is saved.
        name: Of the data.
        training: Facts of the training, by name.
        outcome: How well it does.
    """
    facts: dict[str, Any] = {
        **training,
        "writes": model.vocabulary.says(),
        "parameters": f"{sum(p.numel() for p in model.network.parameters()):,}",
    }
    if model.preprocessing is not None:
        facts["picture size"] = " x ".join(str(side) for side in model.preprocessing.size) + " pixels"
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    about = f"{model.about_probabilities}\n\n" if model.about_probabilities else ""
    kind, reads = type(model.network).__name__, "a picture" if model.reads_pictures else "a text"
    return (
        f"# {kind} for {name}\n\n"
        f"It reads {reads} and writes a text. {outcome.headline[0].capitalize()} {100 * outcome.headline[1]:.2f} % "
        f"{outcome.sentence()}.\n\n"
        f"| fact | value |\n|---|---|\n{rows}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\n'
        f"print(model.generate([{model.example!r}])[0].text)\n```\n\n{about}"
        "The files hold tensors and plain text only. Vocabulary and preprocessing are part of the model.\n"
    )
