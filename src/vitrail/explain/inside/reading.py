"""What all views inside share: a run that leaves a record, and layers, heads and tokens that exist."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.readout import check, check_attentions
from vitrail.nn import Attention, EncoderBlock, Record, ViT
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images

Place = int | tuple[int, int]  # a token by its number, or a patch by (row, column)


def read(network: ViT, images: Images, *names: str) -> Record:
    """Run the network once without gradients and keep what `names` ask for.

    Raises:
        UsageError: If the network is in training mode, has a pooling or an attention that cannot be read,
            or if the images do not fit.
    """
    check(network, images, gradients=False)
    network.grid(images)
    record = Record(*names)
    with torch.no_grad():
        network(images, record)
    check_attentions(network, record, names)
    return record


def token_of(network: ViT, grid: Size, place: Place) -> int:
    """The number of a token, prefix tokens first.

    Raises:
        UsageError: If there is no such token or patch; names those that there are.
    """
    (rows, columns), prefix = grid, network.config.prefix
    if isinstance(place, int):
        if not 0 <= place < prefix + rows * columns:
            raise UsageError(
                f"token must be one of 0..{prefix + rows * columns - 1}, got {place}",
                f"({rows // 2}, {columns // 2}) for the patch in that row and column",
            )
        return place
    row, column = place
    if not (0 <= row < rows and 0 <= column < columns):
        raise UsageError(
            f"patch must be a (row, column) of 0..{rows - 1}, 0..{columns - 1}, got ({row}, {column})",
            f"({rows // 2}, {columns // 2})",
        )
    return prefix + row * columns + column


def names_of(network: ViT, grid: Size) -> tuple[str, ...]:
    """What each token is, in words: "class token", "register 2", "patch (5, 3)"."""
    config = network.config
    front = ["class token"] * config.class_token + ["distillation token"] * config.distillation_token
    front += [f"register {index}" for index in range(config.registers)]
    return (*front, *(f"patch ({row}, {column})" for row in range(grid[0]) for column in range(grid[1])))


def encoder_block(network: ViT, block: int) -> EncoderBlock:
    """A block by its number."""
    found = network.blocks[block]
    assert isinstance(found, EncoderBlock)
    return found


def attention_at(network: ViT, block: int) -> Attention:
    """The attention of a block, whose parts a view takes apart.

    Raises:
        UsageError: If it is not vitrail's own, so that its parts are not known.
    """
    attention = encoder_block(network, block).attn
    if type(attention) is not Attention:
        raise UsageError(
            f"the attention of blocks.{block} is {type(attention).__name__}, whose heads cannot be taken apart",
            "a network whose attention is vitrail.nn.Attention",
        )
    return attention


def written(network: ViT, block: int, attended: Float[Tensor, "b k n e"]) -> Float[Tensor, "b n d"]:
    """What an attention adds to the tokens, of what its heads attended."""
    with torch.no_grad():
        return encoder_block(network, block).ls1(attention_at(network, block).proj(attended.transpose(1, 2).flatten(2)))


def output_map(network: ViT, block: int) -> tuple[Float[Tensor, "d k e"], Float[Tensor, "d"]]:
    """How the heads of a block write into the tokens: weight by head and bias, LayerScale included.

    Raises:
        UsageError: If the attention is not vitrail's own.
    """
    attention, scale = attention_at(network, block), encoder_block(network, block).ls1
    with torch.no_grad():
        weight = attention.proj.weight.unflatten(1, (attention.heads, attention.head_dim))
        bias = attention.proj.bias if attention.proj.bias is not None else weight.new_zeros(weight.shape[0])
        return scale(weight.permute(1, 2, 0)).permute(2, 0, 1), scale(bias[None, None])[0, 0]
