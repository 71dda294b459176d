"""A model made of other people's weights: a name in a hub, a file, a folder, or a live network.

What a model is besides its tensors comes from the first that says it: the caller; the table of weights that somebody
vouches for; what lies beside the file. How images go in is never guessed: a wrong mean and standard deviation costs a
real ViT-Ti 37 of 85 points without a word.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.data.columns import Classes, Codec
from vitrail.data.hugging_face import from_hugging_face
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import check_size, digest_of
from vitrail.errors import DataError, UsageError, VitrailError, nearest
from vitrail.model.model import CLASSIFY, Model
from vitrail.nn import ViTConfig
from vitrail.nn.embedding import Size
from vitrail.nn.networks import outputs_of
from vitrail.tasks.features import Features, Numbers
from vitrail.weights import convert as conversion
from vitrail.weights.adapt import adapted, resize_words
from vitrail.weights.convert import Converted
from vitrail.weights.files import read
from vitrail.weights.known import Known, known
from vitrail.weights.names import Found, find
from vitrail.weights.published import imagenet_names
from vitrail.weights.timm import preprocessing_of

IMAGENET = 1000  # classes
CROP = 0.9  # part of the shorter side that is kept, where only mean and standard deviation are told
STATISTICS = ("mean", "std")
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
    origin = look_at(name, told)
    with _of_a_stranger(origin.found):
        return _model(origin, preprocessing, classes, image_size, channels, device)


class Unstated(UsageError):
    """Nothing says how images go into a network."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Foreign weights before they are a model: nothing is known yet of how images go in.

    Attributes:
        found: Their files.
        converted: Their network, and how it was made.
        known: Who vouches for them; None where nobody does.
    """

    found: Found
    converted: Converted
    known: Known | None

    @property
    def vouched(self) -> str:
        """Who vouches for the answers, in words."""
        if self.known is not None:
            return f"{self.known.name}: answers as {self.known.by} did, gap {self.known.gap:.0e}"
        if self.converted.gap is not None:
            return f"answers as the live network does, gap {self.converted.gap:.0e}"
        return NOBODY

    @property
    def licence(self) -> str:
        """Of the weights, as the library or the lab states it."""
        return (self.known.licence if self.known else str(self.found.facts.get("licence") or "")) or "not stated"


def look_at(name: str | Path, told: Mapping[str, Any] | None = None) -> Origin:
    """The network of the weights that a name means, and who vouches for it; see `vitrail.load` for errors."""
    check_told(told or {})
    found = find(name)
    weights, rest = read(found.weights), dict(told or {})
    classes = rest.pop("classes", None)  # of a head that is made anew, where it is not the one that is there
    with _of_a_stranger(found):
        converted = conversion.from_tensors(weights.tensors, rest, str(name), found.config)
        row = known(converted.network, any(name not in STATISTICS for name in rest))
        if weights.average:
            average = f"{weights.average}, an average over training that the checkpoint holds beside its weights"
            converted = replace(converted, changed={"weights": average})
        return _headed(Origin(found, converted, row), classes)


def _headed(origin: Origin, classes: int | None) -> Origin:
    """With a head for so many classes; for one that is made anew nobody vouches, whoever does for all below it."""
    converted, row = origin.converted, origin.known
    if classes is None or classes == converted.network.config.classes:
        return origin
    beside = {"preprocessing": row.preprocessing, "licence": row.licence} if row else {}
    found = replace(origin.found, facts={**origin.found.facts, "classes": (), **beside})
    if found.config and "label_names" in found.config:
        found = replace(found, config={**found.config, "label_names": ()})
    return Origin(found, conversion.with_head(converted, classes), None)


@contextmanager
def _of_a_stranger(found: Found) -> Iterator[None]:
    """What a configuration says may be of any kind and size: whatever breaks on it is told in one line."""
    try:
        yield
    except VitrailError:
        raise
    except Exception as error:
        problem = f"{found.origin}: what comes with its tensors cannot be used ({type(error).__name__}: {error})"
        raise DataError(problem, "the files as their hub has them") from error


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
    rest = dict(told or {})
    classes_told = rest.pop("classes", None)
    converted = conversion.convert(module, rest)
    config: Any = getattr(module, "pretrained_cfg", None)
    beside = {"pretrained_cfg": dict(config)} if isinstance(config, Mapping) else None
    called = f"a live {type(module).__module__.partition('.')[0]} {type(module).__name__}"
    found = Found(Path(called), called, beside)
    origin = _headed(Origin(found, converted, known(converted.network)), classes_told)
    return _model(origin, preprocessing, classes)


def _model(
    origin: Origin,
    preprocessing: Preprocessing | None,
    classes: Sequence[str] | None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    found, converted, row = origin.found, origin.converted, origin.known
    network = converted.network
    reads = _with_statistics(preprocessing or (row.preprocessing if row else _beside(found, converted)), converted)
    if reads is None:
        height, width = network.config.image
        raise Unstated(
            f"{found.origin}: nothing says how images go into it, and it answers wrongly when they go in wrongly",
            f"preprocessing=vitrail.data.Preprocessing(({height}, {width}), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))"
            "; on the command line --mean 0.5 --std 0.5",
        )
    output, named = _output(found, converted, row, classes)
    if preprocessing is None and reads.size != network.config.image:
        if found.preprocessor is not None and row is None:  # transformers carries positions to whatever its own gives
            image_size = image_size or reads.size
        else:  # a network made for another size than published
            reads = replace(reads, size=network.config.image)
    scaled = [side / reads.crop_ratio for side in reads.size]
    check_size(found.weights, int(12 * scaled[0] * scaled[1]))  # of an image on its way
    network, reads = adapted(network, reads, image_size, channels)
    facts = {
        "origin": found.origin,
        **({"name": row.name} if row else {}),
        "licence": origin.licence,
        "vouched": origin.vouched,
        **({"trained_with": _statistics_words(row.preprocessing)} if row and _differ(row.preprocessing, reads) else {}),
        **({"class_names": named} if named else {}),
        **({"assumed": "; ".join(converted.assumed)} if converted.assumed and not row else {}),
        **({"left_out": ", ".join(converted.skipped)} if converted.skipped else {}),
        **converted.changed,
        **({"resized": carried} if (carried := resize_words(converted.network.config, network.config)) else {}),
    }
    task = CLASSIFY if isinstance(output, Classes) else Features()
    facts["vouched_weights"] = digest_of(network.state_dict())
    return Model(network.to(device), reads, output, task, facts=facts)


def check_told(told: Mapping[str, Any]) -> None:
    """Refuse what is told under a name that nothing reads."""
    known = [*(field.name for field in fields(ViTConfig)), "pooling", *STATISTICS]
    for name in told:
        if name not in known:
            problem = f"told has '{name}', which no network has"
            raise UsageError(problem, nearest(name, known) or f"one of {', '.join(known[:8])} ...")


def _differ(one: Preprocessing, other: Preprocessing) -> bool:
    return (one.mean, one.std) != (other.mean, other.std) and one.channels == other.channels


def _statistics_words(preprocessing: Preprocessing) -> str:
    return f"mean {preprocessing.mean} and std {preprocessing.std}, which are not those given"


def _with_statistics(stated: Preprocessing | None, converted: Converted) -> Preprocessing | None:
    """How images go in, with the mean and the standard deviation that were told; None where nothing says either."""
    given = {name: converted.told[name] for name in STATISTICS if name in converted.told}
    if not given:
        return stated
    config = converted.network.config
    if stated is None and len(given) < len(STATISTICS):
        raise UsageError(f"{next(iter(given))} is given, and {', '.join(STATISTICS)} belong together", "both")
    stated = stated or Preprocessing(config.image, crop_ratio=CROP, channels=config.channels)
    each = {name: tuple(values) * (config.channels if len(values) == 1 else 1) for name, values in given.items()}
    return replace(stated, mean=each.get("mean", stated.mean), std=each.get("std", stated.std))


def _beside(found: Found, converted: Converted) -> Preprocessing | None:
    """How images go in, as what lies beside the weights says it; None where nothing does."""
    stated = found.facts.get("preprocessing")
    if isinstance(stated, Preprocessing):
        return stated
    published = (found.config or {}).get("pretrained_cfg")
    try:
        if found.preprocessor is not None:
            return from_hugging_face(found.preprocessor)
        return preprocessing_of(published) if published else None
    except VitrailError as error:
        raise DataError(
            f"{found.origin}: {error.problem}", "preprocessing=, or the files as their hub has them"
        ) from error
    except KeyError as error:
        raise DataError(f"{found.origin}: its pretrained_cfg has no {error}", "preprocessing=") from error


def _output(found: Found, converted: Converted, row: Known | None, given: Sequence[str] | None) -> tuple[Codec, str]:
    """What the logits are: classes, and where their names come from; or numbers that describe an image."""
    count = converted.network.config.classes
    if given is None and (not count or converted.told.get("projection")):
        return Numbers(outputs_of(converted.network.config)), ""
    stated = (found.config or {}).get("label_names") or converted.told.get("names") or found.facts.get("classes")
    if not isinstance(stated, list | tuple) or not all(isinstance(name, str) for name in stated):
        stated = ()
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
    return Classes(names), source
