"""Parts whose factors are constants to the gradient: what makes a network linear around a picture.

A ViT multiplies what it computes by what it computes: values by attention weights, centred tokens by one over their
deviation, x by its gate Phi(x). Taken as constants, those factors leave a network that is linear in its pixels,
positions, prefix tokens and biases together, and then input times gradient shares the logit out without a rest:
"XAI for transformers: better explanations through conservative propagation" (Ali et al., 2022), sections 3.1 and 3.2.

    HeldAttention   attend(q, k, v)             q and k held, so the weights are
    HeldNorm        (x - mean(x)) / s * w + b   s held, the mean not
    HeldGELU        x * Phi(x)                  Phi(x) held

ReLU, linear maps, LayerScale and both poolings are what they should be already. Each part gives the very bits of the
part that it stands for; only its gradient differs. `held` puts them into a twin of a network.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.readout import wide, without_autocast
from vitrail.nn import MLP, SILENT, AnyRecord, Attention, EncoderBlock, LayerScale, StochasticDepth, ViT, attend, twin
from vitrail.nn.embedding import LinearPatchEmbedding, PatchEmbedding, PatchifiedEmbedding
from vitrail.nn.vit import ClassToken, MeanOfPatches

KNOWN = {  # parts whose place in the proof is known: linear as they are, made of others, or held
    *(ViT, EncoderBlock, MLP, nn.ModuleList, nn.Identity, nn.Dropout, StochasticDepth),
    *(PatchEmbedding, LinearPatchEmbedding, PatchifiedEmbedding, nn.Conv2d, nn.Linear, LayerScale),
    *(ClassToken, MeanOfPatches, nn.ReLU),
    *(Attention, nn.LayerNorm, nn.GELU),
}

Count = Callable[[nn.Module, Tensor | None, str], nn.Module]


def uncounted(part: nn.Module, bias: Tensor | None, name: str) -> nn.Module:
    """The part as it is: biases are not counted."""
    return part


def held(network: ViT, count: Count = uncounted) -> ViT:
    """A twin whose attention weights, deviations and gates are constants to the gradient; its answers are the same.

    Args:
        network: Of the standard parts.
        count: Wraps every linear map, convolution and norm, given the part, its bias in the shape in which it is added,
            and its name in the network.

    Raises:
        UsageError: If the network has a part for which there is no rule; names it.
    """
    check_rules(network)
    names = {module: name for name, module in network.named_modules()}

    def linear(part: nn.Module) -> nn.Module:
        assert isinstance(part, nn.Linear)
        return count(part, part.bias, names[part])

    def convolution(part: nn.Module) -> nn.Module:
        assert isinstance(part, nn.Conv2d)
        return count(part, None if part.bias is None else part.bias[:, None, None], names[part])

    def norm(part: nn.Module) -> nn.Module:
        assert isinstance(part, nn.LayerNorm)
        return count(HeldNorm(part), part.bias, names[part])

    def attention(part: nn.Module) -> nn.Module:
        assert isinstance(part, Attention)
        return HeldAttention(twin(part, {nn.Linear: linear}))

    def gelu(part: nn.Module) -> nn.Module:
        assert isinstance(part, nn.GELU)
        return HeldGELU(part)

    rules: dict[type[nn.Module], Callable[[nn.Module], nn.Module]] = {
        nn.Linear: linear,
        nn.Conv2d: convolution,
        nn.LayerNorm: norm,
        nn.GELU: gelu,
        Attention: attention,
    }
    return twin(network, rules)


def check_rules(network: ViT, *places: str) -> None:
    """Refuse parts whose gradient nobody made linear.

    Args:
        network: Any.
        places: Names of parts that matter, such as "norm"; the whole network when none is given.

    Raises:
        UsageError: If there is no rule for a part; names it.
    """
    for name, module in network.named_modules():
        if (not places or name in places) and type(module) not in KNOWN:
            raise UsageError(
                f"there is no conservative rule for {type(module).__name__} at {name or 'the top'}",
                "generic_attention, which takes any part; or a network of the standard parts",
            )


Back = Callable[[Tensor], Tensor]


class Answer(torch.autograd.Function):
    """Returns the numbers that it is given; its backward pass is `back`."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, answer: Tensor, back: Back) -> Tensor:
        """The very numbers."""
        ctx.back, ctx.dtype = back, tokens.dtype
        return answer.view_as(answer)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """What arrives at the tokens."""
        (gradient,) = gradients
        with without_autocast(gradient):
            return ctx.back(wide(gradient)).to(ctx.dtype), None, None


def answering(part: nn.Module, tokens: Tensor, back: Back) -> Tensor:
    """The bits that `part` gives, with another backward pass."""
    with torch.no_grad():
        answer = part(tokens)
    return Answer.apply(tokens, answer, back)


class HeldNorm(nn.Module):
    """LayerNorm whose deviation is a constant to the gradient.

    Args:
        norm: What it stands for; shares its parameters.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, tokens: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The same bits; linear in the tokens."""
        norm, full = self.norm, wide(tokens.detach())
        axes = tuple(range(-len(norm.normalized_shape), 0))
        variance = (full - full.mean(dim=axes, keepdim=True)).square().mean(dim=axes, keepdim=True)
        scale = (variance + norm.eps).rsqrt()

        def back(gradient: Tensor) -> Tensor:
            gradient = (gradient if norm.weight is None else gradient * norm.weight.detach()) * scale
            return gradient - gradient.mean(dim=axes, keepdim=True)

        return answering(norm, tokens, back)


class HeldGELU(nn.Module):
    """GELU as a gate, x times Phi(x), whose gate is a constant to the gradient; no division by x.

    Args:
        gelu: What it stands for, exact or approximated by tanh.
    """

    def __init__(self, gelu: nn.GELU) -> None:
        super().__init__()
        self.gelu = gelu

    def forward(self, tokens: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The same bits; linear in the tokens."""
        held = tokens.detach()
        return answering(self.gelu, tokens, lambda gradient: gradient * self.gate(wide(held)))

    def gate(self, tokens: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Phi(x), in [0, 1]."""
        if self.gelu.approximate == "tanh":
            return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (tokens + 0.044715 * tokens**3)))
        return torch.special.ndtr(tokens)


class HeldAttention(nn.Module):
    """Attention whose weights are constants to the gradient: the kernel gets queries and keys without their past.

    Args:
        attention: What it stands for; shares its parameters.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self,
        tokens: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "*#b #n #n"] | None = None,
        record: AnyRecord = SILENT,
    ) -> Float[Tensor, "b n d"]:
        """The same bits; linear in the values."""
        queries, keys, values = self.attention.project(tokens)
        attended = attend(queries.detach(), keys.detach(), values, mask)
        record.keep_attention(queries, keys, values, attended, mask)
        return self.attention.drop(self.attention.proj(attended.transpose(1, 2).flatten(2)))


class Counted(nn.Module):
    """A part whose bias every picture takes by a share, which is 1.

    The gradient of a number by the share is what the bias gave to it: the sum of bias times gradient over all places,
    for every picture of a batch by itself.

    Args:
        part: Linear map, convolution or norm; shares its parameters.
        bias: Of the part, in the shape in which it is added.
        share: (b,), ones.
    """

    def __init__(self, part: nn.Module, bias: Tensor, share: Float[Tensor, "b"]) -> None:
        super().__init__()
        self.part, self.share = part, share
        self.bias = bias.detach()

    def forward(self, tokens: Tensor) -> Tensor:
        """The same bits: what is added is zero, with a gradient."""
        answer = self.part(tokens)
        more = self.share.view(-1, *[1] * (answer.dim() - 1)) - 1
        return answer + (self.bias * more).to(answer.dtype)
