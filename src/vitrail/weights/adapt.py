"""A network for images of another size or with one channel, with the numbers that it has.

Positions are carried to another grid by the rule of their source. For one channel the kernels of the three are summed,
with mean and standard deviation folded in, so that a grey image gives what its three equal channels gave.
"""

import math
from dataclasses import replace

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import PART_OF_MEMORY
from vitrail.errors import COMMAND_LINE, UsageError, byte_size, check_fields
from vitrail.nn import PatchEmbedding, ViT, ViTConfig, resized
from vitrail.nn.embedding import Size, sides_of
from vitrail.runtime import free_memory
from vitrail.weights.assume import Assumed
from vitrail.weights.probe import network_of

DEFAULT = "timm"  # whose rule is taken where nothing says another


def adapted(
    network: ViT, preprocessing: Preprocessing, image_size: int | Size | None = None, channels: int | None = None
) -> tuple[ViT, Preprocessing]:
    """The network and its preprocessing for another size, or other channels; both as they are where nothing changes.

    Args:
        network: Is not changed.
        preprocessing: What it expects.
        image_size: (height, width) in pixels; one number means a square.
        channels: 1, of a network for 3; or those that it has.

    Raises:
        UsageError: If the patches do not divide the size, memory has no room for it, or the channels cannot be made.
    """
    check_fields(Assumed(image_size=image_size, channels=channels))
    if channels is not None and channels != preprocessing.channels:
        network, preprocessing = _grey(network, preprocessing, channels)
    if image_size is None:
        return network, preprocessing
    size = sides_of(image_size)
    own = network.config.image
    hint = f"image_size={own}{COMMAND_LINE}--image-size {'x'.join(map(str, own))}, that of the network"
    check_memory(network.config, size, preprocessing.channels, hint)
    try:
        network = network if size == network.config.image else resized(network, size)
    except UsageError as error:
        up = tuple(-(-side // patch) * patch for side, patch in zip(size, network.config.patch, strict=True))
        word = str(up[0]) if up[0] == up[1] else "x".join(map(str, up))
        raise UsageError(
            error.problem, f"image_size={up}; {error.hint}{COMMAND_LINE}--image-size {word}; {error.hint}"
        ) from error
    return network, preprocessing if size == preprocessing.size else replace(preprocessing, size=size)


def check_memory(config: ViTConfig, size: Size, channels: int, hint: str) -> None:
    """Refuse a size of images that memory has no room for, before any of it is taken.

    Counted is what one image takes at least in fp32: its numbers, and of each patch the position, the token, what
    attention makes of it (queries, keys, values, output), and what the MLP does.

    Raises:
        UsageError: Says the size, what it takes and what is free.
    """
    patches = math.prod(size) / math.prod(config.patch)
    inner = config.heads * config.head_width
    needed = 4 * (channels * math.prod(size) + patches * (2 * config.width + 4 * inner + config.mlp_width))
    free = free_memory(torch.device("cpu"))
    if needed > PART_OF_MEMORY * free:
        image = "x".join(map(str, size))
        takes = f"takes {byte_size(needed)} of memory at least, and {byte_size(free)} are free"
        raise UsageError(f"an image of {image} pixels (height x width) {takes}", hint)


def resize_words(old: ViTConfig, new: ViTConfig, stated: bool = True) -> str:
    """How positions were carried to another grid, for a report; empty where they are as they were.

    Args:
        old: Before.
        new: After.
        stated: Whether anything says by whose rule; else the words add how to state another.
    """
    if old.grid == new.grid or old.positions != "learned":
        return ""
    grids = [" x ".join(map(str, config.grid)) for config in (old, new)]
    words = f"positions, from {grids[0]} to {grids[1]} patches by the rule of {old.position_resize}"
    if stated or old.position_resize != DEFAULT:
        return words
    return f"{words}, since nothing says whose they are; those of DINO need --assume position_resize=dinov2"


def _grey(network: ViT, preprocessing: Preprocessing, channels: int) -> tuple[ViT, Preprocessing]:
    """A network for one channel: (g - m_c) / s_c over c in a kernel is one of g with a constant."""
    embedding = network.patch_embed
    if channels != 1 or preprocessing.channels != 3 or type(embedding) is not PatchEmbedding:
        problem = f"{preprocessing.channels} channels cannot become {channels} in {type(embedding).__name__}"
        wanted = "of a network for 3 whose patches are mapped by a convolution"
        raise UsageError(problem, f"channels=1, {wanted}{COMMAND_LINE}--channels 1, {wanted}")
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (preprocessing.mean, preprocessing.std))
    one_mean, one_std = mean.mean(), std.mean()
    kernel = embedding.proj.weight.detach().double()
    summed = (kernel * (one_std / std)[None, :, None, None]).sum(dim=1, keepdim=True)
    moved = (kernel.sum(dim=(2, 3)) * ((one_mean - mean) / std)).sum(dim=1)
    own = embedding.proj.bias
    config: ViTConfig = replace(network.config, channels=1, embed_bias=True)
    tensors = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    bias = moved if own is None else own.detach().double() + moved
    tensors |= {"patch_embed.proj.weight": summed.float(), "patch_embed.proj.bias": bias.float()}
    other = network_of(config, network.parts, tensors).train(network.training)
    return other, replace(preprocessing, channels=1, mean=(float(one_mean),), std=(float(one_std),))
