"""Errors of two lines: what was given and what was wanted, then what to try.

Every error that a person can cause is one of these. The command line prints it without a traceback and leaves with
its exit code; in Python it is a `ValueError` whose text holds both lines. This file imports nothing of the
library, so that any part of it may raise them.
"""

import difflib
import math
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from operator import ge, gt, le, lt
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
LONGEST = 2000  # characters of a line
FEW_NAMES = 10  # that a message lists
DEPTHS = 8, 10, 12, 14, 16  # bits of cameras and scanners, whose files have 16
NAMES = "tiny", "small", "base", "large", "huge", "giant"  # of the sizes of networks, in papers and other libraries
SHELL = re.compile(  # a line for a shell: it begins with the name of a program, or sets a variable
    r"(base64|chmod|curl|df|export|git|hf|ls|mkdir|openssl|pip|python|ray|sha256sum|tar|torchrun|ulimit|unzip"
    r"|vitrail)[ ,]"
    r"|[A-Z]+(_[A-Z]+)*="
)


def _one_line(text: str) -> str:
    """Text that may quote a stranger's file: what no terminal should print is escaped, and its length has an end."""
    cut = text if len(text) <= LONGEST else text[:LONGEST] + " ..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def _in_python(text: str) -> str:
    """A text of a hint where Python is typed: what only a shell takes says so, and our variables are set."""
    if found := re.match(r"export (VITRAIL_\w+)=(\S+)", text):
        return f"os.environ[{found[1]!r}] = {found[2]!r}{text[found.end() :]}"
    return f"in a shell: {text}" if SHELL.match(text) else text


def as_word(value: object) -> str:
    """A value as it is typed: `none`, `true`, a size (16, 24) as `16x24`, other numbers with commas between."""
    if isinstance(value, tuple | list):
        return ("," if any(isinstance(each, float) for each in value) else "x").join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def words_inside(values: Mapping[str, Any]) -> list[str]:
    """What stands inside of an option, as it is typed: `heads=3`."""
    return [f"{name}={as_word(value)}" for name, value in values.items()]


@dataclass(frozen=True)
class Hint:
    """What to try next. In Python it is shown as arguments, on the command line as the whole corrected command.

        Hint({"epochs": 20})    epochs=20                      vitrail train digits --epochs 20
        Hint(drop=["lora"])     the same call without lora     vitrail train digits

    Args:
        flags: Options to set, by their names in Python; those of a mapping are set inside of the option (`assume`).
        drop: Options to leave out; `option.layer` is one that stands inside of another.
        text: What stands behind them, or instead of them; a line for a shell says in Python that it is one.
        python: The whole hint in Python, where that is another.
        instead: Words that were typed, each with what to type for it; one with nothing is left out.
    """

    flags: Mapping[str, Any] = field(default_factory=dict)
    drop: Sequence[str] = ()
    text: str = ""
    python: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it is shown in Python."""
        values = [f"{name}={value!r}" for name, value in self.flags.items()]
        without = [f"the same call without {' and '.join(self.drop)}"] * bool(self.drop)
        text = self.text if values or without or self.instead else _in_python(self.text)
        return _one_line(self.python or ", ".join(filter(None, (*values, *without, *self.instead.values(), text))))


class VitrailError(ValueError):
    """A problem with a remedy.

    Args:
        problem: One line: what was given and what was wanted.
        hint: The next thing to try, in one line; printed after `try: `.
    """

    exit_code = 1

    def __init__(self, problem: str, hint: str | Hint) -> None:
        self.problem = _one_line(problem)
        self.hint = Hint(text=_one_line(hint)) if isinstance(hint, str) else hint
        super().__init__(f"{self.problem}\ntry: {self.hint}")

    def __reduce__(self) -> tuple[type, tuple[str, Hint]]:
        """Pickle by its two arguments, so that a worker process can hand the error to its parent."""
        return type(self), (self.problem, self.hint)


class RunError(VitrailError):
    """The run itself failed (exit code 1)."""


class UsageError(VitrailError):
    """A wrong option, size, recipe or configuration (exit code 2)."""

    exit_code = 2


class PlaceError(UsageError, IndexError):
    """A place that a sequence does not have: also the `IndexError` that ends a loop over it."""


class DataError(VitrailError):
    """Bad data or bad weights (exit code 3)."""

    exit_code = 3


@contextmanager
def raised_as(
    kind: type[VitrailError], problem: str, hint: str | Hint, caught: type[Exception] | tuple[type[Exception], ...]
) -> Iterator[None]:
    """What goes wrong in this block is one line: the problem, and the first line of what was raised; ours stay.

    Args:
        kind: Of the error.
        problem: What could not be done.
        hint: What to try.
        caught: The errors of other libraries that mean so.
    """
    try:
        yield
    except VitrailError:
        raise
    except caught as error:
        why = str(error).strip().partition("\n")[0][:200]
        raise kind(f"{problem} ({type(error).__name__}: {why})", hint) from error


@contextmanager
def located(where: object) -> Iterator[None]:
    """An error of ours in this block says first where it is: the file or the module that is read."""
    try:
        yield
    except VitrailError as error:
        error.problem = f"{where}: {error.problem}"
        error.args = (f"{error.problem}\ntry: {error.hint}",)
        raise


FULL_MEMORY = (  # what torch says where the memory of a device, or of the machine, is full
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",  # of a file that is mapped
    "failed to map segment",  # of a library
    "can't start new thread",  # for its stack
    "could not create a primitive",  # oneDNN
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left."""
    of_torch = isinstance(error, RuntimeError | ImportError) and any(words in str(error) for words in FULL_MEMORY)
    return of_torch or isinstance(error, MemoryError)


WORKER = "DataLoader worker"  # with which torch's message begins when a process that decodes has died


def worker_ended(error: BaseException) -> RunError | None:
    """The error for a process that decodes images and was ended from outside; None for any other error.

    Torch reports it from wherever the training or job is at that moment, or the pipe to the process breaks.
    """
    of_worker = isinstance(error, RuntimeError) and WORKER in str(error)
    if not of_worker and not isinstance(error, ConnectionError | EOFError):
        return None
    problem = f"a process that decodes images was killed, possibly for lack of memory ({error})"
    return RunError(problem, "the same command again; --workers 1 needs less memory")


def counted(number: int, one: str, many: str = "") -> str:
    """1 image, 2 images, 1,258 images: for messages."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def byte_size(number: float | int) -> str:
    """An amount of memory or of a disk, to three digits: 812 bytes, 4.1 kB, 307 kB, 23.5 MB, 1.24 GB; for messages."""
    unit, value = "bytes", float(number)
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if value < 999.5:
            break
        unit, value = larger, value / 1000
    return f"{value:.3g} {unit}"


def some_of(names: Sequence[str], most: int = 8) -> str:
    """The first names, and how many more there are: for messages."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def all_of(names: Sequence[str]) -> str:
    """a, b and c: for messages."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known name that is meant, whatever its capitals, or None.

    Where none is nearly the same, it begins with `name`, is one end of it (`epochs` of `max-epochs`) or has the same
    letters; else it looks most like it: `least` is 1 for the same, and at a half it is chance.
    """
    plain, word = {each.lower(): each for each in known}, name.lower()
    same, close = (difflib.get_close_matches(word, plain, n=1, cutoff=likeness) for likeness in (0.9, least))
    for each in sorted(plain, key=len) if len(word) > 2 and not same else ():
        ends = len(each) > 2 and any(word.startswith(each + dash) or word.endswith(dash + each) for dash in "-_ ")
        if ends or each.startswith(word) or sorted(each) == sorted(word):
            return plain[each]
    return plain[close[0]] if close else None


def no_such_name(word: str, names: Sequence[str], kind: str, argument: str) -> UsageError:
    """The error for a word that is no name of an output of a model; names the one of that number, or the nearest.

    Args:
        word: As it was typed.
        names: Of all outputs, in order; a few are listed.
        kind: What they are: `classes`.
        argument: `target` or `contrast`.
    """
    guess = names[int(word)] if word.isdecimal() and int(word) < len(names) else nearest(word, names)
    hint = Hint({argument: guess}) if guess else Hint(drop=[argument])
    return UsageError(f"'{word}' is none of the {kind} of the model, which are {some_of(names, FEW_NAMES)}", hint)


def same_contrast(name: str, names: Sequence[str]) -> UsageError:
    """The error for an output that is held against itself; offers another."""
    others = [each for each in names if each != name]
    hint = Hint({"contrast": others[0]}) if others else Hint(drop=["contrast"])
    return UsageError(f"target and contrast (--target, --contrast) are both '{name}'", hint)


def no_coverage(kind: str) -> UsageError:
    """The error for a coverage of a model whose outputs are of this kind."""
    problem = f"a coverage is for one class an image and for numbers, but this model gives {kind}"
    return UsageError(problem, Hint(drop=["coverage"]))


def look_at(place: object, *flags: str) -> Hint:
    """A hint to see what lies at a path: `ls`, and in Python what tells the same."""
    python = f"os.{'stat' if any('l' in flag for flag in flags) else 'listdir'}({str(place)!r})"
    return Hint(text=shlex.join(["ls", *flags, str(place)]), python=python)


def look_into(file: object, line: int | None = None, then: str = "") -> Hint:
    """A hint to see the first lines of a file, or one of them: `head` or `sed`, and in Python what reads the same.

    Args:
        file: Its path.
        line: Its number, from 1.
        then: What stands behind it.
    """
    words = ["head", "-n", "3", str(file)] if line is None else ["sed", "-n", f"{line}p", str(file)]
    python = f"pathlib.Path({str(file)!r}).read_text().splitlines()[{':3' if line is None else line - 1}]"
    return _as_typed(words, python, then)


def look_for(name: str, folder: object, then: str = "") -> Hint:
    """A hint to find the files of a name below a folder: `find`, and in Python what finds the same."""
    return _as_typed(["find", str(folder), "-name", name], f"[*pathlib.Path({str(folder)!r}).rglob({name!r})]", then)


def remove(place: object, then: str = "", folder: bool = False) -> Hint:
    """A hint to remove a file, or a folder with all that is in it."""
    words = ["rm", *["-r"] * folder, str(place)]
    return _as_typed(words, f"{'shutil.rmtree' if folder else 'os.remove'}({str(place)!r})", then)


def _as_typed(words: Sequence[str], python: str, then: str) -> Hint:
    both = ("  # ".join(filter(None, (what, then))) for what in (shlex.join(words), python))
    return Hint(text=next(both), python=next(both))


def parse_size(size: str, letters: Collection[str]) -> tuple[str, tuple[int, ...]]:
    """The letter of a size such as S/16 or S/14x7, and the one or two sides of its patches.

    Raises:
        UsageError: It is none; offers the nearest.
    """
    size = str(size)  # whatever it is: the message names it
    letter, _, pixels = size.partition("/")
    words = re.findall(r"[a-z]+|\d+", size.lower().removeprefix("vit"))
    sides = tuple(int(side) for side in pixels.split("x") if side.isdecimal())
    if letter not in letters or len(sides) not in (1, 2) or len(sides) != pixels.count("x") + 1:
        full = [(each, name) for each in letters for name in NAMES if name.startswith(each.lower())]
        meant = [each for word in words for each, name in full if word in (each.lower(), name)]
        guess = next(iter(meant), None) or nearest(letter, letters, 0.5) or "S"
        patch = next((word for word in words if word in ("8", "14", "16", "32")), 16)
        problem = f"unknown size '{size}': a size is one of {' '.join(letters)}, a slash and the patch size in pixels"
        raise UsageError(problem, Hint(instead={size: f"{guess}/{sides[0] if sides else patch}"}))
    return letter, sides


def parse_device(name: str) -> tuple[str, int]:
    """The kind of a device such as cuda:1, and its number, 0 where none stands there; whether it is there, torch knows.

    Raises:
        UsageError: It is none of any machine.
    """
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or bool(colon) != number.isdecimal():
        raise UsageError(f"there is no device '{name}'; devices are cpu, cuda, cuda:1, mps", Hint({"device": "auto"}))
    return kind, int(number or 0)


def check_address(name: str) -> None:
    """Refuse what is no address of a Ray cluster; whether one is there, Ray knows."""
    if name not in ("local", "auto") and not (":" in name and name.rpartition(":")[2].strip("/").isdecimal()):
        problem = f"a Ray cluster must be local, auto or HOST:PORT, got '{name}'"
        raise UsageError(problem, Hint({"ray": "local"}))


def check_task(name: str, known: Collection[str]) -> None:
    """Refuse a task that is none of those that are known; raises UsageError, which offers the nearest."""
    if name not in ("auto", *known):
        near, problem = nearest(name, known), f"there is no task '{name}'; the tasks are {', '.join(known)}"
        raise UsageError(problem, Hint({"task": near}) if near else Hint(drop=["task"]))


def check_fields(config: Any, *, may_be_zero: Collection[str] = (), below_one: Collection[str] = ()) -> None:
    """Hold the fields of a dataclass against their types: bool, int, float, a `Literal`, or a class; or None with it.

    A whole number must be at least 1, another number finite and at least 0. `int | tuple[int, int]` stands for a size:
    one whole number, or (height, width).

    Args:
        config: A dataclass.
        may_be_zero: Fields of whole numbers that may be 0.
        below_one: Fields of numbers that must be below 1.

    Raises:
        UsageError: A field does not fit; names the nearest choice, or the default.
    """
    types = get_type_hints(type(config))
    for one in fields(config):
        name, given = one.name, getattr(config, one.name)
        kinds = get_args(types[name]) if get_origin(types[name]) is not Literal else ()
        kind, *others = [each for each in kinds if each is not NoneType] or [types[name]]
        if given is None and NoneType in kinds:
            continue
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        least, most = int(name not in may_be_zero), 1.0 if name in below_one else math.inf
        if others:
            sides = given if isinstance(given, tuple | list) else (given, given)
            fits = len(sides) == 2 and all(type(side) is int and side >= 1 for side in sides)
            wanted = "whole pixels, one number or (height, width), at least 1"
        elif choices:
            fits, wanted = isinstance(given, str) and given in choices, f"one of {', '.join(choices)}"
        elif kind is int:
            fits, wanted = type(given) is int and given >= least, f"a whole number, at least {least}"
        elif kind is float:
            fits = isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < most
            wanted = "a number, at least 0" + (" and below 1" if most == 1 else "")
        else:
            fits, wanted = isinstance(given, kind), "True or False" if kind is bool else kind.__name__
        if fits:
            continue
        hint = Hint({name: one.default}, text="the default")
        if guess := nearest(str(given), choices):
            hint = Hint({name: guess})
        elif one.default is MISSING or one.default is None:
            hint = Hint(text=wanted) if one.default is MISSING else Hint(drop=[name])
        raise UsageError(f"{name} must be {wanted}, got {given!r}", hint)


def check_keys(known: type, values: Mapping[str, Any]) -> None:
    """Every key names a field of the dataclass, and no field without a default is missing.

    Raises:
        UsageError: A key is unknown, and the nearest field is named; or one is missing.
    """
    names = [one.name for one in fields(known)]
    if not isinstance(values, Mapping):
        raise UsageError(f"a configuration is a mapping, got {type(values).__name__}", "dataclasses.asdict(config)")
    for key in values:
        if key not in names:
            raise UsageError(f"unknown key '{key}' in a configuration", f"{nearest(key, names) or names}")
    for one in fields(known):
        if one.default is MISSING and one.name not in values:
            raise UsageError(f"'{one.name}' is missing in a configuration", "dataclasses.asdict(config)")


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


def public_name(made: Any) -> str:
    """How a function or class is called from outside: in the first of the packages around it that has its name."""
    parts, name = made.__module__.split("."), made.__qualname__
    outside = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    known = (each for each in outside if hasattr(sys.modules.get(each), name.partition(".")[0]))
    return f"{next(known, made.__module__)}.{name}"


def check_kinds(**values: tuple[Any, type]) -> None:
    """Refuse what is not of its class, by name; see `check_option`."""
    for name, (value, kind) in values.items():
        if not isinstance(value, kind):
            problem = f"{name} must be {kind.__name__}, got {type(value).__name__}"
            raise UsageError(problem, f"help({public_name(kind)})")


def check_callables(made: Any) -> None:
    """Refuse a dataclass with a field that cannot be called; see `check_option`."""
    for name, value in vars(made).items():
        if not callable(value):
            raise UsageError(f"{name} must be a callable, got {value!r:.60}", f"{name}=lambda config: ...")


def check_config(config: Any) -> None:
    """Refuse what is not the configuration of a network, not even one of your own; see `check_option`."""
    if not hasattr(config, "width"):
        raise UsageError(f"config must be that of a network, got {type(config).__name__}", "vitrail.ViTConfig()")


def check_index(name: str, place: Any, count: int) -> int:
    """The place, from 0, of one of `count`; -1 is the last.

    Raises:
        PlaceError: There is none of this number.
        UsageError: It is no whole number.
    """
    if not hasattr(place, "__index__") or isinstance(place, bool):
        raise UsageError(f"{name} must be a whole number, got {place!r:.60}", Hint({name: 0}))
    if not -count <= place < count:
        problem = f"{name} must be one of {count}, which are 0 to {count - 1}, got {place}"
        raise PlaceError(problem if count else f"{name} {place} of none", Hint({name: max(0, count - 1)}))
    return int(place) % count


def check_count(name: str, value: Any, usual: int) -> None:
    """Refuse what is not a whole number of at least 1; see `check_option`."""
    check_option(name, value, type(value) is int and value >= 1, "a whole number, at least 1", usual)


BOUNDS = {"least": ("at least", ge), "above": ("above", gt), "most": ("at most", le), "below": ("below", lt)}


def check_bounds(name: str, value: Any, stated: Mapping[str, Any], shown: str = "") -> None:
    """Refuse a number, or several of which one is, outside of its bounds; see `check_option`.

    Args:
        name: Of the option.
        value: Any; what is no number has no bounds.
        stated: Of the option: numbers by the names of `BOUNDS`, and a value that fits as `example`, if there is one.
        shown: What stands for its name in the message.
    """
    bounds = {each: stated[each] for each in BOUNDS if stated.get(each) is not None}
    numbers = [one for one in (value if isinstance(value, tuple) else (value,)) if type(one) in (int, float)]
    if not bounds or not numbers:
        return
    fits = all(math.isfinite(one) and (isinstance(one, float) or -(2**63) <= one < 2**63) for one in numbers)
    fits = fits and all(BOUNDS[each][1](one, bound) for each, bound in bounds.items() for one in numbers)
    wanted = " and ".join(f"{BOUNDS[each][0]} {bound}" for each, bound in bounds.items())
    whole = "a whole number, " * (type(numbers[0]) is int)
    if not fits:
        example = stated.get("example", "")
        hint = Hint(drop=[name]) if example == "" else Hint({name: example})
        raise UsageError(f"{shown or name} must be {whole}{wanted}, got {as_word(value)}", hint)


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuse what is none of the words of a `Literal`; see `check_option`."""
    words = get_args(choices)
    fits = isinstance(value, str) and value in words
    check_option(name, value, fits, f"one of {', '.join(words)}", nearest(str(value), words) or words[0])
