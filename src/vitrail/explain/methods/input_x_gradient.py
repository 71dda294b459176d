"""Input x gradient: "Not just a black box: learning important features" (Shrikumar et al., 2016), section 2.

    map_p = sum over the pixels and channels i of patch p of x_i (d y / d x_i)        y the logit of the target

For a network that is linear in its pixels this is what each patch adds to the logit, less the bias. A transformer is
not: softmax and LayerNorm bend the logit, and the numbers do not add up to it (`integrated_gradients` keeps the sum).
A pixel of value 0, the colour that preprocessing subtracts, gets nothing whatever the network makes of it.
"""

from torch import nn

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Grid, forward_pass
from vitrail.explain.methods.pixels import by_patch, gradients_of
from vitrail.explain.target import Target
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images


@explaining
def input_x_gradient(network: nn.Module, images: Images, target: Target = None, *, grid: Grid = None) -> Attribution:
    """Each patch's pixels times the gradient that reaches them.

    Args:
        network: Any, in eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.

    Returns:
        A signed number per patch, in logits; it depends on where the zero of the normalised pixels lies.

    Raises:
        UsageError: If the network is in training mode, or if images or target do not fit.
    """
    forward = forward_pass(network, images, target, gradients=True, grid=grid)
    (gradient,) = gradients_of(forward.logit, forward.pixels)
    values = by_patch(wide(forward.pixels.detach()) * gradient, forward.grid)
    return forward.attribution(values, "input_x_gradient")
