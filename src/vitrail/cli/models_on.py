"""Loading a model onto the device and threads that a verb runs with."""

from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.data.folder import picture_files
from vitrail.errors import DataError, UsageError, nearest
from vitrail.model import Model, load
from vitrail.nn.cost import flops
from vitrail.training.execution import pick_device, pick_threads


def load_on(run: str, device: str, threads: int | None = None, batch_size: int = 64) -> Model:
    """The model of a run on a device; sets torch's threads by the size of the work, as training does.

    Raises:
        UsageError: If the device is not there, or `threads` is below 1.
        DataError: If there is no model, or it is damaged.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}", "--threads 1")
    model = load(run, device=pick_device(device))
    work = float(flops(model.network.config)) * batch_size
    torch.set_num_threads(threads if threads is not None else pick_threads(work)[0])
    return model


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
