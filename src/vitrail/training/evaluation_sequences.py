"""Evaluating a network that writes: each sample once, in order, by greedy search."""

from collections.abc import Callable

import torch

from vitrail.data.samples import Samples
from vitrail.data.sequence_batches import SequenceSet, feed_of
from vitrail.data.vocabulary import PADDING
from vitrail.errors import DataError
from vitrail.nn import Greedy, Search
from vitrail.nn.mode import evaluating
from vitrail.sequence_model import SequenceModel
from vitrail.training.objectives import teacher_forcing
from vitrail.training.sequence_metrics import Reading, SequenceOutcome, edits

GREEDY = Greedy()
LIKELIHOOD = teacher_forcing()


def sequence_set(samples: Samples, model: SequenceModel, workers: int) -> SequenceSet:
    """Samples as batches for a model, in order: for an evaluation."""
    feed = feed_of(samples, model.preprocessing, model.source_vocabulary, workers)
    device = next(model.network.parameters()).device
    return SequenceSet(feed, len(samples), model.vocabulary, model.preprocessing, 0, device)


@torch.no_grad()
def evaluate_sequences(
    model: SequenceModel,
    data: SequenceSet,
    samples: Samples,
    split: str,
    search: Search = GREEDY,
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> SequenceOutcome:
    """Let a model write a text for each sample and compare.

    Args:
        model: What is evaluated; its network is in eval mode for the time.
        data: The samples as batches.
        samples: The same samples, with their names and texts.
        split: Name of the split.
        search: How the next id is chosen.
        batch_size: Samples at a time; does not change what is counted.
        progress: Called with the number of samples done.

    Raises:
        DataError: No sample at all can be read.
    """
    readings: list[Reading] = []
    loss_sum, asked, tokens = 0.0, 0, 0
    with evaluating(model.network):
        for batch in data.in_order(batch_size):
            if not len(batch):
                continue
            loss, count, _ = LIKELIHOOD(model.network, batch)
            loss_sum, asked = loss_sum + float(loss), asked + count
            tokens += int((batch.target != PADDING).sum()) - 2 * len(batch)
            names = [samples.name(index) for index in batch.ids.tolist()]
            written = model.write(batch.inputs, names, search)
            for index, one, wanted in zip(batch.ids.tolist(), written, samples.texts(batch.ids), strict=True):
                split_up = model.vocabulary.split
                wrong = 0 if one.text == wanted else edits(split_up(one.text) if one.text else [], split_up(wanted))
                readings.append(Reading(index, wanted, one, wrong))
            progress(min((batch.number + 1) * batch_size, len(data)))
    feed = data.feed.pictures
    problems = () if feed is None else tuple(feed.unreadable.values())
    if not readings:
        raise DataError(f"none of the {len(data)} samples of the {split} split can be read", "other samples")
    pictures = () if feed is None else ((feed, len(data)),)
    return SequenceOutcome(split, tuple(readings), tokens, loss_sum / max(1, asked), problems, pictures)
