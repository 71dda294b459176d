"""What a method states about itself: one row, which ends its file, and of which flags, help, pages and docs are made.

    options_of(METHODS["rise"])["masks"]                        # Option: int, default 2000, "How many random masks, N."
    read_options(METHODS["rise"], {"masks": "500", "seed": 3})  # {"masks": 500, "seed": 3}

An option is a parameter of the function behind the target: kind and default stand in its signature, its help under
`Args:` of its docstring. A word is read by the annotation of its parameter:

    int, float, str, bool                  500, 0.5, blocks.3.norm1, true or false
    None, Literal["head", "mean"]          none, and the words themselves
    Sequence[float], tuple[int, int]       0.5,0.4,0.3
    a union                                the first of its kinds that the word is of, none before others; tensors are
                                           for Python

This file loads no torch: a help text lists the methods by the text of their files (`listed`).
"""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from vitrail.errors import Hint, UsageError, as_word, inside, nearest

if TYPE_CHECKING:
    from vitrail.explain.attribution import Attribution

WIDTH, INDENT = 80, 24
SEVERAL = ", or several separated by commas"
CLOSE = 0.85  # how like an option a misspelt name is, at least
_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)  # of a docstring, with its description
Form = tuple[str, Callable[[str], Any]]  # what is wanted, in words, and what reads it


@dataclass(frozen=True)
class Method:
    """A method and what to know before using it.

    Attributes:
        function: `function(network, images, target=None, **options) -> Attribution`.
        title: The name for people.
        signed: Whether its values speak for and against the class by their sign.
        class_specific: Whether it can tell classes apart.
        summary: What a map shows, in one line.
        about: What it does and what it leaves out, in one paragraph for people; stands on every page with such a map.
        name: Its key in `METHODS`, and `Attribution.method`; its function's where none is stated.
        cost: In forward passes of the network; a pass forward and back counts as 3.
        costly: Whether it takes hundreds of passes, so that a comparison leaves it out unless it is named.
        opt_in: Why a comparison leaves it out unless it is named; empty where it does not.
        order: Where it stands in lists, the smallest first.
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
    order: int = 1000

    def __post_init__(self) -> None:
        """Take over the name of the function."""
        object.__setattr__(self, "name", self.name or self.function.__name__)


# ---- options as they are typed


@dataclass(frozen=True)
class Option:
    """An option of a method.

    Attributes:
        name: Of the parameter.
        kind: Its annotation.
        default: Its value when left out.
        help: What it does, in one line; empty where the docstring does not describe it.
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
        names = dict.fromkeys(words for words, _ in forms)
        wanted = " or ".join(words for words in names if words + SEVERAL not in names) or "a value in Python"
        raise UsageError(f"{self.name} must be {wanted}, got '{word}'", self.hint())

    def hint(self, instead_of: str = "") -> Hint:
        """To set its default, in place of what was meant for it."""
        python, gone = f"options={ {self.name: self.default} }", [f"option.{instead_of}"] * bool(instead_of)
        return Hint({"option": {self.name: self.default}}, gone, python=python)


def options_of(method: Method) -> dict[str, Option]:
    """The options of a method, by name, in the order of its function's parameters."""
    arguments = (inspect.getdoc(method.function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    helps = {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(arguments)}
    _, _, _, *parameters = inspect.signature(method.function, eval_str=True).parameters.values()
    return {
        each.name: Option(each.name, each.annotation, each.default, helps.get(each.name, ""))
        for each in parameters
        if each.default is not each.empty
    }


def read_options(method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method, each as the method wants it.

    Args:
        method: Which one.
        values: By name; words are read, other values are taken as they are.

    Raises:
        UsageError: The method has no such option, and those that it has are named; or a word is of another kind.
    """
    known = options_of(method)
    for name in (name for name in values if name not in known):
        problem = f"{method.name} has no option '{name}'; its options are {', '.join(known) or 'none'}"
        like = nearest(name, known, CLOSE)
        without = Hint(drop=[f"option.{name}"], python=f"no option {name}")
        raise UsageError(problem, without if like is None else known[like].hint(name))
    return {name: known[name].read(value) if isinstance(value, str) else value for name, value in values.items()}


def as_options(methods: Sequence[Method], error: UsageError) -> UsageError:
    """The same error of one of these methods; options of the only one are typed inside of `--option`."""
    hint = error.hint
    if len(methods) > 1 or not hint.flags.keys() <= options_of(methods[0]).keys():
        return UsageError(error.problem, str(hint))
    own = {name: _word(value) for name, value in hint.flags.items()}
    return UsageError(error.problem, replace(hint, flags={"option": own} if own else {}, python=str(hint)))


def _word(value: Any) -> str:
    """A value as one types it behind `--option NAME=`: `none`, `500`, `0.5,0.4,0.3`."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else as_word(value)


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
            (words + SEVERAL, lambda word, reads=reads: tuple(map(reads, word.split(","))))
            for words, reads in _forms(inner[0])
        ]
    return [_FORMS[kind]] if kind in _FORMS else []


# ---- options that a method refuses


def check_option(name: str, value: Any, fits: bool, wanted: str, usual: Any) -> None:
    """Refuse a value that does not fit.

    Args:
        name: Of the option.
        value: What it is.
        fits: Whether it fits.
        wanted: What fits, for "`name` must be ...".
        usual: A value that fits.

    Raises:
        UsageError: It does not fit.
    """
    if not fits:
        raise UsageError(f"{name} must be {wanted}, got {value!r}", Hint({name: usual}))


def check_count(name: str, value: Any, usual: int) -> None:
    """Refuse what is not a whole number of at least 1; see `check_option`."""
    check_option(name, value, type(value) is int and value >= 1, "a whole number, at least 1", usual)


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuse what is none of the words of a `Literal`; see `check_option`."""
    words = get_args(choices)
    check_option(name, value, value in words, f"one of {', '.join(words)}", nearest(str(value), words) or words[0])


# ---- the list in a help text


@dataclass(frozen=True)
class Listed:
    """A method in a list: its name and summary, the default of each of its options, and where it stands."""

    name: str
    summary: str
    options: Mapping[str, Any]
    order: int = Method.order

    def lines(self) -> str:
        """For a help text."""
        options = f" ({', '.join(inside(self.options))})" if self.options else ""
        text = f"{self.name:<{INDENT - 3}} {self.summary}{options}"
        return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent=" " * INDENT, break_on_hyphens=False)


def described(method: Method) -> str:
    """A method in a help text: its line in the list, its paragraph, and what each of its options is."""
    options = options_of(method).values()
    line = Listed(method.name, method.summary, {each.name: each.default for each in options}).lines()
    texts = [method.about, *(f"--option {inside({each.name: each.default})[0]}  {each.help}" for each in options)]
    return "\n".join(
        [line, *(textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ") for text in texts)]
    )


def listed(folder: Path = Path(__file__).parent) -> list[Listed]:
    """The methods whose files lie in a folder, in the order that their rows state; no file is imported."""
    found = [row for file in folder.glob("*.py") for row in rows_of(file.read_text(encoding="utf-8"))]
    return sorted(found, key=lambda row: (row.order, row.name))


def rows_of(source: str) -> Iterator[Listed]:
    """The rows `METHOD = Method(function=rise, ...)` of a file, by its text."""
    body = ast.parse(source).body
    functions = {node.name: node.args for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        match node:
            case ast.Assign([ast.Name("METHOD")], ast.Call(keywords=keywords)):
                row = {each.arg: each.value for each in keywords}
                words: dict[str, Any] = {"name": ast.unparse(row["function"])}
                parameters = functions[words["name"]]
                words |= {key: ast.literal_eval(row[key]) for key in ("name", "summary", "order") if key in row}
                options = {
                    parameter.arg: ast.literal_eval(default)
                    for parameter, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
                    if default is not None
                }
                yield Listed(options=options, **words)
