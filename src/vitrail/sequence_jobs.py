"""Whole jobs with a model that writes: find the samples that it is asked about, and count how often it is right."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.data.readers import NAMED_SEQUENCES
from vitrail.data.samples import Samples, TextSamples
from vitrail.data.sequence_source import (
    Counts,
    is_sequences,
    open_sequences,
    reopen_sequences,
)
from vitrail.errors import DataError, UsageError, nearest
from vitrail.sequence_model import SequenceModel
from vitrail.training.evaluation_sequences import evaluate_sequences, sequence_set
from vitrail.training.execution import processors
from vitrail.training.sequence_metrics import SequenceOutcome

CHANGED = "The data has changed since the training: what was held out may now be among what was learnt."


@dataclass(frozen=True, eq=False)
class SequenceEvaluation:
    """Samples to evaluate or explain a model on.

    Attributes:
        samples: What is read and what is right.
        split_name: Which split this is.
        notes: Everything odd, one sentence each.
        name: The data, as it was given.
    """

    samples: Samples
    split_name: str
    notes: tuple[str, ...]
    name: str


def open_sequences_for(
    model: SequenceModel,
    remembered: dict[str, Any],
    data: str | None,
    data_root: Path | None = None,
    split: str | None = None,
) -> SequenceEvaluation:
    """The samples to ask a model about.

    Args:
        model: What they are for.
        remembered: What its run remembers of its data; empty where it remembers nothing.
        data: A named set or file; what the run was trained on when None.
        data_root: Where named sets lie.
        split: Which split; test, else validation when None.

    Raises:
        UsageError: There is no data given and none remembered, or no such split.
        DataError: The data cannot be used with this model.
    """
    if data is None and not remembered:
        raise UsageError("this model does not remember any data", f"one of {', '.join(NAMED_SEQUENCES)}, or a file")
    notes: tuple[str, ...] = ()
    if data is None or is_own(remembered, data):
        images = remembered["images"]
        counts = Counts(images["train"], images["validation"], images.get("test", 1))
        name, root = remembered["name"], remembered["root"]
        source = reopen_sequences(name, root, data_root, remembered["split_seed"], counts)
        notes = () if source.fingerprint == remembered["fingerprint"] else (CHANGED,)
    elif is_sequences(data):
        source = open_sequences(data, data_root)
    else:
        raise DataError(
            f"{data} holds no sequences", f"one of {', '.join(NAMED_SEQUENCES)}, a .tsv, or a .csv with path,text"
        )
    splits = source.splits
    chosen = split or ("test" if "test" in splits else "validation")
    if chosen not in splits:
        guess = nearest(chosen, splits) or next(iter(splits))
        raise UsageError(f"{source.name} has no split {chosen}, it has {', '.join(splits)}", f"--split {guess}")
    if source.reads_pictures != model.reads_pictures:
        kinds = ("texts", "pictures")
        raise DataError(
            f"{source.name} holds {kinds[source.reads_pictures]}, this model reads {kinds[model.reads_pictures]}",
            f"data with {kinds[model.reads_pictures]}",
        )
    samples = splits[chosen]
    if isinstance(samples, TextSamples) and model.source_vocabulary is not None:
        for text in samples.sources:
            model.source_vocabulary.encode(text)
    return SequenceEvaluation(samples, chosen, (*source.notes, *notes), source.name)


def is_own(remembered: dict[str, Any], data: str) -> bool:
    """Whether these words name the data that a run remembers."""
    if not remembered or data in NAMED_SEQUENCES:
        return bool(remembered) and data == remembered["name"]
    return Path(data).expanduser().resolve() == Path(remembered["root"])


def evaluate_written(
    model: SequenceModel, found: SequenceEvaluation, progress: Callable[[int], None] = lambda done: None
) -> SequenceOutcome:
    """Let a model write a text for each sample, and count.

    Args:
        model: What is evaluated.
        found: From `open_sequences_for`.
        progress: Called with the number of samples done.
    """
    data = sequence_set(found.samples, model, max(1, processors() - 1))
    return evaluate_sequences(model, data, found.samples, found.split_name, progress=progress)
