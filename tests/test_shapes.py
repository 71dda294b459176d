"""Shapes are checked under test, and functions inside functions are left alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor, nn

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


def test_what_passed_once_is_checked_again_where_anything_differs() -> None:
    """Shapes and kinds of arrays, also inside tuples; and results of the same arguments."""
    run, results = outermost(typechecker=checked)(returned), list[object]()
    four = torch.zeros(4)
    for result in (four, torch.ones(4), nn.Parameter(four), (four, four), None):
        for _ in range(3):  # the first is checked, others are of kinds that passed
            assert run(four, lambda result=result: result) is result
    for wrong in (four[:3], four.int(), torch.zeros(4, 1), (four, four[:3]), (four,), "4", four.to_sparse):
        for _ in range(3):
            with pytest.raises(TypeCheckError):
                run(four, lambda wrong=wrong: results.append(wrong) or wrong)
    assert len(results) == 21, "each call runs once, whatever it returns"
    for wrong in (four.int(), four[None], 4, nn):
        with pytest.raises(TypeCheckError):
            run(wrong, lambda: four)
    assert run(four[:3], lambda: four[:3]).shape == (3,), "other sizes are other arguments"
    with pytest.raises(TypeCheckError):
        run(four[:3], lambda: four)
    with pytest.raises(TypeCheckError):
        run(four, 4)


def test_what_kinds_do_not_show_is_checked_each_time() -> None:
    decorate = outermost(typechecker=checked)
    listed, own = decorate(of_list), torch.zeros(4).as_subclass(Own)
    assert listed([torch.zeros(4)]).shape == (4,)
    with pytest.raises(TypeCheckError):
        listed([torch.zeros(4, 4)])
    run, four = decorate(returned), torch.zeros(4)
    for _ in range(2):
        assert run(four, lambda: own) is own, "a result of a class of its own"
        assert run(four, lambda: four) is not own
        with pytest.raises(TypeCheckError):
            run(four, lambda: own[:3])
    assert run(own, lambda: own) is own
    with pytest.raises(TypeCheckError):
        run(own, lambda: own[:3])


def test_a_dataclass_is_checked_when_it_is_made() -> None:
    given = outermost(typechecker=checked)(dataclass(Given))
    assert given("a", 1).count == 1
    with pytest.raises(TypeCheckError):
        given("a", "1")


class Own(Tensor):
    pass


def of_list(tensors: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    return tensors[0]


Floats = Float[Tensor, " n"]


def returned(tensor: Floats, make: Callable[[], object]) -> Floats | tuple[Floats, Floats] | None:
    result: Any = make()
    return result


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
