"""Recordings that neither names nor folders show, by what a network sees: images that are alike in its middle.

The tokens of the patches behind the first half of the blocks are averaged; the mean of all images is taken off, and
images are compared by cosine. `ALIKE` was fixed on frames of photographs of ImageNet, of ants and bees and of COCO
(`benchmarks/data.md`). Where random pairs are spread so widely that strangers come near it, nothing is said.
"""

import copy
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32, Int64

from vitrail.check.copies import Copies, chains_of
from vitrail.check.groups import BY, Grouping
from vitrail.check.survey import Survey
from vitrail.data.columns import RawDataset
from vitrail.features.embed import Progress, embed_samples
from vitrail.features.poolings import MEAN, check_vit
from vitrail.model import Model

ALIKE = 0.9  # cosine of two images of one recording, at least
APART = 3.5  # standard deviations of random pairs from their middle to it, at least
DRAWN_PAIRS = 20_000
AT_A_TIME = 1024  # images that are compared with all others

Vectors = Float32[np.ndarray, "n d"]


def groups_by_features(model: Model, raw: RawDataset, of: Survey, found: Copies, progress: Progress) -> Grouping | None:
    """The groups that are more than copies of one picture; None where there are none, or strangers are as near.

    Args:
        model: A ViT.
        raw: The data.
        of: Their survey.
        found: Copies among them.
        progress: Called with images whose features are known, and all.
    """
    rows, vectors = middle_vectors(model, raw, of, progress)
    if len(rows) < 2 or not far_apart(vectors):
        return None
    chains = chains_of(len(of), rows[alike_pairs(vectors)])
    members = [of.names[first] for first in chains.tolist()]
    whole = Grouping("features", tuple(members), BY["features"], "", None).groups
    more = {group for group, some in whole.items() if len({*found.chains[some].tolist()}) > 1}
    reason = f"a network sees them as alike as frames of one recording (cosine at least {ALIKE} in its middle)"
    kept = tuple(group if group in more else "" for group in members)
    return Grouping("features", kept, BY["features"], reason, None) if more else None


def middle_vectors(
    model: Model, raw: RawDataset, of: Survey, progress: Progress
) -> tuple[Int64[np.ndarray, " m"], Vectors]:
    """Of each image that can be read its row, and the mean of its patches in the middle of the network, centred."""
    network = copy.deepcopy(check_vit(model.network))
    network.blocks = network.blocks[: (len(network.blocks) + 1) // 2]
    network.norm = torch.nn.Identity()
    known = embed_samples(raw, replace(model, network=network), progress=progress)
    places = zip(of.rows["split"].tolist(), of.names, strict=True)
    row_of = {(of.splits[split], name): row for row, (split, name) in enumerate(places)}
    rows = np.array([row_of[place] for place in zip(known.splits, known.ids, strict=True)], np.int64)
    values = known.values[MEAN] - known.values[MEAN].mean(axis=0)
    return rows, values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


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
