"""From words to a checked dataclass: a field is an option, every error is two lines, and argparse writes the help.

The fields come from `vitrail.cli.args`; the type of a field decides how a word is read:

    int, float, str, Path, also `| None`   --batch-size 64 (or --batch-size=64, or --batch_size 64)
    int | tuple[int, int]                  --image-size 32x160 (or 32 160); one number is a square
    tuple[float, ...] | None               --mean 0.5,0.4,0.3 (or 0.5 0.4 0.3)
    Literal["auto", "never"], also | None  --resume auto, and no other word
    bool                                   --json; where True is the default, --no-background
    tuple[str, ...]                        names without an option, as many as there are; as an option NAME=VALUE, it
                                           may be repeated, with another name

Of any other option that is repeated the last value counts. Options of a base class with a `TITLE` stand below it in a
help text. What does not go together is refused by what fields state (`vitrail.options.option`), before a verb is
imported. The hint of an error becomes the whole corrected command: `command_of`, for the errors of all verbs.
"""

import argparse
import inspect
import json
import mimetypes
import re
import shlex
import textwrap
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields
from functools import reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from vitrail.arguments import guesses, parse_word
from vitrail.data.sources import is_named
from vitrail.errors import Hint, UsageError, as_word, check_bounds, nearest, words_inside
from vitrail.weights.places import of_others

Options = TypeVar("Options")

_KINDS: dict[Any, tuple[str, str]] = {int: ("N", "a whole number"), float: ("X", "a number"), Path: ("PATH", "a path")}
_NUMBER = r"[(\[]?[+-]?(\d+\.?|\d*\.\d+)(e[+-]?\d+)?,?[)\]]?"  # one of several, also as Python writes it
_FORMS = {"size": r"\w+/\d+", "device": r"(auto|gpu|cpu|cuda|mps)?(:?\d+)?"}  # of values that may be any word
_MOST = 8  # files in the command of a hint; of more, the first
_HELP = "-h", "--help"


def positional(default: Any = MISSING, *, help: str = "", example: str = "", unless: str = "") -> Any:
    """A name without an option.

    Args:
        default: It is required where there is none.
        help: What it names, where the docstring of the class does not state it.
        example: What a hint types, instead of the usual word of `EXAMPLES`.
        unless: It is required, but for an option of one of these names.
    """
    stated = {"help": help, "positional": True, "example": example, "unless": unless}
    return field(default=default, metadata=stated)


def hidden(instead: str, default: Any = None) -> Any:
    """An option that a verb inherits and does not have; a hint names another."""
    return field(default=default, metadata={"instead": instead})


# What a hint types for an option of a name, where its field states nothing else
EXAMPLES: dict[str, Any] = {"data": "./photos", "images": "photo.jpg", "inputs": "photo.jpg"}
EXAMPLES |= dict.fromkeys(("run", "teacher", "out"), "runs/latest") | {"init": "weights.safetensors"}

DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2212"  # what a page or a word processor makes of a hyphen


class _Option:
    """One field of the dataclass of a verb, as an option or a name.

    Attributes:
        name: Of the field.
        default: Of the field; MISSING where it has none.
        metadata: What else the field states.
        stated: The same by its name; None where it does not.
        help: What it does.
        kind: Its annotation, without None: what is left out, no word says.
        choices: The only words that are taken; all where empty.
        many: Whether each of several words is a value.
        positional: Whether it is a name without an option.
        hidden: What to try instead of an option that is not the verb's; None for one that is.
        required: Whether it must be there.
        flag: Such as `--batch-size`; the name in capitals where there is no option.
        example: What a hint types; True where nothing is known that fits.
        metavar: What stands for its value in a help text.
        wanted: What a word must be.
        more: What further words of its value look like, if there may be some: numbers, or NAME=VALUE.
    """

    def __init__(self, field: Field[Any], hint: Any, help: str) -> None:
        self.name, self.default, self.metadata = field.name, field.default, field.metadata
        self.stated = field.metadata.get
        self.help = self.stated("help") or help
        parts = [part for part in get_args(hint) if part is not NoneType]
        self.kind = reduce(or_, parts) if get_origin(hint) is UnionType else hint
        self.choices = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        self.many = self.kind == tuple[str, ...]
        self.positional, self.hidden = bool(self.stated("positional")), self.stated("instead")
        self.required = self.default is MISSING or bool(self.stated("unless"))
        dashed, no = self.name.replace("_", "-"), "no-" if self.default is True else ""
        self.flag = dashed.upper() if self.positional else f"--{no}{dashed}"
        known = self.stated("example", ""), EXAMPLES.get(self.name, ""), *self.choices, True
        self.example = next(each for each in known if each != "")
        words = f"{{{','.join(self.choices)}}}" if self.choices else self.name.upper()
        shown, named = _KINDS.get(self.kind, (words, "a name"))
        self.metavar = self.stated("metavar") or shown
        beside = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        numbers = [_KINDS[part][1] for part in parts if part in _KINDS and beside]
        either = self.choices or [*numbers, *beside]
        self.wanted = " or ".join(either) or self.stated("metavar") or named
        series = any(get_origin(kind) is tuple for kind in (self.kind, *get_args(self.kind))) and not self.many
        self.more = _NUMBER if series else r"\w+=\S+" if self.metavar == "NAME=VALUE,..." else ""

    def read(self, word: str, wanted: str) -> Any:
        """The value of a word.

        Args:
            word: As it was typed.
            wanted: What to try where nothing is like it.

        Raises:
            UsageError: The word is of another kind.
        """
        if self.kind is bool:
            return self.default is not True
        if self.kind is str and (word or self.positional):
            return word
        with suppress(ValueError):
            if self.kind in (int, float):
                return self.kind(word)  # without pydantic, which reads what is no plain number
        with suppress(ValueError):
            if word:
                return parse_word(self.kind, word)
        guess = nearest(word, self.choices) or ("" if self.choices else self.stated("example", ""))
        problem = f"{self.flag} must be {self.wanted}, got '{word}'"
        raise UsageError(problem, wanted if guess == "" else Hint({self.name: guess}))

    def takes(self, word: str) -> bool:
        """Whether a word may well be its value: no number is meant as a path, and no photograph as a device."""
        if self.choices or self.many:
            return word in (self.choices or (word,))
        if self.kind in (str, Path):
            is_number = self.kind is Path and re.fullmatch(_NUMBER, word)
            return not is_number and (self.positional or bool(re.fullmatch(_FORMS.get(self.name, ".*"), word)))
        return bool(re.fullmatch(r"[+-]?\d+", word) if self.kind is int else re.match(r"[(\[]?[+-]?\.?\d", word))

    def goes_on(self, word: str) -> bool:
        """Whether a word behind its value belongs to it, too: another number, NAME=VALUE, or another method."""
        if self.name in ("method", "methods"):
            from vitrail.explain.methods.table import METHODS, METHODS_OF_TEXTS

            return word in METHODS | METHODS_OF_TEXTS
        return bool(self.more and re.fullmatch(self.more, word)) and not Path(word).exists()

    def meant(self, word: str) -> dict[str, Any]:
        """What it sets with this word, for a hint."""
        name, equals, value = word.partition("=")
        inner = {name: value} if self.many and equals else word
        return {self.name: self.default is not True if self.kind is bool else inner}

    def typed(self, words: Sequence[str]) -> list[str]:
        """With these values, as it stands on a command line."""
        if self.positional:
            return list(words)
        return [each for word in words for each in ((self.flag,) if self.kind is bool else (self.flag, word))]


def options_of(kind: type) -> dict[str, _Option]:
    """All options of a verb by the names of their fields, also those that are hidden."""
    hints, helps = get_type_hints(kind), _help_of(kind)
    return {each.name: _Option(each, hints[each.name], helps.get(each.name, "")) for each in fields(kind)}


def _help_of(kind: type) -> dict[str, str]:
    """What the docstrings of a dataclass and its bases have under `Attributes`, by the names of fields."""
    found = dict[str, str]()
    for base in reversed(kind.__mro__):
        about = inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")[2]
        each = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", about, re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in each}
    return found


def parse(kind: type[Options], verb: str, words: Sequence[str]) -> Options:
    """The options of one verb; with --help that text is printed, and the process ends.

    Args:
        kind: A dataclass of `vitrail.cli.args`, whose docstring is the verb's help; its `MORE`, if it has one, makes
            what stands below the options, of the words.
        verb: Its name, for messages.
        words: What follows the verb on the command line.

    Raises:
        UsageError: For an unknown option (offers the nearest), a word of the wrong kind, or what does not go together.
    """
    options = options_of(kind)
    given, values, usage = _given(verb, words, options), dict[str, Any](), f"vitrail {verb} --help"
    if given.get("", [""])[0] in _HELP:
        print(parser_of(kind, verb).format_help() + getattr(kind, "MORE", lambda words: "")(words), end="")
        raise SystemExit(0)
    for name, found in given.items():
        if not name:
            raise UsageError(f"vitrail {verb} takes no argument {' '.join(found)}", usage)
        option, inner = options[name], list(map(_name_in, found))
        for i, word in enumerate(found if option.many and not option.positional else ()):
            if inner[i] in inner[:i]:
                raise UsageError(f"{option.flag} {inner[i]} stands more than once", Hint(option.meant(word)))
        hint = _misplaced(option, verb, words, given, options) if option.positional and option.choices else usage
        values[name] = tuple(found) if option.many else option.read(found[0], hint)
    needed = {name: one for name, one in options.items() if one.required}
    said = {*values, *(f"{name}={value}" for name, value in values.items())}
    missing = [one for name, one in needed.items() if not {name, *(one.stated("unless") or "").split()} & said]
    for one in missing:
        about = re.split(r"[;.] | \(", one.help.rstrip("."))[0]
        problem = f"vitrail {verb} needs {one.flag} ({about[0].lower()}{about[1:]})"
        first = given.get("run", [""])[0]
        typed = {each.name: (each.positional and data_of(first)) or each.example for each in missing}
        if one.positional and first and names_images(first):
            typed |= {one.name: first, "run": options["run"].example}
        raise UsageError(problem, Hint(typed))
    named = [word for name, found in given.items() if options[name].positional for word in found]
    if runs := [word for word in named[1:] if "run" in given and _is_run(word) and not _is_run(named[0])]:
        problem = f"{named[0]} stands where a run is wanted, and the run {runs[0]} behind it"
        raise UsageError(problem, Hint(instead={named[0]: runs[0], runs[0]: named[0]}))
    needs = getattr(kind, "NEEDS", {})
    _check({name: value for name, value in values.items() if value != options[name].default}, needs, options)
    return kind(**values)


def data_of(run: str) -> str:
    """The data of a run, as they are named; empty where they are gone, or no run is."""
    try:
        name = str(json.loads((Path(run) / "data.json").read_text("utf-8"))["name"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return name if is_named(name) or Path(name).exists() else ""


def _misplaced(
    option: _Option, verb: str, words: Sequence[str], given: Mapping[str, list[str]], options: Mapping[str, _Option]
) -> str:
    """The command for a word that is none of the choices of a name: it is the next name, if that is left out."""
    after = [one.name for one in options.values() if one.positional and one is not option][:1]
    is_next = any(given.get(name, option.choices)[0] in option.choices for name in after)
    gone = {*option.choices} if is_next else {*option.choices, *given[option.name]}
    return shlex.join(["vitrail", verb, option.choices[0], *(word for word in words if word not in gone)])


def names_images(word: str) -> bool:
    """Whether a word that stands where a run is wanted names images: an image, a named set, or what is no model."""
    path = Path(word)
    if not path.exists():
        return is_named(word) or str(mimetypes.guess_type(word)[0]).startswith("image/")
    return not (_is_run(word) or of_others(path) or (path / "config.yaml").exists())


def _is_run(word: str) -> bool:
    """Whether a word is the path of a run, or of a model."""
    return any((Path(word) / inside / "config.json").is_file() for inside in ("", "model"))


def _given(
    verb: str, words: Sequence[str], options: Mapping[str, _Option], *, strict: bool = True
) -> dict[str, list[str]]:
    """The words of each option that is there, by the name of its field; under "" those that are of none.

    Args:
        verb: For messages.
        words: What follows it on the command line. The value of an option may begin with a hyphen.
        options: Of the verb.
        strict: Whether an unknown option is refused; else the one that is meant stands in its place.

    Raises:
        UsageError: For an option that is not there, and one without its value.
    """
    flags = {option.flag: option for option in options.values() if not option.positional}
    known, usage = [flag for flag, option in flags.items() if option.hidden is None], f"vitrail {verb} --help"
    places, found = [option for option in options.values() if option.positional], dict[str, list[str]]()
    left, names_alone = deque(words), False
    while left:
        word = left.popleft()
        name, equals, value = word.partition("=")
        flag, option = name.replace("_", "-"), None
        if word == "--" and not names_alone:
            names_alone = True
            continue
        if word in _HELP:
            return {"": [word]}
        if names_alone or not re.match(rf"--|[{DASHES}][^\W\d]", word):
            value = word
            option = next((each for each in places if each.many or each.name not in found), None)
        else:
            is_next = bool(left) and left[0].partition("=")[0].replace("_", "-") not in known
            follows = value if equals else left[0] if is_next else None
            option, fixed = (flags[flag], None) if flag in known else _meant(flag, follows, options)
            problem = f"vitrail {verb} has no option {flag}"
            if option is None:
                absent = (guesses("absent") | guesses(f"absent of {verb}")).get(flag.lstrip(DASHES).lower(), usage)
                instead, _, text = absent.partition("  # ")
                gone = {word: instead} | ({follows: ""} if is_next and not equals and follows else {})
                hint = Hint(instead=gone, text=text) if instead.startswith("--") else absent
                raise UsageError(problem, (flag in flags and flags[flag].hidden) or hint)
            if option.kind is bool and equals and strict:
                on = value.lower() not in ("no", "false", "off", "0")
                hint = Hint({option.name: on is not option.default})
                raise UsageError(f"{flag} takes no value, got '{value}'", hint)
            if fixed is not None or option.kind is bool or equals:
                value = str(fixed) if fixed is not None else value
            elif not is_next and (option.example is True or (flag in known and strict)):
                raise UsageError(f"{flag} must be followed by {option.wanted}", usage)
            else:
                value = left.popleft() if is_next else as_word(option.example)
            if flag not in known and strict:
                hint = Hint({option.name: fixed} if fixed is not None else option.meant(value))
                raise UsageError(problem, hint)
            if isinstance(fixed, bool):
                continue
            if option.positional and not option.many and found.get(option.name, [value]) != [value]:
                left.extendleft(found.pop(option.name))  # what stood there moves on
            while left and option.goes_on(left[0]):
                value += f",{left.popleft()}"
            if option.more == _NUMBER:
                value = re.sub(r"[()\[\]]|,(?=,|$)", "", value.replace(" ", ","))
        name = option.name if option else ""
        found[name] = [*found.get(name, ()), value] if option is None or option.many else [value]
    return found


def _meant(flag: str, follows: str | None, options: Mapping[str, _Option]) -> tuple[_Option | None, str | bool | None]:
    """The option that is meant by a flag that is none, if it takes what follows; and its value, if that is known.

    Args:
        flag: As it was typed.
        follows: What stands behind it; None for nothing, or another option.
        options: Of the verb.
    """
    word = flag.lstrip(DASHES).lower()
    known = {name if one.positional else one.flag[2:]: one for name, one in options.items() if one.hidden is None}
    other = word.removeprefix("no-") if word.startswith("no-") else f"no-{word}"
    if other in known and known[other].kind is bool:  # what is so without it
        return known[other], bool(known[other].default)
    like = [name for name in known if not known[name].positional and (name[0] == word[:1] or f"-{name}" in word)]
    near = ("" if word in guesses("absent") else nearest(word, like, 0.75)) or ""
    hidden = next((one.hidden for one in options.values() if one.hidden and one.flag == flag), None) or ""
    table, stem = guesses("options"), word.rstrip("0123456789-")
    glued = [f"{name}={word[len(stem) :]}" for name in (stem, *table.get(stem, "").split()) if "=" not in name]
    for each in (hidden.removeprefix("--"), *table.get(word, "").split(), *(glued if stem != word else ()), near):
        name, _, fixed = each.partition("=")
        value, option = fixed or follows, known.get(name)
        if option is None:
            continue
        fits = (each == near and option.example is not True) if value is None else option.takes(value)
        if fits or option.kind is bool:
            return option, fixed or None
    return None, None


def _name_in(word: str) -> str:
    """The name in NAME=VALUE, in the spelling of Python."""
    return word.partition("=")[0].replace("-", "_")


def _check(values: Mapping[str, Any], needs: Mapping[str, str], options: Mapping[str, _Option]) -> None:
    """Refuse values that do not go together, or are out of their bounds.

    Args:
        values: That were typed, other than the defaults.
        needs: What an option of this verb needs, where that is not what its field states.
        options: Of the verb.

    Raises:
        UsageError: Names the first.
    """
    for name, value in values.items():
        option, flag = options[name], options[name].flag
        check_bounds(name, value, option.metadata, flag)
        for other in (option.stated("apart") or "").split():
            if other in values:
                raise UsageError(f"{flag} and {options[other].flag} cannot be combined", Hint(drop=[name]))
        others = [options[other] for other in (needs.get(name) or option.stated("needs") or "").split()]
        if others and not any(other.name in values for other in others):
            shown = f"{value:g}" if isinstance(value, float) else as_word(value)
            problem = f"{flag} {shown} needs {others[0].flag}, which is missing"
            missing = others[0]
            pairs = [pair for each in values for pair in ((missing, each), (options[each], missing.name))]
            apart = any(other in (one.stated("apart") or "").split() for one, other in pairs)
            raise UsageError(problem, Hint(drop=[name]) if apart else Hint({missing.name: missing.example}))


def command_of(hint: Hint, kind: type, verb: str, words: Sequence[str]) -> str:
    """A hint as the whole command: with its options in place of those that were there before, and without others.

    Its text stands behind as a comment, so that the line can be typed as it is.

    Args:
        hint: Of an error. It stays as it is where it names no options, or none that can be changed here.
        kind: The dataclass of the verb.
        verb: Its name.
        words: What followed the verb on the command line.
    """
    said = {Path(word).absolute(): other for word, other in hint.instead.items()}
    again = [said.get(Path(word).absolute(), word) for word in words]
    if again != [*words]:
        return _with_comment(verb, filter(None, again), hint.text)
    options, gone = options_of(kind), [name.partition(".")[::2] for name in hint.drop]
    try:
        given = _given(verb, words, options, strict=False)
    except UsageError:
        given = {"": [*words]}
    touched = {*hint.flags, *(name for name, _ in gone)}
    if touched and touched <= options.keys() and "" in given:  # something else is wrong, too
        return f"vitrail {verb} --help"
    if not touched <= options.keys() or "" in given or not (hint.flags or touched & given.keys()):
        return hint.text if hint.text and not touched else str(hint)

    def parts(name: str) -> list[str]:
        """What stands inside of an option."""
        return given.get(name, []) if options[name].many else ",".join(given.get(name, [])).split(",")

    for name, key in ((name, key) for name, key in gone if name in given):
        left = [part for part in parts(name) if key and _name_in(part) != key]
        given[name] = left if options[name].many else [",".join(left)] * bool(left)
    for name, value in hint.flags.items():
        if isinstance(value, Mapping):
            found = {_name_in(part): part for part in (*parts(name), *words_inside(value)) if part}
            given[name] = [*found.values()] if options[name].many else [",".join(found.values())]
        elif options[name].many and isinstance(value, tuple):
            given[name] = [*value]
        elif options[name].kind is bool:
            given[name] = [""] * (value is not options[name].default)
        elif as_word(value) not in given.get(name, ()):
            given[name] = [as_word(value)]
    many = next((each for name, each in given.items() if options[name].positional and len(each) > _MOST), [])
    many[_MOST:] = ["..."] * bool(many)
    ordered = iter(sorted((name for name in given if options[name].positional), key=[*options].index))
    names = [next(ordered) if options[name].positional else name for name in given]
    return _with_comment(verb, (word for name in names for word in options[name].typed(given[name])), hint.text)


def _with_comment(verb: str, words: Iterable[str], text: str) -> str:
    return "  # ".join(filter(None, (shlex.join(["vitrail", verb, *words]), text)))


class _Lines(argparse.HelpFormatter):
    """Lines that are broken between words, never within a name such as small-images."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def parser_of(kind: type, verb: str) -> argparse.ArgumentParser:
    """What writes the help of a verb, its own options first, and what shells complete; words are read by `parse`."""
    options = [each for each in options_of(kind).values() if each.hidden is None]
    names = [one.flag if one.default is MISSING else f"[{one.flag}]" for one in options if one.positional]
    needed = [f"{one.flag} {one.metavar}" for one in options if one.default is MISSING and not one.positional]
    usage = " ".join([f"vitrail {verb}", *names, *needed, "[--flags]"])
    text = " ".join((kind.__doc__ or "").partition("Attributes:")[0].split()).replace("%", "%%")
    parser = argparse.ArgumentParser(f"vitrail {verb}", usage, text, formatter_class=_Lines)
    titles = dict[str, str]()
    for base in reversed(kind.__mro__[1:]):  # an option stays in the group in which it first stands
        for name in vars(base).get("__annotations__", ()):
            titles.setdefault(name, getattr(base, "TITLE", ""))
    titles |= dict.fromkeys(vars(kind)["__annotations__"], "")  # what a verb defines anew is its own
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(titles.values()) if title}
    for option in sorted(options, key=lambda each: each.name not in vars(kind)["__annotations__"]):
        name, default, group = option.name, option.default, groups.get(titles[option.name], parser)
        shown = default not in (MISSING, None, "", ()) and not isinstance(default, bool)
        text = option.help.replace("%", "%%") + f" (default: {default})" * shown
        choices = option.choices or None
        if option.positional:
            nargs = "*" if option.many else "?"
            group.add_argument(name, nargs=nargs, metavar=option.flag, choices=choices, help=text)
        elif option.kind is bool:
            group.add_argument(option.flag, action="store_true", help=text)
        else:
            group.add_argument(option.flag, metavar=option.metavar, choices=choices, help=text)
    return parser
