"""Torch's count of a network that runs on `meta` is the count by hand, row by row, and what the network holds."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from tests.explain.own_parts import CONFIG as OWN, PARTS
from tests.nn import cost_by_hand
from tests.nn.sequences import IMAGES, SMALL as TEXTS
from vitrail.nn import ImageToSequenceConfig, TransformerConfig, ViT, ViTConfig
from vitrail.nn.cost import LayerCost, flops, layers, parameters
from vitrail.nn.networks import NetworkConfig, build_network

SMALL = ViTConfig(image_size=(16, 24), patch_size=8, classes=5, width=24, depth=3, heads=3)
FORMS = {
    "B/16": ViTConfig.from_size("B/16"),
    "Ti/16, no classes": ViTConfig.from_size("Ti/16", classes=0, image_size=64),
    "small": SMALL,
    "distilled, registers": replace(SMALL, distillation_token=True, registers=3),
    "only patches, fixed positions": replace(SMALL, pooling="mean", class_token=False, positions="sinusoidal"),
    "no positions, one channel": replace(SMALL, positions="none", channels=1, patch_size=(4, 3)),
    "free sizes": replace(SMALL, head_dim=5, mlp_dim=7, qkv_bias=False, layer_scale=0.1),
    "no bias in the patch map": replace(SMALL, embed_bias=False),
    "no bias behind attention": replace(SMALL, out_bias=False, head_dim=5),
    "no bias in the MLP": replace(SMALL, mlp_bias=False, mlp_dim=7),
    "no bias in the heads": replace(SMALL, head_bias=False, distillation_token=True),
}


def must_be_the_count_by_hand(config: NetworkConfig) -> tuple[LayerCost, ...]:
    """And add up; these rows."""
    rows = layers(config)
    assert rows == cost_by_hand.layers(config)
    with torch.device("meta"):
        network = build_network(config)
    assert parameters(config) == sum(row.parameters for row in rows)
    assert parameters(config) == sum(parameter.numel() for parameter in network.parameters())
    assert flops(config) == sum(row.flops for row in rows)
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_every_row_is_the_one_by_hand(form: str):
    config = FORMS[form]
    rows = must_be_the_count_by_hand(config)
    with pytest.raises(AssertionError):  # the planted fault: one block too few
        assert rows == cost_by_hand.layers(replace(config, depth=config.depth - 1))


def test_parts_of_ones_own_are_counted():
    network = ViT(OWN, PARTS)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    rows = {row.name: row for row in layers(network)}
    assert sum(row.parameters for row in rows.values()) == parameters(network) > parameters(OWN)
    gate, patches, tokens = rows["blocks.1.mlp.gate"], 15, 17
    assert (gate.shape, gate.parameters, gate.flops) == ((tokens, 64), 16 * 64 + 64, 2 * tokens * 16 * 64)
    assert rows["blocks.1.attention"].flops == 4 * tokens * tokens * 16
    assert rows["norm_pre"].parameters == 16
    assert rows["pool.value"].flops == 2 * tokens * 16 * 16
    assert rows["patch_embed"].flops == 2 * patches * 32 * 16
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_one_norm_that_all_blocks_share_hides_no_flops():
    shared = nn.LayerNorm(OWN.width)
    of_each, of_all = (
        replace(PARTS, norm=norm) for norm in (lambda config: nn.LayerNorm(config.width), lambda _: shared)
    )
    assert flops(ViT(OWN, of_all)) == flops(ViT(OWN, of_each)) > 0


def test_b16_takes_35_gigaflops():
    assert flops(ViTConfig.from_size("B/16")) / 1e9 == pytest.approx(35.1, abs=0.05)


def test_rows_are_named_once_and_add_up():
    table = layers(SMALL)
    names = [layer.name for layer in table]
    assert len(set(names)) == len(names)
    assert sum(layer.parameters for layer in table) == parameters(SMALL)
    assert sum(name.startswith("blocks.1.") for name in names) == sum(name.startswith("blocks.2.") for name in names)


def terms(config: ViTConfig) -> dict[str, int]:
    """Parameters by the name of their layer; the blocks' layers together, all but their number taken off."""
    sums: Counter[str] = Counter()
    for layer in layers(config):
        sums[layer.name.split(".", 2)[2] if layer.name.startswith("blocks.") else layer.name] += layer.parameters
    return dict(sums)


def test_the_fourth_documents_count_term_by_term():
    """D4 adds up (1536*2 + 2359296 + 4722432) * 12 + 1536 + 769000 + 196608 for ViT-Base of 1000 classes.

    No bias in the patch map and in attention. Right are its layers, its last norm and its head. Wrong is the patch
    map, which is that of a one-channel image; forgotten are class token and positions; and what its code builds has
    one layer, used twelve times.
    """
    described = replace(ViTConfig.from_size("B/16"), embed_bias=False, qkv_bias=False, out_bias=False)
    right = terms(described)
    assert right["norm1"] + right["norm2"] == 1536 * 2 * 12
    assert right["attn.qkv"] + right["attn.proj"] == 2_359_296 * 12
    assert right["mlp.fc1"] + right["mlp.fc2"] == 4_722_432 * 12
    assert (right["norm"], right["head"]) == (1_536, 769_000)
    assert right["patch_embed"] == 589_824 == 3 * 196_608
    assert terms(replace(described, channels=1))["patch_embed"] == 196_608
    assert right["prefix tokens"] + right["positions"] == 152_064

    document = (1536 * 2 + 2359296 + 4722432) * 12 + 1536 + 769000 + 196608
    assert document == 85_984_744
    assert parameters(described) == 86_530_024 == document + 2 * 196_608 + 152_064
    with torch.device("meta"):
        built = ViT(described)
        shared = ViT(described)
    assert sum(parameter.numel() for parameter in built.parameters()) == 86_530_024
    shared.blocks = nn.ModuleList([shared.blocks[0]] * 12)  # the document's fault: a list, multiplied
    assert sum(parameter.numel() for parameter in shared.parameters()) == 8_597_224
    assert parameters(replace(described, depth=1)) == 8_597_224


sides = st.integers(1, 4)


@settings(deadline=None, max_examples=3)
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
    biases=st.tuples(*[st.booleans()] * 5),
    scale=st.sampled_from([0.0, 0.1]),
)
def test_any_configuration(
    grid, patch, channels, classes, heads, head_dim, mlp_dim, depth, tokens, positions, biases, scale
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
        embed_bias=biases[0],
        qkv_bias=biases[1],
        out_bias=biases[2],
        mlp_bias=biases[3],
        head_bias=biases[4],
        layer_scale=scale,
    )
    must_be_the_count_by_hand(config)


stacks = st.fixed_dictionaries(
    {
        "decoder_depth": st.integers(1, 3),
        "mlp_dim": st.integers(1, 9),
        "norm": st.sampled_from(["post", "pre"]),
        "max_length": st.integers(1, 6),
    }
)


@settings(deadline=None, max_examples=3)
@given(
    stack=stacks,
    encoder_depth=st.integers(1, 3),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 4),
    vocabularies=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    embeddings=st.sampled_from(["separate", "tied", "shared"]),
)
def test_any_transformer(stack, encoder_depth, heads, head_dim, vocabularies, embeddings) -> None:
    read, write = (vocabularies[0],) * 2 if embeddings == "shared" else vocabularies
    config = TransformerConfig(
        source_vocab_size=read,
        target_vocab_size=write,
        width=8,
        encoder_depth=encoder_depth,
        heads=heads,
        head_dim=head_dim,
        embeddings=embeddings,
        **stack,
    )
    must_be_the_count_by_hand(config)


@settings(deadline=None, max_examples=3)
@given(
    stack=stacks,
    grid=st.tuples(sides, sides),
    depth=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    registers=st.integers(0, 2),
    token=st.booleans(),
    vocabulary=st.integers(4, 9),
    embeddings=st.sampled_from(["separate", "tied"]),
)
def test_any_network_from_images_to_texts(stack, grid, depth, heads, registers, token, vocabulary, embeddings) -> None:
    encoder = ViTConfig(
        image_size=(grid[0] * 4, grid[1] * 4), patch_size=4, channels=1, classes=0, width=8, depth=depth,
        heads=heads, registers=registers, class_token=token, pooling="class" if token else "mean",
    )  # fmt: skip
    config = ImageToSequenceConfig(encoder=encoder, vocab_size=vocabulary, embeddings=embeddings, **stack)
    must_be_the_count_by_hand(config)


def test_ids_have_the_greatest_length() -> None:
    for config in (TEXTS, IMAGES):
        assert flops(config) > flops(replace(config, max_length=3))


@pytest.mark.parametrize("config", [TEXTS, IMAGES, replace(IMAGES, norm="post")])
def test_rows_of_networks_that_write_are_named_once_and_add_up(config) -> None:
    table = layers(config)
    names = [layer.name for layer in table]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} == {"encoder", "decoder"}
    assert sum(layer.parameters for layer in table) == parameters(config)
    fewer = replace(config, decoder_depth=config.decoder_depth - 1)  # the planted fault: one block too few
    assert parameters(fewer) < parameters(config)
    assert flops(fewer) < flops(config)
