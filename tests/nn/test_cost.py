"""The layer table equals what the network holds and what torch counts while it runs."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.nn import ViT, ViTConfig
from vitrail.nn.cost import flops, layers, parameters

SMALL = ViTConfig(image_size=(16, 24), patch_size=8, classes=5, width=24, depth=3, heads=3)
FORMS = {
    "B/16": ViTConfig.from_size("B/16"),
    "Ti/16, no classes": ViTConfig.from_size("Ti/16", classes=0, image_size=64),
    "small": SMALL,
    "distilled, registers": replace(SMALL, distillation_token=True, registers=3),
    "only patches, fixed positions": replace(SMALL, pooling="mean", class_token=False, positions="sinusoidal"),
    "no positions, one channel": replace(SMALL, positions="none", channels=1, patch_size=(4, 3)),
    "free sizes": replace(SMALL, head_dim=5, mlp_dim=7, qkv_bias=False, layer_scale=0.1),
}


@pytest.mark.parametrize("form", FORMS)
def test_parameters_and_flops_equal_those_of_the_network(form: str):
    config = FORMS[form]
    with torch.device("meta"):
        network = ViT(config).eval()
        images = torch.empty(1, config.channels, *config.image)
    assert parameters(config) == sum(parameter.numel() for parameter in network.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images)
    assert flops(config) == counter.get_total_flops()
    with pytest.raises(AssertionError):  # the planted fault: one block too few
        assert flops(replace(config, depth=config.depth - 1)) == counter.get_total_flops()


def test_b16_takes_35_gigaflops():
    assert flops(ViTConfig.from_size("B/16")) / 1e9 == pytest.approx(35.1, abs=0.05)


def test_rows_are_named_once_and_add_up():
    table = layers(SMALL)
    names = [layer.name for layer in table]
    assert len(set(names)) == len(names)
    assert sum(layer.parameters for layer in table) == parameters(SMALL)
    assert sum(name.startswith("blocks.1.") for name in names) == sum(name.startswith("blocks.2.") for name in names)
