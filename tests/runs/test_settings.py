"""Settings: equal after a way through YAML, strict with keys and kinds, and forgiving only where nothing is lost."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from tests.errors import must_raise
from vitrail.data.augmentation import Augmentation
from vitrail.errors import UsageError
from vitrail.nn import ViTConfig
from vitrail.runs.settings import (
    Execution,
    Optimization,
    Rare,
    Settings,
    read_given,
    read_yaml,
    settings_from_dict,
    settings_to_yaml,
)

NETWORK = ViTConfig(image_size=8, patch_size=4, classes=3, width=16, depth=1, heads=2)
shares = st.floats(0, 1)
rates = st.floats(0, 10, allow_subnormal=False)
words = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12)
ranges = st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 1.0))

optimizations = st.builds(
    Optimization,
    epochs=st.integers(1, 10**6),
    batch_size=st.integers(1, 10**6),
    learning_rate=rates,
    schedule=st.sampled_from(["cosine", "constant"]),
    warmup_epochs=rates,
    weight_decay=rates,
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    clip_grad_norm=rates,
    ema_decay=st.floats(0, 0.9999),
    accumulate=st.integers(1, 64),
)
augmentations = st.builds(
    Augmentation,
    crop_scale=ranges,
    crop_ratio=st.tuples(st.floats(0.1, 1), st.floats(1, 9)),
    shift=shares,
    rotate=st.floats(0, 180),
    zoom=st.tuples(st.floats(0.1, 1), st.floats(1, 9)),
    flip=shares,
    trivial_augment=st.booleans(),
    random_erasing=shares,
    mixup=st.floats(0, 5),
    cutmix=st.floats(0, 5),
    label_smoothing=shares,
    fill=st.integers(0, 255),
)
networks = st.builds(
    ViTConfig,
    image_size=st.sampled_from([(8, 8), (8, 12), (16, 4)]),
    patch_size=st.sampled_from([(4, 4), (2, 4)]),
    channels=st.sampled_from([1, 3]),
    classes=st.integers(2, 9),
    width=st.sampled_from([8, 16]),
    depth=st.integers(1, 3),
    heads=st.sampled_from([1, 2]),
    pooling=st.sampled_from(["class", "mean"]),
    positions=st.sampled_from(["learned", "sinusoidal", "sinusoidal-2d", "none"]),
    registers=st.integers(0, 3),
    qkv_bias=st.booleans(),
    dropout=st.floats(0, 0.9),
    norm_eps=st.sampled_from([1e-6, 1e-5, 1e-3]),
)
executions = st.builds(
    Execution,
    device=st.sampled_from(["cpu", "cuda:1"]),
    threads=st.integers(1, 99),
    precision=st.sampled_from(["fp32", "bf16"]),
    compile=st.booleans(),
    workers=st.integers(0, 99),
)
weights = st.dictionaries(words, st.floats(min_value=0, exclude_min=True, allow_infinity=False), max_size=3)
rare = st.builds(
    Rare,
    class_weights=st.none() | st.just("auto") | weights,
    balance=st.booleans(),
    logit_adjustment=st.floats(0, 9),
)
everything = st.builds(
    Settings,
    data=words,
    data_root=words,
    split_seed=st.integers(-(2**63), 2**63 - 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    recipe=words,
    decode_size=st.integers(16, 400),
    resize=st.sampled_from(["crop", "squash", "pad"]),
    network=networks,
    optimization=optimizations,
    augmentation=augmentations,
    rare=rare,
    execution=executions,
)


@settings(deadline=None, max_examples=30)
@given(everything)
def test_equal_after_a_way_through_yaml(made: Settings) -> None:
    text = settings_to_yaml(made)
    assert settings_from_dict(yaml.safe_load(text)) == made
    assert "!!" not in text, "plain YAML, no tags"


@pytest.mark.parametrize("written", ["1e-3", "1.0e-3", "0.001", "1E-03"])
def test_numbers_as_people_write_them(written: str, tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-3 for a word."""
    file = tmp_path / "c.yaml"
    file.write_text(
        f"data: digits\nnetwork: {{patch_size: 4, image_size: 8}}\noptimization: {{learning_rate: {written}}}\n"
    )
    assert settings_from_dict(read_yaml(file)).optimization.learning_rate == 0.001
    read_given(file)


def values() -> dict:
    return yaml.safe_load(settings_to_yaml(Settings(data="digits", network=NETWORK)))


def put(path: str, value: object) -> dict:
    content = values()
    *sections, key = path.split(".")
    inner = content
    for section in sections:
        inner = inner[section]
    inner[key] = value
    return content


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("sed", "seed"),
        ("optimization.learning_rat", "optimization.learning_rate"),
        ("network.hight", "network.depth"),
        ("augmentation.mixups", "augmentation.mixup"),
        ("execution.precison", "execution.precision"),
        ("epochs", "optimization.epochs"),
        ("rotate", "augmentation.rotate"),
        ("label_smoothing", "augmentation.label_smoothing"),
    ],
)
def test_an_unknown_key_at_any_depth_offers_the_nearest(path: str, hint: str) -> None:
    with must_raise(UsageError, f"'{path}'") as caught:
        settings_from_dict(put(path, 1), "here")
    assert str(caught.value.hint) == hint or path == "network.hight"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", "x"),
        ("seed", 1.5),
        ("seed", 2**70),
        ("network", 3),
        ("network.width", "wide"),
        ("network.pooling", "max"),
        ("optimization.epochs", 0),
        ("optimization.epochs", 2.5),
        ("optimization.learning_rate", "fast"),
        ("optimization.learning_rate", float("nan")),
        ("optimization.betas", [0.9]),
        ("optimization.betas", [0.9, 1.5]),
        ("optimization.schedule", "linear"),
        ("optimization.ema_decay", 1.0),
        ("augmentation.flip", 2),
        ("augmentation.crop_scale", 0.5),
        ("augmentation.trivial_augment", "perhaps"),
        ("augmentation.rotate", float("inf")),
        ("execution.threads", 0),
        ("execution.workers", -1),
        ("execution.precision", "fp16"),
        ("resize", "stretch"),
        ("decode_size", 3),
        ("data", None),
    ],
)
def test_a_wrong_value_names_its_key(path: str, value: object) -> None:
    content = put(path, value)
    with must_raise(UsageError, path.rpartition(".")[2]) as caught:
        settings_from_dict(content, "here")
    assert caught.value.problem.startswith("here: ")
    assert path.partition(".")[0] in caught.value.problem


def test_missing_keys_and_several_faults() -> None:
    content = values()
    del content["network"]
    with must_raise(UsageError, "network"):
        settings_from_dict(content)
    with must_raise(UsageError, "seed"):
        settings_from_dict(values() | {"seed": "x", "split_seed": "y"})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("seed: [1\n", ""),
        ("- 1\n", ""),
        ("", ""),
        ("optimization: {epochs: 0}\n", "epochs"),
        ("optimization: 7\n", "optimization"),
        ("network: [1]\n", "network"),
        ("network: {kind: ViT, width: wide}\n", "network.width"),
        ("network: {wide: 3}\n", "network.wide"),
        ("split_seed: soon\n", "split_seed"),
        ("data_root: 3\n", "data_root"),
        ("execution: {threads: many}\n", "execution.threads"),
    ],
)
def test_a_part_of_a_configuration_is_checked_as_well(text: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text(text)
    with must_raise(UsageError) as caught:
        read_given(file)
    assert str(file) in caught.value.problem
    assert key in caught.value.problem


def test_a_part_may_be_small(tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text("network: {width: 10}\nseed: 4\n")
    assert read_given(file) == {"network": {"width": 10}, "seed": 4}
    with must_raise(UsageError, r"none\.yaml"):
        read_given(tmp_path / "none.yaml")
    file.write_bytes(b"\xff\xfe\x00")
    with must_raise(UsageError, r"part\.yaml"):
        read_given(file)


@pytest.mark.parametrize("others", ["", "task: classify\n", "task: sequences\naugmentation: {}\n"])
def test_a_key_in_the_wrong_place_is_refused_with_its_own(others: str, tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text(f"{others}label_smoothing: 0.2\n")
    with must_raise(UsageError, "'label_smoothing'") as caught:
        read_given(file)
    assert str(caught.value.hint) == "augmentation.label_smoothing"


def test_settings_hold_plain_values_only() -> None:
    made = Settings(data="digits", network=NETWORK)
    assert replace(made, seed=1) != made
    with pytest.raises(AttributeError):
        made.seed = 3  # pyrefly: ignore[read-only]
    assert yaml.safe_load(settings_to_yaml(made)).keys() == asdict(made).keys()
