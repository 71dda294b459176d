"""LeGrad: how each layer is scored, and that each is scored for itself."""

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.explain import legrad
from vitrail.explain.methods.legrad import score
from vitrail.explain.target import choose_target
from vitrail.nn import Record, ViTConfig


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_the_last_score_is_the_logit_with_mean_pooling(config: ViTConfig) -> None:
    """With a class token it is the head's answer to the mean of all tokens instead."""
    network, images, record = make_network(config), make_images(config), Record("*.output")
    logits = network(images, record)
    chosen = choose_target(logits, [2, 0])
    found = score(network, record["blocks.2.output"], chosen, config.pooling == "class")
    if config.pooling == "mean":
        assert torch.equal(found, chosen(logits))
    else:
        mean = network.norm(record["blocks.2.output"].mean(dim=1))
        heads = [network.head] if network.head_dist is None else [network.head, network.head_dist]
        wanted = torch.stack([head(mean) for head in heads]).mean(dim=0)
        assert (found - chosen(wanted)).abs().max() <= 1e-6
        assert (found - chosen(logits)).abs().max() > 1e-2


def test_each_layer_is_scored_for_itself() -> None:
    """What comes after a block does not matter to that block: another last block leaves the first layers' maps."""
    network, images = make_network(PLAIN).double(), make_images(PLAIN).double()
    all_three, last = legrad(network, images, 1).values, legrad(network, images, 1, first_layer=2).values
    with torch.no_grad():
        for parameter in network.blocks[2].parameters():
            parameter.mul_(0.5)
    changed, changed_last = legrad(network, images, 1).values, legrad(network, images, 1, first_layer=-1).values
    assert (changed_last - last).abs().max() > 1e-6
    assert ((3 * all_three - last) - (3 * changed - changed_last)).abs().max() <= 1e-12


def test_it_is_linear_in_the_head() -> None:
    """Nothing is rescaled: twice the head, twice the map."""
    network, images = make_network(PLAIN).double(), make_images(PLAIN).double()
    before = legrad(network, images, 1).values
    with torch.no_grad():
        network.head.weight.mul_(2.0)
    assert (legrad(network, images, 1).values - 2 * before).abs().max() <= 1e-12 * before.max()
