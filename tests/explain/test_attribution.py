"""The value that an explanation is, and what a map tells of itself."""

import dataclasses

import pytest
import torch

from vitrail.explain.attribution import NO_SIGNAL, NOT_FINITE, Attribution, caveats


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
