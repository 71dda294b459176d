"""Logit lens: what the network would answer if it stopped after each block (nostalgebraist, 2020).

    z_l = head(pool(norm(h_l)))         h_l the tokens after block l, h_0 those that enter the first

norm, pooling and head are the network's own, made for the last block; what they read earlier is in a state that they
were never trained on. The last row is the network's answer.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.inside.reading import read
from vitrail.explain.layers import block_of
from vitrail.nn import ViT
from vitrail.nn.vit import Images


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
    record = read(network, images, "tokens", "blocks.*.output")
    with torch.no_grad():
        outputs = [record[f"blocks.{index}.output"] for index in range(network.config.depth)]
        return torch.stack([network.readout(tokens) for tokens in (record["tokens"], *outputs)])


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
    name = f"blocks.{block_of(network, layer)}.output"
    record = read(network, images, name)
    with torch.no_grad():
        patches = record[name][:, network.config.prefix :]
        return network.head(network.norm(patches)).unflatten(1, network.grid(images))
