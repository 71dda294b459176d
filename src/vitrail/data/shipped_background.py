"""Ten photographs, whose patches serve as the background of a model of ImageNet's classes that carries none.

They come from scikit-image, which says of each that it is in the public domain, under CC0 or without known copyright
restrictions: an astronaut and a galaxy cluster (NASA), a rocket (SpaceX), a cup of coffee (Rachel Michetti), a man with
a camera (Lav Varshney), bricks and gravel (CC0Textures), grass (linolafett), a retina (Mikael Häggström), and coins
(Brooklyn Museum). `benchmarks/photographs.py` made the files.

How often "supported" is right and wrong with them on a real network stands in benchmarks/explain.md. For other classes,
such as those of X-rays, any image differs from these photographs, whatever it shows: they are not used there.
"""

from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.data.background_file import MOST_VALUES
from vitrail.data.decode import open_image
from vitrail.data.preprocessing import Preprocessing

PLACE = Path(__file__).with_name("photographs")
NAMES = ("astronaut", "brick", "camera", "coffee", "coins", "grass", "gravel", "hubble_deep_field", "retina", "rocket")
PART = 0.7  # of the shorter side: the squares in the four corners


@lru_cache(maxsize=2)
def photographs(preprocessing: Preprocessing) -> UInt8[Tensor, "r c h w"]:
    """Each photograph as a whole, and its four corners: 50 images, fewer where they are very large.

    Args:
        preprocessing: How images become what the network expects.

    Returns:
        Values 0..255, which the caller must not change.
    """
    whole = [open_image(PLACE / f"{name}.jpg") for name in NAMES]
    images = whole + [image.crop(box) for corner in range(4) for image in whole for box in [_box(image.size, corner)]]
    height, width = preprocessing.size
    most = max(len(whole), MOST_VALUES // (preprocessing.channels * height * width))
    return torch.stack([preprocessing.to_uint8(image) for image in images[:most]])


def _box(size: tuple[int, int], corner: int) -> tuple[int, int, int, int]:
    """Left, upper, right and lower edge of the square in a corner of an image of some width and height."""
    side = int(PART * min(size))
    left, upper = (size[0] - side) * (corner % 2), (size[1] - side) * (corner // 2)
    return left, upper, left + side, upper + side
