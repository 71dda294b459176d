"""From words to a checked dataclass, by tyro; the only file that knows tyro.

A field of type `X | None` is an option that may be left out; its docstring says what happens then. What tyro draws as a
box becomes our two lines.
"""

import contextlib
import io
import re
import types
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from vitrail.errors import UsageError, nearest

Options = TypeVar("Options")
Positional = tyro.conf.Positional
Hidden = tyro.conf.Suppress  # of an option that a verb inherits and does not have

_KINDS: dict[Any, tuple[str, str]] = {
    int: ("N", "a whole number"),
    float: ("X", "a number"),
    str: ("NAME", "a name"),
    Path: ("PATH", "a path"),
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"[╭╰─╯╮-]{5,}")
_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName)


def described(text: str) -> Any:
    """For `Annotated`: the help of a field whose docstring cannot say it, since it is made from a table."""
    return tyro.conf.arg(help=text)


def parse(kind: type[Options], verb: str, words: Sequence[str], says: str) -> Options:
    """The options of one verb.

    Args:
        kind: A dataclass; its field docstrings are the help.
        verb: Its name, for messages.
        words: What was typed after the verb.
        says: What the verb does, for its help.

    Raises:
        UsageError: For an unknown option (offers the nearest) or a value of the wrong kind.
    """
    _refuse_unknown(kind, verb, words)
    drawn = io.StringIO()
    try:
        with contextlib.redirect_stderr(drawn):
            return tyro.cli(
                _without_empty_defaults(kind),
                args=list(words),
                prog=f"vitrail {verb}",
                description=says,
                registry=_registry(),
                config=_STYLE,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(_in_one_line(drawn.getvalue(), verb), f"vitrail {verb} --help") from None


def _without_empty_defaults(kind: type[Options]) -> type[Options]:
    """The same dataclass, whose help does not say `(default: None)` where nothing is the default."""
    hints = get_type_hints(kind, include_extras=True)
    quiet = tyro.conf.arg(help_behavior_hint="")
    empty = [field.name for field in fields(kind) if field.default in (None, "", ()) or isinstance(field.default, bool)]  # pyrefly: ignore[bad-argument-type]
    shown = type(kind.__name__, (kind,), {"__annotations__": {name: Annotated[hints[name], quiet] for name in empty}})
    return dataclass(frozen=True, kw_only=True)(shown)


def _refuse_unknown(kind: type, verb: str, words: Sequence[str]) -> None:
    flags = {"--help"}
    for field in fields(kind):  # pyrefly: ignore[bad-argument-type]
        name = field.name.replace("_", "-")
        name = f"no-{name}" if field.default is True else name
        flags |= set() if _is_no_flag(field.type) else {f"--{name}"}
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if word.startswith("--") and len(word) > 2 and flag not in flags:
            guess = nearest(flag, flags)
            raise UsageError(f"vitrail {verb} has no option {flag}", guess or f"vitrail {verb} --help")


def _is_no_flag(kind: Any) -> bool:
    return not {Positional, Hidden}.isdisjoint(getattr(kind, "__metadata__", ()))


def _registry() -> tyro.constructors.ConstructorRegistry:
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_optional)
    return registry


def _optional(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """How `X | None` and plain numbers are read and shown."""
    kind = info.type
    if get_origin(kind) in (Union, types.UnionType):
        inner = [part for part in get_args(kind) if part is not type(None)]
        if len(inner) != 1 or type(None) not in get_args(kind):
            return None
        kind = inner[0]
    if kind not in _KINDS:
        return None
    letter, wanted = _KINDS[kind]

    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"wanted {wanted}, got '{words[0]}'") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=letter,
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, kind | int if kind is float else kind),
        str_from_instance=lambda value: [] if value is None else [str(value)],
    )


def _in_one_line(box: str, verb: str) -> str:
    """What stands first in a box that tyro drew: below its title, above the next rule.

    The box has a frame with the title in it, or (where the encoding knows no frames) the title above a line of dashes.
    """
    lines = [_COLOUR.sub("", line).strip("│ ").strip() for line in box.splitlines()]
    top = next((at for at, line in enumerate(lines) if line.startswith("╭") or _RULE.fullmatch(line)), -1)
    end = next((at for at in range(top + 1, len(lines)) if _RULE.fullmatch(lines[at])), len(lines))
    said = " ".join(" ".join(lines[top + 1 : end]).split()).rstrip(".")
    for theirs, ours in (
        (f"Missing from vitrail {verb}:", f"vitrail {verb} needs"),
        ("Error parsing ", ""),
        ("Unrecognized options:", f"vitrail {verb} has no place for"),
        ("A run or model folder (required)", "(a run or model folder)"),
    ):
        said = said.replace(theirs, ours)
    return said or "not understood"
