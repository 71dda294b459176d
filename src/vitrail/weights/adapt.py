"""A network for images of another size, or with one channel, with the same weights.

Positions are resized to another grid by the rule of their source. For one channel the kernels of the three are summed,
with mean and standard deviation folded in, so that a grey image gives the logits of its three equal channels.
"""

import math
from dataclasses import replace

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import PART_OF_MEMORY
from vitrail.errors import Hint, UsageError, byte_size, check_fields
from vitrail.nn import ViT, ViTConfig, names_of, resize_network
from vitrail.nn.embedding import Size, height_and_width
from vitrail.runtime import free_memory
from vitrail.weights.assume import Assumed
from vitrail.weights.infer import network_of

DEFAULT = "timm"  # the rule where nothing states another
HEADS = ("head", "head_dist")  # first words of the names of their tensors


def adapt_network(
    network: ViT, preprocessing: Preprocessing, image_size: int | Size | None = None, channels: int | None = None
) -> tuple[ViT, Preprocessing]:
    """The network and its preprocessing for another image size or other channels; the same two where nothing changes.

    Args:
        network: Is not changed.
        preprocessing: Its own.
        image_size: (height, width) in pixels; one number means a square.
        channels: 1, of a network for 3; or those that it has.

    Raises:
        UsageError: If the patches do not divide the size, it does not fit into memory, or the channels cannot be made.
    """
    check_fields(Assumed(image_size=image_size, channels=channels))
    if channels is not None and channels != preprocessing.channels:
        network, preprocessing = _grey(network, preprocessing, channels)
    if image_size is None:
        return network, preprocessing
    size = height_and_width(image_size)
    own = network.config.image
    hint = Hint({"image_size": own}, text="that of the network")
    check_memory(network.config, size, preprocessing.channels, hint)
    try:
        network = network if size == network.config.image else resize_network(network, size)
    except UsageError as error:
        up = tuple(-(-side // patch) * patch for side, patch in zip(size, network.config.patch, strict=True))
        hint = Hint({"image_size": up}, text=str(error.hint))
        raise UsageError(error.problem, hint) from error
    return network, preprocessing if size == preprocessing.size else replace(preprocessing, size=size)


def check_memory(config: ViTConfig, size: Size, channels: int, hint: Hint) -> None:
    """Refuse an image size that does not fit into memory, before any is allocated.

    Counted is what one image needs at least in fp32: its pixels, and of each patch the position, the token, attention's
    queries, keys, values and output, and the middle of the MLP.

    Raises:
        UsageError: States the size, what it needs and what is free.
    """
    patches = math.prod(size) / math.prod(config.patch)
    inner = config.heads * config.head_width
    needed = 4 * (channels * math.prod(size) + patches * (2 * config.width + 4 * inner + config.mlp_width))
    free = free_memory(torch.device("cpu"))
    if needed > PART_OF_MEMORY * free:
        image = "x".join(map(str, size))
        needs = f"needs at least {byte_size(needed)} of memory, but {byte_size(free)} are free"
        raise UsageError(f"an image of {image} pixels (height x width) {needs}", hint)


def resize_words(old: ViTConfig, new: ViTConfig, stated: bool = True) -> str:
    """How positions were resized to another grid, for a report; empty where they were not.

    Args:
        old: Before.
        new: After.
        stated: Whether anything states the rule; else the words add how to state another.
    """
    if old.grid == new.grid or old.positions != "learned":
        return ""
    grids = [" x ".join(map(str, config.grid)) for config in (old, new)]
    words = f"positions, from {grids[0]} to {grids[1]} patches by the rule of {old.position_resize}"
    if stated or old.position_resize != DEFAULT:
        return words
    return f"{words}, since nothing states their source; those of DINO need --assume position_resize=dinov2"


def _grey(network: ViT, preprocessing: Preprocessing, channels: int) -> tuple[ViT, Preprocessing]:
    """A network for one channel: (g - m_c) / s_c over c in a kernel is one of g with a constant."""
    embedding = network.patch_embed
    mapped = names_of(network.parts).get("embedding", "rms") == "rms"
    if channels != 1 or preprocessing.channels != 3 or not mapped:
        problem = f"{preprocessing.channels} channels cannot become {channels} in {type(embedding).__name__}"
        wanted = "of a network for 3 whose patches are mapped by a convolution"
        raise UsageError(problem, Hint({"channels": 1}, text=wanted))
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


@torch.no_grad()
def start_network(source: ViT, config: ViTConfig) -> ViT:
    """A network with the weights of the source, and a head of zeros.

    Args:
        source: Is not changed.
        config: Its configuration, except for the classes and for training, such as dropout.
    """
    network = ViT(config, source.parts)
    kept = {name: tensor for name, tensor in source.state_dict().items() if name.partition(".")[0] not in HEADS}
    lost = network.load_state_dict(kept, strict=False)
    assert not lost.unexpected_keys
    assert all(name.partition(".")[0] in HEADS for name in lost.missing_keys)
    return network
