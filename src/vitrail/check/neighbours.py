"""What a network sees of every image, in one pass, and the recordings that only this shows: images alike in its middle.

The tokens of the patches behind the first half of the blocks are averaged; the mean of all images is taken off, and
images are compared by cosine. `ALIKE` was fixed on frames of photographs of ImageNet, of ants and bees and of COCO
(`benchmarks/data.md`). Where random pairs are spread so widely that strangers come near it, nothing is said.

Features are kept in the user's cache by the content of each image, so that a second call computes only what is new,
wherever a file was moved to and whatever label it got.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from vitrail.check.copies import Copies, chains_of
from vitrail.check.groups import BY, Grouping
from vitrail.check.survey import Survey, keep, kept_file, take_kept
from vitrail.data.columns import RawDataset
from vitrail.features.embed import Progress, identity
from vitrail.features.poolings import check_vit, numbers_read
from vitrail.io import to_json
from vitrail.jobs.parts import Ids, answer_in_order, loader_of, split_into_batches
from vitrail.model import Model
from vitrail.nn import evaluating

ALIKE = 0.9  # cosine of two images of one recording, at least
APART = 3.5  # standard deviations of random pairs from their middle to it, at least
DRAWN_PAIRS = 20_000
AT_A_TIME = 1024  # images that are compared with all others


Vectors = Float32[np.ndarray, "n d"]


class KeptFeatures(NamedTuple):
    """What a network sees of m images.

    Attributes:
        rows: (m,) their rows in the survey.
        middle: (m, d) the mean of their patches behind the first half of the blocks.
        read: (m, p) what the head reads.
    """

    rows: Int64[np.ndarray, " m"]
    middle: Vectors
    read: Vectors


def kept_features(model: Model, raw: RawDataset, of: Survey, progress: Progress) -> KeptFeatures:
    """The features of all images that can be read, computed or as they were kept.

    Args:
        model: A ViT.
        raw: The data.
        of: Their survey, of all images.
        progress: Called with images whose features are known, and all.

    Raises:
        UsageError: The network has no patches.
    """
    network, reads, total = check_vit(model.network), model.preprocessing, int(of.readable.sum())
    half, prefix = (len(network.blocks) + 1) // 2, network.config.prefix
    file = kept_file("features", to_json({**identity(model), "root": raw.root}))
    kept, at = take_kept(file, of.rows["content"])
    values, known = np.zeros((len(of), network.config.width + numbers_read(network)), np.float32), at >= 0
    values[known] = kept["values"][at[known]] if kept else 0
    missing = np.flatnonzero(of.readable & ~known)

    def see(ids: Ids, images: Tensor) -> Tensor:
        turn = network.rotation(network.grid(images))
        middle = network.run_blocks(network.embed(images), stop=half, rotation=turn)
        last = network.norm(network.run_blocks(middle, first=half, rotation=turn))
        return torch.cat([middle[:, prefix:].mean(dim=1), network.pool(last, prefix)], dim=1).float().cpu()

    try:
        for split, samples in enumerate(raw.splits.values()):
            rows = missing[of.rows["split"][missing] == split]
            ids, loader = of.rows["index"][rows], loader_of(samples.images, reads, model.device, None)
            wanted = split_into_batches(ids, model.device)
            with evaluating(network):
                for some, found in answer_in_order(see, loader, reads, model.device, wanted):
                    if found is not None:
                        own = rows[np.searchsorted(ids, some)]
                        values[own], known[own] = found.numpy(), True
                    progress(int(known.sum()), total)
    finally:  # an interrupted pass continues where it ended
        if len(missing):
            keep(file, keys=of.rows["content"][known], values=values[known])
    rows = np.flatnonzero(of.readable & known)
    return KeptFeatures(rows, *np.split(values[rows], [network.config.width], axis=1))


def groups_by_features(seen: KeptFeatures, of: Survey, found: Copies) -> Grouping | None:
    """The groups that are more than copies of one picture; None where there are none, or strangers are as near.

    Args:
        seen: By a network.
        of: Their survey.
        found: Copies among them.
    """
    vectors = seen.middle - seen.middle.mean(axis=0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if len(vectors) < 2 or not far_apart(vectors):
        return None
    chains = chains_of(len(of), seen.rows[alike_pairs(vectors)])
    members = [of.names[first] for first in chains.tolist()]
    whole = Grouping("features", tuple(members), BY["features"], "", None).groups
    more = {group for group, some in whole.items() if len({*found.chains[some].tolist()}) > 1}
    reason = f"a network sees them as alike as frames of one recording (cosine at least {ALIKE} in its middle)"
    kept = tuple(group if group in more else "" for group in members)
    return Grouping("features", kept, BY["features"], reason, None) if more else None


def far_apart(vectors: Vectors) -> bool:
    """Whether strangers are far below `ALIKE`, by the spread of random pairs, most of which are strangers."""
    drawn = np.random.default_rng(0).integers(0, len(vectors), (DRAWN_PAIRS, 2))
    one, other = drawn[drawn[:, 0] != drawn[:, 1]].T
    middle, high = np.quantile((vectors[one] * vectors[other]).sum(axis=1), [0.5, 0.8])
    return bool(ALIKE - middle >= APART * (high - middle) / 0.8416)  # of a normal distribution up to eight tenths


def alike_pairs(vectors: Vectors) -> Int64[np.ndarray, "p 2"]:
    """All pairs whose cosine is at least `ALIKE`, the smaller first."""
    found = [np.zeros((0, 2), np.int64)]
    for start in range(0, len(vectors), AT_A_TIME):
        near = np.argwhere(vectors[start : start + AT_A_TIME] @ vectors[start:].T >= ALIKE) + start
        found.append(near[near[:, 0] < near[:, 1]])
    return np.concatenate(found)
