"""The files of a model folder, whatever the model is: written whole or not at all, read with every byte checked.

The folder holds `model.safetensors` (tensors), `config.json` (the network, and the names of what it says),
`preprocessor_config.json` where pictures go in, `references.safetensors` where explanations have references, and
`README.md`. Nothing in it is a pickle.
"""

import json
import os
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from vitrail.data.decode import open_picture
from vitrail.data.tensor_files import read_tensors
from vitrail.errors import DataError, UsageError, nearest

FORMAT = 1
WEIGHTS, CONFIG, PREPROCESSOR, CARD = "model.safetensors", "config.json", "preprocessor_config.json", "README.md"


def open_model(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """The model folder of a run folder or a model folder, and its configuration.

    Raises:
        DataError: If there is none, or it is damaged or of another format.
    """
    folder = Path(path)
    if (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    if not (folder / CONFIG).is_file():
        raise _not_a_model(Path(path))
    config = read_json(folder / CONFIG)
    if config.get("model_type") != "vitrail" or config.get("format") != FORMAT:
        raise DataError(
            f"{folder / CONFIG} is not of a vitrail model of format {FORMAT}", "a folder written by `vitrail train`"
        )
    return folder, config


def kind_of(config: dict[str, Any]) -> str:
    """The kind of network that a configuration is of; empty where it does not say."""
    network = config.get("network")
    return str(network.get("kind", "")) if isinstance(network, dict) else ""


def opened(picture: object) -> Image.Image:
    """The picture of a file, or the picture itself.

    Raises:
        DataError: If the file cannot be read.
        UsageError: If it is neither a path nor a picture.
    """
    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, str | Path):
        return open_picture(Path(picture))
    raise UsageError(
        f"a picture must be a path or a PIL image, got {type(picture).__name__}",
        "model.network(tensor) for a tensor that is normalised already",
    )


FIRST_RUN = "vitrail train digits, or for a model that writes: vitrail train sort-digits"
SAVED_AGAIN = "the folder of another run, or train again"


def load_weights(network: nn.Module, file: Path) -> None:
    """Fill a network from a safetensors file; the network is untouched when the file does not fit.

    Raises:
        DataError: If the file is missing or damaged, or its tensors are not exactly the network's.
    """
    tensors = read_tensors(file, SAVED_AGAIN)
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        wrong = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        shown = ", ".join(f"{name} {found.get(name)} for {wanted.get(name)}" for name in wrong[:5])
        raise DataError(f"{file}: {len(wrong)} tensors do not fit the network: {shown}", SAVED_AGAIN)
    bad = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise DataError(f"{file}: {len(bad)} tensors hold NaN or infinity, first {bad[0]}", SAVED_AGAIN)
    network.load_state_dict(tensors)


def _not_a_model(path: Path) -> DataError:
    if not path.exists():
        siblings = [p.name for p in path.parent.iterdir() if _is_model(p)] if path.parent.is_dir() else []
        close = nearest(path.name, siblings)
        some = f"one of {', '.join(sorted(siblings)[-4:])} in {path.parent}" if siblings else FIRST_RUN
        return DataError(f"there is no run or model at {path}", str(path.with_name(close)) if close else some)
    if (path / "config.yaml").is_file():
        return DataError(
            f"{path} is a run that has not come to its end, so it holds no model yet",
            f"the command in {path / 'command.txt'} with --out {path} --resume auto",
        )
    return DataError(
        f"{path} holds no model: neither {CONFIG} nor model/{CONFIG}",
        "the folder that `vitrail train` wrote",
    )


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or (folder / "model" / CONFIG).is_file()


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: If the file is missing or damaged, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing", SAVED_AGAIN) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error})", SAVED_AGAIN) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} is damaged (not a JSON object)", SAVED_AGAIN)
    return content


def write(file: Path, content: bytes) -> None:
    """Write a file whole, or leave the former one."""
    beside = file.with_name(file.name + ".writing")
    with open(beside, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(beside, file)
