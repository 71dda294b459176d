"""Grad-CAM on patch tokens: "Grad-CAM: visual explanations from deep networks" (Selvaraju et al., ICCV 2017), eq. 1, 2.

    w_d   = mean over the patches of  d y / d t[p, d]        t the patch tokens of one layer, y the logit of the target
    map_p = max(0, sum_d w_d t[p, d])

In a convolutional network a channel is a detector and place is kept; in a ViT one weight per channel for the whole
image loses more, and the map depends much on the layer. `hires_cam` keeps each place's own gradient.

A layer is named as in the record: `blocks.3.norm1` is what the attention of block 3 reads, and the default is that of
the last block. After the last attention of a network that reads out its class token no patch token is read any more:
the gradient is zero there whatever the image, which is an error and not an empty map.
"""

from jaxtyping import Float
from torch import Tensor

from vitrail.errors import Hint, UsageError, check_option, nearest
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import ForwardPass, check_tokens, forward_pass
from vitrail.explain.methods.pixels import gradients_of
from vitrail.explain.target import Target
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images, ViT


@explaining
def grad_cam(network: ViT, images: Images, target: Target = None, *, layer: str | None = None) -> Attribution:
    """Patch tokens of one layer, weighted by how the target's logit reacts to their channels.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        layer: `tokens`, or `.input`, `.norm1`, `.mlp` or `.output` of a block, such as `"blocks.3.norm1"`; None for
            the last block's `.norm1`.

    Returns:
        A number of at least 0 per patch; what speaks against the class is cut off.

    Raises:
        UsageError: If the network is in training mode, if images, target or layer do not fit, or if no gradient reaches
            the layer's patch tokens.
    """
    forward, tokens, gradients = open_layer(network, images, target, layer)
    weights = gradients.mean(dim=1, keepdim=True)
    values = (weights * tokens).sum(dim=2).clamp(min=0).unflatten(1, forward.grid)
    return forward.attribution(values, "grad_cam")


def open_layer(
    network: ViT, images: Images, target: Target, layer: str | None
) -> tuple[ForwardPass, Float[Tensor, "b p d"], Float[Tensor, "b p d"]]:
    """A run, the patch tokens of one of its layers, and the gradient of the explained number by them.

    Raises:
        UsageError: See `grad_cam`.
    """
    names = layers_of(network)
    layer = f"blocks.{network.config.depth - 1}.norm1" if layer is None else layer
    wanted = f"tokens or blocks.0..{network.config.depth - 1} with .input, .norm1, .mlp or .output"
    check_option("layer", layer, layer in names, wanted, nearest(str(layer), names) or names[-3])
    forward = forward_pass(network, images, target, layer, gradients=True)
    tokens = forward.record[layer]
    gradients = gradients_of(forward.logit, tokens)[0][:, forward.prefix :]
    if len(images) and not gradients.any():
        _refuse_if_dead(network, images, target, layer)
    return forward, wide(tokens.detach()[:, forward.prefix :]), gradients


def layers_of(network: ViT) -> list[str]:
    """The record's names that hold one vector per token, first layer first."""
    depth, parts = check_tokens(network).config.depth, ("input", "norm1", "mlp", "output")
    return ["tokens", *(f"blocks.{index}.{part}" for index in range(depth) for part in parts)]


def _refuse_if_dead(network: ViT, images: Images, target: Target, layer: str) -> None:
    """Raise if gradients reach other layers: then it is the layer, and not the image, that is at fault."""
    names = layers_of(network)
    forward = forward_pass(network, images, target, *names, gradients=True)
    arriving = gradients_of(forward.logit, *(forward.record[name] for name in names))
    if alive := [name for name, each in zip(names, arriving, strict=True) if each[:, forward.prefix :].any()]:
        raise UsageError(
            f"no gradient reaches the patch tokens of {layer}: nothing after it reads them "
            f"(a class token reads patches in the attention alone); it does reach {alive[0]} to {alive[-1]}",
            Hint({"layer": [name for name in alive if not name.endswith(".mlp")][-1]}),
        )
