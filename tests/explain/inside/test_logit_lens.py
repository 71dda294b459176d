"""The lens at every depth against a network that really stops there."""

from dataclasses import replace

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse, must_refuse_and_say_what_works
from vitrail.explain.inside import logit_lens, patch_lens
from vitrail.nn import ViT, ViTConfig, features

pytestmark = pytest.mark.usefixtures("as_a_user")

every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def stopped(network: ViT, depth: int) -> ViT:
    """A network of the first blocks only, with the same parameters."""
    short = ViT(replace(network.config, depth=depth)).eval()
    short.load_state_dict({name: tensor for name, tensor in network.state_dict().items() if name in short.state_dict()})
    return short


@every_variant
def test_the_last_answer_is_the_networks(config: ViTConfig) -> None:
    """T8: bit for bit."""
    network, images = make_network(config), make_images(config, 3)
    lens = logit_lens(network, images)
    assert lens.shape == (config.depth + 1, 3, 4)
    assert torch.equal(lens[-1], network(images))
    assert not lens.requires_grad


@every_variant
def test_every_depth_is_a_network_that_stops_there(config: ViTConfig) -> None:
    network, images = make_network(config), make_images(config, 3)
    lens = logit_lens(network, images)
    for depth in range(1, config.depth + 1):
        assert torch.equal(lens[depth], stopped(network, depth)(images))
        assert (lens[depth] - lens[depth - 1]).abs().max() > 0.01
    assert torch.equal(lens[0], network.readout(network.embed(images)))


@every_variant
@pytest.mark.parametrize("size", [(12, 10), (8, 22)])
def test_patches_are_read_each_on_its_own(config: ViTConfig, size: tuple[int, int]) -> None:
    network = make_network(config)
    images = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(0))
    for layer in (0, 1, -1):
        lens = patch_lens(network, images, layer)
        assert lens.shape == (2, size[0] // 4, size[1] // 2, 4)
        tokens = features(stopped(network, layer % 3 + 1), images).patches
        assert (lens - tokens @ network.head.weight.T - network.head.bias).abs().max() <= 1e-5
    if config.pooling == "mean" and not config.distillation_token:
        assert (patch_lens(network, images).mean(dim=(1, 2)) - network(images)).abs().max() <= 1e-5


def test_a_layer_that_does_not_exist_names_those_that_do() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    for layer in (3, -4, 10**6):
        must_refuse_and_say_what_works(
            lambda **options: patch_lens(network, images, **options), "-3..2", layer, layer=layer
        )


def test_training_mode_and_wrong_images_are_refused() -> None:
    with must_refuse("training mode"):
        logit_lens(make_network(PLAIN).train(), make_images(PLAIN))
    with must_refuse("12x11"):
        logit_lens(make_network(PLAIN), torch.zeros(1, 2, 12, 11))
