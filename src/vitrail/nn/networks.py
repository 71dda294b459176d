"""The kinds of networks by name, and the way from a stored configuration to a network.

build(config_from_dict({"kind": "ViT", "image_size": 28, ...}))
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.errors import UsageError, nearest
from vitrail.nn.blocks import Parts
from vitrail.nn.config import ViTConfig
from vitrail.nn.seq2seq import ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig
from vitrail.nn.vit import Images, ViT

NetworkConfig = ViTConfig | TransformerConfig | ImageToSequenceConfig

NETWORKS: dict[str, tuple[type, type[nn.Module]]] = {
    "ViT": (ViTConfig, ViT),
    "Transformer": (TransformerConfig, Transformer),
    "ImageToSequence": (ImageToSequenceConfig, ImageToSequence),
}
"""Kind: its configuration, and the network that is built from it."""


def kind_of(config: NetworkConfig) -> str:
    """The name under which a configuration stands in the table."""
    return next(kind for kind, (known, _) in NETWORKS.items() if type(config) is known)


def reads_of(config: NetworkConfig) -> ViTConfig | int:
    """The inputs of a network: the images of a ViT, or ids below a number."""
    if isinstance(config, TransformerConfig):
        return config.source_vocab_size
    return config.encoder if isinstance(config, ImageToSequenceConfig) else config


def outputs_of(config: NetworkConfig) -> int:
    """How many logits a network gives: of an image, or of a token."""
    return (config.classes or config.width) if isinstance(config, ViTConfig) else config.vocab_size


def config_to_dict(config: NetworkConfig) -> dict[str, Any]:
    """Plain values, with the kind in front."""
    return {"kind": kind_of(config), **asdict(config)}


def config_from_dict(values: Mapping[str, Any]) -> NetworkConfig:
    """The inverse, also through JSON or YAML.

    Raises:
        UsageError: The kind or a key is unknown, or a value is not possible.
    """
    rest = dict(values)
    kind = rest.pop("kind", "ViT")
    if kind not in NETWORKS:
        raise UsageError(
            f"there is no kind of network '{kind}'", f"kind: {nearest(str(kind), NETWORKS) or ', '.join(NETWORKS)}"
        )
    return NETWORKS[kind][0].from_dict(rest)


def build(config: NetworkConfig, parts: Parts | None = None) -> nn.Module:
    """A network with fresh weights, drawn from torch's generator.

    Args:
        config: What to build.
        parts: Other parts than the standard ones.
    """
    network = NETWORKS[kind_of(config)][1]
    return network(config) if parts is None else network(config, parts)


class _NotDrawn(TorchFunctionMode):
    """Skips the initialisation of tensors: on `meta` it costs seconds of imports and does nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Networks that are built inside have tensors on `meta`: shapes without values, whatever their size."""
    with torch.device("meta"), _NotDrawn():
        yield


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Every module in eval mode for the time, and then in the mode it had."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def weights_hash(network: nn.Module, without: Collection[str] = ()) -> str:
    """Short hash of all parameters and buffers: equal for equal bits.

    Args:
        network: It may be anywhere.
        without: Parts by the first word of their names, such as `head`, that are left out.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if name.partition(".")[0] in without:
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())  # bfloat16, too
    return digest.hexdigest()[:16]


def example_inputs(network: nn.Module, samples: int = 1) -> tuple[Tensor, ...]:
    """Inputs of a network of the library, of zeros and of the id `begin`: images or ids, and a target where it has one.

    Args:
        network: They get its dtype and device; ids have its greatest length.
        samples: Rows.
    """
    config: Any = network.config
    reads, weights = reads_of(config), next(network.parameters())
    images = ()
    if isinstance(reads, ViTConfig):
        images = (torch.zeros(samples, reads.channels, *reads.image, dtype=weights.dtype, device=weights.device),)
    if isinstance(config, ViTConfig):
        return images
    ids = torch.full((samples, config.max_length), config.bos_id, device=weights.device)
    return (*images, ids) if images else (ids, ids)


class Features(NamedTuple):
    """The features of an image after the last norm and before the head.

    Use `pooled` to search and cluster (it is the head's input), `patches` for anything that has a place in the image.
    """

    class_token: Float[Tensor, "b d"] | None
    patches: Float[Tensor, "b gh gw d"]
    registers: Float[Tensor, "b r d"]
    pooled: Float[Tensor, "b d"]


def features(network: ViT, images: Images) -> Features:
    """Class token, patches as a grid, registers and the pooled vector, after the last norm."""
    config = network.config
    tokens, prefix = network.norm(network.encode(images)), config.prefix
    registers, patches = tokens[:, prefix - config.registers : prefix], tokens[:, prefix:]
    patches = patches.unflatten(1, network.grid(images))
    pooled = network.pool(tokens, prefix)
    return Features(tokens[:, 0] if config.class_token else None, patches, registers, pooled)
