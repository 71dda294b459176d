"""The layer table equals what the network holds and what torch counts while it runs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


sides = st.integers(1, 4)


@settings(deadline=None, max_examples=40)
@given(
    grid=st.tuples(sides, sides),
    patch=st.tuples(sides, sides),
    channels=st.integers(1, 4),
    classes=st.integers(0, 5),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 4),
    mlp_dim=st.integers(1, 9),
    depth=st.integers(1, 3),
    tokens=st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)),
    positions=st.sampled_from(["learned", "sinusoidal", "sinusoidal-2d", "none"]),
    bias=st.booleans(),
    scale=st.sampled_from([0.0, 0.1]),
)
def test_any_configuration(
    grid, patch, channels, classes, heads, head_dim, mlp_dim, depth, tokens, positions, bias, scale
) -> None:
    config = ViTConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch_size=patch,
        channels=channels,
        classes=classes,
        width=8,
        depth=depth,
        heads=heads,
        head_dim=head_dim,
        mlp_dim=mlp_dim,
        class_token=tokens[0],
        distillation_token=tokens[1],
        registers=tokens[2],
        pooling="class" if tokens[0] else "mean",
        positions=positions,
        qkv_bias=bias,
        layer_scale=scale,
    )
    with torch.device("meta"):
        network, images = ViT(config).eval(), torch.empty(1, channels, *config.image)
    assert parameters(config) == sum(parameter.numel() for parameter in network.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images)
    assert flops(config) == counter.get_total_flops()
