"""What the tests of training share: tiny sets of images and texts, tiny networks, and comparisons down to the bit.

Where batches, objectives and the loop live is said here, once; the tests import these names from here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.data.lab import LIVELY, PLAIN, PatchyLoader, labelled_set as image_set, noise as some_images
from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch, Batches
from vitrail.data.columns import Texts, Vocabulary
from vitrail.data.dataset import Split, label_inputs
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.loader import Loader, ResidentLoader, StreamedLoader, TextLoader, load_resident
from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import Transformer, TransformerConfig, ViT, ViTConfig
from vitrail.nn.record import AnyRecord
from vitrail.runs.settings import Execution, Optimization
from vitrail.tasks.classify import cross_entropy, divergence
from vitrail.tasks.sequences import TextCodec, teacher_forcing
from vitrail.training.execution import part_size
from vitrail.training.loop import (
    EpochDone,
    State,
    StepDone,
    dropout_seed,
    start,
    steps_per_epoch,
    train_loop,
)
from vitrail.training.transfer.student import Kind, distillation, live_answers, stored_answers

__all__ = [  # and what is made here
    "Batch",
    "EpochDone",
    "Kind",
    "ResidentLoader",
    "StepDone",
    "cross_entropy",
    "distillation",
    "divergence",
    "dropout_seed",
    "live_answers",
    "part_size",
    "start",
    "steps_per_epoch",
    "stored_answers",
    "teacher_forcing",
    "train_loop",
]

TINY = ViTConfig(image_size=8, patch_size=4, channels=1, classes=3, width=16, depth=2, heads=2, mlp_dim=24)
NOISY = replace(TINY, dropout=0.2, attention_dropout=0.1, stochastic_depth=0.2, layer_scale=0.1)
EXECUTION = Execution(threads=1)
VOCABULARY = Vocabulary(tuple("0123456789"))


def photo_feed(folder: Path, shape: Preprocessing, workers: int | None) -> tuple[Loader, NDArray[np.int64]]:
    """Every third photograph below class folders, with labels: from memory when `workers` is None, else streamed."""
    paths = sorted(path for path in folder.rglob("*.*") if path.is_file())[::3]
    names, files = sorted({path.parent.name for path in paths}), FileImages(paths, folder)
    feed = load_resident(files, shape, 1) if workers is None else StreamedLoader(files, shape, workers)
    return feed, np.array([names.index(path.parent.name) for path in paths])


def tiny_set(count: int = 22, augmentation: Augmentation = LIVELY, seed: int = 0, bad: Iterable[int] = ()) -> Batches:
    """A training set in memory."""
    pixels, labels = some_images(count)
    return image_set(PatchyLoader(pixels, bad), labels, PLAIN, augmentation, seed)


def split_of(pixels: Tensor, labels: NDArray[np.int64]) -> Split:
    """The same images and labels as samples to evaluate a model on."""
    images = ArrayImages(pixels[:, 0].numpy(), "noise")
    return Split(label_inputs(images, labels, tuple("abc")), "test")


def batch_of_images(images: Tensor, labels: Tensor, first: int = 0) -> Batch:
    """A batch whose targets are the labels, and whose ids count from `first`."""
    return Batch(images, labels, labels, np.arange(first, first + len(labels)), 0, 0, 0)


def some_of(batch: Batch, rows: slice) -> Batch:
    """A micro-batch of it."""
    return replace(
        batch, inputs=batch.inputs[rows], targets=batch.targets[rows], labels=batch.labels[rows], ids=batch.ids[rows]
    )


def digit_strings(count: int, seed: int = 0) -> list[str]:
    """Strings of one to nine random digits, all different."""
    draw, found = np.random.default_rng(seed), []
    while len(found) < count:
        text = "".join(map(str, draw.integers(0, 10, draw.integers(1, 10))))
        found += [text] if text not in found else []
    return found


def text_set(sources: Sequence[str], targets: Sequence[str], seed: int = 0) -> Batches:
    """A training set of strings of digits."""
    feed, column = TextLoader(Texts(tuple(sources)), VOCABULARY), Texts(tuple(targets))
    return Batches(feed, column, TextCodec(VOCABULARY), VOCABULARY, seed=seed)


def batch_of_ids(targets: list[list[int]]) -> Batch:
    """A batch whose sources say nothing."""
    ids = torch.tensor(targets)
    return Batch(torch.zeros(len(targets), 1, dtype=torch.long), ids, ids, np.arange(len(targets)), 0, 0, 0)


def writer(width: int, max_length: int, seed: int = 0) -> Transformer:
    """A small Transformer from strings of digits to strings of digits, without dropout."""
    torch.manual_seed(seed)
    ids = VOCABULARY.outputs
    return Transformer(
        TransformerConfig(
            source_vocab_size=ids, target_vocab_size=ids, width=width, heads=2, mlp_dim=2 * width, encoder_depth=1,
            decoder_depth=1, dropout=0.0, norm="pre", max_length=max_length,
        )
    )  # fmt: skip


ON_CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."


@contextmanager
def memory_for(
    most: int, error: Callable[[], BaseException] = lambda: RuntimeError(ON_CPU), first: int = 0
) -> Iterator[list[int]]:
    """Within, a pass of more images than `most` runs out of memory on its way back, from the `first` such pass on.

    Gives how many images there were in each pass. When it fails, the head has its gradient already.
    """
    tried: list[int] = []

    def refuse(gradient: Tensor) -> None:
        tried.append(len(gradient))
        if len(gradient) > most and len(tried) > first:
            raise error()

    readout = ViT.readout

    def read(self: ViT, tokens: Tensor, *others: AnyRecord) -> Tensor:
        if tokens.requires_grad:
            tokens.register_hook(refuse)
        return readout(self, tokens, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViT, "readout", read)
        yield tried


CHOICES = Optimization(epochs=3, batch_size=8, learning_rate=3e-3, warmup_epochs=0.5, ema_decay=0.9, weight_decay=0.1)


def fresh(config: ViTConfig = NOISY, choices: Optimization = CHOICES, seed: int = 0) -> State:
    """The state of a training that has not begun."""
    torch.manual_seed(seed)
    network = ViT(config)
    for parameter in network.parameters():  # a fresh head is zero, and zeros hide faults
        torch.nn.init.normal_(parameter, std=0.1)
    return start(network, choices)


@dataclass
class Seen:
    """What a training did: its events, and the state it left."""

    state: State
    steps: list[StepDone]
    epochs: list[EpochDone]


def run(state: State, data: Batches, choices: Optimization = CHOICES, stop: int | None = None) -> Seen:
    """Train to the end, or until so many events have come."""
    seen = Seen(state, [], [])
    loop = train_loop(state, data, cross_entropy, choices, EXECUTION)
    for number, event in enumerate(loop, start=1):
        (seen.steps if isinstance(event, StepDone) else seen.epochs).append(event)
        if number == stop:
            break
    return seen


def bits(state: State) -> dict[str, Tensor]:
    """Everything in a state that a resume must bring back, as tensors by name."""
    found = {f"network.{name}": tensor for name, tensor in state.network.state_dict().items()}
    if state.average is not None:
        found |= {f"average.{name}": tensor for name, tensor in state.average.network.state_dict().items()}
    for index, values in state.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": tensor for name, tensor in values.items()}
    found |= {f"totals.{name}": tensor for name, tensor in state.totals.items()}
    found |= {name: torch.tensor(getattr(state, name)) for name in ("step", "epoch", "batch")}
    found["gradient_norm"] = state.gradient_norm
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def weights(network: nn.Module) -> dict[str, Tensor]:
    """A copy of a network's tensors."""
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether the names and all bits are equal."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
