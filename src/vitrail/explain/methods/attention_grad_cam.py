"""Attention Grad-CAM: "Grad-CAM" (Selvaraju et al., ICCV 2017), with the heads of one layer in place of channels.

    w_h   = mean over the patches j of G[h, r, j]             equation 1
    map_j = pos(E_h(w_h A[h, r, j]))                          equation 2, a head's attention in place of a channel

G = d y / d A, y the logit of the target; row r is the readout, of A and G alike (with mean pooling, the mean over the
rows of the patches); E_h is the mean over heads, pos(x) = max(x, 0). The weight of a head is a mean over the places of
the map, so prefix tokens have no part in it, as in the baseline of "Transformer interpretability beyond attention
visualization" (Chefer, Gur and Wolf, CVPR 2021).

One layer, and one number for a whole head: it can speak for a class where it looks elsewhere. Where all heads speak
against the class nothing is left, and the map is zero.
"""

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import attention, check_tokens, forward_pass, gradient, layer_index
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT


@explaining
def attention_grad_cam(network: ViT, images: Images, target: Target = None, *, layer: int = -1) -> Attribution:
    """Attention of the readout in one layer, each head weighted by how the target's logit reacts to it.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        layer: Which block; -1 is the last.

    Returns:
        A number of at least 0 per patch; zero on all where every head speaks against the target.

    Raises:
        UsageError: If the network is in training mode, or if images, target or layer do not fit.
    """
    block = layer_index(check_tokens(network).config.depth, layer)
    forward = forward_pass(network, images, target, f"blocks.{block}.attention", gradients=True)
    (only,) = forward.layers(gradients=True)
    weights = only.read_heads(gradient, forward.readout)[:, :, forward.prefix :].mean(dim=2, keepdim=True)
    row = (weights * only.read_heads(attention, forward.readout)).mean(dim=1).clamp(min=0)
    return forward.attribution(row, "attention_grad_cam")
