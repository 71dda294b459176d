"""What the job needs to know of the training of a classifier; see `preparation.py`. `prepare.py` makes it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.batches import Batch, TrainingSet
from vitrail.data.feed import Feed, open_feed
from vitrail.data.source import Source
from vitrail.errors import counted
from vitrail.model import Model, save
from vitrail.nn import ViT
from vitrail.nn.cost import flops
from vitrail.training.card import model_card
from vitrail.training.evaluation import Evaluated, evaluate_model, evaluate_network
from vitrail.training.execution import ALONE, Beside
from vitrail.training.loop import part_size
from vitrail.training.objectives import Objective, classification
from vitrail.training.preparation import Preparation
from vitrail.training.settings import Settings

TRIAL_FLOPS = 2e11  # most work of a timed step: a second or two on one thread


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(Preparation):
    """All that the training of a classifier needs.

    Attributes:
        source: Where the pictures come from.
        model: What is trained, and its interface.
        validation: The feed of the validation pictures.
        beside: What a teacher takes in every step.
    """

    settings: Settings
    source: Source
    model: Model
    data: TrainingSet
    validation: Feed
    objective: Objective = classification
    beside: Beside = ALONE

    @property
    def network(self) -> nn.Module:
        """The model's."""
        return self.model.network

    @property
    def unit(self) -> str:
        """A picture."""
        return "picture"

    @property
    def counted(self) -> str:
        """Pictures, which are the samples too."""
        return "images"

    @property
    def guesses(self) -> int:
        """The classes."""
        return len(self.source.classes)

    @property
    def about_probabilities(self) -> str:
        """Nothing: they are those of classes."""
        return ""

    def trial(self) -> tuple[Batch, float]:
        """A few pictures, and how many times that a part of a batch is."""
        part = min(part_size(self.settings.optimization), len(self.data))
        work = 3 * flops(self.settings.network) + self.beside.flops
        few = max(1, min(part, max(8, int(TRIAL_FLOPS / work))))
        return next(self.data.batches(0, few)), part / few

    def feeds(self) -> list[tuple[Feed, int]]:
        """Those of training and validation."""
        return [(self.data.feed, len(self.data)), (self.validation, len(self.source.validation))]

    def page_facts(self) -> list[tuple[str, str]]:
        """Sizes of data and network."""
        splits = [("training", self.source.train), ("validation", self.source.validation), ("test", self.source.test)]
        count, network = sum(parameter.numel() for parameter in self.network.parameters()), self.settings.network
        (height, width), (down, across) = network.image, network.patch
        return [
            ("pictures", ", ".join(f"{len(split):,} {name}" for name, split in splits if split is not None)),
            ("classes", str(len(self.source.classes))),
            ("recipe", self.settings.recipe),
            ("network", f"{count:,} parameters, {counted(network.depth, 'block')} of width {network.width}"),
            ("picture size", f"{height} x {width}, patches of {down} x {across}"),
            *teacher_facts(self.settings).items(),
        ]

    def data_facts(self) -> dict[str, Any]:
        """What `data.json` holds."""
        source = self.source
        splits = {"train": source.train, "validation": source.validation, "test": source.test}
        return {
            "name": source.name,
            "root": source.root,
            "classes": list(source.classes),
            "images": {name: len(split) for name, split in splits.items() if split is not None},
            "unknown": {name: dict(counts) for name, counts in source.unknown.items()},
            "split_seed": source.split_seed,
            "fingerprint": source.fingerprint,
        }

    def score(self, network: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the validation pictures."""
        scores = evaluate_network(
            network, self.validation, self.source.validation.labels, self.guesses, self.model.preprocessing
        )
        return {"validation_loss": scores.loss, "validation_accuracy": scores.accuracy}

    def save(self, network: nn.Module, folder: Path, outcome: Evaluated | None = None) -> Model:
        """Write the model folder."""
        assert isinstance(network, ViT)
        model = replace(self.model, network=network)
        save(model, folder, card="" if outcome is None else self._card(model, outcome))
        return model

    def _card(self, model: Model, outcome: Evaluated) -> str:
        settings = self.settings
        facts = {
            "data": settings.data,
            "training pictures": f"{len(self.source.train):,}",
            "recipe": settings.recipe,
            "epochs": settings.optimization.epochs,
            "seed": settings.seed,
            **teacher_facts(settings),
        }
        return model_card(model, settings.data, facts, outcome)

    def evaluate(self, model: Model) -> Evaluated:
        """Scores on the test pictures, or on those for validation where there are none."""
        source = self.source
        split, name = (source.test, "test") if source.test is not None else (source.validation, "validation")
        feed = self.validation
        if source.test is not None:
            feed = open_feed(split.pictures, model.preprocessing, workers=self.settings.execution.workers)
        return evaluate_model(model, split, name, feed, source.unknown.get(name, {}))


def teacher_facts(settings: Settings) -> dict[str, str]:
    """Who taught, and how; empty where only the labels did."""
    how = settings.distillation
    if how is None:
        return {}
    soft = f", temperature {how.temperature:g}" if how.kind == "soft" else ""
    token = "by a distillation token" if settings.network.distillation_token else "on the class head"
    return {"teacher": how.teacher, "distillation": f"{how.kind}{soft}, weight {how.weight:g}, {token}"}
