"""Rollout: closed forms (T2), rows that sum to one, and its options."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.explain.layers import layers_of
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.explain import rollout
from vitrail.explain.attribution import NO_SIGNAL, caveats
from vitrail.explain.forward import on_grid
from vitrail.explain.methods.rollout import rollout_of
from vitrail.nn import ViT, ViTConfig


def forget_queries(network: ViT) -> ViT:
    """Every query and key becomes zero, so that all attention is uniform."""
    with torch.no_grad():
        for block in network.blocks:
            inner = block.attn.heads * block.attn.head_dim
            block.attn.qkv.weight[: 2 * inner].zero_()
            block.attn.qkv.bias[: 2 * inner].zero_()
    return network


def test_uniform_attention_in_closed_form() -> None:
    """T2: class token to patch (1 - 2^-L) / N, to itself 2^-L more."""
    rows = rollout_of(layers_of([torch.full((1, 3, 65, 65), 1 / 65, dtype=torch.float64)] * 4))[0]
    assert rows[0, 1:].tolist() == pytest.approx([(1 - 2**-4) / 65] * 64, abs=1e-15)
    assert rows[0, 1].item() == pytest.approx(0.0144231, abs=5e-8)
    assert rows[0, 0].item() == pytest.approx((1 - 2**-4) / 65 + 2**-4, abs=1e-15)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_uniform_attention_through_a_network(config: ViTConfig) -> None:
    """The same through a whole network; what a read-out patch keeps of itself is its fraction of the readout."""
    network = forget_queries(make_network(config)).double()
    attribution = rollout(network, make_images(config).double())
    kept = {"class": 0.0, "mean": 1 / 15}[config.pooling] * (0.5 if config.distillation_token else 1.0)
    wanted = (1 - 2**-3) / (config.prefix + 15) + 2**-3 * kept
    assert (attribution.values - wanted).abs().max() <= 1e-14
    assert attribution.notes == ((NO_SIGNAL,), (NO_SIGNAL,))


def test_identity_attention_gives_nothing() -> None:
    """T2: each token looks at itself only; no patch reaches the class token, and nothing is NaN."""
    row = rollout_of(layers_of([torch.eye(7).expand(1, 2, 7, 7)] * 3), torch.eye(7)[:1])[:, 0]
    assert row.tolist() == [[1, 0, 0, 0, 0, 0, 0]]
    assert caveats(on_grid(row, 1, (2, 3))) == ((NO_SIGNAL,),)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    tokens=st.integers(1, 9),
    sharpness=st.floats(0, 40),
    fusion=st.sampled_from(["mean", "max", "min"]),
    discard=st.floats(0, 0.999),
)
def test_rows_sum_to_one(
    seed: int, layers: int, heads: int, tokens: int, sharpness: float, fusion: str, discard: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(layers, 2, heads, tokens, tokens, generator=generator) * sharpness
    rows = rollout_of(layers_of(list(scores.softmax(dim=-1))), fusion=fusion, discard=discard)
    assert rows.shape == (2, tokens, tokens)
    assert (rows.sum(dim=-1) - 1).abs().max() <= 1e-5
    assert (rows.double().sum(dim=-1) - 1).abs().max() <= 1e-6 * layers
    assert rows.min() >= 0


def test_discard_drops_the_smallest_and_keeps_ties() -> None:
    attention = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)[None, None]
    kept = rollout_of(layers_of([attention]), discard=4 / 9)[0]  # 0.1 three times and 0.2 go
    wanted = torch.tensor([[1.2, 0, 0], [0, 1.3, 0], [0.15, 0.15, 0.7]], dtype=torch.float64)
    assert (kept - wanted / wanted.sum(dim=1, keepdim=True)).abs().max() <= 1e-15
    ties = rollout_of(layers_of([torch.full((1, 1, 3, 3), 1 / 3)]), discard=0.9)  # all equal: none is smallest
    assert torch.equal(ties, rollout_of(layers_of([torch.full((1, 1, 3, 3), 1 / 3)])))


def test_options_reach_the_map() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    maps = [rollout(network, images, fusion=fusion).values for fusion in ("mean", "max", "min")]
    maps.append(rollout(network, images, discard=0.5).values)
    for index, one in enumerate(maps):
        assert all((one - other).abs().max() > 1e-3 for other in maps[:index])
