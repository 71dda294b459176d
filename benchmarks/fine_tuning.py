"""Probe, tuning and LoRA from the real ViT-Ti: images right, seconds and memory of whole processes, seed by seed.

python -m benchmarks.fine_tuning DATA OUT [--sets ants-bees mnist-1000] [--arms probe tuned lora] [--seeds 0 1 2 3 4]

DATA is the folder that holds `vit_ti16`, `photos` and `mnist`; OUT gets the runs and one line of `runs.jsonl` for each,
so that the command goes on where it stopped. The arms run in turn for each seed. Held-out images choose nothing here:
`--keep tuned` keeps what tuning ends with.

    ants-bees    245 photographs in two classes, 153 held out
    mnist-1000   1,000 labels at 96 pixels, ImageNet's features far from digits; 2,000 held out
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.measure import machine, spread
from vitrail.model import load
from vitrail.runs.data import Run, open_for
from vitrail.runs.evaluate import batches_of, errors_of
from vitrail.tasks.codec import gain

ARMS = {"probe": ["--probe"], "tuned": ["--keep", "tuned"], "lora": ["--keep", "tuned", "--lora", "8"]}
OPTIONS = {"ants-bees": [], "mnist-1000": ["--image-size", "96", "--batch-size", "50"]}
LABELS, HELD_OUT = 1_000, 2_000  # of MNIST
PLAIN = "augmentation: {flip: 0.0, crop_scale: [0.6, 1.0], label_smoothing: 0.1}\n"  # a mirrored digit is none


def digits(data: Path, folder: Path) -> Path:
    """MNIST's first digits of a fixed order as a folder of class folders: `train` and `val`."""
    if (folder / "val").is_dir():
        return folder
    for part, name, count in (("train", "train", LABELS), ("val", "t10k", HELD_OUT)):
        images, labels = (
            np.frombuffer(gzip.decompress((data / "mnist" / f"{name}-{kind}.gz").read_bytes()), np.uint8, offset=offset)
            for kind, offset in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
        )
        for index in sorted(np.random.default_rng(0).permutation(len(labels))[:count]):
            place = folder / part / str(labels[index])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.reshape(-1, 28, 28)[index]).save(place / f"{index:05d}.png")
    return folder


def run(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of a process and its largest resident size in MiB."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        problem = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(problem)
    return time.perf_counter() - began, used.ru_maxrss / 1024


def one(arm: str, name: str, seed: int, source: Path, images: Path, out: Path, more: Sequence[str]) -> dict[str, Any]:
    """One training, and which held-out images it gets right."""
    folder, config = out / f"{name}-{arm}-{seed}", out / "digits.yaml"
    config.write_text(PLAIN)
    command = [sys.executable, "-m", "vitrail", "train", str(images), "--init", str(source)]
    command += ["--out", str(folder), "--seed", str(seed), "--resume", "auto", *ARMS[arm], *OPTIONS[name], *more]
    command += ["--config", str(config)] if name == "mnist-1000" else []
    seconds, size = run(command)
    model = load(folder)
    held_out = open_for(model, Run(folder), None, split="validation")
    right = errors_of(model.output, model.network, batches_of(model, held_out.samples)) == 0
    probed = json.loads((folder / "probe.json").read_text())
    written = "".join("01"[int(each)] for each in right.tolist())
    return {"set": name, "arm": arm, "seed": seed, "seconds": seconds, "MiB": size, "probe": probed, "right": written}


def told(row: dict[str, Any]) -> torch.Tensor:
    """Which images are right, as a tensor."""
    return torch.tensor([each == "1" for each in row["right"]])


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """The figures of what is there so far."""
    for name in OPTIONS:
        found = {arm: {row["seed"]: row for row in rows if (row["set"], row["arm"]) == (name, arm)} for arm in ARMS}
        for arm, of_seed in found.items():
            if not of_seed:
                continue
            shares = [100 * row["right"].count("1") / len(row["right"]) for row in of_seed.values()]
            took, size = ([row[key] for row in of_seed.values()] for key in ("seconds", "MiB"))
            print(f"{name:<11} {arm:<6} {spread(shares, 1)} %; {spread(took)} s; {spread(size)} MiB")
            for other in ("probe", "tuned"):
                both = sorted(of_seed.keys() & found[other].keys()) if arm not in ("probe", other) else []
                for seed in both:
                    before, after = (~told(of[seed]) for of in (found[other], of_seed))
                    won = gain(before, after, is_wrong=True)
                    low, high = won.interval
                    points = f"{100 * won.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
                    print(f"    seed {seed}, {arm} less {other}: {points} points of {won.images}")


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--more", default="", help="what else the command gets, such as '--max-time 3m'")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "runs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    print(machine())
    source = asked.data / "vit_ti16" / "model.safetensors"
    for name in asked.sets:
        images = asked.data / "photos" / "ants-bees" if name == "ants-bees" else digits(asked.data, asked.out / "mnist")
        for seed in asked.seeds:
            for arm in asked.arms:
                if not any((row["set"], row["arm"], row["seed"]) == (name, arm, seed) for row in rows):
                    rows.append(one(arm, name, seed, source, images, asked.out, asked.more.split()))
                    with file.open("a") as handle:
                        handle.write(json.dumps(rows[-1]) + "\n")
    tell(rows)


if __name__ == "__main__":
    main()
