"""Direct logit attribution: a logit as a sum of what the embedding, each attention and each MLP wrote.

    h_L = tokens + sum_l attention_l + sum_l mlp_l                     the residual stream is a sum
    y   = sum_u g . u + constant,       g = d y / d h_L                with the standard deviation of the last norm held

The last norm, the pooling and the head are linear once its standard deviation is a constant (`nn/twin.py`), so every
term of the sum has its share of the logit ("A mathematical framework for transformer circuits", Elhage et al., 2021).
Only what a term says *directly* is counted, not what later blocks make of it.
"""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.explain.inside.reading import attention_at, output_map, read
from vitrail.explain.methods.held import Counted, counting
from vitrail.explain.methods.pixels import gradients_of
from vitrail.explain.readout import check, wide, without_autocast
from vitrail.explain.target import Target, choose_target
from vitrail.nn import ViT, detached
from vitrail.nn.vit import Images


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
    """What each part of the network says directly for the target.

    Args:
        network: In eval mode, whose norm, pooling and head say how they are held fixed, and whose attentions say what
            their heads add; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: Whose number is shared out, see `vitrail.explain.target`; None for each image's top class.

    Raises:
        UsageError: If the network is in training mode or has a readout or an attention without a rule, or if images or
            target do not fit.
    """
    check(network, images, gradients=True)
    depth = network.config.depth
    for index in range(depth):
        attention_at(network, index)
    record = read(network, images, "blocks.0.input", "blocks.*.attended", "blocks.*.mlp", f"blocks.{depth - 1}.output")
    last = record[f"blocks.{depth - 1}.output"].requires_grad_()
    share = torch.ones(len(last), dtype=wide(last).dtype, device=last.device, requires_grad=True)
    logits = _readout(network, share).readout(last)
    chosen = choose_target(logits.detach(), target)
    logit = chosen.of(logits)
    arriving, constant = gradients_of(logit, last, share)
    arriving = wide(arriving)

    with torch.no_grad(), without_autocast(arriving):
        heads, biases, mlps = [], [], []
        for index in range(depth):
            at_heads, bias = _by_head(network, index, record[f"blocks.{index}.attended"], arriving)
            heads.append(at_heads)
            biases.append(bias)
            mlps.append(_said(record[f"blocks.{index}.mlp"], arriving))
        return DirectAttribution(
            embedding=_said(record["blocks.0.input"], arriving),
            heads=torch.stack(heads),
            attention_bias=torch.stack(biases),
            mlp=torch.stack(mlps),
            constant=constant,
            logit=wide(logit.detach()),
            target=chosen.target,
        )


def _readout(network: ViT, share: Float[Tensor, "b"]) -> ViT:
    """A twin whose norm, pooling and heads are held fixed, and whose biases are counted by the share."""
    wrap = counting(lambda part, bias, name: Counted(part, bias, share))
    other = copy.copy(network)
    ends = ("norm", "pool", "head") if network.head_dist is None else ("norm", "pool", "head", "head_dist")
    held = {name: detached(network.get_submodule(name), name, wrap) for name in ends}
    other._modules = {**network._modules, **held}
    return other


def _said(added: Float[Tensor, "b n d"], arriving: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    return (wide(added) * arriving).sum(dim=(1, 2))


def _by_head(
    network: ViT, block: int, attended: Float[Tensor, "b k n e"], arriving: Float[Tensor, "b n d"]
) -> tuple[Float[Tensor, "k b"], Float[Tensor, "b"]]:
    """What each head of an attention said, and the constant that it adds."""
    weight, constant = output_map(network, block, attended)
    back = torch.einsum("bnd,dke->bkne", arriving, wide(weight))
    heads = (wide(attended) * back).sum(dim=(2, 3)).T
    return heads, (arriving * wide(constant)).sum(dim=(1, 2))
