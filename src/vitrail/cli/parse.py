"""From words to a checked dataclass: a field is an option, every error is two lines, and argparse writes the help.

The fields come from `vitrail.cli.args`; the type of a field decides how a word is read:

    int, float, str, Path, also `| None`   --batch-size 64 (or --batch-size=64, or --batch_size 64)
    Literal["auto", "never"], also | None  --resume auto, and no other word
    bool                                   --json; where True is the default, --no-background
    tuple[str, ...]                        names without an option, as many as there are; as an option NAME=VALUE, it
                                           may be repeated, with another name

Of any other option that is repeated the last value counts. Options of a base class with a `TITLE` stand below it in a
help text. What does not go together is refused by the tables of `Rules`, before a verb is imported. A hint that is
nothing but options becomes the whole corrected command: `whole_command`, for the errors of all verbs.
"""

import argparse
import math
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from vitrail.errors import MODEL, UsageError, nearest

Options = TypeVar("Options")

_KINDS: dict[Any, tuple[str, str]] = {int: ("N", "a whole number"), float: ("X", "a number"), Path: ("PATH", "a path")}
_LONGEST = 400  # characters of a command in a hint; of a longer one, such as with many files, only the options


def positional(help: str, default: Any = MISSING) -> Any:
    """A name without an option; it is required where it has no default."""
    return field(default=default, metadata={"help": help, "positional": True})


def several(metavar: str, help: str) -> Any:
    """An option that may be repeated."""
    return field(default=(), metadata={"help": help, "metavar": metavar})


def hidden(instead: str, default: Any = None) -> Any:
    """An option that a verb inherits and does not have; a hint names another."""
    return field(default=default, metadata={"instead": instead})


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a verb refuses, in tables by the names of its options; `RULES` of its dataclass.

    Attributes:
        required: What must be there; the words that add it to a command.
        needs: What has no effect without another option; the words that add that one.
        unless: Of what is required or needs another option, the option with which that is not so.
        least: The smallest number that an option takes.
        positive: Numbers that must be above 0 and finite; an example.
        apart: Pairs of options of which the second would silence the first.
    """

    required: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    positive: Mapping[str, float] = field(default_factory=dict)
    apart: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class _Option:
    """One field of the dataclass, as an option or a name.

    Attributes:
        field: The field.
        kind: int, float, str, Path or bool.
        choices: The only words that are taken; all where empty.
    """

    field: Field[Any]
    kind: Any
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Such as `--batch-size`; the name in capitals where there is no option."""
        name, no = self.field.name.replace("_", "-"), "no-" if self.field.default is True else ""
        return name.upper() if self.positional else f"--{no}{name}"

    @property
    def positional(self) -> bool:
        return "positional" in self.field.metadata

    @property
    def hidden(self) -> str | None:
        return self.field.metadata.get("instead")

    @property
    def many(self) -> bool:
        return self.field.default == ()

    @property
    def metavar(self) -> str:
        """What stands for its value in a help text."""
        words = f"{{{','.join(self.choices)}}}" if self.choices else self.field.name.upper()
        return self.field.metadata.get("metavar", _KINDS.get(self.kind, (words, ""))[0])

    @property
    def wanted(self) -> str:
        """What a word must be."""
        return " or ".join(self.choices) or self.field.metadata.get("metavar", _KINDS.get(self.kind, ("", "a name"))[1])

    def read(self, verb: str, word: str, words: Sequence[str]) -> Any:
        """The value of one of the words.

        Raises:
            UsageError: The word is of another kind.
        """
        try:
            if word in self.choices if self.choices else word or self.kind is not Path:
                return self.kind(word)
        except ValueError:
            pass
        guess = nearest(word, self.choices)
        hint = f"{self.flag} {guess}" if guess else f"vitrail {verb} --help"
        if self.positional:
            right = [guess if each == word else each for each in words] if guess else [self.choices[0], *words]
            hint = shlex.join(["vitrail", verb, *right])
        raise UsageError(f"{self.flag} must be {self.wanted}, got '{word}'", hint)


_Pair = tuple[_Option | None, str]  # an option with its value, or another word


def _options(kind: type) -> dict[str, _Option]:
    """All options of a verb by the names of their fields, also those that are hidden."""
    hints, found = get_type_hints(kind), dict[str, _Option]()
    for each in fields(kind):
        hint = hints[each.name]
        inner = [part for part in get_args(hint) if part is not NoneType]
        words = inner[0] if inner and get_origin(inner[0]) is Literal else hint  # a list of words, or None
        if get_origin(words) is Literal:
            found[each.name] = _Option(each, str, get_args(words))
        else:
            found[each.name] = _Option(each, str if get_origin(hint) is tuple else inner[0] if inner else hint)
    return found


def parse(
    kind: type[Options], verb: str, words: Sequence[str], more: Callable[[Sequence[str]], str] | None = None
) -> Options:
    """The options of one verb; with --help that text is printed, and the process ends.

    Args:
        kind: A dataclass of `vitrail.cli.args`, whose docstring is the verb's help.
        verb: Its name, for messages.
        words: What follows the verb on the command line.
        more: Makes what stands below the options in its help, of the words; called when that is shown.

    Raises:
        UsageError: For an unknown option (offers the nearest), a word of the wrong kind, or what `Rules` refuse.
    """
    options = _options(kind)
    names, values, usage = list[str](), dict[str, Any](), f"vitrail {verb} --help"
    for option, word in _pairs(verb, words, options):
        if option is None and word in ("-h", "--help"):
            text = _help(kind, verb, [each for each in options.values() if each.hidden is None])
            print(text + (more(words) if more else ""), end="")
            raise SystemExit(0)
        if option is None:
            names.append(word)
        elif option.kind is bool:
            values[option.field.name] = option.field.default is not True
        elif option.many:
            before, name = values.get(option.field.name, ()), _name_in(word)
            if name in map(_name_in, before):
                raise UsageError(f"{option.flag} {name} stands more than once", shlex.join([option.flag, word]))
            values[option.field.name] = (*before, word)
        else:
            values[option.field.name] = option.read(verb, word, words)
    for option in (each for each in options.values() if each.positional and names):
        values[option.field.name] = tuple(names) if option.many else option.read(verb, names[0], words)
        names = [] if option.many else names[1:]
    if names:
        raise UsageError(f"vitrail {verb} takes no argument {' '.join(names)}", usage)
    rules: Rules = getattr(kind, "RULES", Rules())
    missing = {name: add for name, add in rules.required.items() if not {name, rules.unless.get(name)} & values.keys()}
    for name in missing:
        about = re.split(r"[;.] | \(", options[name].field.metadata["help"].rstrip("."))[0]
        problem = f"vitrail {verb} needs {options[name].flag} ({about[0].lower()}{about[1:]})"
        raise UsageError(problem, shlex.join(["vitrail", verb, *words, *" ".join(missing.values()).split()]))
    given = {name: value for name, value in values.items() if value != options[name].field.default}
    _check(given, rules, {name: option.flag for name, option in options.items()})
    return kind(**values)


def _pairs(verb: str, words: Sequence[str], options: Mapping[str, _Option], *, strict: bool = True) -> Iterator[_Pair]:
    """Each option with its value, which may begin with a hyphen, and each other word with None.

    Args:
        verb: For messages.
        words: What follows it on the command line.
        options: Of the verb.
        strict: Whether an unknown option is refused; else the one that is meant stands in its place.

    Raises:
        UsageError: For an option that is not there, and one without its value.
    """
    flags = {option.flag: option for option in options.values() if not option.positional}
    known, usage = [flag for flag, option in flags.items() if option.hidden is None], f"vitrail {verb} --help"
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if word == "--":
            yield from ((None, each) for each in left)
        elif word in ("-h", "--help") or not re.match(r"--|-[^\W\d]", word):
            yield None, word
        elif not word.startswith("--"):
            raise UsageError(f"vitrail {verb} has no option {word}", usage)
        else:
            like = [each[2:] for each in known if each[2:3] == flag[2:3]]  # for less likeness, with the same beginning
            near = nearest(flag[2:], [each[2:] for each in known], 0.8) or nearest(flag[2:], like, 0.6)
            meant = flag if flag in known else flags[flag].hidden if flag in flags else near and f"--{near}"
            if meant not in known:
                raise UsageError(f"vitrail {verb} has no option {flag}", meant or usage)
            option = flags[meant]
            if option.kind is bool and equals:
                raise UsageError(f"{flag} takes no value, got '{value}'", usage)
            if option.kind is not bool and not equals:
                following = next(left, None)
                if following is None or following.partition("=")[0].replace("_", "-") in known:
                    if meant != flag and strict:
                        raise UsageError(f"vitrail {verb} has no option {flag}", f"{meant} {option.metavar}")
                    raise UsageError(f"{flag} must be followed by {option.wanted}", usage)
                value = following
            if meant != flag and strict:
                raise UsageError(f"vitrail {verb} has no option {flag}", shlex.join(_words_of(option, value)))
            yield option, value


def _name_in(word: str) -> str:
    """The name in NAME=VALUE, in the spelling of Python."""
    return word.partition("=")[0].replace("-", "_")


def _words_of(option: _Option | None, value: str) -> list[str]:
    """A pair as it stands on a command line."""
    return [value] if option is None else [option.flag] if option.kind is bool else [option.flag, value]


def _check(values: Mapping[str, Any], rules: Rules, flags: Mapping[str, str]) -> None:
    """Hold the values of a verb against its rules.

    Raises:
        UsageError: They break one.
    """
    for name, other in rules.apart:
        if name in values and other in values:
            raise UsageError(f"{flags[name]} and {flags[other]} cannot be combined", f"the same without {flags[name]}")
    for name, other in rules.needs.items():
        flag = other.split()[0]
        if name in values and rules.unless.get(name) not in values and flag not in [flags[each] for each in values]:
            value = f"{values[name]:g}" if isinstance(values[name], float) else values[name]
            raise UsageError(f"{flags[name]} {value} needs {flag}, which is missing", other)
    for name, least in rules.least.items():
        if name in values and values[name] < least:
            raise UsageError(f"{flags[name]} must be at least {least}, got {values[name]}", f"{flags[name]} {least}")
    for name, example in rules.positive.items():
        if name in values and not 0 < values[name] < math.inf:
            problem = f"{flags[name]} must be above 0 and finite, got {values[name]}"
            raise UsageError(problem, f"{flags[name]} {example:g}")


def whole_command(hint: str, kind: type, verb: str, words: Sequence[str]) -> str:
    """A hint of options as the whole command: with them in place of those that were there before, or without one.

    Args:
        hint: Of an error: `--epochs 3`, also with more behind a comma, or `the same without --json`; any other hint is
            returned as it is.
        kind: The dataclass of the verb.
        verb: Its name.
        words: What followed the verb on the command line.
    """
    options = _options(kind)
    try:
        before = list(_pairs(verb, words, options, strict=False))
    except UsageError:
        return hint
    values = {option.flag: value for option, value in before if option is not None}
    names = [word for option, word in before if option is None]
    if names and re.match(rf"vitrail \w+ {MODEL} ", hint):
        return hint.replace(MODEL, shlex.quote(names[0]), 1)
    if hint.startswith("--assume") and "--assume" in values:
        from vitrail.weights.assume import completed  # loads torch, as whatever gave this hint did

        hint = completed(hint, values["--assume"])

    def command(pairs: Sequence[_Pair], rest: str) -> str:
        text = shlex.join(["vitrail", verb, *(word for pair in pairs for word in _words_of(*pair))])
        return text + rest if len(text) <= _LONGEST else hint

    def key(option: _Option | None, value: str) -> str:
        if option is None:
            return ""
        return f"{option.flag} {_name_in(value)}" if option.many else option.flag

    one = r"--[a-z-]+(?: (?!out\b|and\b)\w+)?"
    if without := re.fullmatch(rf"(?:leave|no|the same without) ({one}(?: and {one})*)(?: out)?([,;] .*)?", hint):
        gone = set(without[1].split(" and "))
        found = [pair for pair in before if not {pair[0] and pair[0].flag, key(*pair)} & gone]
        return command(found, without[2] or "") if len(found) < len(before) else hint
    for end in (len(hint), *(match.start() for match in re.finditer(r"[,;] ", hint))):
        try:
            pairs = list(_pairs(verb, shlex.split(hint[:end]), options))
        except (UsageError, ValueError):  # no options of this verb, or a quotation that is cut
            continue
        new = dict[str, _Pair]()
        for pair in (pair for pair in pairs if pair[0] is not None):  # a repeated option may have been misspelt
            new[nearest(key(*pair), [key(*each) for each in before], least=0.9) or key(*pair)] = pair
        if pairs and len(new) == len(pairs):
            others = [pair for pair in before if key(*pair) not in new]
            found = [new.pop(key(*pair), pair) for pair in before if pair in others or key(*pair) in new]
            return command([*found, *new.values()], hint[end:])
    return hint


class _Lines(argparse.HelpFormatter):
    """Lines that are broken between words, never within a name such as small-images."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _help(kind: type, verb: str, options: Sequence[_Option]) -> str:
    """The help of a verb, its own options first."""
    rules: Rules = getattr(kind, "RULES", Rules())
    required = rules.required.keys() - rules.unless.keys()
    names = [one.flag if one.field.name in required else f"[{one.flag}]" for one in options if one.positional]
    needed = [f"{one.flag} {one.metavar}" for one in options if one.field.name in required and not one.positional]
    usage = " ".join([f"vitrail {verb}", *names, *needed, "[--flags]"])
    text = " ".join((kind.__doc__ or "").split()).replace("%", "%%")
    parser = argparse.ArgumentParser(f"vitrail {verb}", usage, text, formatter_class=_Lines)
    titles = dict[str, str]()
    for base in reversed(kind.__mro__[1:]):  # an option stays in the group in which it first stands
        for name in vars(base).get("__annotations__", ()):
            titles.setdefault(name, getattr(base, "TITLE", ""))
    titles |= dict.fromkeys(vars(kind)["__annotations__"], "")  # what a verb defines anew is its own
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(titles.values()) if title}
    for option in sorted(options, key=lambda each: each.field.name not in vars(kind)["__annotations__"]):
        name, default, group = option.field.name, option.field.default, groups.get(titles[option.field.name], parser)
        shown = default not in (MISSING, None, "", ()) and not isinstance(default, bool)
        text = option.field.metadata["help"].replace("%", "%%") + f" (default: {default})" * shown
        if option.positional:
            group.add_argument(name, nargs="*" if option.many else "?", metavar=option.flag, help=text)
        elif option.kind is bool:
            group.add_argument(option.flag, action="store_true", help=text)
        else:
            group.add_argument(option.flag, metavar=option.metavar, help=text)
    return parser.format_help()
