"""Random numbers of one seed for several uses and for single pictures.

Two generators with the same seed give the same bits. So where one seed serves several uses, or several pictures, each
draws from a stream of its own. What draws one thing for all pictures takes the seed as it is: SmoothGrad's noise,
RISE's masks, KernelSHAP's sets, the weights of a scrambled network, and the noise that a self-test looks at.
"""

import zlib

import torch
from jaxtyping import Float
from torch import Tensor


def stream(seed: int, use: str, key: int = 0) -> torch.Generator:
    """A generator that depends on the seed, the use and a key; on the CPU, so that all devices see the same numbers."""
    return torch.Generator().manual_seed(seed_of(seed, use, key))


def seed_of(seed: int, use: str, key: int = 0) -> int:
    """The seed of that stream, to hand to what takes one: for the draw of a number, or for one part of a whole."""
    return zlib.crc32(f"{use} {seed} {key}".encode())


def keys_of(images: Float[Tensor, "b c h w"]) -> list[int]:
    """A number made of each picture's pixels: the same for a picture in every batch, another for another picture."""
    return [zlib.crc32(image.contiguous().view(torch.uint8).numpy().tobytes()) for image in images.detach().cpu()]
