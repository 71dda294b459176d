"""A model: a network together with what makes it usable, as one value and as one folder of plain files.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])[0].label

The folder holds `model.safetensors` (tensors), `config.json` (the network and the class names),
`preprocessor_config.json` (how a picture becomes a tensor) and `README.md`. Nothing in it is a pickle.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from jaxtyping import Float
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn

from vitrail.data.decode import open_picture
from vitrail.data.hugging_face import from_hugging_face, to_hugging_face
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError, VitrailError, nearest
from vitrail.nn import STANDARD, Parts, ViT, ViTConfig, grid_of
from vitrail.weights import timm_keys

FORMAT = 1
WEIGHTS, CONFIG, PREPROCESSOR, CARD = "model.safetensors", "config.json", "preprocessor_config.json", "README.md"
TOP = 5


class Prediction(NamedTuple):
    """What a model says of one picture."""

    name: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]  # the most probable classes with their probabilities, best first


@dataclass(frozen=True, eq=False)
class Model:
    """A network with its preprocessing and class names.

    Attributes:
        network: Gives logits, one for each class.
        preprocessing: What turns a file or picture into what the network expects.
        classes: The class names, in the order of the logits.
    """

    network: ViT
    preprocessing: Preprocessing
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if len(self.classes) != self.network.config.classes:
            raise UsageError(
                f"{len(self.classes)} class names for a network with {self.network.config.classes} logits",
                "one name for each logit",
            )
        if self.preprocessing.channels != self.network.config.channels:
            raise UsageError(
                f"preprocessing makes {self.preprocessing.channels} channels, the network wants "
                f"{self.network.config.channels}",
                f"Preprocessing(channels={self.network.config.channels}, ...)",
            )
        grid_of(self.preprocessing.size, self.network.config.patch)

    def tensor(self, pictures: Sequence[str | Path | Image.Image]) -> Float[Tensor, "b c h w"]:
        """Pictures as the network expects them, on its device."""
        pixels = torch.stack([self.preprocessing.to_uint8(opened(picture)) for picture in pictures])
        return self.preprocessing.normalise(pixels.to(next(self.network.parameters()).device))

    def predict(
        self, pictures: Sequence[str | Path | Image.Image] | str | Path | Image.Image, batch_size: int = 64
    ) -> list[Prediction]:
        """The class of each picture.

        Args:
            pictures: Files or opened pictures, or a single one.
            batch_size: How many go through the network at a time.

        Returns:
            One prediction for each picture, in order.

        Raises:
            DataError: If a file cannot be read; names it.
        """
        if isinstance(pictures, str | Path | Image.Image):
            pictures = [pictures]
        predictions = []
        for first in range(0, len(pictures), batch_size):
            some = pictures[first : first + batch_size]
            shares = self.probabilities(self.tensor(some)).cpu()
            best = shares.topk(min(TOP, len(self.classes)))
            for picture, values, indices in zip(some, best.values.tolist(), best.indices.tolist(), strict=True):
                top = tuple((self.classes[i], v) for i, v in zip(indices, values, strict=True))
                name = str(picture) if isinstance(picture, str | Path) else "picture"
                predictions.append(Prediction(name, top[0][0], top[0][1], top))
        return predictions

    @torch.no_grad()
    def probabilities(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b v"]:
        """Softmax of the network's logits, with the network in eval mode and left as it was."""
        with evaluating(self.network):
            return self.network(images).float().softmax(dim=-1)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Every module in eval mode for the time, and then in the mode it had."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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


def save(model: Model, folder: str | Path, *, card: str = "", parts: str = "") -> Path:
    """Write a model folder; `load` reads it again.

    Files are written beside their place and renamed, so an interrupted save leaves the former files whole.

    Args:
        model: What to save.
        folder: Where; made if missing.
        card: Text of the README; a short one is written when empty.
        parts: The name of the foreign parts, for a network that was built with `Parts` of its own.

    Raises:
        UsageError: If the network has foreign parts and `parts` does not name them.
    """
    if model.network.parts != STANDARD and not parts:
        raise UsageError(
            "this network has parts of its own, which its files cannot hold",
            "save(model, folder, parts='what they are called'), and load(folder, parts=Parts(...)) later",
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "vitrail",
        "format": FORMAT,
        "network": {"kind": "ViT", **asdict(model.network.config)},
        "classes": list(model.classes),
        "parts": parts,
        **({} if parts else timm_keys(model.network.config, model.preprocessing, model.classes)),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.network.state_dict().items()}
    _write(folder / WEIGHTS, _with_checksum(tensors))
    _write(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())
    _write(folder / PREPROCESSOR, json.dumps(to_hugging_face(model.preprocessing), indent=2).encode())
    _write(folder / CARD, (card or _card(model)).encode())
    return folder


def load(path: str | Path, *, parts: Parts = STANDARD, device: str | torch.device = "cpu") -> Model:
    """Read a model from a run folder or a model folder; the network is in eval mode.

    Args:
        path: A run folder (which holds `model/`) or a model folder.
        parts: For a network with foreign parts, the same `Parts` that it was built with.
        device: Where the network goes.

    Raises:
        DataError: If the folder is missing, or a file in it is missing, damaged or does not fit the others.
        UsageError: If the model was saved with foreign parts and `parts` is not given.
    """
    folder = Path(path)
    if (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    if not (folder / CONFIG).is_file():
        raise _not_a_model(Path(path))
    config = _read_json(folder / CONFIG)
    if config.get("model_type") != "vitrail" or config.get("format") != FORMAT:
        raise DataError(
            f"{folder / CONFIG} is not of a vitrail model of format {FORMAT}", "a folder written by `vitrail train`"
        )
    if config.get("parts") and parts == STANDARD:
        raise UsageError(
            f"this model was saved with parts of its own, called '{config['parts']}'",
            "vitrail.load(path, parts=Parts(...)) with the parts it was built with",
        )
    try:
        settings = dict(config["network"])
        kind = settings.pop("kind")
        if kind != "ViT":
            raise UsageError(f"this version cannot build a '{kind}'", "a newer vitrail")
        network = ViT(ViTConfig.from_dict(settings), parts)
        preprocessing = from_hugging_face(_read_json(folder / PREPROCESSOR))
        classes = tuple(str(name) for name in config["classes"])
        model = Model(network.eval(), preprocessing, classes)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{folder}: the configuration is damaged ({problem})", _SAVED_AGAIN) from error
    load_weights(network, folder / WEIGHTS)
    network.to(device)
    return model


_SAVED_AGAIN = "the folder of another run, or train again"


def load_weights(network: ViT, file: Path) -> None:
    """Fill a network from a safetensors file; the network is untouched when the file does not fit.

    Raises:
        DataError: If the file is missing or damaged, or its tensors are not exactly the network's.
    """
    try:
        tensors = safetensors.torch.load_file(file)
        _check_sum(file)
    except (OSError, ValueError, SafetensorError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise DataError(f"{file} {what}", _SAVED_AGAIN) from error
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        wrong = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        shown = ", ".join(f"{name} {found.get(name)} for {wanted.get(name)}" for name in wrong[:5])
        raise DataError(f"{file}: {len(wrong)} tensors do not fit the network: {shown}", _SAVED_AGAIN)
    bad = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise DataError(f"{file}: {len(bad)} tensors hold NaN or infinity, first {bad[0]}", _SAVED_AGAIN)
    network.load_state_dict(tensors)


def _with_checksum(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file that carries the SHA-256 of its numbers, since the format itself has none."""
    plain = safetensors.torch.save(tensors, metadata={"format": "pt"})
    start = 8 + int.from_bytes(plain[:8], "little")
    header = json.loads(plain[8:start])
    header["__metadata__"]["sha256"] = hashlib.sha256(memoryview(plain)[start:]).hexdigest()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + plain[start:]


def _check_sum(file: Path) -> None:
    """Compare a file's numbers with its checksum; a file of another program has none and passes.

    Raises:
        ValueError: If they differ.
    """
    with open(file, "rb") as handle:
        header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
        wanted = header.get("__metadata__", {}).get("sha256")
        if wanted is not None and hashlib.file_digest(handle, "sha256").hexdigest() != wanted:
            raise ValueError("its numbers do not have the checksum they were saved with")


def _not_a_model(path: Path) -> DataError:
    if not path.exists():
        siblings = [p.name for p in path.parent.iterdir() if _is_model(p)] if path.parent.is_dir() else []
        close = nearest(path.name, siblings)
        some = f"one of {', '.join(sorted(siblings)[-4:])} in {path.parent}" if siblings else "vitrail train digits"
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


def _read_json(file: Path) -> dict:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing", _SAVED_AGAIN) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error})", _SAVED_AGAIN) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} is damaged (not a JSON object)", _SAVED_AGAIN)
    return content


def _write(file: Path, content: bytes) -> None:
    beside = file.with_name(file.name + ".writing")
    with open(beside, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(beside, file)


def _card(model: Model) -> str:
    config = model.network.config
    names = ", ".join(model.classes[:20]) + (", ..." if len(model.classes) > 20 else "")
    height, width = config.image
    return (
        f"# A Vision Transformer made with vitrail\n\n"
        f"{sum(p.numel() for p in model.network.parameters()):,} parameters; pictures of {height} x {width} pixels, "
        f"{config.channels} channel(s); {len(model.classes)} classes: {names}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\nmodel.predict(["picture.png"])\n```\n'
    )
