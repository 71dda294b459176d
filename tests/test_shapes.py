"""Shapes are checked under test, and functions inside functions are left alone."""

from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests.shapes import checked, outermost
from vitrail.errors import UsageError
from vitrail.nn import LayerScale


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(TypeCheckError):
        LayerScale(4, 1.0)(torch.zeros(4))


def test_a_function_inside_a_function_stays_as_it_is() -> None:
    def inner(number: int) -> int:
        return number

    class Inside:
        def method(self) -> None: ...

    assert jaxtyping.jaxtyped is outermost, "what jaxtyping's import hook asks for"
    assert outermost(typechecker=checked)(inner) is inner
    assert outermost(typechecker=checked)(Inside.method) is Inside.method
    assert outermost(typechecker=checked)(outer) is not outer
    with pytest.raises(TypeCheckError):
        outermost(typechecker=checked)(outer)(torch.zeros(2, 2))


def test_types_without_shapes_are_checked_too() -> None:
    with pytest.raises(UsageError):  # of the package, whose classes say it in two lines
        LayerScale("4", 1.0)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(TypeCheckError):
        outermost(typechecker=checked)(counted)(1)
    assert outermost(typechecker=checked)(counted)("ab") == 2


def test_an_axis_has_one_size_in_all_that_a_call_takes_and_gives() -> None:
    decorate = outermost(typechecker=checked)
    assert decorate(halved)(torch.zeros(4), torch.zeros(4)).shape == (4,)
    with pytest.raises(TypeCheckError):
        decorate(halved)(torch.zeros(4), torch.zeros(3))
    with pytest.raises(TypeCheckError):
        decorate(halved)(torch.zeros(6), torch.zeros(6))


def test_a_dataclass_is_checked_when_it_is_made() -> None:
    given = outermost(typechecker=checked)(dataclass(Given))
    assert given("a", 1).count == 1
    with pytest.raises(TypeCheckError):
        given("a", "1")


class Given:
    text: str
    count: int


def halved(one: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Gives another size than it says, of six."""
    return one[: 3 if len(one) == 6 else None] + other[: 3 if len(one) == 6 else None]


def counted(text: str) -> int:
    return len(text)


def outer(tensor: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return tensor
