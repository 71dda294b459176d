"""The check of shapes under test, with two exceptions that take no check away and half of the suite's time.

jaxtyping decorates every function of the package, also those that a function defines each time it runs, and reading one
takes milliseconds: it would read two for every block of every forward pass. What is defined inside a function stays as
it is: it is checked by what it returns to that function, and by what that function returns. And where no axis is named
beartype checks alone: jaxtyping binds the arguments of each call and checks them twice, to compare axes.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import beartype as checked  # what pyproject.toml names

__all__ = ["checked", "outermost"]

_jaxtyped = jaxtyping.jaxtyped


def outermost(*, typechecker: Callable) -> Callable[[Any], Any]:
    """What jaxtyping's import hook puts above each function and class: `jaxtyped`, but for a function in a function."""

    def decorate(given: Any) -> Any:
        inside = inspect.isfunction(given) and "<locals>" in given.__qualname__
        return given if inside else _jaxtyped(given, typechecker=typechecker)

    return decorate


jaxtyping.jaxtyped = outermost
