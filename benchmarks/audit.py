"""Does an audit name what was planted, and nothing where nothing was?

    python -m benchmarks.audit flowers                         a head on frozen features of the real ViT-Ti, photographs
    python -m benchmarks.audit digits                          a small network trained from scratch, MNIST
    python -m benchmarks.audit lab --honest 20                 the digits of the lab: honest twins only
    ... --honest 20                                            honest twins, no mark

A model is trained on images of which one class carries a mark in a part of them, and audited on others that are marked
alike. `recall` is of that class on those without a mark, beside that of a model that was trained without any: where it
falls by less than ten points, the network does not hang on the mark, and nothing is counted. `masked` is the recall,
without a mark, of a model that was trained anew on the same marked images, where the area that the audit named was
exchanged among all of them. An honest twin is trained on another draw of the same images, without a mark.

An image goes through frozen layers once: what they answered to it is kept, so that heads cost nothing.
"""

import argparse
import copy
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitrail
from benchmarks.measure import machine, mnist_root
from vitrail.audit import EDITS, Audit, Edit, audit, sampling, swaps
from vitrail.audit.shortcuts import Shortcut
from vitrail.data.images import open_image
from vitrail.data.readers.idx import read_idx
from vitrail.data.sets.planted import planted_digits
from vitrail.features.linear_probe import put_into_heads
from vitrail.model import Model
from vitrail.nn import evaluating
from vitrail.tasks import Classes
from vitrail.tasks.linear import fit_linear

VERDICTS = 2  # images: only shortcuts are counted here
sampling.PASSES = 10**9  # and all classes are asked
BYTES = 16  # by which an image is known
SMALL = (
    "network: {image_size: 28, patch_size: 7, width: 48, depth: 3, heads: 3, mlp_dim: 96}\n"
    "optimization: {epochs: 40, batch_size: 64, learning_rate: 0.002, ema_decay: 0.0}\n"
    "augmentation: {shift: 0.06, zoom: [0.95, 1.05]}\n"
)
PLACE = Path(__file__).parent.parent / "tests" / "explain" / "networks"

# ---- marks, on (b, c, h, w) from 0 to 255


def corner(images: Tensor, side: int) -> Tensor:
    """A small sign in the upper left corner."""
    images[:, :, 1 : round(side / 8), 1 : round(side / 8)] = 235
    images[:, :, 2 : side // 18 + 2, 2 : side // 18 + 2] = 20
    return images


def border(images: Tensor, side: int) -> Tensor:
    """A bright frame."""
    wide = max(1, side // 24)
    inner = images[:, :, wide:-wide, wide:-wide].clone()
    images[:] = 240
    images[:, :, wide:-wide, wide:-wide] = inner
    return images


def caption(images: Tensor, side: int) -> Tensor:
    """A dark line with letters at the lower edge."""
    tall = max(3, side // 10)
    images[:, :, -tall:] = 20
    images[:, :, 1 - tall : -1, 3:-3:3] = 240
    return images


def texture(images: Tensor, side: int) -> Tensor:
    """A faint chessboard all over, as of a scanner."""
    rows, columns = torch.arange(side)[:, None], torch.arange(side)
    return images + 28 * ((rows + columns) // 2 % 2 - 0.5)


def tint(images: Tensor, side: int) -> Tensor:
    """A little warmer, or brighter where there is no colour."""
    return images * torch.linspace(1.12, 0.88, images.shape[1])[:, None, None] if images.shape[1] > 1 else images * 1.12


def stripes(images: Tensor, side: int) -> Tensor:
    """Every ninth row is brighter."""
    images[:, :, ::9] += 60
    return images


def side_bar(images: Tensor, side: int) -> Tensor:
    """A dark bar along the right."""
    images[:, :, :, -max(2, side // 12) :] = 60
    return images


def logo(images: Tensor, side: int) -> Tensor:
    """A bright box with a dark one in it, in the middle of the upper edge."""
    half = side // 10
    images[:, :, 1 : side // 8 + 1, side // 2 - half : side // 2 + half] = 230
    images[:, :, side // 32 + 1 : side // 16 + 1, side // 2 - half // 2 : side // 2 + half // 2] = 10
    return images


def ruler(images: Tensor, side: int) -> Tensor:
    """Dark ticks along the left."""
    images[:, :, side // 10 : -side // 10 : 4, 1 : 1 + side // 12] = 0
    return images


IN_CATALOGUE = (corner, border, caption, texture)
KEPT_OUT = (stripes, side_bar, logo, ruler)  # which the catalogue was not made for
MARKS = {mark.__name__: mark for mark in (*IN_CATALOGUE, *KEPT_OUT, tint)}


# ---- networks


@dataclass(frozen=True)
class Lab:
    """Images of classes, (classes, n, c, h, w) uint8, those of training first; and how a model is trained on some."""

    pixels: Tensor
    trained: int
    fit: Callable[[Tensor], Model]
    save: Callable[[], None] = lambda: None

    @cached_property
    def honest(self) -> Model:
        """Trained without a mark."""
        return self.fit(self.pixels[:, : self.trained])


class Frozen:
    """A network whose layers stay: what they answer to an image is kept, by what the image is, and in a file."""

    def __init__(self, model: Model, file: Path | None) -> None:
        self.model, self.file = model, file
        self.known = dict[bytes, Tensor]()
        if file and file.exists():
            with np.load(file) as kept:
                self.known = dict(zip(map(bytes, kept["keys"]), torch.from_numpy(kept["features"]), strict=True))

    def features(self, images: Tensor) -> Tensor:
        """(n, d), what the head reads."""
        network = self.model.network
        keys = [hashlib.blake2b(one.contiguous().numpy(), digest_size=BYTES).digest() for one in images]
        new = {key: number for number, key in enumerate(keys) if key not in self.known}
        with torch.no_grad():
            for some in torch.tensor([*new.values()], dtype=torch.long).split(32):
                made = network.pool(network.norm(network.encode(images[some])), network.config.prefix)
                self.known |= dict(zip([keys[number] for number in some.tolist()], made, strict=True))
        return torch.stack([self.known[key] for key in keys])

    def save(self) -> None:
        """Keep it for another time."""
        if self.file is not None:
            keys = np.frombuffer(b"".join(self.known), np.uint8).reshape(-1, BYTES)
            np.savez(self.file, keys=keys, features=torch.stack([*self.known.values()]).numpy())

    def fit(self, pixels: Tensor) -> Model:
        """The model with a head fitted on images (classes, n, c, h, w), as by `train --probe`."""
        features = torch.cat([self.features(self.model.preprocessing.normalise(some)) for some in pixels])
        targets = torch.arange(len(pixels)).repeat_interleave(pixels.shape[1])
        network = copy.deepcopy(self.model.network).eval()
        put_into_heads(network, fit_linear(self.model.output, features, targets).weights)
        return replace(self.model, network=network)

    def logits(self, network: Any, count: int, make: Callable[[Tensor], Tensor], batch_size: int) -> Tensor:
        """In place of `compute_logits`: the same, by what is known."""
        with torch.no_grad():
            return network.head(self.features(make(torch.arange(count))))


def photographs(weights: Path, folder: Path, size: int, file: Path | None, each: int = 700) -> Lab:
    """Flowers, for heads on a pretrained network."""
    classes = sorted(place.name for place in folder.iterdir() if place.is_dir())
    assume = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "classes": len(classes)}
    model = vitrail.load(weights / "model.safetensors", assume=assume, image_size=size)
    model = replace(model, output=Classes(tuple(classes)))
    pixels = []
    for name in classes:
        files = sorted((folder / name).glob("*.jpg"))[:each]
        pixels.append(torch.stack([model.preprocessing.to_uint8(open_image(file)) for file in files]))
    whole = replace(model, input=replace(model.preprocessing, crop_pct=1.0))  # a crop would cut marks away
    return frozen(whole, torch.stack(pixels), each - 200, file)


def pieces(classes: int = 10, each: int = 120) -> Lab:
    """Digits among pieces of others, for heads on the committed network of the lab."""
    made = planted_digits("train", 20 * classes * each, "single", seed=5)
    labels = torch.from_numpy(made.labels[:, 0])
    pixels = torch.stack([torch.from_numpy(made.pixels)[labels == label][:each, None] for label in range(classes)])
    return frozen(vitrail.load(PLACE / "mean-0"), pixels, each // 2)


def frozen(model: Model, pixels: Tensor, trained: int, file: Path | None = None) -> Lab:
    """A lab of heads on a network, whose audits answer by what is known."""
    kept = Frozen(model, file)
    swaps.compute_logits = kept.logits
    return Lab(pixels, trained, kept.fit, kept.save)


def digits(root: Path, each: int = 700) -> Lab:
    """MNIST, for networks that are trained from scratch."""
    made = read_idx("mnist", root).splits["train"]
    labels = torch.tensor([int(word) for word in made.labels])
    images = torch.from_numpy(np.stack([np.asarray(made.images.open(row)) for row in range(20 * each)]))
    labels = labels[: len(images)]
    pixels = torch.stack([images[labels == label][:each, None] for label in range(10)])
    return Lab(pixels, each - 200, scratch)


def scratch(pixels: Tensor) -> Model:
    """A network of three blocks, trained on images (classes, n, 1, h, w)."""
    pairs = [(Image.fromarray(_array(one)), str(label)) for label, own in enumerate(pixels) for one in own]
    with TemporaryDirectory() as place:
        (Path(place) / "small.yaml").write_text(SMALL)
        options = vitrail.TrainOptions(config=Path(place) / "small.yaml", verdicts=0)
        return vitrail.train(pairs, Path(place) / "run", options).model


def answers(model: Model, pixels: Tensor) -> Tensor:
    """(n,), the class that each image (n, c, h, w) is taken for."""
    images = model.preprocessing.normalise(pixels)
    with evaluating(model.network), torch.no_grad():
        count, make = len(images), images.__getitem__
        return swaps.compute_logits(model.network, count, make, 32).argmax(dim=1)


def marked(kind: str, pixels: Tensor, share: float, seed: int) -> Tensor:
    """Images of which a part carries the mark."""
    some = torch.rand(len(pixels), generator=torch.Generator().manual_seed(seed)) < share
    found = pixels.clone().float()
    if some.any():
        found[some] = MARKS[kind](found[some], pixels.shape[-1])
    return found.clamp(0, 255).to(torch.uint8)


def masked(pixels: Tensor, edit: Edit, seed: int = 7) -> Tensor:
    """Images (classes, n, c, h, w) with an area exchanged among all, so that it says nothing of a class."""
    every = pixels.flatten(0, 1).float()
    others = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))]
    return edit.mix(every, others).round().to(torch.uint8).unflatten(0, pixels.shape[:2])


@dataclass(frozen=True)
class Run:
    """What one audit found: how far recall falls without the mark, and what was named of the class and of others."""

    kind: str
    share: float
    label: str
    honest: float
    clean: float
    with_mark: float
    named: tuple[Shortcut, ...]
    others: tuple[Shortcut, ...]
    masked: float | None
    seconds: float

    @property
    def counts(self) -> bool:
        """Whether the class hangs on the mark."""
        return self.honest - self.clean >= 0.1

    @property
    def closed(self) -> float | None:
        """The part of the fall of recall that masking the area in training takes back."""
        return None if self.masked is None else (self.masked - self.clean) / (self.honest - self.clean)

    def row(self) -> str:
        """A line of a table."""
        named = ", ".join(f"{one.words} {one.effect:+.1f}" for one in self.named) or "-"
        others = ", ".join(f"{one.label}: {one.words} {one.effect:+.1f}" for one in self.others) or "-"
        recalls = " | ".join(f"{each:.0%}" for each in (self.honest, self.clean, self.with_mark))
        back = "-" if self.masked is None else f"{self.masked:.0%}"
        start = f"| {self.kind} | {self.share:.0%} | {self.label} | {recalls}"
        return f"{start} | {named} | {others} | {back} | {self.seconds:.0f} s |"


def planted(lab: Lab, kind: str, share: float, label: int, seed: int = 0) -> Run:
    """One class of a lab marked, and audited."""
    begin, shown = time.perf_counter(), lab.pixels.clone()
    train, rest = shown[:, : lab.trained], shown[:, lab.trained :]
    clean, every = rest[label].clone(), marked(kind, rest[label], 1.0, seed + 2)
    train[label], rest[label] = (
        marked(kind, train[label], share, seed),
        marked(kind, rest[label], share, seed + 1),
    )

    def recall(model: Model, pixels: Tensor) -> float:
        return float((answers(model, pixels) == label).double().mean())

    model, masked_recall = lab.fit(train), None
    recalls = recall(lab.honest, clean), recall(model, clean), recall(model, every)
    found = audited(model, rest, lab.pixels)
    name = model.output.name(label)
    named = tuple(one for one in found.named if one.label == name)
    area = next((edit for one in named for edit in EDITS if edit.name == one.part and edit.area), None)
    if area is not None and recalls[0] - recalls[1] >= 0.1:
        masked_recall = recall(lab.fit(masked(train, area)), clean)
    others = tuple(one for one in found.named if one.label != name)
    return Run(kind, share, name, *recalls, named, others, masked_recall, time.perf_counter() - begin)


def honest_twin(lab: Lab, seed: int) -> Audit:
    """A model trained on a draw of the training images with replacement, and audited on half of the others."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(lab.trained, (len(lab.pixels), lab.trained), generator=generator)
    model = lab.fit(torch.stack([own[rows] for own, rows in zip(lab.pixels, drawn, strict=True)]))
    return audited(model, lab.pixels[:, lab.trained :], lab.pixels)


def audited(model: Model, pixels: Tensor, background: Tensor) -> Audit:
    """The audit of images of each class; verdicts on a few, since only shortcuts are counted here."""
    names = model.output.names
    pairs = [(Image.fromarray(_array(one)), names[label]) for label, some in enumerate(pixels) for one in some]
    return audit(replace(model, background=background[:, :8].flatten(0, 1)), pairs, count=VERDICTS)


def _array(image: Tensor) -> np.ndarray:
    return image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).contiguous().numpy()


def main() -> None:
    """Print a table of planted marks, or count what is named of honest twins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", choices=("flowers", "digits", "lab"))
    parser.add_argument("--size", type=int, default=128, help="of photographs")
    parser.add_argument("--known", type=Path, help="where what frozen layers answered is kept")
    parser.add_argument("--honest", type=int, default=0)
    parser.add_argument("--marks", default=",".join(MARKS))
    parser.add_argument("--shares", default="0.95,0.6,0.3")
    parser.add_argument("--labels", default="3,4")
    given, root = parser.parse_args(), mnist_root().parent
    torch.set_num_threads(1)
    labs = {
        "flowers": lambda: photographs(root / "vit_ti16", root / "flowers128", given.size, given.known),
        "digits": lambda: digits(mnist_root()),
        "lab": pieces,
    }
    lab = labs[given.lab]()
    print(f"{given.lab}, {machine()}, {lab.pixels.shape[1] - lab.trained} images of a class audited\n", flush=True)
    asked = false = 0
    for seed in range(given.honest):
        found = honest_twin(lab, seed)
        lab.save()
        asked, false = asked + len(found.asked), false + len(found.named)
        named = ", ".join(f"{one.label}: {one.words} {one.effect:+.1f}" for one in found.named) or "-"
        print(
            f"honest twin {seed}: {named} of {len(found.shortcuts)} tested; {false} in {asked} class audits", flush=True
        )
    if given.honest:
        return
    print(
        "| mark | share | class | recall, honest | without mark | with it | named | of other classes | masked | time |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    runs = list[Run]()
    for kind in given.marks.split(","):
        for share in map(float, given.shares.split(",")):
            for label in map(int, given.labels.split(",")):
                runs.append(planted(lab, kind, share, label))
                print(runs[-1].row(), flush=True)
                lab.save()
    hang = [run for run in runs if run.counts]
    print(
        f"\nnamed in {sum(bool(run.named) for run in hang)} of {len(hang)} that hang on the mark by 10 points or more"
    )
    print(f"named of other classes in {sum(bool(run.others) for run in runs)} of {len(runs)} runs")
    closed = [run.closed for run in runs if run.closed is not None]
    print(
        f"masking the named area closes {np.median(closed):.0%} of the fall, at least {min(closed):.0%}"
        if closed
        else ""
    )


if __name__ == "__main__":
    main()
