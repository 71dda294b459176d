"""Images per second of `vitrail.embed` against a plain loop: `python -m benchmarks.embed_speed [rounds] [images]`.

The real ViT-Ti on the photographs of ants and bees, as they are (shorter side at most 256) and enlarged to the size
that a camera gives (shorter side 2,000, written as JPEG into a folder of this run). Contestants in turn, both with
torch's threads as they are, and equal answers first:

    loop     for each batch of 64: each file is decoded and preprocessed, then the network reads them
    embed    `vitrail.embed`, where each thread takes a batch of its own from files to features

The goal is 1.3 times the images per second. Were a network's threads to scale, and nothing else to run, two cores would
gain the share of decoding D of all work, D + N: 1 + D / (D + N). So the processor seconds of both are measured, too.
More than that comes from threads that need not wait for each other behind every operation.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrail
from benchmarks.measure import machine, spread
from vitrail.data.images import open_image
from vitrail.model import Model

ROOT = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
BATCH, CAMERA = 64, 2000


def plain_loop(model: Model, files: list[Path]) -> np.ndarray:
    """Class tokens by the loop that anybody writes."""
    network, found = model.network, []
    with torch.no_grad():
        for first in range(0, len(files), BATCH):
            images = torch.stack([model.preprocessing(open_image(file)) for file in files[first : first + BATCH]])
            found.append(network.norm(network.encode(images))[:, 0])
    return torch.cat(found).numpy()


def enlarged(files: list[Path], folder: Path) -> list[Path]:
    """The same photographs as a camera writes them."""
    for file in files:
        image = open_image(file).convert("RGB")
        scale = CAMERA / min(image.size)
        large = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        large.save(folder / file.name, quality=92)
    return sorted(folder.iterdir())


def shares(model: Model, files: list[Path]) -> tuple[float, float]:
    """Processor milliseconds an image, on one thread: for decoding with preprocessing, and for the network."""
    before, began = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)
    images = torch.stack([model.preprocessing(open_image(file)) for file in files])
    decoded = time.process_time()
    with torch.no_grad():
        model.network.encode(images)
    computed = time.process_time()
    torch.set_num_threads(before)
    return 1000 * (decoded - began) / len(files), 1000 * (computed - decoded) / len(files)


def main() -> None:
    """Contestants in turn, on both sizes."""
    given = [int(word) for word in sys.argv[1:]]
    rounds, count = given + [5, 192][len(given) :]
    model = vitrail.load(ROOT / "vit_ti16" / "model.safetensors")
    with tempfile.TemporaryDirectory() as place:
        small, large = Path(place) / "small", Path(place) / "large"
        for folder in (small, large):
            folder.mkdir()
        originals = sorted((ROOT / "photos" / "ants-bees" / "train").rglob("*.jpg"))[:count]
        for file in originals:
            shutil.copy(file, small)
        enlarged(originals[: count // 2], large)
        print(machine(), f"threads {torch.get_num_threads()}")
        for folder in (small, large):
            measure(model, folder, rounds)


def measure(model: Model, folder: Path, rounds: int) -> None:
    """Both on one folder."""
    files = sorted(folder.iterdir())
    contestants: dict[str, Callable[[], np.ndarray]] = {
        "loop": lambda: plain_loop(model, files),
        "embed": lambda: np.asarray(vitrail.embed(model, folder).values["class"]),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):  # the first warms up and is compared
        answers = {}
        for name, call in contestants.items():
            began = time.perf_counter()
            answers[name] = call()
            if number:
                rates[name].append(len(files) / (time.perf_counter() - began))
        gap = float(np.abs(answers["loop"] - answers["embed"]).max() / np.abs(answers["loop"]).max())
        assert gap <= 1e-5, f"the answers differ by {gap:.1e}"
    decoding, network = shares(model, files[:32])
    with Image.open(files[0]) as first:
        print(f"{len(files)} photographs such as {first.width} x {first.height}: images per second")
    most = 1 + decoding / (decoding + network)
    print(
        f"  decoding {decoding:.1f} ms, network {network:.1f} ms of a processor an image: {most:.2f} times by overlap"
    )
    for name, values in rates.items():
        print(f"  {name:<6} {spread(values, 1)}")
    ratios = [ours / theirs for ours, theirs in zip(rates["embed"], rates["loop"], strict=True)]
    print(f"  ratio  {spread(ratios, 2)}, round by round; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
