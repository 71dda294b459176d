"""The second proof of a live network: of a copy in which every parameter is drawn, and how loud that is."""

import copy
from typing import Any

import pytest
import torch

from tests.errors import must_raise
from tests.weights.planting import network, proofs
from vitrail.errors import DataError
from vitrail.weights import convert as conversion

DINOV2 = "vit_small_patch14_reg4_dinov2", (("img_size", 56),)


def test_what_hardly_moves_is_drawn_louder_and_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    module = network(*DINOV2, "fresh")
    monkeypatch.setattr(conversion, "QUIET", float("inf"))
    with proofs() as proved, must_raise(DataError):
        conversion.convert_network(module)
    assert len({seen for _, seen in proved[1:]}) == len(conversion.LOUDER)  # other weights each time
    assert all(gap < conversion.GAP for gap, _ in proved)


def test_a_network_without_positions_is_proved_all_the_same() -> None:
    module = network("vit_tiny_patch16_224", (("pos_embed", "none"),), "fresh")
    with proofs() as proved:
        assert conversion.convert_network(module).network.pos_embed is None
    assert len(proved) == 2
    assert proved[1][1] > conversion.QUIET


def test_parameters_are_drawn_and_nothing_else() -> None:
    """Also of a half, or a frozen network; what is tied stays tied, and buffers are the network's own."""
    module: Any = copy.deepcopy(network(*DINOV2, "fresh"))
    module.norm.register_buffer("counted", torch.arange(3))
    module.blocks[1].norm1.weight = module.blocks[0].norm1.weight
    module.bfloat16().requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    one, same, loud = (conversion.redraw(module, {}, loudness) for loudness in (1.0, 1.0, 2.0))
    drawn: Any = one
    assert drawn.blocks[1].norm1.weight is drawn.blocks[0].norm1.weight
    assert drawn.norm.counted.equal(torch.arange(3))
    for name, parameter in one.named_parameters():
        louder = 2.0 if ".attn.qkv." in name else 1.0
        assert parameter.dtype == torch.float32
        assert parameter.std() > 0.005, name
        assert parameter.equal(same.get_parameter(name)), name
        assert loud.get_parameter(name).equal(louder * parameter), name
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())
