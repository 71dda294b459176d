"""The numbers of the lesson on D2: the Transformer, the lab's ViT, vit-pytorch and distillation."""

import math
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak


def near(value: float, tolerance: float = 1e-4) -> Any:
    return pytest.approx(value, abs=tolerance)


def floor(outcomes: int) -> float:
    """The least cross-entropy of a softmax of a softmax."""
    return math.log(1 + (outcomes - 1) / math.e)


def test_the_transformer(d2: dict[str, Any]) -> None:
    encoder = 4 * (512 * 512 + 512) + 512 * 2048 + 2048 + 2048 * 512 + 512 + 2 * 2 * 512
    decoder = encoder + 4 * (512 * 512 + 512) + 2 * 512
    assert d2["transformer.parameters"] == 6 * (encoder + decoder)
    assert (d2["one_frequency"], d2["one_frequency.right"]) == (1, 256)
    assert d2["one_frequency.nearest"] < 2e-3
    assert d2["one_frequency.nearest.right"] > 1
    assert (d2["in_place"], d2["in_place.right"]) == (near(1.0), 0.0)
    assert (d2["in_place.second_call"], d2["in_place.second_call.right"]) == (near(1.0), 0.0)
    assert d2["activation_ignored"] == 0.0
    assert d2["activation_ignored.right"] > 0.05
    assert d2["softmax_over_width"] == near(floor(512))
    assert d2["softmax_over_width.right"] == near(0.0)
    assert (d2["softmax_over_width.words"], d2["softmax_over_width.words.right"]) == (512, 1200)
    assert d2["heads_do_not_divide"] == d2["heads_do_not_divide.free"] == 510
    assert d2["heads_do_not_divide.right"].startswith("UsageError")


def test_a_decoder_without_a_mask_learns_to_copy(d2: dict[str, Any]) -> None:
    assert d2["no_mask"] > 0.1
    assert d2["no_mask.right"] == 0.0
    assert d2["no_mask.loss"] < 0.2  # in a quarter of the steps
    assert d2["no_mask.sorted"] < 0.2
    assert d2["no_mask.sorted.right"] > 0.9
    assert d2["generate.right"] >= 2


def test_the_lab(d2: dict[str, Any]) -> None:
    assert (d2["listed_heads.trained"], d2["listed_heads"], d2["listed_heads.norms"]) == (4990, 660, 4000)
    assert d2["listed_heads.share"] == near(4990 / 5650)
    assert d2["listed_heads.trained.right"] == 340 + 20 + 4 * (20 * 20 + 20) + 3300 + 3 * 40 + 210
    assert d2["listed_heads.norms.right"] == 3 * 40
    assert d2["listed_heads.moved"] == 0.0
    assert d2["listed_heads.moved.right"] > 0.05
    assert d2["listed_heads.reloaded"] > 0.1
    assert d2["listed_heads.reloaded.right"] == 0.0
    straddling = sum(16 * patch // 28 != (16 * patch + 15) // 28 for patch in range(49))
    assert d2["reshaped_patches"] == straddling == 21
    assert d2["reshaped_patches.right"] == 0
    assert (d2["reshaped_patches.apart"], d2["reshaped_patches.apart.right"]) == (27, 3)
    assert d2["joint_norm"] > 0.01
    assert d2["joint_norm.right"] == 0.0
    assert d2["joint_norm.larger"] == "RuntimeError"
    assert d2["joint_norm.larger.right"] == "(1, 10)"
    assert (d2["attention_twice"], d2["attention_twice.right"]) == (2, 1)
    assert d2["attention_twice.harmless"] < 1e-5
    assert d2["mlp_without_middle"] == 0.0
    assert 0.3 < d2["mlp_without_middle.right"] < 0.7
    assert (d2["mlp_without_middle.numbers"], d2["mlp_without_middle.numbers.right"]) == (420, 3300)
    assert (d2["double_softmax"], d2["double_softmax.right"]) == (near(floor(10)), near(0.0))
    assert d2["divided_loss"] == near(floor(10) / 16)
    assert d2["divided_loss.sgd"] == near(16, 1e-2)
    assert d2["divided_loss.harmless"] == near(1, 1e-2)
    assert d2["graph_kept"] == pytest.approx(5 * d2["graph_kept.one"], rel=1e-3)
    assert d2["graph_kept.one"] > 1
    assert d2["graph_kept.right"] == 0
    assert d2["table_rebuilt.harmless"] < 1e-6


def test_the_headline_is_beaten_in_seconds(d2: dict[str, Any], mnist_root: Path) -> None:
    if d2["data"] == "mnist":
        assert d2["headline.right"] > d2["headline"] == 0.9145
        assert d2["lab.accuracy.plain_norms"] < d2["lab.accuracy"] < d2["lab.accuracy.right"]


def test_the_library(d2: dict[str, Any]) -> None:
    assert (d2["library.parameters.right"], d2["library.parameters_today.right"]) == (54_622_184, 54_630_376)
    assert (d2["heads_of_64"], d2["heads_of_64.right"]) == (512, 1024)
    assert d2["heads_of_64.numbers"] == 4 * 1024 * 512 + 1024
    assert d2["heads_of_64.numbers.right"] == 4 * 1024 * 1024 + 1024
    assert d2["heads_of_64.student"] == 42_039_272


def test_distillation(d2: dict[str, Any], mnist_root: Path) -> None:
    assert (d2["teacher_trains"], d2["teacher_trains.right"]) == (159, 0)
    assert d2["teacher_trains.neighbours"] > 0.1
    assert d2["teacher_trains.neighbours.right"] < 1e-4
    assert d2["teacher_trains.after_eval"] is True
    assert d2["head_left_behind.numbers"] == 2 * 32 + 32 * 10 + 10  # token and its position, and the head
    assert (d2["no_eval"] > 0.01, d2["no_eval.right"]) == (True, 0.0)
    assert (d2["three_students"], d2["three_students.renamed"], d2["three_students.right"]) == (0, 1, 3)
    assert math.isfinite(d2["call_shape.right"])
    assert d2["call_shape.drift.right"] == 0
    if d2["data"] == "mnist":
        assert d2["head_left_behind"] < 0.2
        assert min(d2["head_left_behind.right"], d2["head_left_behind.half"], d2["head_left_behind.half.right"]) > 0.85
