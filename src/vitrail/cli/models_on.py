"""Loading a model onto the device and threads that a verb runs with."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.data.readers.folder import EXTENSIONS, picture_files
from vitrail.errors import DataError, UsageError, nearest
from vitrail.model import Model, load
from vitrail.nn.cost import flops
from vitrail.sequence_model import SequenceModel
from vitrail.training.execution import pick_device, pick_threads

WRITTEN = 10.0  # tokens that a sample has, about, where a model that writes is loaded


def load_on(run: str, device: str, threads: int | None = None, batch_size: int = 64) -> Model | SequenceModel:
    """The model of a run on a device; sets torch's threads by the size of the work, as training does.

    Raises:
        UsageError: If the device is not there, or `threads` is below 1.
        DataError: If there is no model, or it is damaged.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}", "--threads 1")
    model: Model | SequenceModel = load(run, device=pick_device(device))
    match model:
        case Model():
            work = float(flops(model.network.config))
        case SequenceModel():
            work = 2 * WRITTEN * sum(parameter.numel() for parameter in model.network.parameters())
    torch.set_num_threads(threads if threads is not None else pick_threads(work * batch_size)[0])
    return model


def classifier(model: Model | SequenceModel, run: str, verb: str, given: Sequence[str] = ()) -> Model:
    """The model, which must say classes.

    Args:
        model: What was loaded.
        run: Where from.
        verb: What was typed.
        given: The sources that were typed after it.

    Raises:
        UsageError: If it writes texts; says what it reads and what to type instead.
    """
    if isinstance(model, SequenceModel):
        there = model.reads_pictures and given and all(Path(name).expanduser().exists() for name in given)
        sources = given if there else [model.example]
        raise UsageError(
            f"the model in {run} reads {model.reads} and writes texts, and vitrail {verb} is for classes",
            shlex.join(["vitrail", "generate", run, *sources]),
        )
    return model


def writer(model: Model | SequenceModel, run: str, verb: str) -> SequenceModel:
    """The model, which must write texts.

    Raises:
        UsageError: If it says classes; says what to type instead.
    """
    if isinstance(model, Model):
        raise UsageError(
            f"the model in {run} reads pictures and says classes, and vitrail {verb} is for models that write",
            f"vitrail predict {run} picture.png",
        )
    return model


def check_pictures(run: str, verb: str, given: Sequence[str]) -> None:
    """Refuse a text where the model reads pictures.

    Raises:
        UsageError: Names the text, what this model reads, and the right command.
    """
    for name in given:
        path = Path(name).expanduser()
        if not name.strip() or not (len(path.parts) > 1 or path.suffix or path.exists()):
            raise UsageError(
                f"the model in {run} reads pictures, and there is no file '{name}'",
                shlex.join(["vitrail", verb, run, "picture.png"]),
            )


def check_sources(model: SequenceModel, run: str, given: Sequence[str]) -> None:
    """Refuse a text where the model reads pictures, and a picture where it reads texts.

    Raises:
        UsageError: Names the source, what this model reads, and the right command.
    """
    if model.reads_pictures:
        check_pictures(run, "generate", given)
    for name in given:
        if model.source_vocabulary is not None and _is_picture(name):
            tokens = model.source_vocabulary.split(name)
            if not set(tokens) <= set(model.source_vocabulary.tokens):
                what = "folder" if Path(name).expanduser().is_dir() else "picture"
                raise UsageError(
                    f"the model in {run} reads texts of {model.source_vocabulary.says()}, and {name} is a {what}",
                    shlex.join(["vitrail", "generate", run, model.example]),
                )


def _is_picture(name: str) -> bool:
    """Whether this is a picture, by its ending, or a folder."""
    path = Path(name).expanduser()
    return bool(name) and (path.suffix.lower() in EXTENSIONS or path.is_dir())


def files_of(names: Sequence[str]) -> list[tuple[Path, bool]]:
    """Picture files: those named, and those in the folders named, sorted; each with whether it was named itself.

    Raises:
        DataError: If a name does not exist, or a folder holds no picture.
    """
    files: list[tuple[Path, bool]] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            found = picture_files(path)
            if not found:
                raise DataError(f"{path} holds no picture", "a folder with JPEG, PNG, WebP, BMP, TIFF or GIF files")
            files += [(file, False) for file in found]
        elif path.exists():
            files.append((path, True))
        else:
            raise _no_picture(path)
    return files


def _no_picture(path: Path) -> DataError:
    """The error for a file that is not there, with the nearest one that is."""
    if not path.parent.is_dir():
        return DataError(f"there is no picture {path}, nor a folder {path.parent}", "check the path")
    close = nearest(path.name, [each.name for each in path.parent.iterdir()])
    hint = str(path.with_name(close)) if close else f"ls {path.parent}"
    return DataError(f"there is no picture {path}", hint)
