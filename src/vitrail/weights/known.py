"""Weights that somebody vouches for: what they are, how images go into them, and what they answer.

Names and shapes tell an architecture and no more: ViT-Ti and DeiT-Ti are alike, and their normalisation is not. So
a row of the table, found by names, shapes and 4 KB of the values, counts only where all numbers are those of the file
that was really run; then the network is asked about two images drawn from a seed, and has to answer as that did.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import digest_of
from vitrail.errors import COMMAND_LINE, UsageError
from vitrail.nn import ViT
from vitrail.weights.convert import GAP, LOUDNESS, apart
from vitrail.weights.published import known_table

VALUES = 1024  # of the weights, evenly spread, that make a fingerprint: 4 KB
SHOWN = 64  # logits of an image that a row holds, evenly spread


@dataclass(frozen=True)
class Known:
    """A row of the table.

    Attributes:
        name: What the weights are called, and where.
        by: Who answered, such as "timm 1.0.31".
        preprocessing: How images go in.
        classes: Which list of names the logits have: "imagenet", or empty.
        licence: Of the weights.
        gap: How far the answer of the network at hand lies from the one in the table.
    """

    name: str
    by: str
    preprocessing: Preprocessing
    classes: str
    licence: str
    gap: float


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes and 1,024 evenly spread values of tensors under our names, whatever their file was."""
    names = sorted(tensors)
    digest = hashlib.sha256(json.dumps([(name, list(tensors[name].shape)) for name in names]).encode())
    ends = np.cumsum([tensors[name].numel() for name in names])
    for place in np.linspace(0, ends[-1] - 1, VALUES).astype(np.int64):
        index = int(np.searchsorted(ends, place, side="right"))
        start = int(ends[index - 1]) if index else 0
        value = tensors[names[index]].flatten()[int(place) - start]
        digest.update(np.float32(float(value)).tobytes())
    return digest.hexdigest()


def drawn_images(preprocessing: Preprocessing, seed: int = 0) -> Tensor:
    """The images that are asked about, (2, c, h, w) as the network expects them: even noise of 0..255, loud and faint.

    On the faint one a wrong epsilon shows.
    """
    shape = (1, preprocessing.channels, *preprocessing.size)
    values = np.random.Generator(np.random.PCG64(seed)).integers(0, 256, shape, dtype=np.uint8)
    image = preprocessing.normalise(torch.from_numpy(values))
    return torch.cat([image * loudness for loudness in LOUDNESS])


def shown(logits: Float[Tensor, "b v"]) -> Float[Tensor, "b some"]:
    """The logits that a row holds, for each image."""
    return logits[:, torch.linspace(0, logits.shape[1] - 1, min(SHOWN, logits.shape[1])).long()]


@torch.no_grad()
def known(network: ViT, assumed: bool = False) -> Known | None:
    """The row of a network's weights; None where nobody vouches for them.

    Args:
        network: Whose weights are looked up.
        assumed: Whether the user stated what no tensor says. Else nobody vouches for a network that answers otherwise.

    Raises:
        UsageError: The weights are known, and the network answers otherwise under the user's assumptions.
    """
    tensors = network.state_dict()
    row: dict[str, Any] | None = known_table().get(fingerprint(tensors))
    if row is None or row["digest"] != digest_of(
        tensors
    ):  # such as a tuned head, between the numbers that are compared
        return None
    preprocessing = Preprocessing.from_dict(row["preprocessing"])
    wanted = torch.tensor(row["answers"])
    gap = apart(shown(network(drawn_images(preprocessing))), wanted)
    if not gap <= GAP and not assumed:
        return None
    if not gap <= GAP:
        problem = f"these are the weights of {row['name']}, and this network answers otherwise than {row['by']}"
        raise UsageError(f"{problem}: the gap is {gap:.1e}", f"assume=None{COMMAND_LINE}the same without --assume")
    return Known(row["name"], row["by"], preprocessing, row["classes"], row["licence"], gap)
