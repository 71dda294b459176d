"""What the job needs to know of a training on sequences; see `preparation.py`. `prepare_sequences.py` makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.feed import Feed
from vitrail.data.readers.mnist_strings import LAYOUT, MNIST_STRINGS
from vitrail.data.sequence_batches import SequenceSet
from vitrail.data.sequence_source import SequenceSource
from vitrail.data.vocabulary import FIRST
from vitrail.errors import counted
from vitrail.model import save
from vitrail.nn import ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig
from vitrail.sequence_model import SequenceModel
from vitrail.training.card import sequence_card
from vitrail.training.evaluation_sequences import evaluate_sequences, sequence_set
from vitrail.training.loop import part_size
from vitrail.training.preparation import Preparation
from vitrail.training.sequence_metrics import SequenceOutcome
from vitrail.training.sequence_settings import SequenceSettings

TRIAL = 32  # samples of a timed step at most


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedSequences(Preparation):
    """All that a training on sequences needs.

    Attributes:
        source: Where the samples come from.
        model: What is trained, and its interface.
        validation: The samples that choices are made on.
    """

    settings: SequenceSettings
    source: SequenceSource
    model: SequenceModel
    data: SequenceSet
    validation: SequenceSet

    @property
    def network(self) -> nn.Module:
        """The model's."""
        return self.model.network

    @property
    def unit(self) -> str:
        """A picture with its text, or a pair of texts."""
        return "picture" if self.source.reads_pictures else "pair"

    @property
    def counted(self) -> str:
        """Tokens to be written, each end included."""
        return "tokens"

    @property
    def guesses(self) -> int:
        """The tokens and the end."""
        return len(self.model.vocabulary) - FIRST + 1

    @property
    def about_probabilities(self) -> str:
        """The model's."""
        return self.model.about_probabilities

    def trial(self) -> tuple[Any, float]:
        """A few samples, and how many times that a part of a batch is."""
        part = min(part_size(self.settings.optimization), len(self.data))
        few = min(part, TRIAL)
        return next(self.data.batches(0, few)), part / few

    def feeds(self) -> list[tuple[Feed, int]]:
        """Those of pictures in training and validation."""
        both = ((self.data.feed.pictures, len(self.data)), (self.validation.feed.pictures, len(self.validation)))
        return [(feed, count) for feed, count in both if feed is not None]

    def page_facts(self) -> list[tuple[str, str]]:
        """Sizes of data and network."""
        count, settings = sum(parameter.numel() for parameter in self.network.parameters()), self.settings
        facts = [
            (f"{self.unit}s", ", ".join(f"{len(samples):,} {name}" for name, samples in self.source.splits.items())),
            ("writes", self.model.vocabulary.says()),
            ("recipe", settings.recipe),
        ]
        match settings.network:
            case ImageToSequenceConfig(encoder=encoder, decoder_depth=depth):
                (height, width), (down, across) = encoder.image, encoder.patch
                shape = f"{_reading(encoder.depth)} and {_writing(depth)}, width {encoder.width}"
                facts.append(("picture size", f"{height} x {width}, patches of {down} x {across}"))
            case TransformerConfig() as network:
                shape = f"{_reading(network.encoder_depth)} and {_writing(network.decoder_depth)}"
                shape += f", width {network.width}"
        return [*facts, ("network", f"{count:,} parameters, {shape}")]

    def data_facts(self) -> dict[str, Any]:
        """What `data.json` holds."""
        source = self.source
        return {
            "name": source.name,
            "root": source.root,
            "tokens": list(self.model.vocabulary.tokens),
            "images": {name: len(samples) for name, samples in source.splits.items()},
            "split_seed": source.split_seed,
            "fingerprint": source.fingerprint,
            **({"layout": LAYOUT} if source.name == MNIST_STRINGS else {}),
        }

    def score(self, network: nn.Module) -> Mapping[str, float]:
        """Loss, and the share of texts that greedy search writes exactly right."""
        outcome = evaluate_sequences(self._with(network), self.validation, self.source.validation, "validation")
        return {"validation_loss": outcome.loss, "validation_accuracy": outcome.headline[1]}

    def save(self, network: nn.Module, folder: Path, outcome: Any = None) -> SequenceModel:
        """Write the model folder."""
        model = self._with(network)
        facts = {
            "data": self.settings.data,
            f"training {self.unit}s": f"{len(self.source.train):,}",
            "recipe": self.settings.recipe,
            "epochs": self.settings.optimization.epochs,
            "seed": self.settings.seed,
        }
        save(model, folder, card="" if outcome is None else sequence_card(model, self.settings.data, facts, outcome))
        return model

    def evaluate(self, model: SequenceModel) -> SequenceOutcome:
        """Exact matches on the test split, or on that for validation where there is none."""
        source = self.source
        if source.test is None:
            return evaluate_sequences(model, self.validation, source.validation, "validation")
        data = sequence_set(source.test, model, self.settings.execution.workers)
        return evaluate_sequences(model, data, source.test, "test")

    def _with(self, network: nn.Module) -> SequenceModel:
        assert isinstance(network, Transformer | ImageToSequence)
        return replace(self.model, network=network)


def _reading(depth: int) -> str:
    return counted(depth, "block that reads", "blocks that read")


def _writing(depth: int) -> str:
    return counted(depth, "that writes", "that write")
