"""How each library builds the same ViT, with drawn numbers, and the proof that it is the same network."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.nn import ViT, ViTConfig
from vitrail.weights.convert import convert

OWN = "vitrail"


def _timm(c: ViTConfig) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=c.image,
        patch_size=c.patch,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        num_classes=c.classes,
    )


def _torchvision(c: ViTConfig) -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(c.image[0], c.patch[0], c.depth, c.heads, c.width, c.mlp_width, num_classes=c.classes)


def _transformers(c: ViTConfig) -> nn.Module:
    from transformers import ViTConfig as Config, ViTForImageClassification

    return ViTForImageClassification(
        Config(
            hidden_size=c.width,
            num_hidden_layers=c.depth,
            num_attention_heads=c.heads,
            intermediate_size=c.mlp_width,
            image_size=c.image[0],
            patch_size=c.patch[0],
            id2label={number: str(number) for number in range(c.classes)},  # as many classes
        )
    )


def _vit_pytorch(c: ViTConfig) -> nn.Module:
    from vit_pytorch import ViT as Plain  # pyrefly: ignore[missing-import]

    return Plain(
        image_size=c.image[0],
        patch_size=c.patch[0],
        num_classes=c.classes,
        dim=c.width,
        depth=c.depth,
        heads=c.heads,
        mlp_dim=c.mlp_width,
    )


PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "vit-pytorch": _vit_pytorch,
}


def present() -> list[str]:
    """The libraries that are installed here."""
    return [name for name in PEERS if importlib.util.find_spec(name.replace("-", "_")) is not None]


@torch.no_grad()
def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with every number drawn anew, of a size at which signals neither vanish nor explode."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn_like(parameter)
        wide = parameter.ndim > 1 and parameter[0].numel() > 1
        parameter.copy_(noise * parameter[0].numel() ** -0.5 if wide else parameter + noise / 50)
    return module.eval()


def contestant(name: str, config: ViTConfig) -> tuple[nn.Module, float]:
    """A library's network, and how far its answers are from those of vitrail's, made of the same numbers.

    Args:
        name: `vitrail`, or one of `PEERS`.
        config: Square images and patches.

    Returns:
        The network in eval mode; the largest gap of its logits by the largest logit in fp32, 0 for vitrail.

    Raises:
        DataError: It answers otherwise: what is timed would not be the same network.
        ImportError: The library is not here.
    """
    if name == OWN:
        return drawn(ViT(config)), 0.0
    module = drawn(PEERS[name](config))
    return module, convert(module).gap or 0.0


def answer(output: Any) -> Tensor:
    """The logits: transformers packs them."""
    return output if isinstance(output, Tensor) else output.logits
