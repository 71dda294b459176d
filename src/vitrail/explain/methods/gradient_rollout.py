"""Gradient rollout, as in vit-explain (Gildenblat, 2020), after "Quantifying attention flow" (Abnar and Zuidema, 2020).

Attention rollout in which each layer's attention is weighted by its gradient:

    M_l = pos(E_h(G_l * A_l))                                           as in vit-explain
    B_l = 0.5 M_l + 0.5 I, each row divided by its sum                  as in rollout
    R   = B_L ... B_1               map = readout R, less what never left its token

G_l = d y / d A_l, y the logit of the target; E_h the mean over heads, pos(x) = max(x, 0). The code that made the method
known divides by the sums without keeping the dimension, which scales columns and not rows, and pairs the gradient of
the last layer with the attention of the first. Neither is done here.

What never left its token is the product of what each B_l leaves in place for being half the identity. With a class
token it lies in the class token's own column, which is not shown, so that the map is the formula's. With mean pooling
it would lie on all patches, nearly 1 / patches on each, and hide the rest (as in generic attention, where R - I is
shown for the same reason).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import LayerAttention, attention_x_gradient, forward_pass
from vitrail.explain.methods.rollout import keep_largest
from vitrail.explain.target import Target
from vitrail.nn.twin import without_autocast
from vitrail.nn.vit import Images, ViT


@torch.no_grad()
def gradient_rollout_of(
    layers: Sequence[LayerAttention], readout: Float[Tensor, "*b r n"] | None = None, *, discard: float = 0.0
) -> Float[Tensor, "b r n"]:
    """Rows of R, less what never left its token.

    A row of B_l is (I + M_l) divided by its sum, 1 + sum M_l. What stays and what moved are propagated apart, so that
    nothing small is lost in a difference.

    Args:
        layers: First layer first, with gradients; see `ForwardPass.layers`.
        readout: Rows to propagate, each a mixture of tokens; all of R (the identity) when None.
        discard: Fraction of the smallest entries of every M_l to set to zero.

    Returns:
        (b, r, n), at least 0 when the readout is.

    Raises:
        UsageError: If discard does not fit.
    """
    stays = layers[-1].start_rows(readout)
    moved = torch.zeros_like(stays)
    for layer in reversed(layers):
        before, stays, moved = (stays, moved), torch.zeros_like(stays), torch.zeros_like(moved)
        queries = layer.rows_read(before[0] + before[1])
        for some, piece in keep_largest(layer, attention_x_gradient, queries, discard):
            raising = piece.clamp(min=0)
            fraction = 1 / (1 + raising.sum(dim=-1))[:, None]
            stayed, had_moved = (rows[:, :, some] * fraction for rows in before)
            stays[:, :, some] += stayed
            moved[:, :, some] += had_moved
            with without_autocast(moved):
                moved += (stayed + had_moved) @ raising
    return moved


@explaining
def gradient_rollout(network: ViT, images: Images, target: Target = None, *, discard: float = 0.0) -> Attribution:
    """Where what raises the target's logit could have come from, through all layers.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        discard: Fraction of the smallest entries of every layer to set to zero, at least 0 and below 1.

    Returns:
        A number of at least 0 per patch.

    Raises:
        UsageError: If the network is in training mode, or if images, target or discard do not fit.
    """
    forward = forward_pass(network, images, target, "blocks.*.attention", gradients=True)
    rows = gradient_rollout_of(forward.layers(gradients=True), forward.readout[:, None], discard=discard)
    return forward.attribution(rows[:, 0], "gradient_rollout")
