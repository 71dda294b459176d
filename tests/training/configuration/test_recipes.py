"""Recipes: each one builds, trains, and says what it is for; the choice follows the set, its size and its images."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.errors import must_raise
from tests.training.lab import EXECUTION, ResidentLoader, cross_entropy, image_set, start, train_loop
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import UsageError
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.cost import flops
from vitrail.runs.settings import settings_from_dict
from vitrail.training.configuration.resolve import FINE_TUNE, NOT_MEASURED, RECIPES, announce, choose

IMAGES = [name for name, recipe in RECIPES.items() if recipe.kind == "ViT" and name != FINE_TUNE]  # it has no network
MOST_FLOPS = 2e8


def config(name: str) -> ViTConfig:
    network = {key: value for key, value in RECIPES[name].network.items() if key != "kind"}
    return ViTConfig(**{**network, "channels": 1, "classes": 4})


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_is_a_valid_configuration(name: str) -> None:
    recipe = RECIPES[name]
    filled = {"Transformer": {"source_vocab_size": 9, "target_vocab_size": 9}, "ImageToSequence": {"vocab_size": 9}}
    made = settings_from_dict(
        {
            "data": "digits",
            "recipe": name,
            "decode_size": recipe.decode_size,
            "network": {**recipe.network, **filled.get(recipe.kind, {})},
            "optimization": asdict(recipe.optimization),
            "augmentation": asdict(recipe.augmentation),
        }
    )
    assert made.optimization == recipe.optimization
    assert made.augmentation == recipe.augmentation
    assert recipe.help
    assert "\n" not in recipe.help
    assert recipe.optimization.warmup_epochs < recipe.optimization.epochs


@pytest.mark.parametrize("name", IMAGES)
def test_each_recipe_trains_two_steps(name: str) -> None:
    """As it is, but with batches of four images, and with two blocks where the network is large."""
    recipe, network = RECIPES[name], config(name)
    if flops(network) > MOST_FLOPS:
        network = replace(network, depth=2)
    side = recipe.decode_size or recipe.image_size
    pixels = torch.randint(0, 256, (8, 1, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    shape = Preprocessing(network.image, channels=1, mean=(0.5,), std=(0.5,))
    data = image_set(ResidentLoader(pixels), np.arange(8) % 4, shape, recipe.augmentation, classes=4)
    choices = replace(recipe.optimization, batch_size=4, epochs=1, warmup_epochs=0.0)
    torch.manual_seed(0)
    state = start(ViT(network), choices)
    before = state.network.head.weight.clone()
    events = list(train_loop(state, data, cross_entropy, choices, EXECUTION))
    assert [type(event).__name__ for event in events] == ["StepDone", "StepDone", "EpochDone"]
    assert not torch.equal(before, state.network.head.weight)


def test_the_documents_first_network() -> None:
    """D0: 28 x 28 images, a 7 x 7 grid of 4 x 4 patches, 2 blocks of width 8, Adam at a constant 0.005."""
    network, choices = config("d0-mnist"), RECIPES["d0-mnist"].optimization
    assert (network.grid, network.patch, network.depth, network.width) == ((7, 7), (4, 4), 2, 8)
    assert (choices.schedule, choices.learning_rate, choices.epochs, choices.batch_size) == ("constant", 0.005, 5, 128)
    assert (choices.weight_decay, choices.clip_grad_norm, choices.ema_decay) == (0, 0, 0)


def test_the_lab_of_the_second_document() -> None:
    """D2b: one block of width 20, 2 heads, 49 squares of 4 x 4; Adam at a constant 0.01, batch 16, 5 epochs."""
    network, choices = config("d2-lab"), RECIPES["d2-lab"].optimization
    assert (network.grid, network.patch, network.depth, network.width) == ((7, 7), (4, 4), 1, 20)
    assert (network.heads, network.head_width, network.mlp_dim) == (2, 10, 80)
    assert (choices.schedule, choices.learning_rate, choices.epochs, choices.batch_size) == ("constant", 0.01, 5, 16)
    assert (choices.weight_decay, choices.clip_grad_norm, choices.warmup_epochs) == (0, 0, 0)


def test_the_network_of_the_fourth_document() -> None:
    """D4: 16 patches of 147 numbers, 4 layers of width 24, 6 heads of 7, an MLP of 512; 10 epochs of Adam."""
    network, choices = replace(config("d4-mnist-m"), channels=3), RECIPES["d4-mnist-m"].optimization
    assert (network.grid, network.patch[0] * network.patch[1] * network.channels) == ((4, 4), 147)
    assert (network.depth, network.width, network.heads, network.head_dim) == (4, 24, 6, 7)
    assert (network.mlp_dim, network.class_token, network.pooling) == (512, True, "class")
    assert (choices.schedule, choices.epochs, choices.weight_decay, choices.ema_decay) == ("constant", 10, 0, 0)


@pytest.mark.parametrize(
    ("data", "count", "side", "expected"),
    [
        ("digits", 1258, 8, "digits"),
        ("mnist", 54_000, 28, "mnist"),
        ("fashion-mnist", 54_000, 28, "mnist"),
        ("mnist-m", 53_001, 32, "mnist-m"),
        ("some/digits", 100, 200, "few-photos"),
        ("cifar", 50_000, 32, "small-images"),
        ("photos", 60, 64, "few-photos"),
        ("photos", 5_000, 300, "few-photos"),
        ("photos", 5_001, 300, "photos"),
        ("photos", 100_000, 300, "photos"),
        ("photos", 1_281_167, 400, "many-photos"),
        ("tiny", 100, 12, "digits"),
    ],
)
def test_the_choice_follows_the_data(data: str, count: int, side: int, expected: str) -> None:
    recipe, name, reason = choose("auto", data, ["ViT"], count, side)
    assert (name, recipe) == (expected, RECIPES[expected])
    assert recipe.help in reason
    assert choose(expected, data, ["ViT"], count, side)[:2] == (recipe, name)


REPORT = "".join((Path(__file__).parents[3] / "benchmarks" / name).read_text() for name in ("README.md", "explain.md"))


def measured() -> set[str]:
    """The recipes of the commands in the reports of benchmarks."""
    commands = re.findall(r"vitrail train ([a-z][a-z0-9-]+)(?: --recipe ([a-z0-9-]+))?", REPORT)
    commands += [(data, "") for data in re.findall(r"benchmarks\.no_flags ([a-z0-9-]+)", REPORT)]
    commands += [(data, "") for data in re.findall(r"benchmarks\.([a-z0-9-]+)_networks", REPORT)]
    return {recipe or data for data, recipe in commands}


def test_every_recipe_that_was_measured_says_what_it_reached() -> None:
    reached = {name: recipe.reached for name, recipe in RECIPES.items()}
    assert measured() >= {"digits", "mnist", "d0-mnist", "d2-lab", "d4-mnist-m", "mnist-m", "sort-digits"}
    assert {name for name, said in reached.items() if said != NOT_MEASURED} == measured()
    for name in measured():
        figures = re.findall(r"\d+\.\d\d", reached[name]) or re.findall(r"\d[\d,]+", reached[name])
        assert figures
        assert all(figure in REPORT for figure in figures), name


def test_a_result_is_said_where_the_recipe_is_announced() -> None:
    for name, recipe in RECIPES.items():
        said = announce(name, "asked for", recipe.reached)
        assert name in said
        assert "asked for" in said
        assert said.endswith(recipe.reached)


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with must_raise(UsageError, "minst") as caught:
        choose("minst", "digits", ["ViT"], 1, 1)
    assert caught.value.hint.flags == {"recipe": "mnist"}
    with must_raise(UsageError) as caught:
        choose("qqqqqq", "digits", ["ViT"], 1, 1)
    assert all(name in str(caught.value.hint) for name in IMAGES)
    with must_raise(UsageError):
        choose("sort-digits", "digits", ["ViT"], 1, 1)  # there is one, for something else
