"""What a job knows a person's own functions and classes by, so that none goes on with figures of what they were before.

Of own modules these are the bytes of their files and of the own modules that these import, whether or not they have
been imported yet; and the compiled code, which tells apart functions of one file. Where no file is known, as in a
notebook, and in a script, which workers get without its file, it is compiled code and the globals that it reads. What
is bound counts everywhere: closures, arguments, fields. What is installed, and vitrail's, is known by its name.
"""

import ast
import dis
import hashlib
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec, resolve_name
from pathlib import Path, PurePath
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.data.tensor_files import digest_of

INSIDE = "__func__", "__self__", "fget", "fset", "fdel"  # of methods and properties
Files = dict[str, str]  # the hash of each source file, by the name of its module

PLAIN = str | bytes | int | float | complex | None | PurePath  # known by their text
PASSING = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}  # of any module: its mode and hooks


def own_code(objects: Iterable[object]) -> str:
    """A hash of the code of functions and classes, in hexadecimal digits: the same in every process.

    Args:
        objects: They may be bound to values, as by `functools.partial` or as fields of an object that can be called.
            Tensors, arrays, images and weights count with all their numbers, an own object with the state that it is
            pickled with: `__getstate__` may leave out what it fills as it runs. Of an object of an installed type
            count its plain fields and what can be called.
    """
    files, seen, told = Files(), dict[int, tuple[int, object]](), list[str]()
    left = [*objects][::-1]
    while left:
        one = left.pop()
        if not isinstance(one, PLAIN | tuple | frozenset):  # equal ones of these may be one object or several
            if id(one) in seen:
                told.append(f"number {seen[id(one)][0]}")
                continue
            seen[id(one)] = len(seen), one  # held, so that no other gets its id
        text, parts = _told(one, files)
        told.append(f"{_name(type(one))} {text} {len(parts)}")
        left += parts[::-1]
    return hashlib.blake2b(repr((sorted(files.items()), told)).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _told(one: Any, files: Files) -> tuple[str, list[Any]]:
    """An object in words, and what else it is known by; the files that its code is from are added."""
    match one:
        case str() | bytes() | int() | float() | complex() | None | PurePath():
            return _text(one), []
        case Tensor():
            with suppress(RuntimeError, TypeError, ValueError):  # it is sparse, or has no numbers
                return digest_of({"": one.resolve_conj().resolve_neg()}), []
            return f"{tuple(one.shape)} {one.dtype} {one.layout}", []
        case np.ndarray() | np.generic() | Image.Image():
            array = np.asarray(one)
            parts = [array.tolist()] if array.dtype.hasobject else [array.tobytes()]
            return f"{array.shape} {array.dtype}", parts
        case ModuleType():
            _follow(one.__name__, vars(one).get("__file__"), files)
            return one.__name__, []
        case CodeType():
            names = one.co_names, one.co_varnames, one.co_freevars, one.co_flags
            return repr((one.co_code.hex(), names)), [*one.co_consts]
        case FunctionType():
            return _name(one), _of_function(one, files)
        case type():
            own = [kind for kind in one.__mro__ if _follow(kind.__module__, None, files)]
            members = (each for kind in own for each in sorted(vars(kind).items()))
            parts = [(name, value) for name, value in members if callable(value) or not name.startswith("__")]
            return " ".join(map(_name, one.__mro__)), parts
        case partial():
            return "", [type(one), one.func, *one.args, *sorted(one.keywords.items())]
        case MethodType() | BuiltinMethodType() | staticmethod() | classmethod() | property():
            return str(getattr(one, "__name__", "")), [getattr(one, each, None) for each in INSIDE]
        case _:
            return _of_instance(one, files)


def _of_function(one: Any, files: Files) -> list[Any]:
    """What a function is known by beside its name; nothing of one that an installed module has under that name."""
    module = sys.modules.get(one.__module__ or "")
    if getattr(module, one.__name__, None) is one and not _follow(one.__module__, None, files):
        return []  # also where a tool that checks types has wrapped it as it was imported, which workers do without
    name, wrapped, bound = one.__globals__.get("__name__") or "", vars(one).get("__wrapped__"), list[Any]()
    for cell in one.__closure__ or ():
        with suppress(ValueError):  # it is empty yet
            bound.append(cell.cell_contents)
    if not _follow(name, one.__globals__.get("__file__"), files):
        return [wrapped, *_steady(bound)]
    parts = [wrapped, one.__code__, one.__defaults__, one.__kwdefaults__, *bound]
    if name in files:
        return parts
    read = sorted(_globals_in(one.__code__) & one.__globals__.keys())
    return [*parts, *((each, one.__globals__[each]) for each in read), *sorted(vars(one).items())]


def _of_instance(one: Any, files: Files) -> tuple[str, list[Any]]:
    """What an object of any other type is known by: its items and its fields."""
    kind, text, items = type(one), "", list[Any]()
    match one:
        case list() | tuple() | deque():
            items = [*one]
        case dict():
            items = [*one.items()]
        case set() | frozenset():
            items = sorted(one, key=_order)
    held = getattr(one, "__dict__", None)
    if isinstance(one, nn.Module):
        items += sorted((name, value) for name, value in vars(one).items() if name not in PASSING)
    elif any(_follow(each.__module__, None, files) for each in kind.__mro__) or is_dataclass(one):
        with suppress(Exception):  # a person's own `__getstate__`
            held = one.__getstate__()
        lazy = {name for each in kind.__mro__ for name, value in vars(each).items() if type(value) is cached_property}
        kept = (
            [(str(name), value) for name, value in held.items() if name not in lazy] if isinstance(held, dict) else []
        )
        items += sorted(kept, key=lambda each: each[0]) or [held]
    elif held is not None and kind is not RemovableHandle:  # whose number counts the hooks of the process
        items += _steady(value for _, value in sorted(held.items()))
    elif held is None and not items:
        text = _text(one)
    return text, [kind, *items]


def _steady(values: Iterable[Any]) -> list[Any]:
    """Of what an installed object holds, what it was made with: it may also hold what it computed last."""
    inner = [each for value in values for each in (value if isinstance(value, list | tuple) else (value,))]
    return [each for each in inner if isinstance(each, PLAIN) or callable(each) or is_dataclass(each)]


def _globals_in(code: CodeType) -> set[str]:
    """The names of globals that compiled code reads, also in the functions in it."""
    read = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*(_globals_in(each) for each in code.co_consts if isinstance(each, CodeType)))


def _name(one: Any) -> str:
    return f"{one.__module__}.{one.__qualname__}"


def _text(one: object) -> str:
    """An object in words, as every process has them."""
    with suppress(Exception):
        return repr(one) if isinstance(one, PLAIN) else re.sub("0x[0-9a-fA-F]+", "", repr(one))
    return ""


def _order(one: Any) -> str:
    return f"{_name(type(one))} {_text(one)} {one.__code__.co_code.hex() if isinstance(one, FunctionType) else ''}"


def _follow(name: Any, file: str | None, files: Files) -> bool:
    """Add the file of an own module, and those of the own modules that it imports; False where it is none's own.

    Args:
        name: Of the module.
        file: Where it lies; that of the imported module of this name when None.
        files: They are added there, where they can be read.
    """
    name = str(name)
    known = sys.modules.get(name) or sys.modules.get(name.partition(".")[0]) or ModuleType(name)
    file = str(file or getattr(known, "__file__", None) or "")
    if not _is_own(name, file):
        return False
    left = [(name, file)] if name != "__main__" else []
    while left:
        name, file = left.pop()
        with suppress(OSError, ValueError):
            if name not in files and _is_own(name, file):
                source = Path(file).read_bytes()
                files[name] = hashlib.blake2b(source, digest_size=16).hexdigest()
                package = name if Path(file).stem == "__init__" else name.rpartition(".")[0]
                left += (each for imported in _imports(source, package) for each in _files_of(imported))
    return True


def _is_own(name: str, file: str) -> bool:
    top, is_installed = name.partition(".")[0], any(each.endswith("-packages") for each in Path(file).parts)
    return top == "__main__" or not (top == "vitrail" or top in sys.stdlib_module_names or is_installed)


@lru_cache(512)
def _imports(source: bytes, package: str) -> set[str]:
    """The full names of what a file imports, anywhere in it: modules, and what may be a module or a name in one."""
    found = set[str]()
    with suppress(SyntaxError, ValueError, ImportError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = resolve_name("." * node.level + (node.module or ""), package)
                found |= {f"{whole}.{each.name}" for each in node.names}
    return found


def _files_of(name: str) -> Iterator[tuple[str, str]]:
    """The files of a module and of the packages around it; nothing is imported."""
    top, *inner = name.split(".")
    with suppress(ImportError, ValueError):
        spec = find_spec(top) if _is_own(top, "") else None
        if spec is not None:
            yield top, spec.origin or ""
            for folder in spec.submodule_search_locations or ():
                for depth in range(1, len(inner) + 1):
                    for end in (".py", "/__init__.py"):
                        yield ".".join([top, *inner[:depth]]), f"{Path(folder, *inner[:depth])}{end}"
