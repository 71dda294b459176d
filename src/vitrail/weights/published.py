"""Published weights: tables that scripts made from the libraries themselves, and known weights.

Names and shapes show an architecture and no more: ViT-Ti and DeiT-Ti have the same, but not the same normalisation. So
a row of the table is found by a hash of all tensors under our names, that of the file that was run for it; then the
network has to give the same logits for two images drawn from a seed.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import Hint, UsageError
from vitrail.nn import ViT


@cache
def known_table() -> dict[str, Any]:
    """Weights that were run in their own library, by their digest; made by `benchmarks/known_weights.py`."""
    return json.loads(Path(__file__).with_name("known_weights.json").read_text())


@cache
def _imagenet() -> tuple[tuple[str, str], ...]:
    """WordNet's id and the name of each of ImageNet's 1,000 classes, in the order of the logits."""
    lines = Path(__file__).with_name("imagenet.txt").read_text(encoding="utf-8").splitlines()
    return tuple((wnid, name) for wnid, _, name in (line.partition(" ") for line in lines))


def imagenet_names() -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes, in the order of the logits."""
    return tuple(name for _, name in _imagenet())


def wordnet_ids(names: Sequence[str]) -> tuple[str, ...]:
    """WordNet's ids of ImageNet's 1,000 classes, where these are their names in their order; else none.

    Libraries spell some names differently, or give synonyms with commas between: one in ten may differ.
    """
    if len(names) != len(_imagenet()):
        return ()
    alike = sum(_plain(own) in map(_plain, name.split(",")) for name, (_, own) in zip(names, _imagenet(), strict=True))
    return tuple(wnid for wnid, _ in _imagenet()) if alike > 0.9 * len(names) else ()


def _plain(name: str) -> str:
    return name.partition(" (")[0].replace("_", " ").strip().lower()


def distinguish(names: Sequence[str]) -> tuple[str, ...]:
    """Published names made distinct: ImageNet has a crane that is a bird and one that is a machine."""
    counts, known = Counter(names), imagenet_names() if wordnet_ids(names) else ()
    return tuple(
        name if counts[name] == 1 else known[index] if known else f"{name} ({index})"
        for index, name in enumerate(names)
    )


GAP = 1e-5  # the largest difference of logits, relative to the largest logit, in fp32: 40 blocks of another
# implementation of attention differ by 1e-6, the two forms of GELU in two blocks by 1e-4
LOUDNESS = 1.0, 0.003  # standard deviations of the images that are compared: a wrong epsilon shows on a faint one
STORED = 64  # logits of an image in a row, evenly spread


@dataclass(frozen=True)
class KnownWeights:
    """A row of the table.

    Attributes:
        name: Of the weights in their library or hub.
        by: What computed the stored logits, such as "timm 1.0.31".
        preprocessing: Of the weights.
        classes: Which list of names the logits have: "imagenet", or empty.
        licence: Of the weights.
        gap: The largest difference of the network's logits from the stored ones, relative to the largest.
    """

    name: str
    by: str
    preprocessing: Preprocessing
    classes: str
    licence: str
    gap: float


def drawn_images(preprocessing: Preprocessing) -> Tensor:
    """The images that are compared, (2, c, h, w) as the network expects them: uniform noise, loud and faint.

    A wrong epsilon shows on the faint one.
    """
    shape = (1, preprocessing.channels, *preprocessing.size)
    values = np.random.Generator(np.random.PCG64(0)).integers(0, 256, shape, dtype=np.uint8)
    image = preprocessing.normalise(torch.from_numpy(values))
    return torch.cat([image * loudness for loudness in LOUDNESS])


def logit_gap(found: Float[Tensor, "b v"], wanted: Float[Tensor, "b v"]) -> float:
    """The largest difference of logits of the same images, relative to an image's largest logit."""
    return float(((found - wanted).abs().amax(1) / wanted.abs().amax(1).clamp(min=1e-30)).max())


def sample_logits(logits: Float[Tensor, "b v"]) -> Float[Tensor, "b some"]:
    """The logits that a row stores, for each image."""
    return logits[:, torch.linspace(0, logits.shape[1] - 1, min(STORED, logits.shape[1])).long()]


@torch.no_grad()
def find_known(network: ViT, digest: str, assumed: bool = False) -> KnownWeights | None:
    """The row of a network's weights; None where they have none.

    Args:
        network: Whose weights are searched.
        digest: Of its tensors, `vitrail.data.tensor_files.digest_of`.
        assumed: Whether the user stated what no tensor shows. If not, a network with other logits has no row.

    Raises:
        UsageError: The weights are known, but the user's assumptions give other logits.
    """
    row: dict[str, Any] | None = known_table().get(digest)
    if row is None:
        return None
    preprocessing = Preprocessing.from_dict(row["preprocessing"])
    wanted = torch.tensor(row["logits"])
    gap = logit_gap(sample_logits(network(drawn_images(preprocessing))), wanted)
    if not gap <= GAP and not assumed:
        return None
    if not gap <= GAP:
        problem = f"these are the weights of {row['name']}, but the logits of this network are not those of {row['by']}"
        raise UsageError(f"{problem}: the gap is {gap:.1e}", Hint(drop=["assume"], python="assume=None"))
    return KnownWeights(row["name"], row["by"], preprocessing, row["classes"], row["licence"], gap)
