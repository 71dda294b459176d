"""Loading a model onto the device and threads that a verb runs with."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.data.readers.folder import EXTENSIONS, picture_files
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError, nearest
from vitrail.model import Model, load
from vitrail.nn import ViTConfig
from vitrail.nn.cost import flops
from vitrail.runtime import pick_device, pick_threads

WRITTEN = 10.0  # tokens that a sample has, about, where a model that writes is loaded


def load_on(run: str, device: str, threads: int | None = None, batch_size: int = 64) -> Model:
    """The model of a run on a device; sets torch's threads by the size of the work, as training does.

    Raises:
        UsageError: If the device is not there, or `threads` is below 1.
        DataError: If there is no model, or it is damaged.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}", "--threads 1")
    model = load(run, device=pick_device(device))
    config = model.network.config
    if isinstance(config, ViTConfig):
        work = float(flops(config))
    else:
        work = 2 * WRITTEN * sum(parameter.numel() for parameter in model.network.parameters())
    torch.set_num_threads(threads if threads is not None else pick_threads(work * batch_size)[0])
    return model


def check_sources(model: Model, run: str, given: Sequence[str]) -> None:
    """Refuse a text where the model reads images, and an image where it reads texts.

    Raises:
        UsageError: Names the source, what this model reads, and the right command.
    """
    if not isinstance(model.input, Vocabulary):
        check_pictures(run, "predict", given)
        return
    for name in given:
        tokens = model.input.split(name)
        if _is_picture(name) and not set(tokens) <= set(model.input.tokens):
            what = "folder" if Path(name).expanduser().is_dir() else "image"
            raise UsageError(
                f"the model in {run} reads texts of {model.input.describe()[1]}, and {name} is a {what}",
                shlex.join(["vitrail", "predict", run, model.example]),
            )


def check_pictures(run: str, verb: str, given: Sequence[str]) -> None:
    """Refuse a text where the model reads images.

    Raises:
        UsageError: Names the text, what this model reads, and the right command.
    """
    for name in given:
        path = Path(name).expanduser()
        if not name.strip() or not (len(path.parts) > 1 or path.suffix or path.exists()):
            raise UsageError(
                f"the model in {run} reads images, and there is no file '{name}'",
                shlex.join(["vitrail", verb, run, "image.png"]),
            )


def _is_picture(name: str) -> bool:
    """Whether this is a picture, by its ending, or a folder."""
    path = Path(name).expanduser()
    return bool(name) and (path.suffix.lower() in EXTENSIONS or path.is_dir())


def files_of(names: Sequence[str]) -> list[tuple[Path, bool]]:
    """Image files: those named, and those in the folders named, sorted; each with whether it was named itself.

    Raises:
        DataError: If a name does not exist, or a folder holds no image.
    """
    files: list[tuple[Path, bool]] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            found = picture_files(path)
            if not found:
                raise DataError(f"{path} holds no image", "a folder with JPEG, PNG, WebP, BMP, TIFF or GIF files")
            files += [(file, False) for file in found]
        elif path.exists():
            files.append((path, True))
        else:
            raise _no_picture(path)
    return files


def _no_picture(path: Path) -> DataError:
    """The error for a file that is not there, with the nearest one that is."""
    if not path.parent.is_dir():
        return DataError(f"there is no image {path}, nor a folder {path.parent}", "check the path")
    close = nearest(path.name, [each.name for each in path.parent.iterdir()])
    hint = str(path.with_name(close)) if close else f"ls {path.parent}"
    return DataError(f"there is no image {path}", hint)
