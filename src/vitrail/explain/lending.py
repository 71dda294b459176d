"""Reference pictures that hold as little evidence as may be: what lends patches to a test of evidence.

References are put together of patches of many training pictures, each at its own place. Some of these patches still
show a piece of what the network looks for, and a test against such pictures finds less evidence than there is. So the
tenth of the squares of each reference that the network's own explanation names is not lent: another reference's patch,
from the same place, stands there instead. It is done once, by the trained network, and stored; a network whose weights
are scrambled later meets the same references, and is not helped by a choice that another network made.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.scores.streams import stream
from vitrail.nn import ViT

SHARE = 0.1  # of a reference's squares
BATCH = 16
LEAST = 2  # references: a patch needs another to stand in for it


def without_evidence(
    network: ViT, donors: Float[Tensor, "r c h w"], references: UInt8[Tensor, "r c h w"], seed: int = 0
) -> UInt8[Tensor, "r c h w"]:
    """The references, with the patches that the network's explanation names replaced by those of others.

    Args:
        network: In eval mode, trained.
        donors: The references as the network reads them.
        references: The same, values 0..255.
        seed: Decides which reference stands in.

    Returns:
        As many references; every patch is still where it stood in a training picture.
    """
    if len(references) < LEAST:
        return references
    values = torch.cat([generic_attention(network, some).values for some in donors.split(BATCH)]).cpu()
    count, rows, columns = values.shape
    flat = values.flatten(1)
    first = flat.argsort(dim=1, descending=True)[:, : max(1, round(SHARE * rows * columns))]
    named = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, first, True)
    named &= flat > flat.amin(dim=1, keepdim=True)  # a map without signal names nothing
    lent, (down, across) = references.clone(), (references.shape[2] // rows, references.shape[3] // columns)
    random = stream(seed, "lending")
    for square in range(rows * columns):
        clean = (~named[:, square]).nonzero()[:, 0]
        if not len(clean):
            continue
        row, column = divmod(square, columns)
        place = (..., slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across))
        for reference in named[:, square].nonzero()[:, 0].tolist():
            other = int(clean[torch.randint(len(clean), (1,), generator=random, device="cpu")])
            lent[reference][place] = references[other][place]
    assert len(lent) == count
    return lent
