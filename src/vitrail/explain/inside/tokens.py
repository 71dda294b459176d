"""Tokens: what they start with, which of them are sinks, and what their last state says of a logit.

Patch filters and positions ("An image is worth 16x16 words", 2020, figure 7):

    W - mean of its rows = U S V^T         W (d, c x ph x pw), one row for each number of a token
    s[i, j] = cos(e_i, e_j)                e_i the position that is added to patch i

The rows of V are small images; the first of them span most of what the map sees of a patch. The fraction of variance
that a filter explains is s^2 over the sum of all s^2. Where the network has learnt the plane, a patch's position is
most like those of its neighbours, row and column.

Sinks, patches whose tokens the network uses as scratch paper ("Vision transformers need registers", Darcet et al.,
2023, section 2). Large networks turn some patches, mostly of dull background, into tokens of very large norm, which
hold something about the whole image and little about their place. Attention goes there, and so do maps: a bright patch
on a sink does not mean that this place matters. A patch counts as a sink after a block when

    |h_l[i]| > median + threshold * MAD        over the patches of its image,   MAD = median | |h| - median |

and |h_l[i]| is at least twice the median. The first condition is a robust outlier. Alone it calls 0.2 to 1.4 % of all
patches of small networks sinks that have none (three networks, 400 images of planted digits: the largest norm is 1.05
to 1.26 times the median); with the second it is 0.02 % at most. The norms at which sinks stand out differ from network
to network, so nothing is compared between networks.

Logit lens, the answer if the network stopped after each block (nostalgebraist, 2020):

    z_l = head(pool(norm(h_l)))         h_l the tokens after block l, h_0 those that enter the first

norm, pooling and head are the network's own, made for the last block; what they read earlier is in a state that they
were never trained on. The last row is the network's answer.

Direct logit attribution, a logit as a sum of what the embedding, each attention and each MLP wrote ("A mathematical
framework for transformer circuits", Elhage et al., 2021):

    h_L = tokens + sum_l attention_l + sum_l mlp_l                     the residual stream is a sum
    y   = sum_u g . u + constant,       g = d y / d h_L                with the standard deviation of the last norm held

The last norm, the pooling and the head are linear once its standard deviation is a constant (`nn/twin.py`), so every
term of the sum has its part of the logit. Only what a term contributes *directly* is counted, not what later blocks
make of it.
"""

import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from vitrail.errors import UsageError, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import ForwardPass, check_explainable, check_tokens, forward_pass, layer_index
from vitrail.explain.inside.heads import attention_at, linear_output
from vitrail.explain.methods.pixels import gradients_of
from vitrail.explain.target import Target, choose_target
from vitrail.nn.embedding import Size
from vitrail.nn.twin import ScaledBias, bias_of, detached, wide, without_autocast
from vitrail.nn.vit import Images, ViT
from vitrail.text import ShortRepr

LEAST = 2.0  # times the median norm, of a sink
NAMED = 6  # sinks that a note names


# ---- what tokens start with


@dataclass(frozen=True, eq=False, repr=False)
class PatchFilters(ShortRepr):
    """The principal filters of a patch map, strongest first.

    Attributes:
        filters: (m, c, ph, pw), of length 1 and at right angles; the entry of largest size is positive.
        explained: (m,), the fraction of variance that each explains; all of them together at most 1.
    """

    filters: Float[Tensor, "m c ph pw"]
    explained: Float[Tensor, "m"]


@explaining
def patch_filters(network: ViT, count: int = 28) -> PatchFilters:
    """The first filters of the centred singular value decomposition; 28 as in the paper.

    Args:
        network: Whose patch map is linear, whatever its form.
        count: How many at most.

    Raises:
        UsageError: If the patch map is not linear, so that it has no filters.
    """
    with torch.no_grad():
        weight = wide(_as_convolution(network))
        flat = weight.flatten(1)
        _, strengths, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
        variance = strengths.square()
        explained = variance / variance.sum().clamp(min=torch.finfo(variance.dtype).tiny)
        largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
        filters = (directions * largest.sign()).unflatten(1, weight.shape[1:])
    return PatchFilters(filters[:count], explained[:count])


def _as_convolution(network: ViT) -> Float[Tensor, "d c ph pw"]:
    """The gradient of each number of a token by the pixels of its patch, if it is the same for two patches."""
    part, config = network.patch_embed, network.config
    noise = torch.randn(1, config.channels, *config.patch, generator=torch.Generator().manual_seed(0), device="cpu")
    patches = [each.to(next(part.parameters())) for each in (torch.zeros_like(noise), noise)]
    black, noisy = (jacobian(lambda patch: part(patch)[0, 0], patch, vectorize=True) for patch in patches)
    if (black - noisy).abs().max() > 1e-3 * black.abs().max():
        problem = f"the patch map {type(part).__name__} is not linear, so it has no filters"
        raise UsageError(problem, "a network whose patch map is a convolution or a linear map of patches")
    return black.reshape(config.width, config.channels, *config.patch)


@explaining
def position_similarity(network: ViT, grid: Size | None = None) -> Float[Tensor, "rows columns rows columns"]:
    """The cosine of every two patches' positions; prefix tokens are left out.

    Args:
        network: With positions of any kind.
        grid: (rows, columns) to resize the positions to first, as for images of another size; None for its own.

    Returns:
        In [-1, 1]: entry [i, j] is the grid of likenesses to the patch in row i, column j.

    Raises:
        UsageError: If the network has no positions.
    """
    wanted = network.config.grid if grid is None else grid
    added = network.positions(wanted)
    if added is None:
        problem = "this network adds no positions, so none can be compared"
        raise UsageError(problem, "a network with positions='learned'")
    with torch.no_grad():
        positions = wide(added)[0, network.config.prefix :]
        directions = F.normalize(positions, eps=torch.finfo(positions.dtype).tiny)
        return (directions @ directions.T).clamp(-1, 1).unflatten(1, wanted).unflatten(0, wanted)


# ---- sinks


@dataclass(frozen=True, eq=False, repr=False)
class Sinks(ShortRepr):
    """The sinks of each image, after every block.

    Attributes:
        norms: (layers, b, rows, columns), length of each patch's token.
        cut_off: (layers, b), the norm above which a patch is a sink.
        found: (layers, b, rows, columns), which are.
    """

    norms: Float[Tensor, "l b rows columns"]
    cut_off: Float[Tensor, "l b"]
    found: Bool[Tensor, "l b rows columns"]

    @property
    def anywhere(self) -> Bool[Tensor, "b rows columns"]:
        """Patches that are sinks after any block."""
        return self.found.any(dim=0)

    def notes(self) -> tuple[tuple[str, ...], ...]:
        """For each image nothing, or one sentence that names its sinks."""
        return tuple(_note(self.found[:, image]) for image in range(self.found.shape[1]))

    def select(self, images: list[int]) -> "Sinks":
        """Those of some of the images, as a report needs where it leaves some out of a contrast."""
        return Sinks(*(each[:, images] for each in (self.norms, self.cut_off, self.found)))


@explaining
def find_sinks(network: ViT, images: Images, threshold: float = 6.0) -> Sinks:
    """Look for patches of outlying norm after every block.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        threshold: How many median absolute deviations above the median a sink stands.

    Raises:
        UsageError: If the network is in training mode, or if images or threshold do not fit.
    """
    check_option("threshold", threshold, threshold > 0, "above 0", 6.0)
    return sinks_of(forward_pass(network, images, None, *output_names(network)), threshold)


def output_names(network: ViT) -> list[str]:
    """What a record must hold for `sinks_of`: the tokens behind every block."""
    return [f"blocks.{index}.output" for index in range(check_tokens(network).config.depth)]


def sinks_of(forward: ForwardPass, threshold: float = 6.0) -> Sinks:
    """The sinks of a forward pass, see `find_sinks`.

    Args:
        forward: Whose record has `output_names`.
        threshold: As of `find_sinks`.
    """
    patches = [wide(forward.record[name])[:, forward.prefix :] for name in output_names(forward.vit)]
    norms = torch.stack([each.norm(dim=-1) for each in patches])
    middle = norms.median(dim=-1).values
    spread = (norms - middle[..., None]).abs().median(dim=-1).values
    cut_off = torch.maximum(middle + threshold * spread, LEAST * middle)
    found = norms > cut_off[..., None]
    return Sinks(norms.unflatten(2, forward.grid), cut_off, found.unflatten(2, forward.grid))


def with_sink_notes(attribution: Attribution, sinks: Sinks) -> Attribution:
    """The attribution, with a note for every image in which these sinks were found.

    Args:
        attribution: Of any method.
        sinks: Of the same images.

    Raises:
        UsageError: If the attribution is not of these images.
    """
    if sinks.found.shape[1:] != attribution.values.shape:
        shapes = f"shape {tuple(attribution.values.shape)}, and these images {tuple(sinks.found.shape[1:])}"
        raise UsageError(f"the attribution has the {shapes}", "the attribution and the sinks of the same images")
    notes = zip(attribution.notes, sinks.notes(), strict=True)
    return replace(attribution, notes=tuple(one + more for one, more in notes))


def _note(found: Bool[Tensor, "l rows columns"]) -> tuple[str, ...]:
    """Nothing, or the sentence; rows and columns count from 1, as on a page, and blocks from 0, as everywhere."""
    places = [f"row {row + 1} column {column + 1}" for row, column in found.any(dim=0).nonzero().tolist()]
    if not places:
        return ()
    named = "; ".join(places[:NAMED]) + (f"; and {len(places) - NAMED} more" if len(places) > NAMED else "")
    after = found.any(dim=(1, 2)).nonzero()[:, 0].tolist()
    where = f"block {after[0]}" if len(after) == 1 else f"blocks {after[0]} to {after[-1]}"
    are, tokens = "1 patch is a sink", "its token"
    if len(places) > 1:
        are, tokens = f"{len(places)} patches are sinks", "their tokens"
    scratch = f"after {where} the network uses {tokens} as scratch space"
    return (f"{are} ({named}): {scratch}, so values there mean little about those patches",)


# ---- what they say of a logit


@explaining
def logit_lens(network: ViT, images: Images) -> Float[Tensor, "layers b v"]:
    """The logits that are read out of the tokens at every depth.

    Args:
        network: In eval mode.
        images: (b, c, h, w), any size that the patches divide.

    Returns:
        (depth + 1, b, classes): first of the tokens that enter the first block, then after each block. The last are
        the network's logits, bit for bit.

    Raises:
        UsageError: If the network is in training mode or the images do not fit.
    """
    names = ["tokens", *output_names(network)]
    record = forward_pass(network, images, None, *names).record
    with torch.no_grad():
        return torch.stack([network.readout(record[name]) for name in names])


@explaining
def patch_lens(network: ViT, images: Images, layer: int = -1) -> Float[Tensor, "b rows columns v"]:
    """The logits that the head reads out of every patch on its own after one block.

    With mean pooling and the last block their mean over the patches is the network's answer (but for a distillation
    token). With a class token the head was never trained on patches, and after the last block nothing ever reads them.

    Args:
        network: In eval mode.
        images: (b, c, h, w), any size that the patches divide.
        layer: Which block; -1 is the last.

    Returns:
        (b, rows, columns, classes).

    Raises:
        UsageError: If the network is in training mode, the block does not exist or the images do not fit.
    """
    name = f"blocks.{layer_index(network.config.depth, layer)}.output"
    forward = forward_pass(network, images, None, name)
    with torch.no_grad():
        patches = forward.record[name][:, forward.prefix :]
        return network.head(network.norm(patches)).unflatten(1, forward.grid)


@dataclass(frozen=True, eq=False, repr=False)
class DirectAttribution(ShortRepr):
    """embedding + attention + mlp + constant = logit, for each image.

    Attributes:
        embedding: (b,), of the tokens that enter the first block.
        heads: (l, k, b), of what each head of each attention added.
        attention_bias: (l, b), of the bias of each attention's output map.
        mlp: (l, b), of what each MLP added.
        constant: (b,), of the biases of the last norm and the head.
        logit: (b,), the number that is explained.
        target: (b,), the class, as in `Attribution`.
    """

    embedding: Float[Tensor, "b"]
    heads: Float[Tensor, "l k b"]
    attention_bias: Float[Tensor, "l b"]
    mlp: Float[Tensor, "l b"]
    constant: Float[Tensor, "b"]
    logit: Float[Tensor, "b"]
    target: Int[Tensor, "b"]

    @property
    def attention(self) -> Float[Tensor, "l b"]:
        """Of what each attention added: its heads and its bias."""
        return self.heads.sum(dim=1) + self.attention_bias

    @property
    def gap(self) -> Float[Tensor, "b"]:
        """Logit less the sum of the parts: rounding, for a target that is linear in the logits."""
        return self.logit - self.embedding - self.attention.sum(dim=0) - self.mlp.sum(dim=0) - self.constant


@explaining
def direct_attribution(network: ViT, images: Images, target: Target = None) -> DirectAttribution:
    """What each part of the network contributes directly to the target.

    Args:
        network: In eval mode, whose norm, pooling and head have a detached form, and whose attentions have one for what
            their heads add; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: Whose number is taken apart, see `vitrail.explain.target`; None for each image's top class.

    Raises:
        UsageError: If the network is in training mode or has a readout or an attention without a rule, or if images or
            target do not fit.
    """
    check_explainable(network, images, gradients=True)
    places = [f"blocks.{index}" for index in range(network.config.depth)]
    for index in range(len(places)):
        attention_at(network, index)
    names = ("blocks.0.input", "blocks.*.attended", "blocks.*.mlp", f"{places[-1]}.output")
    record = forward_pass(network, images, None, *names).record
    last = record[names[-1]].requires_grad_()
    scale = torch.ones(len(last), dtype=wide(last).dtype, device=last.device, requires_grad=True)
    logits = _readout(network, scale).readout(last)
    chosen = choose_target(logits.detach(), target)
    logit = chosen(logits)
    arriving, constant = gradients_of(logit, last, scale)

    with torch.no_grad(), without_autocast(arriving):

        def part(added: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
            return (wide(added) * arriving).sum(dim=(1, 2))

        heads, biases = [], []
        for index, place in enumerate(places):
            attended = record[f"{place}.attended"].detach().requires_grad_()
            with torch.enable_grad():
                added, bias = linear_output(network, index, attended)
                (back,) = torch.autograd.grad(answer := added(attended), attended, arriving.to(answer.dtype))
            heads.append((wide(attended) * wide(back)).sum(dim=(2, 3)).T)
            biases.append(part(bias))
        return DirectAttribution(
            embedding=part(record["blocks.0.input"]),
            heads=torch.stack(heads),
            attention_bias=torch.stack(biases),
            mlp=torch.stack([part(record[f"{place}.mlp"]) for place in places]),
            constant=constant,
            logit=wide(logit.detach()),
            target=chosen.target,
        )


def _readout(network: ViT, scale: Float[Tensor, "b"]) -> ViT:
    """A twin whose norm, pooling and heads are held fixed, and whose biases are multiplied by the scale."""

    def scaled(form: nn.Module, place: str) -> nn.Module:
        bias = bias_of(form)
        return form if bias is None else ScaledBias(form, bias, scale)

    other = copy.copy(network)
    ends = ("norm", "pool", "head") if network.head_dist is None else ("norm", "pool", "head", "head_dist")
    held = {name: detached(network.get_submodule(name), name, scaled) for name in ends}
    other._modules = {**network._modules, **held}
    return other
