"""What leaves the house, and what it was seen to do: `python -m benchmarks.out [ViT-Ti.safetensors] [photographs]`.

Each row is one `vitrail.export`, whole, proof included. In turn with the file's runtime the network itself answers one
image, on as many threads: the latencies of a row are of one run.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import vitrail
from benchmarks.measure import machine
from vitrail.data.preprocessing import Preprocessing
from vitrail.deploy.export import Exported
from vitrail.errors import VitrailError
from vitrail.tasks.classify import Classes

PASSES = 15


def base() -> vitrail.Model:
    """A B/16 of 1,000 classes, every number drawn: what an export costs does not depend on them."""
    torch.manual_seed(0)
    network = vitrail.ViT(vitrail.ViTConfig.from_size("B/16", classes=1000))
    with torch.no_grad():
        torch.nn.init.normal_(network.head.weight, std=0.02)
    names = tuple(map(str, range(1000)))
    return vitrail.Model(network.eval(), Preprocessing((224, 224)), Classes(names))


def milliseconds(model: vitrail.Model) -> float:
    """Of one image by torch, the median."""
    inputs, took = torch.zeros(1, model.preprocessing.channels, *model.preprocessing.size), []
    with torch.no_grad():
        for _ in range(PASSES):
            began = time.perf_counter()
            model.network(inputs)
            took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def row(name: str, what: str, found: Exported, torch_took: float) -> str:
    """A line of the table."""
    size = sum(found.files.values()) / 1e6 if found.target != "onnx" else next(iter(found.files.values())) / 1e6
    flips = f"{found.flips} of {found.images}"
    if found.changed is not None:
        flips += "; fewer bits: {} of {:,}".format(*found.changed)
    gap = "-" if found.gap is None else f"{found.gap:.1e}"
    latency = "-" if found.milliseconds is None else f"{found.milliseconds:.1f} / {torch_took:.1f}"
    return f"| {name} | {what} | {gap} | {flips} | {size:.1f} | {latency} | {found.seconds:.1f} |"


def main() -> None:
    """Export, and print the table."""
    data = Path(os.environ.get("VITRAIL_DATA", "../shared/data"))
    weights = sys.argv[1] if len(sys.argv) > 1 else str(data / "vit_ti16" / "model.safetensors")
    photographs = sys.argv[2] if len(sys.argv) > 2 else str(data / "photos" / "imagenet100")
    print(f"{machine()}, {torch.get_num_threads()} threads\n", flush=True)
    print("| model | target | gap | answers that differ | MB | ms an image: runtime / vitrail | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    tiny: dict[str, dict[str, Any]] = {
        "onnx": {},
        "onnx, any size": {"size": "any"},
        "onnx, fp16": {"weights": "fp16"},
        "onnx, int8": {"weights": "int8"},
        "onnx, generic_attention": {"explain": "generic_attention"},
        "onnx, attcat": {"explain": "attcat"},
        "onnx, gradient_rollout": {"explain": "gradient_rollout"},
        "transformers": {"to": "transformers"},
        "timm": {"to": "timm"},
        "torchvision": {"to": "torchvision"},
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = [("ViT-Ti", vitrail.load(weights), what, options) for what, options in tiny.items()]
        rows.append(("B/16, drawn", base(), "onnx", {}))
        for number, (name, model, what, options) in enumerate(rows):
            place = Path(folder) / str(number)
            more = {"out": place} if "to" in options else {"out": place / "model.onnx", "check": photographs}
            try:
                print(row(name, what, vitrail.export(model, **more, **options), milliseconds(model)), flush=True)
            except VitrailError as error:
                print(f"| {name} | {what} | refused: {error.problem} |", flush=True)


if __name__ == "__main__":
    main()
