"""What a job knows a person's own functions and classes by, so that none goes on with figures of what they were before.

It is their code, and that of the modules of the person's own which theirs imports: the bytes of the source files, and
compiled code, which tells apart functions of one file, and is all that a notebook has. What is installed is known by
its name, and so is what is vitrail's.
"""

import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from vitrail.arguments import in_python

Files = dict[str, str]  # the hash of each source file, by the name of its module


def own_code(objects: Iterable[object]) -> str:
    """A hash of the code of functions and classes, in hexadecimal digits.

    Args:
        objects: They may be bound to values, as by `functools.partial` or as fields of an object that can be called:
            values count as far as their text says.
    """
    files, seen = Files(), set[int]()
    told = [line for each in objects for line in _told(each, files, seen)]
    return hashlib.blake2b(repr((sorted(files.items()), told)).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _told(one: Any, files: Files, seen: set[int]) -> Iterator[str]:
    """Names, compiled code and bound values of an object; the files that its code is from are added."""
    one = inspect.unwrap(one)
    if id(one) in seen and isinstance(one, FunctionType | type):
        return
    seen.add(id(one))
    match one:
        case partial():
            parts = [one.func, *one.args, *one.keywords, *one.keywords.values()]
        case MethodType():
            parts = [one.__func__, one.__self__]
        case FunctionType():
            yield f"{one.__module__}.{one.__qualname__}"
            if not _add_files(one.__globals__, files):
                return
            yield _text_of(one.__code__)
            parts = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            for cell in one.__closure__ or ():
                with suppress(ValueError):  # it is empty yet
                    parts.append(cell.cell_contents)
        case type():
            yield f"{one.__module__}.{one.__qualname__}"
            spaces = [(kind, vars(sys.modules.get(kind.__module__, ModuleType("")))) for kind in one.__mro__]
            own = [kind for kind, space in spaces if _add_files(space, files)]
            parts = [inner for kind in own for inner in vars(kind).values() if inspect.isroutine(inner)]
        case _:
            yield f"{in_python(one)} {getattr(one, '__qualname__', '')}"
            parts = [type(one)]
    for part in parts:
        yield from _told(part, files, seen)


def _add_files(space: Mapping[str, Any], files: Files) -> bool:
    """Add the file of a module, and those of its own that it imports; False where it is installed, or vitrail's."""
    name, file = space.get("__name__") or "", space.get("__file__")
    top, folders = name.partition(".")[0], Path(file or "").parts
    if top == "vitrail" or top in sys.stdlib_module_names or any(each.endswith("-packages") for each in folders):
        return False
    if name in files or file is None:
        return True
    with suppress(OSError):
        files[name] = hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    for value in list(space.values()) if name in files else ():
        if isinstance(value, ModuleType):
            module = value
        else:
            module = sys.modules.get((value if isinstance(value, FunctionType | type) else type(value)).__module__)
        _add_files({} if module is None else vars(module), files)
    return True


def _text_of(code: CodeType) -> str:
    """Compiled code and its constants, as every process has them."""
    constants = [
        _text_of(each)
        if isinstance(each, CodeType)
        else sorted(map(repr, each))
        if isinstance(each, frozenset)
        else each
        for each in code.co_consts
    ]
    return repr((code.co_code.hex(), code.co_names, constants))
