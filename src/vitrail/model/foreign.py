"""A model made of other people's weights: a name in a hub, a file, a folder, or a live network.

What a model is besides its tensors comes from the first that says it: the caller; the table of weights that somebody
vouches for; what lies beside the file. How images go in is never guessed: a wrong mean and standard deviation costs a
real ViT-Ti 37 of 85 points without a word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.data.columns import Classes, Codec
from vitrail.data.hugging_face import from_hugging_face
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import check_size, digest_of
from vitrail.errors import COMMAND_LINE, DataError, UsageError, VitrailError
from vitrail.model.model import BORROWS, CLASSIFY, Model, resized
from vitrail.model.origin import Origin, look_at, look_at_live, of_a_stranger
from vitrail.model.sureness import Unstated
from vitrail.nn.embedding import Size
from vitrail.nn.networks import outputs_of
from vitrail.tasks.features import Features, Numbers
from vitrail.weights.assume import STATISTICS, checked_names, hint_for, words_of
from vitrail.weights.convert import Converted
from vitrail.weights.known import Known
from vitrail.weights.names import Found
from vitrail.weights.published import distinct, imagenet_names, wordnet_ids
from vitrail.weights.timm import preprocessing_of

IMAGENET = 1000  # classes
UNREADABLE = f"preprocessing=, how images go in{COMMAND_LINE}the files as their hub has them"
CROP = 0.9  # part of the shorter side that is kept, where only mean and standard deviation are stated


def open_foreign(
    name: str | Path,
    *,
    assume: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """A model of the weights that a name means; see `vitrail.load`."""
    return model_of(look_at(name, assume), preprocessing, classes, image_size, channels, device)


def convert(
    module: nn.Module,
    *,
    assume: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
) -> Model:
    """A live network of timm, transformers, torchvision or vit-pytorch as a model, proved to answer as it does.

    Args:
        module: The network; it is left as it was.
        assume: What it does not say of itself: fields of `ViTConfig` by name, and `pooling`.
        preprocessing: How images go in; what the module says, where it does, when None.
        classes: Names in the order of the logits; those the module has, or numbers, when None.

    Returns:
        The model, whose `facts` say the gap between both answers to a fixed batch.

    Raises:
        UsageError: If the module is of no family known here, or nothing says how images go in.
        DataError: If it has what no plain ViT has, or the answers differ; nothing is returned then.
    """
    return model_of(look_at_live(module, assume), preprocessing, classes)


def model_of(
    origin: Origin,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """A model of weights that were looked at; see `vitrail.load`.

    Raises:
        Unstated: Nothing says how images go in.
    """
    with of_a_stranger(origin.found):
        return _model(origin, preprocessing, classes, image_size, channels, device)


def _model(
    origin: Origin,
    preprocessing: Preprocessing | None,
    classes: Sequence[str] | None,
    image_size: int | Size | None,
    channels: int | None,
    device: str | torch.device,
) -> Model:
    found, converted, row = origin.found, origin.converted, origin.known
    network = converted.network
    reads, assumed = preprocessing or (row.preprocessing if row else _beside(found)), list(converted.assumed)
    if reads is None and all(name in converted.facts for name in STATISTICS):
        reads = Preprocessing(network.config.image, "crop", CROP, channels=network.config.channels)
        assumed.append(f"resize {reads.resize}, crop ratio {reads.crop_ratio}, interpolation {reads.interpolation}")
    lacking = [name for name in STATISTICS if name not in converted.facts]
    if reads is None and len(lacking) == 1:
        problem = f"{found.origin}: {lacking[0]} is missing beside {(set(STATISTICS) - set(lacking)).pop()}"
        raise UsageError(problem, f"{hint_for(**{lacking[0]: 0.5})}, or that of its training")
    if reads is None:
        height, width = network.config.image
        half = (0.5,) * network.config.channels
        raise Unstated(
            f"{found.origin}: nothing says how images go into it, and it answers wrongly when they go in wrongly",
            f"preprocessing=vitrail.data.Preprocessing(({height}, {width}), channels={len(half)}, mean={half}, "
            f"std={half}){COMMAND_LINE}--mean 0.5 --std 0.5, or those of its training",
        )
    reads = _with_statistics(_grey(reads, network.config.channels), converted.facts)
    output, named = _output(found, converted, row, classes)
    if preprocessing is None and reads.size != network.config.image:
        if found.preprocessor is not None and row is None:  # transformers carries positions to whatever its own gives
            image_size = image_size or reads.size
        else:  # a network made for another size than published
            reads = replace(reads, size=network.config.image)
    scaled = [side / reads.crop_ratio for side in reads.size]
    check_size(found.weights, int(12 * scaled[0] * scaled[1]))  # of an image on its way
    if image_size is not None:
        reads = replace(reads, size=network.config.image)  # until the network is resized
    facts = {
        "origin": found.given_on,
        **({"name": row.name} if row else {}),
        "licence": origin.licence,
        "vouched": origin.vouched,
        **({"assumed_by_user": words_of(origin.assume)} if origin.assume else {}),
        **({"trained_with": _statistics_words(row.preprocessing)} if row and _differ(row.preprocessing, reads) else {}),
        **({"class_names": named} if named else {}),
        **({"assumed": "; ".join(assumed)} if assumed and not (row or origin.below) else {}),
        **({"left_out": ", ".join(converted.skipped)} if converted.skipped else {}),
        **{name: found.facts[name] for name in ("unpickled", "configuration") if name in found.facts},
        **({BORROWS: True} if origin.below and origin.below.classes else {}),
        **converted.changed,
        "vouched_weights": digest_of(network.state_dict()),
    }
    task = CLASSIFY if isinstance(output, Classes) else Features()
    model = resized(Model(network, reads, output, task, facts=facts), image_size, channels, origin.doubt)
    return replace(model, network=model.network.to(device))


def _grey(stated: Preprocessing, channels: int) -> Preprocessing:
    """How grey images go into a network that reads them, where what is said of colours is the same of each."""
    alike = len(set(stated.mean)) == len(set(stated.std)) == 1
    if channels != 1 or stated.channels == 1 or not alike:
        return stated
    return replace(stated, channels=1, mean=stated.mean[:1], std=stated.std[:1])


def _differ(one: Preprocessing, other: Preprocessing) -> bool:
    """Whether images go in otherwise, but for their size; another crop alone may come with that."""
    keys = ("mean", "std", "resize", "interpolation")
    return one.channels == other.channels and any(getattr(one, key) != getattr(other, key) for key in keys)


def _statistics_words(preprocessing: Preprocessing) -> str:
    p = preprocessing
    how = f"resize {p.resize}, crop ratio {p.crop_ratio}, interpolation {p.interpolation}"
    return f"mean {p.mean}, std {p.std}, {how}, which are not those given"


def _with_statistics(stated: Preprocessing, assume: Mapping[str, Any]) -> Preprocessing:
    """How images go in, with the mean and the standard deviation that the user states."""
    given = {
        name: assume[name] * (stated.channels if len(assume[name]) == 1 else 1) for name in STATISTICS if name in assume
    }
    for name, values in given.items():
        if len(values) != stated.channels:
            problem = f"assume: {name} has {len(values)} numbers, for images of {stated.channels} channels"
            raise UsageError(problem, hint_for(**{name: values[0]}))
    return replace(stated, **{name: v * (stated.channels if len(v) == 1 else 1) for name, v in given.items()})


def _beside(found: Found) -> Preprocessing | None:
    """How images go in, as what lies beside the weights says it; None where nothing does."""
    stated = found.facts.get("preprocessing")
    if isinstance(stated, Preprocessing):
        return stated
    published = (found.config or {}).get("pretrained_cfg")
    try:
        if found.preprocessor is not None:
            return from_hugging_face(found.preprocessor, str((found.config or {}).get("model_type", "")))
        return preprocessing_of(published) if published else None
    except VitrailError as error:
        raise DataError(f"{found.origin}: {error.problem}", UNREADABLE) from error
    except KeyError as error:
        raise DataError(f"{found.origin}: its pretrained_cfg has no {error}", UNREADABLE) from error


def _output(found: Found, converted: Converted, row: Known | None, given: Sequence[str] | None) -> tuple[Codec, str]:
    """What the logits are: classes, and where their names come from; or numbers that describe an image."""
    count = converted.network.config.classes
    if given is None and count and (problem := converted.facts.get("numbers")):
        return Numbers(outputs_of(converted.network.config)), f"none: its configuration says {problem}"
    if given is None and (count in (0, 1) or converted.facts.get("projection")):  # one logit is no class among others
        return Numbers(outputs_of(converted.network.config)), ""
    asked = None if given is None else checked_names(given)
    if asked is not None and count == len(asked) == 1:
        problem = "one class name for one logit, which cannot choose among classes; it is given as a number"
        raise UsageError(problem, f"load without classes={COMMAND_LINE}the same without --class-names")
    stated = (found.config or {}).get("label_names") or converted.facts.get("names") or found.facts.get("classes")
    if not isinstance(stated, list | tuple) or not all(isinstance(name, str) for name in stated):
        stated = ()
    if asked is not None:
        names, source = asked, ""
    elif row is not None and row.classes == "imagenet":
        names, source = imagenet_names(), ""
    elif stated and len(stated) == count:
        names, source = distinct(stated), ""
    elif count == IMAGENET:
        names, source = imagenet_names(), "ImageNet's, since there are 1,000"
    else:
        names, source = tuple(map(str, range(count))), "numbers: nothing names them"
    if len(names) != count:
        given_for = f"{len(names)} class names for {count} logits"
        new, typed = (
            f"assume={{'classes': {len(names)}}} for a new head",
            f"--assume classes={len(names)}, for a new head",
        )
        if count:
            new, typed = f"classes= with {count} names, or {new}", f"--class-names FILE with {count} lines, or {typed}"
        raise UsageError(given_for, f"{new}{COMMAND_LINE}{typed}")
    return Classes(names, wordnet_ids(names)), source
