"""Other people's weights as a verb opens them: what was typed of them, who vouches, and how images go in."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitrail.cli.args import Weights
from vitrail.cli.output import warn
from vitrail.data import readers
from vitrail.data.decode import open_picture
from vitrail.errors import DataError, UsageError
from vitrail.model import Model, load
from vitrail.model.foreign import NOBODY, Unstated
from vitrail.model.sureness import MOST, Sureness, sureness

CLEARLY = 0.05  # of the mean top probability, before the second


def load_weights(run: str, device: torch.device, typed: Weights, images: Sequence[str] = ()) -> Model:
    """The model of weights, of which something may have been typed; says who vouches for it.

    Args:
        run: What names them.
        device: Where the network goes.
        typed: What was said of them, and the size of images.
        images: What it will be asked about: where nobody vouches for how images go in, some are answered in each of the
            usual ways, and one that is clearly surer is named.

    Raises:
        UsageError: If something is left open.
        DataError: If they cannot be read.
    """
    given: dict[str, Any] = said(typed)
    try:
        model = load(run, device=device, **given)
    except Unstated as error:
        given["told"] = {**given.get("told", {}), "mean": (0.5,), "std": (0.5,)}
        found = _surely(load(run, **given), images)
        if found is None:
            raise
        means = {("0.5" if name == "as it is" else name): value for name, value in found.means.items()}
        best, second = sorted(means.values(), reverse=True)[:2]
        clear = best - second > CLEARLY
        found = replace(found, means=means, surer=max(means, key=lambda name: means[name]))
        hint = found.options() if clear else "--mean and --std of its training; none of these is clearly surer"
        raise UsageError(f"{error.problem}; {found.sentence()}", hint) from error
    if vouched := model.facts.get("vouched"):
        warn(f"{vouched}; licence {model.facts.get('licence', 'not stated')}")
    for fact in ("assumed", "class_names"):
        if fact in model.facts:
            warn(
                f"taken for granted: {fact.replace('_', ' ') + ' are ' if fact != 'assumed' else ''}{model.facts[fact]}"
            )
    if "trained_with" in model.facts:
        warn(f"these weights were trained with {model.facts['trained_with']}")
    elif model.facts.get("vouched") == NOBODY and (found := _surely(model, images)) and found.surer:
        warn(f"{found.sentence()}: clearly surer with {found.surer}, {found.options()}")
    return model


def _surely(model: Model, images: Sequence[str]) -> Sureness | None:
    """How sure the model is of the images that can be read; None where that says nothing."""
    readable: list[Image.Image] = []
    for name in images:
        path = Path(name).expanduser()
        for file in readers.image_files(path) if path.is_dir() else [path]:
            with contextlib.suppress(DataError):
                readable.append(open_picture(file))
            if len(readable) == MOST:
                return sureness(model, readable)
    return sureness(model, readable)


def said(typed: Weights) -> dict[str, Any]:
    """What was typed of other people's weights, as `load` takes it; nothing where nothing was typed.

    Raises:
        UsageError: A value cannot be read.
        DataError: The file of names cannot.
    """
    told: dict[str, Any] = {}
    for part in (typed.told or "").split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if part and not (name and equals and value):
            raise UsageError(f"--told has '{part}', which is no NAME=VALUE", "--told heads=6,norm_eps=1e-6")
        if part:
            told[name] = _value(value)
    for name, given in (("mean", typed.mean), ("std", typed.std)):
        if given is not None:
            told[name] = _numbers(name, given)
    found: dict[str, Any] = {"told": told} if told else {}
    if typed.class_names is not None:
        found["classes"] = _names(typed.class_names)
    if typed.image_size is not None:
        found["image_size"] = _size(typed.image_size)
    if typed.channels is not None:
        found["channels"] = typed.channels
    return found


def _value(word: str) -> Any:
    """A word as the number that it is, or itself."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word.lower(), word)


def _numbers(name: str, given: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in given.split(","))
    except ValueError as error:
        raise UsageError(f"--{name} must be numbers with commas between, got '{given}'", f"--{name} 0.5") from error


def _size(given: str) -> tuple[int, int]:
    sides = given.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isdecimal() and int(side) for side in sides):
        raise UsageError(f"--image-size must be a side or HEIGHTxWIDTH in pixels, got '{given}'", "--image-size 224")
    return int(sides[0]), int(sides[-1])


def _names(file: Path) -> tuple[str, ...]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"the names of the classes in {file} cannot be read ({type(error).__name__})"
        raise DataError(problem, "a text file with a name a line") from error
    return tuple(line.strip() for line in lines if line.strip())
