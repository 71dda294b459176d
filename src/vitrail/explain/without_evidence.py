"""Images that hold no evidence, against which evidence is asked for (`evidence.py`): composites and surrogates.

And the background that composites are put together of, less what a trained network finds in them. Composites are the
same for all images of a network, so they are computed once, and kept: who explains many images, or one after the
other, pays for them once.

    ~/.cache/vitrail/composites/KEY.safetensors    logits of the composites of one network and its background

The key is made of all that decides them: the numbers of the network and of the background, the size of the images,
the seed, the precision, torch and the processor or GPU.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.data.tensor_files import read_tensors, write_tensors
from vitrail.errors import DataError
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.perturb import at_a_time, logits_of
from vitrail.explain.scores.fill import Fill, from_background, seed_of, stream
from vitrail.explain.scores.random_maps import in_order_of, turned
from vitrail.io import user_cache
from vitrail.nn import ViT
from vitrail.nn.networks import weights_hash
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images
from vitrail.runtime import device_name

LOGITS = "logits"
COMPOSITES = 499  # that a network is asked of, once
FRACTION = 0.1  # of an image's patches, those that an explanation names, are replaced
IMAGES_AT_A_TIME = 16  # that are explained


def kept_composites(
    network: ViT, asked: ViT, images: Images, background: Float[Tensor, "r c h w"], seed: int, precision: str
) -> Float[Tensor, "count v"]:
    """Logits of composites: those that are kept, or computed now, and kept from then on.

    Args:
        network: Whose numbers they are, in eval mode.
        asked: The same in the precision that is used.
        images: Any images of the size.
        background: Background images whose patches they are put together of.
        seed: Decides them.
        precision: What that precision is called.
    """
    of = {
        "network": weights_hash(network),
        "config": repr(network.config),
        "references": hashlib.sha256(background.detach().cpu().contiguous().numpy().tobytes()).hexdigest(),
        "size": list(images.shape[1:]),
        "kind": str(images.dtype),
        "count": COMPOSITES,
        "seed": seed,
        "precision": precision,
        "torch": torch.__version__,
        "machine": device_name(images.device),
    }
    key = hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()
    place = user_cache() / "composites" / f"{key}.safetensors"
    with suppress(DataError, OSError, KeyError):
        found = read_tensors(place, "")[LOGITS]
        if len(found) == COMPOSITES:
            return found.to(images.device)
    made = composites_of(asked, images, from_background(background), range(COMPOSITES), seed)
    with suppress(OSError):  # no home, or a full disk: they are computed again next time
        write_tensors(place, {LOGITS: made})
    return made


@torch.no_grad()
def composites_of(
    network: ViT, images: Images, fill: Fill, numbers: Sequence[int], seed: int
) -> Float[Tensor, "count v"]:
    """Logits of images put together of patches, of the size of `images`; the same for all of them.

    Args:
        network: In eval mode.
        images: Any images of that size.
        fill: One that is in distribution: its fillers are the images.
        numbers: Which ones.
        seed: The same seed gives the same composites.
    """
    assert fill.in_distribution
    rows, columns = network.grid(images)
    patch = (images.shape[2] // rows, images.shape[3] // columns)

    def make(some: Tensor) -> Images:
        return fill.make(images[:1], patch, len(some), seed_of(seed, "composites", numbers[int(some[0])]))[:, 0]

    return logits_of(network, len(numbers), make, at_a_time(images))


@torch.no_grad()
def surrogates(image: Float[Tensor, "c h w"], count: int, seed: int, key: int) -> Float[Tensor, "count c h w"]:
    """Images with the colours and the smoothness of a given image, in which nothing is arranged.

    The phases of an image's Fourier transform hold what stands where; the amplitudes hold how smooth it is. A
    surrogate keeps the amplitudes and draws the phases anew, the same turn for all channels, so that colours stay
    together. Then the image's own values are put back in the order of the result: brightness, contrast and every grey
    value are the image's (Theiler, Eubank, Longtin, Galdrikian and Farmer, "Testing for nonlinearity in time series:
    the method of surrogate data", Physica D 1992). The maps that a map is compared with are made alike
    (`scores/random_maps.py`).

    Measured on photographs, digits and planted images: putting the values back once is enough. Refining by turns, as
    random maps are refined, changed nothing in what networks say of them, and cost five times as much.

    Args:
        image: As the network reads it.
        count: How many.
        seed: Decides the phases, with the key.
        key: Of the image, see `keys_of`.

    Returns:
        (count, c, h, w): each channel of each holds exactly the values of that channel of the image.
    """
    random, full = stream(seed, "surrogates", key), wide(image)  # no Fourier transform is made in half precision
    noise = torch.randn((count, 1, *image.shape[1:]), generator=random, device="cpu").to(full)
    return in_order_of(turned(full, noise), image.flatten(1).sort(dim=1).values.expand(count, -1, -1))


def without_evidence(
    network: ViT, images: Float[Tensor, "r c h w"], background: UInt8[Tensor, "r c h w"], seed: int = 0
) -> UInt8[Tensor, "r c h w"]:
    """The background, with the patches that the network's explanation names replaced by those of others.

    Background images are put together of patches of many training images, each at its own place. Some of these patches
    still show a piece of what the network looks for, and a test against such images finds less evidence than there is.
    So the tenth of the patches of each background image that the network's own explanation names is replaced: another
    image's patch, from the same place, stands there instead. It is done once, by the trained network, and stored; a
    network whose weights are scrambled later meets the same background, and is not helped by a choice that another
    network made.

    Args:
        network: In eval mode, trained.
        images: The background as the network reads them.
        background: The same, values 0..255.
        seed: Decides which image stands in.

    Returns:
        As many images; every patch is still where it stood in a training image.
    """
    if len(background) < 2:  # a patch needs another to stand in for it
        return background
    values = torch.cat([generic_attention(network, some).values for some in images.split(IMAGES_AT_A_TIME)]).cpu()
    _, rows, columns = values.shape
    flat = values.flatten(1)
    first = flat.argsort(dim=1, descending=True)[:, : max(1, round(FRACTION * rows * columns))]
    named = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, first, True)
    named &= flat > flat.amin(dim=1, keepdim=True)  # a map without signal names nothing
    cleaned, (down, across) = background.clone(), (background.shape[2] // rows, background.shape[3] // columns)
    random = stream(seed, "lending")
    for patch in range(rows * columns):
        clean = (~named[:, patch]).nonzero()[:, 0]
        if not len(clean):
            continue
        row, column = divmod(patch, columns)
        place = (..., slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across))
        for one in named[:, patch].nonzero()[:, 0].tolist():
            other = int(clean[torch.randint(len(clean), (1,), generator=random, device="cpu")])
            cleaned[one][place] = background[other][place]
    return cleaned
