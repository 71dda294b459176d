"""MNIST-M made from MNIST and packaged photographs: the recipes `mnist-m` and `d4-mnist-m` on several seeds.

    python -m benchmarks.mnist_m [SEEDS] [FIRST]        3 seeds, from seed 0 when left out

First come mean and standard deviation of the training images, beside those that document D4 gives for the published
files. The test images have photographs behind them that training does not have.
"""

import sys

import torch

from benchmarks.measure import machine, mnist_root
from benchmarks.no_flags import all_seeds

D4 = "mean 0.4639 0.4676 0.4199, deviation 0.2534 0.2380 0.2618"


def print_statistics() -> None:
    """What the images are made of, and the mean and deviation of each channel over those for training."""
    from vitrail.data import ArrayImages
    from vitrail.data.dataset import Counts
    from vitrail.data.preprocessing import measure_statistics
    from vitrail.training.prepared import open_data

    dataset, _ = open_data("mnist-m", "auto", mnist_root(), 0, Counts())
    images = dataset.train.inputs
    assert isinstance(images, ArrayImages), "benchmarked is what is made, not the published files"
    mean, deviation = measure_statistics(torch.from_numpy(images.pixels).permute(0, 3, 1, 2))
    ours = ", ".join(
        f"{name} {' '.join(f'{value:.4f}' for value in values)}"
        for name, values in (("mean", mean), ("deviation", deviation))
    )
    print(*dataset.notes, f"training images: {ours}", f"document D4:     {D4}", sep="\n")


def main() -> None:
    """Both recipes on the same seeds."""
    count, first = [*sys.argv[1:], *("3", "0")[len(sys.argv) - 1 :]]
    print(machine())
    print_statistics()
    for recipe in ("mnist-m", "d4-mnist-m"):
        all_seeds("mnist-m", int(count), int(first), recipe)


if __name__ == "__main__":
    main()
