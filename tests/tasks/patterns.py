"""Images of 24 x 24 grey pixels in three bands of one pattern each; what is known of them is how strong these are.

A pattern is as strong with its sign turned: neither patches of many images nor noise of the same smoothness come near
either, so explanations can be tested, also that a pattern is not there.
"""

import numpy as np

from vitrail.data import ArrayImages
from vitrail.options import TrainOptions

BANDS, PATCH, DOWN, ACROSS = 3, 4, 2, 6  # bands of 2 x 6 patches
SPLITS = {"train": 160, "validation": 48, "test": 32}
SMALL = (
    "network: {patch_size: 4, width: 32, depth: 1, heads: 2, mlp_dim: 32, pooling: mean, class_token: false}\n"
    "optimization: {ema_decay: 0.0, warmup_epochs: 1}\n"
)
OPTIONS = TrainOptions(epochs=16, batch_size=16, lr=4e-3, threads=1, precision="fp32", image_size=24, device="cpu")


def images(strengths: np.ndarray, name: str, seed: int, purity: float = 1.0) -> ArrayImages:
    """An image for each row of strengths (n, 3): 1 for a band that is its pattern, -1 for the pattern turned round.

    Args:
        strengths: Of the bands.
        name: Of the images.
        seed: Of the noise.
        purity: What fraction of the patches of a band is as its strength says; the others are turned round.
    """
    draw, count = np.random.default_rng(seed), len(strengths)
    bands = np.random.default_rng(99).choice([-1.0, 1.0], (BANDS, DOWN, PATCH, ACROSS, PATCH))
    turned = np.where(draw.random((count, BANDS, DOWN, 1, ACROSS, 1)) < purity, 1.0, -1.0)
    values = 128 + 50 * strengths[:, :, None, None, None, None] * turned * bands
    values = values + draw.normal(0, 10, values.shape)
    pixels = values.reshape(count, BANDS * DOWN * PATCH, ACROSS * PATCH).clip(0, 255).astype(np.uint8)
    return ArrayImages(pixels, name)
