"""Head view: "Emerging properties in self-supervised vision transformers" (Caron et al., ICCV 2021), figures 1 and 3.

    map_j = A_l[h, r, j] on the smallest set of patches that holds the fraction `mass` of all patches' attention, else 0

The patches that hold most of a head's attention, as DINO shows its heads; row r is the readout. Patches that hold as
much as the last one of the set, up to rounding, are in it too: which of them came first would be chance. On networks
trained with labels the heads are less tidy than on DINO's. They are class-agnostic.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import attention, check_tokens, chosen_heads, forward_pass, layer_index
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT
from vitrail.pages.colour import ROUNDING


@explaining
def head_view(
    network: ViT, images: Images, target: Target = None, *, layer: int = -1, head: int | None = None, mass: float = 0.6
) -> Attribution:
    """The fewest patches that hold most of the readout's attention, in one layer.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What is reported beside the map, see `vitrail.explain.target`; the values do not depend on it, so a
            contrast is refused.
        layer: Which block; -1 is the last.
        head: Which head; None for the mean over all.
        mass: Fraction of the patches' attention that is kept, above 0 and at most 1.

    Returns:
        A fraction of attention per patch, in [0, 1]; 0 where a patch is not in the set.

    Raises:
        UsageError: If the network is in training mode, or if images, target, layer, head or mass do not fit.
    """
    block, heads = layer_index(check_tokens(network).config.depth, layer), chosen_heads(network.config.heads, head)
    forward = forward_pass(network, images, target, f"blocks.{block}.attention")
    (only,) = forward.layers()
    row = only.read_row(attention, forward.readout, heads)
    return forward.attribution(most_of(row[:, forward.prefix :], mass).unflatten(1, forward.grid), "head_view")


def most_of(fractions: Float[Tensor, "*b p"], mass: float) -> Float[Tensor, "*b p"]:
    """Each row's largest entries that together hold `mass` of it, with their ties; 0 in place of the others."""
    check_option("mass", mass, 0 < mass <= 1, "above 0 and at most 1", 0.6)
    if mass == 1:
        return fractions  # what is lost in the sum's rounding belongs to it
    largest = fractions.sort(dim=-1, descending=True).values
    held = largest.cumsum(dim=-1)
    enough = (held >= mass * held[..., -1:] * (1 - torch.finfo(held.dtype).eps * fractions.shape[-1])).long()
    last = largest.gather(-1, enough.argmax(dim=-1, keepdim=True))
    return fractions * (fractions >= last * (1 - ROUNDING * torch.finfo(last.dtype).eps))
