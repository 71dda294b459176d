"""The check of types and shapes under test: beartype, in a context of jaxtyping for the sizes of the axes.

jaxtyping's import hook puts `jaxtyped` above each function and class of the package. This one checks as much in a
sixth of the time, which was a fifth of the suite's. jaxtyping binds the arguments of each call and checks them twice,
once for a message that says where the fault lies; here beartype, whose message says it too, checks them once. And a
function that another defines each time it runs stays as it is, since reading it takes milliseconds: it is checked by
what it returns to that function, and by what that function returns. A function that names no axes needs no context.
"""

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import beartype as checked  # what pyproject.toml names
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

__all__ = ["checked", "outermost"]

CONTEXT = jaxtyping.jaxtyped("context")  # holds nothing itself: each `with` has axes of its own
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
    if not any(map(_names_axes, resolved.__annotations__.values())):
        return typed

    def in_context(*positional: Any, **named: Any) -> Any:
        with CONTEXT:
            return typed(*positional, **named)

    return in_context


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
