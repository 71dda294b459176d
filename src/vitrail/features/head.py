"""What the head of a network reads of images, computed once: what a probe is fitted on."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.data.batches import Batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.jobs.ranges import described, in_batches
from vitrail.nn import ViT
from vitrail.nn.networks import evaluating

HEADS = ("head", "head_dist")  # what stands behind the features


@dataclass(frozen=True, eq=False)
class Features:
    """What the head of a network reads of images.

    Attributes:
        values: (n, d) float32; with two heads, those of both side by side.
        labels: (n,) their classes.
    """

    values: Float[Tensor, "n d"]
    labels: Int[Tensor, "n"]


def heads_of(network: ViT) -> list[nn.Linear]:
    """The linear maps that give the logits: one, or two of a network with a distillation token.

    Raises:
        UsageError: A head is no linear map.
    """
    heads = [network.head, *([] if network.head_dist is None else [network.head_dist])]
    maps = [[part for part in head.modules() if isinstance(part, nn.Linear)] for head in heads]
    if any(len(own) != 1 for own in maps):
        problem = f"a linear probe needs a head that is one linear map, got {type(network.head).__name__}"
        raise UsageError(problem, "--init auto")
    return [own[0] for own in maps]


def features(network: ViT, data: Batches) -> Features:
    """What the head reads of every image that can be read, in order; on the CPU.

    Raises:
        DataError: No image can be read.
    """
    assert isinstance(data.input, Preprocessing)
    values, labels = [], []
    with evaluating(network), _inputs_of(heads_of(network)) as seen:

        def describe(images: Tensor) -> dict[str, Tensor]:
            network(images)
            return {"head": torch.cat(seen.pop(get_ident()), dim=1)}

        wanted = in_batches(np.arange(len(data), dtype=np.int64), data.device)
        for ids, found in described(describe, data.loader, data.input, data.device, wanted):
            if len(ids):
                values.append(found["head"])
                labels.append(data.codec.targets(data.column.take(ids, 0)))
    if not values:
        raise DataError(f"none of {len(data)} images can be read", "others")
    return Features(torch.cat(values), torch.cat(labels))


@contextmanager
def _inputs_of(maps: list[nn.Linear]) -> Iterator[dict[int, list[Tensor]]]:
    """For each thread a list to which the maps add what they are given, in the order in which they are called."""
    seen = defaultdict[int, list[Tensor]](list)
    hooks = [
        one.register_forward_pre_hook(lambda _, given: seen[get_ident()].append(given[0].detach())) for one in maps
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
