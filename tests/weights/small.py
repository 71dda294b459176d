"""A small network of timm's, and how images go into it."""

from typing import Any

import timm
from torch import nn

from tests.weights.families import NETWORK
from tests.weights.redraw import redrawn
from vitrail.data.preprocessing import Preprocessing

PLAIN = "vit_tiny_patch16_224"
READS = Preprocessing((32, 32), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def network(seed: int, **more: Any) -> nn.Module:
    return redrawn(timm.create_model(PLAIN, img_size=32, **{**NETWORK, "num_classes": 7, **more}), seed)
