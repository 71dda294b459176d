"""The check of shapes under test, with one exception that takes no check away and half of the suite's time.

jaxtyping decorates every function of the package, also those that a function defines each time it runs, and beartype
takes milliseconds to read one: it would read two for every block of every forward pass. What is defined inside a
function is checked by what it returns to that function, and by what that function returns.
"""

from collections.abc import Callable

from beartype import beartype


def checked(function: Callable) -> Callable:
    """beartype, but for functions that are defined inside another."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
