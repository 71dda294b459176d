"""AttCAT: signed, odd in the target, and what the last layer of a class-token network adds."""

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.explain import attcat
from vitrail.nn import ViTConfig


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_against_is_the_opposite_of_for(config: ViTConfig) -> None:
    """It is linear in the explained number: a contrast is a difference of maps, and minus a logit turns every sign."""
    network, images = make_network(config).double(), make_images(config).double()
    one, two = (attcat(network, images, target).values for target in (1, 2))
    assert (attcat(network, images, (1, 2)).values - (one - two)).abs().max() <= 1e-12
    assert (attcat(network, images, lambda logits: -logits[:, 1]).values + one).abs().max() <= 1e-12
    assert one.min() < 0 < one.max()


def test_one_block_and_a_class_token_say_nothing() -> None:
    """Behind the only block nothing reads the patches."""
    config = PLAIN.from_dict({**vars(PLAIN), "depth": 1})
    attribution = attcat(make_network(config), make_images(config), 1)
    assert not attribution.values.any()
    assert attribution.notes == (("no signal",), ("no signal",))
    assert torch.equal(attribution.values, torch.zeros(2, 3, 5))
