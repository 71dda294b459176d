"""A fill that no verb uses: the image itself, blurred."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.scores.perturb import Fill
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images


def blur(std: float = 1.0) -> Fill:
    """The image itself, blurred by a Gaussian.

    Args:
        std: Standard deviation of the Gaussian, in patches; at the border its weights are shared out among the
            pixels that there are.

    Raises:
        UsageError: If the standard deviation is not above 0.
    """
    if not std > 0:
        raise UsageError(f"a blur needs a standard deviation above 0, got {std}", "blur(1.0), one patch")

    def make(images: Images, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        down, across = (_gaussian(images, axis, std * patch[axis]) for axis in (0, 1))
        return (down @ images @ across.T)[None]

    return Fill("blur", make)


def _gaussian(images: Images, axis: int, std: float) -> Float[Tensor, "n n"]:
    """A matrix that blurs along one axis; every row sums to 1."""
    places = torch.arange(images.shape[2 + axis], dtype=torch.float64, device="cpu")
    weights = torch.exp(-((places[:, None] - places) ** 2) / (2 * std**2))
    return (weights / weights.sum(dim=1, keepdim=True)).to(images)
