"""The value that an explanation is, and what a map tells of itself."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.errors import UsageError
from vitrail.explain import rollout
from vitrail.explain.attribution import NO_SIGNAL, NOT_FINITE, Attribution, caveats
from vitrail.nn import ViT, ViTConfig


def test_a_attribution_cannot_be_changed() -> None:
    attribution = Attribution(torch.zeros(1, 2, 3), torch.tensor([0]), torch.zeros(1), "rollout", False, False, ((),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        attribution.method = "other"
    assert attribution == attribution
    assert attribution != dataclasses.replace(attribution)  # compared by identity: tensors have no single truth value


def test_caveats_are_per_image() -> None:
    values = torch.zeros(6, 2, 3)
    values[1] = 0.7  # constant
    values[2, 1, 1] = 1e-20  # tiny, and a signal: units are the method's own
    values[3, 0, 0] = torch.nan
    values[4, 0, 0] = torch.inf
    values[5, 0, 0] = -1.0
    assert caveats(values) == ((NO_SIGNAL,), (NO_SIGNAL,), (), (NOT_FINITE,), (NOT_FINITE,), ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_means_up_to_rounding(dtype: torch.dtype) -> None:
    step = torch.finfo(dtype).eps
    values = torch.full((2, 4, 5), 0.5, dtype=dtype)
    values[0, 0, 0] += 0.5 * 1000 * step
    values[1, 0, 0] += 0.5 * 1100 * step
    assert caveats(values) == ((NO_SIGNAL,), ())
    assert caveats(-values) == ((NO_SIGNAL,), ())


def test_one_patch_prefers_none() -> None:
    assert caveats(torch.tensor([[[0.3]]])) == ((NO_SIGNAL,),)


def test_a_map_is_drawn_over_the_pixels_that_the_network_read_and_over_no_others(tmp_path: Path) -> None:
    photo, seen = Image.new("RGB", (70, 40), "red"), Image.new("RGB", (48, 32), "red")
    photo.save(tmp_path / "photo.png")
    network = ViT(ViTConfig(image_size=(32, 48), patch_size=16, classes=3, width=8, depth=1, heads=1)).eval()
    made = rollout(network, torch.rand(2, 3, 32, 48))
    assert made.size == (32, 48)
    unknown = dataclasses.replace(made, size=None)[0]  # as the map of another tool
    for one, wrong in ((made[1], [photo, tmp_path / "photo.png", Image.new("L", (96, 64))]), (unknown, [photo])):
        assert one.overlay(seen).size == (480, 320)
        one.save(tmp_path / "map.png", np.asarray(seen))
        for image in wrong:
            for draw in (one.overlay, partial(one.save, tmp_path / "wrong.png")):
                with pytest.raises(UsageError):
                    draw(image)
    assert not (tmp_path / "wrong.png").exists()
    made.save(tmp_path / "map.json")
    assert json.loads((tmp_path / "map.json").read_text())["size"] == [32, 48]


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_map_or_no_size_is_refused_with_a_way_that_works() -> None:
    facts = (torch.tensor([0]), torch.zeros(1), "rollout", False, False, ((),))
    values = np.arange(6.0).reshape(1, 2, 3)
    with pytest.raises(UsageError) as refused:
        Attribution(values, *facts)
    made = Attribution(eval(str(refused.value.hint).partition(";")[0], {"torch": torch, "values": values}), *facts)
    assert made.upsampled((4, 6)).shape == made.upsampled(tuple(np.array([4, 6]))).shape == (1, 4, 6)
    assert made.upsampled(made.upsampled((4, 6)).shape[1:], "nearest").shape == (1, 4, 6)
    for size, mode in (((0, 3), "bilinear"), ("a", "bilinear"), ((4.0, 6.0), "nearest"), ((4, 6), "cubic")):
        with pytest.raises(UsageError):
            made.upsampled(size, mode)
