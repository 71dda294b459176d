"""vitrail: Vision Transformers that can be read, used and seen through.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])
    vitrail.explain.rollout(model.network, model.tensor(["photo.jpg"]))

Names are imported when they are first used, so that `import vitrail` alone costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import data, explain, nn, tasks, training
    from vitrail.data.columns import Classes
    from vitrail.data.vocabulary import Vocabulary
    from vitrail.model import Model, load, save
    from vitrail.nn import (
        ImageToSequence,
        ImageToSequenceConfig,
        Record,
        Transformer,
        TransformerConfig,
        ViT,
        ViTConfig,
        run_with_record,
    )
    from vitrail.training.distill.teacher import Teacher
    from vitrail.training.evaluate import evaluate
    from vitrail.training.job import distill, train
    from vitrail.training.loop import train_loop
    from vitrail.training.options import DistillOptions, TrainOptions

__all__ = [
    "Classes",
    "DistillOptions",
    "ImageToSequence",
    "ImageToSequenceConfig",
    "Model",
    "Record",
    "Teacher",
    "TrainOptions",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "Vocabulary",
    "data",
    "distill",
    "evaluate",
    "explain",
    "load",
    "nn",
    "run_with_record",
    "save",
    "tasks",
    "train",
    "train_loop",
    "training",
]

_HOMES = {
    "Classes": "vitrail.data.columns",
    "Vocabulary": "vitrail.data.vocabulary",
    "DistillOptions": "vitrail.training.options",
    "ImageToSequence": "vitrail.nn",
    "ImageToSequenceConfig": "vitrail.nn",
    "Model": "vitrail.model",
    "Record": "vitrail.nn",
    "Teacher": "vitrail.training.distill.teacher",
    "TrainOptions": "vitrail.training.options",
    "Transformer": "vitrail.nn",
    "TransformerConfig": "vitrail.nn",
    "ViT": "vitrail.nn",
    "ViTConfig": "vitrail.nn",
    "distill": "vitrail.training.job",
    "evaluate": "vitrail.training.evaluate",
    "load": "vitrail.model",
    "run_with_record": "vitrail.nn",
    "save": "vitrail.model",
    "train": "vitrail.training.job",
    "train_loop": "vitrail.training.loop",
}


_FOLDERS = ("data", "explain", "nn", "tasks", "training")


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name in _FOLDERS:
        return importlib.import_module(f"vitrail.{name}")
    if name not in _HOMES:
        raise AttributeError(f"vitrail has no '{name}'; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
