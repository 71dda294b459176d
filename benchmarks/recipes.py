"""Recipes from scratch, and what earns its place in them: `python -m benchmarks.recipes OUT digits few-photos:PHOTOS`.

Each recipe as it is, and beside it a *plain* run (no mixup, no augmentation, no label smoothing) with one of the three
added at a time. Contestants run in turn, seed by seed, each as `vitrail train` in a process of its own with one thread
in fp32.
A line a run goes to OUT/runs.jsonl; what has a line is not run again, so a killed benchmark goes on.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import machine, mnist_root, spread
from benchmarks.no_flags import FROM_MNIST
from vitrail.data.augmentation import Augmentation
from vitrail.data.sources import FORMATS
from vitrail.statistics import wilson_interval
from vitrail.training.configuration.resolve import RECIPES

USUAL = {"mixup": 0.2, "label_smoothing": 0.1}  # where the recipe has none
PLAIN = asdict(Augmentation())
KEPT = ("fill",)  # what is no change by itself


def contestants(recipe: str) -> dict[str, dict[str, Any]]:
    """What each changes of the recipe's augmentation, by name."""
    own = asdict(RECIPES[recipe].augmentation)
    plain = {**PLAIN, **{name: own[name] for name in KEPT}}
    added = {name: own[name] or value for name, value in USUAL.items()}
    moves = {name: value for name, value in own.items() if name not in USUAL}
    found = {"the recipe": {}, "plain": plain, "plain + augmentation": {**plain, **moves}}
    named = {f"plain + {name.replace('_', ' ')} {value:g}": {name: value} for name, value in added.items()}
    return found | {name: {**plain, **change} for name, change in named.items()}


def run(recipe: str, data: str, change: str, augmentation: dict[str, Any], seed: int, out: Path) -> dict[str, Any]:
    """One training as a user starts it, with one thread; what it says of itself."""
    folder = out / f"{recipe}-{change.replace(' ', '-')}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    changes = folder.with_suffix(".yaml")
    changes.write_text(yaml.safe_dump({"augmentation": augmentation} if augmentation else {}))
    command = [sys.executable, "-m", "vitrail", "train", data, "--recipe", recipe, "--out", str(folder)]
    command += ["--seed", str(seed), "--threads", "1", "--precision", "fp32", "--json"]
    command += ["--data-root", str(mnist_root())] if data in FROM_MNIST else []
    command += ["--config", str(changes)] if augmentation else []
    began, load = time.perf_counter(), os.getloadavg()[0]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    execution = yaml.safe_load((folder / "config.yaml").read_text())["execution"]
    kept = {name: answer[name] for name in ("split", "images", "accuracy", "loss", "seconds")}
    asked = {"recipe": recipe, "data": Path(data).name, "change": change, "seed": seed}
    whole = {"process": time.perf_counter() - began, "load": load, "precision": execution["precision"]}
    return asked | kept | whole


def table(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each contestant, with the differences from the plain run of the same seed."""
    print("| data, recipe | | accuracy | beside plain, seed by seed | seconds of training |\n|---|---|---|---|---|")
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        some = [row for row in rows if row["recipe"] == recipe]
        plain = {row["seed"]: row["accuracy"] for row in some if row["change"] == "plain"}
        for change in dict.fromkeys(row["change"] for row in some):
            own = [row for row in some if row["change"] == change]
            images, mean = own[0]["images"], statistics.mean(row["accuracy"] for row in own)
            low, high = wilson_interval(round(mean * images), images)  # all seeds are asked of the same images
            said = f"{mean:.2%} ({100 * low:.1f} to {100 * high:.1f}, {images} images, seeds: {len(own)})"
            gained = [100 * (row["accuracy"] - plain[row["seed"]]) for row in own if row["seed"] in plain]
            beside = "" if change == "plain" else ", ".join(f"{gain:+.1f}" for gain in gained)
            beside += f"; mean {statistics.mean(gained):+.2f}" if beside and len(gained) > 1 else ""
            took = spread([row["seconds"] for row in own])
            print(f"| {own[0]['data']}, `{recipe}` | {change} | {said} | {beside} | {took} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what has no line yet, and print the table of all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("recipes", nargs="+", help="a recipe with its data: few-photos:FOLDER; digits is its own")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=40, help="seed")
    parser.add_argument("--only", nargs="*", help="contestants; all when left out")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    lines = given.out / "runs.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.is_file() else []
    done = {(row["recipe"], row["data"], row["change"], row["seed"]) for row in rows}
    for seed in range(given.first, given.first + given.seeds):
        for recipe, _, data in (asked.partition(":") for asked in given.recipes):
            if recipe not in {row.recipe for row in FORMATS} and not data:
                raise SystemExit(f"the recipe {recipe} needs its data\ntry: {recipe}:FOLDER")
            for change, augmentation in contestants(recipe).items():
                data = data or recipe
                if (recipe, Path(data).name, change, seed) in done or (given.only and change not in given.only):
                    continue
                rows.append(run(recipe, data, change, augmentation, seed, given.out))
                with lines.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    table(rows)
    print(machine())


if __name__ == "__main__":
    main()
