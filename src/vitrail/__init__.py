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

_FOLDERS = ("data", "explain", "nn", "tasks", "training")
_HOMES = {  # which names stand where
    "vitrail.data.columns": ("Classes",),
    "vitrail.data.vocabulary": ("Vocabulary",),
    "vitrail.model": ("Model", "load", "save"),
    "vitrail.nn": (
        "ImageToSequence",
        "ImageToSequenceConfig",
        "Record",
        "Transformer",
        "TransformerConfig",
        "ViT",
        "ViTConfig",
        "run_with_record",
    ),
    "vitrail.training.distill.teacher": ("Teacher",),
    "vitrail.training.evaluate": ("evaluate",),
    "vitrail.training.job": ("distill", "train"),
    "vitrail.training.loop": ("train_loop",),
    "vitrail.training.options": ("DistillOptions", "TrainOptions"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name in _FOLDERS:
        return importlib.import_module(f"vitrail.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"vitrail has no '{name}'; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
