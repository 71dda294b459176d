"""A model made of other people's weights: a name in a hub, a file, a folder, or a live network.

What a model is besides its tensors comes from the first that says it: the caller; the table of weights that somebody
vouches for; what lies beside the file. How images go in is never guessed: a wrong mean and standard deviation costs a
real ViT-Ti 37 of 85 points without a word.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.data.columns import Classes
from vitrail.data.hugging_face import from_hugging_face
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.model.model import Model
from vitrail.nn.embedding import Size
from vitrail.weights import convert as conversion
from vitrail.weights.adapt import adapted
from vitrail.weights.convert import Converted
from vitrail.weights.files import read_weights
from vitrail.weights.known import Known, known
from vitrail.weights.names import Found, find
from vitrail.weights.tables import imagenet_names
from vitrail.weights.timm import preprocessing_of

IMAGENET = 1000  # classes
NOBODY = "nobody vouches for these weights"


def open_foreign(
    name: str | Path,
    *,
    told: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """A model of the weights that a name means; see `vitrail.load`."""
    found = find(name)
    converted = conversion.from_tensors(read_weights(found.weights), told or {}, str(name), found.config)
    return _model(converted, found, preprocessing, classes, image_size, channels, device)


def convert(
    module: nn.Module,
    *,
    told: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
) -> Model:
    """A live network of timm, transformers, torchvision or vit-pytorch as a model, proved to answer as it does.

    Args:
        module: The network; it is left as it was.
        told: What it does not say of itself: fields of `ViTConfig` by name, and `pooling`.
        preprocessing: How images go in; what the module says, where it does, when None.
        classes: Names in the order of the logits; those the module has, or numbers, when None.

    Returns:
        The model, whose `facts` say the gap between both answers to a fixed batch.

    Raises:
        UsageError: If the module is of no family known here, or nothing says how images go in.
        DataError: If it has what no plain ViT has, or the answers differ; nothing is returned then.
    """
    converted = conversion.convert(module, told)
    config: Any = getattr(module, "pretrained_cfg", None)
    beside = {"pretrained_cfg": dict(config)} if isinstance(config, Mapping) else None
    origin = f"a live {type(module).__module__.partition('.')[0]} {type(module).__name__}"
    return _model(converted, Found(Path(origin), origin, beside), preprocessing, classes)


def _model(
    converted: Converted,
    found: Found,
    preprocessing: Preprocessing | None,
    classes: Sequence[str] | None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    network, row = converted.network, known(converted.network)
    reads = preprocessing or (row.preprocessing if row else _beside(found, converted))
    if reads is None:
        height, width = network.config.image
        raise UsageError(
            f"{found.origin}: nothing says how images go into it, and it answers wrongly when they go in wrongly",
            f"preprocessing=vitrail.Preprocessing(({height}, {width}), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)); on "
            "the command line --mean 0.5 --std 0.5",
        )
    names, named = _names(found, converted, row, classes)
    network, reads = adapted(network, reads, image_size, channels)
    facts = {
        "origin": found.origin,
        "licence": (row.licence if row else found.facts.get("licence")) or "not stated",
        "vouched": _vouched(converted, row),
        **({"class_names": named} if named else {}),
        **({"assumed": "; ".join(converted.assumed)} if converted.assumed and not row else {}),
        **({"left_out": ", ".join(converted.skipped)} if converted.skipped else {}),
    }
    return Model(network.to(device), reads, Classes(names), facts=facts)


def _beside(found: Found, converted: Converted) -> Preprocessing | None:
    """How images go in, as what lies beside the weights says it; None where nothing does."""
    stated = found.facts.get("preprocessing")
    if isinstance(stated, Preprocessing):
        return stated
    if found.preprocessor is not None:
        return from_hugging_face(found.preprocessor)
    published = (found.config or {}).get("pretrained_cfg")
    if not published:
        return None
    try:
        return preprocessing_of(published)
    except KeyError as error:
        raise DataError(f"{found.origin}: its pretrained_cfg has no {error}", "preprocessing=") from error


def _names(
    found: Found, converted: Converted, row: Known | None, given: Sequence[str] | None
) -> tuple[tuple[str, ...], str]:
    """The names of the classes, and where they come from."""
    count = converted.network.config.classes
    stated = (found.config or {}).get("label_names") or converted.told.get("names") or found.facts.get("classes")
    if given is not None:
        names, source = tuple(given), ""
    elif row is not None and row.classes == "imagenet":
        names, source = imagenet_names(), ""
    elif stated and len(stated) == count:
        names, source = tuple(stated), ""
    elif count == IMAGENET:
        names, source = imagenet_names(), "ImageNet's, since there are 1,000"
    else:
        names, source = tuple(map(str, range(count))), "numbers: nothing names them"
    if len(names) != count:
        raise UsageError(f"{len(names)} class names for {count} logits", f"classes= with {count} names")
    return names, source


def _vouched(converted: Converted, row: Known | None) -> str:
    if row is not None:
        return f"{row.name}: answers as {row.by} did, gap {row.gap:.0e}"
    if converted.gap is not None:
        return f"answers as the live network does, gap {converted.gap:.0e}"
    return NOBODY
