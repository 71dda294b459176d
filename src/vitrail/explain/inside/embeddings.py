"""What the embedding has learnt ("An image is worth 16x16 words", 2020, figure 7): patch filters, and positions.

    W - mean of its rows = U S V^T         W (d, c x ph x pw), one row for each number of a token
    s[i, j] = cos(e_i, e_j)                e_i the position that is added to patch i

The rows of V are small images; the first of them span most of what the map sees of a patch. The fraction of variance
that a filter explains is s^2 over the sum of all s^2. Where the network has learnt the plane, a patch's position is
most like those of its neighbours, row and column.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.functional import jacobian

from vitrail.errors import UsageError
from vitrail.nn import ViT
from vitrail.nn.embedding import Size
from vitrail.nn.twin import wide


@dataclass(frozen=True, eq=False)
class PatchFilters:
    """The principal filters of a patch map, strongest first.

    Attributes:
        filters: (m, c, ph, pw), of length 1 and at right angles; the entry of largest size is positive.
        explained: (m,), the fraction of variance that each explains; all of them together at most 1.
    """

    filters: Float[Tensor, "m c ph pw"]
    explained: Float[Tensor, "m"]


@torch.inference_mode(False)
def patch_filters(network: ViT, count: int = 28) -> PatchFilters:
    """The first filters of the centred singular value decomposition; 28 as in the paper.

    Args:
        network: Whose patch map is linear, whatever its form.
        count: How many at most.

    Raises:
        UsageError: If the patch map is not linear, so that it has no filters.
    """
    with torch.no_grad():
        weight = wide(_as_convolution(network))
        flat = weight.flatten(1)
        _, strengths, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
        variance = strengths.square()
        explained = variance / variance.sum().clamp(min=torch.finfo(variance.dtype).tiny)
        largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
        filters = (directions * largest.sign()).unflatten(1, weight.shape[1:])
    return PatchFilters(filters[:count], explained[:count])


def _as_convolution(network: ViT) -> Float[Tensor, "d c ph pw"]:
    """The gradient of each number of a token by the pixels of its patch, if it is the same for two patches."""
    part, config = network.patch_embed, network.config
    noise = torch.randn(1, config.channels, *config.patch, generator=torch.Generator().manual_seed(0), device="cpu")
    patches = [each.to(next(part.parameters())) for each in (torch.zeros_like(noise), noise)]
    black, noisy = (jacobian(lambda patch: part(patch)[0, 0], patch, vectorize=True) for patch in patches)
    if (black - noisy).abs().max() > 1e-3 * black.abs().max():
        raise UsageError(
            f"the patch map {type(part).__name__} is not linear, so it has no filters",
            "a network whose patch map is a convolution or a linear map of patches",
        )
    return black.reshape(config.width, config.channels, *config.patch)


@torch.inference_mode(False)
def position_similarity(network: ViT, grid: Size | None = None) -> Float[Tensor, "rows columns rows columns"]:
    """The cosine of every two patches' positions; prefix tokens are left out.

    Args:
        network: With positions of any kind.
        grid: (rows, columns) to resize the positions to first, as for images of another size; None for its own.

    Returns:
        In [-1, 1]: entry [i, j] is the grid of likenesses to the patch in row i, column j.

    Raises:
        UsageError: If the network has no positions.
    """
    wanted = network.config.grid if grid is None else grid
    added = network.positions(wanted)
    if added is None:
        raise UsageError(
            "this network adds no positions, so none can be compared", "a network with positions='learned'"
        )
    with torch.no_grad():
        positions = wide(added)[0, network.config.prefix :]
        tiny = torch.finfo(positions.dtype).tiny
        directions = positions / positions.norm(dim=1, keepdim=True).clamp(min=tiny)
        return (directions @ directions.T).clamp(-1, 1).unflatten(1, wanted).unflatten(0, wanted)
