"""The model folder of a network that writes: saved and loaded like every model, with the same files.

`config.json` holds the vocabularies, and what a reader of the answers has to know of the training: the label smoothing,
and the length of the longest source. `preprocessor_config.json` is there where pictures are read.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vitrail.data.hugging_face import from_hugging_face, to_hugging_face
from vitrail.data.tensor_files import with_checksum
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.model_files import (
    CARD,
    CONFIG,
    FORMAT,
    PREPROCESSOR,
    SAVED_AGAIN,
    WEIGHTS,
    load_weights,
    read_json,
    write,
)
from vitrail.nn import STANDARD, STANDARD_STACK, ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig
from vitrail.sequence_model import SequenceModel

KINDS = ("Transformer", "ImageToSequence")
"""The kinds of network, in `config.json`, that are read here."""


def save_sequence_model(model: SequenceModel, folder: str | Path, *, card: str = "") -> Path:
    """Write a model folder, as `vitrail.save` does; `vitrail.load` reads it again.

    Args:
        model: What to save.
        folder: Where; made if missing.
        card: Text of the README; a short one is written when empty.

    Raises:
        UsageError: The network has parts of its own, which its files cannot hold.
    """
    network = model.network
    standard = network.parts == STANDARD_STACK
    if isinstance(network, ImageToSequence):
        standard = network.parts == STANDARD and network.decoder_parts == STANDARD_STACK
    if not standard:
        raise UsageError(
            "this network has parts of its own, which its files cannot hold",
            "a network of the standard parts, or its state_dict() in a file of your own",
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = model.source_vocabulary
    config = {
        "model_type": "vitrail",
        "format": FORMAT,
        "network": {"kind": type(network).__name__, **asdict(network.config)},
        "vocabulary": model.vocabulary.to_dict(),
        **({} if source is None else {"source_vocabulary": source.to_dict()}),
        "label_smoothing": model.label_smoothing,
        **({"longest_source": model.longest_source} if model.longest_source else {}),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    write(folder / WEIGHTS, with_checksum(tensors))
    write(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())
    if model.preprocessing is not None:
        write(folder / PREPROCESSOR, json.dumps(to_hugging_face(model.preprocessing), indent=2).encode())
    write(folder / CARD, (card or _card(model)).encode())
    return folder


def load_sequence_model(folder: Path, config: dict[str, Any], device: str | torch.device = "cpu") -> SequenceModel:
    """Read a model folder whose configuration is that of a network that writes; `vitrail.load` calls it.

    Args:
        folder: The model folder.
        config: Content of its `config.json`.
        device: Where the network goes.

    Raises:
        DataError: A file is missing, damaged or does not fit the others.
    """
    try:
        settings = dict(config["network"])
        kind = settings.pop("kind")
        vocabulary = Vocabulary.from_dict(config["vocabulary"])
        smoothing, longest = float(config.get("label_smoothing", 0.0)), int(config.get("longest_source", 0))
        network: Transformer | ImageToSequence
        if kind == "ImageToSequence":
            network, source = ImageToSequence(ImageToSequenceConfig.from_dict(settings)), None
            preprocessing = from_hugging_face(read_json(folder / PREPROCESSOR))
        else:
            network, preprocessing = Transformer(TransformerConfig.from_dict(settings)), None
            source = Vocabulary.from_dict(config["source_vocabulary"])
        model = SequenceModel(network.eval(), vocabulary, source, preprocessing, smoothing, longest)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        problem = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{folder}: the configuration is damaged ({problem})", SAVED_AGAIN) from error
    load_weights(network, folder / WEIGHTS)
    network.to(device)
    return model


def _card(model: SequenceModel) -> str:
    reads = "a picture" if model.reads_pictures else "a text"
    return (
        f"# A {type(model.network).__name__} made with vitrail\n\n"
        f"{sum(p.numel() for p in model.network.parameters()):,} parameters; reads {reads} and writes texts of: "
        f"{model.vocabulary.says()}\n\n"
        '```python\nimport vitrail\n\nmodel = vitrail.load(".")\n'
        f"print(model.generate([{model.example!r}])[0].text)\n```\n"
    )
