"""The two ends of a network: what the embedding has learnt, and where a logit comes from.

Patch filters and positions ("An image is worth 16x16 words", 2020, figure 7):

    W - mean of its rows = U S V^T         W (d, c x ph x pw), one row for each number of a token
    s[i, j] = cos(e_i, e_j)                e_i the position that is added to patch i

The rows of V are small images; the first of them span most of what the map sees of a patch. The fraction of variance
that a filter explains is s^2 over the sum of all s^2. Where the network has learnt the plane, a patch's position is
most like those of its neighbours, row and column.

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
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from vitrail.errors import UsageError
from vitrail.explain.forward import check, forward_pass, layer_index
from vitrail.explain.inside.heads import attention_at, output_map
from vitrail.explain.methods.conservative import ScaledBias
from vitrail.explain.methods.pixels import gradients_of
from vitrail.explain.target import Target, choose_target
from vitrail.nn.embedding import Size
from vitrail.nn.twin import bias_of, detached, wide, without_autocast
from vitrail.nn.vit import Images, ViT


@dataclass(frozen=True, eq=False)
class PatchFilters:
    """The principal filters of a patch map, strongest first.

    Attributes:
        filters: (m, c, ph, pw), of length 1 and at right angles; the entry of largest size is positive.
        explained: (m,), the fraction of variance that each explains; all of them together at most 1.
    """

    filters: Float[Tensor, "m c ph pw"]
    explained: Float[Tensor, "m"]


@torch.inference_mode(False)
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
        raise UsageError(
            f"the patch map {type(part).__name__} is not linear, so it has no filters",
            "a network whose patch map is a convolution or a linear map of patches",
        )
    return black.reshape(config.width, config.channels, *config.patch)


@torch.inference_mode(False)
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
        raise UsageError(
            "this network adds no positions, so none can be compared", "a network with positions='learned'"
        )
    with torch.no_grad():
        positions = wide(added)[0, network.config.prefix :]
        tiny = torch.finfo(positions.dtype).tiny
        directions = positions / positions.norm(dim=1, keepdim=True).clamp(min=tiny)
        return (directions @ directions.T).clamp(-1, 1).unflatten(1, wanted).unflatten(0, wanted)


@torch.inference_mode(False)
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
    names = ["tokens", *(f"blocks.{index}.output" for index in range(network.config.depth))]
    record = forward_pass(network, images, None, *names).record
    with torch.no_grad():
        return torch.stack([network.readout(record[name]) for name in names])


@torch.inference_mode(False)
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


@dataclass(frozen=True, eq=False)
class DirectAttribution:
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


@torch.inference_mode(False)
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
    check(network, images, gradients=True)
    places = [f"blocks.{index}" for index in range(network.config.depth)]
    for index in range(len(places)):
        attention_at(network, index)
    names = ("blocks.0.input", "blocks.*.attended", "blocks.*.mlp", f"{places[-1]}.output")
    record = forward_pass(network, images, None, *names).record
    last = record[names[-1]].requires_grad_()
    scale = torch.ones(len(last), dtype=wide(last).dtype, device=last.device, requires_grad=True)
    logits = _readout(network, scale).readout(last)
    chosen = choose_target(logits.detach(), target)
    logit = chosen.of(logits)
    arriving, constant = gradients_of(logit, last, scale)

    with torch.no_grad(), without_autocast(arriving):

        def part(added: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
            return (wide(added) * arriving).sum(dim=(1, 2))

        heads, biases = [], []
        for index, place in enumerate(places):
            attended = record[f"{place}.attended"]
            weight, bias = output_map(network, index, attended)
            back = torch.einsum("bnd,dke->bkne", arriving, wide(weight))
            heads.append((wide(attended) * back).sum(dim=(2, 3)).T)
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
