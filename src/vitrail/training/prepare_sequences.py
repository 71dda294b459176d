"""From what was asked for to everything a training on sequences needs: settings, vocabularies, model, batches."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from vitrail.data.feed import check_readable
from vitrail.data.pictures import Pictures
from vitrail.data.preprocessing import Preprocessing, measure_statistics
from vitrail.data.readers import NAMED_SEQUENCES
from vitrail.data.readers.sort_digits import DIGITS
from vitrail.data.samples import PictureSamples, Samples, TextSamples
from vitrail.data.sequence_batches import SequenceSet, feed_of
from vitrail.data.sequence_source import SequenceSource
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError
from vitrail.nn import ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig
from vitrail.nn.cost import flops
from vitrail.sequence_model import SequenceModel
from vitrail.training.asked import asked_for, laid_over, replayed
from vitrail.training.execution import execution_for
from vitrail.training.loop import part_size, steps_per_epoch
from vitrail.training.objectives import teacher_forcing
from vitrail.training.options import TrainOptions
from vitrail.training.prepare import Progress, look, unreadable_notes
from vitrail.training.recipes import announced
from vitrail.training.sequence_settings import SequenceSettings, choose_sequences, sequence_settings_from_dict
from vitrail.training.sequence_training import PreparedSequences

MEASURED = 2048  # pictures that mean and deviation are measured on
MOST_TOKENS = 512  # of a text that a network learns to write, unless a configuration file says more
LINE_HEIGHT, LEAST_WIDTH, MOST_WIDTH = 32, 32, 512  # pixels of a line of text in pictures of one's own


def vocabularies(source: SequenceSource, separator: str = "") -> tuple[Vocabulary, Vocabulary | None]:
    """What is written, and what is read where texts are: the tokens of the training split.

    Raises:
        DataError: Another split has a token that training does not have; names it.
    """
    if source.name in NAMED_SEQUENCES:
        digits = Vocabulary(DIGITS)
        return digits, None if source.reads_pictures else digits
    written = Vocabulary.of(_targets(source.train), separator)
    read = Vocabulary.of(source.train.sources, separator) if isinstance(source.train, TextSamples) else None
    for name, samples in source.splits.items():
        try:
            for text in _targets(samples):
                written.encode(text)
            if read is not None:
                for text in _sources(samples):
                    read.encode(text)
        except DataError as error:
            raise DataError(
                f"the {name} split: {error.problem}, which training does not have",
                "a training sample with that token, or leave this one out",
            ) from error
    return written, read


def resolve_sequences(
    data: str, options: TrainOptions, given: dict[str, Any], source: SequenceSource
) -> tuple[SequenceSettings, list[str]]:
    """The settings of a new run: recipe < configuration file < options.

    Args:
        data: What to train on.
        options: What was asked for.
        given: Content of a configuration file, or empty.
        source: The data, opened.

    Returns:
        The settings, and a sentence for each choice that was made.

    Raises:
        UsageError: Something asked for is unknown, makes no sense for sequences, or cannot be built.
        DataError: A text is longer than the network may write.
    """
    refuse_picture_options(options)
    stored = given.get("recipe", "custom")
    asked = options.recipe if options.recipe != "auto" or stored == "custom" else stored
    recipe, name, reason = choose_sequences(asked, source.name, source.reads_pictures)
    values: dict[str, Any] = {
        "recipe": name,
        "task": "sequences",
        "network": recipe.network,
        "optimization": asdict(recipe.optimization),
        "label_smoothing": recipe.label_smoothing,
        "counts": asdict(recipe.counts),
        "background": recipe.background,
    }
    if source.name not in NAMED_SEQUENCES and isinstance(source.train, PictureSamples):
        values = laid_over(values, {"network": {"encoder": _look_of(source.train.pictures, recipe.network["encoder"])}})
    values = laid_over(laid_over(values, given), asked_for(options))
    if options.epochs is not None and "warmup_epochs" not in given.get("optimization", {}):
        shorter = min(1.0, options.epochs / recipe.optimization.epochs)
        values["optimization"]["warmup_epochs"] = recipe.optimization.warmup_epochs * shorter
    values["data"] = data
    if options.data_root is not None:
        values["data_root"] = str(options.data_root.resolve())
    values["network"] = _fitted(values["network"], source, values.get("separator", ""))
    settings = sequence_settings_from_dict(values, str(options.config or "the options"))
    _check_lengths(source, settings)
    choices = settings.optimization
    steps = steps_per_epoch(len(source.train), choices) * choices.epochs
    work = 3.0 * forward_flops(settings.network, source) * part_size(choices)
    execution, notes = execution_for(replayed(options, settings.execution, given), work, steps)
    return replace(settings, execution=execution), [announced(name, reason, recipe.reached), *notes]


def refuse_picture_options(options: TrainOptions) -> None:
    """Refuse what only a classifier of pictures has.

    Raises:
        UsageError: Names the option.
    """
    for name, value in (("--size", options.size), ("--image-size", options.image_size)):
        if value is not None:
            raise UsageError(
                f"{name} {value} is for classes of pictures; sequences have the network of their recipe",
                f"leave {name} out, or --config FILE with the section network of a former run's config.yaml",
            )


def forward_flops(network: TransformerConfig | ImageToSequenceConfig, source: SequenceSource) -> float:
    """About how much work one sample is: two FLOPs for each weight and token."""
    match network:
        case ImageToSequenceConfig(encoder=encoder):
            per_token = network.decoder_depth * (8 * encoder.width**2 + 2 * encoder.width * network.mlp_width)
            return flops(encoder) + 2.0 * network.max_length * per_token
        case TransformerConfig():
            per_token = 4 * network.width**2 + 2 * network.width * network.mlp_dim
            read = network.encoder_depth * max(map(len, _sources(source.train)), default=1)
            return 2.0 * per_token * (read + 1.5 * network.decoder_depth * network.max_length)


def _sources(samples: Samples) -> tuple[str, ...]:
    return samples.sources if isinstance(samples, TextSamples) else ()


def _targets(samples: Samples) -> tuple[str, ...]:
    """The texts of samples that are the same in every epoch."""
    return samples.targets if isinstance(samples, TextSamples | PictureSamples) else ()


def _look_of(pictures: Pictures, encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Size and channels for pictures of one's own: a fixed height, and a width that most of them fit into."""
    _, channels = look(pictures)
    shapes = []
    for index in np.linspace(0, len(pictures) - 1, min(64, len(pictures))).astype(int):
        try:
            width, height = pictures.open(int(index)).size
            shapes.append(width / height)
        except DataError:
            continue
    across = encoder["patch_size"][1]
    width = min(MOST_WIDTH, max(LEAST_WIDTH, LINE_HEIGHT * float(np.quantile(shapes, 0.9))))
    return {"image_size": (LINE_HEIGHT, -(-round(width) // across) * across), "channels": channels}


def _fitted(network: dict[str, Any], source: SequenceSource, separator: str) -> dict[str, Any]:
    """The network's configuration with what the data decides."""
    written, read = vocabularies(source, separator)
    longest = max(len(written.split(text)) for samples in source.splits.values() for text in _targets(samples))
    fitted = {"max_length": min(longest, MOST_TOKENS) + 1, **network}
    if read is None:
        return {**fitted, "vocabulary": len(written)}
    return {**fitted, "source_vocabulary": len(read), "target_vocabulary": len(written)}


def _check_lengths(source: SequenceSource, settings: SequenceSettings) -> None:
    """Refuse a text that the network may not write."""
    written, most = vocabularies(source, settings.separator)[0], settings.network.max_length - 1
    for name, samples in source.splits.items():
        for index, text in enumerate(_targets(samples)):
            if len(written.split(text)) > most:
                raise DataError(
                    f"the {name} split: the text of {samples.name(index)} has {len(written.split(text))} tokens, and "
                    f"the network writes {most} at most",
                    f"max_length: {len(written.split(text)) + 1} in the section network, or leave the sample out",
                )


def build_sequences(
    settings: SequenceSettings, source: SequenceSource, progress: Progress = lambda what, done, whole: None
) -> PreparedSequences:
    """Everything that the settings and the data decide; the same call gives the same start weights.

    Raises:
        DataError: Too many pictures cannot be read.
    """
    device, workers = torch.device(settings.execution.device), settings.execution.workers
    written, read = vocabularies(source, settings.separator)
    shape = _shape(settings)
    feeds = {}
    for name, samples in (("train", source.train), ("validation", source.validation)):
        count, what = len(samples), f"reading {name}"
        feeds[name] = feed_of(samples, shape, read, workers, lambda done, w=what, c=count: progress(w, done, c))
        if (pictures := feeds[name].pictures) is not None:
            check_readable(pictures, count)
    if shape is not None:
        some = np.linspace(0, len(source.train) - 1, min(MEASURED, len(source.train))).astype(np.int64)
        (sample,) = feeds["train"].fetch([some], 0)
        mean, std = measure_statistics(sample.inputs[sample.readable])
        shape = replace(shape, mean=mean, std=std)
    torch.manual_seed(settings.seed)
    match settings.network:
        case ImageToSequenceConfig() as config:
            network: Transformer | ImageToSequence = ImageToSequence(config).to(device)
        case TransformerConfig() as config:
            network = Transformer(config).to(device)
    longest = 0 if read is None else max(len(read.split(text)) for text in _sources(source.train))
    model = SequenceModel(network, written, read, shape, settings.label_smoothing, longest)
    sets = {
        name: SequenceSet(feed, len(source.splits[name]), written, shape, settings.seed, device)
        for name, feed in feeds.items()
    }
    read_feeds = [feed.pictures for feed in feeds.values() if feed.pictures is not None]
    return PreparedSequences(
        settings=settings,
        source=source,
        model=model,
        data=sets["train"],
        validation=sets["validation"],
        objective=teacher_forcing(settings.label_smoothing),
        notes=unreadable_notes(*read_feeds),
    )


def _shape(settings: SequenceSettings) -> Preprocessing | None:
    """The preprocessing before its statistics are measured, where pictures are read."""
    if not isinstance(settings.network, ImageToSequenceConfig):
        return None
    encoder = settings.network.encoder
    return Preprocessing(
        size=encoder.image,
        resize=settings.resize,
        channels=encoder.channels,
        mean=(0.5,) * encoder.channels,
        std=(0.5,) * encoder.channels,
        background=(settings.background,) * 3,
    )
