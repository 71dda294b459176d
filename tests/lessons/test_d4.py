"""The numbers of the lesson on D4: patches as data, one layer for twelve, the count by hand, the explanation."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak


def test_layers(d4: dict[str, Any]) -> None:
    assert (d4["shared_layers"], d4["shared_layers.right"]) == (1, 12)
    assert d4["shared_layers.parameters"] == 8_597_224
    assert d4["shared_layers.parameters.right"] == 86_530_024
    assert (d4["shared_layers.loaded"], d4["shared_layers.loaded.right"]) == (1, 4)


def test_the_count(d4: dict[str, Any]) -> None:
    document = (1536 * 2 + 2359296 + 4722432) * 12 + 1536 + 769000 + 196608
    assert d4["hand_count"] == document == 85_984_744
    assert d4["hand_count.right"] == 86_530_024
    assert (d4["hand_count.patch_map"], d4["hand_count.patch_map.right"]) == (256 * 768, 768 * 768)
    assert d4["hand_count.left_out.right"] == 198 * 768 == 152_064
    assert d4["hand_count.right"] - document == 512 * 768 + 198 * 768
    assert d4["hand_count.wrong_terms"] == 3
    assert d4["hand_count.all_biases.right"] == 86_567_656


def test_patches(d4: dict[str, Any]) -> None:
    assert d4["inverse.right"] is True
    assert d4["parameters.right"] == 147 * 24 + 24 + 24 * 18 + 4 * (48 * 2 + 4 * 24 * 42 + 3 * 42 + 24 + 25_112) + 298
    assert d4["transposed.same"] is True
    assert (d4["transposed"], d4["transposed.base"]) == (12, 182)
    assert (d4["mixed_strips.patches"], d4["mixed_strips"]) == (5, 1)
    assert d4["mixed_strips.right"] == "UsageError"


def test_what_was_left_out(d4: dict[str, Any]) -> None:
    assert d4["exercises"] == 4 * 25_112 / d4["parameters.right"]
    assert d4["exercises.right"] < 1e-6


def test_training(d4: dict[str, Any], mnist_root: Path) -> None:
    if d4["data"] == "mnist":
        assert d4["unshuffled"] < 0.4
        assert min(d4["unshuffled.right"], d4["unshuffled.file_order"]) > 0.75
        assert min(d4["never_evaluated.seen"], d4["never_evaluated.seen.right"]) > 0.85
        assert d4["never_evaluated"] < 0.25
        assert d4["never_evaluated.right"] > 0.5


def test_the_explanation_points_at_what_matters(d4: dict[str, Any], mnist_root: Path) -> None:
    if d4["data"] == "mnist":
        assert d4["explained.accuracy.right"] > 0.7
        assert d4["explained.heat_on_ink.right"] > d4["explained.ink_area"] + 0.1
        assert d4["transposed.heat_on_ink"] < d4["explained.heat_on_ink.right"]
        assert d4["explained.hottest.right"] < d4["explained.by_lot"] - 0.1
        assert d4["explained.by_lot"] < d4["explained.coldest"]
        assert d4["transposed.accuracy"] < d4["explained.accuracy.right"] - 0.2
