"""A model made of pretrained weights: a name in a hub, a file, a folder, or a live network.

What a model is besides its tensors comes from the first that states it: the caller; the table of known weights; the
files beside the weights. The preprocessing is never guessed: a wrong mean and standard deviation silently costs a real
ViT-Ti 37 of 85 points.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.arguments import typed
from vitrail.data.preprocessing import Preprocessing, from_hugging_face
from vitrail.data.tensor_files import check_size
from vitrail.errors import DataError, Hint, UsageError, VitrailError, raised_as
from vitrail.model.facts import CHANGES, UNVERIFIED, UNVERIFIED_HEAD
from vitrail.model.model import BORROWS, CLASSIFY, Model, resize_model
from vitrail.nn.embedding import Size
from vitrail.nn.networks import output_count
from vitrail.tasks import Codec, Task
from vitrail.tasks.classify import Classes
from vitrail.tasks.features import Features, Numbers
from vitrail.weights import convert as conversion
from vitrail.weights.assume import STATISTICS, Contradiction, assume_words, check_assume, check_names, hint_for
from vitrail.weights.convert import Converted
from vitrail.weights.files import read_weights
from vitrail.weights.inside import left_out_words
from vitrail.weights.names import FoundWeights, find_weights
from vitrail.weights.published import KnownWeights, distinguish, find_known, imagenet_names, wordnet_ids
from vitrail.weights.timm import preprocessing_of

IMAGENET = 1000  # classes
UNREADABLE = Hint(text="the files as published on their hub", python="preprocessing=, how images are prepared")
DESCRIBED = ("trained_with", *CHANGES, "class_names", "licence", "verified")  # facts
CROP = 0.9  # part of the shorter side that is kept, where only mean and standard deviation are stated


class Unstated(UsageError):
    """The preprocessing of a network is not stated."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Pretrained weights before they are a model, which has a preprocessing.

    Attributes:
        found: Their files.
        converted: Their network, and how it was made.
        known: Their row in the table of known weights; None where they have none.
        assume: What the user states of them, by name.
        below: The row of all below a head that was made anew.
    """

    found: FoundWeights
    converted: Converted
    known: KnownWeights | None
    assume: Mapping[str, Any]
    below: KnownWeights | None = None

    @property
    def row(self) -> KnownWeights | None:
        """What is known of the weights: of all, or of all below the head."""
        return self.known or self.below

    @property
    def verified(self) -> str:
        """By what the logits are verified, in words."""
        if self.known is not None:
            return f"{self.known.name}: same logits as {self.known.by} (largest difference {self.known.gap:.0e})"
        if self.converted.gap is not None:
            return f"same logits as the live network (largest difference {self.converted.gap:.0e})"
        if self.below is None:
            return UNVERIFIED
        if not self.converted.network.config.classes:
            return f"{self.below.name} without its head: features and preprocessing as in {self.below.by}"
        return f"{UNVERIFIED_HEAD}; below it {self.below.name}, with preprocessing as in {self.below.by}"

    @property
    def licence(self) -> str:
        """Of the weights, as the library or the lab states it."""
        return (self.row.licence if self.row else str(self.found.facts.get("licence") or "")) or "not stated"


def identify(name: str | Path, assume: Mapping[str, Any] | None = None) -> Origin:
    """The network of the weights of this name, and whether they are known; see `vitrail.load` for errors."""
    stated, found = check_assume(assume), find_weights(name)
    tensors, rest = read_weights(found.weights), _of_network(stated)
    with _one_line(found):
        try:
            converted = conversion.from_tensors(tensors, rest, str(name), found.config, "classes" in stated)
        except Contradiction as error:
            if rest.keys() & error.names:  # a person's word, and not the file
                raise UsageError(error.problem, error.hint) from error
            raise
        return _origin(found, converted, stated)


def _of_network(assume: Mapping[str, Any]) -> dict[str, Any]:
    """What the user states of a network below its head."""
    return {name: value for name, value in assume.items() if name not in ("classes", *STATISTICS)}


def _origin(found: FoundWeights, converted: Converted, assume: Mapping[str, Any]) -> Origin:
    """With a head for the classes that the user states; a new one is not verified, even where all below it is."""
    row = find_known(converted.network, converted.digest, bool(_of_network(assume)))
    own = converted.network.config.classes
    if (classes := assume.get("classes", own)) == own:
        return Origin(found, converted, row, assume)
    return Origin(found, conversion.with_head(converted, classes), None, assume, row)


def _one_line(found: FoundWeights) -> AbstractContextManager[None]:
    """A configuration may contain values of any type and size: whatever breaks on them is an error of one line."""
    problem = f"{found.origin}: the files beside its tensors cannot be used"
    return raised_as(DataError, problem, "the files as published on their hub", Exception)


@typed
def convert(
    module: nn.Module,
    *,
    assume: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
) -> Model:
    """A live network of timm, transformers, torchvision or vit-pytorch as a model, proved to give the same logits.

    Args:
        module: The network; it is not changed.
        assume: What it does not state of itself: fields of `ViTConfig` by name, and `pooling`.
        preprocessing: That of the module, if it states one, when None.
        classes: Class names in the order of the logits; those of the module, or numbers, when None.

    Returns:
        The model, on the CPU; its `facts` state the largest difference of the logits of two random images (2, c, h, w),
        relative to the largest logit: at most 1e-5 in fp32.

    Raises:
        UsageError: If the module is of no family known here, or nothing states the preprocessing.
        DataError: If it has what no plain ViT has, or the logits differ by more.
    """
    module, stated = conversion.unwrap(module), check_assume(assume)
    converted = conversion.convert_network(module, _of_network(stated))
    module = module.get_submodule(converted.path)
    config: Any = getattr(module, "pretrained_cfg", None)
    beside = {"pretrained_cfg": dict(config)} if isinstance(config, Mapping) else None
    called = f"a live {type(module).__module__.partition('.')[0]} {type(module).__name__}"
    origin = _origin(FoundWeights(Path(called), called, beside), converted, stated)
    return model_of(origin, preprocessing, classes)


def model_of(
    origin: Origin,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """A model of identified weights; see `vitrail.load`.

    Raises:
        Unstated: The preprocessing is not stated.
    """
    found, converted, row = origin.found, origin.converted, origin.known
    with _one_line(found):
        network, assumed = converted.network, list(converted.assumed)
        reads = _choose_preprocessing(origin, preprocessing, assumed)
        task, output, named = _choose_output(origin, classes)
        if preprocessing is None and found.preprocessor is not None and row is None:
            image_size = image_size or reads.size  # transformers resizes positions to what its own gives
        scaled = [side / reads.crop_pct for side in reads.size]
        check_size(found.weights, int(12 * scaled[0] * scaled[1]))  # of an image on its way
        if preprocessing is None or image_size is not None:  # which may be made for another size than published
            reads = replace(reads, size=network.config.image)  # until the network is resized
        facts = {
            "origin": found.public_origin,
            "name": row.name if row else "",
            "licence": origin.licence,
            "verified": origin.verified,
            "assumed_by_user": assume_words(origin.assume),
            "trained_with": _trained_with(row, reads) if row else "",
            "class_names": named,
            "assumed": "" if origin.row else "; ".join(assumed),
            "left_out": left_out_words(converted.skipped, reasons=False),
            "unpickled": found.facts.get("unpickled"),
            "configuration": found.facts.get("configuration"),
            BORROWS: bool(origin.below and origin.below.classes),
            **converted.changed,
            "verified_weights": converted.digest,
        }
        model = Model(network, reads, output, task, facts={name: fact for name, fact in facts.items() if fact})
        unknown = found.config is None and origin.row is None and "position_resize" not in converted.facts
        model = resize_model(model, image_size, channels, unknown)
        return replace(model, network=model.network.to(device))


def show_weights(
    name: str, assume: Mapping[str, Any] | None = None, bits: int | None = None, **options: Any
) -> tuple[Model, dict[str, Any]]:
    """A model of weights whose preprocessing may be unknown, and all that is known of them, by name.

    Args:
        name: The name of a hub's weights, or a file or folder of them, as for `vitrail.load`.
        assume: What the weights do not state, as for `vitrail.load`.
        bits: How many of their bits images of 16 bits use; what the model states when None.
        options: Further arguments of `model_of`.
    """
    origin = identify(name, assume)
    converted, reads = origin.converted, ""
    try:
        model = model_of(origin, **options)
    except Unstated:
        model = model_of(replace(origin, assume={**origin.assume, "mean": (0.5,), "std": (0.5,)}), **options)
        reads = "the preprocessing is unknown: state it with --mean and --std, for example --mean 0.5 --std 0.5"
    if bits is not None:
        model = replace(model, input=replace(model.preprocessing, bits=bits))
    assumed = "; ".join(converted.assumed)
    known = {
        "origin": origin.found.origin,
        "family": converted.family,
        "tensors": len(converted.used),
        "left_out": left_out_words(converted.skipped, reasons=True),
        "assumed": assumed if reads else model.facts.get("assumed", assumed),
        **known_of(model),
    }
    return model, {**known, "reads": reads or known["reads"]}


def known_of(model: Model) -> dict[str, Any]:
    """What is known of pretrained weights, as a model of them has it."""
    reads, (holds, classes) = model.preprocessing, model.output.describe()
    words = f"images of {reads.size[0]}x{reads.size[1]}: {_way(reads)}; mean {reads.mean}, std {reads.std}"
    words += f"; {reads.bits} of 16 bits" if reads.bits else ""
    facts = {fact: model.facts[fact] for fact in DESCRIBED if fact in model.facts}
    return {**facts, "reads": words, holds: classes}


def _way(reads: Preprocessing) -> str:
    """How images are brought to their size, in words."""
    return f"resize {reads.resize}, crop ratio {reads.crop_pct:.4g}, interpolation {reads.interpolation}"


def _choose_preprocessing(origin: Origin, preprocessing: Preprocessing | None, assumed: list[str]) -> Preprocessing:
    """The preprocessing: of the caller, the table or the files, with the mean and std that the user states."""
    found, config, assume = origin.found, origin.converted.network.config, origin.assume
    reads = preprocessing or (origin.row.preprocessing if origin.row else _beside(found))
    stated, half = {name: assume[name] for name in STATISTICS if name in assume}, (0.5,) * config.channels
    if reads is None and len(stated) == 1:
        (lacking,) = {*STATISTICS} - stated.keys()
        problem = f"{found.origin}: {next(iter(stated))} is stated, but {lacking} is missing"
        raise UsageError(problem, hint_for({**assume, lacking: 0.5}, "or that of its training"))
    if reads is None and not stated:
        problem = f"{found.origin}: its preprocessing is not stated, and wrong preprocessing gives wrong predictions"
        raise Unstated(problem, hint_for({**assume, "mean": 0.5, "std": 0.5}, "or those of its training"))
    if reads is None:
        reads = Preprocessing(config.image, "crop", CROP, channels=len(half), mean=half, std=half)
        assumed.append(_way(reads))
    for name, values in stated.items():
        if len(values) not in (1, reads.channels):
            problem = f"assume: {name} has {len(values)} numbers, but images have {reads.channels} channels"
            raise UsageError(problem, hint_for({name: values[0]}))
        reads = replace(reads, **{name: values * (reads.channels // len(values))})
    if config.channels == 1 < reads.channels and preprocessing is None:
        if max(len({*reads.mean}), len({*reads.std})) > 1:
            problem = f"{found.origin}: it reads grey images, but mean and std are stated of three colours that differ"
            raise Unstated(problem, hint_for({**assume, "mean": 0.5, "std": 0.5}, "or those of its training"))
        reads = replace(reads, channels=1, mean=reads.mean[:1], std=reads.std[:1])
    return reads


def _trained_with(row: KnownWeights, reads: Preprocessing) -> str:
    """The preprocessing of the training, in words, where it differs in more than size and crop; else empty."""
    then, keys = row.preprocessing, ("mean", "std", "resize", "interpolation")
    if then.channels != reads.channels or all(getattr(then, key) == getattr(reads, key) for key in keys):
        return ""
    return f"mean {then.mean}, std {then.std}, {_way(then)}, which differ from those used now"


def _beside(found: FoundWeights) -> Preprocessing | None:
    """The preprocessing in the files beside the weights; None where there is none."""
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


def _choose_output(origin: Origin, classes: Sequence[str] | None) -> tuple[Task, Codec, str]:
    """What the logits are: classes, and the source of their names; or features of an image."""
    converted, row, config = origin.converted, origin.known, origin.converted.network.config
    facts = {"names": origin.found.facts.get("classes"), **converted.facts}
    if "head" in converted.changed:  # of which nothing is stated
        facts = {}
    count, problem = config.classes, facts.get("numbers")
    if classes is not None:
        return CLASSIFY, _stated_classes(check_names(classes), count), ""
    if problem or count in (0, 1) or facts.get("projection"):  # one logit is no class among others
        why = f"none: its configuration states {problem}" if problem and count else ""
        return Features(), Numbers(output_count(config)), why
    stated = facts.get("names")
    if row is not None and row.classes == "imagenet":
        names, source = imagenet_names(), ""
    elif isinstance(stated, list | tuple) and len(stated) == count and all(isinstance(name, str) for name in stated):
        names, source = distinguish(stated), ""
    elif count == IMAGENET:
        names, source = imagenet_names(), "ImageNet's, since there are 1,000"
    else:
        names, source = tuple(map(str, range(count))), "numbers: no names are stated"
    return CLASSIFY, Classes(names, wordnet_ids(names)), source


def _stated_classes(names: tuple[str, ...], count: int) -> Classes:
    """The classes that the user names, one for each logit."""
    if count == len(names) == 1:
        problem = "one class name for one logit: with one output there are no classes, only a number"
        raise UsageError(problem, Hint(drop=["class_names"], python="load without classes="))
    if len(names) != count:
        problem = f"{len(names)} class names for {count} logits"
        if not count:
            raise UsageError(problem, hint_for({"classes": len(names)}, "for a new head"))
        more = f"a file of {count} lines, or --assume classes={len(names)} for a new head"
        python = f"classes= with {count} names, or assume={{'classes': {len(names)}}} for a new head"
        raise UsageError(problem, Hint(text=more, python=python))
    return Classes(names, wordnet_ids(names))
