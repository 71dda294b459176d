"""The check of types and shapes under test: beartype, in a context of jaxtyping for the sizes of the axes.

jaxtyping's import hook puts `jaxtyped` above each function and class of the package. This one checks as much in a
sixth of the time, which was a fifth of the suite's. jaxtyping binds the arguments of each call and checks them twice,
once for a message that says where the fault lies; here beartype, whose message says it too, checks them once. And a
function that another defines each time it runs stays as it is, since reading it takes milliseconds: it is checked by
what it returns to that function, and by what that function returns. A function that names no axes needs no context.
And what a function was given and returned is checked once for the same kinds, shapes and dtypes, where its annotations
ask for nothing else: the check of small arrays took a quarter of the time of a forward pass.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from types import FunctionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np
from beartype import beartype as checked  # what pyproject.toml names
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError
from torch import Tensor, nn

__all__ = ["checked", "outermost"]

CONTEXT = jaxtyping.jaxtyped("context")  # holds nothing itself: each `with` has axes of its own
ARRAYS = {Tensor, nn.Parameter, nn.Buffer, np.ndarray}
TYPED = "vitrail/arguments.py"  # `typed` turns an error of a type into one of two lines: what it calls is checked


def outermost(*, typechecker: Callable) -> Callable[[Any], Any]:
    """What the import hook puts above each function and class."""

    def decorate(given: Any) -> Any:
        if inspect.isclass(given):
            if dataclasses.is_dataclass(given) and "__init__" in vars(given):
                given.__init__ = decorate(given.__init__)
            return given
        if given.__code__.co_filename.endswith(TYPED) and "__wrapped__" in vars(given):
            given.__wrapped__ = _with_shapes(given.__wrapped__, typechecker)
            return given
        return given if "<locals>" in given.__qualname__ else _with_shapes(given, typechecker)

    return decorate


def _with_shapes(given: Callable, typechecker: Callable) -> Callable:
    """`given` with its types checked, and one size for each axis that is named; unless that is off (conftest.py)."""
    typed = cache(lambda: _checked(given, typechecker))  # when it is first called: most never are by one worker

    @wraps(given)
    def call(*positional: Any, **named: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return given(*positional, **named)
        try:
            return typed()(*positional, **named)
        except BeartypeCallHintViolation as wrong:
            raise TypeCheckError(str(wrong)) from None

    return call


def _checked(given: Callable, typechecker: Callable) -> Callable:
    """The same with its check, and with a context of its own where it names axes: most functions name none."""
    resolved = _resolved(given)
    typed = typechecker(resolved)
    hints = resolved.__annotations__.values()
    if not any(map(_names_axes, hints)):
        return typed

    def in_context(*positional: Any, **named: Any) -> Any:
        with CONTEXT:
            return typed(*positional, **named)

    return _once(given, resolved, in_context, typechecker) if all(map(_shows_in_kinds, hints)) else in_context


def _once(given: Callable, resolved: Callable, in_context: Callable, typechecker: Callable) -> Callable:
    """`in_context`, but what it would pass again is not checked again: arguments and result of kinds that it passed."""
    passed: dict[Any, set[Any]] = {}

    @wraps(resolved)
    def returned(*positional: Any, **named: Any) -> Any:
        return results.pop()

    results, again = list[Any](), typechecker(returned)

    def call(*positional: Any, **named: Any) -> Any:
        try:
            asked = (*map(_kind, positional), *named, *map(_kind, named.values()))
            known = passed.get(asked)
        except TypeError:  # of a tensor that another stands for, or sizes that are symbols
            return in_context(*positional, **named)
        found = in_context(*positional, **named) if known is None else given(*positional, **named)
        try:
            kinds = {_kind(found)}
            fresh = known is None or not kinds <= known
        except TypeError:
            fresh, kinds = True, set()
        if fresh:
            if known is not None:
                results.append(found)
                with CONTEXT:
                    again(*positional, **named)
            passed.setdefault(asked, set()).update(kinds)
        return found

    return call


def _kind(value: Any) -> Any:
    """All that annotations of arrays and classes ask of a value.

    Raises:
        TypeError: If it is an array of a class of its own.
    """
    kind = type(value)
    if kind in ARRAYS:
        return kind, value.shape, value.dtype
    if _holds(kind):
        return kind, *map(_kind, value)
    return kind


@cache
def _holds(kind: type) -> bool:
    """Whether values of a class are tuples, whose items may be arrays."""
    if issubclass(kind, Tensor | np.ndarray):
        raise TypeError(kind)
    return issubclass(kind, tuple)


def _shows_in_kinds(hint: Any) -> bool:
    """Whether `_kind` has all that an annotation asks for: neither items of lists, nor values, nor attributes."""
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return Ellipsis not in get_args(hint) and all(map(_shows_in_kinds, get_args(hint)))
    if hint is Any or get_origin(hint) is Callable:
        return True
    if not isinstance(hint, type) or get_origin(hint) is not None or getattr(hint, "_is_protocol", False):
        return False
    return not issubclass(hint, jaxtyping.AbstractArray) or "{" not in hint.dim_str


def _names_axes(hint: Any) -> bool:
    """Whether an annotation holds the shape of an array, at any depth."""
    if isinstance(hint, list | tuple):  # the arguments of a `Callable`
        return any(map(_names_axes, hint))
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_names_axes, get_args(hint)))


def _resolved(given: Callable) -> Callable:
    """A function without the annotations that name what is imported for the static check alone."""
    copy = FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__)
    copy.__kwdefaults__, copy.__qualname__, copy.__module__ = given.__kwdefaults__, given.__qualname__, given.__module__
    known: dict[str, Any] = {}
    for name, hint in given.__annotations__.items():
        copy.__annotations__ = {name: hint}
        with suppress(NameError):
            known |= get_type_hints(copy, include_extras=True)
    copy.__annotations__ = known
    return copy


jaxtyping.jaxtyped = outermost
