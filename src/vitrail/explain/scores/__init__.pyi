from .agreement import (
    Segmentation as Segmentation,
    Similarity as Similarity,
    class_discrimination as class_discrimination,
    max_sensitivity as max_sensitivity,
    mprt as mprt,
    pointing_game as pointing_game,
    relevance_mass as relevance_mass,
    relevance_rank as relevance_rank,
    scrambled as scrambled,
    segmentation as segmentation,
    similarity as similarity,
    spearman as spearman,
)
from .faithfulness import random_maps as random_maps
from .perturb import (
    Fill as Fill,
    blur as blur,
    from_background as from_background,
    grey as grey,
    keys_of as keys_of,
    mean_of_image as mean_of_image,
    own_patches as own_patches,
)
from .removal import (
    Masking as Masking,
    Removal as Removal,
    aopc as aopc,
    deletion as deletion,
    insertion as insertion,
    normalised as normalised,
    perturbation as perturbation,
    saco as saco,
)
