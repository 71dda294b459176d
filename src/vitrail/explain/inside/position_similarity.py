"""How alike positions are ("An image is worth 16x16 words", 2020, figure 7, centre): a grid of grids.

    s[i, j] = cos(e_i, e_j)         e_i the position that is added to patch i

Where the network has learnt the plane, a patch's position is most like those of its neighbours, row and column.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.readout import wide
from vitrail.nn import ViT, resize_positions
from vitrail.nn.embedding import Size


@torch.inference_mode(False)
def position_similarity(network: ViT, grid: Size | None = None) -> Float[Tensor, "rows columns rows columns"]:
    """The cosine of every two patches' positions; prefix tokens are left out.

    Args:
        network: With positions of any kind.
        grid: (rows, columns) to resize the positions to first, as for pictures of another size; None for its own.

    Returns:
        In [-1, 1]: entry [i, j] is the grid of likenesses to the patch in row i, column j.

    Raises:
        UsageError: If the network has no positions.
    """
    if network.pos_embed is None:
        raise UsageError("this network adds no positions, so none are alike", "a network with positions='learned'")
    prefix, own = network.config.prefix, network.config.grid
    wanted = own if grid is None else grid
    with torch.no_grad():
        positions = wide(resize_positions(network.pos_embed, prefix, own, wanted))[0, prefix:]
        tiny = torch.finfo(positions.dtype).tiny
        directions = positions / positions.norm(dim=1, keepdim=True).clamp(min=tiny)
        return (directions @ directions.T).clamp(-1, 1).unflatten(1, wanted).unflatten(0, wanted)
