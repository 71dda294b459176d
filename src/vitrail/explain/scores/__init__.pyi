from .faithfulness import random_maps as random_maps
from .localisation import (
    Segmentation as Segmentation,
    pointing_game as pointing_game,
    relevance_mass as relevance_mass,
    relevance_rank as relevance_rank,
    segmentation as segmentation,
)
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
from .sanity import (
    Similarity as Similarity,
    class_discrimination as class_discrimination,
    max_sensitivity as max_sensitivity,
    mprt as mprt,
    scrambled as scrambled,
    similarity as similarity,
    spearman as spearman,
)
