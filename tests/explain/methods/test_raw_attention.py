"""Raw attention: the layer and head asked for, and shares that add up."""

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, explicit, make_images, make_network, map_of
from vitrail.errors import UsageError
from vitrail.explain import raw_attention
from vitrail.nn import ViTConfig


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("layer", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("head", [None, 0, 1])
def test_layer_and_head(config: ViTConfig, layer: int, head: int | None) -> None:
    network, images = make_network(config).double(), make_images(config).double()
    weights = explicit(network, images)[1][layer].detach().numpy()
    heat = raw_attention(network, images, layer=layer, head=head)
    for picture in range(2):
        matrix = weights[picture].mean(axis=0) if head is None else weights[picture, head]
        assert abs(heat.values[picture].numpy() - map_of(matrix, config)).max() <= 1e-12


def test_shares() -> None:
    """Without prefix tokens all attention lies on patches; with them, less."""
    for name, config in VARIANTS.items():
        total = raw_attention(make_network(config), make_images(config)).values.flatten(1).sum(dim=1)
        assert ((total - 1).abs() <= 1e-6).all() if name == "mean-0" else (total < 1).all()


@pytest.mark.parametrize("options", [{"layer": 3}, {"layer": -4}, {"head": 2}, {"head": -1}], ids=str)
def test_out_of_range(options: dict[str, int]) -> None:
    wanted = r"-3\.\.2" if "layer" in options else r"0\.\.1"
    with pytest.raises(UsageError, match=wanted):
        raw_attention(make_network(PLAIN), make_images(PLAIN), **options)


def test_a_sink_in_a_register_is_not_shown() -> None:
    """A register that draws nearly all attention leaves the patches with nearly none."""
    config = VARIANTS["class-5-registers"]
    network, images = make_network(config), make_images(config)
    before = raw_attention(network, images, layer=0).values.flatten(1).sum(dim=1)
    block = network.blocks[0]
    with torch.no_grad():
        sink = block.norm1(network.embed(images))[0, 4]  # the last register, the same for every picture
        queries, keys, _ = block.attn.qkv.weight.chunk(3)
        queries.zero_()
        keys.copy_(sink.expand_as(keys))
        block.attn.qkv.bias[: queries.shape[0]].fill_(10.0)
    after = raw_attention(network, images, layer=0).values.flatten(1).sum(dim=1)
    assert (before > 0.3).all()
    assert (after < 1e-3).all()
