"""How numbers look in tables and sentences, and how a call in Python looks that takes a person's own objects.

A fraction as a percentage never reads 0 or 100 unless it is exactly that.

What belongs together is joined by no-break spaces, wherever it is shown: no line ends between a number and its sign.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

from vitrail.errors import UsageError

OWN = "own:"  # in front of the name of a part that is a person's own

JOIN = "\u00a0"  # a space at which no line breaks


def percent(fraction: float | int | None, digits: int = 1) -> str:
    """For tables, where many stand below each other: so many decimals, signs at the ends, a dash for what is not known.

    97.68 %, > 99.9 %, < 0.1 %, 100 %.
    """
    if fraction is None or not math.isfinite(fraction):
        return "–"
    shown = f"{100 * fraction:.{digits}f}"
    nearly = 10.0**-digits
    if fraction < 1 and float(shown) >= 100:
        return f">{JOIN}{100 - nearly:.{digits}f}{JOIN}%"
    if fraction > 0 and float(shown) == 0:
        return f"<{JOIN}{nearly:.{digits}f}{JOIN}%"
    return f"{shown}{JOIN}%" if fraction not in (0, 1) else f"{100 * fraction:.0f}{JOIN}%"


def percent_in_words(fraction: float) -> str:
    """For sentences: whole numbers, a decimal near 0 and 100 alone, and words at the ends.

    98 %, 99.5 %, over 99.9 %, under 0.1 %, 100 %.
    """
    if 0.01 <= fraction <= 0.99 or fraction in (0.0, 1.0):
        return f"{100 * fraction:.0f}{JOIN}%"
    if fraction < 0.0005:
        return f"under{JOIN}0.1{JOIN}%"
    return f"over{JOIN}99.9{JOIN}%" if fraction > 0.9995 else f"{100 * fraction:.1f}{JOIN}%"


# ---- a person's own objects


def typed(value: Any) -> str:
    """A value as it is typed in Python, as far as that can be known: `PredictNumber(bins=3)`, `Weighted(...)`."""
    if is_dataclass(value):
        known = [(each.name, getattr(value, each.name), each.default) for each in fields(value) if each.init]
        words = [f"{name}={typed(new)}" for name, new, usual in known if repr(new) != repr(usual)]
        return f"{type(value).__name__}({', '.join(words)})"
    text = f"Path({str(value)!r})" if isinstance(value, PurePath) else repr(value)
    return f"{type(value).__name__}(...)" if "<" in text else text


def python_call(verb: str, words: Sequence[str], own: Mapping[str, str]) -> str:
    """The call in Python that a run or a model wants which was made with a person's own objects.

    Args:
        verb: load, evaluate, train or distill.
        words: The arguments in front of the objects, as they are typed.
        own: What is stored of each object, by its kind. What has no name that can be typed becomes `...`.
    """
    return f"vitrail.{verb}({', '.join([*words, *(f'{kind}={_named(kind, name)}' for kind, name in own.items())])})"


def _named(kind: str, stored: str) -> str:
    if kind == "parts":
        slots = [slot.partition("=") for slot in stored.split(", ") if "=" in slot]
        return f"vitrail.nn.Parts({', '.join(f'{slot}={_part(slot, name)}' for slot, _, name in slots) or '...'})"
    found = re.fullmatch(r"(?:.*<locals>\.)?([A-Za-z_][\w.]*)(\(.*\))?", stored)
    if found is None or (kind == "task" and not found[2]):
        return "..."
    return found[1] + (found[2] or "(...)" * (kind == "network"))


def _part(slot: str, name: str) -> str:
    called = name.removeprefix(OWN)
    if name == called:
        return f"vitrail.nn.parts_of({{{slot!r}: {name!r}}}).{slot}"
    return called if called.isidentifier() else "..."


def check_given(own: Mapping[str, str], given: Mapping[str, object], verb: str, words: Sequence[str]) -> None:
    """Refuse to open what was made with a person's own objects without them.

    Args:
        own: What is stored of each, by its kind.
        given: The objects, by their kind; None where there is none.
        verb: As for `python_call`, and
        words: likewise; the first is what was made.

    Raises:
        UsageError: Names those that are missing; its hint is the call.
    """
    missing = "; ".join(f"{kind} {own[kind]}".strip() for kind in own if given.get(kind) is None)
    if missing:
        problem = f"{words[0]} was made with objects of a person's own, which are not given: {missing}"
        raise UsageError(problem, python_call(verb, words, own))
