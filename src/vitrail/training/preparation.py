"""What the job needs to know of a training: the seam between one loop and the different things that can be learnt.

A kind of training (classification in `classifier.py`, sequences in `sequence_training.py`) is one class of this shape;
the job in `job.py` runs any of them and knows nothing of labels, vocabularies or teachers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from vitrail.data.feed import Feed
from vitrail.training.objectives import Objective
from vitrail.training.settings import RunSettings


@runtime_checkable
class Batch(Sized, Protocol):
    """Some samples, as an objective wants them; the length is their number."""

    @property
    def unreadable(self) -> int:
        """Samples that were left out because they could not be read."""
        ...


@runtime_checkable
class TrainingData(Sized, Protocol):
    """What batches come from; the length is the number of samples in an epoch."""

    @property
    def seed(self) -> int:
        """Of order, augmentation and dropout."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the batches go."""
        ...

    def batches(self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None) -> Iterator[Any]:
        """The batches of an epoch, from batch (or part) `start` on; see `data.batches.TrainingSet`."""
        ...


@runtime_checkable
class Outcome(Protocol):
    """A final evaluation."""

    @property
    def headline(self) -> tuple[str, float]:
        """What is said of it first, and its number from 0 to 1: ("test accuracy", 0.987)."""
        ...

    def sentence(self) -> str:
        """The rest of what is said: of how many, and the interval."""
        ...

    def feeds(self) -> Sequence[tuple[Feed, int]]:
        """The feeds that were read for it, with how many pictures each should hold."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Preparation(ABC):
    """All that one training needs.

    Attributes:
        settings: Of the run.
        data: Where the batches come from.
        objective: What is learnt.
        notes: What was said of the data and the choices.
        part_seconds: Of one part of a batch, as timed; 0 when it was not.
    """

    settings: RunSettings
    data: TrainingData
    objective: Objective
    notes: tuple[str, ...] = ()
    part_seconds: float = 0.0

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """What is trained."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """What one sample is called, in the singular; its plural has an s."""

    @property
    @abstractmethod
    def counted(self) -> str:
        """What the objective counts, as the metrics call it: the loss is a mean over so many."""

    @property
    @abstractmethod
    def guesses(self) -> int:
        """Among how many equal answers a network guesses that has learnt nothing: its loss is their logarithm."""

    @property
    @abstractmethod
    def about_probabilities(self) -> str:
        """What to know of the probabilities that the model gives, in a sentence; empty where there is nothing."""

    @abstractmethod
    def trial(self) -> tuple[Any, float]:
        """A few samples to time a step with, and how many times that a part of a batch is."""

    @abstractmethod
    def feeds(self) -> Sequence[tuple[Feed, int]]:
        """The feeds that training and validation read, with how many pictures each should hold."""

    @abstractmethod
    def page_facts(self) -> list[tuple[str, str]]:
        """What the page of the run says of data and network, as name and value."""

    @abstractmethod
    def data_facts(self) -> dict[str, Any]:
        """What the run remembers of its data: name, root, images by split, split_seed, fingerprint and more."""

    @abstractmethod
    def score(self, network: nn.Module) -> Mapping[str, float]:
        """`validation_loss` and `validation_accuracy` of a network, each sample counted once."""

    @abstractmethod
    def save(self, network: nn.Module, folder: Path, outcome: Any = None) -> Any:
        """Write the model folder, with a card once there is an outcome; returns the model."""

    @abstractmethod
    def evaluate(self, model: Any) -> Outcome:
        """The one evaluation at the end, on the test split where there is one."""
