"""From words to a checked dataclass, by argparse: a field is an option, and every error is two lines.

The fields come from `vitrail.cli.args` and say by their type how a word is read:

    int, float, str, Path, also `| None`   --batch-size 64 (or --batch-size=64, or --batch_size 64)
    Literal["auto", "never"], also | None  --resume auto, and no other word
    bool                                   --json; where True is the default, --no-background
    tuple[str, ...]                        names without an option, as many as there are; as an option, it may be typed
                                           several times

Any other option that is typed twice has the last value. Options of a base class with a `TITLE` stand below it in a
help text.
"""

import argparse
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from vitrail.errors import UsageError, nearest

Options = TypeVar("Options")

_KINDS: dict[Any, tuple[str, str]] = {int: ("N", "a whole number"), float: ("X", "a number"), Path: ("PATH", "a path")}


def positional(help: str, default: Any = MISSING) -> Any:
    """What is typed without an option: it must be there where there is no default."""
    return field(default=default, metadata={"help": help, "positional": True})


def several(metavar: str, help: str) -> Any:
    """An option that may be typed several times."""
    return field(default=(), metadata={"help": help, "metavar": metavar})


def hidden(instead: str, default: Any = None) -> Any:
    """An option that a verb inherits and does not have; it is pointed to another."""
    return field(default=default, metadata={"instead": instead})


@dataclass(frozen=True)
class _Option:
    """One field of the dataclass, as it is typed."""

    field: Field[Any]
    kind: Any  # int, float, str, Path or bool
    choices: tuple[str, ...] = ()  # the only words that are taken; all where empty

    @property
    def flag(self) -> str:
        """Such as `--batch-size`; the name in capitals where there is no option."""
        name, no = self.field.name.replace("_", "-"), "no-" if self.field.default is True else ""
        return name.upper() if self.positional else f"--{no}{name}"

    @property
    def positional(self) -> bool:
        return "positional" in self.field.metadata

    @property
    def required(self) -> bool:
        return self.field.default is MISSING

    @property
    def metavar(self) -> str:
        """What stands behind the option in a help text."""
        words = f"{{{','.join(self.choices)}}}" if self.choices else self.field.name.upper()
        return self.field.metadata.get("metavar", _KINDS.get(self.kind, (words, ""))[0])

    @property
    def wanted(self) -> str:
        """What a word must be."""
        usual = _KINDS.get(self.kind, ("", "a name"))[1]
        return " or ".join(self.choices) or self.field.metadata.get("metavar", usual)

    def read(self, verb: str, word: str) -> Any:
        """The value of a word.

        Raises:
            UsageError: The word is of another kind.
        """
        guess = nearest(word, self.choices)
        try:
            if not self.choices or word in self.choices:
                return self.kind(word)
        except ValueError:
            pass
        problem = f"{self.flag} must be {self.wanted}, got '{word}'"
        raise UsageError(problem, f"{self.flag} {guess}" if guess else f"vitrail {verb} --help")

    def add_to(self, parser: Any) -> None:
        """As argparse knows it, with its default, where that says anything."""
        default, many = self.field.default, self.field.default == ()
        shown = not self.required and default not in (None, "", ()) and not isinstance(default, bool)
        how = {"help": self.field.metadata["help"].replace("%", "%%") + f" (default: {default})" * shown}
        if self.positional:
            parser.add_argument(self.field.name, nargs="*" if many else "?", metavar=self.flag, **how)
        elif self.kind is bool:
            parser.add_argument(self.flag, dest=self.field.name, action="store_const", const=default is not True, **how)
        else:
            action = "append" if many else "store"
            parser.add_argument(self.flag, dest=self.field.name, action=action, metavar=self.metavar, **how)


class _Lines(argparse.HelpFormatter):
    """Lines that are broken between words, never within a name such as small-images."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    more: Callable[[], str] = str

    def format_help(self) -> str:
        """With what stands below the options."""
        return super().format_help() + self.more()

    def error(self, message: str) -> NoReturn:
        """Two lines in the place of argparse's usage and exit."""
        raise UsageError(message, f"{self.prog} --help")


def parse(kind: type[Options], verb: str, words: Sequence[str], more: Callable[[], str] = str) -> Options:
    """The options of one verb.

    Args:
        kind: A dataclass of `vitrail.cli.args`, whose docstring is the verb's help.
        verb: Its name, for messages.
        words: What was typed after the verb.
        more: What stands below the options in its help; asked for when that is shown.

    Raises:
        UsageError: For an unknown option (offers the nearest), a word of the wrong kind, or one that is missing.
    """
    hints = get_type_hints(kind)
    options = [_option(field, hints[field.name]) for field in fields(kind)]  # pyrefly: ignore[bad-argument-type]
    there = [option for option in options if "instead" not in option.field.metadata]
    parser = _parser(kind, verb, there)
    parser.more = more
    typed, left = parser.parse_known_intermixed_args(list(_joined(verb, words, options)))
    if left:
        raise UsageError(f"vitrail {verb} takes no argument {' '.join(left)}", f"vitrail {verb} --help")
    values: dict[str, Any] = {}
    for option in there:
        name, value = option.field.name, getattr(typed, option.field.name, None)
        if option.required and value is None:
            what = f"vitrail {verb} needs {option.flag} ({option.field.metadata['help'].lower()})"
            raise UsageError(what, f"vitrail {verb} --help")
        if isinstance(value, str):
            values[name] = option.read(verb, value)
        elif value is not None and value != []:
            values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _option(field: Field[Any], hint: Any) -> _Option:
    inner = [part for part in get_args(hint) if part is not NoneType]
    words = inner[0] if inner and get_origin(inner[0]) is Literal else hint  # a list of words, or None
    if get_origin(words) is Literal:
        return _Option(field, str, get_args(words))
    return _Option(field, str if get_origin(hint) is tuple else inner[0] if inner else hint)


def _parser(kind: type, verb: str, options: Sequence[_Option]) -> _Parser:
    """What shows the help, the verb's own options first, and tells options from names."""
    names = [f"[{one.flag}]" if not one.required else one.flag for one in options if one.positional]
    usage = " ".join([f"vitrail {verb}", *names, "[--flags]"])
    text = " ".join((kind.__doc__ or "").split()).replace("%", "%%")
    parser = _Parser(f"vitrail {verb}", usage, text, formatter_class=_Lines, allow_abbrev=False)
    titles = dict[str, str]()
    for base in reversed(kind.__mro__):  # what a class defines anew is its own
        title = "" if base is kind else getattr(base, "TITLE", "")
        titles |= dict.fromkeys(vars(base).get("__annotations__", ()), title)
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(titles.values()) if title}
    for option in sorted(options, key=lambda each: each.field.name not in vars(kind)["__annotations__"]):
        option.add_to(groups.get(titles[option.field.name], parser))
    return parser


def _joined(verb: str, words: Sequence[str], options: Sequence[_Option]) -> Iterator[str]:
    """The words with every option spelled with hyphens and tied to its value, which may then begin with a hyphen.

    Raises:
        UsageError: For an option that is not there, and one without its value.
    """
    flags = {option.flag: option for option in options if not option.positional}
    known = {flag for flag, option in flags.items() if "instead" not in option.field.metadata}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if word == "--":
            yield word
            yield from left
        elif not word.startswith("--") or word == "--help":
            yield word
        elif flag not in known:
            own = flags[flag].field.metadata["instead"] if flag in flags else nearest(flag, known)
            raise UsageError(f"vitrail {verb} has no option {flag}", own or f"vitrail {verb} --help")
        elif flags[flag].kind is bool or equals:
            yield f"{flag}{equals}{value}"
        else:
            value = next(left, None)
            if value is None or value.partition("=")[0].replace("_", "-") in known:
                raise UsageError(f"{flag} must be followed by {flags[flag].wanted}", f"vitrail {verb} --help")
            yield f"{flag}={value}"
