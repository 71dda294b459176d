"""Pictures that hold no evidence, against which evidence is asked for (`evidence.py`): composites and surrogates.

And the references that composites are put together of, less what a trained network finds in them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.readout import wide
from vitrail.explain.scores.fill import Fill, logits_in_chunks, seed_of, stream
from vitrail.explain.scores.random_maps import in_order_of, turned
from vitrail.nn import ViT
from vitrail.nn.vit import Images

VALUES = 3_000_000  # of the pictures that are made and go through the network at a time: 19 of 3 x 224 x 224
COMPOSITES = 499  # that a network is asked of, once
SHARE = 0.1  # of a reference's squares, those that an explanation names, are not lent
REFERENCES_AT_A_TIME = 16  # that are explained


def at_a_time(images: Images) -> int:
    """How many pictures of this size go through a network together: at most 64, fewer where they are large."""
    return max(1, min(64, VALUES // images.shape[1:].numel()))


@torch.no_grad()
def composites_of(
    network: ViT, images: Images, fill: Fill, numbers: Sequence[int], seed: int
) -> Float[Tensor, "count v"]:
    """Logits of pictures put together of patches, of the size of `images`; the same for all of them.

    Args:
        network: In eval mode.
        images: Any pictures of that size.
        fill: One that is in distribution: its fillers are the pictures.
        numbers: Which ones.
        seed: The same seed gives the same composites.
    """
    assert fill.in_distribution
    rows, columns = network.grid(images)
    patch = (images.shape[2] // rows, images.shape[3] // columns)
    parts = []
    for first in range(0, len(numbers), at_a_time(images)):
        some = numbers[first : first + at_a_time(images)]
        made = fill.make(images[:1], patch, len(some), seed_of(seed, "composites", some[0]))
        parts.append(wide(logits_in_chunks(network, made, len(some))[:, 0]))
    return torch.cat(parts)


@torch.no_grad()
def surrogates(image: Float[Tensor, "c h w"], count: int, seed: int, key: int) -> Float[Tensor, "count c h w"]:
    """Pictures with the colours and the smoothness of a given picture, in which nothing is arranged.

    The phases of a picture's Fourier transform hold what stands where; the amplitudes hold how smooth it is. A
    surrogate keeps the amplitudes and draws the phases anew, the same turn for all channels, so that colours stay
    together. Then the picture's own values are put back in the order of the result: brightness, contrast and every grey
    value are the picture's (Theiler, Eubank, Longtin, Galdrikian and Farmer, "Testing for nonlinearity in time series:
    the method of surrogate data", Physica D 1992). The maps that a map is compared with are made alike
    (`scores/random_maps.py`).

    Measured on photographs, digits and planted pictures: putting the values back once is enough. Refining by turns, as
    random maps are refined, changed nothing in what networks say of them, and cost five times as much.

    Args:
        image: As the network reads it.
        count: How many.
        seed: Decides the phases, with the key.
        key: Of the picture, see `keys_of`.

    Returns:
        (count, c, h, w): each channel of each holds exactly the values of that channel of the picture.
    """
    random, full = stream(seed, "surrogates", key), wide(image)  # no Fourier transform is made in half precision
    noise = torch.randn((count, 1, *image.shape[1:]), generator=random, device="cpu").to(full)
    return in_order_of(turned(full, noise), image.flatten(1).sort(dim=1).values.expand(count, -1, -1))


def without_evidence(
    network: ViT, images: Float[Tensor, "r c h w"], references: UInt8[Tensor, "r c h w"], seed: int = 0
) -> UInt8[Tensor, "r c h w"]:
    """The references, with the patches that the network's explanation names replaced by those of others.

    References are put together of patches of many training pictures, each at its own place. Some of these patches still
    show a piece of what the network looks for, and a test against such pictures finds less evidence than there is. So
    the tenth of the squares of each reference that the network's own explanation names is not lent: another reference's
    patch, from the same place, stands there instead. It is done once, by the trained network, and stored; a network
    whose weights are scrambled later meets the same references, and is not helped by a choice that another network
    made.

    Args:
        network: In eval mode, trained.
        images: The references as the network reads them.
        references: The same, values 0..255.
        seed: Decides which reference stands in.

    Returns:
        As many references; every patch is still where it stood in a training picture.
    """
    if len(references) < 2:  # a patch needs another to stand in for it
        return references
    values = torch.cat([generic_attention(network, some).values for some in images.split(REFERENCES_AT_A_TIME)]).cpu()
    _, rows, columns = values.shape
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
    return lent
