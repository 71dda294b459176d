"""What an explanation refuses: the class of the error, that it names what was given, and that its hint works."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.errors import must_raise
from vitrail.errors import UsageError


@contextmanager
def must_refuse(*given: object) -> Iterator[pytest.ExceptionInfo[UsageError]]:
    """The block must raise a usage error of two lines, whose first holds `given`: numbers and names, no phrases."""
    with must_raise(UsageError) as caught:
        yield caught  # pyrefly: ignore[invalid-yield]
    for each in given:
        assert str(each) in caught.value.problem


def options_of(hint: str) -> dict[str, object]:
    """The options that a hint writes as Python: "steps=50", "radius=0.02, samples=10", "layer=-1 for the last"."""
    for end in range(len(hint), 0, -1):
        try:
            call = ast.parse(f"f({hint[:end]})", mode="eval").body
        except SyntaxError:
            continue
        if isinstance(call, ast.Call) and call.keywords and not call.args:
            return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    raise AssertionError(f"no option is named in {hint!r}")


def must_refuse_and_say_what_works(call: Callable[..., object], *given: object, **options: object) -> None:
    """`call(**options)` is refused, and with the options of the hint in their place it is not."""
    with must_refuse(*given) as caught:
        call(**options)
    call(**{**options, **options_of(str(caught.value.hint))})
