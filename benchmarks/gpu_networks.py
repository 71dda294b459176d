"""The networks of `benchmarks.gpu`: sizes, every library's ViT, what makes them fast, and seconds on a GPU."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.libraries.turn import PEERS
from vitrail.nn import ViTConfig
from vitrail.runtime import whole_fp32
from vitrail.weights.convert import convert_network

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True)
class Shape:
    """A size of the ViT; batches of T to choose from in training and inference, and the batch of D."""

    width: int
    depth: int
    heads: int
    train: tuple[int, ...]
    infer: tuple[int, ...]
    default: int
    image: int = 224
    classes: int = 1000


SIZES = {
    "S": Shape(384, 12, 6, (256, 512), (256, 512), 64),
    "B": Shape(768, 12, 12, (128, 256), (256, 512), 64),
    "L": Shape(1024, 24, 16, (64, 128), (256,), 32),
}
TINY = {size: Shape(32, 2, 2, (4, 8), (4, 8), 4, image=32, classes=10) for size in SIZES}


def config_of(shape: Shape) -> ViTConfig:
    """The network of a size, with patches of 16."""
    s = shape
    return ViTConfig(
        image_size=s.image,
        patch_size=16,
        width=s.width,
        depth=s.depth,
        heads=s.heads,
        mlp_dim=4 * s.width,
        classes=s.classes,
    )


@torch.no_grad()
def networks(shape: Shape, device: str, wanted: list[str]) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """All networks with drawn weights, and the gap of each to the one of vitrail that is made of it."""
    found, proof = {}, {}
    torch.manual_seed(0)
    with whole_fp32():
        for name in wanted:
            try:
                with torch.device(device):
                    module = PEERS[name](config_of(shape)).eval()
                for parameter in module.parameters():
                    noise = torch.randn_like(parameter)
                    parameter.copy_(
                        noise * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else parameter + noise / 50
                    )
                converted = convert_network(module)
            except ImportError as error:
                proof[name] = f"not here: {error}"
                continue
            found[name], proof[name] = module, converted.gap
            if name == "timm":
                found = {"vitrail": converted.network.to(device), **found}
    return found, proof


def answer(module: nn.Module, images: Tensor) -> Tensor:
    """The logits: transformers packs them."""
    given: Any = module(images)
    return given if isinstance(given, Tensor) else given.logits


def blocks_of(module: nn.Module, depth: int) -> list[nn.Module]:
    """The modules that stand in a row, one a block; none where a block is no module."""
    for part in module.modules():
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) == depth and len({*map(type, part)}) == 1:
            return [] if isinstance(part[0], nn.ModuleList) else list(part)
    return []


def compiled(module: nn.Module, depth: int, how: str, mode: str) -> Callable[[Tensor], Tensor]:
    """The network as T runs it."""
    blocks = blocks_of(module, depth) if how == "blocks" else []
    for block in blocks:
        block.compile(dynamic=False, mode=mode)
    whole = module if blocks or how == "off" else torch.compile(module, dynamic=False, mode=mode)
    return lambda images: answer(whole, images)


# ---- seconds


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], device: str, least: float) -> float:
    """Of one call: as many as take about `least` seconds, and three at least."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    count = max(3, round(least / (time.perf_counter() - began)))
    began = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(device)
    return (time.perf_counter() - began) / count


@contextmanager
def attention_for(shape: Shape, device: str) -> Iterator[dict[str, float]]:
    """With torch's fastest attention kernel for a size, timed in bf16, forward and backward; fp32 has one alone."""
    if device == "cpu":
        yield {}
        return
    tokens, batch = (shape.image // 16) ** 2 + 1, 128
    size = (batch, tokens, 3, shape.heads, shape.width // shape.heads)
    qkv = torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True)
    arriving = torch.randn(batch, shape.heads, tokens, size[-1], device=device, dtype=torch.bfloat16)
    times: dict[str, float] = {}

    def step() -> None:
        attended = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0))
        torch.autograd.grad(attended, qkv, arriving)

    for name, kernel in KERNELS.items():
        try:
            with sdpa_kernel(kernel):
                times[name] = round(1000 * statistics.median(seconds(step, device, 0.05) for _ in range(3)), 3)
        except RuntimeError as error:
            print(f"  attention by {name}: {str(error).splitlines()[0]}")
    best = KERNELS[min(times, key=times.__getitem__)]
    with sdpa_kernel([best, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        yield times
