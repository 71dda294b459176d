"""SmoothGrad: "SmoothGrad: removing noise by adding noise" (Smilkov et al., 2017), section 2.

    map_p = sum over the pixels and channels i of patch p of | (1 / n) sum_j d y / d x_i (x + e_j) |
    e_j   ~ N(0, s^2),  s = noise (max x - min x)

`squared=True` averages squares instead, (1 / n) sum_j (d y / d x_i)^2, so that gradients that change their sign do not
cancel ("A benchmark for interpretability methods", Hooker et al., 2019, section 3). With `noise=0` it is saliency.
"""

import math

import torch

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.pixels import at_least, by_patch, chunks, gradients_at, onto_pixels
from vitrail.explain.readout import attribution_of, check, open_run, wide
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images


@torch.inference_mode(False)
def smooth_grad(
    network: ViT,
    images: Images,
    target: Target = None,
    *,
    samples: int = 25,
    noise: float = 0.15,
    squared: bool = False,
    seed: int = 0,
    batch_size: int = 64,
) -> Attribution:
    """Saliency, averaged over noisy copies of each image.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class, chosen without noise.
        samples: Noisy copies of each image, n.
        noise: Standard deviation of the noise as a fraction of each image's range; the paper found 0.1 to 0.2 good.
        squared: Whether squared gradients are averaged, not the gradients.
        seed: Of the noise; every image gets the same draws, whatever the batch.
        batch_size: How many copies run at once.

    Returns:
        A number of at least 0 per patch, in logits per unit of the normalised pixels; squared units with `squared`.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    at_least("samples", samples, 1, "samples=25")
    if not 0 <= noise < float("inf"):
        raise UsageError(f"noise must be a fraction of the image's range, at least 0, got {noise}", "noise=0.15")
    check(network, images, gradients=True)
    opened = open_run(network, images, target, "logits")
    pixels = wide(images.detach())
    flat = pixels.flatten(1)
    spread = (noise * (flat.amax(dim=1) - flat.amin(dim=1))).view(-1, *[1] * (images.dim() - 1))
    patches = opened.grid[0] * opened.grid[1]
    size = (samples, patches, math.prod(images.shape[1:]) // patches)
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed), device="cpu")
    drawn = onto_pixels(drawn, images, opened.grid).to(pixels)
    gathered = torch.zeros_like(pixels)
    for which, some in chunks(len(images), samples, batch_size):
        versions = pixels[which] + spread[which] * drawn[some, None]
        gradients = gradients_at(network, versions.to(images.dtype), opened.chosen.select(which))
        gathered[which] += (gradients.square() if squared else gradients).sum(dim=0)
    values = by_patch(gathered.abs() / samples, opened.grid)
    return attribution_of(values, opened.chosen, opened.logit, METHOD)


METHOD = Method(
    function=smooth_grad,
    name="smooth_grad",
    title="SmoothGrad",
    signed=False,
    class_specific=True,
    says="saliency, averaged over noisy copies of the image",
    about=(
        "SmoothGrad (Smilkov and others, 2017) is saliency averaged over noisy copies of the image, so that accidental "
        "gradients of single pixels average out. It has the same limits as saliency."
    ),
    paper="SmoothGrad: removing noise by adding noise (Smilkov et al., 2017), section 2",
    options={
        "samples": "number of noisy copies of each image",
        "noise": "standard deviation of the noise, as a fraction of the image's range",
        "squared": "whether to average squared gradients",
        "seed": "seed of the noise",
        "batch_size": "copies per batch",
    },
    cost="1 + 3 x samples (76)",
)
