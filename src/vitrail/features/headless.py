"""A model that describes images by what its head reads, so that likeness by it can be explained."""

import copy
import shlex
from dataclasses import replace

from torch import nn

from vitrail.data.columns import Classes
from vitrail.errors import UsageError
from vitrail.features.poolings import check_network, numbers_read
from vitrail.model import Model
from vitrail.model.model import BORROWS
from vitrail.tasks import Numbers
from vitrail.tasks.features import Features


def headless(model: Model) -> Model:
    """The model with the same parameters whose answer is what its head reads: the vector that `similar` compares.

    Args:
        model: A ViT of any task; it is left as it is.

    Raises:
        UsageError: It has no patches, or its head reads more numbers than the network is wide.
    """
    network = check_network(model.network)
    count, width = numbers_read(network), network.config.width
    if count != width:
        problem = f"the head reads {count} numbers of an image, and only the {width} of a token can be explained"
        first = model.output.names[0] if isinstance(model.output, Classes) else "0"
        raise UsageError(problem, f"--target {shlex.quote(first)}")
    bare = copy.copy(network)
    bare._modules = {**network._modules, "head": nn.Identity().eval(), "head_dist": None}
    bare.config = replace(network.config, classes=0)
    facts = {**model.facts, BORROWS: model.borrows_background}  # which its classes say, and it has none any more
    return replace(model, network=bare, output=Numbers(width), task=Features(), facts=facts)
