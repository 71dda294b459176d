"""RISE: "Randomized input sampling for explanation of black-box models" (Petsiuk, Das and Saenko, 2018), section 3.

    map_p = sum_i y(x under M_i) M_i[p] / sum_i M_i[p]  -  (1 / N) sum_i y(x under M_i)        y the logit of the target

The mean answer while patch p is seen (equation 2), less the mean answer: so its sign shows whether seeing the patch
helps or hurts, and a network that does not look gives zero. The paper's map is the first term, the same but for one
number per image; its Monte Carlo sum (equation 6) divides by N E[M] where here the masks that were drawn are summed,
which takes out the part that chance alone would put on the patches that were seen more often.

A mask is made as in the paper: a small grid of cells, each seen with probability `visible`, stretched bilinearly and
cut out at a random place. Its values stand on the patches, not on the pixels: a patch is seen, masked, or a mixture as
a whole. The paper's grid ends where the image does, so that its border is mixed less and the largest values of noise
lie in the corners; here the grid goes on beyond, and all patches have the same chances. Noisy by nature: it takes
thousands of masks.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import check_count, check_option
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import Grid, forward_pass
from vitrail.explain.methods.pixels import attribution_of_numbers, masked_numbers
from vitrail.explain.scores.perturb import AnyFill
from vitrail.explain.target import Target
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images


def rise_of(masks: Float[Tensor, "m rows columns"], found: Float[Tensor, "m b"]) -> Float[Tensor, "b rows columns"]:
    """The map of masks and answers; 0 at a patch that no mask shows."""
    mean = found.mean(dim=0)
    above = torch.einsum("mb,mij->bij", found - mean, masks)
    return above / masks.sum(dim=0).clamp(min=torch.finfo(masks.dtype).tiny)


@explaining
def rise(
    network: nn.Module,
    images: Images,
    target: Target = None,
    *,
    grid: Grid = None,
    masks: int = 2000,
    cells: int = 7,
    visible: float = 0.5,
    fill: AnyFill = "mean",
    seed: int = 0,
    batch_size: int = 64,
) -> Attribution:
    """How much higher the target's logit is while a patch is seen, on average over random masks.

    Args:
        network: Any, in eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class, unmasked.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.
        masks: How many random masks, N.
        cells: Cells along each side of the small grid, cut to the patches along that side.
        visible: The probability of a cell to be seen, above 0 and below 1.
        fill: What replaces masked patches, in normalised pixels: `"mean"` for the image's own mean colour, a number,
            one for each channel, or a tensor that broadcasts to them; or a `Fill`.
        seed: Seed of the masks; every image gets the same ones, whatever the batch.
        batch_size: How many masked images run at once.

    Returns:
        A signed number per patch, in logits: positive where seeing the patch speaks for the target.

    Raises:
        UsageError: If the network is in training mode, or if images, target or an option do not fit.
    """
    check_count("masks", masks, 2000)
    check_count("cells", cells, 7)
    check_option("visible", visible, 0 < visible < 1, "above 0 and below 1", 0.5)
    forward = forward_pass(network, images, target, grid=grid)
    drawn = random_masks(forward.grid, masks, cells, visible, seed)
    found = masked_numbers(forward, 1.0 - drawn, fill, batch_size)
    return attribution_of_numbers(rise_of(drawn.to(found), found), found, forward, "rise")


def random_masks(grid: Size, count: int, cells: int, visible: float, seed: int) -> Float[Tensor, "m rows columns"]:
    """Masks on the patches, between 0 and 1.

    Args:
        grid: (rows, columns) of patches.
        count: How many.
        cells: Along each side of the small grid, at most as many as there are patches.
        visible: Probability of a cell to be 1.
        seed: Of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    small = [min(cells, side) for side in grid]
    patches = [math.ceil(side / few) for side, few in zip(grid, small, strict=True)]  # along a cell
    beyond = [few + 3 for few in small]  # one cell before the image, and as far after it as it is shifted
    drawn = (torch.rand(count, *beyond, generator=generator, device="cpu") < visible).float()
    size = (drawn.shape[1] * patches[0], drawn.shape[2] * patches[1])
    large = F.interpolate(drawn[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    shifts = [side + torch.randint(side, (count,), generator=generator, device="cpu") for side in patches]
    rows, columns = (
        shift[:, None] + torch.arange(side, device="cpu") for shift, side in zip(shifts, grid, strict=True)
    )  # (m, rows), (m, columns)
    return large[torch.arange(count, device="cpu")[:, None, None], rows[:, :, None], columns[:, None, :]]
