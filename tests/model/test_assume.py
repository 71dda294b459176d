"""What the user states of pretrained weights: of the right kind, never blamed on the file, and used as stated."""

import math
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitrail
from tests.cli.command import USAGE, call, must_refuse, retyped
from tests.errors import must_raise
from tests.weights.families import ROWS, answer
from vitrail.errors import DataError, UsageError, VitrailError, as_word
from vitrail.nn import ViTConfig
from vitrail.weights.assume import parse_assume

pytestmark = pytest.mark.usefixtures("as_a_user")

STATISTICS = {"mean": (0.4, 0.5, 0.6), "std": 0.25}
WRONG: dict[str, list[Any]] = {
    "whole": ["six", -1, 1.5, True, math.nan, [2]],
    "number": ["x", -0.1, math.nan, math.inf, False, (1e-6,)],
    "size": ["wide", 0, -8, 8.5, (8,), (8, 8, 8), (8, "8"), True],
    "yes or no": ["yes", 1, 0.0, "None"],
    "word": ["foo", 3, True, ["gelu"]],
    "statistics": ["x", (0.5, 0.5), -0.1, (0.5, 0.5, math.nan), (), 127.5, True, ("a", "b", "c")],
}
KINDS = {bool: "yes or no", int: "whole", float: "number", str: "word", type(None): "number"}


def kind_of(name: str, default: object) -> str:
    return "size" if name.endswith("_size") else KINDS[type(default)]


KEYS = {field.name: kind_of(field.name, field.default) for field in fields(ViTConfig)}
KEYS |= {"mean": "statistics", "std": "statistics"}


@pytest.fixture(scope="module")
def rectangle(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A network for images of 64x96 in a file by itself, which says neither its heads nor that size."""
    folder = tmp_path_factory.mktemp("rectangle")
    module, files = ROWS["timm S/8, non-square image"].make(folder)
    (folder / "alone").mkdir()  # with no configuration beside it
    return module, shutil.copy(files / "model.safetensors", folder / "alone" / "bare.safetensors")


@pytest.mark.parametrize("name", KEYS)
def test_a_wrong_kind_is_refused_by_its_name(name: str, rectangle: tuple[nn.Module, Path]) -> None:
    module, file = rectangle
    for value in WRONG[KEYS[name]]:
        with must_raise(UsageError, rf"\b{name}\b") as caught:
            vitrail.load(file, assume={name: value})
        assert str(file) not in caught.value.problem
        with must_raise(UsageError, rf"\b{name}\b"):
            vitrail.convert(module, assume={name: value})
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            flag = [f"--{name}={value}"] if name in STATISTICS else ["--assume", f"{name}={value}"]
            must_refuse(call("models", file, *flag), USAGE, name)


def test_other_arguments_of_a_wrong_kind(rectangle: tuple[nn.Module, Path]) -> None:
    _, file = rectangle
    assume = {"heads": 3, "image_size": (64, 96), **STATISTICS}
    wrong = {
        "assume": [{"headz": 3}, {3: 3}, "heads=3"],
        "preprocessing": ["imagenet", 0.5],
        "classes": ["abc", [1, 2], 3],
    }
    wrong |= {"image_size": ["64x96", 0, (64,), 64.0, True], "channels": ["1", 2, True, 0]}
    for name, values in wrong.items():
        for value in values:
            with must_raise(UsageError, "channels" if name == "channels" else rf"\b{name}\b"):
                vitrail.load(file, **{"assume": assume, name: value})


def test_what_the_tensors_contradict_is_the_persons_fault_and_not_the_files(rectangle: tuple[nn.Module, Path]) -> None:
    _, file = rectangle
    assume = {"heads": 3, "image_size": (64, 96), **STATISTICS}
    assert vitrail.load(file, assume=assume)
    for name, value in {"heads": 5, "width": 64, "qkv_bias": False, "image_size": (64, 64), "patch_size": 4}.items():
        with must_raise(UsageError, rf"\b{name.partition('_')[0]}"):
            vitrail.load(file, assume={**assume, name: value})
    tensors = vitrail.load(file, assume=assume).network.state_dict()
    tensors["norm.weight"][0] = math.nan
    damaged = file.with_name("damaged.safetensors")
    save_file(tensors, damaged)
    with must_raise(DataError, "damaged"):
        vitrail.load(damaged, assume=assume)


def test_one_number_is_enough_for_grey_images(rectangle: tuple[nn.Module, Path], tmp_path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in rectangle[0].state_dict().items()}
    kernels = tensors["patch_embed.proj.weight"].sum(dim=1, keepdim=True)
    save_file({**tensors, "patch_embed.proj.weight": kernels}, tmp_path / "grey.safetensors")
    assume = {"heads": 3, "image_size": (64, 96), "mean": 0.4, "std": 0.25}
    reads = vitrail.load(tmp_path / "grey.safetensors", assume=assume).preprocessing
    assert (reads.channels, reads.mean, reads.std) == (1, (0.4,), (0.25,))


def test_positions_that_no_grid_has_are_not_guessed(rectangle: tuple[nn.Module, Path], tmp_path: Path) -> None:
    """A class token that is missing is named; no size is offered that makes another network of the same tensors."""
    module, _ = rectangle
    tensors: dict[str, torch.Tensor] = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}

    def offered(positions: int, without: str = "", **assume: Any) -> VitrailError:
        kept = {**tensors, "pos_embed": tensors["pos_embed"][:, :1].repeat(1, positions, 1)}
        kept.pop(without, None)
        save_file(kept, tmp_path / "cut.safetensors")
        with must_raise(VitrailError) as caught:
            vitrail.load(tmp_path / "cut.safetensors", assume={"heads": 3, **STATISTICS, **assume})
        return caught.value

    for assume in ({}, {"image_size": 64}):  # of 8 x 8 patches and a token that is not there
        error = offered(65, "cls_token", **assume)
        assert "cls_token" in error.problem
        assert isinstance(error, DataError)
        assert "image_size=" not in str(error.hint)
    for grid, sizes in {
        (8, 12): {"64x96", "96x64"},
        (7, 13): {"56x104", "104x56"},
        (3, 37): set(),
        (30, 40): set(),
    }.items():
        error = offered(1 + math.prod(grid))
        assert set(re.findall(r"\d+x\d+", error.problem)) == sizes
        assert as_word(error.hint.flags["assume"]["image_size"]) in (sizes or {"HEIGHTxWIDTH"})


@torch.no_grad()
def test_the_size_that_is_told_is_of_the_tensors_and_the_other_is_what_is_wanted(
    rectangle: tuple[nn.Module, Path],
) -> None:
    module, file = rectangle
    assume, images = {"heads": 3, "image_size": (64, 96), **STATISTICS}, torch.randn(2, 3, 64, 96)
    model = vitrail.load(file, assume=assume)
    assert model.preprocessing.size == (64, 96)
    assert (model.preprocessing.mean, model.preprocessing.std) == ((0.4, 0.5, 0.6), (0.25,) * 3)
    torch.testing.assert_close(model.network(images), answer(module, images), rtol=1e-5, atol=1e-5)
    row = ROWS["timm S/8, non-square image"]
    other = vitrail.load(file, assume=assume, image_size=row.other)
    images = torch.randn(2, 3, *row.other)
    torch.testing.assert_close(other.network(images), row.at(module, images), rtol=1e-4, atol=1e-4)
    with must_raise(UsageError) as caught:  # positions make no square, and the size that is wanted says nothing of them
        vitrail.load(file, assume={"heads": 3, **STATISTICS}, image_size=(64, 96))
    assert "assume={'image_size': " in str(caught.value.hint)


def test_hints_are_followed_until_it_opens(rectangle: tuple[nn.Module, Path]) -> None:
    """A person who types what is offered, and nothing else, gets there; a second time the size is another."""
    words: list[Any] | None = ["models", rectangle[1], "--json"]
    for _ in range(5):
        assert words is not None
        found = call(*words)
        if found.code == 0:
            break
        words = retyped(list(map(str, words)), found)
        words = words and [word.replace("heads=N", "heads=3") for word in words]  # which no hint can know
    assert found.code == 0, found.err
    assert words is not None
    assert '"image_size": [64, 96]' in found.out
    assert '"image_size": [48, 128]' in call(*words, "--image-size", "48x128").out


def test_statistics_may_be_assumed_like_all_else() -> None:
    assert parse_assume("mean=0.5,std=0.25,heads=6") == {"mean": 0.5, "std": 0.25, "heads": 6}
