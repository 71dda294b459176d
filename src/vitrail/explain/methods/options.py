"""The options of a method: kind and default from its signature, help from its row; and how typed words are read.

    options_of(METHODS["rise"])["masks"]                         # Option: int, default 2000, "how many random masks"
    read_options(METHODS["rise"], {"masks": "500", "seed": 3})   # {"masks": 500, "seed": 3}

A word is read by the annotation of its parameter:

    int, float, str, bool                  500, 0.5, blocks.3.norm1, true or false
    None, Literal["head", "mean"]          none, and the words themselves
    Sequence[float], tuple[int, int]       0.5,0.4,0.3
    a union                                the first of its kinds that the word is of, none before others; tensors are
                                           for Python
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vitrail.errors import COMMAND_LINE, UsageError, nearest
from vitrail.explain.methods.listed import typed
from vitrail.explain.methods.method import Method

_TOLD = re.compile(r"(\w+)=('[^']*'|[^\s,;]+)")  # an option with its value, in a hint in Python
Form = tuple[str, Callable[[str], Any]]  # what is wanted, in words, and what reads it


@dataclass(frozen=True)
class Option:
    """What a method may be told.

    Attributes:
        name: Of the parameter.
        kind: Its annotation.
        default: What it is when nothing is told.
        help: What it does, in one line.
    """

    name: str
    kind: Any
    default: Any
    help: str

    def read(self, word: str) -> Any:
        """The value of a word.

        Raises:
            UsageError: The word is of none of the option's kinds.
        """
        forms = _forms(self.kind)
        for _, reads in forms:
            try:
                return reads(word)
            except (ValueError, KeyError):
                continue
        wanted = " or ".join(dict.fromkeys(said for said, _ in forms)) or "given in Python"
        raise UsageError(f"{self.name} must be {wanted}, got '{word}'", _as_told(self, self.default))


def options_of(method: Method) -> dict[str, Option]:
    """The options of a method, by name, in the order of its row."""
    known = inspect.signature(method.function, eval_str=True).parameters
    return {
        name: Option(name, known[name].annotation, known[name].default, help) for name, help in method.options.items()
    }


def read_options(method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a person told a method, each as the method wants it.

    Args:
        method: Which one.
        given: Values by name; words are read, other values are taken as they are.

    Raises:
        UsageError: The method has no such option, and those that it has are named; or a word is of another kind.
    """
    known = options_of(method)
    for name in given:
        if name not in known:
            problem = f"{method.name} has no option '{name}', it has {', '.join(known) or 'none'}"
            like = nearest(name, known) or next(iter(known), None)
            raise UsageError(
                problem, f"leave {name} out" if like is None else _as_told(known[like], known[like].default)
            )
    return {name: known[name].read(value) if isinstance(value, str) else value for name, value in given.items()}


def as_typed(method: Method, error: UsageError) -> UsageError:
    """The same error; where its hint says `samples=25` in Python, it says `--option samples=25` on the command line."""
    known = options_of(method)
    told = [(name, value.strip("'")) for name, value in _TOLD.findall(error.hint) if name in known]
    if not told or COMMAND_LINE in error.hint:
        return error
    typed = " ".join(f"--option {name}={'none' if value == 'None' else value}" for name, value in told)
    return UsageError(error.problem, f"{error.hint}{COMMAND_LINE}{typed}")


def _as_told(option: Option, value: Any) -> str:
    """A hint: how a value is told in Python, and on the command line."""
    return f"options={{{option.name!r}: {value!r}}}{COMMAND_LINE}--option {typed(option.name, value)}"


def _number(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return number


_FORMS: dict[Any, Form] = {
    int: ("a whole number", int),
    float: ("a number", _number),
    str: ("a name", str),
    bool: ("true or false", {"true": True, "false": False}.__getitem__),
    NoneType: ("none", {"none": None}.__getitem__),
}


def _forms(kind: Any) -> list[Form]:
    """How a value of a kind is typed; in no way where there are no words for it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # every word is a name, so that none comes first
        return [form for one in sorted(inner, key=lambda one: one is not NoneType) for form in _forms(one)]
    if origin is Literal:
        return [(word, {word: word}.__getitem__) for word in inner]
    if origin in (Sequence, list, tuple):
        return [
            (f"{said}, or several with commas between", lambda word, reads=reads: tuple(map(reads, word.split(","))))
            for said, reads in _forms(inner[0])
        ]
    return [_FORMS[kind]] if kind in _FORMS else []
