"""A small ViT with and without a convolutional teacher, on 2,000 images: `python -m benchmarks.distillation`.

They are MNIST's; so few, because with all of them the small ViT has nothing left to learn from a teacher. The teacher
is a small convolutional network that is trained here, on the same images with the same augmentation: it knows nothing
that the student could not know. Student and schedule are the same with and without it; only the objective differs.
Kind, temperature and weight are the founding document's (soft, 3, 0.5) and were not tuned.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import vitrail
from benchmarks.measure import machine, mnist_root
from vitrail.data import Images, Samples
from vitrail.data.dataset import Counts, labels_of
from vitrail.runs.settings import Execution, Optimization
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import resolve
from vitrail.training.configuration.teacher import Teacher
from vitrail.training.loop import EpochDone, start, train_loop
from vitrail.training.prepared import Prepared, open_data, prepare_run

PER_CLASS = {"train": 200, "val": 100, "test": 10_000}
SEEDS = 10


def write_images(folder: Path) -> None:
    """Class folders: the first 200 images of each digit to learn from, 100 more to validate, and the whole test."""
    dataset, _ = open_data("mnist", "auto", mnist_root(), 0, Counts())
    for name, split in (("train", dataset.train), ("val", dataset.validation), ("test", dataset.splits["test"])):
        write_split(folder / name, split, PER_CLASS[name])


def write_split(folder: Path, split: Samples, most: int) -> None:
    """The first images of each class, as PNG."""
    written: Counter[int] = Counter()
    for index, label in enumerate(labels_of(split).tolist()):
        if written[label] < most:
            written[label] += 1
            (folder / str(label)).mkdir(parents=True, exist_ok=True)
            opened(split, index).save(folder / str(label) / f"{index:05d}.png")


def opened(samples: Samples, index: int) -> Image.Image:
    """One image of a split."""
    assert isinstance(samples.inputs, Images)
    return samples.inputs.open(index)


def small_cnn() -> nn.Module:
    """Four convolutions in two stages, and a linear map."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 64, 10))


def train_teacher(prepared: Prepared, epochs: int) -> Teacher:
    """The convolutional network, trained on the student's own images."""
    torch.manual_seed(0)
    network = small_cnn()
    choices = Optimization(epochs=epochs, batch_size=64, learning_rate=3e-3, weight_decay=0.01)
    for event in train_loop(start(network, choices), prepared.data, prepared.objective, choices, Execution(threads=1)):
        if isinstance(event, EpochDone) and (event.epoch + 1) % 10 == 0:
            print(f"teacher epoch {event.epoch + 1}: training loss {event.loss:.4f}", flush=True)
    return Teacher(network, prepared.model.preprocessing, prepared.model.classes, "small-cnn")


def accuracy(teacher: Teacher, prepared: Prepared) -> float:
    """Fraction of the test images that the teacher gets right."""
    test, preprocessing = prepared.dataset.splits["test"], prepared.model.preprocessing
    labels, right = labels_of(test), 0
    for first in range(0, len(test), 500):
        rows = range(first, min(first + 500, len(test)))
        images = torch.stack([preprocessing(opened(test, row)) for row in rows])
        right += int((teacher.answer(images, preprocessing).argmax(dim=1).numpy() == labels[list(rows)]).sum())
    return right / len(test)


def main() -> None:
    """Print each run, then mean and spread of both, and of the difference seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30, help="of students and teacher")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="students of each kind")
    given = parser.parse_args()
    epochs = given.epochs
    torch.set_num_threads(1)
    options = {"recipe": "mnist", "image_size": 28, "epochs": epochs, "batch_size": 64, "threads": 1, "workers": 1}
    scores: dict[str, list[float]] = {"alone": [], "taught": []}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "mnist-2000"
        write_images(data)
        dataset, task = open_data(str(data), "auto", None, 0, Counts())
        settings, _ = resolve(Request(data=str(data), options=vitrail.TrainOptions(**options)), dataset, task)
        prepared = prepare_run(settings, dataset, task)
        began = time.perf_counter()
        teacher = train_teacher(prepared, epochs)
        by_teacher = accuracy(teacher, prepared)
        print(f"teacher: {by_teacher:.2%} of the test in {time.perf_counter() - began:.0f} s", flush=True)
        for seed in range(given.seeds):
            began, out = time.perf_counter(), Path(place) / str(seed)
            alone = vitrail.train(str(data), out / "alone", vitrail.TrainOptions(**options, seed=seed))
            half = time.perf_counter()
            taught = vitrail.distill(str(data), teacher, out / "taught", vitrail.DistillOptions(**options, seed=seed))
            seconds = (half - began, time.perf_counter() - half)
            for name, finished, took in zip(scores, (alone, taught), seconds, strict=True):
                scores[name].append(finished.evaluated.value)
                print(f"seed {seed} {name}: {scores[name][-1]:.2%} in {took:.0f} s", flush=True)
    for name, values in scores.items():
        low, high = min(values), max(values)
        print(f"{name}: mean {statistics.mean(values):.2%} ({low:.2%} to {high:.2%}, n={len(values)})")
    gains = [taught - alone for alone, taught in zip(scores["alone"], scores["taught"], strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    print(
        f"taught less alone: mean {statistics.mean(gains):+.2%}, standard error {error:.2%}, "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds above zero"
    )
    print(machine())
    print(json.dumps({"teacher": by_teacher, **scores}))


if __name__ == "__main__":
    main()
