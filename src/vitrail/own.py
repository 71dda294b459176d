"""Objects that a user passes: how they are checked against their contract, and the call in Python that takes them.

with contract("the reader read_bars", "(data, data_root) -> RawDataset"):   whatever goes wrong inside is one line
    demand(isinstance(found, RawDataset), "it gave a list")
check_passed(stored, {"reader": reader}, "evaluate", ["'runs/x'"])          the hint is the call that is needed
"""

import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

from vitrail.errors import UsageError, VitrailError, nearest, out_of_memory

OWN = "own:"  # in front of the name of a part that is the user's own


class Broken(Exception):
    """A contract is broken; `contract` names its owner."""


def demand(holds: bool, problem: str) -> None:
    """Check one clause of a contract.

    Args:
        holds: Whether it holds.
        problem: What is wrong otherwise, for a sentence that begins with its owner.

    Raises:
        Broken: It does not.
    """
    if not holds:
        raise Broken(problem)


@contextmanager
def contract(whose: str, wanted: str, kind: type[VitrailError] = UsageError) -> Iterator[None]:
    """Whatever goes wrong in this block, in code of the user, is one line with its contract.

    Args:
        whose: The owner of the contract: "the reader read_bars".
        wanted: The contract, for the hint.
        kind: The error that is raised.

    Raises:
        VitrailError: Of that kind; where the library itself raised one it is that.
    """
    try:
        yield
    except VitrailError:
        raise
    except Broken as error:
        raise kind(f"{whose} breaks its contract: {error}", wanted) from None
    except Exception as error:  # anything may go wrong there
        if out_of_memory(error):  # nobody's contract
            raise
        text = str(error).strip().partition("\n")[0]
        problem = f"it raised {type(error).__name__}{': ' * bool(text)}{text}{_place(error)}"
        raise kind(f"{whose} breaks its contract: {problem}", wanted) from error


def _place(error: Exception) -> str:
    """File and line of the user's code in which an error arose; empty where there is none."""
    others = (str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def imported(what: str) -> object:
    """An object by its name on the command line, MODULE:NAME; the module may be in the current folder.

    Raises:
        UsageError: There is no such module, it cannot be imported, or it does not have the name.
    """
    module, _, name = what.partition(":")
    if module.endswith(".py") or not all(part.isidentifier() for part in (*module.split("."), name)):
        stem, problem = PurePath(module).stem, f"an object of your own is named MODULE:NAME, got '{what}'"
        raise UsageError(problem, f"{stem if stem.isidentifier() else 'mymethods'}:{name or 'METHOD'}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        problem = f"there is no module {module} in this folder or among the installed packages"
        raise UsageError(problem, f"PYTHONPATH=FOLDER with the folder of {module}.py")
    with contract(f"the module {module}", f"python -c 'import {module}'"):
        found = importlib.import_module(module)
    if name not in vars(found):
        near = nearest(name, vars(found))
        raise UsageError(f"the module {module} has no {name}", f"{module}:{near or 'METHOD'}")
    return vars(found)[name]


def check_kind(name: str, value: object, kind: Any, wanted: str) -> None:
    """Refuse an argument of another class than is wanted; None passes.

    Args:
        name: Of the argument.
        value: Its value.
        kind: The class.
        wanted: A right value, for the hint.

    Raises:
        UsageError: It is of another class, or the class itself.
    """
    if value is not None and not isinstance(value, kind):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        hint = f"{name}={value.__name__}(...)" if isinstance(value, type) else wanted
        raise UsageError(f"{name} must be a {kind.__name__}, got {what}", hint)


def as_code(value: Any) -> str:
    """A value as code, as far as that is known: `PredictNumber(bins=3)`, `Weighted(...)`."""
    if is_dataclass(value):
        known = [(each.name, getattr(value, each.name), each.default) for each in fields(value) if each.init]
        words = [f"{name}={as_code(new)}" for name, new, usual in known if repr(new) != repr(usual)]
        return f"{type(value).__name__}({', '.join(words)})"
    text = f"Path({str(value)!r})" if isinstance(value, PurePath) else repr(value)
    return f"{type(value).__name__}(...)" if "<" in text else text


def python_call(verb: str, words: Sequence[str], own: Mapping[str, str]) -> str:
    """The call in Python that opens or continues what was made with objects of the user.

    Args:
        verb: load, evaluate, train or distill.
        words: The arguments in front of the objects, as code.
        own: The stored name of each object, by its kind; one that is no code becomes `...`.
    """
    return f"vitrail.{verb}({', '.join([*words, *(f'{kind}={_named(kind, name)}' for kind, name in own.items())])})"


def _named(kind: str, stored: str) -> str:
    if kind == "parts":
        slots = [slot.partition("=") for slot in stored.split(", ") if "=" in slot]
        return f"vitrail.nn.Parts({', '.join(f'{slot}={_part(slot, name)}' for slot, _, name in slots) or '...'})"
    found = re.fullmatch(r"(?:.*<locals>\.)?([A-Za-z_][\w.]*)(\(.*\))?", stored)
    if found is None or (kind == "task" and not found[2]):
        return "..."
    return found[1] + (found[2] or "(...)" * (kind == "network"))


def _part(slot: str, name: str) -> str:
    called = name.removeprefix(OWN)
    if name == called:
        return f"vitrail.nn.parts_of({{{slot!r}: {name!r}}}).{slot}"
    return called if called.isidentifier() else "..."


def check_passed(own: Mapping[str, str], passed: Mapping[str, object], verb: str, words: Sequence[str]) -> None:
    """Refuse to open without its objects what was made with objects of the user.

    Args:
        own: The stored name of each, by its kind.
        passed: The objects, by their kind; None where there is none.
        verb: As for `python_call`, and
        words: likewise; the first is what was made.

    Raises:
        UsageError: Names those that are missing; its hint is the call.
    """
    missing = "; ".join(f"{kind} {own[kind]}".strip() for kind in own if passed.get(kind) is None)
    if missing:
        problem = f"{words[0]} was made with objects of your own, which were not passed: {missing}"
        raise UsageError(problem, python_call(verb, words, own))
