"""From a request to the settings of a run: options before a configuration file, that before a recipe."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from vitrail.data.augmentation import Augmentation
from vitrail.data.columns import Classes, Texts
from vitrail.data.dataset import Dataset, read_vocabulary
from vitrail.data.images import Images, look_at
from vitrail.errors import DataError, UsageError
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.networks import config_to_dict, weights_hash
from vitrail.own import contract
from vitrail.tasks import Task
from vitrail.training.configuration.recipes import OWN_SETS, Recipe, announced, choose
from vitrail.training.configuration.refusals import check_request, check_settings, check_task
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.settings import Settings, image_config, laid_over, read_given, settings_from_dict
from vitrail.training.execution import pick_execution
from vitrail.training.loop import steps_per_epoch
from vitrail.weights.adapt import check_memory

SAMPLED = 64  # images opened to see their size and channels
LINE_HEIGHT, LEAST_WIDTH, MOST_WIDTH = 32, 32, 512  # pixels of a line of text in the user's own images
READS_TEXT = ("Transformer",)  # kinds of networks whose input is text; the others read images


def with_file(request: Request) -> Request:
    """The request with the content of its configuration file, and checked as far as it can be without the data.

    Raises:
        UsageError: The file is wrong, there is no data, or options, objects and the file contradict each other.
    """
    config = {} if request.options.config is None else read_given(request.options.config)
    data = str(request.data or config.get("data", ""))
    if not data:
        raise UsageError("no training data given", "vitrail train digits")
    request = replace(request, data=data, config=config)
    check_request(request)
    return request


def resolve(request: Request, dataset: Dataset, task: Task, source: Model | None = None) -> tuple[Settings, list[str]]:
    """The settings of a new run.

    Args:
        request: Its options, configuration file and objects.
        dataset: The data, opened.
        task: What is learnt.
        source: The model that the training starts from.

    Returns:
        The settings, and a sentence for each choice that was made.

    Raises:
        UsageError: An option or key is unknown, has no effect here, or cannot be built.
        DataError: The network cannot hold what the data has.
    """
    data, options, config, own = request.data, request.options, request.config, request.own
    inputs = dataset.train.inputs
    kinds = [kind for kind in task.networks if (kind in READS_TEXT) == dataset.reads_text]
    if not kinds:
        what = "texts" if dataset.reads_text else "images"
        raise DataError(f"{data} contains {what}, from which the task {task.name} cannot be learnt", "other data")
    side, channels = look(inputs) if isinstance(inputs, Images) else (None, 0)
    wanted = request.values.get("recipe", "auto")
    wanted = "auto" if wanted == "custom" else wanted
    recipe, name, reason = choose(wanted, dataset.name, kinds, len(dataset.train), side, source is not None)
    if options.recipe == "auto" and "network" in config:
        reason = "as in the configuration file"
    check_task(request, task, recipe.kind)
    values = _from_recipe(recipe, name, channels, task, inputs)
    if source is not None:
        values |= _from_source(source, recipe, request)
        if values["initial"]["probe"]:  # which looks at images once, as an evaluation does
            values["augmentation"] = asdict(Augmentation())
        values = laid_over(values, {key: each for key, each in config.items() if key != "initial"})
    else:
        values = resized(values, config.get("network", {}).get("image_size"))
        values = resized(laid_over(values, config), options.image_size)
    values = laid_over(values, {key: each for key, each in request.overrides.items() if key != "initial"})
    if request.values.get("distillation"):
        values["distillation"] = request.values["distillation"]
        if not isinstance(dataset.codec, Classes):
            problem = f"a classifier cannot teach the column {dataset.column}"
            raise UsageError(problem, "vitrail train DATA, without a teacher")
    if options.epochs is not None and "warmup_epochs" not in config.get("optimization", {}):
        shorter = min(1.0, options.epochs / recipe.optimization.epochs)  # the warm-up keeps its fraction of a short run
        values["optimization"]["warmup_epochs"] = recipe.optimization.warmup_epochs * shorter
    if own.objective is not None and task.blend is None:  # nothing else smooths, so that the recipe's has no effect
        values["augmentation"]["label_smoothing"] = 0.0
    values |= {"data": data, "task": task.name, "own": own.names()}
    if options.size is not None:
        before = values["network"]
        row = ViTConfig.from_size(options.size, image_size=before["image_size"], channels=before["channels"])
        kept = {key: before[key] for key in ("stochastic_depth", "distillation_token") if key in before}
        values["network"] = {"kind": "ViT", **asdict(row), **kept}
    if own.config is not None:
        values["network"], values["decode_size"] = config_to_dict(own.config), 0
    with contract(f"the task {task.name}", "fit(network, output, splits) -> network") if own.task else nullcontext():
        values["network"] = dict(task.fit(values["network"], dataset.codec, dataset.splits))
    if (reads := read_vocabulary(dataset, values.get("separator", ""))) is not None:
        values["network"]["source_vocab_size"] = reads.outputs
    settings = settings_from_dict(values, str(options.config or "the options"))
    network = settings.network
    if request.teacher and isinstance(network, ViTConfig) and "distillation_token" not in request.section("network"):
        settings = replace(settings, network=replace(network, distillation_token=network.class_token))
    if (reader := image_config(settings.network)) is not None:
        check_memory(reader, reader.image, reader.channels, "the same without --image-size")
    check_settings(request, settings, dataset, task, recipe)
    steps = steps_per_epoch(len(dataset.train), settings.optimization) * settings.optimization.epochs
    chosen, read = request.section("execution"), longest_read(dataset)
    execution, notes = pick_execution(chosen, settings.network, settings.optimization, steps, read)
    return replace(settings, execution=execution), [announced(name, reason, recipe.reached), *notes]


def _from_recipe(recipe: Recipe, name: str, channels: int, task: Task, inputs: object) -> dict[str, Any]:
    values: dict[str, Any] = asdict(recipe)
    for words in ("help", "reached", "document"):
        del values[words]
    network = values["network"]
    if recipe.kind == "ViT":
        values["network"] = {"channels": channels, **network}
        values["decode_size"] = recipe.decode_size or recipe.image_size
    elif isinstance(inputs, Images) and name not in OWN_SETS:
        # lines of text: a fixed height, and a width that most of them fit into
        widths = [LINE_HEIGHT * image.size[0] / image.size[1] for image in _some(inputs)]
        width, across = float(np.quantile(widths, 0.9)), network["encoder"]["patch_size"][1]
        size = LINE_HEIGHT, -(-round(min(MOST_WIDTH, max(LEAST_WIDTH, width))) // across) * across
        network["encoder"] |= {"image_size": size, "channels": channels}
    if not task.invariant:
        values["augmentation"] = asdict(Augmentation())
    return {**values, "recipe": name, "background": task.background}


def _from_source(source: Model, recipe: Recipe, request: Request) -> dict[str, Any]:
    """What the weights that a training starts from decide: the network, whose head has a bias, and how images are read.

    Images are read at the height from which random crops are cut: what evaluation sees, and its margin.
    """
    assert isinstance(source.network, ViT)
    reads, initial = source.preprocessing, request.section("initial")
    changed = {name: value for name, value in recipe.network.items() if name != "kind"}
    return {
        "network": {**config_to_dict(source.network.config), **changed, "head_bias": True},
        "decode_size": round(reads.size[0] / reads.crop_pct),
        "resize": reads.resize,
        "pad_value": reads.pad_value[0],
        "initial": {
            "source": initial["source"],
            "assume": initial.get("assume") or {},
            "identity": weights_hash(source.network),
            "reads": reads.to_dict(),
            "licence": str(source.facts.get("licence", "")),
            "probe": bool(initial.get("probe", False)),
        },
    }


def resized(values: dict[str, Any], image_size: int | Sequence[int] | None) -> dict[str, Any]:
    """For another image size: images are read larger or smaller in the same proportion."""
    if image_size is None:
        return values
    new, old = (side if isinstance(side, int) else side[0] for side in (image_size, values["network"]["image_size"]))
    network = {**values["network"], "image_size": image_size}
    return {**values, "network": network, "decode_size": round(values["decode_size"] * new / max(1, old))}


def longest_read(dataset: Dataset) -> int:
    """Characters of the longest training text that is read; 1 where images are."""
    inputs = dataset.train.inputs
    return max(map(len, inputs.values), default=1) if isinstance(inputs, Texts) else 1


def look(images: Images) -> tuple[int, int]:
    """Typical shorter side in pixels, and channels (1 when every image looked at is grey, else 3)."""
    opened = _some(images)
    grey = all(image.mode in ("L", "1", "I;16", "I", "LA") for image in opened)
    return int(np.median([min(image.size) for image in opened])), 1 if grey else 3


def _some(images: Images) -> list[Any]:
    """A few images that can be read, evenly spread."""
    opened = []
    for index in np.linspace(0, len(images) - 1, min(SAMPLED, len(images))).astype(int):
        try:
            opened.append(images.open(int(index)))
        except (DataError, OSError):
            continue
    if not opened:
        raise DataError("none of the sampled images can be read", look_at(images))
    return opened
