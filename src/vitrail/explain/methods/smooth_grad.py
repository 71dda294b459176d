"""SmoothGrad: "SmoothGrad: removing noise by adding noise" (Smilkov et al., 2017), section 2.

    map_p = sum over the pixels and channels i of patch p of | (1 / n) sum_j d y / d x_i (x + e_j) |
    e_j   ~ N(0, s^2),  s = noise (max x - min x)

`squared=True` averages squares instead, (1 / n) sum_j (d y / d x_i)^2, so that gradients that change their sign do not
cancel ("A benchmark for interpretability methods", Hooker et al., 2019, section 3). With `noise=0` it is saliency.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from vitrail.errors import check_count, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Grid, check_explainable, forward_pass
from vitrail.explain.methods.pixels import by_patch, chunks, gradients_at
from vitrail.explain.target import Target
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images


@explaining
def smooth_grad(
    network: nn.Module,
    images: Images,
    target: Target = None,
    *,
    grid: Grid = None,
    samples: int = 25,
    noise: float = 0.15,
    squared: bool = False,
    seed: int = 0,
    batch_size: int = 64,
) -> Attribution:
    """Saliency, averaged over noisy copies of each image.

    Args:
        network: Any, in eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class, chosen without noise.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.
        samples: Noisy copies of each image, n.
        noise: Standard deviation of the noise as a fraction of each image's range; the paper found 0.1 to 0.2 good.
        squared: Whether squared gradients are averaged, not the gradients.
        seed: Seed of the noise; every image gets the same draws, whatever the batch.
        batch_size: How many copies run at once.

    Returns:
        A number of at least 0 per patch, in logits per unit of the normalised pixels; squared units with `squared`.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    check_count("samples", samples, 25)
    check_option("noise", noise, 0 <= noise < math.inf, "a fraction of the image's range, at least 0", 0.15)
    check_explainable(network, images, gradients=True)
    forward = forward_pass(network, images, target, grid=grid)
    pixels = wide(images.detach())
    flat = pixels.flatten(1)
    spread = (noise * (flat.amax(dim=1) - flat.amin(dim=1))).view(-1, *[1] * (images.dim() - 1))
    size = (samples, math.prod(forward.grid), images.shape[1] * math.prod(forward.patch))
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed), device="cpu")
    drawn = F.fold(drawn.mT, pixels.shape[2:], forward.patch, stride=forward.patch).to(pixels)
    gathered = torch.zeros_like(pixels)
    for which, some in chunks(len(images), samples, batch_size):
        versions = pixels[which] + spread[which] * drawn[some, None]
        gradients = gradients_at(forward.network, versions.to(images.dtype), forward.chosen.select(which))
        gathered[which] += (gradients.square() if squared else gradients).sum(dim=0)
    values = by_patch(gathered.abs() / samples, forward.grid)
    return forward.attribution(values, "smooth_grad")
