"""vitrail: Vision Transformers that can be read, used and seen through.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])
    vitrail.explain.rollout(model.network, model.tensor(["photo.jpg"]))

Names are imported when they are first used, so that `import vitrail` alone costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import explain
    from vitrail.data.vocabulary import Vocabulary
    from vitrail.jobs import distill, evaluate, train
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
    from vitrail.sequence_model import SequenceModel
    from vitrail.training.options import DistillOptions, TrainOptions
    from vitrail.training.teacher import Teacher

__all__ = [
    "DistillOptions",
    "ImageToSequence",
    "ImageToSequenceConfig",
    "Model",
    "Record",
    "SequenceModel",
    "Teacher",
    "TrainOptions",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "Vocabulary",
    "distill",
    "evaluate",
    "explain",
    "load",
    "run_with_record",
    "save",
    "train",
]

_HOMES = {
    "SequenceModel": "vitrail.sequence_model",
    "Vocabulary": "vitrail.data.vocabulary",
    "DistillOptions": "vitrail.training.options",
    "ImageToSequence": "vitrail.nn",
    "ImageToSequenceConfig": "vitrail.nn",
    "Model": "vitrail.model",
    "Record": "vitrail.nn",
    "Teacher": "vitrail.training.teacher",
    "TrainOptions": "vitrail.training.options",
    "Transformer": "vitrail.nn",
    "TransformerConfig": "vitrail.nn",
    "ViT": "vitrail.nn",
    "ViTConfig": "vitrail.nn",
    "distill": "vitrail.jobs",
    "evaluate": "vitrail.jobs",
    "load": "vitrail.model",
    "run_with_record": "vitrail.nn",
    "save": "vitrail.model",
    "train": "vitrail.jobs",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name == "explain":
        return importlib.import_module("vitrail.explain")
    if name not in _HOMES:
        raise AttributeError(f"vitrail has no '{name}'; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
