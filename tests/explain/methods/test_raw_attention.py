"""Raw attention: the layer and head asked for, and fractions that add up."""

from itertools import product

import pytest
import torch

from tests.explain.reference import VARIANTS, explicit, make_images, make_network, map_of
from tests.explain.suite import SOME_VARIANTS
from vitrail.explain import raw_attention


@pytest.mark.parametrize("variant", SOME_VARIANTS)
def test_layer_and_head(variant: str) -> None:
    config = VARIANTS[variant]
    network, images = make_network(config).double(), make_images(config).double()
    explicit_weights = [layer.detach().numpy() for layer in explicit(network, images)[1]]
    for layer, head in product((0, 1, 2, -1, -3), (None, 0, 1)):
        weights, attribution = explicit_weights[layer], raw_attention(network, images, layer=layer, head=head)
        for image in range(2):
            matrix = weights[image].mean(axis=0) if head is None else weights[image, head]
            assert abs(attribution.values[image].numpy() - map_of(matrix, config)).max() <= 1e-12, (layer, head)


def test_shares() -> None:
    """Without prefix tokens all attention lies on patches; with them, less."""
    for name, config in VARIANTS.items():
        total = raw_attention(make_network(config), make_images(config)).values.flatten(1).sum(dim=1)
        assert ((total - 1).abs() <= 1e-6).all() if name == "mean-0" else (total < 1).all()


def test_a_sink_in_a_register_is_not_shown() -> None:
    """A register that draws nearly all attention leaves the patches with nearly none."""
    config = VARIANTS["class-5-registers"]
    network, images = make_network(config), make_images(config)
    before = raw_attention(network, images, layer=0).values.flatten(1).sum(dim=1)
    block = network.blocks[0]
    with torch.no_grad():
        sink = block.norm1(network.embed(images))[0, 4]  # the last register, the same for every image
        queries, keys, _ = block.attn.qkv.weight.chunk(3)
        queries.zero_()
        keys.copy_(sink.expand_as(keys))
        block.attn.qkv.bias[: queries.shape[0]].fill_(10.0)
    after = raw_attention(network, images, layer=0).values.flatten(1).sum(dim=1)
    assert (before > 0.3).all()
    assert (after < 1e-3).all()
