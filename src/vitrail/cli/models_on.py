"""Loading a model onto the device and threads that a verb runs with."""

from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.data.folder import picture_files
from vitrail.errors import DataError
from vitrail.model import Model, load
from vitrail.nn.cost import flops
from vitrail.training.execution import pick_device, pick_threads


def load_on(run: str, device: str, threads: int | None = None, batch_size: int = 64) -> Model:
    """The model of a run on a device; sets torch's threads by the size of the work, as training does."""
    model = load(run, device=pick_device(device))
    work = float(flops(model.network.config)) * batch_size
    torch.set_num_threads(threads if threads is not None else pick_threads(work)[0])
    return model


def files_of(names: Sequence[str]) -> list[Path]:
    """Picture files: those named, and those in the folders named, sorted.

    Raises:
        DataError: If a name does not exist, or a folder holds no picture.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = picture_files(path)
            if not found:
                raise DataError(f"{path} holds no picture", "a folder with JPEG, PNG, WebP, BMP, TIFF or GIF files")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"there is no picture {path}", f"a file in {path.parent}")
    return files
