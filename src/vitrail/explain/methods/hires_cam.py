"""HiResCAM on patch tokens: "Use HiResCAM instead of Grad-CAM" (Draelos and Carin, 2020), section 3.

    map_p = sum_d t[p, d] (d y / d t[p, d])        t the patch tokens of one layer, y the logit of the target

Grad-CAM without the mean over places: each place keeps its own gradient, so the map cannot point where the network did
not look in this layer. It keeps its sign; cut at zero it is what packages draw. With a network that is linear after
the layer, the values add up to the logit less the biases and the prefix tokens' part.

Where a token is read through a norm alone the map is zero: a LayerNorm does not see how long a token is, so nothing
changes along it. With a class token that is so of what enters the last block. What rounding leaves there, less than
1e-4 of what cancels, is noted as no signal.
"""

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.methods.grad_cam import open_layer
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT

CANCELLED = 1e-4  # the fraction of its parts below which a sum is what rounding left


@explaining
def hires_cam(network: ViT, images: Images, target: Target = None, *, layer: str | None = None) -> Attribution:
    """Patch tokens of one layer times the gradient that reaches each.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        layer: As in `grad_cam`; None for the last block's `.norm1`.

    Returns:
        A signed number per patch, in logits.

    Raises:
        UsageError: If the network is in training mode, if images, target or layer do not fit, or if no gradient reaches
            the layer's patch tokens.
    """
    forward, tokens, gradients = open_layer(network, images, target, layer)
    parts = tokens * gradients
    values = parts.sum(dim=2)
    cancelled = values.abs().amax(dim=1) <= CANCELLED * parts.abs().sum(dim=2).amax(dim=1)
    return forward.attribution(values.unflatten(1, forward.grid), "hires_cam", drowned=cancelled)
