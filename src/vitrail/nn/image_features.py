"""What a ViT says of an image before its head."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from vitrail.nn.vit import Images, ViT


class Features(NamedTuple):
    """What the network says of an image before the head, all after the last norm.

    Use `pooled` to search and cluster (it is what the head reads), `patches` for anything that has a place.
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
