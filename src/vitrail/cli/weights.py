"""Other people's weights as a verb opens them: what was typed of them, who vouches, and how images go in."""

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail.cli.args import Assumptions, Weights
from vitrail.data import readers
from vitrail.data.images import FileImages, Images
from vitrail.errors import MODEL, DataError, UsageError, VitrailError
from vitrail.model import Model
from vitrail.model.sureness import load_surely
from vitrail.weights.assume import TYPES


@contextlib.contextmanager
def typed_hints(typed: Assumptions) -> Iterator[None]:
    """Hints hold what was typed before: the model, and earlier assumptions beside those still needed."""
    try:
        yield
    except VitrailError as error:
        hint = error.typed.replace(MODEL, shlex.join(["--model", getattr(typed, "model", "MODEL")]))
        if new := re.match(r"--assume (\S*[^\s,])", hint):
            named = {part.partition("=")[0] for part in new[1].split(",")}
            before = [part.strip() for part in (typed.assume or "").split(",")]
            kept = [part for part in before if part.partition("=")[0] in TYPES.keys() - named]
            hint = f"--assume {','.join([*kept, new[1]])}{hint[new.end() :]}"
        if hint == error.typed:
            raise
        raise type(error)(error.problem, hint) from error


def load_weights(
    run: str, device: torch.device, typed: Weights, images: Sequence[str] = (), data_root: Path | None = None
) -> tuple[Model, str]:
    """The model of weights, of which something may have been typed; and which way in it is surer of, or nothing.

    Args:
        run: What names them.
        device: Where the network goes.
        typed: What was said of them, and the size of images.
        images: What it will be asked about, files, folders or a set: where nobody vouches for how images go in, some
            are answered in each of the usual ways, and one that is clearly surer is named.
        data_root: Where named sets lie.

    Raises:
        UsageError: If something is left open.
        DataError: If they cannot be read.
    """
    with typed_hints(typed):
        return load_surely(run, partial(_at_hand, images, data_root), device, **said(typed))


def _at_hand(names: Sequence[str], data_root: Path | None) -> Images | None:
    """The images that files, folders or the name of a set mean; what cannot be read is reported where it is read."""
    paths = [Path(name).expanduser() for name in names]
    with contextlib.suppress(VitrailError):
        if len(names) == 1 and (readers.is_packed(names[0]) or not paths[0].is_dir()) and readers.format_of(names[0]):
            splits = readers.read(names[0], data_root).splits
            inputs = splits.get("test", next(iter(splits.values()))).inputs
            return inputs if isinstance(inputs, Images) else None
        return FileImages([file for path in paths for file in (readers.image_files(path) if path.is_dir() else [path])])
    return None


def said(typed: Weights) -> dict[str, Any]:
    """What was typed of other people's weights, and the size of images, as `load` takes it; see `assumptions_of`."""
    found = assumptions_of(typed)
    if typed.image_size is not None:
        found["image_size"] = size_of(typed.image_size)
    if typed.channels is not None:
        found["channels"] = typed.channels
    return found


def assumptions_of(typed: Assumptions) -> dict[str, Any]:
    """What was typed of other people's weights, as `load` takes it; nothing where nothing was typed.

    Raises:
        UsageError: A value cannot be read.
        DataError: The file of names cannot.
    """
    assume: dict[str, Any] = {}
    for part in typed.assume.split(",") if typed.assume is not None else ():
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise UsageError(f"--assume has '{part}', which is no NAME=VALUE", "--assume heads=6,norm_eps=1e-6")
        if name in assume and assume[name] != _value(value):
            problem = f"--assume says {name}={assume[name]} and {name}={value}, which cannot both be"
            raise UsageError(problem, f"--assume {name}={value}, or the other alone")
        assume[name] = _value(value)
    for name, given in (("mean", typed.mean), ("std", typed.std)):
        if given is not None:
            assume[name] = _numbers(name, given)
    found: dict[str, Any] = {"assume": assume} if assume else {}
    if typed.class_names is not None:
        found["classes"] = _names(typed.class_names)
    return found


def _value(word: str) -> Any:
    """A word as the number, or the size, that it is; or itself."""
    if re.fullmatch(r"\d+x\d+", word):
        return size_of(word)
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False}.get(word.lower(), word)


def _numbers(name: str, given: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in given.split(","))
    except ValueError as error:
        raise UsageError(f"--{name} must be numbers with commas between, got '{given}'", f"--{name} 0.5") from error


def size_of(given: str) -> tuple[int, int]:
    """Height and width of a side, or of HEIGHTxWIDTH.

    Raises:
        UsageError: It is neither.
    """
    sides = given.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isdecimal() and int(side) for side in sides):
        raise UsageError(f"--image-size must be a side or HEIGHTxWIDTH in pixels, got '{given}'", "--image-size 224")
    return int(sides[0]), int(sides[-1])


def _names(file: Path) -> tuple[str, ...]:
    """The names in a file, one a line; lines without one are passed over."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        problem = f"the names of the classes in {file} cannot be read ({type(error).__name__})"
        raise DataError(problem, "a text file with a name a line") from error
    names = tuple(filter(None, lines))
    for name in (name for name, count in Counter(names).items() if count > 1):
        first, second = [number for number, line in enumerate(lines, start=1) if line == name][:2]
        problem = f"{file}: lines {first} and {second} are both '{name}', and classes of one name cannot be told apart"
        raise DataError(problem, f"another name in line {second}")
    return names
