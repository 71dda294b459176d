"""LoRA: only low-rank additions to the attention of a pretrained network are trained, and its head.

    y = W x + b + (alpha / R) B A x        "LoRA: low-rank adaptation of large language models" (Hu et al., 2021), eq. 3

A (R, in) is random, B (out, R) is zero, so that training starts from the pretrained network. W, b and all else but the
heads are frozen: they have no gradients, no moments and no average, and autograd does not store the inputs of the MLP.
`merge_adapters` is evaluated and saved: a plain network with W + (alpha / R) B A instead of W.
"""

import copy
import math
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.tensor_files import write_tensors
from vitrail.errors import Hint, UsageError
from vitrail.features.poolings import HEADS
from vitrail.io import to_json, write_file
from vitrail.nn import ViT
from vitrail.nn.rotary import QueryKeyValue

ALPHA = 16.0  # divided by R, so that one learning rate suits every rank
MAPS = ("qkv", "proj")  # of the attention of each block
FACTORS = ("lora_a", "lora_b")

Network = TypeVar("Network", bound=nn.Module)


class Adapted(nn.Linear):
    """A frozen linear map with its adapter; shares the parameters of the map.

    Args:
        linear: The map.
        rank: R.
        generator: Of A, which is uniform with a standard deviation of 1 / sqrt(3 in).
    """

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias, self.kind = linear.weight, linear.bias, type(linear)
        self.scale = ALPHA / rank
        most = 1 / math.sqrt(linear.in_features)
        drawn = torch.empty(rank, linear.in_features).uniform_(-most, most, generator=generator)
        self.lora_a = nn.Parameter(drawn.to(linear.weight))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    def forward(self, input: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        """The map plus its adapter."""
        return super().forward(input) + F.linear(self.scale * F.linear(input, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """The equal plain map."""
        plain = self.kind(self.in_features, self.out_features, device="meta")
        plain.bias = self.bias
        plain.weight = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a, requires_grad=False)
        return plain.train(self.training)


def check_rank(network: ViT, rank: int) -> None:
    """Refuse a rank above that of the maps, and a network without maps to adapt.

    Raises:
        UsageError: Names the largest rank, or the attention.
    """
    places = _maps(network)
    if not places:
        what = type(network.blocks[0].attn).__name__ if len(network.blocks) else "no block"
        problem = f"lora {rank} adapts the linear maps {' and '.join(MAPS)} of each attention, but {what} has none"
        raise UsageError(problem, Hint(drop=["lora"]))
    most = min(min(linear.weight.shape) for _, linear in places)
    if not 1 <= rank <= most:
        wanted = f"a rank from 1 to {most}, the smaller side of the maps"
        raise UsageError(f"lora must be {wanted}, got {rank}", Hint({"lora": 8}))


def _maps(network: ViT) -> list[tuple[str, nn.Linear]]:
    """The linear maps of the blocks' attention, with their names."""
    found = []
    for index, block in enumerate(network.blocks):
        parts = dict(block.named_children())["attn"].named_children()
        found += [(f"blocks.{index}.attn.{name}", part) for name, part in parts if name in MAPS]
    return [(name, part) for name, part in found if type(part) in (nn.Linear, QueryKeyValue)]


def adapt(network: ViT, rank: int, seed: int) -> None:
    """Add adapters to a network, in place; all else is frozen except its heads.

    Args:
        network: Is changed.
        rank: R, which `check_rank` has allowed.
        seed: Of A.
    """
    freeze(network)
    generator = torch.Generator().manual_seed(seed)
    for name, linear in _maps(network):
        place, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(place), leaf, Adapted(linear, rank, generator))


def freeze(network: ViT) -> None:
    """Freeze all but the heads."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.partition(".")[0] in HEADS)


def adapters(network: nn.Module) -> dict[str, Adapted]:
    """The adapters by name; none of a plain network."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Adapted)}


def copy_trained(network: Network) -> Network:
    """A copy that shares the frozen parameters."""
    return copy.deepcopy(network, {id(each): each for each in network.parameters() if not each.requires_grad})


def merge_adapters(network: Network) -> Network:
    """The equal plain network; the network itself if it has no adapters.

    It shares all but the adapted weights.
    """
    found = adapters(network)
    if not found:
        return network
    other = copy.deepcopy(network, {id(each): each for each in network.parameters()})
    for name, module in found.items():
        place, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(place), leaf, module.merge())
    return other


def write_adapter(folder: Path, network: nn.Module, source: str) -> None:
    """Save adapters and heads in the layout of the library peft, which can add them to the pretrained weights.

    Args:
        folder: To be made.
        network: With adapters.
        source: Name of the pretrained weights.
    """
    found = adapters(network)
    heads = [name for name, _ in network.named_children() if name in HEADS]
    tensors: dict[str, Tensor] = {n: each for n, each in network.named_parameters() if n.partition(".")[0] in heads}
    tensors |= {f"{name}.lora_A.weight": module.lora_a for name, module in found.items()}
    tensors |= {f"{name}.lora_B.weight": module.lora_b for name, module in found.items()}
    (rank,) = {len(module.lora_a) for module in found.values()}
    facts: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": source,
        "r": rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": rf"blocks\.\d+\.attn\.({'|'.join(MAPS)})",
        "modules_to_save": heads,
        "inference_mode": True,
    }
    folder.mkdir(exist_ok=True)
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    write_tensors(folder / "adapter_model.safetensors", named)
    write_file(folder / "adapter_config.json", to_json(facts))
