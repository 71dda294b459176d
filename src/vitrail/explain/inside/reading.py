"""What all views inside share: a run that leaves a record, and layers, heads and tokens that exist."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.readout import check, check_attentions
from vitrail.nn import EncoderBlock, Record, ViT
from vitrail.nn.embedding import Size
from vitrail.nn.parts import JoinsHeads
from vitrail.nn.vit import Images

Place = int | tuple[int, int]  # a token by its number, or a patch by (row, column)


def read(network: ViT, images: Images, *names: str) -> Record:
    """Run the network once without gradients and keep what `names` ask for.

    Raises:
        UsageError: If the network is in training mode or has an attention that cannot be read, or if the images do not
            fit.
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


def attention_at(network: ViT, block: int) -> JoinsHeads:
    """The attention of a block, whose heads a view takes apart.

    Raises:
        UsageError: If it does not say what its heads add.
    """
    attention = encoder_block(network, block).attn
    if not isinstance(attention, JoinsHeads):
        name = type(attention).__name__
        raise UsageError(
            f"the attention {name} of blocks.{block} has no method join, which says what its heads add",
            f"a method `join(self, attended)` of {name}, which maps (b, k, n, e) to what is added to the tokens",
        )
    return attention


def written(network: ViT, block: int, attended: Float[Tensor, "b k n e"]) -> Float[Tensor, "b n d"]:
    """What an attention adds to the tokens, of what its heads attended."""
    return encoder_block(network, block).ls1(attention_at(network, block).join(attended))


def output_map(
    network: ViT, block: int, attended: Float[Tensor, "b k n e"]
) -> tuple[Float[Tensor, "d k e"], Float[Tensor, "d"]]:
    """How the heads of a block write into the tokens: weight by head and constant, LayerScale included.

    Args:
        network: Whose attention.
        block: Which.
        attended: Of a run, for the number of heads and their size.

    Raises:
        UsageError: If the attention does not say what its heads add.
    """
    with torch.enable_grad():
        one = attended.new_zeros(1, attended.shape[1], 1, attended.shape[3]).requires_grad_()
        constant = written(network, block, one)[0, 0]
        each = torch.eye(len(constant), dtype=constant.dtype, device=constant.device)
        (weight,) = torch.autograd.grad(constant, one, each, is_grads_batched=True)
    return weight[:, 0, :, 0], constant.detach()
