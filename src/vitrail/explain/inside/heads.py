"""Heads: which brought what from where to one token, and what is lost without each.

Head x source is a sum taken apart by head h and source j: "head 7 brought patch (5, 3)".

    attention(x)_i = sum_h sum_j A[h, i, j] V[h, j] W_O[h] + b

The sum is exact. The weight A alone does not tell it: a head may look hard at a token whose value is nothing.

Head ablation ("Are sixteen heads really better than one?", Michel et al., 2019) asks what is lost. A head is taken out
by giving its *mean* over background images in place of what it attended, token by token: then it says nothing about
this image, and the rest of the network reads numbers of the size that it knows. Zeros in its place would be something
that the network never saw, and overstate the loss.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.inside.reading import Place, attention_at, names_of, output_map, read, token_of, written
from vitrail.explain.layers import block_of, head_among
from vitrail.explain.readout import wide, without_autocast
from vitrail.explain.target import Target, choose_target
from vitrail.nn import SILENT, AnyRecord, Record, ViT
from vitrail.nn.vit import Images

AT_A_TIME = 8  # background images


@dataclass(frozen=True, eq=False)
class HeadSources:
    """What came to one token in one layer: vectors summed over heads and sources, plus `bias`, are `output`.

    Attributes:
        vectors: (b, k, n, d), from each source token by each head.
        bias: (d,), of the output map.
        output: (b, d), what the attention adds to the token.
        fraction: (b, k, n), part of each vector along the output, over the output's length: sums to 1 with the bias's.
        names: What each token is, in words.
        to: The same of the token that was asked for.
        layer: The block.
    """

    vectors: Float[Tensor, "b k n d"]
    bias: Float[Tensor, "d"]
    output: Float[Tensor, "b d"]
    fraction: Float[Tensor, "b k n"]
    names: tuple[str, ...]
    to: str
    layer: int

    def says(self, image: int = 0, count: int = 3) -> tuple[str, ...]:
        """The strongest in words, such as "head 7 brought patch (5, 3): 41 % of what block 2 adds to the class token".

        Args:
            image: Which image of the batch.
            count: How many heads and sources.
        """
        fractions = self.fraction[image].flatten()
        strongest = fractions.abs().topk(min(count, len(fractions))).indices.tolist()
        said = []
        for index in strongest:
            head, source = divmod(index, self.fraction.shape[2])
            part = f"{100 * float(fractions[index]):.0f} % of what block {self.layer} adds to the {self.to}"
            said.append(f"head {head} brought {self.names[source]}: {part}")
        return tuple(said)


@torch.inference_mode(False)
def head_sources(network: ViT, images: Images, layer: int = -1, to: Place = 0) -> HeadSources:
    """Take apart what attention brings to one token.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        layer: Which block; -1 is the last.
        to: Which token asks: its number (0 is the class token, where there is one), or (row, column) of a patch.

    Raises:
        UsageError: If the network is in training mode or its attention does not say what its heads add, if layer or
            token do not exist, or if the images do not fit.
    """
    block = block_of(network, layer)
    grid = network.grid(images)
    token, place = token_of(network, grid, to), f"blocks.{block}"
    record = read(network, images, f"{place}.attention", f"{place}.values", f"{place}.attended")
    attended = record[f"{place}.attended"]
    weight, bias = output_map(network, block, attended)
    with torch.no_grad():
        output = wide(written(network, block, attended[:, :, [token]])[:, 0])
        weights, values = wide(record.attention(place, None, [token])[:, :, 0]), wide(record[f"{place}.values"])
        with without_autocast(values):
            vectors = torch.einsum("bkn,bkne,dke->bknd", weights, values, wide(weight))
            lengths = output.square().sum(dim=1).clamp(min=torch.finfo(output.dtype).tiny)
            fraction = torch.einsum("bknd,bd->bkn", vectors, output) / lengths[:, None, None]
    names = names_of(network, grid)
    return HeadSources(vectors, wide(bias), output, fraction, names, names[token], block)


@dataclass(frozen=True, eq=False)
class HeadAblation:
    """What changes when one head after the other gives its mean.

    Attributes:
        layers: The blocks that were looked at.
        heads: The heads that were looked at in each.
        change: (layers, heads, b), the explained number without the head, less the number with it; a head that speaks
            for the class has a negative change.
        logit: (b,), the number as it is.
        accuracy: (layers, heads), fraction of images whose top class is their label without the head; without labels,
            whose top class stays what it is.
        whole: The same fraction with all heads; 1 without labels.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    change: Float[Tensor, "l k b"]
    logit: Float[Tensor, "b"]
    accuracy: Float[Tensor, "l k"]
    whole: float


@torch.inference_mode(False)
def head_ablation(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    background: Float[Tensor, "r c h w"],
    labels: Int[Tensor, "..."] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> HeadAblation:
    """Take out one head after the other; each costs a run through the layers from there on.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: Whose number is watched, see `vitrail.explain.target`; None for each image's top class.
        background: (r, c, h, w), ordinary images of the same size, over which the means are taken.
        labels: (b,), the true classes, for the accuracy.
        layers: Which blocks; all when None.
        heads: Which heads of each; all when None.

    Raises:
        UsageError: If the network is in training mode or its attention does not say what its heads add, if a layer or
            head does not exist, or if images, background, labels or target do not fit.
    """
    config = network.config
    blocks = tuple(block_of(network, layer) for layer in (range(config.depth) if layers is None else layers))
    heads = range(config.heads) if heads is None else heads
    of_heads = tuple(head_among(config.heads, head, "head=0 for the first") for head in heads)
    for block in blocks:
        attention_at(network, block)
    if len(background) == 0 or background.shape[1:] != images.shape[1:]:
        raise UsageError(
            f"background must be at least one image of {tuple(images.shape[1:])}, got {tuple(background.shape)}",
            "some ten images of the training data, through the same preprocessing",
        )
    if labels is not None and labels.shape != images.shape[:1]:
        raise UsageError(
            f"labels must be one class for each of {len(images)} images, got {tuple(labels.shape)}", "labels=None"
        )
    means = mean_attended(network, background, blocks)
    record = read(network, images, "logits", *(f"blocks.{block}.input" for block in blocks))
    logits = record["logits"]
    chosen = choose_target(logits, target)
    logit, truth = chosen.of(logits), logits.argmax(dim=1) if labels is None else labels.to(logits.device)
    change = logit.new_empty(len(blocks), len(of_heads), len(images))
    accuracy = logit.new_empty(len(blocks), len(of_heads))
    with torch.no_grad():
        for place, block in enumerate(blocks):
            for index, head in enumerate(of_heads):
                without = answer_without(network, record[f"blocks.{block}.input"], block, head, means[block][head])
                change[place, index] = chosen.of(without) - logit
                accuracy[place, index] = (without.argmax(dim=1) == truth).float().mean()
    whole = float((logits.argmax(dim=1) == truth).float().mean())
    return HeadAblation(blocks, of_heads, change, logit.detach(), accuracy, whole)


def mean_attended(
    network: ViT, background: Float[Tensor, "r c h w"], blocks: Sequence[int]
) -> dict[int, Float[Tensor, "k n e"]]:
    """What each head of these blocks attended, in the mean over the background, of which few run at a time.

    A record of attention holds queries, keys and values of every layer too: of 64 images at once, 1.3 GB in S/16.
    In at least float32.
    """
    sums: dict[int, Tensor] = {}
    for some in background.split(AT_A_TIME):
        record = read(network, some, *(f"blocks.{block}.attended" for block in blocks))
        for block in set(blocks):
            attended = wide(record[f"blocks.{block}.attended"]).sum(dim=0)
            sums[block] = sums[block] + attended if block in sums else attended
    return {block: total / len(background) for block, total in sums.items()}


def answer_without(
    network: ViT, tokens: Float[Tensor, "b n d"], block: int, head: int, mean: Float[Tensor, "n e"]
) -> Float[Tensor, "b v"]:
    """The logits, from the tokens that enter `block`, when one of its heads gives its mean."""
    altered = copy.copy(network.blocks[block])
    altered._modules = {**altered._modules, "attn": Ablated(attention_at(network, block), head, mean)}
    return network.readout(network.run_blocks(altered(tokens), first=block + 1))


class Ablated(nn.Module):
    """Attention of which one head gives the same for every image.

    Args:
        attention: What it stands for; shares its parameters.
        head: Which head is taken out.
        mean: (n, e), what that head gives for each token.
    """

    def __init__(self, attention: Any, head: int, mean: Float[Tensor, "n e"]) -> None:
        super().__init__()
        self.attention, self.head, self.mean = attention, head, mean

    def forward(self, tokens: Float[Tensor, "b n d"], record: AnyRecord = SILENT) -> Float[Tensor, "b n d"]:
        """As the attention, but for the head."""
        whole = Record()
        self.attention(tokens, record=whole)
        attended = whole["attended"].clone()
        attended[:, self.head] = self.mean
        return self.attention.join(attended)
