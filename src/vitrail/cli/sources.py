"""What verbs are given: a model, set on its device and threads, and the images or texts that it is asked about."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image

from vitrail import training
from vitrail.cli.args import Weights
from vitrail.cli.output import warn
from vitrail.data import readers
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError, nearest
from vitrail.model import Model, load
from vitrail.nn import ViTConfig
from vitrail.runtime import pick_device, pick_threads
from vitrail.weights.kinds import is_foreign

if TYPE_CHECKING:
    from vitrail.data.images import NamedImage

WRITTEN = 10.0  # tokens that a sample has, about, where a model that writes is loaded


def typed_of(typed: Weights) -> bool:
    """Whether anything was said of weights or of the size of images."""
    return any(getattr(typed, one.name) is not None for one in fields(Weights))


def load_on(
    run: str,
    device: str,
    threads: int | None = None,
    batch_size: int = 64,
    typed: Weights = Weights(),  # noqa: B008  # a frozen value
    images: Sequence[str] = (),
    data_root: Path | None = None,
) -> Model:
    """The model of a run on a device; sets torch's threads by the size of the work, as training does.

    Args:
        run: Its folder, or what names other people's weights.
        device: Where it goes.
        threads: Of torch.
        batch_size: How many samples go through it at a time.
        typed: What was said of other people's weights, and the size of images.
        images: What it will be asked about, files, folders or a set: where nobody vouches for how images go in, some
            are answered in each of the usual ways, and one that is clearly surer is named.
        data_root: Where named sets lie.

    Raises:
        UsageError: If the device is not there, `threads` is below 1, or weights of others leave something open.
        DataError: If there is no model, or it is damaged.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}", "--threads 1")
    where = pick_device(device)
    if is_foreign(run) or typed_of(typed):
        from vitrail.cli.weights import load_weights  # with all families of weights, which a model of ours needs not

        model, doubt = load_weights(run, where, typed, images, data_root)
    else:
        model, doubt = load(run, device=where), ""
    if "vouched" in model.facts or typed_of(typed):  # also of a folder that vitrail saved
        from vitrail.model.vouch import origin_words

        for words in filter(None, (*origin_words(model.facts), doubt)):
            warn(words)
    config = model.network.config
    tokens = config.tokens if isinstance(config, ViTConfig) else WRITTEN
    work = 2.0 * tokens * batch_size * sum(parameter.numel() for parameter in model.network.parameters())  # about
    torch.set_num_threads(threads if threads is not None else pick_threads(work)[0])
    return model


# ---- images and texts that are named


def check_sources(model: Model, run: str, given: Sequence[str]) -> None:
    """Refuse a text where the model reads images, and an image where it reads texts.

    Raises:
        UsageError: Names the source, what this model reads, and the right command.
    """
    for name in given:
        path = Path(name).expanduser()
        if isinstance(model.input, Vocabulary):
            is_image = bool(name) and (path.suffix.lower() in readers.EXTENSIONS or path.is_dir())
            if is_image and not set(model.input.split(name)) <= set(model.input.tokens):
                what = "folder" if path.is_dir() else "image"
                problem = f"the model in {run} reads texts of {model.input.describe()[1]}, and {name} is a {what}"
                raise UsageError(problem, shlex.join(["vitrail", "predict", run, model.example]))
        elif not name.strip() or not (len(path.parts) > 1 or path.suffix or path.exists()):
            problem = f"the model in {run} reads images, and there is no file '{name}'"
            raise UsageError(problem, shlex.join(["vitrail", "predict", run, "image.png"]))


def files_of(names: Sequence[str]) -> list[tuple[Path, bool]]:
    """Image files: those named, and those in the folders named, sorted; each with whether it was named itself.

    Raises:
        DataError: If a name does not exist, or a folder holds no image.
    """
    files: list[tuple[Path, bool]] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            found = readers.image_files(path)
            if not found:
                raise DataError(f"{path} holds no image", "a folder with JPEG, PNG, WebP, BMP, TIFF or GIF files")
            files += [(file, False) for file in found]
        elif path.exists():
            files.append((path, True))
        elif not path.parent.is_dir():
            raise DataError(f"there is no image {path}, nor a folder {path.parent}", "check the path")
        else:
            from vitrail.data.readers.folder import EXTENSIONS  # with all that a data set is

            beside = [one for one in path.parent.iterdir() if one.suffix.lower() in EXTENSIONS or one.is_dir()]
            close = nearest(path.name, [one.name for one in beside])
            hint = str(path.with_name(close)) if close else f"ls {path.parent}"
            raise DataError(f"there is no image {path}", hint)
    return files


def spread(things: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the things, evenly spread; says so when some are left out."""
    if len(things) <= most:
        return list(things)
    warn(f"{most} of {len(things):,} images; --count {len(things)} takes all")
    return [things[index * len(things) // most] for index in range(most)]


def leave_out(problems: Sequence[DataError], answered: str = "") -> None:
    """Name what could not be read, when all else is done.

    Args:
        problems: One for each.
        answered: What was done of the others.

    Raises:
        DataError: If there is one.
    """
    for error in problems[:-1]:
        warn(f"left out: {error.problem}")
    if problems:
        raise DataError(f"{problems[-1].problem}{answered}", problems[-1].hint)


# ---- planted images: `explain` and `predict` take those with two labels or none, too


def show_planted(run: str, name: str, count: int | None, data_root: Path | None) -> "list[NamedImage]":
    """Test images of a planted set, evenly spread; their names say which digits they show.

    Args:
        run: Whose data may lie where MNIST does.
        name: Of the set.
        count: How many images; all when None.
        data_root: Where named sets lie.

    Raises:
        UsageError: If the name is wrong.
        DataError: If MNIST is missing or damaged.
    """
    from vitrail.data.images import NamedImage  # which answers to files do not need

    chosen = readers.parse_planted(name)
    made = readers.planted_images(chosen, "test", data_root or root_of(run))
    boxes, shown = made.boxes(), []
    for i in spread(range(len(made.pixels)), len(made.pixels) if count is None else count):
        digits = "".join(f"-{label}" for label in made.labels[i])
        mask = box_mask(boxes[i], made.pixels.shape[1:])
        shown.append(NamedImage(f"{chosen.label}/test/{i}{digits}", Image.fromarray(made.pixels[i]), None, mask))
    return shown


def box_mask(boxes: Int64[np.ndarray, "p 4"], size: tuple[int, int]) -> Image.Image | None:
    """White inside of the boxes, black elsewhere; None where there is no box.

    Args:
        boxes: Top, left, bottom, right, in pixels.
        size: (height, width) of the image.
    """
    pixels = np.zeros(size, np.uint8)
    for top, left, bottom, right in boxes.tolist():
        pixels[top:bottom, left:right] = 255
    return Image.fromarray(pixels) if len(boxes) else None


def root_of(run: str) -> Path | None:
    """The folder where a run read MNIST, if it did and the folder is still there."""
    remembered = training.remembered_data(run)
    name, root = remembered.get("name", ""), Path(remembered.get("root", ""))
    return root if (name == "mnist" or readers.is_planted(name)) and root.is_dir() else None
