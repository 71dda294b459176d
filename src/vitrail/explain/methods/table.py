"""The tables of methods, methods of a person's own beside them, and which of them a comparison takes.

The rows stand in `methods.yaml`; the file of a method, and torch, are imported when it is first called.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vitrail.arguments import Later, contract, demand, import_own
from vitrail.errors import DataError, Hint, UsageError, located, nearest
from vitrail.explain.methods.method import Method, Option

if TYPE_CHECKING:
    from vitrail.explain.attribution import Attribution


def _method(name: str, row: Mapping[str, Any]) -> Method:
    options = {option: Option(**values) for option, values in row.get("options", {}).items()}
    values: dict[str, Any] = {"signed": False, "class_specific": False, **row, "options": options}
    return Method(Later(f"{__package__}.{name}:{name}"), name=name, **values)


_ROWS = yaml.safe_load(files("vitrail.explain.methods").joinpath("methods.yaml").read_text("utf-8"))
METHODS: dict[str, Method] = {name: _method(name, row) for name, row in _ROWS["of_images"].items()}
# The target of these is what an image-to-sequence network wrote, and a map belongs to each of its tokens.
METHODS_OF_TEXTS: dict[str, Method] = {name: _method(name, row) for name, row in _ROWS["of_texts"].items()}
MethodLike = str | Method | Callable[..., Any]

DEFAULT = "generic_attention"
ALL = "all"  # but for those that take long, cannot answer or have to be named
USUAL, USUALLY = "usual", 4  # the first so many of these that can answer: what a comparison has by itself
# One of a kind first, the best of it by benchmarks/explain.md: gradients of attention (supported on 82 of 100
# photographs), attention alone (23 of 30), what tokens add (19 of 30), gradients of pixels (9 of 30, 0.94 in the lab).
KINDS = (
    *("generic_attention", "rollout", "attcat", "saliency"),
    *("gradient_rollout", "occlusion", "integrated_gradients", "input_x_gradient", "smooth_grad"),  # where one cannot
)
PATCHES = 256  # with more of them, a comparison leaves out what masks one patch after the other
SLOW_WITH_PATCHES = ("occlusion",)
LONG, CLASS_AGNOSTIC = "they take long", "they are class-agnostic"  # why it leaves methods out
NO_TOKENS = "they read the tokens of a ViT"
FUNCTION = "a function (network, images, target) -> numbers (b, h, w) or (b, rows, columns), or Attribution"
CONTRACT = "METHOD = vitrail.explain.Method(...) of a function (network, images, target=None, **options) -> Attribution"


def methods_of(
    methods: MethodLike | Sequence[MethodLike], contrast: bool, patches: int, tokens: bool = True
) -> tuple[tuple[Method, ...], tuple[str, ...]]:
    """The methods that were named, each once; and a sentence on those that "all" leaves out, for each reason.

    Args:
        methods: Names, methods, their functions, or "all" or "usual" (four of different kinds), also as the only one
            of several.
        contrast: Whether a class is held against another, which not every method can explain.
        patches: How many an image has, which decides what "all" leaves out.
        tokens: Whether the network has tokens; of another, "all" is what takes any network.

    Raises:
        UsageError: If a method is unknown, or two have the same name; or one was named that cannot explain one class
            rather than another.
    """
    if methods in (USUAL, [USUAL], (USUAL,)):
        able = [name for name in KINDS if not _why_left_out(METHODS[name], contrast, patches, tokens)][:USUALLY]
        words = f"{len(able)} of {len(METHODS)} methods, of different kinds; --methods {ALL} for all but the slow ones"
        return tuple(METHODS[name] for name in able), (words,)
    if methods in (ALL, [ALL], (ALL,)):
        why = {each.name: _why_left_out(each, contrast, patches, tokens) for each in METHODS.values()}
        reasons = [reason for reason in dict.fromkeys(why.values()) if reason]
        notes = (_left_out_words(reason, [name for name in why if why[name] == reason]) for reason in reasons)
        return tuple(each for each in METHODS.values() if not why[each.name]), tuple(notes)
    is_one = isinstance(methods, str) or not isinstance(methods, Iterable)
    option, several = ("method", [methods]) if is_one else ("methods", list(methods))
    if not several:
        raise UsageError("no method named", f"methods='{DEFAULT}'")
    found = dict[str, Method]()
    for one in several:
        method = method_of(one, option, several)
        both = found.setdefault(method.name, method), method
        if both[0] != method and len({inspect.unwrap(each.function) for each in both}) > 1:
            titles = " and ".join(f"{each.title} ({inspect.unwrap(each.function).__module__})" for each in both)
            raise UsageError(f"two methods are named {method.name}: {titles}", 'name="another_name" in one of the rows')
    agnostic = [each.name for each in found.values() if not each.class_specific]
    if contrast and agnostic:
        able = [each.name for each in found.values() if each.class_specific] or [DEFAULT]
        problem = f"a contrast cannot be explained by methods that are class-agnostic: {', '.join(agnostic)}"
        raise UsageError(problem, Hint({option: ",".join(able)}, python=f"methods={able}"))
    return tuple(found.values()), ()


def _why_left_out(method: Method, contrast: bool, patches: int, tokens: bool) -> str:
    """Why "all" leaves out a method; empty where it does not."""
    if not (tokens or method.any_network):
        return NO_TOKENS
    if method.costly or (method.name in SLOW_WITH_PATCHES and patches > PATCHES):
        return LONG
    return CLASS_AGNOSTIC if contrast and not method.class_specific else method.opt_in


def _left_out_words(reason: str, names: Sequence[str]) -> str:
    """What "all" leaves out, and how it is named where it can answer."""
    named = ",".join(names) if reason == LONG else ",".join((DEFAULT, *names))
    them = "them" if len(names) > 1 else "it"
    more = "" if reason in (CLASS_AGNOSTIC, NO_TOKENS) else f"; --methods {named} takes {them}"
    return f"left out, since {reason}: {', '.join(names)}{more}"


def method_of(method: MethodLike, option: str = "method", beside: Sequence[MethodLike] = ()) -> Method:
    """A method by its name or its function, one of your own by MODULE:NAME, stored maps by their folder, or itself.

    Args:
        method: Which.
        option: By which it is typed, for a hint.
        beside: All that stand there with it.

    Raises:
        UsageError: If there is none of this name or function, or it is for models that generate text.
        DataError: There is no such folder, or no map in it.
    """
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        called = getattr(method, "__name__", type(method).__name__)
        row = (METHODS | METHODS_OF_TEXTS).get(called)
        if row is not None and method in (row.function, getattr(row.function, "__wrapped__", None)):
            return row
        if not callable(method) or row is not None:
            problem = f"{called} is none of vitrail's methods{' but has the name of one' if callable(method) else ''}"
            raise UsageError(problem, f"methods={DEFAULT!r}, or {FUNCTION} with another name")
        about = inspect.getdoc(method) or f"A method of your own, {called}."
        name = called if called.isidentifier() else "own_method"
        made = Method(method, name.replace("_", " "), True, True, about.partition("\n")[0], about, name, "unknown")
        return _checked(made, f"the method {called}", FUNCTION)
    if method in METHODS_OF_TEXTS:
        problem = f"method '{method}' is for models that generate text, but this model does not"
        raise UsageError(problem, Hint({option: DEFAULT}, python=f"methods={DEFAULT!r}"))
    if (folder := maps_folder(method)) is not None:
        return _stored(folder)
    if method not in METHODS and ":" in method:
        return import_method(method, option)
    if method not in METHODS:
        near = _nearest(method)
        problem = f"unknown method '{method}'; the methods are {', '.join(METHODS)}"
        typed = ",".join(near if each == method else str(each) for each in beside or [method])
        raise UsageError(problem, Hint({option: typed}, python=f"methods={near!r}"))
    return METHODS[method]


def _nearest(word: str) -> str:
    """The name that a word stands for, most likely: the shortest that holds it (`cam`: grad_cam), or the nearest."""
    plain = word.lower().replace("-", "_").replace(" ", "_")
    holding = [name for name in METHODS if plain in name] if plain else []
    return min(holding, key=len, default=None) or nearest(plain, METHODS, 0.52) or DEFAULT  # at a half it is chance


def maps_folder(word: str) -> Path | None:
    """The folder of maps that a word names, where it is no name of a method."""
    folder, known = Path(word).expanduser(), {"", ALL, USUAL, *METHODS, *METHODS_OF_TEXTS}
    is_path = not {"/", os.sep}.isdisjoint(word) and ":" not in word
    return folder.absolute() if word not in known and (is_path or folder.is_dir()) else None


def from_anywhere(methods: Any) -> Any:
    """The same methods, where folders of maps are found from any other folder."""
    if isinstance(methods, str):
        return str(maps_folder(methods) or methods)
    return [*map(from_anywhere, methods)] if isinstance(methods, Iterable) else methods


def _stored(folder: Path) -> Method:
    """The method whose maps lie in a folder; it is called by the folder's name."""
    if next(folder.rglob("*.npy"), None) is None:
        problem = f"{folder} holds no maps, one .npy file for each image" if folder.is_dir() else f"no folder {folder}"
        raise DataError(problem, "numpy.save('maps/photo.jpg.npy', map) for photo.jpg, (h, w) or (rows, columns)")
    name = re.sub(r"\W", "_", folder.name)
    name = name if name.isidentifier() and name not in METHODS | METHODS_OF_TEXTS else f"maps_{name}"
    summary = f"read from the folder {folder.name}, one array for each image"
    about = f"These maps were {summary}, and are taken to be of the answer; how they were computed is not known."
    function = functools.partial(Later("vitrail.explain.reporting.stored_maps:stored_maps"), folder=folder, method=name)
    title = f"Maps in {folder.name}"
    return Method(function, title, True, True, summary, about, name, "unknown", any_network=True, folder=folder)


def import_method(what: str, option: str = "method") -> Method:
    """A method of a person's own, which is checked against its contract as it runs; a plain function as in Python.

    Args:
        what: MODULE:NAME (`mymethods:METHOD`), of a module that can be imported from here.
        option: By which it is typed, for a hint.

    Raises:
        UsageError: There is no such module or name, it holds no method, or one with the name of another.
    """
    found = import_own(what, option)
    if callable(found):
        return method_of(found)
    with contract(f"the method {what}", CONTRACT):
        demand(isinstance(found, Method), f"it is {type(found).__name__}")
        assert isinstance(found, Method)
        demand(found.name.isidentifier(), f"its name is {found.name!r}, which cannot be a file name")
        unknown = found.options.keys() - inspect.signature(found.function).parameters.keys()
        demand(not unknown, f"its function has no parameter {', '.join(sorted(unknown))}")
    if found.name in METHODS | METHODS_OF_TEXTS:
        raise UsageError(f"the method {what} has the same name as vitrail's {found.name}", "another name in its row")

    return _checked(found, f"the method {what}", CONTRACT)


def _checked(method: Method, what: str, wanted: str) -> Method:
    """The same method, whose function is held against its contract as it runs; a plain function may return numbers."""

    @functools.wraps(method.function)
    def checked(network: Any, images: Any, target: Any = None, **options: Any) -> "Attribution":
        from vitrail.explain.attribution import Attribution

        with contract(what, wanted):
            made, row = method.function(network, images, target, **options), wanted == CONTRACT
            if not row and not isinstance(made, Attribution):
                with located(what):
                    made = Attribution.of_pixels(made, images, network, target)
            demand(isinstance(made, Attribution), f"it returned {type(made).__name__}")
            shape, size = tuple(made.values.shape), (len(images), *network.grid(images))
            demand(shape == size, f"its values have shape {shape}, not {size}")
            if not row:
                return replace(made, method=method.name)
            stated = method.name, method.signed, method.class_specific
            same = (made.method, made.signed, made.class_specific) == stated
            demand(same, "its attributions have another method, signed or class_specific than its row")
            return made

    return replace(method, function=checked)
