"""What a test of a map looks like: the image with the patches that the map names replaced, beside random ones.

Nothing is computed anew for it. The step is one that replaces up to a quarter of the patches, where the map and the
random maps differ most; of the images that were made there, the one whose number lies nearest to the mean is shown.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.explain.scores.perturb import composite, explained_number

if TYPE_CHECKING:
    from vitrail.explain.scores.faithfulness import Passes


class Pictured(NamedTuple):
    """Two images of the test for each of some images, on the CPU: patches in the map's order, and random ones.

    Attributes:
        of: (s,), which images these are.
        masks: (2, s, rows, columns), the patches that are replaced.
        images: (2, s, c, h, w), as the network reads them.
        numbers: (2, s), the target's probability (of what has none, its number), of each of the two.
        means: (2, s), the same over all fills, and over all random maps.
        half: (s, rows, columns), the first patches in the map's order that carry at least half of the drop at this
            step, as few as a step of the test replaces; none where nothing drops.
    """

    of: Int[Tensor, " s"]
    masks: Bool[Tensor, "2 s rows columns"]
    images: Float[Tensor, "2 s c h w"]
    numbers: Float[Tensor, "2 s"]
    means: Float[Tensor, "2 s"]
    half: Bool[Tensor, "s rows columns"]


def picture(of: Int[Tensor, " s"], passes: "Passes", few: int) -> Pictured:
    """Choose what is shown of a test: by the probability, where there is one. Random maps meet the fill of their step.

    Args:
        of: Which images these are.
        passes: Of these images.
        few: How many of the first steps may be shown.
    """
    some, column = passes.some, 1 if passes.some.measure == "probability" else 0
    images, masks, own, random = some.images, passes.own_masks[:, 0], passes.own[column], passes.random[column]
    before, every = (
        explained_number(some.logits, some.chosen, some.measure),
        torch.arange(len(images), device=of.device),
    )
    mean, chance = own.mean(dim=0), random.mean(dim=1)  # (steps, s)
    step = (chance - mean)[:few].nan_to_num().argmax(dim=0)
    fill = (own - mean)[:, step, every].abs().argmin(dim=0)
    which = (random - chance[:, None])[step, :, every].abs().argmin(dim=1)
    shown = torch.stack([masks[step, every], passes.random_masks[step, which, every]])
    patch = images.shape[2] // shown.shape[2], images.shape[3] // shown.shape[3]
    made = composite(images, some.fills[torch.stack([fill, step]), every], shown, patch)
    wanted = (before - mean)[step, every] / 2
    half = masks[(before - mean >= wanted).int().argmax(dim=0), every] & (wanted > 0)[:, None, None]
    told = torch.stack([own[fill, step, every], random[step, which, every]])
    means = torch.stack([mean[step, every], chance[step, every]])
    return Pictured(*(each.cpu() for each in (of, shown, made, told, means, half)))
