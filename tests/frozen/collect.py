"""What is frozen: weights after 30 steps, maps of two networks, and the JSON of every verb, as plain values.

Every training is typed as a command, with one thread, in fp32 and with whole batches; the runs are then used by the
other verbs. All paths are relative to an empty working folder, so no answer holds a path of this machine.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from tests.frozen import adapter
from tests.frozen.values import readable, summary
from vitrail import ImageToSequence, ImageToSequenceConfig, ViT, ViTConfig

EXACT = ("--threads", "1", "--precision", "fp32", "--accumulate", "1", "--device", "cpu")
SLOW = ("rise", "kernel_shap")  # methods that are asked once only
PLANTED = {"train": 240, "validation": 40, "test": 60}

# Each takes 30 steps, in more than one epoch, so that order and augmentation of a second epoch are held as well.
CONFIGS = {
    "digits": "optimization: {epochs: 2, batch_size: 84, warmup_epochs: 0.5}",
    "planted": "optimization: {epochs: 2, batch_size: 16, warmup_epochs: 0.5, ema_decay: 0.9}",
    "sort-digits": "optimization: {epochs: 2, batch_size: 32, warmup_epochs: 0.5, ema_decay: 0.9}\n"
    "network: {dropout: 0.1}\naugmentation: {label_smoothing: 0.1}\ncounts: {train: 480, validation: 40, test: 60}",
    "mnist-strings": "optimization: {epochs: 2, batch_size: 8, warmup_epochs: 0.5, ema_decay: 0.9}\n"
    "counts: {train: 120, validation: 16, test: 24}",
    "student": "optimization: {epochs: 2, batch_size: 84, warmup_epochs: 0.5}\n"
    "network: {class_token: true, pooling: class, width: 32, depth: 2, mlp_dim: 64}",
}


PLAIN = "--no-calibration"  # what networks say, without a temperature that hangs on last bits


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Relative paths mean this folder; `VITRAIL_DATA` keeps what it meant."""
    named = os.environ.get("VITRAIL_DATA")
    if named:
        os.environ["VITRAIL_DATA"] = str(Path(named).resolve())
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        if named:
            os.environ["VITRAIL_DATA"] = named


def said(*words: object) -> Any:
    """What a command printed as JSON.

    Raises:
        AssertionError: The command failed.
    """
    code, out, errors = adapter.command(*words, "--json")
    assert code == 0, f"vitrail {' '.join(map(str, words))} left with {code}: {errors}"
    answer = readable(json.loads(out))
    if isinstance(answer, dict):
        answer.pop("calibration_error", None)  # of many numbers near each other: tests/tasks/test_calibration.py
    return answer


def trained(name: str, *words: object) -> dict[str, Any]:
    """Train into the folder `name`: what was printed, the steps, and a summary of every tensor."""
    Path(f"{name}.yaml").write_text(CONFIGS[name] + "\n")
    answer = said(*words, "--out", name, "--config", f"{name}.yaml", *EXACT)
    rows = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert epochs[-1]["step"] == 30, f"{name} took {epochs[-1]['step']} steps"
    losses = [epoch["training_loss"] for epoch in epochs]
    return {"json": answer, "losses": losses, "tensors": summary(adapter.weights(Path(name)))}


def explained(run: str, *words: object) -> Any:
    """What `vitrail explain` prints of each image; every call writes to a page of its own."""
    page = Path(f"{run}-{len(list(Path().glob(f'{run}-*.html')))}.html")
    found = said("explain", run, *words, "--out", page, "--threads", 1)
    return [{**row, "page": found["page"]} for row in found["images"]]


def digits() -> dict[str, Any]:
    """A classifier, and the verbs that take one."""
    draw_images(Path("images"), (8, 8))
    return {
        "train": trained("digits", "train", "digits", PLAIN),
        "evaluate": said("evaluate", "digits", "--threads", 1),
        "predict": said("predict", "digits", "images", "--threads", 1),
        "explain": explained("digits", "digits", "--count", 1, "--no-trust", "--compare", "--methods", "all"),
        "trust": explained("digits", "images/0.png", "--method", "attcat"),
        "models": said("models", "digits"),
    }


def planted() -> dict[str, Any]:
    """Images whose evidence is known, with a class token and its own mask in the explanation."""
    with adapter.small_planted(PLANTED):
        return {
            "train": trained("planted", "train", "planted", PLAIN),
            "explain": explained("planted", "planted", "--count", 1, "--method", "legrad"),
        }


def distillation() -> dict[str, Any]:
    """A student of the classifier above, with a distillation token."""
    return {
        "train": trained("student", "distill", "digits", "--teacher", "digits", PLAIN),
        "evaluate": said("evaluate", "student", "--threads", 1),
    }


def sort_digits() -> dict[str, Any]:
    """A Transformer that writes texts for texts."""
    return {
        "train": trained("sort-digits", "train", "sort-digits"),
        "evaluate": said("evaluate", "sort-digits", "--threads", 1),
        "generate": said("predict", "sort-digits", "30713", "9", "--threads", 1),
        "beam": said("predict", "sort-digits", "30713", "9", "--beam", 3, "--threads", 1),
        "sample": said("predict", "sort-digits", "30713", "--sample", "--seed", 1, "--threads", 1),
    }


def mnist_strings(data_root: Path) -> dict[str, Any]:
    """A network that writes texts for images; needs the real MNIST."""
    draw_images(Path("strings"), (32, 160))
    where = ("--data-root", data_root)
    return {
        "train": trained("mnist-strings", "train", "mnist-strings", *where),
        "generate": said("predict", "mnist-strings", "strings", "--threads", 1),
        "explain": explained("mnist-strings", "strings/0.png"),
    }


def verbs() -> dict[str, Any]:
    """The verbs that need no run."""
    machine = said("doctor")
    return {
        "models": said("models"),
        "layers": said("models", "Ti/16"),
        "doctor": {name: sorted(part) if isinstance(part, dict) else "there" for name, part in machine.items()},
    }


def lab() -> dict[str, nn.Module]:
    """Two small networks that differ in every part that explanations ask for."""
    common = {"channels": 1, "classes": 3, "width": 16, "heads": 2, "mlp_dim": 24, "patch_size": 4}
    return {
        "class token": seeded(ViT(ViTConfig(image_size=(12, 16), depth=3, registers=2, **common))),
        "mean": seeded(ViT(ViTConfig(image_size=(16, 12), depth=2, class_token=False, pooling="mean", **common))),
    }


def maps() -> dict[str, Any]:
    """Every method on both networks, for the top class and for one that is asked for."""
    found: dict[str, Any] = {}
    for label, network in lab().items():
        images = torch.randn((2, 1, *network.config.image), generator=torch.Generator().manual_seed(5))
        for name, method in adapter.methods().items():
            found[f"{name}, {label}"] = readable(adapter.explained(method, network, images, None))
            if name not in SLOW:
                again = adapter.explained(method, network, images[:1], torch.tensor([2]))
                found[f"{name}, {label}, class 2"] = readable(again)
    reader = ViTConfig(image_size=(8, 16), patch_size=4, channels=1, classes=0, width=16, depth=1, heads=2)
    writer = seeded(ImageToSequence(ImageToSequenceConfig(encoder=reader, vocab_size=7, decoder_depth=2, max_length=4)))
    images = torch.randn((2, 1, 8, 16), generator=torch.Generator().manual_seed(6))
    found["cross_attention"] = readable(adapter.text_map(writer, images, torch.tensor([[4, 5, 2], [6, 2, 0]])))
    return found


def seeded(network: nn.Module) -> nn.Module:
    """The network with weights that a seed decides, large enough that maps differ from one another."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for _, parameter in sorted(network.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return network.eval()


def draw_images(folder: Path, size: tuple[int, int]) -> None:
    """Three grey PNG files."""
    folder.mkdir()
    draw = np.random.default_rng(7)
    for number in range(3):
        Image.fromarray(draw.integers(0, 255, size).astype(np.uint8)).save(folder / f"{number}.png")


# In this order: the distillation has the classifier of `digits` as its teacher.
SECTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "digits": digits,
    "planted": planted,
    "distillation": distillation,
    "sort-digits": sort_digits,
    "mnist-strings": mnist_strings,
    "verbs": verbs,
    "maps": maps,
}
