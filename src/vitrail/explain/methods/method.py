"""What a method says of itself: one row, which ends its file, and of which flags, help, pages and docs are made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vitrail.explain.attribution import Attribution


@dataclass(frozen=True)
class Method:
    """A method and what to know before using it.

    Attributes:
        function: `function(network, images, target=None, **options) -> Attribution`.
        name: Its key in `METHODS`, and `Attribution.method`.
        title: The name for people.
        signed: Whether its values speak for and against the class by their sign.
        class_specific: Whether it can tell classes apart.
        says: What a map shows, in one line.
        about: What it does and what it leaves out, in one paragraph for people; stands on every page with such a map.
        paper: Where it comes from.
        options: A line of help for each option of the function, by its name; kind and default stand in its signature.
        cost: In forward passes of the network; a pass forward and back counts as 3.
        costly: Whether it takes hundreds of passes, so that a comparison leaves it out unless it is asked for.
        opt_in: Why a comparison leaves it out unless it is asked for; empty where it does not.
    """

    function: Callable[..., Attribution]
    name: str
    title: str
    signed: bool
    class_specific: bool
    says: str
    about: str
    paper: str
    options: Mapping[str, str] = field(default_factory=dict)
    cost: str = "1"
    costly: bool = False
    opt_in: str = ""
