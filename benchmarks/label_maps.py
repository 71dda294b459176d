"""Maps of labels and of numbers: `python -m benchmarks.label_maps coco|double|count|cells --count N --workers W`.

coco     coco256, a probe of the real ViT-Ti: for each pair of an image of validation and a label of it that has a mask,
         how much of the highest patch lies in the mask, beside the middle of the image, and beside the highest patch of
         the map of the most probable label that is absent there; and how often maps are supported: of labels that are
         there, of one that is absent, and of photographs of flowers, which show none of the labels but two at most
double   the lab with two digits an image, both labels (`pairs-S` of `benchmarks.planted_networks`): mean average
         precision, how often a label's map points at its own digit, and how often maps are supported: of labels that
         are there, of one that is absent, of images without a digit, and of networks whose weights are drawn anew
count    the lab that counts digits, none to four an image: a small ViT of its own, how often maps of the number are
         supported, by how many digits there are, of networks whose weights are drawn anew, and of three that learnt few
         images by heart whose numbers were shuffled
cells    cells, a probe of the same: the rank correlation of the map of what raises the count with how many cells lie in
         each patch, and its part within 6 pixels of a cell, from an even map (0) to the true counts (1); beside random
         maps of the same smoothness

Intervals are of 95 %, by drawing images anew. All is computed in fp32, on processors, `--threads` for each worker.
"""

import argparse
import csv
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitrail
from benchmarks.data_copies import ROOT
from benchmarks.labels import r2
from benchmarks.measure import machine
from benchmarks.planted_networks import PLACE
from vitrail.data.dataset import DIGITS
from vitrail.data.sets.planted import planted_digits
from vitrail.explain import METHODS
from vitrail.explain.attribution import Attribution
from vitrail.explain.sanity_check import scramble, spearman
from vitrail.explain.scores.chance import random_maps
from vitrail.explain.scores.perturb import keys_of
from vitrail.explain.target import choose_target
from vitrail.explain.verdict import Trust, TrustOptions, prepare
from vitrail.model import Model
from vitrail.nn.twin import wide
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.ranking import average_precisions
from vitrail.tasks.regression import NumberTarget, Standardized

NEAR = 6  # pixels of a cell's middle
RANDOM = 24  # maps beside each
DRAWS = 2000
MOST = ", most probable"
OF_FLOWERS = ("potted plant", "vase")  # which photographs of flowers may show
BATCH = 16

Row = dict[str, Any]


def explained(model: Model, images: Tensor, target: Any, method: str) -> tuple[Attribution, Trust]:
    """The map of each image, and how far to trust it."""
    with torch.no_grad():
        logits = wide(model.network(images))
    chosen = choose_target(logits, target, model.output)
    test = prepare(model, images, chosen, TrustOptions(precision="fp32", seed=1), logits=logits)
    attribution = METHODS[method].function(model.network, images, test.masked.chosen.plain)
    return attribution, test.evaluate(attribution)


def mean(values: Sequence[float], of: Sequence[Any]) -> str:
    """The mean of some values, with its interval by drawing anew what they are of."""
    found, names = np.array(values, float), sorted(set(of), key=str)
    if not len(found):
        return "none"
    place = {name: number for number, name in enumerate(names)}
    where = np.array([place[name] for name in of])
    sums, counts = (np.bincount(where, weights, len(names)) for weights in (found, np.ones(len(found))))
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), (0.025, 0.975))
    return f"{found.mean():.3f} ({low:.3f} to {high:.3f})"


def verdicts(rows: Sequence[Row]) -> str:
    """Of how many each verdict is."""
    counts = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{name} {count} ({100 * count / len(rows):.1f} %)" for name, count in counts.most_common())


def run_all(work: Callable[[list[Any]], list[Row]], tasks: Sequence[Any], given: argparse.Namespace) -> list[Row]:
    """The rows of all tasks, by several processes."""
    with ProcessPoolExecutor(given.workers, get_context("spawn"), torch.set_num_threads, (given.threads,)) as pool:
        return [row for rows in pool.map(work, [[task] for task in tasks]) for row in rows]


def probed(listed: Path, folder: Path) -> Path:
    """The run of a probe of the real ViT-Ti, and its composites stored."""
    options = vitrail.TrainOptions(init=str(ROOT / "vit_ti16" / "model.safetensors"), probe=True)
    model = vitrail.train(str(listed), folder / "run", options).model
    image = Image.new("RGB", (224, 224), (90, 90, 90))
    explained(model, model.tensor([image]), 0, "generic_attention")
    return folder / "run"


def rows_of(listed: Path, *splits: str) -> list[Row]:
    """The lines of a list."""
    with listed.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["split"] in splits]


# ---- photographs with several labels


def masks_of(row: Row, model: Model) -> dict[str, np.ndarray]:
    """Where each label of an image lies, as the model sees it: (h, w) of 0 and 1; what is cut away is left out."""
    place, names = ROOT / "coco256", json.loads((ROOT / "coco256" / "mask_classes.json").read_text())
    numbers = np.asarray(Image.open(place / row["path"].replace("images", "masks").replace(".jpg", ".png")))
    plain = replace(model.preprocessing, channels=1, mean=(0.5,), std=(0.5,), pad_value=(0, 0, 0))
    found = {}
    for number, name in names.items():
        if name in row["labels"].split("|") and name in model.output.names:
            there = Image.fromarray((numbers == int(number)).astype(np.uint8) * 255)
            mask = (plain.to_uint8(there)[0].numpy() > 127).astype(float)
            if mask.any():
                found[name] = mask
    return found


def inside(values: Tensor, mask: np.ndarray) -> float:
    """How much of the highest patch lies in a mask."""
    patches = mask.reshape(14, 16, 14, 16).mean(axis=(1, 3))
    return float(patches.ravel()[int(values.flatten().argmax())])


def coco_rows(some: list[Row], run: Path, method: str) -> list[Row]:
    """A row for each label that is explained: those with a mask, two that are absent, two of a strange photograph."""
    model, found = vitrail.load(run), []
    names = model.output.names
    for row in some:
        masks, draw = masks_of(row, model) if "labels" in row else {}, np.random.default_rng(list(row["path"].encode()))
        image = model.tensor([ROOT / row.get("of", "coco256") / row["path"]])
        with torch.no_grad():
            (odds,) = model.network(image)
        there = {names.index(name) for name in row.get("labels", "|".join(OF_FLOWERS)).split("|") if name in names}
        rest = [number for number in range(len(odds)) if number not in there]
        absent, kind = max(rest, key=lambda number: float(odds[number])), "absent" if "labels" in row else "empty"
        asked = [("there", names.index(name)) for name in masks]
        asked += [(kind, int(draw.choice(rest))), (kind + MOST, absent)]
        numbers = [number for _, number in asked]
        attribution, trust = explained(model, image.expand(len(asked), -1, -1, -1), numbers, method)
        said = model.output.says(odds[None])[0]
        for place, (of, number) in enumerate(asked):
            each = {"image": row["path"], "kind": of, "verdict": trust.verdict[place], "predicted": bool(said[number])}
            if of == "there":
                mask = masks[names[number]]
                each |= {"own": inside(attribution.values[place], mask), "middle": float(mask[104:120, 104:120].mean())}
                each |= {"absent": inside(attribution.values[-1], mask), "area": float(mask.mean())}
            found.append(each)
    return found


def coco(given: argparse.Namespace, folder: Path) -> None:
    """Print the tables of photographs."""
    run, place = probed(ROOT / "coco256" / "labels.csv", folder), ROOT / "coco256" / "masks" / "val"
    listed = [
        r for r in rows_of(ROOT / "coco256" / "labels.csv", "val") if (place / f"{Path(r['path']).stem}.png").exists()
    ][: given.count]
    flowers = sorted(str(each.relative_to(ROOT / "flowers128")) for each in (ROOT / "flowers128").rglob("*.jpg"))
    strange = np.random.default_rng(0).choice(flowers, len(listed), replace=False).tolist()
    listed += [{"path": each, "of": "flowers128"} for each in strange]
    rows = run_all(partial(coco_rows, run=run, method=given.method), listed, given)
    print("| pairs | n | in the mask | less the middle | less an absent label's map | mask's area |")
    print("|---|---|---|---|---|---|")
    kinds: dict[str, Callable[[Row], bool]] = {
        "all": lambda row: True,
        "supported": lambda row: row["verdict"] == "supported",
        "others": lambda row: row["verdict"] != "supported",
        "predicted": lambda row: row["predicted"],
    }
    masked = [row for row in rows if row["kind"] == "there"]
    for name, keep in kinds.items():
        some = [row for row in masked if keep(row)]
        of = [row["image"] for row in some]
        each = (
            [row["own"] - row[beside] if beside else row["own"] for row in some] for beside in ("", "middle", "absent")
        )
        area = np.mean([row["area"] for row in some]) if some else np.nan
        print(f"| {name} | {len(some)} | {' | '.join(mean(values, of) for values in each)} | {area:.3f} |")
    print("\n| labels | n | supported | verdicts |\n|---|---|---|---|")
    for name in ("there", "there, predicted", *(kind + of for kind in ("absent", "empty") for of in ("", MOST))):
        some = [r for r in rows if r["kind"] == name.split(", pre")[0] and (r["predicted"] or "pre" not in name)]
        held = [float(row["verdict"] == "supported") for row in some]
        print(f"| {name} | {len(some)} | {mean(held, [row['image'] for row in some])} | {verdicts(some)} |")


# ---- the lab with two digits


@cache
def lab(name: str) -> Model:
    """A network that knows two digits an image, with thresholds fitted on validation images."""
    model, made = vitrail.load(PLACE / name), planted_digits("validation", 2000, "double", seed=3)
    codec = MultiLabels(DIGITS, (0.2,) * len(DIGITS))
    with torch.no_grad():
        outputs = torch.cat([model.network(images) for images in lab_images(model, made.pixels).split(500)])
    return replace(model, output=codec.settle(outputs, two_hot(made.labels)))


def lab_images(model: Model, pixels: np.ndarray) -> Tensor:
    """Images as the network reads them."""
    return model.preprocessing.normalise(torch.from_numpy(pixels)[:, None])


def two_hot(labels: np.ndarray) -> Tensor:
    """1 at both labels."""
    return torch.zeros(len(labels), len(DIGITS)).scatter_(1, torch.from_numpy(labels), 1.0)


def double_rows(tasks: list[tuple[str, str, int, int]], method: str) -> list[Row]:
    """A row for each map: of network, condition, number of the part and its size."""
    found = []
    for name, condition, part, size in tasks:
        model, draw = lab(name), np.random.default_rng(part)
        made = planted_digits("test", size, "empty" if condition.startswith("empty") else "double", seed=1000 + part)
        if condition.startswith("redrawn"):
            model = replace(model, network=scramble(model.network, part))
        images = lab_images(model, made.pixels)
        with torch.no_grad():
            odds = model.network(images)
        if condition in ("first", "second"):
            target = made.labels[:, int(condition == "second")]
        elif condition == "absent":
            target = np.array([draw.choice(np.setdiff1d(np.arange(10), labels)) for labels in made.labels])
        elif condition in ("empty", "redrawn"):
            target = draw.integers(10, size=size)
        else:
            target = odds.argmax(dim=1).numpy()
        attribution, trust = explained(model, images, target.tolist(), method)
        said, peaks = model.output.says(odds).numpy(), attribution.values.flatten(1).argmax(dim=1).numpy()
        cells = peaks // 8 // 2 * 4 + peaks % 8 // 2  # 8 x 8 patches, 4 x 4 cells
        for row in range(size):
            own = int(made.cells[row, int(condition == "second")]) if condition in ("first", "second") else -1
            there = {"condition": "there" if own >= 0 else condition, "network": name, "verdict": trust.verdict[row]}
            there |= {
                "image": (name, part, row),
                "points": float(cells[row] == own),
                "predicted": said[row, target[row]],
            }
            found.append(there)
    return found


def double(given: argparse.Namespace, folder: Path) -> None:
    """Print the tables of the lab."""
    names = ("pairs-0", "pairs-1", "pairs-2")
    for name in names:
        model, made = lab(name), planted_digits("test", 2000, "double", seed=11)
        with torch.no_grad():
            odds = torch.cat([model.network(images) for images in lab_images(model, made.pixels).split(500)]).numpy()
        precision = np.mean(average_precisions(odds, two_hot(made.labels).numpy()))
        print(f"{name}: mean average precision {precision:.4f}, {len(made.labels)} images")
        explained(model, lab_images(model, made.pixels[:1]), 0, given.method)  # composites are stored
    parts = -(-given.count // (2 * BATCH * len(names)))
    conditions = ("first", "second", "absent", *(each + of for each in ("empty", "redrawn") for of in ("", MOST)))
    size = {name: BATCH if name in ("first", "second") else 2 * BATCH for name in conditions}
    tasks = [(name, each, part, size[each]) for part in range(parts) for name in names for each in conditions]
    rows = run_all(partial(double_rows, method=given.method), tasks, given)
    print("| labels | n | supported | points at its own digit | verdicts |\n|---|---|---|---|---|")
    for kind in ("there", "there, predicted", *conditions[2:]):
        some = [r for r in rows if r["condition"] == kind.split(", pre")[0] and (r["predicted"] or "pre" not in kind)]
        of, held = [row["image"] for row in some], [float(row["verdict"] == "supported") for row in some]
        points = mean([row["points"] for row in some], of) if kind.startswith("there") else ""
        print(f"| {kind} | {len(some)} | {mean(held, of)} | {points} | {verdicts(some)} |")


# ---- numbers


SMALL = "network: {width: 32, depth: 3, heads: 2, mlp_dim: 64}\noptimization: {epochs: %d}\n"
REDRAWN, SHUFFLED = "weights drawn anew", "numbers shuffled"
SHUFFLES, EPOCHS = {"train": 2000, "validation": 500}, 30


def shuffled(config: Path, folder: Path, seed: int) -> Path:
    """A run that learnt few images of the lab by heart, whose numbers were shuffled."""
    data, draw = {}, np.random.default_rng(seed)
    for split, size in SHUFFLES.items():
        made = planted_digits(split, size, "count", seed=seed)
        numbers = draw.permutation((made.cells >= 0).sum(axis=1)).astype(float)
        data[split] = {"image": list(made.pixels), "number": numbers.tolist()}
    options = vitrail.TrainOptions(config=config, threads=1, task="regression", label_column="number", check=False)
    finished = vitrail.train(data, folder, options)
    model = finished.model
    train = lab_images(model, np.stack(data["train"]["image"]))
    with torch.no_grad():
        outputs = model.output.in_unit(torch.cat([model.network(some) for some in train.split(500)]))[:, 0].numpy()
    print(f"{SHUFFLED} {seed}: R2 of training images {r2(np.array(data['train']['number']), outputs):.2f}", end="; ")
    print(f"{finished.evaluated!r}; {model.output.calibrated}")
    explained(model, train[:1], None, "generic_attention")  # composites are stored
    return folder


def count_rows(tasks: list[tuple[Path, str, int]], method: str) -> list[Row]:
    """A row for each map: of run, what was done to it, and number of the part."""
    found = []
    for run, kind, part in tasks:
        model, made = vitrail.load(run), planted_digits("test", 2 * BATCH, "count", seed=1000 + part)
        if kind == REDRAWN:
            model = replace(model, network=scramble(model.network, part))
        attribution, trust = explained(model, lab_images(model, made.pixels), None, method)
        peaks = attribution.values.flatten(1).argmax(dim=1).numpy()
        cells = peaks // 8 // 2 * 4 + peaks % 8 // 2  # 8 x 8 patches, 4 x 4 cells
        for row, word in enumerate(trust.verdict):
            there = {"digits": int((made.cells[row] >= 0).sum()), "points": float(cells[row] in made.cells[row])}
            found.append({"image": (kind, run.name, part, row), "kind": kind, "verdict": word, **there})
    return found


def count(given: argparse.Namespace, folder: Path) -> None:
    """Print the table of the lab that counts."""
    for name, epochs in (("small", 1), ("by-heart", EPOCHS)):
        (folder / f"{name}.yaml").write_text(SMALL % epochs)
    options = vitrail.TrainOptions(config=folder / "small.yaml", threads=1)
    finished = vitrail.train("planted:count", folder / "run", options)
    print(f"{finished.evaluated!r}\n{finished.model.output.calibrated}; trained in {finished.seconds:.0f} s")
    explained(finished.model, lab_images(finished.model, planted_digits("test", 1, "count").pixels), None, given.method)
    parts = -(-given.count * 5 // (4 * 2 * BATCH))  # one image in five shows none
    tasks = [(folder / "run", kind, part) for kind in ("", REDRAWN) for part in range(parts)]
    runs = [shuffled(folder / "by-heart.yaml", folder / f"shuffled-{seed}", seed) for seed in range(3)]
    tasks += [(runs[part % len(runs)], SHUFFLED, part) for part in range(parts)]
    rows = run_all(partial(count_rows, method=given.method), tasks, given)
    print("| images | n | supported | points at a digit | verdicts |\n|---|---|---|---|---|")
    kinds: dict[str, Callable[[Row], bool]] = {
        "with a digit": lambda row: not row["kind"] and row["digits"] > 0,
        **{f"of {n} digits": lambda row, n=n: not row["kind"] and row["digits"] == n for n in range(5)},
        **{kind: lambda row, kind=kind: row["kind"] == kind for kind in (REDRAWN, SHUFFLED)},
    }
    for name, keep in kinds.items():
        some = [row for row in rows if keep(row)]
        of, held = [row["image"] for row in some], [float(row["verdict"] == "supported") for row in some]
        points = mean([row["points"] for row in some], of)
        print(f"| {name} | {len(some)} | {mean(held, of)} | {points} | {verdicts(some)} |")


def cell_rows(some: list[Row], run: Path, method: str) -> list[Row]:
    """A row for each image."""
    model, found = vitrail.load(run), []
    codec = model.output
    assert isinstance(codec, Standardized)
    for row in some:
        image = model.tensor([ROOT / "cells" / row["path"]])
        trust = explained(model, image, 0, method)[1]  # of the side on which the number lies
        with torch.no_grad():
            outputs = model.network(image)
        chosen = choose_target(outputs, 0, codec)
        assert isinstance(chosen, NumberTarget)
        raises = replace(chosen, scale=chosen.scale.abs())
        values = METHODS[method].function(model.network, image, raises.plain).values.detach()
        drawn = random_maps(values, RANDOM, 0, keys_of(image))[:, 0]
        width, height = Image.open(ROOT / "cells" / row["path"]).size
        dots = np.array([pair.split(",") for pair in row["dots"].split()], float).reshape(-1, 2)
        rows, columns = values.shape[1:]
        counts = np.zeros((rows, columns))
        np.add.at(counts, ((dots[:, 1] * rows / height).astype(int), (dots[:, 0] * columns / width).astype(int)), 1)
        y, x = np.mgrid[:height, :width]
        near = np.zeros((height, width), bool)
        for across, down in dots:
            near |= (x - across) ** 2 + (y - down) ** 2 <= NEAR**2
        where = (y * rows // height) * columns + x * columns // width
        share = (np.bincount(where.ravel(), near.ravel()) / np.bincount(where.ravel())).reshape(rows, columns)

        def mass(weights: np.ndarray, share: np.ndarray = share) -> float:
            positive = weights.clip(min=0)
            return float((positive * share).sum() / positive.sum()) if positive.sum() > 0 else float(share.mean())

        low, high = mass(np.ones_like(counts)), mass(counts)
        maps = [each.double().numpy() for each in (values[0], *drawn)]
        ranks = [
            float(spearman(torch.from_numpy(each.reshape(1, -1)), torch.from_numpy(counts.reshape(1, -1)))[0])
            for each in maps
        ]
        masses = [(mass(each) - low) / (high - low) for each in maps]
        found.append(
            {
                "image": row["path"],
                "verdict": trust.verdict[0],
                "rank": ranks[0],
                "rank at random": float(np.mean(ranks[1:])),
                "mass": masses[0],
                "mass at random": float(np.mean(masses[1:])),
            }
        )
    return found


def cells(given: argparse.Namespace, folder: Path) -> None:
    """Print the table of cells."""
    listed = ROOT / "cells" / "counts.csv"
    run = probed(listed, folder)
    splits = sorted({row["split"] for row in rows_of(listed, "test", "val", "validation", "train")} - {"train"})
    tasks = rows_of(listed, *splits)[-given.count :]
    rows = run_all(partial(cell_rows, run=run, method=given.method), tasks, given)
    of = [row["image"] for row in rows]
    print("| of the map of what raises the count | n | map | random maps | difference |\n|---|---|---|---|---|")
    for name, words in (
        ("rank", "rank correlation with cells in each patch"),
        ("mass", f"mass within {NEAR} pixels, 0 to 1"),
    ):
        own, chance = ([row[key] for row in rows] for key in (name, f"{name} at random"))
        gaps = [a - b for a, b in zip(own, chance, strict=True)]
        print(f"| {words} | {len(rows)} | {mean(own, of)} | {mean(chance, of)} | {mean(gaps, of)} |")
    print(f"verdicts: {verdicts(rows)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("coco", "double", "count", "cells"))
    parser.add_argument("--count", type=int, default=1000, help="images; of double maps of each condition")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--method", default="generic_attention")
    parsed = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as made_in:
        {"coco": coco, "double": double, "count": count, "cells": cells}[parsed.table](parsed, Path(made_in))
