"""A model for images of the set `planted`, for the tests of `vitrail explain`."""

import torch

import vitrail
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sets.planted import planted_digits
from vitrail.nn import ViT, ViTConfig


def planted_model(background: bool = False, image: int = 32, patch: int = 4) -> vitrail.Model:
    """An untrained model, with a background where asked for."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=image, patch_size=patch, channels=1, classes=10, width=16, depth=2, heads=2, mlp_dim=32
    )
    preprocessing = Preprocessing((image, image), channels=1, mean=(0.5,), std=(0.5,))
    network = ViT(config).eval()
    torch.nn.init.normal_(network.head.weight)  # zero as it is made: then no class differs from another
    shown = torch.from_numpy(planted_digits("validation", 40).pixels)[:, None] if background else None
    return vitrail.Model(network, preprocessing, vitrail.Classes(tuple("0123456789")), background=shown)
