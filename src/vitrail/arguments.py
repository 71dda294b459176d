"""What a person passes: arguments, words of options and objects of their own, and how each is checked.

@typed                                                                       an argument of a wrong type is named
class Samples(Numbered): ...                                                 a number that there is not is refused
parse_word(int | None, "none")                                               a word becomes what an annotation allows
with contract("the reader read_bars", "(data, data_root) -> RawDataset"):   whatever goes wrong inside is one line
    demand(isinstance(found, RawDataset), "it gave a list")
check_passed(own, {"task": task}, "'runs/x'", python_call("load", ["'runs/x'"], own))    the hint is the call that works
"""

import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, reduce, wraps
from importlib.resources import files
from operator import or_
from pathlib import Path, PurePath
from pkgutil import resolve_name
from types import FunctionType, GenericAlias, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from vitrail.errors import (
    Hint,
    UsageError,
    VitrailError,
    check_bounds,
    check_index,
    check_option,
    nearest,
    out_of_memory,
    public_name,
)

PASSED = "python:"  # begins the name of what was passed as an object, such as data
OWN_PART = "own:"  # in front of the name of a part that is a person's own
FEW_KINDS = 4  # of what an argument may be, that a message lists


Public = TypeVar("Public", bound=Callable[..., Any])


def typed(public: Public) -> Public:
    """A public function or class: where it breaks because of an argument of a wrong type, the error names that one.

    Arguments are held against their annotations only when something has broken, so nothing that works is refused, but
    for a word where True or False is wanted: it would always be true. All public constructors and functions are
    checked, and what a network reads; the `forward` of the modules inside of it runs at each pass, and its errors are
    torch's own.
    """
    inner = public.__init__ if isinstance(public, type) else public
    truths = {name for name, hint in getattr(inner, "__annotations__", {}).items() if hint in (bool, "bool")}

    @wraps(inner)
    def call(*values: Any, **named: Any) -> Any:
        if words := [name for name in truths & named.keys() if isinstance(named[name], str)]:
            raise UsageError(_misfit(inner, words[0], named[words[0]]), _meant(public, inner, named))
        try:
            return call.__wrapped__(*values, **named)  # pyrefly: ignore[missing-attribute]
        except VitrailError:
            raise
        except Exception as error:
            if problem := _find_mistyped(inner, values, named):
                raise UsageError(problem, _meant(public, inner, named)) from error
            raise

    if isinstance(public, type):
        public.__init__ = call  # pyrefly: ignore[bad-assignment]
        return public
    return call  # pyrefly: ignore[bad-return]


def typed_names(find: Callable[[str], Any], names: dict[str, Any]) -> Callable[[str], Any]:
    """A `__getattr__` of a package, by which its functions and classes are `typed` for who asks the package for them.

    Inside of it, each pass of a network is made of the plain functions.

    Args:
        find: The `__getattr__` of the lazy loader.
        names: The globals of the package, where what is found is kept.
    """

    def get(name: str) -> Any:
        found = find(name)
        inner = found.__init__ if isinstance(found, type) else found
        names[name] = typed(found) if isinstance(inner, FunctionType) else found
        return names[name]

    return get


def _meant(public: Callable[..., Any], inner: Callable[..., Any], named: Mapping[str, Any]) -> Hint:
    """What is meant by names that are not known: the nearest, or fields of its options; else how it is called."""
    known = inspect.signature(inner).parameters
    unknown = {name: value for name, value in named.items() if name not in known}
    options = known["options"].default if "options" in known else None
    is_value = is_dataclass(options) and not isinstance(options, type)
    if is_value and (inside := _those_of(type(options).__init__, unknown, ())):
        return Hint({"options": replace(options, **inside)})
    meant = _those_of(inner, unknown, named)
    return Hint(meant) if meant else Hint(drop=[*unknown], text=_call_of(public))


@cache
def guesses(kind: str) -> dict[str, str]:
    """What people type for verbs, features that are not there, or options, and what each means: `guesses.yaml`."""
    import yaml  # for what is wrong alone

    table = yaml.safe_load(files("vitrail").joinpath("guesses.yaml").read_text("utf-8")).get(kind, {})
    return {word: meaning for meaning, words in table.items() for word in words.split()}


def _those_of(function: Callable[..., Any], unknown: Mapping[str, Any], named: Collection[str]) -> dict[str, Any]:
    """The arguments of a function, but for those that are named, that are meant by unknown names with their values."""
    known, meant = {name.replace("_", "-"): name for name in inspect.signature(function).parameters}, dict[str, Any]()
    for word, value in unknown.items():
        dashed = word.replace("_", "-")
        like = nearest(dashed, [name for name in known if name[0] == dashed[0]], 0.75) or ""
        for each in (*guesses("options").get(dashed, "").split(), like):
            name, _, fixed = each.partition("=")
            one, stated = known.get(name, ""), fixed or value
            if one and one not in named and (one == word or not _misfit(function, one, stated)):
                meant[one] = stated
                break
    return meant


def _call_of(public: Callable[..., Any]) -> str:
    """How it is called with all that it needs, and where the rest is told."""
    each, name = inspect.signature(public).parameters.values(), public_name(public)
    needed = [one.name for one in each if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    called = ", ".join(one for one in needed if one not in ("self", "cls"))
    return f"{name}({called}); help({name}) says what each is"


def _find_mistyped(function: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any]) -> str:
    """The first argument that its annotation does not allow, in words; empty where all are allowed."""
    signature, name = inspect.signature(function), function.__qualname__.removesuffix(".__init__")
    if unknown := [word for word in named if word not in signature.parameters]:
        return f"{name} has no argument {' and no '.join(unknown)}"
    try:
        given = signature.bind(*values, **named).arguments
    except TypeError as error:
        return f"{name}: {error}"
    return next(filter(None, (_misfit(function, name, value) for name, value in given.items())), "")


def _misfit(function: Callable[..., Any], name: str, value: Any) -> str:
    """What is wrong with a value for this argument, in words; empty where its annotation allows it."""
    with suppress(NameError):  # of what is imported for type checkers alone
        hint = function.__annotations__.get(name, Any)
        return type_misfit(name, value, eval(hint, function.__globals__) if isinstance(hint, str) else hint)
    return ""


def check_types(made: Any) -> None:
    """Refuse a field of a wrong type, or out of its bounds, at once, where nothing would break by it.

    Defaults are right, and the text of a path becomes one.

    Raises:
        UsageError: Names the first of them.
    """
    for one in fields(made):
        value, kinds = getattr(made, one.name), get_args(one.type) or (one.type,)
        if isinstance(value, str) and Path in kinds and str not in kinds:
            value = Path(value)
            object.__setattr__(made, one.name, value)
        if value is not one.default and (problem := type_misfit(one.name, value, one.type)):
            raise UsageError(problem, Hint(drop=[one.name]))
        check_bounds(one.name, value, one.metadata)


class Later:
    """A function of the library that is imported when it is first needed.

    Args:
        place: MODULE:NAME.
    """

    def __init__(self, place: str) -> None:
        self.place, self.__name__ = place, place.rpartition(":")[2]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return resolve_name(self.place)

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Import the function, and call it."""
        return self.__wrapped__(*given, **options)


# ---- numbers of things


class Numbered:
    """One of n things has a number from 0, and -1 is the last; n is `len(self)`.

    A public method of a class of these whose first argument is called `index`, or `indices`, `ids` or `rows` where it
    takes several, raises PlaceError for a number that there is not, and UsageError for what is no number.
    """

    def __init_subclass__(cls) -> None:
        """Check the numbers before each method."""
        for name, method in [*vars(cls).items()]:
            if inspect.isfunction(method) and not name.startswith("_"):
                argument = next(iter([*inspect.signature(method).parameters][1:]), "")
                if argument == "index":
                    setattr(cls, name, _of_one(method))
                elif argument in ("indices", "ids", "rows"):
                    setattr(cls, name, _of_several(method, argument))


def _of_one(method: Any) -> Any:
    @wraps(method)
    def call(self: Any, index: Any, *others: Any, **named: Any) -> Any:
        if type(index) is not int or not 0 <= index < len(self):  # quick, since a set may have millions
            index = check_index("index", index, len(self))
        return method(self, index, *others, **named)

    return call


def _of_several(method: Any, argument: str) -> Any:
    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        numbers, count = given[0] if given else named.pop(argument, None), len(self)
        check_option(argument, numbers, isinstance(numbers, Iterable), "several whole numbers", [0])
        try:
            beyond = numbers[(numbers < 0) | (numbers >= count)]  # of an array, at once
        except TypeError:
            beyond = numbers = [*numbers]
        if len(beyond):
            found = [check_index(argument, each, count) for each in beyond]
            numbers = found if beyond is numbers else numbers % count
        return method(self, numbers, *given[1:], **named)

    return call


# ---- annotations, which pydantic reads: nothing else of the library does, but networks, which need torch alone


def type_misfit(what: str, value: Any, hint: Any) -> str:
    """What is wrong with a value that an annotation does not allow, in words; empty where it does, or cannot be read.

    Args:
        what: What the value is called.
        value: Any.
        hint: The annotation. A dataclass allows its instances; what they hold is not looked at.
    """
    with suppress(TypeError):  # of an annotation that is more than classes
        if isinstance(value, hint):
            return ""
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # which nothing needs that works
    from pydantic.errors import PydanticUserError

    kept, anything = (str, bytes), ConfigDict(arbitrary_types_allowed=True)
    single: Any = GenericAlias(tuple, (_by_instance(hint),))
    with suppress(PydanticUserError):
        try:
            (found,) = TypeAdapter(single, config=anything).validate_python((value,))
            fits = all(isinstance(found, kind) == isinstance(value, kind) for kind in kept)  # text is not converted
            fits = fits and (isinstance(value, Sequence) or not isinstance(found, tuple))
        except ValidationError:
            fits = False
        if not fits:
            kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            wanted = [re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(kind)) for kind in kinds]
            wanted = " | ".join([*wanted[:FEW_KINDS], *(["..."] if wanted[FEW_KINDS:] else ())])
            given = "" if value is None else f"{type(value).__name__} "
            return f"{what} must be {wanted.replace('NoneType', 'None')}, got {given}{value!r:.60}"
    return ""


def _by_instance(hint: Any) -> Any:
    """An annotation with dataclasses as classes, whose fields pydantic would read."""
    from pydantic import InstanceOf

    origin: Any = get_origin(hint)
    parts = tuple(map(_by_instance, get_args(hint)))
    if origin in (Union, UnionType):
        return reduce(or_, parts)
    if origin in (tuple, Mapping):
        return origin[parts]  # pyrefly: ignore[unsupported-operation]
    return InstanceOf[hint] if is_dataclass(hint) else hint


def parse_word(hint: Any, word: str, finite: bool = False) -> Any:
    """The value of a word that was typed: `6`, `1e-3`, `true`, `none`, a size `16x24`, numbers `0.5,0.4`, or itself.

    Args:
        hint: The annotation of the value.
        word: As it was typed.
        finite: Whether nan and inf are refused.

    Raises:
        ValueError: It is none that the annotation allows; says what that wants.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # which a help text does not need

    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=not finite)  # tensors, which are for Python
    read = TypeAdapter(Literal[True, False] if hint is bool else hint, config=config)  # and not 1, yes, on
    said, sides = {"none": None, "true": True, "false": False}.get(word.lower(), word), re.split("[x,]", word.lower())
    try:
        return read.validate_python(said)
    except ValidationError as error:
        with suppress(ValidationError):
            found = read.validate_python(sides)
            return tuple(found) if isinstance(found, list) else found
        wanted = (each["msg"].removeprefix("Input should be ").partition(",")[0] for each in error.errors())
        raise ValueError(" or ".join(dict.fromkeys(wanted))) from error


class Broken(Exception):
    """A contract that is not kept; `contract` names its owner."""


def demand(kept: bool, problem: str) -> None:
    """Hold one clause of a contract.

    Args:
        kept: Whether it is kept.
        problem: What is wrong where it is not, for a sentence that names its owner before.

    Raises:
        Broken: It is not kept.
    """
    if not kept:
        raise Broken(problem)


@contextmanager
def contract(whose: str, wanted: str, kind: type[VitrailError] = UsageError) -> Iterator[None]:
    """Whatever goes wrong in this block, in code that a person brought, is one line with its contract.

    Args:
        whose: What is asked: "the reader read_bars".
        wanted: Its contract, for the hint.
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
    """File and line of a person's own code in which an error arose; empty where there is none."""
    others = (str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def import_own(what: str, option: str) -> object:
    """An object that a person named as MODULE:NAME on the command line, of a module found from the current folder, too.

    Args:
        what: MODULE:NAME.
        option: By which it is typed, for a hint.

    Raises:
        UsageError: There is no such module, it cannot be imported, or it does not have the name.
    """
    module, _, name = what.partition(":")
    if module.endswith(".py") or not all(part.isidentifier() for part in (*module.split("."), name)):
        stem, problem = PurePath(module).stem, f"an object of your own is named MODULE:NAME, got '{what}'"
        named = next((part for part in name.split(":") if part.isidentifier()), "METHOD")
        right = f"{stem if stem.isidentifier() else 'mymethods'}:{named}"
        raise UsageError(problem, Hint({option: right}, python=right))
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        problem = f"there is no module {module} in this folder or among the installed packages"
        raise UsageError(problem, f"PYTHONPATH=FOLDER with the folder of {module}.py")
    with contract(f"the module {module}", f"python -c 'import {module}'"):
        found = importlib.import_module(module)
    if name not in vars(found):
        right = f"{module}:{nearest(name, vars(found)) or 'METHOD'}"
        raise UsageError(f"the module {module} has no {name}", Hint({option: right}, python=right))
    return vars(found)[name]


def check_kind(name: str, passed: object, kind: Any, wanted: str) -> None:
    """Hold an argument that takes an object, or None, against the class that is wanted.

    Args:
        name: Of the argument.
        passed: What was passed.
        kind: Its class.
        wanted: What to pass, for the hint.

    Raises:
        UsageError: It is of another class, or the class itself.
    """
    if passed is not None and not isinstance(passed, kind):
        what = f"the class {passed.__name__}" if isinstance(passed, type) else type(passed).__name__
        hint = f"{name}={passed.__name__}(...)" if isinstance(passed, type) else wanted
        raise UsageError(f"{name} must be {kind.__name__}, got {what}", hint)


def in_python(value: Any) -> str:
    """A value as Python source, as far as that can be known: `PredictNumber(bins=3)`, `Weighted(...)`."""
    if is_dataclass(value):
        known = [(each.name, getattr(value, each.name), each.default) for each in fields(value) if each.init]
        words = [f"{name}={in_python(new)}" for name, new, usual in known if repr(new) != repr(usual)]
        return f"{type(value).__name__}({', '.join(words)})"
    text = f"Path({str(value)!r})" if isinstance(value, PurePath) else repr(value)
    return f"{type(value).__name__}(...)" if "<" in text else text


def python_call(verb: str, words: Sequence[str], own: Mapping[str, str]) -> str:
    """The call in Python that a run or a model wants which was made with a person's own objects.

    Args:
        verb: load, evaluate, train or distill.
        words: The arguments in front of the objects, as they are typed.
        own: What is stored of each object, by its kind. What has no name that can be typed becomes `...`; data that
            were an object, which have a reader, become the argument `data`.
    """
    words = ["data" if word.startswith(repr(PASSED)[:-1]) else word for word in words]
    named = (f"{kind}={_named(kind, name)}" for kind, name in own.items() if not name.startswith(PASSED))
    return f"vitrail.{verb}({', '.join([*words, *named])})"


def _named(kind: str, stored: str) -> str:
    if kind == "parts":
        slots = [slot.partition("=") for slot in stored.split(", ") if "=" in slot]
        return f"vitrail.nn.Parts({', '.join(f'{slot}={_part(slot, name)}' for slot, _, name in slots) or '...'})"
    found = re.fullmatch(r"(?:.*<locals>\.)?([A-Za-z_][\w.]*)(\(.*\))?", stored)
    if found is None or (kind == "task" and not found[2]):
        return "..."
    return found[1] + (found[2] or "(...)" * (kind == "network"))


def _part(slot: str, name: str) -> str:
    called = name.removeprefix(OWN_PART)
    if name == called:
        return f"vitrail.nn.parts_of({{{slot!r}: {name!r}}}).{slot}"
    return called if called.isidentifier() else "..."


def check_passed(own: Mapping[str, str], passed: Mapping[str, object], name: str, call: str) -> None:
    """Refuse to open what was made with a person's own objects without them.

    Args:
        own: What is stored of each, by its kind.
        passed: The objects, by their kind; None where there is none.
        name: What was made.
        call: With all of them, as it is typed.

    Raises:
        UsageError: Names those that are missing; its hint is the call.
    """
    missing = [kind for kind in own if passed.get(kind) is None]
    said = (f"{kind} {own[kind]}".strip().replace(f"reader {PASSED}", "data of the type ") for kind in missing)
    if missing := "; ".join(said):
        raise UsageError(f"{name} was made with objects of your own, which were not passed: {missing}", call)
