"""A model: a network together with what makes it usable, as one value and as one folder of plain files.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])[0].label

The folder holds `model.safetensors` (tensors), `config.json` (the network and the class names),
`preprocessor_config.json` (how a picture becomes a tensor), `references.safetensors` (what explanations are tested
with; it may be missing) and `README.md`. Nothing in it is a pickle.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.data.hugging_face import from_hugging_face, to_hugging_face
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.reference_files import REFERENCES, Compressed, misfit, read_references, references_file
from vitrail.data.references import about_references
from vitrail.data.tensor_files import with_checksum
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.model_files import (
    CARD,
    CONFIG,
    FORMAT,
    PREPROCESSOR,
    SAVED_AGAIN,
    WEIGHTS,
    kind_of,
    load_weights,
    open_model,
    opened,
    read_json,
    write,
)
from vitrail.nn import STANDARD, Parts, ViT, ViTConfig, grid_of
from vitrail.nn.mode import evaluating
from vitrail.sequence_model import SequenceModel
from vitrail.sequence_model_files import KINDS, load_sequence_model, save_sequence_model
from vitrail.weights import timm_keys

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
        references: Pictures that explanations are tested with, put together from patches of training pictures; see
            `vitrail.data.references`. None where there are none. Predictions do not need them.
        compressed_references: What these were decoded from, where they are stored as JPEG: `save` writes it again, so
            that nothing is lost twice. It is passed over where `references` are others; nobody needs to give it.
    """

    network: ViT
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    references: UInt8[Tensor, "r c h w"] | None = None
    compressed_references: Compressed | None = None

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
        problem = "" if self.references is None else misfit(self.references, self.preprocessing)
        if problem:
            raise UsageError(problem, "references=None, or pictures that preprocessing.to_uint8 made")

    @property
    def donors(self) -> Float[Tensor, "r c h w"] | None:
        """The references as the network expects them, on its device: they lend patches when a map is tested."""
        if self.references is None:
            return None
        return self.preprocessing.normalise(self.references.to(next(self.network.parameters()).device))

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

    def generate(self, sources: object, *others: object) -> NoReturn:
        """Refuse: this model says classes.

        Raises:
            UsageError: Always; names `predict`.
        """
        raise UsageError("this model says classes, and generate is for models that write", "model.predict(pictures)")

    @torch.no_grad()
    def probabilities(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b v"]:
        """Softmax of the network's logits, with the network in eval mode and left as it was."""
        with evaluating(self.network):
            return self.network(images).float().softmax(dim=-1)


def save(model: Model | SequenceModel, folder: str | Path, *, card: str = "", parts: str = "") -> Path:
    """Write a model folder; `load` reads it again.

    Files are written beside their place and renamed, so an interrupted save leaves the former files whole.

    Args:
        model: What to save.
        folder: Where; made if missing.
        card: Text of the README; a short one is written when empty.
        parts: The name of the foreign parts, for a network that was built with `Parts` of its own.

    Raises:
        UsageError: If the network has foreign parts and `parts` does not name them, or it writes and has any.
    """
    if isinstance(model, SequenceModel):
        if parts:
            raise UsageError(
                f"the files of a model that writes hold no parts of its own, and parts='{parts}' names some",
                "save(model, folder), for a network of the standard parts",
            )
        return save_sequence_model(model, folder, card=card)
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
    write(folder / WEIGHTS, with_checksum(tensors))
    save_references(model, folder)
    write(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())
    write(folder / PREPROCESSOR, json.dumps(to_hugging_face(model.preprocessing), indent=2).encode())
    write(folder / CARD, (card or _card(model)).encode())
    return folder


def save_references(model: Model, folder: Path) -> None:
    """Write what explanations are tested with into a model folder; those of a former model do not stay."""
    file = folder / REFERENCES
    if model.references is None:
        file.unlink(missing_ok=True)
    else:
        write(file, references_file(model.references, model.compressed_references))


def load(path: str | Path, *, parts: Parts = STANDARD, device: str | torch.device = "cpu") -> Model | SequenceModel:
    """Read a model from a run folder or a model folder; the network is in eval mode.

    It is a `Model`, which predicts classes, or a `SequenceModel`, which generates texts: the folder says which. Each
    has both methods, and the one that it cannot do says which one to call.

    Args:
        path: A run folder (which holds `model/`) or a model folder.
        parts: For a network with foreign parts, the same `Parts` that it was built with.
        device: Where the network goes.

    Raises:
        DataError: If the folder is missing, or a file in it is missing, damaged or does not fit the others.
        UsageError: If the model was saved with foreign parts and `parts` is not given, or it writes and `parts` is.
    """
    folder, config = open_model(path)
    if kind_of(config) in KINDS:
        if parts != STANDARD:
            raise UsageError(
                f"{folder} is a model that writes, whose files know the standard parts only", "load(path) without parts"
            )
        return load_sequence_model(folder, config, device)
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
        preprocessing = from_hugging_face(read_json(folder / PREPROCESSOR))
        classes = tuple(str(name) for name in config["classes"])
        model = Model(network.eval(), preprocessing, classes)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{folder}: the configuration is damaged ({problem})", SAVED_AGAIN) from error
    load_weights(network, folder / WEIGHTS)
    network.to(device)
    if not (folder / REFERENCES).exists():
        return model
    references, compressed = read_references(folder / REFERENCES, preprocessing)
    return replace(model, references=references, compressed_references=compressed)


def _card(model: Model) -> str:
    config = model.network.config
    names = ", ".join(model.classes[:20]) + (", ..." if len(model.classes) > 20 else "")
    height, width = config.image
    about = ""
    if model.references is not None:
        about = f"\n{about_references(model.references, model.compressed_references)}\n"
    return (
        f"# A Vision Transformer made with vitrail\n\n"
        f"{sum(p.numel() for p in model.network.parameters()):,} parameters; pictures of {height} x {width} pixels, "
        f"{config.channels} channel(s); {len(model.classes)} classes: {names}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\nmodel.predict(["picture.png"])\n```\n'
        f"{about}"
    )
