"""Conservative propagation against a network under fixed factors, and the balance sheet closes (T3), and only there."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from tests.explain.held_reference import cut, embed, from_tokens, trace
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from tests.explain.suite import SOME_VARIANTS
from vitrail.explain import Attribution
from vitrail.explain.methods.conservative import Balance, balance_sheet, conservative
from vitrail.explain.target import Target
from vitrail.nn import STANDARD, Parts, ViT, ViTConfig, detached

pytestmark = pytest.mark.usefixtures("as_a_user")

every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
KINDS = (*VARIANTS.values(), replace(PLAIN, activation="relu", layer_scale=0.5), replace(PLAIN, positions="sinusoidal"))
every_kind = pytest.mark.parametrize("config", KINDS, ids=[*VARIANTS, "relu and LayerScale", "sinusoidal"])
TARGETS = torch.tensor([2, 0])


def double(config: ViTConfig, count: int = 2, parts: Parts = STANDARD) -> tuple[ViT, Tensor]:
    return make_network(config, parts=parts).double(), make_images(config, count).double()


def closes(balance: Balance) -> float:
    """The largest gap, relative to the logit."""
    return float((balance.gap / balance.logit).abs().max())


# ---- the map


def assert_shares(conservative: Callable[..., Attribution], config: ViTConfig) -> None:
    """Under its own factors the network is affine, so one pixel's share is x times what one unit more of it changes."""
    network, images = double(config)
    attribution = conservative(network, images, TARGETS)
    with torch.no_grad():
        for image in range(2):
            logits, factors = trace(network, images[image : image + 1])
            pixels = images[image].numel()
            more = images[image].flatten() + torch.eye(pixels, dtype=torch.float64)
            repeated = [factor.expand(pixels, *factor.shape[1:]) for factor in factors]
            changed, _ = trace(network, more.view(pixels, *images.shape[1:]), repeated)
            slope = (changed - logits)[:, TARGETS[image]].view(1, *images.shape[1:])
            shares = cut(images[image : image + 1] * slope, config.patch).sum(dim=2)
            assert (attribution.values[image].flatten() - shares[0]).abs().max() <= 1e-10
            assert shares.abs().max() > 0.01


@every_kind
def test_shares_are_those_of_the_network_under_fixed_factors(config: ViTConfig) -> None:
    assert_shares(conservative, config)


@every_kind
def test_shares_of_tokens(config: ViTConfig) -> None:
    """At the tokens too; there a network without biases after them would have no other parts."""
    network, images = double(config)
    tokens = embed(network, images).detach().requires_grad_()
    logits, factors = from_tokens(network, tokens)
    logits, _ = from_tokens(network, tokens, [factor.detach() for factor in factors])
    (slope,) = torch.autograd.grad(logits[[0, 1], TARGETS].sum(), tokens)
    shares = (tokens * slope).sum(dim=2)[:, config.prefix :].detach()
    values = conservative(network, images, TARGETS, at="tokens").values
    assert (values.flatten(1) - shares).abs().max() <= 1e-10
    assert (values - conservative(network, images, TARGETS).values).abs().max() > 0.01


def test_a_linear_function_of_the_logits_is_the_same_as_its_parts() -> None:
    network, images = double(PLAIN)
    attribution = conservative(network, images, lambda logits: 2 * logits[:, 1] - logits[:, 3])
    parts = [conservative(network, images, target).values for target in (1, 3)]
    assert (attribution.values - (2 * parts[0] - parts[1])).abs().max() <= 1e-12
    assert attribution.notes == ((), ())
    contrast = conservative(network, images, (1, 3))
    assert (contrast.values - (parts[0] - parts[1])).abs().max() <= 1e-12


def test_a_target_that_is_not_linear_is_said() -> None:
    """y = z1 z2 has sum z dy/dz = 2 y: the parts sum to twice the number, so -y belongs to none."""
    network, images = double(PLAIN, 3)

    def product(logits: Tensor) -> Tensor:
        return logits[:, 1] * logits[:, 2]

    balance, attribution = balance_sheet(network, images, product), conservative(network, images, product)
    assert (balance.gap + balance.logit).abs().max() <= 1e-10
    for notes, logit in zip(attribution.notes, attribution.logit.tolist(), strict=True):
        assert len(notes) == 1
        assert f"{-logit:.3g}" in notes[0]


# ---- the sheet


@settings(deadline=None, max_examples=20)
@given(
    name=st.sampled_from(list(VARIANTS)),
    activation=st.sampled_from(["gelu", "relu"]),
    layer_scale=st.sampled_from([0.0, 0.5]),
    positions=st.sampled_from(["learned", "sinusoidal", "sinusoidal-2d", "none"]),
    biases=st.booleans(),
    size=st.sampled_from([(12, 10), (4, 2), (8, 22)]),
    target=st.sampled_from([None, 1, [2, 0], (3, 1)]),
    seed=st.integers(0, 5),
)
def test_the_sheet_closes(
    name: str,
    activation: str,
    layer_scale: float,
    positions: str,
    biases: bool,
    size: tuple[int, int],
    target: Target,
    seed: int,
) -> None:
    """T3: pixels + positions + prefix tokens + biases = logit, for any network of the standard parts."""
    bias = dict.fromkeys(("embed_bias", "qkv_bias", "out_bias", "mlp_bias", "head_bias"), biases)
    config = replace(VARIANTS[name], activation=activation, layer_scale=layer_scale, positions=positions, **bias)
    network = make_network(config, seed).double()
    images = torch.randn(2, 2, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    balance = balance_sheet(network, images, target)
    assert closes(balance) <= 1e-10
    assert torch.equal(balance.logit, conservative(network, images, target).logit)
    assert torch.equal(balance.pixels, conservative(network, images, target).values)
    assert ("biases of the head" in balance.parts) is biases
    assert "biases of the norms" in balance.parts


@every_variant
def test_the_sheet_closes_in_float32(config: ViTConfig) -> None:
    balance = balance_sheet(make_network(config), make_images(config, 8), 1)
    scale = torch.stack([part.abs() for part in balance.parts.values()]).sum(dim=0)
    assert (balance.gap.abs() / scale).max() <= 1e-6


def by_gradients(network: ViT, images: Tensor, target: int, hold: bool) -> tuple[dict[str, Tensor], Tensor]:
    """The parts of one image as value times gradient on the written-out network, and the logit."""
    pixels = images.clone().requires_grad_()
    leaves = {"pixels": pixels, "positions": network.pos_embed, **dict(network.named_parameters())}
    wanted = [name for name in leaves if name in ("pixels", "positions") or "_token" in name or name.endswith("bias")]
    logits, factors = trace(network, pixels)
    if hold:
        logits, _ = trace(network, pixels, [factor.detach() for factor in factors])
    slopes = torch.autograd.grad(logits[0, target], [leaves[name] for name in wanted])
    parts = {name: (leaves[name] * slope).sum() for name, slope in zip(wanted, slopes, strict=True)}
    return parts, logits[0, target]


@every_variant
def test_every_part_is_that_of_a_sheet_made_by_hand(config: ViTConfig) -> None:
    network, images = double(config, 3)
    balance = balance_sheet(network, images, 1)
    for image in range(3):
        parts, _ = by_gradients(network, images[image : image + 1], 1, hold=True)
        kinds = {"patch map": "patch_embed", "attention": ".attn.", "MLPs": ".mlp.", "head": "head", "norms": "norm"}
        names = {"pixels": ["pixels"], "positions": ["positions"]}
        names |= {"class token": ["cls_token"], "distillation token": ["dist_token"], "registers": ["reg_token"]}
        for kind, mark in kinds.items():
            names[f"biases of the {kind}"] = [name for name in parts if mark in name and name.endswith("bias")]
        wanted = {name: sum(parts[part] for part in of if part in parts) for name, of in names.items()}
        wanted = {name: part for name, part in wanted.items() if isinstance(part, Tensor)}
        assert set(balance.parts) == set(wanted)
        for name, part in wanted.items():
            assert (balance.parts[name][image] - part).abs() <= 1e-10, name
            assert part != 0


@every_variant
def test_input_times_gradient_has_no_such_sheet(config: ViTConfig) -> None:
    """The teeth of T3: the same sum on the network as it is does not close."""
    network, images = double(config, 1)
    parts, logit = by_gradients(network, images, 1, hold=True)
    assert abs(sum(parts.values()) - logit) <= 1e-10 * abs(logit)
    parts, logit = by_gradients(network, images, 1, hold=False)
    assert abs(sum(parts.values()) - logit) > 0.05 * abs(logit)


# ---- what it asks of a network, and what it leaves


def test_the_twin_gives_the_bits_of_the_network() -> None:
    for config in KINDS:
        network, images = make_network(config), make_images(config, 3)
        assert torch.equal(detached(network)(images), network(images))
        assert torch.equal(balance_sheet(network, images).logit, network(images).amax(dim=1).detach())


def test_gelu_by_tanh_is_held_too() -> None:
    network, images = double(PLAIN, parts=replace(STANDARD, activation=lambda _: nn.GELU(approximate="tanh")))
    assert torch.equal(detached(network)(images), network(images))
    assert closes(balance_sheet(network, images, 1)) <= 1e-10


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (replace(STANDARD, norm=lambda c: nn.LocalResponseNorm(2)), ("LocalResponseNorm", "blocks.0.norm1")),
        (replace(STANDARD, activation=lambda _: nn.Tanh()), ("Tanh", "blocks.0.mlp.act")),
        (replace(STANDARD, head=lambda c: nn.Sequential(nn.Linear(c.width, 4), nn.Tanh())), ("Tanh", "head.1")),
    ],
)
def test_a_part_without_a_rule_is_named(parts: Parts, named: tuple[str, ...]) -> None:
    network = ViT(PLAIN, parts).eval()
    for explain in (conservative, balance_sheet):
        with must_refuse(*named):
            explain(network, make_images(PLAIN))


def test_the_sheet_leaves_the_network_and_the_images_as_they_are() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN).requires_grad_()
    kept = torch.full_like(network.head.weight, 0.25)
    network.head.weight.grad = kept
    network.head.bias.requires_grad_(False)
    bits = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.no_grad():
        balance = balance_sheet(network, images, 1)
    assert network.head.weight.grad is kept
    assert torch.equal(kept, torch.full_like(kept, 0.25))
    assert [name for name, parameter in network.named_parameters() if parameter.grad is not None] == ["head.weight"]
    assert not network.head.bias.requires_grad
    assert images.grad is None
    assert all(torch.equal(bits[name], tensor) for name, tensor in network.state_dict().items())
    for part in (balance.pixels, balance.gap, *balance.parts.values()):
        assert not part.requires_grad
        assert not part.is_inference()
    frozen = balance_sheet(network.requires_grad_(False), images, 1)
    assert torch.equal(frozen.pixels, balance.pixels)


@pytest.mark.parametrize("variant", SOME_VARIANTS)
def test_the_sheet_of_a_batch_is_that_of_each_image(variant: str) -> None:
    network, images = double(VARIANTS[variant], 3)
    targets = torch.tensor([0, 3, 1])
    together = balance_sheet(network, images, targets)
    assert torch.equal(together.target, targets)
    assert together.contrast is None
    for index in range(3):
        alone = balance_sheet(network, images[index : index + 1], int(targets[index]))
        assert list(alone.parts) == list(together.parts)
        for name, part in alone.parts.items():
            assert (part[0] - together.parts[name][index]).abs() <= 1e-12
    empty = balance_sheet(network, images[:0])
    assert empty.pixels.shape == (0, 3, 5)
    assert empty.gap.shape == (0,)


def test_a_network_in_training_mode_is_refused() -> None:
    with must_refuse("training mode"):
        balance_sheet(make_network(PLAIN).train(), make_images(PLAIN))
