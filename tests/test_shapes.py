"""Shapes are checked under test, and functions inside functions are left alone."""

import pytest
import torch
from jaxtyping import TypeCheckError

from tests.shapes import checked
from vitrail.nn import LayerScale


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(TypeCheckError):
        LayerScale(4, 1.0)(torch.zeros(4))


def test_a_function_inside_a_function_stays_as_it_is() -> None:
    def inner(number: int) -> int:
        return number

    assert checked(inner) is inner
    assert checked(test_a_wrong_shape_is_refused) is not test_a_wrong_shape_is_refused
