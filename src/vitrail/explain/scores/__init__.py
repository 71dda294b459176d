"""How good a map is: scores with exact definitions, each with its unit, its range, its direction and its fill named.

    covering = Covering(donor(references))                      # same-position patches of other pictures
    deletion(network, images, heat.values, 3, covering)         # Removal: score (b,), points (b, s), fill, ...
    relevance_mass(heat.values, masks)                          # (b,)

Nothing here says what a good value is: hold a score against that of `random_maps` and, where there is one, the truth.
"""

from vitrail.explain.scores.covering_by_rank import Covering
from vitrail.explain.scores.fill import (
    Fill,
    blur,
    composite,
    donor,
    grey,
    keys_of,
    logits_in_chunks,
    mean_of_picture,
    own_patches,
)
from vitrail.explain.scores.localisation import (
    Mean,
    Segmentation,
    mean_over_pictures,
    pointing_game,
    relevance_mass,
    relevance_rank,
    segmentation,
)
from vitrail.explain.scores.random_maps import random_maps
from vitrail.explain.scores.removal import Removal, aopc, deletion, insertion, normalised, perturbation, saco
from vitrail.explain.scores.sanity import (
    Similarity,
    class_discrimination,
    class_similarity,
    max_sensitivity,
    mprt,
    scrambled,
    spearman,
)

__all__ = [
    "Covering",
    "Fill",
    "Mean",
    "Removal",
    "Segmentation",
    "Similarity",
    "aopc",
    "blur",
    "class_discrimination",
    "class_similarity",
    "composite",
    "deletion",
    "donor",
    "grey",
    "insertion",
    "keys_of",
    "logits_in_chunks",
    "max_sensitivity",
    "mean_of_picture",
    "mean_over_pictures",
    "mprt",
    "normalised",
    "own_patches",
    "perturbation",
    "pointing_game",
    "random_maps",
    "relevance_mass",
    "relevance_rank",
    "saco",
    "scrambled",
    "segmentation",
    "spearman",
]
