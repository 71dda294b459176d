"""Pictures with the colours and the smoothness of a given picture, in which nothing is arranged.

The phases of a picture's Fourier transform hold what stands where; the amplitudes hold how smooth it is. A surrogate
keeps the amplitudes and draws the phases anew, the same turn for all channels, so that colours stay together. Then the
picture's own values are put back in the order of the result: brightness, contrast and every grey value are the
picture's (Theiler, Eubank, Longtin, Galdrikian and Farmer, "Testing for nonlinearity in time series: the method of
surrogate data", Physica D 1992). The maps that a map is compared with are made alike (`scores/random_maps.py`).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.readout import wide
from vitrail.explain.scores.streams import stream


@torch.no_grad()
def surrogates(image: Float[Tensor, "c h w"], count: int, seed: int, key: int) -> Float[Tensor, "count c h w"]:
    """Surrogates of one picture.

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
    turn = torch.fft.fft2(noise).sgn()  # phases of real numbers: opposite frequencies turn oppositely
    turn[..., 0, 0] = 1.0
    mixed = torch.fft.ifft2(torch.fft.fft2(full) * turn).real.flatten(2)
    own = image.flatten(1).sort(dim=1).values.expand(count, -1, -1)
    order = mixed.argsort(dim=2)
    return own.new_empty(own.shape).scatter_(2, order, own).unflatten(2, image.shape[1:])
