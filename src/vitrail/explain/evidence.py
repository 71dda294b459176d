"""Is there evidence at all? A picture against pictures put together of patches, which hold little.

A picture put together of patches of many others, each at its own place, looks like the real thing patch by patch and
shows nothing, or pieces at most (`lending.py` keeps the worst of them away). What the network says of such composites
is what it says of next to nothing; a picture holds evidence when the
explained number is exceptional among theirs. When the class is the picture's highest, it was chosen among all classes,
so it is compared with the highest class of each composite: a fair comparison for any network, trained or not.

References are few, and a new picture is like none of them. If every patch adds its own to the number, with variance s
over all pictures, then composites of r references have s (r - 1) / r around their mean, and a new picture has
s (r + 1) / r around it. So the composites' numbers are spread out by the root of (r + 1) / (r - 1) before they are
compared. Below ten references that correction is larger than a tenth, and too rough to build on.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.readout import wide
from vitrail.explain.scores.fill import Fill, logits_in_chunks
from vitrail.explain.target import Aim
from vitrail.nn import ViT
from vitrail.nn.vit import Images

BATCH = 64
FEWEST = 10  # references


def explained(logits: Float[Tensor, "*m b v"], aim: Aim) -> Float[Tensor, "*m b"]:
    """The number that is scored: the aim's, where a class's logit counts from the mean of all logits.

    Softmax does not change when a constant is added to all logits, so a logit by itself says nothing; a difference of
    two does, and a function of the caller's is taken as it is.
    """
    alone = aim.rather_than is None and aim.function is None and logits.shape[-1] > 1
    return aim.of(logits - logits.mean(dim=-1, keepdim=True) if alone else logits)


@torch.no_grad()
def evidence_free(network: ViT, images: Images, fill: Fill, count: int, seed: int) -> Float[Tensor, "count v"]:
    """Logits of pictures that hold no evidence, of the size of `images`; the same for all of them.

    Args:
        network: In eval mode.
        images: Any pictures of that size.
        fill: One that is in distribution: its fillers are the pictures.
        count: How many.
        seed: The same seed gives the same composites.
    """
    assert fill.in_distribution
    height, width = network.grid(images)
    patch = (images.shape[2] // height, images.shape[3] // width)
    parts = []
    for first in range(0, count, BATCH):
        some = fill.make(images[:1], patch, min(BATCH, count - first), seed + 7919 * (1 + first))
        parts.append(wide(logits_in_chunks(network, some, BATCH)[:, 0]))
    return torch.cat(parts)


def evidence_of(
    logits: Float[Tensor, "b v"], aim: Aim, without: Float[Tensor, "count v"], references: int
) -> Float[Tensor, "b"]:
    """p for each picture: (1 + composites whose number is as high) / (1 + composites).

    Args:
        logits: Of the pictures.
        aim: What is explained of them.
        without: Logits of pictures that hold no evidence.
        references: Of how many pictures they are put together.
    """
    own = explained(logits, aim)
    count, pictures = len(without), len(logits)
    theirs = explained(without[:, None].expand(-1, pictures, -1), aim)  # (count, b)
    if aim.function is None:
        highest = aim.target == logits.argmax(dim=1)
        chosen = Aim(without.argmax(dim=1))
        if aim.rather_than is None:
            best = explained(without, chosen)[:, None].expand(-1, pictures)
        else:  # the highest of the composites, held against the same class
            best = chosen.of(without)[:, None] - without[:, aim.rather_than]
        theirs = torch.where(highest, best, theirs)
    mean = theirs.mean(dim=0)
    theirs = mean + (theirs - mean) * ((references + 1) / (references - 1)) ** 0.5
    return (1 + (theirs >= own).sum(dim=0)).double() / (1 + count)
