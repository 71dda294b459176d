"""Pointing on real masks: `python -m benchmarks.pointing imagenet|labels OUT --methods M,M --count N --verdicts`.

imagenet   the real ViT-Ti on coco256, for its own classes where a class of COCO names the same things (`CLASSES`): of
           each photograph with a mask of such a class, the most probable of ImageNet's classes that belong to its
           masks; `top` where that is the network's answer
labels     the probe of the same on coco256 (`benchmarks.labels`): each label of a validation photograph that has a mask

    points   how much of the highest patch lies in the mask: where the mask fills 0.6 of a patch, 0.6
    mass     how much of the positive values of the map lies there, patch by patch
    random   what a random patch has, and an even map: the mask's part of the image
    centre   what the four patches in the middle have

Answers are lines of OUT (JSON), written as they come, so that what was stopped goes on; `--table` is of all lines.
Photographs where the class is the answer come first, so that `--count` takes those. 95 % intervals, by drawing
photographs anew. fp32, one thread.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitrail
from benchmarks.data_copies import ROOT
from benchmarks.label_maps import explained, mean, probed, rows_of
from benchmarks.measure import machine
from vitrail.explain import METHODS
from vitrail.explain.methods import DEFAULT
from vitrail.model import Model
from vitrail.nn.twin import wide

CLASSES: dict[str, Sequence[int]] = {
    "bicycle": (444, 671),
    "car": (436, 468, 511, 609, 627, 656, 661, 751, 817),
    "motorcycle": (665, 670),
    "airplane": (404, 895),
    "bus": (654, 779, 874),
    "train": (466, 547, 565, 705, 820, 829),
    "truck": (555, 569, 675, 717, 864, 867),
    "boat": (472, 484, 510, 554, 576, 625, 628, 780, 814, 871, 914),
    "traffic light": (920,),
    "parking meter": (704,),
    "bench": (703,),
    "bird": (*range(7, 25), *range(80, 101), *range(127, 147)),
    "cat": range(281, 286),
    "dog": range(151, 269),
    "horse": (339,),
    "sheep": (348, 349),
    "cow": (345,),
    "elephant": (101, 385, 386),
    "bear": range(294, 298),
    "zebra": (340,),
    "backpack": (414,),
    "umbrella": (879,),
    "handbag": (636, 748),
    "tie": (451, 906),
    "skis": (795,),
    "sports ball": (429, 430, 522, 574, 722, 768, 805, 852, 890),
    "tennis racket": (752,),
    "bottle": (440, 737, 898, 907),
    "wine glass": (572,),
    "cup": (504, 968),
    "spoon": (910,),
    "bowl": (659, 809),
    "banana": (954,),
    "apple": (948,),
    "orange": (950,),
    "broccoli": (937,),
    "hot dog": (934,),
    "pizza": (963,),
    "chair": (423, 559, 765),
    "couch": (831,),
    "potted plant": (738,),
    "bed": (564,),
    "dining table": (532,),
    "toilet": (861,),
    "tv": (664, 851),
    "laptop": (620, 681),
    "mouse": (673,),
    "remote": (761,),
    "keyboard": (508,),
    "cell phone": (487,),
    "microwave": (651,),
    "oven": (827,),
    "toaster": (859,),
    "sink": (896,),
    "refrigerator": (760,),
    "book": (917, 921),
    "clock": (409, 530, 892),
    "vase": (883,),
    "teddy bear": (850,),
}
"""The classes of COCO that name the same things as some of ImageNet's, by their number; the others have none."""

Row = dict[str, Any]


def masks_of(row: Row, model: Model) -> dict[str, np.ndarray]:
    """How much of each patch (rows, columns) each label of a photograph fills, as the model sees it."""
    file = ROOT / "coco256" / row["path"].replace("images", "masks").replace(".jpg", ".png")
    if not file.is_file():
        return {}
    numbers, found = np.asarray(Image.open(file)), dict[str, np.ndarray]()
    names = json.loads((ROOT / "coco256" / "mask_classes.json").read_text())
    plain = replace(model.preprocessing, channels=1, mean=(0.5,), std=(0.5,), pad_value=(0, 0, 0))
    rows, columns = model.network.grid(torch.empty(1, 3, *model.preprocessing.size))
    for number, name in names.items():
        if name in row["labels"].split("|"):
            there = Image.fromarray((numbers == int(number)).astype(np.uint8) * 255)
            mask = (plain.to_uint8(there)[0].numpy() > 127).astype(float)
            if mask.any():
                height, width = mask.shape[0] // rows, mask.shape[1] // columns
                found[name] = mask.reshape(rows, height, columns, width).mean(axis=(1, 3))
    return found


def of_imagenet(model: Model) -> Iterator[Row]:
    """The photographs whose masks belong to classes of ImageNet, each with the most probable one of these."""
    for row in rows_of(ROOT / "coco256" / "labels.csv", "train", "val"):
        masks = {name: mask for name, mask in masks_of(row, model).items() if name in CLASSES}
        able = [(number, name) for name in masks for number in CLASSES[name]]
        if able:
            with torch.no_grad():
                (logits,) = model.network(model.tensor([ROOT / "coco256" / row["path"]]))
            target, name = max(able, key=lambda pair: float(logits[pair[0]]))
            top = int(logits.argmax()) == target
            yield {"path": row["path"], "label": name, "target": target, "top": top, "mask": masks[name]}


def of_labels(model: Model) -> Iterator[Row]:
    """The labels of validation photographs that have a mask; `top` where the model predicts one."""
    for row in rows_of(ROOT / "coco256" / "labels.csv", "val"):
        masks = {name: mask for name, mask in masks_of(row, model).items() if name in model.output.names}
        if masks:
            with torch.no_grad():
                outputs = model.network(model.tensor([ROOT / "coco256" / row["path"]]))
            (said,) = model.output.says(outputs).tolist()
            for name, mask in masks.items():
                target = model.output.names.index(name)
                yield {"path": row["path"], "label": name, "target": target, "top": said[target], "mask": mask}


def inside(values: Tensor, mask: np.ndarray) -> dict[str, float]:
    """The two scores of a map (rows, columns); of several highest patches the mean."""
    found = wide(values).numpy()
    positive = found.clip(min=0)
    mass = float((positive * mask).sum() / positive.sum()) if positive.sum() > 0 else float(mask.mean())
    return {"points": float(mask[found == found.max()].mean()), "mass": mass}


def ask(model: Model, row: Row, method: str, tested: bool) -> Row:
    """The line of a photograph, a label and a method."""
    image, mask = model.tensor([ROOT / "coco256" / row["path"]]), row["mask"]
    if tested:
        attribution, trust = explained(model, image, row["target"], method)
    else:
        attribution, trust = METHODS[method].function(model.network, image, row["target"]), None
    (middle, beside), verdict = (side // 2 for side in mask.shape), None if trust is None else trust.verdict[0]
    around = {
        "random": float(mask.mean()),
        "centre": float(mask[middle - 1 : middle + 1, beside - 1 : beside + 1].mean()),
    }
    known = {name: each for name, each in row.items() if name != "mask"}
    return {**known, "method": method, **inside(attribution.values[0], mask), **around, "verdict": verdict}


COLUMNS: dict[str, Callable[[Row], float]] = {
    "points": lambda row: row["points"],
    "less the middle": lambda row: row["points"] - row["centre"],
    "less a random patch": lambda row: row["points"] - row["random"],
    "mass": lambda row: row["mass"],
    "less an even map": lambda row: row["mass"] - row["random"],
}
"""What stands in a table of the lines of some maps."""


def table(out: Path) -> None:
    """Print the tables of all lines: of those where the class is the answer and of all, and by the verdict."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    lines.sort(key=lambda line: line["verdict"] is not None)  # a tested one counts
    rows = [*{(line["path"], line["label"], line["method"]): line for line in lines}.values()]
    tested = [row for row in rows if row["verdict"]]
    by_verdict = {
        word: [row for row in tested if row["verdict"] == word] for word in {row["verdict"] for row in tested}
    }
    by_verdict["all but supported"] = [row for row in tested if row["verdict"] != "supported"]
    tables = {f"by the verdict on {DEFAULT}": by_verdict}
    for title, some in (("where it is the answer", [row for row in rows if row["top"]]), ("all", rows)):
        tables[title] = {f"`{name}`": [row for row in some if row["method"] == name] for name in METHODS}
        own = [row for row in some if row["method"] == DEFAULT]
        tables[title]["the middle"] = [{**row, "points": row["centre"], "mass": row["random"]} for row in own]
        tables[title]["a random patch"] = [{**row, "points": row["random"], "mass": row["random"]} for row in own]
    for title, named in tables.items():
        print(f"\n{title}\n\n| | n | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
        for name, some in named.items():
            of = [row["path"] for row in some]
            found = " | ".join(mean([*map(column, some)], of) for column in COLUMNS.values())
            print(f"| {name} | {len(some)} | {found} |" if some else f"| {name} | not measured |")


def main() -> None:
    """Ask what is not answered yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("of", choices=("imagenet", "labels"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", default=DEFAULT, help="by commas; all")
    parser.add_argument("--count", type=int, help="photographs, or labels of them; those of the answer first")
    parser.add_argument("--verdicts", action="store_true", help="also test the maps, 210 passes each")
    parser.add_argument("--table", action="store_true", help="of the lines that are there")
    given = parser.parse_args()
    print(machine())
    if not given.table:
        torch.set_num_threads(1)
        if given.of == "labels":
            run = given.out.with_suffix("")
            model = vitrail.load(run / "run" if run.exists() else probed(ROOT / "coco256" / "labels.csv", run))
        else:
            model = vitrail.load(ROOT / "vit_ti16" / "model.safetensors")
        rows = sorted({"imagenet": of_imagenet, "labels": of_labels}[given.of](model), key=lambda row: not row["top"])
        print(f"{len(rows)} in all, {sum(row['top'] for row in rows)} where it is the answer")
        done = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
        known = {
            (line["path"], line["label"], line["method"]) for line in done if line["verdict"] or not given.verdicts
        }
        methods = [*METHODS] if given.methods == "all" else given.methods.split(",")
        with given.out.open("a") as file:
            for method in methods:
                for row in rows[: given.count]:
                    if (row["path"], row["label"], method) not in known:
                        print(json.dumps(ask(model, row, method, given.verdicts)), file=file, flush=True)
    table(given.out)


if __name__ == "__main__":
    os.nice(10)
    main()
