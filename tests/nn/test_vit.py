"""The whole network: its parameter counts, its steps, its initialisation, and parts made once per place."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import vitrail.nn
from tests.nn.reference import explicit_vit, redraw, some_images
from tests.test_architecture import imports, lines_of_code
from vitrail.errors import UsageError
from vitrail.nn import (
    SIZES,
    STANDARD,
    Attention,
    Parts,
    PatchEmbedding,
    Record,
    Rotary,
    StochasticDepth,
    ViT,
    ViTConfig,
    features,
    resize_network,
)
from vitrail.nn.blocks import default
from vitrail.nn.vit import VIT_PARTS

SMALL = ViTConfig(image_size=(16, 24), patch_size=8, classes=5, width=24, depth=3, heads=3)


def built(config: ViTConfig, parts: Parts = STANDARD) -> ViT:
    network = ViT(config, parts)
    redraw(network)
    return network.eval()


def counted(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("size", "count", "timms"),
    [
        ("Ti/16", 5_717_416, "vit_tiny_patch16_224"),
        ("S/16", 22_050_664, "vit_small_patch16_224"),
        ("B/16", 86_567_656, "vit_base_patch16_224"),
        ("L/16", 304_326_632, "vit_large_patch16_224"),
        pytest.param("H/14", 632_045_800, "vit_huge_patch14_224", marks=pytest.mark.soak),
        pytest.param("g/14", 1_012_611_432, "vit_giant_patch14_224", marks=pytest.mark.soak),
    ],
)
def test_parameters_are_as_many_as_published_and_as_timms(size: str, count: int, timms: str):
    with torch.device("meta"):
        ours, theirs = ViT(ViTConfig.from_size(size)), timm.create_model(timms, num_classes=1000)
    assert counted(ours) == count
    shapes = {name: parameter.shape for name, parameter in theirs.named_parameters()}
    assert {name: parameter.shape for name, parameter in ours.named_parameters()} == shapes


def test_the_table_is_tested_whole():
    assert list(SIZES) == ["Ti", "S", "B", "L", "H", "g"]


def test_the_form_of_the_first_document_has_2394_parameters():
    """D0: 7 x 7 patches of 4 x 4, width 8, 2 blocks of 2 heads; fixed sinusoids leave 400 fewer."""
    form = ViTConfig(image_size=28, patch_size=4, channels=1, classes=10, width=8, depth=2, heads=2)
    patches, token, positions, norm, head = 16 * 8 + 8, 8, 50 * 8, 2 * 8, 8 * 10 + 10
    block = 2 * norm + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8)
    assert counted(ViT(form)) == patches + token + positions + 2 * block + norm + head == 2_394
    assert counted(ViT(replace(form, positions="sinusoidal"))) == 1_994
    assert ViT(form)(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


FORMS = {
    "class token": SMALL,
    "distilled, registers": replace(SMALL, distillation_token=True, registers=3),
    "mean of patches": replace(SMALL, pooling="mean", registers=2),
    "only patches": replace(SMALL, pooling="mean", class_token=False),
    "distillation without a class token": replace(SMALL, pooling="mean", class_token=False, distillation_token=True),
    "no positions": replace(SMALL, positions="none"),
    "plane, relu, LayerScale": replace(SMALL, positions="sinusoidal-2d", activation="relu", layer_scale=0.1),
    "free head_dim, no qkv bias": replace(SMALL, head_dim=7, heads=2, qkv_bias=False, mlp_dim=9),
    "rectangular patches, one channel": replace(SMALL, patch_size=(4, 3), channels=1),
    "a large epsilon": replace(SMALL, norm_eps=0.5),
    "no bias in the patch map": replace(SMALL, embed_bias=False),
    "no bias in attention": replace(SMALL, qkv_bias=False, out_bias=False),
    "no bias in the MLP": replace(SMALL, mlp_bias=False),
    "no bias in the heads": replace(SMALL, head_bias=False, distillation_token=True),
    "no bias but in the norms, free head_dim": replace(
        SMALL, embed_bias=False, qkv_bias=False, out_bias=False, mlp_bias=False, head_bias=False, heads=6, head_dim=7
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_equal_the_explicit_network(form: str):
    network = built(FORMS[form])
    images = some_images(3, network.config.channels, 16, 24)
    expected = explicit_vit(network, images).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(network(images).double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(network.double()(images.double()), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_the_network_is_its_three_steps_and_features_are_named(form: str):
    network = built(FORMS[form])
    config = network.config
    images, record = some_images(2, config.channels, 16, 24), Record()
    tokens = network.embed(images)
    for block in network.blocks:
        tokens = block(tokens)
    assert torch.equal(tokens, network.encode(images))
    assert torch.equal(tokens, network.run_blocks(network.run_blocks(network.embed(images), stop=2), first=2))
    logits = network.readout(tokens)
    assert torch.equal(logits, network(images, record))
    described, normed = features(network, images), network.norm(tokens)
    assert described.patches.shape == (2, *config.grid, config.width)
    assert torch.equal(described.patches.flatten(1, 2), normed[:, config.prefix :])
    assert torch.equal(described.registers, normed[:, config.prefix - config.registers : config.prefix])
    assert torch.equal(described.pooled, record["pooled"])
    if config.class_token:
        assert described.class_token is not None
        assert torch.equal(described.class_token, normed[:, 0])
    else:
        assert described.class_token is None
    if not config.distillation_token:
        torch.testing.assert_close(network.head(described.pooled), logits)


def test_patches_of_the_features_stand_where_they_stand_in_the_image():
    """A network without blocks of any effect: each patch feature depends on its own patch alone."""
    network = built(replace(SMALL, positions="none", patch_size=(4, 8)))
    for block in network.blocks:
        nn.init.zeros_(block.attn.proj.weight)
    images = some_images(1, 3, 16, 24)
    changed = images.clone()
    changed[:, :, 8:12, 16:24] += 1
    differs = (features(network, images).patches != features(network, changed).patches).any(dim=-1)[0]
    assert differs.nonzero().tolist() == [[2, 2]]


def test_tokens_are_class_distillation_registers_then_patches():
    network = built(replace(SMALL, distillation_token=True, registers=2, positions="none"))
    images = some_images(2, 3, 16, 24)
    expected = [network.cls_token, network.dist_token, network.reg_token]
    expected = [token.expand(2, -1, -1) for token in expected if token is not None]
    assert torch.equal(network.embed(images), torch.cat([*expected, network.patch_embed(images)], dim=1))


def test_the_mean_leaves_out_every_prefix_token():
    network = built(replace(SMALL, pooling="mean", registers=2, distillation_token=True))
    tokens = some_images(1, 2, 4 + 6, 24)[0]
    pooled = network.pool(tokens, 4)
    torch.testing.assert_close(pooled, tokens[:, 4:].sum(dim=1) / 6)
    changed = torch.cat([tokens[:, :4] + 100, tokens[:, 4:]], dim=1)
    assert torch.equal(network.pool(changed, 4), pooled)
    with pytest.raises(AssertionError):  # the planted fault: the mean over all tokens
        torch.testing.assert_close(tokens.mean(dim=1), pooled)


def test_a_network_without_a_head_gives_what_the_head_would_read():
    network = built(replace(SMALL, classes=0))
    record = Record()
    images = some_images(2, 3, 16, 24)
    assert torch.equal(network(images, record), record["pooled"])
    assert network(images).shape == (2, 24)


@pytest.mark.parametrize("shape", [(2, 1, 16, 24), (2, 4, 16, 24), (2, 3, 17, 24), (2, 3, 16, 4), (2, 3, 0, 24)])
def test_images_that_do_not_fit_are_an_error_with_a_remedy(shape: tuple[int, ...]):
    with pytest.raises(UsageError):
        ViT(SMALL)(torch.zeros(shape))


@pytest.fixture(scope="module")
def fresh() -> ViT:
    """A fresh network, wide enough that chance does not show."""
    torch.manual_seed(0)
    config = ViTConfig(image_size=112, patch_size=16, classes=10, width=256, depth=2, heads=3, head_dim=40)
    return ViT(replace(config, registers=64, distillation_token=True, mlp_dim=700))


def must_be_xavier(weight: Tensor, fan_in: int, fan_out: int) -> None:
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert weight.abs().max().item() <= bound
    assert weight.abs().max().item() > 0.99 * bound
    assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.03)
    assert abs(weight.mean().item()) < 0.02 * bound


def test_queries_keys_and_values_are_each_a_map_of_their_own(fresh: ViT):
    for block in fresh.blocks:
        for part in block.attn.qkv.weight.split(120):
            must_be_xavier(part, 256, 120)
        must_be_xavier(block.attn.proj.weight, 120, 256)
        must_be_xavier(block.mlp.fc1.weight, 256, 700)
        must_be_xavier(block.mlp.fc2.weight, 700, 256)


def test_the_statistics_find_one_map_drawn_for_all_three():
    weight = nn.init.xavier_uniform_(torch.empty(360, 256), generator=torch.Generator().manual_seed(0))
    with pytest.raises(AssertionError):
        must_be_xavier(weight[:120], 256, 120)


def test_the_patch_map_keeps_the_variance_of_a_patch(fresh: ViT):
    weight = fresh.patch_embed.proj.weight
    fan_in = 3 * 16 * 16
    assert weight.var().item() * fan_in == pytest.approx(1, rel=0.02)
    assert weight.abs().max().item() <= 2.0001 / 0.87962566 * fan_in**-0.5  # a normal, cut at two of its deviations
    assert fresh.patch_embed.proj.bias.eq(0).all()


def test_positions_and_registers_have_deviation_0_02(fresh: ViT):
    for parameter in (fresh.pos_embed, fresh.reg_token):
        assert parameter is not None
        assert parameter.std().item() == pytest.approx(0.02, rel=0.03)
        assert abs(parameter.mean().item()) < 0.001


def test_tokens_biases_and_heads_start_at_zero_and_norms_at_one(fresh: ViT):
    assert fresh.head_dist is not None
    zeros = [fresh.cls_token, fresh.dist_token, *fresh.head.parameters(), *fresh.head_dist.parameters()]
    for block in fresh.blocks:
        zeros += [block.attn.qkv.bias, block.attn.proj.bias, block.norm1.bias, block.norm2.bias]
        assert block.norm1.weight.eq(1).all()
        for bias in (block.mlp.fc1.bias, block.mlp.fc2.bias):
            assert bias.std().item() == pytest.approx(1e-6, rel=0.2)
    assert all(zero is not None and zero.eq(0).all() for zero in zeros)
    assert fresh.norm.weight.eq(1).all()


def test_every_class_is_as_probable_in_a_fresh_network(fresh: ViT):
    assert fresh.eval()(some_images(2, 3, 112, 112)).eq(0).all()


def test_tokens_of_a_fresh_network_have_the_size_of_their_images(fresh: ViT):
    tokens = fresh.patch_embed(some_images(4, 3, 112, 112))
    assert tokens.std().item() == pytest.approx(1, rel=0.05)


def test_the_same_seed_gives_the_same_network():
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        networks.append(ViT(SMALL).state_dict())
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])
    assert not torch.equal(networks[0]["blocks.0.attn.qkv.weight"], networks[2]["blocks.0.attn.qkv.weight"])


def test_layer_scale_starts_where_it_is_told():
    network = ViT(replace(SMALL, layer_scale=1e-5))
    assert all(block.ls1.gamma.eq(1e-5).all() and block.ls2.gamma.eq(1e-5).all() for block in network.blocks)


def must_be_made_once(parts: Parts) -> None:
    """Every part of a network is an object of its own, made where it stands."""
    made: dict[str, list[object]] = {slot.name: [] for slot in dataclasses.fields(Parts)}

    def watched(name: str):
        def make(config: ViTConfig, *more: object) -> object:
            part = getattr(parts, name) if getattr(parts, name) is not default else getattr(VIT_PARTS, name)
            made[name].append(part(config, *more))
            return made[name][-1]

        return make

    config = replace(SMALL, distillation_token=True, rotary=Rotary())
    network = ViT(config, Parts(**{name: watched(name) for name in made}))
    depth = config.depth
    once = dict.fromkeys(("embedding", "positions", "rotary", "embed_norm", "last_norm", "pooling"), 1)
    each = dict.fromkeys(("attention", "mlp", "activation"), depth)
    assert {name: len(parts) for name, parts in made.items()} == {
        **once,
        **each,
        "norm": 2 * depth,
        "scale": 2 * depth,
        "head": 2,
    }
    inside = {id(part) for part in (*network.modules(), network.pos_embed)}
    for name, parts_made in made.items():
        assert len({id(part) for part in parts_made}) == len(parts_made), name
        assert {id(part) for part in parts_made} <= inside, name


def test_parts_are_made_once_per_place():
    must_be_made_once(STANDARD)
    must_be_made_once(Parts(norm=lambda config: nn.RMSNorm(config.width), activation=lambda config: nn.SiLU()))


def test_a_shared_part_is_found():
    shared = nn.LayerNorm(SMALL.width)
    with pytest.raises(AssertionError, match="norm"):
        must_be_made_once(Parts(norm=lambda config: shared))


def test_foreign_parts_are_used_and_keep_their_own_initialisation():
    def head(config: ViTConfig) -> nn.Module:
        return nn.Sequential(nn.Linear(config.width, 11), nn.Tanh(), nn.Linear(11, config.classes))

    network = ViT(SMALL, Parts(norm=lambda config: nn.RMSNorm(config.width), head=head))
    assert not any(isinstance(module, nn.LayerNorm) for module in network.modules())
    assert isinstance(network.head, nn.Sequential)
    assert all(parameter.abs().sum() > 0 for parameter in network.head.parameters())
    logits = network(some_images(2, 3, 16, 24))
    logits.sum().backward()
    assert logits.shape == (2, 5)
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_foreign_patch_map_and_attention_fit():
    parts = Parts(
        embedding=lambda config: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), PatchEmbedding(4, config.width, config.patch)
        ),
        attention=lambda config: Attention(config.width, heads=1, head_dim=5, out_bias=False),
    )
    assert built(SMALL, parts)(some_images(2, 3, 16, 24)).std() > 0.01


def test_stochastic_depth_grows_linearly_to_the_last_block():
    for depth, expected in ((5, [0.0, 0.1, 0.2, 0.3, 0.4]), (1, [0.0])):
        network = ViT(replace(SMALL, depth=depth, stochastic_depth=0.4))
        rates = [module.probability for module in network.modules() if isinstance(module, StochasticDepth)]
        assert rates == pytest.approx(expected)


@pytest.mark.parametrize("noise", ["dropout", "attention_dropout", "stochastic_depth"])
def test_noise_acts_only_in_training(noise: str):
    network = built(replace(SMALL, **{noise: 0.5}))
    calm = built(SMALL)
    images = some_images(4, 3, 16, 24)
    assert torch.equal(network(images), calm(images))
    network.train()
    torch.manual_seed(0)
    first, second = network(images), network(images)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(network(images), first)


def test_dropout_stands_behind_the_embedding_each_attention_and_in_each_mlp():
    network = ViT(replace(SMALL, dropout=0.3, attention_dropout=0.2))
    places = [name for name, module in network.named_modules() if isinstance(module, nn.Dropout) and module.p == 0.3]
    assert places == ["drop", *(f"blocks.{i}.{part}.drop" for i in range(3) for part in ("attn", "mlp"))]
    assert [module.attention_dropout for module in network.modules() if isinstance(module, Attention)] == [0.2] * 3


@pytest.mark.parametrize(("dropout", "embedding", "found"), [(0.3, None, 0.3), (0.3, 0.0, 0.0), (0.0, 0.2, 0.2)])
def test_the_embedding_has_a_dropout_of_its_own_when_asked(dropout: float, embedding: float | None, found: float):
    network = ViT(replace(SMALL, dropout=dropout, embedding_dropout=embedding))
    assert {name: module.p for name, module in network.named_modules() if isinstance(module, nn.Dropout)} == {
        "drop": found,
        **{f"blocks.{i}.{part}.drop": dropout for i in range(3) for part in ("attn", "mlp")},
    }


SWITCHES = {
    "embed_bias": {"patch_embed.proj.bias"},
    "qkv_bias": {f"blocks.{i}.attn.qkv.bias" for i in range(3)},
    "out_bias": {f"blocks.{i}.attn.proj.bias" for i in range(3)},
    "mlp_bias": {f"blocks.{i}.mlp.{part}.bias" for i in range(3) for part in ("fc1", "fc2")},
    "head_bias": {"head.bias", "head_dist.bias"},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_takes_away_its_bias_and_nothing_else(switch: str):
    config = replace(SMALL, distillation_token=True)
    full, less = ViT(config), ViT(replace(config, **{switch: False}))
    assert set(full.state_dict()) - set(less.state_dict()) == SWITCHES[switch]
    assert set(less.state_dict()) <= set(full.state_dict())


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "sinusoidal-2d", "none"])
def test_resized_once_or_in_every_run_is_the_same(positions):
    network = built(replace(SMALL, positions=positions, registers=1))
    other = resize_network(network, (40, 8))
    images = some_images(2, 3, 40, 8)
    assert other.config == replace(network.config, image_size=(40, 8))
    assert torch.equal(other(images), network(images))
    assert network.config.image == (16, 24)


def test_resized_copies_dtype_mode_and_parts_and_shares_nothing():
    network = built(SMALL, Parts(norm=lambda config: nn.RMSNorm(config.width))).double()
    network.norm.requires_grad_(False)
    state = torch.get_rng_state()
    other = resize_network(network, 32)
    assert torch.equal(torch.get_rng_state(), state)
    assert {parameter.dtype for parameter in other.parameters()} == {torch.float64}
    assert isinstance(other.norm, nn.RMSNorm)
    assert not other.norm.weight.requires_grad
    assert not other.training
    addresses = {parameter.data_ptr() for parameter in network.parameters()}
    assert addresses.isdisjoint(parameter.data_ptr() for parameter in other.parameters())
    assert other.pos_embed is not None
    assert other.pos_embed.shape == (1, 1 + 16, 24)


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-2d"])
def test_fixed_positions_are_no_parameters_but_saved(positions):
    """They are saved under timm's name, and so that a network resized to another grid keeps what it was resized to."""
    network = built(replace(SMALL, positions=positions))
    assert "pos_embed" in network.state_dict()
    assert "pos_embed" not in dict(network.named_parameters())
    again = ViT(network.config).eval()
    again.load_state_dict(network.state_dict())
    images = some_images(2, 3, 16, 24)
    assert torch.equal(again(images), network(images))
    other = resize_network(network, 32)
    loaded = ViT(other.config).eval()
    loaded.load_state_dict(other.state_dict())
    assert torch.equal(loaded(some_images(1, 3, 32, 32)), network(some_images(1, 3, 32, 32)))


READ = [
    Path(vitrail.nn.__file__).parent / f"{name}.py" for name in ("attention", "embedding", "blocks", "config", "vit")
]


def test_the_vit_reads_in_470_lines_of_5_files():
    """With its configuration, and with nothing of the library besides the record, rotations and its errors."""
    assert sum(lines_of_code(path.read_text()) for path in READ) <= 470
    known = {f"vitrail.nn.{path.stem}" for path in READ} | {"vitrail.errors", "vitrail.nn.record", "vitrail.nn.rotary"}
    for path in READ:
        names = set(imports(path.read_text(), f"vitrail.nn.{path.stem}"))
        assert {name for name in names if name.startswith("vitrail")} <= known
