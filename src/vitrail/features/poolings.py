"""The vectors of an image, and their names: all after the network's last norm, before its head.

A pooling is a vector of an image, or its patches:

    class     the class token
    mean      the mean of the patch tokens
    pooled    what the head reads, where that is neither: what attention pooling reads (SigLIP), a mean with a norm of
              its own, class token and mean side by side (DINOv2's classifiers)
    patches   every patch token, in its place

A network without a class token has no `class`.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from vitrail.data.batches import Batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, Hint, UsageError, nearest
from vitrail.jobs.parts import Ids, answer_in_order, split_into_batches
from vitrail.model import Model
from vitrail.model.model import BORROWS
from vitrail.nn import ViT, evaluating, features, twin
from vitrail.tasks import Numbers
from vitrail.tasks.features import Features

GOLDEN = (5**0.5 - 1) / 2  # the fractions of its multiples lie evenly, whatever their number (Weyl)
HEADS = ("head", "head_dist")  # what stands behind the features
CLASS, MEAN, POOLED, PATCHES = "class", "mean", "pooled", "patches"
Describe = Callable[[Tensor], Mapping[str, Tensor]]
"""(images (b, c, h, w) as the network expects them) to what is stored of them, each (b, ...), by name."""


def check_vit(network: Any) -> ViT:
    """The network, if it is one that has patches.

    Raises:
        UsageError: It is of another kind.
    """
    if not isinstance(network, ViT):
        problem = f"features need a ViT, but this network is {type(network).__name__}"
        raise UsageError(problem, "the model timm:vit_tiny_patch16_224")
    return network


def poolings_of(network: ViT) -> tuple[str, ...]:
    """The names of the vectors that the network has of an image; see the head of this file."""
    both = (*((CLASS,) if network.config.class_token else ()), MEAN)
    return both if read_by_head(network) in both else (*both, POOLED)


def read_by_head(network: ViT) -> str:
    """The name of what the head reads: by what the pooling does with tokens drawn from a seed, not by its kind."""
    tokens, pooled = _pooled(network)
    if network.config.class_token and torch.equal(pooled, tokens[:, 0]):
        return CLASS
    return MEAN if torch.equal(pooled, tokens[:, network.config.prefix :].mean(dim=1)) else POOLED


def numbers_read(network: ViT) -> int:
    """How many numbers of an image the head reads."""
    return _pooled(network)[1].shape[1]


@torch.no_grad()
def _pooled(network: ViT) -> tuple[Tensor, Tensor]:
    """Some tokens, and what the pooling makes of them."""
    config, weights = network.config, next(network.parameters())
    tokens = torch.randn(2, config.tokens, config.width, generator=torch.Generator().manual_seed(0)).to(weights)
    return tokens, network.pool(tokens, config.prefix)


def check_pooling(network: ViT, name: str | None) -> str:
    """The pooling of that name; what the head reads when None.

    Raises:
        UsageError: The network has none of that name; names those that it has.
    """
    there = poolings_of(network)
    if name is None:
        return read_by_head(network)
    if name not in there:
        lacks = "it has no class token" if name == CLASS else f"it has {', '.join(there)}"
        close = nearest(name, there) or read_by_head(network)
        raise UsageError(f"this network has no pooling '{name}': {lacks}", Hint({"pooling": close}))
    return name


def describe_by(network: ViT, patches: bool = False) -> Describe:
    """The function that keeps each pooling of images, and the patches (b, rows, columns, d) where these are wanted."""
    named = poolings_of(network)

    def describe(images: Tensor) -> dict[str, Tensor]:
        found = features(network, images)
        vectors = {MEAN: found.patches.flatten(1, 2).mean(dim=1), POOLED: found.pooled}
        if found.class_token is not None:
            vectors[CLASS] = found.class_token
        return {**{name: vectors[name] for name in named}, **({PATCHES: found.patches} if patches else {})}

    return describe


def answer_by_features(model: Model) -> Model:
    """The model with the same parameters whose answer is what its head reads: the vector that `similar` compares.

    Args:
        model: A ViT of any task; it is left as it is.

    Raises:
        UsageError: It has no patches, or its head reads more numbers than the network is wide.
    """
    network = check_vit(model.network)
    count, width = numbers_read(network), network.config.width
    if count != width:
        problem = f"the head reads {count} numbers per image, but only the {width} of a token can be explained"
        first = (*model.output.names, "0")[0]
        raise UsageError(problem, Hint({"target": first}))
    bare = copy.copy(network)
    bare._modules = {**network._modules, "head": nn.Identity().eval(), "head_dist": None}
    bare.config = replace(network.config, classes=0)
    facts = {**model.facts, BORROWS: model.borrows_background}  # which its classes say, and it has none any more
    return replace(model, network=bare, output=Numbers(width), task=Features(), facts=facts)


# ---- what the head reads of images with labels, computed once: what a probe is fitted on


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """A vector of each image, and its target.

    Attributes:
        values: (n, d) float32; what the head of a network reads, of two heads those of both side by side.
        labels: (n, ...) the codec's targets: of classes their numbers.
    """

    values: Float[Tensor, "n d"]
    labels: Shaped[Tensor, "n *x"]


def heads_of(network: ViT) -> list[nn.Linear]:
    """The linear maps that give the logits: one, or two of a network with a distillation token.

    Raises:
        UsageError: A head is no linear map.
    """
    heads = [head for head in (network.head, network.head_dist) if head is not None]
    maps = [[part for part in head.modules() if isinstance(part, nn.Linear)] for head in heads]
    if any(len(own) != 1 for own in maps):
        problem = f"a linear probe needs a head that is one linear map, got {type(network.head).__name__}"
        raise UsageError(problem, Hint({"init": "auto"}))
    return [own[0] for own in maps]


def head_features(network: ViT, data: Batches, enough: Callable[[int], bool] | None = None) -> LabelledFeatures:
    """What the head reads of every image that can be read, in order; on the CPU.

    Args:
        network: Left as it is.
        data: Images with their targets.
        enough: Asked with the number of images so far: where it says so, the others are not read. Those that are lie
            evenly among all.

    Raises:
        DataError: No image can be read.
    """
    assert isinstance(data.input, Preprocessing)
    values, labels, every = list[Tensor](), list[Tensor](), list[Ids]()
    with evaluating(network):
        no_map = dict.fromkeys(map(type, heads_of(network)), lambda _: nn.Identity())
        before = [twin(head, no_map) for head in (network.head, network.head_dist) if head is not None]

        def read(ids: Ids, images: Tensor) -> Tensor:
            tokens = network.norm(network.encode(images))
            inputs = network.pool(tokens, network.config.prefix), tokens[:, int(network.config.class_token)]
            return torch.cat([part(one) for part, one in zip(before, inputs, strict=False)], dim=1).float().cpu()

        rows = np.arange(len(data), dtype=np.int64) if data.chosen is None else data.chosen  # in the loader
        order, count = np.argsort(rows), 0
        spread = rows if enough is None else rows[np.argsort(np.arange(len(rows)) * GOLDEN % 1)]
        for ids, found in answer_in_order(
            read, data.loader, data.input, data.device, split_into_batches(spread, data.device)
        ):
            count += len(ids)
            if found is not None:
                values.append(found)
                places = order[np.searchsorted(rows, ids, sorter=order)]
                labels.append(data.codec.targets(data.column.take(places, 0)))
                every.append(places)
            if enough is not None and enough(count):
                break
    if not values:
        raise DataError(f"none of {len(data)} images can be read", "repair or replace these files, or name other data")
    found = LabelledFeatures(torch.cat(values), torch.cat(labels))
    if enough is None:
        return found
    back = torch.from_numpy(np.argsort(np.concatenate(every)))
    return LabelledFeatures(found.values[back], found.labels[back])
