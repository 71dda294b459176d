"""Networks made from a network: others that share its parameters, another image size.

    frozen = twin(network, {nn.LayerNorm: FrozenNorm})      FrozenNorm(layer_norm) -> module
    linear = detached(network)                              every part in its detached form

The original is not touched; training either trains both.

A ViT multiplies what it computes by what it computes: values by attention weights, centred tokens by one over their
standard deviation, x by its gate Phi(x). A part's *detached* form gives the same values, but takes those factors as
constants to the gradient. A network of detached parts is linear in its pixels, positions, prefix tokens and biases
together: "XAI for transformers: better explanations through conservative propagation" (Ali et al., 2022), sections 3.1
and 3.2.

    attend(q, k, v)             q and k detached, so the weights are
    (x - mean(x)) / s * w + b   s detached, the mean not (RMSNorm: x / s * w)
    x * Phi(x)                  Phi(x) detached (GELU; SiLU with the logistic function)

ReLU, linear maps, LayerScale and the library's poolings need no other form. A part of your own returns its form from a
method `detached(self) -> nn.Module`; the parts inside it are detached in turn.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.errors import UsageError
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, EncoderBlock, LayerScale, QuickGELU, StochasticDepth
from vitrail.nn.embedding import PatchEmbedding, Size
from vitrail.nn.parts import AttentionPooling, ClassAndMean, MeanThenNorm, NormedPatchEmbedding, RMSPatchEmbedding
from vitrail.nn.rotary import QueryKeyValue, RotaryPositions
from vitrail.nn.vit import ClassToken, MeanOfPatches, ViT

Network = TypeVar("Network", bound=nn.Module)


@typed
def twin(network: Network, parts: Mapping[type[nn.Module], Callable[[nn.Module], nn.Module]]) -> Network:
    """A network with the same parameters and buffers, in which some classes of parts are replaced.

    Args:
        network: Any module; it is not changed.
        parts: For a class of parts, what makes the replacement out of the original part. A part is replaced when it is
            exactly of that class, and nothing inside its replacement is replaced again.

    Returns:
        The twin, in the same mode (train or eval).
    """
    if type(network) in parts:
        return _in_mode_of(network, parts[type(network)](network))  # pyrefly: ignore[bad-return]
    return _share(network, lambda child, name: twin(child, parts))


def _share(network: Network, change: Callable[[nn.Module, str], nn.Module]) -> Network:
    """A module with the same parameters and buffers, whose children are changed."""
    other = copy.copy(network)
    other._parameters, other._buffers = dict(network._parameters), dict(network._buffers)
    children = network._modules.items()
    other._modules = {name: None if child is None else change(child, name) for name, child in children}
    return other


def _in_mode_of(part: nn.Module, form: nn.Module) -> nn.Module:
    """A part's replacement in the part's mode; modules that both have are not changed."""
    own = set(part.modules())
    for module in form.modules():
        if module not in own:
            module.training = part.training
    return form


# ---- every part in its detached form


@runtime_checkable
class Detaches(Protocol):
    """A part of your own that has a detached form."""

    def detached(self) -> nn.Module:
        """The same values, linear in the input: the factors are constants to the gradient."""


Wrap = Callable[[nn.Module, str], nn.Module]


def detached(part: Network, name: str = "", wrap: Wrap = lambda form, name: form) -> Network:
    """The detached form of a part and of all parts in it, with the same output; the original is not changed.

    Args:
        part: A network, or a part of one.
        name: Its name in the network, for messages; empty for the network itself.
        wrap: Applied to every form, with its name in the network.

    Raises:
        UsageError: A part has no detached form; names it, and the missing method.
    """
    if isinstance(part, Detaches):  # pyrefly: ignore[unsafe-overlap]
        form = part.detached()
    elif type(part) in FORMS:
        form = FORMS[type(part)](part)
    else:
        kind = type(part).__name__
        problem = f"{kind} at {name or 'the top'} has no method detached, which returns its detached form"
        hint = f"a method `detached(self) -> nn.Module` of {kind}; or generic_attention, which takes any part"
        raise UsageError(problem, hint)
    whole = _share(form, lambda child, inner: detached(child, f"{name}.{inner}".lstrip("."), wrap))
    return _in_mode_of(part, wrap(whole, name))  # pyrefly: ignore[bad-return]


def bias_of(part: nn.Module) -> Tensor | None:
    """A part's parameter `bias`, in the shape in which it is added; None where it has none."""
    bias = part._parameters.get("bias")
    return bias[:, None, None] if bias is not None and isinstance(part, nn.Conv2d) else bias


def attend_detached(way: Callable[..., Tensor], queries: Tensor, keys: Tensor, *rest: Any) -> Tensor:
    """A way to attend, whose weights are constants to the gradient: linear in the values."""
    return way(queries.detach(), keys.detach(), *rest)


def _attention(part: Any) -> nn.Module:
    form = copy.copy(part)
    form.attend = partial(attend_detached, part.attend)
    return form


def with_gradient_of(linear: Tensor, output: Tensor) -> Tensor:
    """The output, bit for bit, with the gradient of `linear`, which has the same values but for rounding."""
    return output.detach() + (linear - linear.detach()).to(output.dtype)


class DetachedNorm(nn.Module):
    """LayerNorm or RMSNorm whose standard deviation is a constant to the gradient.

    Args:
        norm: The norm that it replaces; shares its parameters.
        centred: Whether the mean is subtracted, as LayerNorm does.
    """

    def __init__(self, norm: Any, centred: bool) -> None:
        super().__init__()
        self.normalise, self.axes = norm.forward, tuple(range(-len(norm.normalized_shape), 0))
        self.weight, self.bias, self.eps, self.centred = norm.weight, norm._parameters.get("bias"), norm.eps, centred

    def forward(self, tokens: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The same bits; linear in the tokens."""
        full = wide(tokens)
        centred = full - full.mean(dim=self.axes, keepdim=True) if self.centred else full
        variance = centred.detach().square().mean(dim=self.axes, keepdim=True)
        scale = (variance + (torch.finfo(tokens.dtype).eps if self.eps is None else self.eps)).rsqrt()
        weight = 1.0 if self.weight is None else self.weight.detach()
        return with_gradient_of(centred * scale * weight, self.normalise(tokens.detach()))


class DetachedGate(nn.Module):
    """x times gate(x), whose gate is a constant to the gradient; no division by x.

    Args:
        activation: The activation that it replaces.
        gate: The gate, of values in at least float32.
    """

    def __init__(self, activation: nn.Module, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activate, self.gate = activation.forward, gate

    def forward(self, tokens: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The same bits; linear in the tokens."""
        full = wide(tokens)
        return with_gradient_of(full * self.gate(full.detach()), self.activate(tokens.detach()))


def _phi_by_tanh(tokens: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (tokens + 0.044715 * tokens**3)))


# The library's parts and torch's layers: those that are linear or made of others, and the forms of the rest
LINEAR = (
    *(ViT, EncoderBlock, MLP, LayerScale, StochasticDepth, PatchEmbedding, NormedPatchEmbedding),
    *(ClassToken, MeanOfPatches, MeanThenNorm, ClassAndMean, AttentionPooling),
    *(nn.ModuleList, nn.Sequential, nn.Identity, nn.Dropout, nn.Linear, nn.Conv2d, nn.ReLU),
    *(QueryKeyValue, RotaryPositions, RMSPatchEmbedding),
)
FORMS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    **dict.fromkeys(LINEAR, lambda part: part),
    Attention: _attention,
    nn.LayerNorm: lambda part: DetachedNorm(part, centred=True),
    nn.RMSNorm: lambda part: DetachedNorm(part, centred=False),
    nn.GELU: lambda part: DetachedGate(part, _phi_by_tanh if part.approximate == "tanh" else torch.special.ndtr),
    nn.SiLU: lambda part: DetachedGate(part, torch.sigmoid),
    QuickGELU: lambda part: DetachedGate(part, lambda tokens: torch.sigmoid(1.702 * tokens)),
}


# ---- another size, another mode, another precision


def resize_network(network: ViT, image_size: int | Size) -> ViT:
    """The same network for another image size: positions resized once, everything else copied."""
    other = copy.deepcopy(network)
    config = other.config = replace(network.config, image_size=image_size)
    if other.pos_embed is not None and (positions := network.positions(config.grid)) is not None:
        other.pos_embed.data = positions.detach().clone()
    return other


@torch.no_grad()
def in_bf16(network: Network) -> Network:
    """A copy that multiplies matrices in bfloat16, for inference: what torch's autocast does, and its bits (ViT-Ti, B).

    Linear maps and convolutions round their inputs and weights, and what follows them stays bfloat16; norms read
    float32, and so do sums along the blocks. Autocast would round the weights at every call, and works only in the
    thread that entered it. A layer of another class is not changed.
    """
    other = copy.deepcopy(network)
    for part in other.modules():
        if type(part) in (nn.Linear, nn.Conv2d, QueryKeyValue):
            part.bfloat16().register_forward_pre_hook(lambda part, inputs: tuple(each.bfloat16() for each in inputs))
        elif type(part) in (nn.LayerNorm, nn.RMSNorm):
            part.register_forward_pre_hook(lambda part, inputs: tuple(map(wide, inputs)))
    return other.requires_grad_(False)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in at least float32: products over layers are not made in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which products keep the precision of their factors, also inside a caller's autocast."""
    return torch.autocast(tensor.device.type, enabled=False)


class ScaledBias(nn.Module):
    """A part whose bias is multiplied by a scale of each image, which is 1.

    The gradient of a number by the scale is what the bias gave to it: the sum of bias times gradient over all places,
    for every image of a batch by itself.

    Args:
        part: Linear map, convolution or norm; shares its parameters.
        bias: Of the part, in the shape in which it is added.
        scale: (b,), ones.
    """

    def __init__(self, part: nn.Module, bias: Tensor, scale: Float[Tensor, "b"]) -> None:
        super().__init__()
        self.part, self.scale = part, scale
        self.bias = bias.detach()

    def forward(self, tokens: Tensor) -> Tensor:
        """The same bits: what is added is zero, with a gradient."""
        answer = self.part(tokens)
        more = self.scale.view(-1, *[1] * (answer.dim() - 1)) - 1
        return answer + (self.bias * more).to(answer.dtype)
