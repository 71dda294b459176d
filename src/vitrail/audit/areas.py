"""Where the evidence of an image lies: how much of what masking everything costs is lost by masking one area.

    share = (number as it is - number without the area) / (number as it is - number without anything)

    border       the outermost patches
    mask         where the thing is, of images with a mask; and `background`, all the rest
    ..., moved   an area of the same shape elsewhere, which comes in at one side where it leaves at the other

Masked patches are replaced by background images, as in the test of a map: each area under five fills, of which each
meets one moved area. An honest network loses something without any area, so that only the two together say anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.data.images import NamedImage
from vitrail.data.masks import add_masks, mask_places
from vitrail.errors import DataError
from vitrail.explain.forward import with_grid
from vitrail.explain.reporting.known_masks import mask_patches
from vitrail.explain.reporting.plan import ReportPlan, patch_grid
from vitrail.explain.scores.faithfulness import STEPS, MaskedImages
from vitrail.explain.scores.perturb import at_a_time, compute_logits, from_background, keys_of, seed_of, stream
from vitrail.nn import evaluating
from vitrail.statistics import bootstrap_of_ratios

BORDER, MASK, BACKGROUND = "border", "mask", "background"
PROBLEM = "problem"
AREAS = {BORDER: "the border", MASK: "the mask", BACKGROUND: "the background"}  # in words
LEAST_IMAGES = 10  # of which it gives an interval


def area_drops(image: NamedImage, plan: ReportPlan, masks: Path | None) -> dict[str, Any]:
    """What an image loses without each area and without everything, in the unit of what is explained (logits).

    Args:
        image: That is tested.
        plan: With the model and the background that masked patches are replaced by.
        masks: A folder with a mask of some images.

    Returns:
        `all`, for each area [without it, without a moved one], in `sizes` what part of the image each is, and in
        `problem` why there is a mask that cannot be used; nothing without a background.
    """
    model, background = plan.model, plan.background
    background = model.background_images if background is None and plan.others is None else background
    if background is None and plan.others is not None:
        background = plan.others.besides([image])
    if background is None:
        return {}
    network, inputs = with_grid(model.network), model.tensor([image.image])
    with evaluating(model.network), torch.no_grad():
        logits = compute_logits(model.network, 1, inputs.__getitem__, at_a_time(inputs))
        chosen, seed = model.output.choose(logits, None), seed_of(0, "areas", *keys_of(inputs))
        masked = MaskedImages(network, inputs, chosen, logits, from_background(background.to(inputs)), seed)
        areas, problem = patches_of(image, plan, masked.grid, masks)
        own = torch.stack([torch.ones(masked.grid, dtype=torch.bool), *areas.values()])[:, None]  # m 1 rows columns
        elsewhere = [_moved(area, STEPS, stream(seed, name)) for name, area in areas.items()]
        moved = torch.stack(elsewhere, dim=1)[:, :, None]
        every = torch.cat([own.expand(STEPS, *own.shape), moved], dim=1).to(inputs.device)
        without = masked.numbers_under(every, ("centred",))[0, :, :, 0].mean(dim=0)
    drops = (masked.before - without).double().cpu().tolist()
    sizes = {name: float(area.float().mean()) for name, area in areas.items()}
    both = {name: drops[1 + k :: len(areas)][:2] for k, name in enumerate(areas)}
    return {"all": drops[0], "sizes": sizes, **both, **({PROBLEM: problem} if problem else {})}


def patches_of(
    image: NamedImage, plan: ReportPlan, grid: tuple[int, int], masks: Path | None
) -> tuple[dict[str, Bool[Tensor, "rows columns"]], str]:
    """The patches of each area of an image, without a mask the border alone; and why a mask cannot be used, if so."""
    border = torch.ones(grid, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    if masks is not None and not any(place.is_file() for place in mask_places(image.name, masks)):
        return {BORDER: border}, ""
    try:
        known = mask_patches([image] if masks is None else add_masks([image], masks), plan.model)
    except DataError as error:  # of this image
        return {BORDER: border}, error.problem
    if known is None:
        return {BORDER: border}, ""
    return {BORDER: border, MASK: known[0].cpu(), BACKGROUND: ~known[0].cpu()}, ""


def check_usable_masks(images: Iterable[NamedImage], plan: ReportPlan, masks: Path) -> None:
    """Refuse masks of which none can be used; images without one do not count.

    Raises:
        DataError: What is wrong with the first.
    """
    problem = ""
    for image in images:
        areas, found = patches_of(image, plan, patch_grid(plan.model), masks)
        if MASK in areas:
            return
        problem = problem or found
    if problem:
        raise DataError(problem, "masks of the size of their images: black, and another value where the thing is")


def _moved(
    area: Bool[Tensor, "rows columns"], count: int, generator: torch.Generator
) -> Bool[Tensor, "count rows columns"]:
    """The same area elsewhere, so many times: by at least one patch, where there is one."""
    by = [[int(torch.randint(1, max(2, side), (), generator=generator)) for side in area.shape] for _ in range(count)]
    return torch.stack([area.roll(each, (0, 1)) for each in by])


def shares(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The share of each area in what is lost without everything, over images, and that of moved areas; with intervals.

    It is the ratio of two sums, so that an image with little to lose counts little; 95 % intervals by drawing images
    again.

    Args:
        found: Of each image what `area_drops` gave.
    """
    rows = dict[str, dict[str, Any]]()
    for name in AREAS:
        values = np.array([(one["all"], *one[name]) for one in found if name in one])
        if len(values) < LEAST_IMAGES or values[:, 0].sum() <= 0:
            continue
        total, ends = values.sum(axis=0), bootstrap_of_ratios(values)
        rows[name] = {
            "images": len(values),
            "size": float(np.mean([one["sizes"][name] for one in found if name in one])),
            "share": float(total[1] / total[0]),
            "interval": ends[:, 0].tolist(),
            "moved": float(total[2] / total[0]),
            "moved_interval": ends[:, 1].tolist(),
        }
    return rows
