from .chance import random_maps as random_maps
from .perturb import (
    Fill as Fill,
    from_background as from_background,
    grey as grey,
    keys_of as keys_of,
    mean_of_image as mean_of_image,
    own_patches as own_patches,
)
