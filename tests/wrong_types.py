"""Run as a process of its own, without the checks of tests: every public function with arguments of wrong types.

It prints a line for each error that is none of two lines, and how many calls there were.
"""

import contextlib
import inspect
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import vitrail
from vitrail import data, explain
from vitrail.errors import VitrailError

CONFIG = vitrail.ViTConfig(width=16, depth=2, heads=2, mlp_dim=32, image_size=16, patch_size=8, classes=2)
CALLED_BACK = {"listen", "progress", "notify", "note", "command", "cluster", "first"}  # looked at late, or not at all
LATE = {"out", "folder"}  # where something may be written


def wrong() -> dict[str, Any]:
    """Values of every kind; which of them are right, a function says itself."""
    values = [None, 3.5, object(), "what", b"x", [object()], {"a": object()}, (i for i in (1, 2)), [], np.zeros((2, 2))]
    return {repr(value)[:20]: value for value in values}


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Public functions with arguments that are right."""
    torch.manual_seed(0)
    network = vitrail.ViT(CONFIG).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    for number in range(8):
        file = Path("images") / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file)
    model = vitrail.Model(network, vitrail.Preprocessing((16, 16)), vitrail.Classes(("a", "b")))
    photo, images = "images/a/0.png", torch.randn(2, 3, 16, 16)
    vitrail.save(model, "model")
    one = explain.saliency(network, images)
    Path("tiny.yaml").write_text("network: {patch_size: 4, width: 8, depth: 1, heads: 2, mlp_dim: 16}")
    fast = {"epochs": 1, "threads": 1, "precision": "fp32", "device": "cpu", "background": False}
    tiny = vitrail.TrainOptions(**fast, config=Path("tiny.yaml"))
    return {
        "load": (vitrail.load, {"path": "model"}),
        "save": (vitrail.save, {"model": model, "folder": "saved"}),
        "convert": (vitrail.convert, {"module": network}),
        "train": (vitrail.train, {"data": "digits", "options": tiny}),
        "distill": (vitrail.distill, {"data": "digits", "teacher": "model", "options": vitrail.DistillOptions(**fast)}),
        "evaluate": (vitrail.evaluate, {"model": model, "data": "images"}),
        "embed": (vitrail.embed, {"data": "images", "model": model}),
        "similar": (vitrail.similar, {"images": photo, "data": "images", "model": model}),
        "Model": (vitrail.Model, {"network": network, "input": model.input, "output": model.output}),
        "Model.predict": (model.predict, {"sources": [photo]}),
        "Model.tensor": (model.tensor, {"sources": [photo]}),
        "Preprocessing": (vitrail.Preprocessing, {"size": (16, 16)}),
        "Classes": (vitrail.Classes, {"names": ("a", "b")}),
        "Vocabulary": (vitrail.Vocabulary, {"tokens": ("a", "b")}),
        "ViTConfig": (vitrail.ViTConfig, {}),
        "ViT": (vitrail.ViT, {"config": CONFIG}),
        "Teacher": (vitrail.Teacher, {"network": network, "preprocessing": model.input, "classes": ("a", "b")}),
        "run_with_record": (vitrail.run_with_record, {"network": network, "inputs": images}),
        "data.read": (data.read, {"what": "images"}),
        "data.pack": (data.pack, {"data": "images", "out": "packed"}),
        "data.Labels": (data.Labels, {"values": np.array([0, 1]), "names": ("a", "b")}),
        "data.Texts": (data.Texts, {"values": ("a",)}),
        "data.ArrayImages": (data.ArrayImages, {"pixels": np.zeros((2, 4, 4), np.uint8)}),
        "data.FileImages": (data.FileImages, {"paths": [Path(photo)]}),
        "explain.report": (explain.report, {"model": model, "images": photo, "trust": False}),
        "explain.compare": (explain.compare, {"model": network, "images": images, "methods": ["saliency"]}),
        "explain.trust": (explain.trust, {"model": network, "images": images, "attribution": one}),
        "explain.sanity_check": (explain.sanity_check, {"model": network, "images": images}),
        **{
            f"explain.{name}": (method.function, {"network": network, "images": images, "target": 0})
            for name, method in explain.METHODS.items()
            if method.cost != "many"
        },
        "Attribution.upsampled": (one.upsampled, {"size": (16, 16)}),
    }


def main() -> None:
    """Call each with one wrong argument at a time."""
    count = 0
    for name, (function, right) in calls().items():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL or parameter.name in CALLED_BACK:
                continue
            for words, value in wrong().items():
                if parameter.annotation is bool or (parameter.name in LATE and isinstance(value, str)):
                    continue
                try:
                    count += 1
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        function(**{**right, parameter.name: value})
                except VitrailError as error:
                    if str(error).count("\n") != 1:
                        print(f"{name}({parameter.name}={words}): {error}")
                except Exception as error:  # what should not be
                    print(f"{name}({parameter.name}={words}): {type(error).__name__}: {str(error)[:80]}")
    print(count)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        main()
