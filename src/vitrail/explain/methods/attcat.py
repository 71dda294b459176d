"""AttCAT: "AttCAT: explaining Transformers via attentive class activation tokens" (Qiang et al., NeurIPS 2022).

    map_i  = sum_l a_l[i] sum_d h_l[i, d] (d y / d h_l[i, d])
    a_l[i] = mean over heads h and queries q of A_l[h, q, i]

h_l is what leaves block l, y the logit of the target. A token counts as far as it pushes the logit and is looked at.
The map is signed, but its sign is noisy: it speaks of tokens inside the network, which hold more than their own patch.
With a class token nothing reads the patches after the last block, so the last layer adds nothing there.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import ForwardPass, attention, forward_pass
from vitrail.explain.target import Target
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images, ViT


def attcat_of(forward: ForwardPass) -> Float[Tensor, "b n"]:
    """The row over all tokens, of a pass with gradients that recorded attention and outputs of all blocks."""
    outputs = [forward.record[f"{place}.output"] for place in forward.record.attentions()]
    gradients = torch.autograd.grad(forward.logit.sum(), outputs)  # images do not mix: each gets its own
    layers = zip(forward.layers(), outputs, gradients, strict=True)
    rows = [
        layer.mean_over_queries(attention) * (wide(output.detach()) * wide(gradient)).sum(dim=-1)
        for layer, output, gradient in layers
    ]
    return torch.stack(rows).sum(dim=0)


@explaining
def attcat(network: ViT, images: Images, target: Target = None) -> Attribution:
    """How far each token pushes the target's logit, weighted by the attention it gets, summed over the layers.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.

    Returns:
        A number per patch; above 0 speaks for the target, below 0 against it.

    Raises:
        UsageError: If the network is in training mode, or if images or target do not fit.
    """
    forward = forward_pass(network, images, target, "blocks.*.attention", "blocks.*.output", gradients=True)
    return forward.attribution(attcat_of(forward), "attcat")
