"""How good a map is: the scores of the field, each with its unit, its range, its direction and its fill named.

    masking = Masking(from_background(background))                # same-position patches of other images
    deletion(network, images, attribution.values, 3, masking)     # Removal: score (b,), points (b, s), fill, ...
    relevance_mass(attribution.values, masks)                     # (b,)

There is no good value as such: hold a score against that of `random_maps` and, where there is one, the truth.
"""

from benchmarks.scores.agreement import (
    Segmentation as Segmentation,
    Similarity as Similarity,
    class_discrimination as class_discrimination,
    max_sensitivity as max_sensitivity,
    mprt as mprt,
    pointing_game as pointing_game,
    relevance_mass as relevance_mass,
    relevance_rank as relevance_rank,
    segmentation as segmentation,
    similarity as similarity,
)
from benchmarks.scores.fills import blur as blur
from benchmarks.scores.removal import (
    Masking as Masking,
    Removal as Removal,
    aopc as aopc,
    deletion as deletion,
    insertion as insertion,
    normalised as normalised,
    perturbation as perturbation,
    saco as saco,
)
from vitrail.explain.sanity_check import scramble as scramble, spearman as spearman
from vitrail.explain.scores import (
    Fill as Fill,
    from_background as from_background,
    grey as grey,
    keys_of as keys_of,
    mean_of_image as mean_of_image,
    own_patches as own_patches,
    random_maps as random_maps,
)
