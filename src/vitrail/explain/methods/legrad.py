"""LeGrad: explainability via feature formation sensitivity (Bousselham et al., 2024), section 3.

    s_l   = the target's logit, read from the tokens after block l
    map_j = mean over layers l of  mean over heads h and queries q of  pos(d s_l / d A_l[h, q, j])

Every layer counts for itself: how would more attention to j here have raised the score read right after it? The
attention itself is not multiplied in. One short backward per layer.

How s_l is read. With a class token: the mean of all tokens after block l, then the last norm and the head, as in the
paper. Read from the class token, s_l would react to the class token's queries alone, before it has gathered anything:
on digits with a known place (patches of 8 pixels, two seeds) that pointed right in 0.05 and 0.07 of the images, the
mean in 0.89 and 0.93. With mean pooling: as the network itself does it, norm, then mean over the patches, then head, so
that the last s_l is the logit; that pointed right in 0.26 and 0.35, the paper's order in 0.17 and 0.21. With patches of
4 pixels the choice matters less: class token 0.14 and 0.17 against 0.18 and 0.31, mean pooling 0.21 and 0.26 against
0.19 and 0.25.

A head that was trained on the last layer need not understand the first ones: the method was made for CLIP, and on
small supervised networks its maps are diffuse, though they tell classes apart.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import ForwardPass, Indices, LayerAttention, check_tokens, forward_pass, layer_index
from vitrail.explain.target import Target
from vitrail.nn.vit import Images, ViT
from vitrail.tasks.target import ChosenTarget


@explaining
def legrad(network: ViT, images: Images, target: Target = None, *, first_layer: int = 0) -> Attribution:
    """How much attention to each patch would raise the target's score, in the mean over layers that are each scored.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        first_layer: The first block that counts, from 0; -2 for the last two, as the authors do with CLIP.

    Returns:
        A number of at least 0 per patch.

    Raises:
        UsageError: If the network is in training mode, or if images, target or first_layer do not fit.
    """
    first = layer_index(check_tokens(network).config.depth, first_layer, "first_layer")
    forward = forward_pass(network, images, target, "blocks.*.attention", "blocks.*.output", gradients=True)
    places = forward.record.attentions()[first:]
    mixed = not forward.readout[:, forward.prefix :].any()  # what the head reads is no patch
    layers = (layer_after(forward, place, mixed) for place in places)
    row = torch.stack([layer.mean_over_queries(positive_gradient) for layer in layers]).mean(dim=0)
    return forward.attribution(row, "legrad")


def layer_after(forward: ForwardPass, place: str, mixed: bool) -> LayerAttention:
    """A layer with the gradient of the score that is read right after it."""
    record = forward.record
    with torch.enable_grad():  # images do not mix: each gets its own
        number = score(forward.vit, record[f"{place}.output"], forward.chosen, mixed).sum()
    return LayerAttention(record.kept(place), record.attended_gradient(number, place, keep_graph=True)[place])


def score(network: ViT, tokens: Float[Tensor, "b n d"], chosen: ChosenTarget, mixed: bool) -> Float[Tensor, "b"]:
    """The explained number, read from the tokens after any block; where they are mixed, from their mean."""
    if mixed:  # every token that a head reads is their mean
        tokens = tokens.mean(dim=1, keepdim=True).expand(-1, network.config.prefix, -1)
    return chosen(network.readout(tokens))


def positive_gradient(layer: LayerAttention, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """pos(G), for `join_heads`."""
    return layer.gradient(heads, queries).clamp(min=0)
