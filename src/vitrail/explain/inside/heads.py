"""Heads: how far each looks, which brought what from where to one token, and what is lost without each.

Mean attention distance, in pixels ("An image is worth 16x16 words", 2020, figures 7 and 11):

    d_lh = mean_i sum_j A'_lh[i, j] |p_i - p_j|

i and j are patches, p their centres, and A' the weights among patches, each row divided by its sum. A head that looks
everywhere alike is not at zero and not at the image's width, so a plot needs that line: `uniform_distance`.

Head x source is a sum taken apart by head h and source j: "head 7 brought patch (5, 3)".

    attention(x)_i = sum_h sum_j A[h, i, j] V[h, j] W_O[h] + b

The sum is exact. The weight A alone does not show it: a head may look hard at a token whose value is nothing. Where
what all heads attended passes a norm before W_O, its standard deviation is held at that of the run (`nn/twin.py`): each
head has its part of the mean that is subtracted, and the bias of the norm is in b.

Head ablation ("Are sixteen heads really better than one?", Michel et al., 2019) shows what is lost. A head is taken out
by giving its *mean* over background images in place of what it attended, token by token: then it carries nothing of
this image, and the rest of the network reads numbers of the size that it knows. Zeros in its place would be something
that the network never saw, and overstate the loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.functional import jacobian

from vitrail.errors import UsageError, check_count, check_index, check_option
from vitrail.explain.attribution import explaining
from vitrail.explain.forward import chosen_heads, forward_pass, layer_index
from vitrail.explain.target import Target, choose_target
from vitrail.nn import SILENT, Record
from vitrail.nn.embedding import Size
from vitrail.nn.parts import JoinsHeads
from vitrail.nn.twin import detached, wide, without_autocast
from vitrail.nn.vit import Images, ViT
from vitrail.text import ShortRepr

NUMBERS_AT_ONCE = 2**24  # attention weights made at a time
AT_A_TIME = 8  # background images
CURVED = 1e-3  # of what heads add: from there on it is not linear
Place = int | tuple[int, int]  # a token by its number, or a patch by (row, column)


# ---- how far a head looks


@dataclass(frozen=True, eq=False, repr=False)
class AttentionDistance(ShortRepr):
    """How far every head looks.

    Attributes:
        pixels: (layers, heads, b), in pixels, for each image.
        uniform: The distance of a head that looks at all patches alike, in pixels: the line to draw.
    """

    pixels: Float[Tensor, "l k b"]
    uniform: float


@explaining
def attention_distance(network: ViT, images: Images) -> AttentionDistance:
    """The mean distance between the patch that queries and those it attends to, for each layer and head.

    A row of weights that sees no patch at all counts as distance 0.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.

    Raises:
        UsageError: If the network is in training mode or an attention leaves no weights, or if the images do not fit.
    """
    forward = forward_pass(network, images, None, "blocks.*.attention")
    prefix, patch = forward.prefix, network.config.patch
    between = distances(forward.grid, patch)
    row = max(1, len(images)) * network.config.heads * (prefix + len(between))
    layers = []
    for place in forward.record.attentions():
        sums = []
        for rows in torch.arange(len(between), device="cpu").split(max(1, NUMBERS_AT_ONCE // row)):
            with torch.no_grad():
                weights = wide(forward.record.attention(place, None, (rows + prefix).tolist())[..., prefix:])
                fractions = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
                sums.append((fractions * between[rows].to(weights)).sum(dim=(2, 3)))
        layers.append(torch.stack(sums).sum(dim=0).T / len(between))
    return AttentionDistance(torch.stack(layers), uniform_distance(forward.grid, patch))


def distances(grid: Size, patch: Size) -> Float[Tensor, "p p"]:
    """Between the centres of all patches, in pixels, float64."""
    rows, columns = (
        torch.arange(count, dtype=torch.float64, device="cpu") * side for count, side in zip(grid, patch, strict=True)
    )
    centres = torch.cartesian_prod(rows, columns)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def uniform_distance(grid: Size, patch: Size) -> float:
    """The mean distance from a patch to all patches, itself included, in pixels.

    Args:
        grid: (rows, columns) of patches.
        patch: (height, width) of a patch in pixels.
    """
    return float(distances(grid, patch).mean())


# ---- what a head brings to a token


@dataclass(frozen=True, eq=False, repr=False)
class HeadSources(ShortRepr):
    """What came to one token in one layer: vectors summed over heads and sources, plus `bias`, are `output`.

    Attributes:
        vectors: (b, k, n, d), from each source token by each head.
        bias: (d,), of the output map, and of a norm before it.
        output: (b, d), what the attention adds to the token.
        fraction: (b, k, n), part of each vector along the output, over the output's length: sums to 1 with the bias's.
        names: What each token is, in words.
        to: The same of the token `to`.
        layer: The block.
    """

    vectors: Float[Tensor, "b k n d"]
    bias: Float[Tensor, "d"]
    output: Float[Tensor, "b d"]
    fraction: Float[Tensor, "b k n"]
    names: tuple[str, ...]
    to: str
    layer: int

    def sentences(self, image: int = 0, count: int = 3) -> tuple[str, ...]:
        """The strongest in words, such as "head 7 brought patch (5, 3): 41 % of what block 2 adds to the class token".

        Args:
            image: Which image of the batch.
            count: How many heads and sources.
        """
        check_count("count", count, 3)
        fractions = self.fraction[check_index("image", image, len(self.fraction))].flatten()
        sentences = []
        for index in fractions.abs().topk(min(count, len(fractions))).indices.tolist():
            head, source = divmod(index, self.fraction.shape[2])
            part = f"{100 * float(fractions[index]):.0f} % of what block {self.layer} adds to the {self.to}"
            sentences.append(f"head {head} brought {self.names[source]}: {part}")
        return tuple(sentences)


@explaining
def head_sources(network: ViT, images: Images, layer: int = -1, to: Place = 0) -> HeadSources:
    """Take apart what attention brings to one token.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        layer: Which block; -1 is the last.
        to: Which token queries: its number (0 is the class token, where there is one), or (row, column) of a patch.

    Raises:
        UsageError: If the network is in training mode or its attention has no form for what its heads add, if layer or
            token do not exist, or if the images do not fit.
    """
    block, grid = layer_index(network.config.depth, layer), network.grid(images)
    token, place = token_of(network, grid, to), f"blocks.{block}"
    names = (f"{place}.attention", f"{place}.values", f"{place}.attended")
    record = forward_pass(network, images, None, *names).record
    attended = record[f"{place}.attended"][:, :, [token]]
    added, bias = linear_output(network, block, attended)
    weight = jacobian(lambda one: added(one)[:, 0].sum(dim=0), attended, vectorize=True)[:, :, :, 0]  # d, b, k, e
    with torch.no_grad():
        output = wide(attention_output(network, block, attended)[:, 0])
        weights, values = wide(record.attention(place, None, [token])[:, :, 0]), wide(record[f"{place}.values"])
        with without_autocast(values):
            vectors = torch.einsum("bkn,bkne,dbke->bknd", weights, values, wide(weight))
            lengths = output.square().sum(dim=1).clamp(min=torch.finfo(output.dtype).tiny)
            fraction = torch.einsum("bknd,bd->bkn", vectors, output) / lengths[:, None, None]
    tokens = token_names(network, grid)
    return HeadSources(vectors, wide(bias), output, fraction, tokens, tokens[token], block)


def token_of(network: ViT, grid: Size, place: Place) -> int:
    """The number of a token, prefix tokens first.

    Raises:
        UsageError: If there is no such token or patch; names those that there are.
    """
    (rows, columns), prefix = grid, network.config.prefix
    tokens = prefix + rows * columns
    if isinstance(place, int):
        token, fits = place, 0 <= place < tokens
    else:
        row, column = place
        token, fits = prefix + row * columns + column, 0 <= row < rows and 0 <= column < columns
    wanted = f"a token of 0..{tokens - 1} or a patch (row, column) of 0..{rows - 1}, 0..{columns - 1}"
    check_option("to", place, fits, wanted, (rows // 2, columns // 2))
    return token


def token_names(network: ViT, grid: Size) -> tuple[str, ...]:
    """What each token is, in words: "class token", "register 2", "patch (5, 3)"."""
    config = network.config
    front = ["class token"] * config.class_token + ["distillation token"] * config.distillation_token
    front += [f"register {index}" for index in range(config.registers)]
    return (*front, *(f"patch ({row}, {column})" for row in range(grid[0]) for column in range(grid[1])))


def attention_at(network: ViT, block: int) -> JoinsHeads:
    """The attention of a block, whose heads a view takes apart.

    Raises:
        UsageError: If it has no form for what its heads add.
    """
    attention: Any = network.get_submodule(f"blocks.{block}.attn")
    if isinstance(attention, JoinsHeads):
        return attention
    name = type(attention).__name__
    problem = f"the attention {name} of blocks.{block} has no method join, which computes what its heads add"
    raise UsageError(problem, f"a method `join(self, attended)` of {name}, which maps (b, k, n, e) to (b, n, d)")


def attention_output(network: ViT, block: int, attended: Float[Tensor, "b k n e"]) -> Float[Tensor, "b n d"]:
    """What an attention adds to the tokens, of what its heads attended."""
    return network.get_submodule(f"blocks.{block}.ls1")(attention_at(network, block).join(attended))


def linear_output(
    network: ViT, block: int, attended: Float[Tensor, "b k n e"]
) -> tuple[Callable[[Float[Tensor, "b k n e"]], Float[Tensor, "b n d"]], Float[Tensor, "d"]]:
    """What an attention adds as a function of what its heads attended, LayerScale included, and its constant.

    The function is linear in each head but for the constant: attention and scale as they are, or, where something in
    them is not linear, in their detached form, for which its gradient at `attended` is that of each head's part.

    Args:
        network: Whose attention.
        block: Which.
        attended: Of a run.

    Raises:
        UsageError: If the attention has no form for what its heads add, or is not linear and has no detached form.
    """
    attention_at(network, block)
    parts = {f"blocks.{block}.{name}": network.get_submodule(f"blocks.{block}.{name}") for name in ("attn", "ls1")}
    for held in (False, True):
        attention, scale = (detached(part, name) if held else part for name, part in parts.items())

        def added(heads: Float[Tensor, "b k n e"], attention: Any = attention, scale: Any = scale) -> Tensor:
            return scale(attention.join(heads))

        at = attended.detach().requires_grad_()
        answer, constant = added(at), added(at.new_zeros(1, at.shape[1], 1, at.shape[3])).detach()[0, 0]
        moved, rounding = answer.detach() - constant, 16 * torch.finfo(answer.dtype).eps
        (back,) = torch.autograd.grad(answer, at, moved)
        along, length, whole = (wide(back) * wide(at.detach())).sum(), wide(moved).norm(), wide(answer.detach()).norm()
        if (along - length**2).abs() <= max(CURVED, rounding) * length**2 + rounding * length * whole:
            return added, constant
    problem = f"what the heads of blocks.{block} add is not linear in them, not even in its detached form"
    raise UsageError(problem, "head_ablation, or another method; vitrail.explain.METHODS")


# ---- what is lost without a head


@dataclass(frozen=True, eq=False, repr=False)
class HeadAblation(ShortRepr):
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


@explaining
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
        UsageError: If the network is in training mode or its attention has no form for what its heads add, if
            a layer or head does not exist, or if images, background, labels or target do not fit.
    """
    config = network.config
    blocks = tuple(layer_index(config.depth, layer) for layer in (range(config.depth) if layers is None else layers))
    of_heads = tuple(range(config.heads) if heads is None else heads)
    for head in of_heads:
        chosen_heads(config.heads, head)
    for block in blocks:
        attention_at(network, block)
    if len(background) == 0 or background.shape[1:] != images.shape[1:]:
        wanted = f"background must be at least one image of {tuple(images.shape[1:])}"
        raise UsageError(f"{wanted}, got {tuple(background.shape)}", "some ten training images, preprocessed likewise")
    if labels is not None and labels.shape != images.shape[:1]:
        problem = f"labels must be one class for each of {len(images)} images, got {tuple(labels.shape)}"
        raise UsageError(problem, "labels=None")
    means = mean_attended(network, background, blocks)
    names = (f"blocks.{block}.{name}" for block in blocks for name in ("input", "attended"))
    forward = forward_pass(network, images, target, "logits", *names)
    record, logit, logits = forward.record, forward.logit, forward.record["logits"]
    top = choose_target(logits, None).target
    truth = top if labels is None else labels.to(logits.device)
    change = logit.new_empty(len(blocks), len(of_heads), len(images))
    accuracy = logit.new_empty(len(blocks), len(of_heads))
    with torch.no_grad():
        for place, block in enumerate(blocks):
            for index, head in enumerate(of_heads):
                without = answer_without(network, record, forward.grid, block, head, means[block][head])
                change[place, index] = forward.chosen(without) - logit
                accuracy[place, index] = (choose_target(without, None).target == truth).float().mean()
    whole = float((top == truth).float().mean())
    return HeadAblation(blocks, of_heads, change, logit, accuracy, whole)


def mean_attended(
    network: ViT, background: Float[Tensor, "r c h w"], blocks: Sequence[int]
) -> dict[int, Float[Tensor, "k n e"]]:
    """What each head of these blocks attended, in the mean over the background, of which few run at a time.

    A record of attention holds queries, keys and values of every layer too: of 64 images at once, 1.3 GB in S/16.
    In at least float32.
    """
    sums: dict[int, Tensor] = {}
    for some in background.split(AT_A_TIME):
        record = forward_pass(network, some, None, *(f"blocks.{block}.attended" for block in blocks)).record
        for block in set(blocks):
            attended = wide(record[f"blocks.{block}.attended"]).sum(dim=0)
            sums[block] = sums[block] + attended if block in sums else attended
    return {block: total / len(background) for block, total in sums.items()}


def answer_without(
    network: ViT, record: Record, grid: Size, block: int, head: int, mean: Float[Tensor, "n e"]
) -> Float[Tensor, "b v"]:
    """The logits when one of the heads of a block gives its mean; of a run, what entered it and its heads attended."""
    part: Any = network.blocks[block]
    attended = record[f"blocks.{block}.attended"].clone()
    attended[:, head] = mean
    tokens = record[f"blocks.{block}.input"] + attention_output(network, block, attended)
    tokens = tokens + part.transform(part.norm2(tokens), SILENT)
    return network.readout(network.run_blocks(tokens, first=block + 1, rotation=network.rotation(grid)))
