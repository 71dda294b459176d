"""Noise as a background, which was tried and is not offered: LOG.md says what it vouched for."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing

COUNT = 64
COLOUR_MEAN = (0.485, 0.456, 0.406)  # of ImageNet's pixels, red, green, blue, from 0 to 1
COLOUR_SPREAD = (0.0545, 0.0048, 0.0013)  # variances along its axes
COLOUR_AXES = ((0.57, -0.74, 0.35), (0.58, 0.05, -0.81), (0.58, 0.67, 0.46))


def noise(preprocessing: Preprocessing, seed: int = 0) -> Float[Tensor, "r 3 h w"]:
    """Noise that is as smooth and as coloured as photographs are: random phases under an amplitude of 1 / frequency.

    Amplitudes of natural images fall as 1 / f ("Relations between the statistics of natural images and the response
    properties of cortical cells", Field, 1987). Colours vary along the axes that ImageNet's pixels have ("ImageNet
    classification with deep convolutional neural networks", 2012, section 4.1), around its mean.

    Args:
        preprocessing: The model's, of three channels.
        seed: Of the phases; the same seed gives the same images.

    Returns:
        64 images as the network reads them.
    """
    height, width = preprocessing.size
    frequency = torch.from_numpy(np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]))
    amplitude = 1.0 / frequency.clamp(min=1.0 / max(height, width))
    drawn = np.random.Generator(np.random.PCG64(seed)).standard_normal((2, COUNT, 3, *frequency.shape))
    waves = torch.complex(torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])) * amplitude
    planes = torch.fft.irfft2(waves, s=(height, width))
    planes = (planes - planes.mean(dim=(2, 3), keepdim=True)) / planes.std(dim=(2, 3), keepdim=True)
    axes = torch.tensor(COLOUR_AXES, dtype=torch.float64) * torch.tensor(COLOUR_SPREAD, dtype=torch.float64).sqrt()
    values = torch.einsum("ij,rjhw->rihw", axes, planes) + torch.tensor(COLOUR_MEAN, dtype=torch.float64)[:, None, None]
    return preprocessing.normalise((values.clamp(0, 1) * 255).round().to(torch.uint8))
