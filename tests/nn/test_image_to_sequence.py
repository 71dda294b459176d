"""A ViT reads and the decoder writes: the memory is the ViT's patches, and the decoder is the Transformer's."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor

from tests.nn.reference import explicit_weights, some_images
from tests.nn.sequences import IMAGES, PADDING, by_torch_decoder, image_to_sequence, targets
from vitrail.errors import UsageError
from vitrail.nn import Cache, ImageToSequence, ImageToSequenceConfig, Parts, Record, ViTConfig, features

ENCODERS = {
    "class token and registers": IMAGES.encoder,
    "patches alone": replace(IMAGES.encoder, class_token=False, registers=0, pooling="mean"),
    "a distillation token": replace(IMAGES.encoder, distillation_token=True),
    "2-d sinusoids": replace(IMAGES.encoder, positions="sinusoidal-2d", layer_scale=0.5),
}


def images(rows: int = 3, seed: int = 1) -> Tensor:
    return some_images(rows, 1, 16, 24, seed=seed)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_memory_is_the_patches_of_the_vit(encoder: str):
    network = image_to_sequence(replace(IMAGES, encoder=ENCODERS[encoder]))
    memory = network.encode(images())
    assert memory.mask is None
    assert torch.equal(memory.tokens, features(network.encoder, images()).patches.flatten(1, 2))
    assert memory.tokens.shape == (3, 6, 16)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("embeddings", ["separate", "tied"])
def test_logits_and_gradients_equal_torchs_decoder_on_the_patches(norm: str, embeddings: str):
    network = image_to_sequence(replace(IMAGES, norm=norm, embeddings=embeddings, activation="relu"))
    target = targets()
    target[1, 3:] = PADDING
    written = (target != PADDING)[..., None]
    memory = network.encode(images()).tokens
    parameters = [*network.decoder.parameters(), network.encoder.patch_embed.proj.weight]
    ours = network(images(), target) * written
    theirs = by_torch_decoder(network, target, memory, None) * written
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    direction = torch.linspace(-1, 1, ours.numel()).view(ours.shape)
    gradients = [torch.autograd.grad(logits, parameters, direction, retain_graph=True) for logits in (ours, theirs)]
    for by_us, by_them in zip(*gradients, strict=True):
        assert by_us.abs().max() > 1e-4
        torch.testing.assert_close(by_us, by_them, rtol=1e-4, atol=1e-5 * by_them.abs().max().item())
    with torch.no_grad():  # the planted fault
        half = network.decoder.blocks[1].cross_attn.qkv.weight
        half.copy_(half.roll(16, dims=0))
    assert (network(images(), target) * written - theirs).abs().max() > 1e-2


def test_the_image_matters_and_its_rows_do_not_mix():
    network, target = image_to_sequence(), targets()
    logits = network(images(), target)
    assert (logits - network(images() * 0, target)).abs().max() > 1e-2
    for row in range(3):
        alone = network(images()[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(alone[0], logits[row], rtol=1e-5, atol=2e-6)


def test_what_comes_later_is_not_seen_and_padding_neither():
    network, target = image_to_sequence(), targets(3, 6)
    logits = network(images(), target)
    for place in range(1, 6):
        changed = target.clone()
        changed[:, place] = 11 - target[:, place].clamp(min=3)
        assert torch.equal(network(images(), changed)[:, :place], logits[:, :place])
        assert not torch.equal(network(images(), changed)[:, place:], logits[:, place:])
    longer = torch.nn.functional.pad(target, (0, 3), value=PADDING)
    torch.testing.assert_close(network(images(), longer)[:, :6], logits, rtol=1e-5, atol=2e-6)


def test_cached_decoding_equals_full_decoding():
    network, target, cache = image_to_sequence(), targets(3, 8), Cache()
    memory = network.encode(images())
    steps = [network.decode(target[:, place : place + 1], memory, cache=cache) for place in range(8)]
    torch.testing.assert_close(torch.cat(steps, dim=1), network(images(), target), rtol=1e-5, atol=2e-6)


def test_the_record_tells_where_the_decoder_looked():
    network, target, record = image_to_sequence(), targets(), Record()
    kept = images(), target.clone()
    logits = network(kept[0], target, record)
    assert torch.equal(logits, network(images(), target))
    places = ["encoder.blocks.0", "encoder.blocks.1"]
    places += [f"decoder.blocks.{index}.{part}" for index in range(2) for part in ("self", "cross")]
    assert record.attentions() == tuple(places)
    assert {"encoder.tokens", "encoder.blocks.1.output", "memory", "decoder.tokens", "logits"} <= set(record)
    weights = record["decoder.blocks.1.cross.attention"]
    assert weights.shape == (3, 4, 5, 6)  # one weight for each of 2 x 3 patches
    at = "decoder.blocks.1.cross"
    expected = explicit_weights(record[f"{at}.queries"], record[f"{at}.keys"]).float()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    keys = network.decoder.blocks[1].cross_attn.project(record["memory"], record["memory"])[1]
    torch.testing.assert_close(record[f"{at}.keys"], keys)
    assert torch.equal(kept[0], images())
    assert torch.equal(target, kept[1])


def test_another_size_of_image_is_read_by_resized_positions():
    network = image_to_sequence()
    assert network.encode(some_images(2, 1, 32, 24)).tokens.shape == (2, 12, 16)
    assert network(some_images(2, 1, 32, 24), targets(2)).shape == (2, 5, 11)


def test_parts_come_in_through_factories():
    parts = Parts(norm=lambda config: torch.nn.RMSNorm(config.width))
    network = ImageToSequence(IMAGES, parts)
    assert network.encoder.parts is network.parts is parts
    assert isinstance(network.encoder.norm, torch.nn.RMSNorm)
    assert isinstance(network.decoder.norm, torch.nn.LayerNorm)


def test_every_parameter_but_none_other_learns():
    network = image_to_sequence()
    network(images(), targets()).sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


def test_a_configuration_survives_json_and_refuses_unknown_keys():
    assert ImageToSequenceConfig.from_dict(json.loads(json.dumps(asdict(IMAGES)))) == IMAGES
    assert (IMAGES.mlp_dim, IMAGES.mlp_width) == (None, 64)
    with pytest.raises(UsageError):
        ImageToSequenceConfig.from_dict({**asdict(IMAGES), "vocabular": 3})
    with pytest.raises(UsageError):
        ImageToSequenceConfig.from_dict({**asdict(IMAGES), "encoder": {"heds": 3}})
    with pytest.raises(UsageError):
        ImageToSequenceConfig.from_dict({"vocab_size": 9})


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": replace(IMAGES.encoder, classes=10)},
        {"encoder": None},
        {"encoder": ViTConfig(classes=0, width=15, heads=1)},
        {"vocab_size": 2},
        {"vocab_size": "11"},
        {"eos_id": 1},
        {"decoder_depth": 0},
        {"mlp_dim": -1},
        {"dropout": 1.5},
        {"norm": "pr"},
        {"embeddings": "shared"},
        {"max_length": 0},
        {"norm_eps": float("inf")},
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict):
    with pytest.raises(UsageError):
        replace(IMAGES, **changes)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((2, 3, 16, 24), [[1], [1]]),
        ((2, 1, 16, 25), [[1], [1]]),
        ((2, 1, 16, 24), [[1]]),
        ((2, 1, 16, 24), [[], []]),
        ((2, 1, 16, 24), [[11], [1]]),
        ((2, 1, 16, 24), [[1] * 13] * 2),
    ],
)
def test_what_cannot_be_read_is_refused(shape: tuple, target: list):
    with pytest.raises(UsageError):
        image_to_sequence()(some_images(*shape), torch.tensor(target).long())
