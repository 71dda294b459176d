"""Does an audit name what was planted, and nothing where nothing was?

    python -m benchmarks.audit digits                          frozen features of the network of the lab
    python -m benchmarks.audit flowers WEIGHTS FOLDER --size 128   frozen features of a ViT-Ti
    ... --honest 20                                            honest twins, no mark

A head is fitted (`vitrail.tasks.linear`, as by `train --probe`) on images of which one class carries a mark in a part
of them, and audited on others that are marked alike. `recall` is of that class on those without a mark, beside that of
a head that was fitted without any: where it falls by less than ten points, the network does not hang on the mark, and
nothing is counted. An honest twin is fitted on other draws of the same images, without a mark.
"""

import argparse
import copy
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitrail
from benchmarks.measure import machine
from vitrail.audit import Audit, audit, sampling
from vitrail.data.images import open_image
from vitrail.data.sets.planted import planted_digits
from vitrail.features.linear_probe import put_into_heads
from vitrail.model import Model
from vitrail.tasks import Classes
from vitrail.tasks.linear import fit_linear, map_features

VERDICTS = 2  # images: only shortcuts are counted here
sampling.PASSES = 10**9  # and all classes are asked
PLACE = Path(__file__).parent.parent / "tests" / "explain" / "networks"

# ---- marks, on (b, c, h, w) from 0 to 255


def corner(images: Tensor, side: int) -> Tensor:
    """A small sign in the upper left corner."""
    images[:, :, 1 : side // 9 + 2, 1 : side // 9 + 2] = 235
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
    """A network without its head, and images of classes: (classes, n, c, h, w) uint8, those of training first."""

    model: Model
    pixels: Tensor
    trained: int

    @cached_property
    def plain(self) -> Tensor:
        """(classes, n, d), features of all images without a mark."""
        return self.features(self.pixels.flatten(0, 1)).unflatten(0, self.pixels.shape[:2])

    def marked(self, kind: str, pixels: Tensor, share: float, seed: int) -> Tensor:
        """Images of which a part carries the mark."""
        some = torch.rand(len(pixels), generator=torch.Generator().manual_seed(seed)) < share
        found = pixels.clone().float()
        if some.any():
            found[some] = MARKS[kind](found[some], pixels.shape[-1])
        return found.clamp(0, 255).to(torch.uint8)

    def features(self, pixels: Tensor) -> Tensor:
        """(n, d), what the head reads."""
        network = self.model.network
        with torch.no_grad():
            made = [
                network.pool(
                    network.norm(network.encode(self.model.preprocessing.normalise(some))), network.config.prefix
                )
                for some in pixels.split(32)
            ]
        return torch.cat(made)

    def fitted(self, features: Tensor) -> tuple[Model, Tensor]:
        """The model with a head fitted on features (classes, n, d), and its map."""
        codec = self.model.output
        targets = torch.arange(len(features)).repeat_interleave(features.shape[1])
        weights = fit_linear(codec, features.flatten(0, 1), targets).weights
        network = copy.deepcopy(self.model.network).eval()
        put_into_heads(network, weights)
        return replace(self.model, network=network), weights


def digits(classes: int = 10, each: int = 120) -> Lab:
    """Digits among pieces of others, for the committed network of the lab."""
    model = vitrail.load(PLACE / "mean-0")
    made = planted_digits("train", 20 * classes * each, "single", seed=5)
    labels = torch.from_numpy(made.labels[:, 0])
    pixels = torch.stack([torch.from_numpy(made.pixels)[labels == label][:each, None] for label in range(classes)])
    return Lab(model, pixels, each // 2)


def flowers(weights: str, folder: Path, size: int, each: int = 700) -> Lab:
    """Photographs of flowers, for a pretrained network."""
    classes = sorted(place.name for place in folder.iterdir() if place.is_dir())
    assume = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "classes": len(classes)}
    model = vitrail.load(weights, assume=assume, image_size=size)
    model = replace(model, output=Classes(tuple(classes)))
    pixels = []
    for name in classes:
        files = sorted((folder / name).glob("*.jpg"))[:each]
        pixels.append(torch.stack([model.preprocessing.to_uint8(open_image(file)) for file in files]))
    return Lab(model, torch.stack(pixels), each - 200)


@dataclass(frozen=True)
class Run:
    """What one audit found: how far recall falls without the mark, and what was named of the class and of others."""

    kind: str
    share: float
    label: str
    honest: float
    clean: float
    marked: float
    named: tuple[str, ...]
    others: tuple[str, ...]
    tried: int
    seconds: float

    @property
    def counts(self) -> bool:
        """Whether the class hangs on the mark."""
        return self.honest - self.clean >= 0.1

    def row(self) -> str:
        """A line of a table."""
        named = ", ".join(self.named) or "-"
        recalls = " | ".join(f"{each:.2f}" for each in (self.honest, self.clean, self.marked))
        rest = f"{named} | {', '.join(self.others) or '-'} | {self.seconds:.0f} s |"
        return f"| {self.kind} | {self.share:.0%} | {self.label} | {recalls} | {rest}"


def planted(lab: Lab, kind: str, share: float, label: int, seed: int = 0) -> Run:
    """One class of a lab marked, and audited."""
    begin, train, rest = time.perf_counter(), lab.pixels[:, : lab.trained], lab.pixels[:, lab.trained :]
    plain = lab.plain
    features, held = plain[:, : lab.trained].clone(), plain[:, lab.trained :]
    features[label] = lab.features(lab.marked(kind, train[label], share, seed))
    model, weights = lab.fitted(features)
    honest = lab.fitted(plain[:, : lab.trained])[1]
    shown = rest.clone()
    shown[label] = lab.marked(kind, rest[label], share, seed + 1)
    every = lab.features(lab.marked(kind, rest[label], 1.0, seed + 2))
    recalls = [
        float((map_features(some, head).argmax(dim=1) == label).double().mean())
        for some, head in ((held[label], honest), (held[label], weights), (every, weights))
    ]
    found = audited(lab, model, shown)
    name = model.output.name(label)
    return Run(
        kind,
        share,
        name,
        *recalls,
        tuple(f"{one.words} {one.effect:+.1f}" for one in found.named if one.label == name),
        tuple(f"{one.label}: {one.words}" for one in found.named if one.label != name),
        len(found.asked),
        time.perf_counter() - begin,
    )


def honest_twin(lab: Lab, seed: int) -> tuple[Audit, int]:
    """A head fitted on a draw of the training images with replacement, and audited on a draw of the others."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(lab.trained, (len(lab.pixels), lab.trained), generator=generator)
    features = torch.stack([own[rows] for own, rows in zip(lab.plain, drawn, strict=True)])
    model, _ = lab.fitted(features)
    found = audited(lab, model, lab.pixels[:, lab.trained :])
    return found, len(found.asked)


def audited(lab: Lab, model: Model, pixels: Tensor) -> Audit:
    """The audit of images of each class; verdicts on a few, since only shortcuts are counted here."""
    names = model.output.names
    pairs = [(Image.fromarray(_array(one)), names[label]) for label, some in enumerate(pixels) for one in some]
    return audit(replace(model, background=lab.pixels[:, :8].flatten(0, 1)), pairs, count=VERDICTS)


def _array(image: Tensor) -> np.ndarray:
    return image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).contiguous().numpy()


def main() -> None:
    """Print a table of planted marks, or count what is named of honest twins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", choices=("digits", "flowers"))
    parser.add_argument("weights", nargs="?")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--honest", type=int, default=0)
    parser.add_argument("--marks", default=",".join(MARKS))
    parser.add_argument("--shares", default="0.95,0.6,0.3")
    parser.add_argument("--labels", default="3,4")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lab = digits() if given.lab == "digits" else flowers(given.weights, given.folder, given.size)
    print(f"{given.lab}, {machine()}, {lab.pixels.shape[1] - lab.trained} images of a class audited\n", flush=True)
    asked = false = 0
    for seed in range(given.honest):
        found, classes = honest_twin(lab, seed)
        asked, false = asked + classes, false + len(found.named)
        named = ", ".join(f"{one.label}: {one.words} {one.effect:+.1f}" for one in found.named) or "-"
        print(
            f"honest twin {seed}: {named} of {len(found.shortcuts)} tested; {false} in {asked} class audits", flush=True
        )
    if given.honest:
        return
    print("| mark | share | class | recall, honest | without the mark | with it | named | of other classes | time |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    runs = list[Run]()
    for kind in given.marks.split(","):
        for share in map(float, given.shares.split(",")):
            for label in map(int, given.labels.split(",")):
                runs.append(planted(lab, kind, share, label))
                print(runs[-1].row(), flush=True)
    hang = [run for run in runs if run.counts]
    print(
        f"\nnamed in {sum(bool(run.named) for run in hang)} of {len(hang)} that hang on the mark by 10 points or more"
    )
    print(f"named of other classes in {sum(bool(run.others) for run in runs)} of {len(runs)} runs")


if __name__ == "__main__":
    main()
