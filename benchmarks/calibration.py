"""Whether probabilities and sets keep what they promise: `python -m benchmarks.calibration [SPLITS]`.

A linear head on features of the real ViT-Ti for flowers128, whose top class is right on some 80 %. In each of 20 splits
of all its images 1,500 train the head, 250 calibrate it and the rest is counted: how often sets of 90 % hold the true
class against their beta-binomial band, and the expected calibration error before and after the temperature.
"""

import sys
import time

import numpy as np
import torch
from torch import Tensor

import vitrail
from benchmarks.data_copies import ROOT
from benchmarks.measure import machine
from vitrail.tasks import Classes
from vitrail.tasks.calibration import reliability

TRAINED, CALIBRATED, COVERAGE, DRAWS = 1500, 250, 0.9, 100_000


def features() -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Features and classes of all images."""
    found = vitrail.embed(str(ROOT / "vit_ti16" / "model.safetensors"), str(ROOT / "flowers128"))
    values, labels = next(iter(found.values.values())), found.labels or ()  # the pooling that the head reads
    names = tuple(sorted({*labels}))
    standard = (values - values.mean(axis=0)) / values.std(axis=0)
    return torch.from_numpy(standard), torch.tensor([names.index(label) for label in labels]), names


def band(count: int) -> tuple[float, float]:
    """Between what the coverage on so many images lies in 95 of 100 splits."""
    draw, rank = np.random.default_rng(0), int(np.ceil(COVERAGE * (CALIBRATED + 1)))
    rates = draw.beta(rank, CALIBRATED + 1 - rank, DRAWS)
    low, high = np.quantile(draw.binomial(count, rates) / count, [0.025, 0.975])
    return float(low), float(high)


def main(splits: int) -> None:
    """A row for each split, then their means."""
    values, classes, names = features()
    low, high = band(len(values) - TRAINED - CALIBRATED)
    rows = list[tuple[float, ...]]()
    for seed in range(splits):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(values)))
        train, calibrate, report = order.split([TRAINED, CALIBRATED, len(values) - TRAINED - CALIBRATED])
        plain, began = Classes(names), time.process_time()
        head = plain.fit(values[train], classes[train]).weights.float()
        outputs = values @ head[:, :-1].T + head[:, -1]
        codec = plain.calibrate(outputs[calibrate], classes[calibrate], "calibrate").promising(COVERAGE)
        answers, true = codec.answer(outputs[report], [""] * len(report)), classes[report]
        right = (outputs[report].argmax(dim=1) == true).numpy()
        held = np.mean([names[c] in one.set for one, c in zip(answers, true.tolist(), strict=True)])
        errors = [
            found.error
            for each in (plain, codec)
            if (found := reliability(each.confidence(outputs[report]).double().numpy(), right)) is not None
        ]
        size = float(np.mean([len(one.set) for one in answers]))
        rows.append((float(right.mean()), float(held), size, codec.temperature, *errors, low <= held <= high))
        print(f"{seed}: right {rows[-1][0]:.3f}, held {held:.3f}, {time.process_time() - began:.0f} s", file=sys.stderr)
    right, held, size, temperature, before, after, inside = np.array(rows).mean(axis=0)
    wanted = np.ceil(COVERAGE * (CALIBRATED + 1)) / CALIBRATED
    print(f"{len(values):,} images, {splits} splits; the top class is right on {right:.3f}")
    print(f"sets of {COVERAGE} hold the true class in {held:.4f} (wanted {wanted:.4f}), {size:.2f} classes on average")
    print(f"{inside * splits:.0f} of {splits} in the band {low:.3f} to {high:.3f}")
    print(f"temperature {temperature:.3f}; calibration error {before:.4f} before, {after:.4f} after")


if __name__ == "__main__":
    print(machine())
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
