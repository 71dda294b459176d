"""What a method states about itself, in its row of `methods.yaml`, and how its options are typed and refused.

    METHODS["rise"].options["masks"]                            # Option: 2000, "How many random masks, N."
    read_options(METHODS["rise"], {"masks": "500", "seed": 3})  # {"masks": 500, "seed": 3}

An option is a parameter of the function behind the target. A word for it is read by the annotation of its parameter:
500, 0.5, blocks.3.norm1, true, none; several by commas, as 0.5,0.4,0.3. This file loads no torch.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.arguments import parse_word, typed
from vitrail.errors import Hint, UsageError, as_word, nearest, words_inside

if TYPE_CHECKING:
    from vitrail.explain.attribution import Attribution

WIDTH, INDENT = 80, 24
CLOSE = 0.85  # how like an option a misspelt name is, at least


@typed
@dataclass(frozen=True)
class Option:
    """An option of a method: its value when left out, and what it does, in one line."""

    default: Any
    help: str


@typed
@dataclass(frozen=True, repr=False)
class Method:
    """A method and what to know before using it.

    Attributes:
        function: `function(network, images, target=None, **options) -> Attribution`. A plain function, which is named
            without a row, may return numbers of pixels or patches instead; see `Attribution.of_pixels`.
        title: The name for people.
        signed: Whether its values speak for and against the class by their sign.
        class_specific: Whether it can tell classes apart.
        summary: What a map shows, in one line.
        about: What it does and what it leaves out, in one paragraph for people; stands on every page with such a map.
        name: Its key in `METHODS`, and `Attribution.method`; its function's where none is stated.
        cost: In forward passes of the network; a pass forward and back counts as 3.
        costly: Whether it takes hundreds of passes, so that a comparison leaves it out unless it is named.
        opt_in: Why a comparison leaves it out unless it is named; empty where it does not.
        any_network: Whether it takes any module with a grid of patches; others read the tokens of a ViT.
        folder: Where its maps lie, one array for each image, if they were computed elsewhere.
        options: Those that can be typed, by name.
    """

    function: Callable[..., "Attribution"]
    title: str
    signed: bool
    class_specific: bool
    summary: str
    about: str
    name: str = ""
    cost: str = "1"
    costly: bool = False
    opt_in: str = ""
    any_network: bool = False
    folder: Path | None = None
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take over the name of the function."""
        object.__setattr__(self, "name", self.name or self.function.__name__)

    def __repr__(self) -> str:
        """In a line, since `METHODS` shows all of them."""
        return f"<Method {self.name}: {self.summary}>"

    def line(self) -> str:
        """Its name, summary and defaults, for a list."""
        options = ", ".join(words_inside({name: option.default for name, option in self.options.items()}))
        text = f"{self.name:<{INDENT - 3}} {self.summary}{f' ({options})' if options else ''}"
        return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent=" " * INDENT, break_on_hyphens=False)

    def description(self) -> str:
        """Its line, its paragraph, and what each of its options is."""
        options = (f"--option {name}={as_word(row.default)}  {row.help}" for name, row in self.options.items())
        texts = (
            textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
            for text in (self.about, *options)
        )
        return "\n".join([self.line(), *texts])


# ---- options as they are typed


def read_options(method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method, each as the method wants it.

    Args:
        method: Which one.
        values: By name; words are read, other values are taken as they are.

    Raises:
        UsageError: The method has no such option, and those that it has are named; or a word is of another kind.
    """
    known = method.options
    for name in (name for name in values if name not in known):
        problem = f"{method.name} has no option '{name}'; its options are {', '.join(known) or 'none'}"
        like = nearest(name, known, CLOSE)
        without = Hint(drop=[f"option.{name}"], python=f"no option {name}")
        raise UsageError(problem, without if like is None else _hint(like, known[like].default, name))
    parameters = inspect.signature(method.function, eval_str=True).parameters if values else {}
    return {
        name: read_word(name, parameters[name].annotation, value, known[name].default)
        if isinstance(value, str)
        else value
        for name, value in values.items()
    }


def read_word(name: str, kind: Any, word: str, default: Any) -> Any:
    """The value of a word.

    Args:
        name: Of an option.
        kind: Its annotation.
        word: As it was typed.
        default: Its value when left out, for a hint.

    Raises:
        UsageError: The word is of none of the option's kinds.
    """
    try:
        return parse_word(kind, word, finite=True)
    except ValueError as error:
        raise UsageError(f"{name} must be {error}, got '{word}'", _hint(name, default)) from error


def _hint(name: str, default: Any, instead_of: str = "") -> Hint:
    """To set an option to its default, in place of what was meant for it."""
    python, gone = f"options={ {name: default} }", [f"option.{instead_of}"] * bool(instead_of)
    return Hint({"option": {name: default}}, gone, python=python)


def as_options(methods: Sequence[Method], error: UsageError) -> UsageError:
    """The same error of one of these methods; options of the only one are typed inside of `--option`."""
    hint = error.hint
    if len(methods) > 1 or not hint.flags.keys() <= methods[0].options.keys():
        return UsageError(error.problem, str(hint))
    own = {name: as_word(value) for name, value in hint.flags.items()}
    return UsageError(error.problem, replace(hint, flags={"option": own} if own else {}, python=str(hint)))
