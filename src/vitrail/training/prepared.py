"""All that one training needs, as one value: made by `setup.py`, given a teacher by `distill/`, trained by `job.py`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from vitrail.data.batches import Batch, Batches
from vitrail.data.dataset import VALIDATION, Dataset, Split
from vitrail.model import Model
from vitrail.tasks.task import Objective, unit_of
from vitrail.training.execution import ALONE, Work, part_size, work_of
from vitrail.training.halves import Halves, cut
from vitrail.training.loop import steps_per_epoch
from vitrail.training.resolve import longest_read
from vitrail.training.schedule import Budget
from vitrail.training.settings import Settings
from vitrail.training.tuning.probe import Probed

STEP_OVERHEAD = 1.15  # augmentation, optimizer and validation come on top of forward and backward
TRIAL_FLOPS = 2e11  # most work of a timed step: a second or two on one thread


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """All that one training needs.

    Attributes:
        settings: Of the run.
        dataset: Where the samples come from.
        model: What is trained, its task, and its interface.
        data: The training batches.
        validation: The held-out batches.
        objective: What is minimised.
        beside: What a teacher takes in every step.
        notes: What was said of the data and the choices.
        micro_batch_seconds: Of forward and backward, as timed.
        former: The settings with which the run was finished, where it is to go on beyond; else None.
        probed: What the features are worth that a training starts from; None where it starts from nothing.
        processes: That train together.
    """

    settings: Settings
    dataset: Dataset
    model: Model
    data: Batches
    validation: Batches
    objective: Objective
    beside: Work = ALONE
    notes: tuple[str, ...] = ()
    micro_batch_seconds: float = 0.0
    probed: Probed | None = None
    former: Settings | None = None
    processes: int = 1

    @property
    def network(self) -> nn.Module:
        """What is trained."""
        return self.model.network

    @property
    def unit(self) -> str:
        """What one sample is called, in the singular; its plural has an s."""
        return unit_of(self.model.input)

    @cached_property
    def halves(self) -> Halves | None:
        """The cut of the validation samples, where a network is chosen on them."""
        return cut(self.dataset.validation, self.model.task.column) if self.settings.chooses else None

    @property
    def scored(self) -> tuple[Split, Batches]:
        """The samples on which each epoch is scored: those that choose, or all that are held out."""
        if self.halves is None:
            return Split(self.dataset.validation, VALIDATION), self.validation
        ids = self.halves.choose
        return Split(self.dataset.validation.select(ids), self.halves.chosen_on), self.validation.part(ids)

    @property
    def scored_words(self) -> str:
        """What a curve over these samples is called."""
        if self.halves is None:
            return VALIDATION
        return f"{self.halves.chosen_on}, which chose the model" if self.halves.problem else self.halves.chosen_on

    @property
    def step_seconds(self) -> float:
        """Of an optimizer step, as timed by one process before the first."""
        return self.micro_batch_seconds * self.settings.optimization.accumulate * STEP_OVERHEAD / self.processes

    def budget(self, began: float, spent: float) -> Budget | None:
        """The clock of a run that has a limit; None where it has none, or nothing but a probe.

        Args:
            began: When this process began with it, on `time.perf_counter`.
            spent: Seconds that it took before.
        """
        choices, initial = self.settings.optimization, self.settings.initial
        if not choices.max_time or self.settings.fits_head:
            return None
        held_out, test = len(self.scored[1]), self.dataset.test
        each = self.step_seconds / choices.batch_size / 2  # a forward pass is a third of a step; decoding comes on top
        if self.probed is not None:
            each = self.probed.reading / (self.probed.images + self.probed.trained)
        judged = len(self.validation) - held_out or held_out if test is None else len(test)
        chosen = held_out if self.settings.kept == "best" else 0
        last = judged if initial is None else 2 * (chosen + judged)  # the probe and the tuned are compared, maybe twice
        last += 3 * (0 if self.model.background is None else len(self.model.background))  # its images are explained
        per_epoch = steps_per_epoch(len(self.data), choices)
        passes = last / held_out
        return Budget(choices.max_time, began, spent, per_epoch, self.step_seconds, each * held_out, passes)

    def trial(self) -> tuple[Batch, float]:
        """A few samples to time a step with, and how many times that a micro-batch is."""
        part = min(part_size(self.settings.optimization), len(self.data))
        work = 3 * work_of(self.settings.network, longest_read(self.dataset)).flops + self.beside.flops
        few = max(1, min(part, max(8, int(TRIAL_FLOPS / work))))
        return next(self.data.batches(0, few)), part / few

    def data_facts(self) -> dict[str, Any]:
        """What `data.json` holds."""
        dataset = self.dataset
        return {
            "name": dataset.name,
            "root": dataset.root,
            "task": self.model.task.name,
            "column": dataset.column,
            **self.model.output.to_dict(),
            "images": {name: len(samples) for name, samples in dataset.splits.items()},
            "unknown": {name: dict(counts) for name, counts in dataset.unknown.items()},
            "split_seed": dataset.split_seed,
            "fingerprint": dataset.fingerprint,
            **dataset.facts,
            **({} if self.halves is None else {"halves": self.halves.to_dict()}),
        }
