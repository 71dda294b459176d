"""Raw attention, as in "Emerging properties in self-supervised vision transformers" (Caron et al., 2021), figure 1.

    map_j = E_h A_l[h, r, j]        r the readout, E_h the mean over heads

Where the tokens that are read out look in one layer: the oldest of all attention images. It ignores values, MLPs and
the residual stream, and in the last layer every token has already gathered from all others. It is class-agnostic.
"""

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import attention, check_tokens, chosen_heads, forward_pass, layer_index
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT


@explaining
def raw_attention(
    network: ViT, images: Images, target: Target = None, *, layer: int = -1, head: int | None = None
) -> Attribution:
    """Attention of the readout to each patch, in one layer.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What is reported beside the map, see `vitrail.explain.target`; the values do not depend on it, so a
            contrast is refused.
        layer: Which block; -1 is the last.
        head: Which head; None for the mean over all.

    Returns:
        A fraction of attention per patch, in [0, 1]. What is missing from a sum of 1 went to prefix tokens.

    Raises:
        UsageError: If the network is in training mode, or if images, target, layer or head do not fit.
    """
    block, heads = layer_index(check_tokens(network).config.depth, layer), chosen_heads(network.config.heads, head)
    forward = forward_pass(network, images, target, f"blocks.{block}.attention")
    (only,) = forward.layers()
    return forward.attribution(only.read_row(attention, forward.readout, heads), "raw_attention")
