"""What a leak is worth, and what is left of it: `python -m benchmarks.data_leaks worth [SEEDS]`, `cost`, `search`.

worth     for each seed a probe of the real ViT-Ti learns 240 frames of 40 photographs of $VITRAIL_DATA/flowers128,
          6 of each, and is evaluated on 3 other frames of each beside 3 frames of each of 40 new photographs. The leak
          is the accuracy of all of these less that on frames of 200 photographs that are in nothing else; what is left
          of it is the same of the accuracy without leaks: by `--group-pattern`, and by near copies alone. Photographs
          are drawn from a pool of 300, whose features are computed once; what is left out is what a run leaves out.
cost      processor seconds of an evaluation and a training, with hashes of pictures and without, in turn
search    processor seconds of the search for near copies of 5,000 images among 100,000
"""

import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int64
from torch import Tensor

import vitrail
from benchmarks.measure import machine, spread
from tests.check.planted import plant_frames
from tests.photographs import make_photographs
from vitrail.data import loader, pictures
from vitrail.data.batches import Batches
from vitrail.data.layout import Layout
from vitrail.data.loader import OF_GROUP, Contents, open_loader
from vitrail.data.sources import read
from vitrail.features.poolings import head_features
from vitrail.runs.known import TrainedOn, learn_groups
from vitrail.tasks.classify import Classes
from vitrail.tasks.linear import map_features

ROOT = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
PATTERN = r"(.+)_\d{3}\.jpg$"
LEARNT, OTHER = 6, 3  # frames of a photograph
POOLED = 60  # photographs of a class
EACH, ALONE = 8, 40  # photographs of a class: that are learnt, and as many new ones; and in nothing else
RESAMPLED = 10_000


class Pool(NamedTuple):
    """Frames of photographs, with the features of each.

    Attributes:
        features: (n, d) of the frozen network.
        labels: (n,) class of each.
        photographs: (n,) number of the photograph, whose frames stand together.
        contents: (n, 64) by what a run knows each.
        output: The classes.
    """

    features: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    photographs: Int64[np.ndarray, " n"]
    contents: Contents
    output: Classes


def read_pool(folder: Path) -> Pool:
    """All frames, of as many photographs of each class."""
    draw = np.random.default_rng(0)
    for kind in sorted(each for each in (ROOT / "flowers128").iterdir() if each.is_dir()):
        files = sorted(kind.glob("*.jpg"))
        for row in draw.permutation(len(files))[:POOLED]:
            plant_frames(files[row], folder / kind.name, draw, LEARNT + OTHER)
    model = vitrail.load(ROOT / "vit_ti16" / "model.safetensors")
    (samples,) = read(str(folder), layout=Layout(group_pattern=PATTERN)).splits.values()
    column, images = samples.column("label"), open_loader(samples.inputs, model.input, workers=1, pictures=True)
    learn_groups(images, samples)
    output = Classes(column.names)
    found = head_features(model.network, Batches(images, column, output, model.input))
    photographs = np.unique(np.array(samples.units()), return_inverse=True)[1]
    return Pool(found.values, found.labels, photographs, images.contents, output)


def figures(pool: Pool, seed: int) -> list[float]:
    """Accuracy on learnt photographs' other frames, on all, without leaks, without near copies, on those alone."""
    draw, roles = np.random.default_rng(1000 + seed), np.zeros(pool.photographs.max() + 1, np.int64)
    first = np.unique(pool.photographs, return_index=True)[1]
    for number in range(pool.output.outputs):
        some = draw.permutation(np.flatnonzero(pool.labels.numpy()[first] == number))
        roles[some[:EACH]], roles[some[EACH : 2 * EACH]], roles[some[2 * EACH :][:ALONE]] = 1, 2, 3
    role, frame = roles[pool.photographs], np.arange(len(pool.photographs)) - first[pool.photographs]
    learnt = (role == 1) & (frame < LEARNT)
    held_out = ((role == 1) & ~learnt) | ((role == 2) & (frame < OTHER))
    fitted = pool.output.fit(pool.features[learnt], pool.labels[learnt])
    outputs = map_features(pool.features, fitted.weights)
    right = (pool.output.error(outputs, pool.labels) == 0).numpy()
    no_groups = pool.contents.copy()
    no_groups[:, OF_GROUP] = 0
    leaks, near = (TrainedOn(each[learnt]).ties(each) > 0 for each in (pool.contents, no_groups))
    alone = (role == 3) & (frame == 0)
    assert not leaks[alone].any()
    parts = held_out & (role == 1), held_out, held_out & ~leaks, held_out & ~near, alone
    return [*(float(right[part].mean()) for part in parts), float(near[parts[0]].mean())]


def gone(rows: Float[np.ndarray, "n 6"], place: int) -> float:
    """The part of the leak that is gone from one of the accuracies, of the means of some seeds."""
    everything, left, clean = rows[:, [1, place, 4]].mean(axis=0)
    return 1 - (left - clean) / (everything - clean)


def worth(seeds: int) -> None:
    """The leak, and what is gone of it, with intervals by the seeds."""
    with tempfile.TemporaryDirectory() as place:
        pool = read_pool(Path(place))
    rows = np.array([figures(pool, seed) for seed in range(seeds)])
    print(f"{len(pool.labels):,} frames of {len(np.unique(pool.photographs))} photographs, {seeds} seeds")
    resampled = rows[np.random.default_rng(0).integers(0, len(rows), (RESAMPLED, len(rows)))]

    def said(name: str, values: list[float], scale: float = 100) -> None:
        low, high = np.percentile(values[1:], [2.5, 97.5])
        print(f"{name}: {scale * values[0]:.1f} (95 % {scale * low:.1f} to {scale * high:.1f}, bootstrap of the seeds)")

    names = "other frames of the same photographs", "all frames", "without leaks, by the pattern"
    names += "without near copies alone", "new photographs that are in nothing else", "frames found by near copies"
    for place, name in enumerate(names):
        said(f"accuracy, {name}" if place < 5 else name, [some[:, place].mean() for some in (rows, *resampled)])
    said("the leak, points", [some[:, 1].mean() - some[:, 4].mean() for some in (rows, *resampled)])
    for place, name in ((2, "by the pattern"), (3, "by near copies alone")):
        said(f"gone of the leak {name}, %", [gone(some, place) for some in (rows, *resampled)])


@contextlib.contextmanager
def without_pictures() -> Iterator[None]:
    """As if no image were hashed as a picture."""
    before, loader.picture_hash = loader.picture_hash, lambda *given: bytes(loader.PICTURE)
    try:
        yield
    finally:
        loader.picture_hash = before


def cost(rounds: int) -> None:
    """Of a small network, where the hash counts most."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(io.StringIO()):
        make_photographs(Path(place) / "made", ("a", "b", "c"), per_class=300, seed=1)
        made = str(Path(place) / "made")
        plain: dict[str, Any] = {"threads": 1, "workers": 0, "device": "cpu", "verdicts": 0, "background": False}
        few = vitrail.TrainOptions(image_size=64, epochs=1, **plain)
        small = vitrail.train(made, Path(place) / "small", few).folder

        def train(epochs: int) -> None:
            asked = vitrail.TrainOptions(image_size=64, epochs=epochs, **plain)
            vitrail.train(made, Path(place) / f"run-{time.perf_counter_ns()}", asked)

        works = {
            "evaluate, 900 photographs of 90 pixels, a network of 64 pixels": lambda: vitrail.evaluate(small, made),
            "train, the same, 5 epochs": lambda: train(5),
        }
        for name, work in works.items():
            taken: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(rounds):
                for hashed in taken:
                    with contextlib.nullcontext() if hashed else without_pictures():
                        began = time.process_time()
                        work()
                        taken[hashed].append(time.process_time() - began)
            ratios = [100 * (one / other - 1) for one, other in zip(*taken.values(), strict=True)]
            print(f"{name}: {spread(taken[False], 2)} s, with pictures {spread(ratios, 1)} % more")


def search() -> None:
    """Of random bits, as those of photographs are."""
    draw = np.random.default_rng(0)
    known, asked = (draw.integers(0, 2**64, (count, 4), dtype=np.uint64) for count in (100_000, 5_000))
    began = time.process_time()
    found = sum(pictures.are_alike(asked[first : first + 256], known).sum() for first in range(0, len(asked), 256))
    print(f"5,000 among 100,000: {time.process_time() - began:.1f} s of processors, {found} found")


if __name__ == "__main__":
    print(machine())
    match sys.argv[1:]:
        case ["worth", *given]:
            worth(int((given or ["20"])[0]))
        case ["cost", *given]:
            cost(int((given or ["5"])[0]))
        case ["search"]:
            search()
        case _:
            raise SystemExit("worth, cost or search\ntry: python -m benchmarks.data_leaks worth")
