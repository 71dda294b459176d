"""How a configuration refuses what cannot be built: one rule for each field, and the same two lines for all of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_args

from vitrail.errors import UsageError, nearest


class Rule(NamedTuple):
    """What a field must be."""

    fits: Callable[[Any], bool]
    wanted: str
    choices: tuple[str, ...] = ()


def whole(least: int) -> Rule:
    """A whole number that is not too small."""
    wanted = f"a whole number, {least} or more" if least == 0 else f"a whole number, at least {least}"
    return Rule(lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least, wanted)


def number(below: float = math.inf) -> Rule:
    """A number from 0 on."""
    wanted = "a number, 0 or more" if below == math.inf else f"a number, at least 0 and below {below:g}"
    return Rule(
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < below, wanted
    )


def one_of(literal: Any) -> Rule:
    """One of the words of a `Literal`."""
    choices = get_args(literal)
    return Rule(lambda value: value in choices, f"one of {', '.join(choices)}", choices)


def yes_or_no() -> Rule:
    """True or False, and nothing that only counts as such."""
    return Rule(lambda value: isinstance(value, bool), "True or False")


def pixels() -> Rule:
    """A length in whole pixels, or (height, width)."""
    least = whole(1)

    def fits(value: Any) -> bool:
        sides = value if isinstance(value, tuple | list) else (value, value)
        return len(sides) == 2 and all(least.fits(side) for side in sides)

    return Rule(fits, "whole pixels, one number or (height, width), at least 1")


def or_none(rule: Rule) -> Rule:
    """What the rule says, or None."""
    return Rule(lambda value: value is None or rule.fits(value), f"{rule.wanted}, or left out", rule.choices)


def check(config: Any, rules: Mapping[str, Rule]) -> None:
    """Hold each field of a configuration against its rule.

    Raises:
        UsageError: If a field breaks its rule; names the nearest choice, or the default.
    """
    for field in fields(config):
        rule, given = rules.get(field.name), getattr(config, field.name)
        if rule is None or rule.fits(given):
            continue
        guess = nearest(str(given), rule.choices)
        hint = f"{field.name}={field.default!r}, the default"
        if field.default is None:
            hint = f"{field.name} left out"
        elif field.default is MISSING:
            hint = rule.wanted
        raise UsageError(
            f"{field.name} must be {rule.wanted}, got {given!r}", f"{field.name}={guess!r}" if guess else hint
        )


def check_special_ids(padding: int, begin: int, end: int, vocabulary: int) -> None:
    """The three ids that are no words: different, and inside the vocabulary.

    Raises:
        UsageError: If they are not.
    """
    if len({padding, begin, end}) < 3 or max(padding, begin, end) >= vocabulary:
        raise UsageError(
            f"padding, begin and end must be three different ids below {vocabulary}, got {padding}, {begin}, {end}",
            "padding=0, begin=1, end=2 and a vocabulary of at least 4",
        )


def head_dim_of(width: int, heads: int, head_dim: int) -> int:
    """The numbers per head: as given, or the width shared among the heads when 0 is given.

    Raises:
        UsageError: If the heads do not divide the width.
    """
    if head_dim == 0 and width % heads:
        raise UsageError(
            f"width {width} cannot be shared among {heads} heads",
            f"head_dim={max(1, round(width / heads))} (heads x head_dim need not equal the width)",
        )
    return head_dim or width // heads


def check_keys(known: type, values: Mapping[str, Any]) -> None:
    """Every key names a field of the dataclass, and no field without a default is missing.

    Raises:
        UsageError: If a key is unknown, and names the nearest field; or if one is missing.
    """
    names = [field.name for field in fields(known)]
    for key in values:
        if key not in names:
            raise UsageError(f"unknown key '{key}' in a network's configuration", f"{nearest(key, names) or names}")
    for field in fields(known):
        if field.default is MISSING and field.name not in values:
            raise UsageError(f"'{field.name}' is missing in a network's configuration", "dataclasses.asdict(config)")
