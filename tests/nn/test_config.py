"""Every field of a configuration is valid or a UsageError, sizes are rows of the table, and dictionaries come back."""

import dataclasses
import json

import pytest

from vitrail.errors import UsageError
from vitrail.nn import SIZES, ImageToSequenceConfig, TransformerConfig, ViT, ViTConfig

WHOLE = [0, -1, 2.0, "3", None, True]
SHARE = [-0.1, 1.0, 2, float("nan"), "0.1", None, True]
INVALID: dict[str, list] = {
    "image_size": [0, -16, 17, 224.0, "224", None, (224,), (224, 224, 3), (224, 0), (224, 100), (16, 2.0)],
    "patch_size": [0, -1, 15, 1.5, "16", None, (16,), (16, 16, 3), (0, 16), (16, 225)],
    "channels": WHOLE,
    "classes": [-1, 10.0, "10", None, True],
    "width": [*WHOLE, 770],
    "depth": WHOLE,
    "heads": [*WHOLE, 7],
    "head_dim": [0, -1, 64.0, "64"],
    "mlp_dim": [0, -4, 0.5, "x"],
    "class_token": [False, "yes", 1, None],  # False: pooling reads a class token
    "distillation_token": ["no", 0, None],
    "registers": [-1, 1.5, "4", None, True],
    "pooling": ["max", "token", "", None, 1],
    "positions": ["learnt", "2d", None, 0],
    "position_resize": ["tim", "bicubic", None, 0],
    "activation": ["geluu", "swish", None, 0],
    "embed_bias": ["true", 1, None],
    "qkv_bias": ["true", 1, None],
    "out_bias": ["false", 0, None],
    "mlp_bias": ["no", 0, None],
    "head_bias": ["off", 1, None],
    "rotary": ["dinov3", 100.0, True, {"bases": 100.0}],
    "layer_scale": [-1e-5, float("inf"), float("nan"), "1", None],
    "dropout": SHARE,
    "embedding_dropout": [value for value in SHARE if value is not None],  # None stands for `dropout`
    "attention_dropout": SHARE,
    "stochastic_depth": SHARE,
    "norm_eps": [-1e-6, float("inf"), float("nan"), "1e-6", None],
}


def test_every_field_is_tried():
    assert set(INVALID) == {field.name for field in dataclasses.fields(ViTConfig)}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(("name", "value"), [(name, value) for name in INVALID for value in INVALID[name]])
def test_an_invalid_field_is_an_error_of_two_lines(name: str, value: object):
    with pytest.raises(UsageError) as raised:
        ViTConfig(**{name: value})
    _, hint = str(raised.value).split("\n")
    assert hint.startswith("try: ")
    assert len(hint) > len("try: ")
    assert "None" not in hint


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("pooling", "means", "pooling='mean'"),
        ("positions", "sinusoid", "positions='sinusoidal'"),
        ("activation", "gelus", "activation='gelu'"),
    ],
)
def test_a_misspelt_choice_gets_the_nearest(name: str, value: str, nearest: str):
    with pytest.raises(UsageError) as raised:
        ViTConfig(**{name: value})
    assert str(raised.value.hint) == nearest


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "sinusoidal", "width": 9, "heads": 3},
        {"positions": "sinusoidal-2d", "width": 18, "heads": 3},
        {"class_token": False, "pooling": "class"},
        {"width": 10, "heads": 4},
        {"width": 2, "heads": 5},
    ],
)
def test_fields_that_do_not_go_together_are_an_error(fields: dict):
    with pytest.raises(UsageError) as raised:
        ViTConfig(**fields)
    assert "head_dim=None" not in str(raised.value.hint)


@pytest.mark.parametrize(
    "fields",
    [
        {"image_size": (32, 64), "patch_size": (4, 8)},
        {"channels": 1, "classes": 0},
        {"width": 10, "heads": 4, "head_dim": 3},
        {"class_token": False, "pooling": "mean", "positions": "none"},
        {"dropout": 0.99, "layer_scale": 1.0, "norm_eps": 0.0},
        {"registers": 3, "distillation_token": True, "depth": 1},
        {"embed_bias": False, "out_bias": False, "mlp_bias": False, "head_bias": False, "qkv_bias": False},
        {"embedding_dropout": 0.5},
    ],
)
def test_what_is_accepted_can_be_built(fields: dict):
    small = {"image_size": 32, "patch_size": 16, "width": 12, "depth": 1, "heads": 2, "classes": 3}
    network = ViT(ViTConfig(**{**small, **fields}))
    assert network.config == ViTConfig(**{**small, **fields})


def test_what_follows_from_the_rest_is_filled_in():
    config = ViTConfig(image_size=224, patch_size=(16, 8), registers=4, distillation_token=True)
    assert (config.image_size, config.patch_size) == ((224, 224), (16, 8)) == (config.image, config.patch)
    assert (config.head_width, config.mlp_width, config.grid, config.prefix) == (64, 3072, (14, 28), 6)
    assert config == ViTConfig(image_size=(224, 224), patch_size=(16, 8), registers=4, distillation_token=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 5  # pyrefly: ignore[read-only]
    assert hash(config) == hash(dataclasses.replace(config))


@pytest.mark.parametrize("letter", SIZES)
def test_a_size_is_a_row_of_the_table(letter: str):
    config = ViTConfig.from_size(f"{letter}/14", classes=10, image_size=(28, 56), channels=1)
    assert (config.width, config.depth, config.heads, config.mlp_dim) == SIZES[letter]
    assert (config.image, config.patch, config.grid) == ((28, 56), (14, 14), (2, 4))
    assert (config.classes, config.channels) == (10, 1)
    assert ViTConfig.from_size(f"{letter}/16x8", image_size=32).patch == (16, 8)


@pytest.mark.parametrize(
    ("size", "offered"),
    [
        ("b/16", "B/16"),
        ("TI/8", "Ti/8"),
        ("Tiny/16", "Ti/16"),
        ("G/14", "g/14"),
        ("XL/16", "L/16"),
        ("B", "B/16"),
        ("B16", "B/16"),
        ("B/", "B/16"),
        ("B/-16", "B/16"),
        ("B/16x", "B/16"),
        ("B/16x16x16", "B/16"),
        ("B/x", "B/16"),
        ("B/1.5", "B/16"),
        ("", "S/16"),
        ("/16", "S/16"),
    ],
)
def test_an_unknown_size_is_an_error_with_the_nearest(size: str, offered: str):
    with pytest.raises(UsageError) as raised:
        ViTConfig.from_size(size)
    assert str(raised.value.hint) == offered
    ViTConfig.from_size(offered, image_size=112)


def test_a_patch_of_no_pixels_is_an_error():
    with pytest.raises(UsageError):
        ViTConfig.from_size("B/0")


def test_a_configuration_comes_back_from_a_dictionary_and_from_json():
    for config in (
        ViTConfig(),
        dataclasses.replace(ViTConfig.from_size("S/14x7", image_size=(28, 56)), registers=4, pooling="mean"),
        ViTConfig(width=10, heads=3, head_dim=5, layer_scale=1e-5, positions="none", stochastic_depth=0.1),
        ViTConfig(
            embed_bias=False, out_bias=False, mlp_bias=False, head_bias=False, embedding_dropout=0.0, dropout=0.2
        ),
    ):
        values = dataclasses.asdict(config)
        assert ViTConfig.from_dict(values) == config
        assert ViTConfig.from_dict(json.loads(json.dumps(values))) == config


def test_what_was_left_open_follows_the_copy():
    wider = dataclasses.replace(ViTConfig(width=24, heads=3, classes=0), width=48, heads=6)
    assert wider == ViTConfig(width=48, heads=6, classes=0)
    assert (wider.head_width, wider.mlp_width) == (8, 192)
    read = TransformerConfig(source_vocab_size=9, target_vocab_size=9, width=24, heads=3, mlp_dim=7)
    assert dataclasses.replace(read, width=48).head_width == 16
    writer = ImageToSequenceConfig(encoder=ViTConfig(width=24, heads=3, classes=0), vocab_size=9)
    assert dataclasses.replace(writer, encoder=wider).mlp_width == 192
    with pytest.raises(UsageError):
        dataclasses.replace(wider, width=50)


def test_what_was_given_stays_in_the_copy():
    given = ViTConfig(width=24, heads=3, head_dim=5, mlp_dim=7)
    copy = dataclasses.replace(given, width=50)
    assert (copy.head_dim, copy.mlp_dim, copy.head_width, copy.mlp_width) == (5, 7, 5, 7)


def test_a_configuration_that_was_written_with_filled_numbers_is_the_same_network():
    small = ViTConfig(image_size=8, patch_size=4, width=24, heads=3, depth=1, classes=2)
    before = {**dataclasses.asdict(small), "head_dim": 8, "mlp_dim": 96}
    read = ViTConfig.from_dict(json.loads(json.dumps(before)))
    shapes = [{name: t.shape for name, t in ViT(config).state_dict().items()} for config in (read, small)]
    assert shapes[0] == shapes[1]
    assert (read.head_width, read.mlp_width) == (small.head_width, small.mlp_width) == (8, 96)


def test_a_configuration_written_before_the_switches_is_the_same_network():
    values = dataclasses.asdict(ViTConfig(dropout=0.3))
    for later in ("embed_bias", "out_bias", "mlp_bias", "head_bias", "embedding_dropout"):
        del values[later]
    assert ViTConfig.from_dict(values) == ViTConfig(dropout=0.3)


@pytest.mark.parametrize(("key", "offered"), [("widht", "width"), ("num_heads", "heads"), ("zzz", "width")])
def test_an_unknown_key_is_an_error_with_the_nearest(key: str, offered: str):
    with pytest.raises(UsageError) as raised:
        ViTConfig.from_dict({**dataclasses.asdict(ViTConfig()), key: 1})
    assert offered in str(raised.value.hint)


@pytest.mark.usefixtures("as_a_user")
def test_a_wrong_value_in_a_dictionary_is_an_error():
    with pytest.raises(UsageError):
        ViTConfig.from_dict({"width": "192"})
