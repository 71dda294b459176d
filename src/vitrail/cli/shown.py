"""A picture to explain, and what is said of those that are not shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrail.errors import DataError

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Shown:
    """A picture to explain.

    Args:
        name: Its file, or its name in a set.
        picture: Decoded.
        true_label: Where known.
        mask: Not black where the evidence lies, of the picture's size; None where that is not known.
    """

    name: str
    picture: "Image.Image"
    true_label: str | None
    mask: "Image.Image | None" = None


def spread(things: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the things, evenly spread; says so when some are left out."""
    if len(things) <= most:
        return list(things)

    from vitrail.cli.output import warn

    warn(f"{most} of {len(things):,} pictures; --count {len(things)} takes all")
    return [things[index * len(things) // most] for index in range(most)]


def leave_out(problems: Sequence[str]) -> None:
    """Name the pictures that could not be read, when all others are done.

    Raises:
        DataError: If there is one.
    """
    from vitrail.cli.output import warn

    for problem in problems[:-1]:
        warn(f"left out: {problem}")
    if problems:
        raise DataError(problems[-1], "leave it out, or replace it by a picture that can be read")
