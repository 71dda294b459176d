"""Commands that pages and errors tell people to type: whether the verb, its flags and the make target exist."""

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from vitrail.cli.main import VERBS, main

ROOT = Path(__file__).parent.parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@cache
def help_of(verb: str) -> str | None:
    """What `vitrail VERB --help` prints, None when there is no such verb."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main([verb, "--help"])
        except SystemExit as stop:
            return None if stop.code else out.getvalue()
    return None


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command in a console block; lines that begin with nothing we know are taken as output."""
    for line in block.replace("\\\n", " ").splitlines():
        text = re.sub(r"^\s*\$ ", "", line).strip()
        if re.match(r"(\.venv/bin/)?vitrail\b|make\b", text):
            words = shlex.split(text, comments=True)
            cut = next((i for i, word in enumerate(words) if word in {"|", "&&", ";", ">"}), len(words))
            yield words[:cut]


def command_faults(words: list[str], describe: Callable[[str], str | None] = help_of) -> list[str]:
    """What a command asks for that does not exist: a make target, a verb, a flag."""
    program, *rest = words
    if program == "make":
        asked = [word for word in rest if "=" not in word and not word.startswith("-")]
        return [f"make {target}" for target in asked if target not in make_targets()]
    if not rest or rest[0].startswith("-"):
        return []
    told = describe(rest[0])
    if told is None:
        return [f"vitrail {rest[0]}"]
    return [flag for flag in FLAG.findall(" ".join(rest)) if not has_flag(told, flag)]


def has_flag(told: str, flag: str) -> bool:
    """Whether the help of a verb has this flag, and not only a longer one."""
    return re.search(rf"{re.escape(flag)}(?![\w-])", told) is not None


def hint_faults(hint: str) -> list[str]:
    """What the hint of an error tells to type and that does not exist.

    A hint that begins with `vitrail` is a command; the flags of any other hint must be those of some verb.
    """
    first, *rest = hint.removeprefix("try: ").removeprefix("in a shell: ").split()
    if first == "vitrail" and rest:
        return command_faults([first, *(word.strip(",;:.") for word in rest)])
    if first in ("pip", "curl", "hf"):  # commands of other programs
        return []
    flags = FLAG.findall(hint)
    return [flag for flag in flags if not any(has_flag(help_of(verb) or "", flag) for verb in VERBS)]
