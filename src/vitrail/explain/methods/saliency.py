"""Saliency: "Deep inside convolutional networks" (Simonyan, Vedaldi and Zisserman, 2013), section 3.

    map_p = sum over the pixels and channels i of patch p of | d y / d x_i |        y the logit of the target

How fast the logit would change, not what it is made of: a patch can matter much and hardly be felt (the network is
sure of it), or be felt and lie outside the object. The paper shows the largest channel of each pixel; on a grid of
patches the sum is taken, of pixels and channels alike, and nothing else is offered.
"""

from torch import nn

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Grid, forward_pass
from vitrail.explain.methods.pixels import by_patch, gradients_of
from vitrail.explain.target import Target
from vitrail.nn.vit import Images


@explaining
def saliency(network: nn.Module, images: Images, target: Target = None, *, grid: Grid = None) -> Attribution:
    """How much the target's logit reacts to each patch's pixels.

    Args:
        network: Any, in eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.

    Returns:
        A number of at least 0 per patch, in logits per unit of the normalised pixels.

    Raises:
        UsageError: If the network is in training mode, or if images or target do not fit.
    """
    forward = forward_pass(network, images, target, gradients=True, grid=grid)
    (gradient,) = gradients_of(forward.logit, forward.pixels)
    values = by_patch(gradient.abs(), forward.grid)
    return forward.attribution(values, "saliency")
