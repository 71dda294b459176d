"""From what was asked for to everything a training needs: settings, data, model, feeds.

Two steps, so that a resumed run takes only the second: `resolve` turns options, a configuration file and a recipe into
`Settings`; `build` turns settings and data into the parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from vitrail.data.batches import TrainingSet
from vitrail.data.feed import Feed, check_readable, open_feed
from vitrail.data.pictures import Pictures
from vitrail.data.preprocessing import Preprocessing, measure_statistics
from vitrail.data.reference_files import References
from vitrail.data.references import draw_references, said_of_references
from vitrail.data.source import Source, Split
from vitrail.errors import DataError, UsageError, counted
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig
from vitrail.training.asked import asked_for, laid_over, replayed
from vitrail.training.classifier import Prepared
from vitrail.training.execution import pick_execution, pick_parts
from vitrail.training.loop import steps_per_epoch
from vitrail.training.options import TrainOptions
from vitrail.training.recipes import Recipe, announced, choose
from vitrail.training.settings import Settings, settings_from_dict

SAMPLED = 64  # pictures opened to see their size and channels
MEASURED = 2048  # pictures that mean and deviation are measured on
LEFT_OUT = "left out: "

Progress = Callable[[str, int, int], None]  # what, done, of how many


def resolve(data: str, options: TrainOptions, given: dict[str, Any], source: Source) -> tuple[Settings, list[str]]:
    """The settings of a new run: recipe < configuration file < options.

    Args:
        data: What to train on.
        options: What was asked for.
        given: Content of a configuration file, or empty.
        source: The data, opened.

    Returns:
        The settings, and a sentence for each choice that was made.

    Raises:
        UsageError: If something asked for is unknown or cannot be built.
    """
    side, channels = look(source.train.pictures)
    recipe, name, reason = _choose(options, given, source, side)
    values = _resized(_from_recipe(recipe, name, channels), given.get("network", {}).get("image_size"))
    values = _resized(laid_over(values, given), options.image_size)
    values = laid_over(values, asked_for(options))
    if options.epochs is not None and "warmup_epochs" not in given.get("optimization", {}):
        shorter = min(1.0, options.epochs / recipe.optimization.epochs)  # the warm-up keeps its share of a short run
        values["optimization"]["warmup_epochs"] = recipe.optimization.warmup_epochs * shorter
    values["data"] = data
    values["network"]["classes"] = len(source.classes)
    if options.size is not None:
        values["network"] = _of_size(options.size, values["network"])
    if not options.references:
        values["references"] = False
    if options.data_root is not None:
        values["data_root"] = str(options.data_root.resolve())
    settings = settings_from_dict(values, str(options.config or "the options"))
    steps = steps_per_epoch(len(source.train), settings.optimization) * settings.optimization.epochs
    asked = replayed(options, settings.execution, given)
    execution, notes = pick_execution(asked, settings.network, settings.optimization, steps)
    if "attention_kernel" in given.get("execution", {}):
        execution = replace(execution, attention_kernel=settings.execution.attention_kernel)
    return replace(settings, execution=execution), [announced(name, reason, recipe.reached), *notes]


def in_parts(
    prepared: Prepared, options: TrainOptions, given: dict[str, Any], memory: int
) -> tuple[Prepared, list[str]]:
    """The same with each batch in as many parts as the memory asks for, unless their number is given; and what to say.

    Args:
        prepared: With its teacher, where it has one.
        options: What was asked for.
        given: Content of a configuration file, or empty.
        memory: Bytes that were free before anything was loaded.
    """
    if "accumulate" in {**given.get("optimization", {}), **asked_for(options)["optimization"]}:
        return prepared, []
    settings = prepared.settings
    parts, notes = pick_parts(settings.network, settings.optimization, memory, prepared.beside)
    settings = replace(settings, optimization=replace(settings.optimization, accumulate=parts))
    return replace(prepared, settings=settings), notes


def _choose(options: TrainOptions, given: dict[str, Any], source: Source, side: int) -> tuple[Recipe, str, str]:
    stored = given.get("recipe", "custom")
    if options.recipe != "auto" and stored not in ("custom", options.recipe):
        raise UsageError(
            f"{options.config} is of the recipe {stored}, --recipe says {options.recipe}",
            f"one of the two: --config {options.config}, or --recipe {options.recipe}",
        )
    asked = options.recipe if options.recipe != "auto" or stored == "custom" else stored
    recipe, name, reason = choose(asked, source.name, len(source.train), side)
    if options.recipe == "auto" and "network" in given:
        reason = "as in the configuration file"
    return recipe, name, reason


def _from_recipe(recipe: Recipe, name: str, channels: int) -> dict[str, Any]:
    return {
        "recipe": name,
        "fetch_size": recipe.fetch_size or recipe.image_size,
        "network": {"image_size": recipe.image_size, "channels": channels, **recipe.network},
        "optimization": asdict(recipe.optimization),
        "augmentation": asdict(recipe.augmentation),
    }


def _resized(values: dict[str, Any], image_size: int | Sequence[int] | None) -> dict[str, Any]:
    """For another picture size: pictures are read larger or smaller in the same proportion."""
    if image_size is None:
        return values
    new, old = (side if isinstance(side, int) else side[0] for side in (image_size, values["network"]["image_size"]))
    network = {**values["network"], "image_size": image_size}
    return {**values, "network": network, "fetch_size": round(values["fetch_size"] * new / max(1, old))}


def _of_size(size: str, network: dict[str, Any]) -> dict[str, Any]:
    """A row of the table of sizes, for the pictures and classes that are there."""
    kept = {name: network[name] for name in ("image_size", "channels", "classes")}
    return asdict(ViTConfig.from_size(size, **kept, stochastic_depth=network.get("stochastic_depth", 0.0)))


def look(pictures: Pictures) -> tuple[int, int]:
    """Typical shorter side in pixels, and channels (1 when every picture looked at is grey, else 3)."""
    sides, grey = [], True
    for index in np.linspace(0, len(pictures) - 1, min(SAMPLED, len(pictures))).astype(int):
        try:
            picture = pictures.open(int(index))
        except DataError:
            continue
        sides.append(min(picture.size))
        grey = grey and picture.mode in ("L", "1", "I;16", "I", "LA")
    if not sides:
        raise DataError("none of the pictures looked at can be read", "other pictures, or another folder")
    return int(np.median(sides)), 1 if grey else 3


def build(settings: Settings, source: Source, progress: Progress = lambda what, done, whole: None) -> Prepared:
    """Everything that the settings and the data decide; the same call gives the same start weights.

    Raises:
        DataError: If too many pictures cannot be read.
    """
    device, network = torch.device(settings.execution.device), settings.network
    shape = Preprocessing(
        size=network.image,
        resize=settings.resize,
        crop_ratio=network.image[0] / settings.fetch_size if settings.resize == "crop" and settings.fetch_size else 1.0,
        channels=network.channels,
        mean=(0.5,) * network.channels,
        std=(0.5,) * network.channels,
    )
    larger = settings.fetch_size / network.image[0] if settings.fetch_size else 1.0
    fetched = (round(network.image[0] * larger), round(network.image[1] * larger))
    train = _feed(source.train, replace(shape, size=fetched, crop_ratio=1.0), "reading train", settings, progress)
    validation = _feed(source.validation, shape, "reading validation", settings, progress)
    some = np.linspace(0, len(source.train) - 1, min(MEASURED, len(source.train))).astype(np.int64)
    sample = list(train.fetch(np.array_split(some, -(-len(some) // SAMPLED))))
    mean, std = measure_statistics(torch.cat([part.pixels[part.readable] for part in sample]))
    preprocessing = replace(shape, mean=mean, std=std)
    references, said = _references(settings, source, preprocessing)
    torch.manual_seed(settings.seed)
    pixels, compressed = references or (None, None)
    model = Model(ViT(network).to(device), preprocessing, source.classes, pixels, compressed)
    data = TrainingSet(
        train, source.train.labels, len(source.classes), preprocessing, settings.augmentation, settings.seed, device
    )
    return Prepared(
        settings=settings,
        source=source,
        model=model,
        data=data,
        validation=validation,
        notes=(*said, *unreadable_notes(train, validation)),
    )


def _references(
    settings: Settings, source: Source, preprocessing: Preprocessing
) -> tuple[References | None, tuple[str, ...]]:
    """What the model's explanations will be tested with, drawn from the training pictures, and a sentence on it."""
    if not settings.references:
        return None, ()
    patch, threads = settings.network.patch, max(1, settings.execution.workers)
    references = draw_references(source.train.pictures, preprocessing, patch, settings.seed, threads)
    return references, (said_of_references(references, preprocessing, patch, len(source.train)),)


def _feed(split: Split, preprocessing: Preprocessing, what: str, settings: Settings, progress: Progress) -> Feed:
    count = len(split)
    feed = open_feed(
        split.pictures,
        preprocessing,
        workers=settings.execution.workers,
        progress=lambda done: progress(what, done, count),
    )
    check_readable(feed, count)
    return feed


def unreadable_notes(*feeds: Feed) -> tuple[str, ...]:
    """One sentence for each picture that could not be read and is left out."""
    return tuple(f"{LEFT_OUT}{problem}" for feed in feeds for problem in feed.unreadable.values())


def shortened(notes: Sequence[str], most: int = 5) -> list[str]:
    """The notes, with at most `most` on pictures that were left out, and a count of the others."""
    left_out = [note for note in notes if note.startswith(LEFT_OUT)]
    shown = [note for note in notes if note not in left_out[most:]]
    more = len(left_out) - most
    return [*shown, f"{LEFT_OUT}{counted(more, 'more picture')}; data.json names them all"] if more > 0 else shown
