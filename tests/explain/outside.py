"""A method from outside, as `docs/own-objects.md` says it: a function and its row, in a module that no table names."""

from dataclasses import replace
from functools import partial

import torch

from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import attention, forward_pass, layer_index
from vitrail.explain.methods import Method, Option
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images


@torch.inference_mode(False)
def strongest(
    network: ViT, images: Images, target: Target = None, *, layer: int = -1, squared: bool = False
) -> Attribution:
    """The attention that each patch gets from the head that gives it most, in one layer.

    Args:
        network: In eval mode.
        images: (b, c, h, w).
        target: What is reported beside the map.
        layer: The block that is read, from 0;
            -1 is the last.
        squared: Whether it is squared.
    """
    place = f"blocks.{layer_index(network.config.depth, layer)}.attention"
    forward = forward_pass(network, images, target, place)
    (only,) = forward.layers()
    row = only.read_heads(attention, forward.readout).amax(dim=1)
    return forward.attribution(row.square() if squared else row, METHOD)


METHOD = Method(
    function=strongest,
    name="strongest",
    title="Strongest head",
    signed=False,
    class_specific=False,
    summary="how much attention each patch gets from the head that gives it most",
    about="The strongest head is the one that attends most to a patch, for each patch by itself; a test brings it.",
    options={
        "layer": Option(-1, "The block that is read, from 0; -1 is the last."),
        "squared": Option(False, "Whether it is squared."),
    },
)
TWIN = replace(METHOD, function=partial(strongest, squared=True), title="Squared")  # under the name of the other
