"""From a request to the settings of a run: options before a configuration file, that before a recipe."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.augmentation import Augmentation
from vitrail.data.columns import Texts, Vocabulary
from vitrail.data.dataset import Counts, Dataset, read_vocabulary
from vitrail.data.formats import check_root, format_of
from vitrail.data.images import ArrayImages, Images, look_at
from vitrail.errors import DataError, UsageError
from vitrail.io import other_out
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.networks import NetworkConfig, config_to_dict, kind_of
from vitrail.own import contract, python_call
from vitrail.tasks import Task
from vitrail.training.execution import pick_execution
from vitrail.training.loop import steps_per_epoch
from vitrail.training.options import TrainOptions
from vitrail.training.recipes import OWN_SETS, Recipe, announced, choose
from vitrail.training.request import Request, anywhere, differs
from vitrail.training.schedule import seconds_of
from vitrail.training.settings import (
    Execution,
    Settings,
    changes,
    image_config,
    laid_over,
    settings_from_dict,
    settings_to_dict,
)
from vitrail.training.tuning.initial import check_fits, check_keeps, initial_of
from vitrail.weights.adapt import check_memory
from vitrail.weights.assume import checked, words_of

SAMPLED = 64  # images opened to see their size and channels
LINE_HEIGHT, LEAST_WIDTH, MOST_WIDTH = 32, 32, 512  # pixels of a line of text in images of one's own
OPEN = (None, "auto", "custom")  # what leaves a choice to others
# what the data or the teacher at hand decides, whatever a file says; workers change no bit
FREE = ["classes", "vocabulary", "source_vocabulary", "target_vocabulary", "identity", "fit_head", "cache", "workers"]
SECTIONS = {  # of the settings, with the options that stand in them; in "" those that stand in none
    "": ("task", "recipe", "keep", "seed", "split_seed"),
    "optimization": ("epochs", "patience", "batch_size", "lr", "weight_decay", "accumulate", "lora", "max_time"),
    "network": ("image_size",),
    "execution": ("device", "threads", "precision", "compile"),
}
READS_TEXT = ("Transformer",)  # kinds of networks whose input is text; the others read images


def resolve(request: Request, dataset: Dataset, task: Task, source: Model | None = None) -> tuple[Settings, list[str]]:
    """The settings of a new run.

    Args:
        request: What is asked for.
        dataset: The data, opened.
        task: What is learnt.
        source: The model that the training starts from.

    Returns:
        The settings, and a sentence for each choice that was made.

    Raises:
        UsageError: If something asked for is unknown, has no effect here, or cannot be built.
        DataError: The network cannot hold what the data has.
    """
    data, options, config, own = request.data, request.options, request.config, request.own
    inputs = dataset.train.inputs
    kinds = [kind for kind in task.networks if (kind in READS_TEXT) == dataset.reads_text]
    if not kinds:
        what = "texts" if dataset.reads_text else "images"
        raise DataError(f"{data} contains {what}, from which the task {task.name} cannot be learnt", "other data")
    side, channels = look(inputs) if isinstance(inputs, Images) else (None, 0)
    check_fits(options.init, kinds, task.name, own.network is not None or own.parts is not None)
    recipe, name, reason = _choose(request, dataset, kinds, side, source is not None)
    refuse_idle(options, task, recipe.kind)
    values = _from_recipe(recipe, name, channels, task, inputs)
    if source is not None:
        initial = initial_of(source, request)
        values |= _from_source(source, recipe)
        if initial["probe"]:  # which looks at images once, as an evaluation does
            values["augmentation"] = asdict(Augmentation())
        values = laid_over(values, config) | {"initial": initial}
    else:
        values = resized(values, config.get("network", {}).get("image_size"))
        values = resized(laid_over(values, config), options.image_size)
    values = laid_over(values, asked_for(options))
    if options.epochs is not None and "warmup_epochs" not in config.get("optimization", {}):
        shorter = min(1.0, options.epochs / recipe.optimization.epochs)  # the warm-up keeps its fraction of a short run
        values["optimization"]["warmup_epochs"] = recipe.optimization.warmup_epochs * shorter
    if own.objective is not None and task.blend is None:  # nothing else smooths, so that the recipe's has no effect
        if smoothing := config.get("augmentation", {}).get("label_smoothing"):
            problem = (
                f"label_smoothing {smoothing} is for the task's objective, but an objective of your own was passed"
            )
            raise UsageError(problem, "augmentation: {label_smoothing: 0}")
        values["augmentation"]["label_smoothing"] = 0.0
    values |= {"data": data, "task": task.name, "own": own.names()}
    if options.size is not None:
        before = values["network"]
        row = ViTConfig.from_size(options.size, image_size=before["image_size"], channels=before["channels"])
        depth = before.get("stochastic_depth", 0.0)
        values["network"] = {"kind": "ViT", **asdict(row), "stochastic_depth": depth}
    if own.config is not None:
        values["network"], values["fetch_size"] = config_to_dict(own.config), 0
    with contract(f"the task {task.name}", "fit(network, output, splits) -> network") if own.task else nullcontext():
        values["network"] = dict(task.fit(values["network"], dataset.codec, dataset.splits))
    if (reads := read_vocabulary(dataset, values.get("separator", ""))) is not None:
        values["network"]["source_vocabulary"] = reads.outputs
    if options.data_root is not None:
        values["data_root"] = str(options.data_root.resolve())
    settings = settings_from_dict(values, str(options.config or "the options"))
    if (reader := image_config(settings.network)) is not None:
        check_memory(reader, reader.image, reader.channels, "the same without --image-size")
    check_keeps(options, settings)
    _refuse_mixing(settings, task)
    _refuse_idle_keys(request, recipe, dataset)
    steps = steps_per_epoch(len(dataset.train), settings.optimization) * settings.optimization.epochs
    how = replayed(options, settings.execution, config)
    execution, notes = pick_execution(how, settings.network, settings.optimization, steps, longest_read(dataset))
    if "attention_kernel" in config.get("execution", {}):
        execution = replace(execution, attention_kernel=settings.execution.attention_kernel)
    return replace(settings, execution=execution), [announced(name, reason, recipe.reached), *notes]


def refuse_idle(options: TrainOptions, task: Task, kind: str) -> None:
    """Refuse options that would have no effect.

    Raises:
        UsageError: Names the option.
    """
    fixed = kind != "ViT"
    why = "is for one class or value for each image; this network has the size of its recipe"
    unseen = f"--no-background is for explanations, and {task.name} has none"
    idle = [
        (fixed and options.size is not None, f"--size {options.size} {why}"),
        (fixed and options.image_size is not None, f"--image-size {options.image_size} {why}"),
        (not task.background and not options.background, unseen),
    ]
    for is_idle, problem in idle:
        if is_idle:
            hint = f"the same without {problem.partition(' ')[0]}; config.yaml of an earlier run shows all settings"
            raise UsageError(problem, hint)


def refuse_idle_data(request: Request, dataset: Dataset) -> None:
    """Refuse options on where data lies and how it is divided that would have no effect.

    Raises:
        UsageError: Names the option.
    """
    data, options = request.data, request.options
    if options.split_seed not in (None, dataset.split_seed):
        problem = f"--split-seed {options.split_seed} is for data without splits, but {data} has splits"
        raise UsageError(problem, "the same without --split-seed")
    inputs = dataset.train.inputs
    if options.workers is not None and (isinstance(inputs, ArrayImages | Texts) or inputs.renewed):
        problem = f"--workers {options.workers} is for image files, and {data} has none"
        raise UsageError(problem, "the same without --workers")
    if request.own.reader is None:
        check_root(data, options.data_root)


def _refuse_mixing(settings: Settings, task: Task) -> None:
    """Refuse an augmentation that the task's targets cannot follow, or that has nothing to work on."""
    a = settings.augmentation
    mixed = [name for name in ("mixup", "cutmix") if getattr(a, name)]
    if mixed and task.blend is None:
        problem = f"augmentation.{mixed[0]} mixes samples, but targets of the task {task.name} cannot be mixed"
        raise UsageError(problem, f"augmentation: {{{mixed[0]}: 0}}")
    if a.label_smoothing and not task.smooths:
        raise UsageError(
            f"the task {task.name} has no labels to be smoothed (augmentation.label_smoothing {a.label_smoothing:g})",
            "augmentation: {label_smoothing: 0}",
        )
    if "source_vocabulary" in vars(settings.network):
        still = vars(Augmentation(label_smoothing=a.label_smoothing))
        for name, value in vars(a).items():
            if value != still[name]:
                raise UsageError(f"augmentation.{name} is for images, but the inputs are texts", "leave it out")


def _refuse_idle_keys(request: Request, recipe: Recipe, dataset: Dataset) -> None:
    """Refuse what a configuration file says of texts and of samples that are made where there are none."""
    data, config, own = request.data, request.config, request.own
    texts = dataset.reads_text or isinstance(dataset.codec, Vocabulary) or own.task is not None
    if config.get("separator") and not texts:
        raise UsageError(f"separator {config['separator']!r} is for texts, and {data} has none", "no separator")
    row, usual = None if own.reader is not None else format_of(data), (asdict(Counts()), asdict(recipe.counts))
    if (row is None or not row.made) and {**usual[0], **config.get("counts", {})} not in usual:
        raise UsageError(f"counts are for generated samples, and those of {data} are not generated", "leave counts out")


def _choose(
    request: Request, dataset: Dataset, kinds: Sequence[str], side: int | None, init: bool
) -> tuple[Recipe, str, str]:
    options, config = request.options, request.config
    stored = config.get("recipe", "custom")
    if options.recipe != "auto" and stored not in ("custom", options.recipe):
        problem = f"{options.config} has the recipe {stored}, but --recipe is {options.recipe}"
        raise UsageError(problem, f"one of the two: --config {options.config}, or --recipe {options.recipe}")
    wanted = options.recipe if options.recipe != "auto" or stored == "custom" else stored
    recipe, name, reason = choose(wanted, dataset.name, kinds, len(dataset.train), side, init)
    if options.recipe == "auto" and "network" in config:
        reason = "as in the configuration file"
    return recipe, name, reason


def _from_recipe(recipe: Recipe, name: str, channels: int, task: Task, inputs: object) -> dict[str, Any]:
    network, fetch_size = dict(recipe.network), recipe.fetch_size
    if recipe.kind == "ViT":
        network = {"channels": channels, **network}
        fetch_size = fetch_size or recipe.image_size
    elif isinstance(inputs, Images) and name not in OWN_SETS:
        # lines of text: a fixed height, and a width that most of them fit into
        widths = [LINE_HEIGHT * image.size[0] / image.size[1] for image in _some(inputs)]
        width, across = float(np.quantile(widths, 0.9)), network["encoder"]["patch_size"][1]
        size = LINE_HEIGHT, -(-round(min(MOST_WIDTH, max(LEAST_WIDTH, width))) // across) * across
        network["encoder"] = {**network["encoder"], "image_size": size, "channels": channels}
    return {
        "recipe": name,
        "fetch_size": fetch_size,
        "resize": recipe.resize,
        "pad_value": recipe.pad_value,
        "network": network,
        "optimization": asdict(recipe.optimization),
        "augmentation": asdict(recipe.augmentation if task.invariant else Augmentation()),
        "counts": asdict(recipe.counts),
        "background": task.background,
    }


def _from_source(source: Model, recipe: Recipe) -> dict[str, Any]:
    """What the weights bring that a training starts from: the network, whose head has a bias, and how images are read.

    Images are read at the height from which random crops are cut: what evaluation sees, and its margin.
    """
    assert isinstance(source.network, ViT)
    reads = source.preprocessing
    changed = {name: value for name, value in recipe.network.items() if name != "kind"}
    return {
        "network": {**config_to_dict(source.network.config), **changed, "head_bias": True},
        "fetch_size": round(reads.size[0] / reads.crop_ratio),
        "resize": reads.resize,
        "pad_value": reads.pad_value[0],
    }


def resized(values: dict[str, Any], image_size: int | Sequence[int] | None) -> dict[str, Any]:
    """For another image size: images are read larger or smaller in the same proportion."""
    if image_size is None:
        return values
    new, old = (side if isinstance(side, int) else side[0] for side in (image_size, values["network"]["image_size"]))
    network = {**values["network"], "image_size": image_size}
    return {**values, "network": network, "fetch_size": round(values["fetch_size"] * new / max(1, old))}


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


def asked_for(options: TrainOptions) -> dict[str, Any]:
    """The options that were given, as nested values."""
    values: dict[str, Any] = {section: {} for section in SECTIONS if section}
    for section, names in SECTIONS.items():
        inside = values[section] if section else values
        for name in names:
            match name, getattr(options, name):
                case _, None | "auto":
                    continue
                case "max_time", limit:
                    inside[name] = seconds_of(limit)
                case "compile", word:
                    inside[name] = word == "on"
                case "lr", rate:
                    inside["learning_rate"] = rate
                case _, value:
                    inside[name] = value
    if not options.background:
        values["background"] = False
    if options.init is not None:
        values["initial"] = {"source": options.init}
    return values


def replayed(options: TrainOptions, stored: Execution, config: Mapping[str, Any]) -> TrainOptions:
    """The options, where they leave open how to compute, completed by what a configuration file says."""
    values: dict[str, Any] = {**asdict(stored), "compile": "on" if stored.compile else "off"}
    names = config.get("execution", {}).keys() - {"attention_kernel"}  # which no option names
    left = [name for name in names if getattr(options, name) in (None, "auto")]
    return replace(options, **{name: values[name] for name in left})


def check_same(path: Path, settings: Settings, root: str, request: Request) -> None:
    """A run that goes on takes no other choice than its own: what is asked for otherwise is listed, and refused.

    Args:
        path: Its folder.
        settings: Those that it has stored.
        root: Where it read its data.
        request: What is asked for now; its data is empty for what the run was started with.

    Raises:
        UsageError: Lists what differs as `name: old -> new`; where objects do, its hint is the call in Python.
    """
    data, options, own = request.data, request.options, request.own
    if objects := differs(settings.own, own.names()):
        words = [repr(settings.data), repr(str(path)), "vitrail.TrainOptions(resume='auto')"]
        hint = python_call("train", words, settings.own)
        raise UsageError(f"{path} was started with other objects: {objects}", hint)
    options = options if own.task is None else replace(options, task=own.task.name)
    kept = {key: value for key, value in request.config.items() if key not in ("data", "own") and value not in OPEN}
    if options.size is not None or own.config is not None:  # what says the rest of the network
        kept["network"] = {key: value for key, value in kept.get("network", {}).items() if key == "image_size"}
    wanted, free = laid_over(kept, asked_for(options)), set(FREE)
    free |= {"fetch_size"} if options.image_size is not None or own.config is not None else set()
    free |= {"data_root"} if options.data_root is not None else set()
    free |= {*request.teaching(), "distillation_token"} if request.teacher else set()
    known = settings_to_dict(settings)["network"]
    changed = [f"{key}: none -> {wanted['network'].pop(key)}" for key in wanted["network"].keys() - known.keys()]
    if data and data != settings.data and Path(data).resolve() != Path(root):
        changed.append(f"data: {settings.data} -> {data}")
    for key, old, new in changes(settings, wanted, str(options.config or "the options")):
        new = anywhere(new) if key in ("teacher", "teacher_weights") else new
        shown = " -> ".join(_shown(key, each) for each in (old, new))
        changed += [f"{key}: {shown}"] if new != old and key not in free else []
    assumed = {} if settings.initial is None else settings.initial.assume
    if request.assume and checked(request.assume) != assumed:
        changed.append(f"assume: {words_of(assumed) or 'nothing'} -> {words_of(request.assume)}")
    if options.probe and not settings.fits_head:
        changed.append("probe: False -> True")
    if options.size is not None and (before := _size_words(settings.network, options.size)):
        changed.append(f"size: {before} -> {options.size}")
    changed += request.other_teaching(settings)
    if changed:
        problem = f"{path} was started with other options: {'; '.join(changed)} (without them it continues)"
        raise UsageError(problem, other_out(path))


def _shown(key: str, value: Any) -> str:
    """The value of an option for people."""
    match key:
        case "compile":
            return "on" if value else "off"
        case "max_time":
            return f"{value:g} s" if value else "no limit"
        case _:
            return str(value)


def _size_words(network: NetworkConfig, size: str) -> str:
    """What a network is, where it is not of this size."""
    if not isinstance(network, ViTConfig):
        return kind_of(network)
    wanted = ViTConfig.from_size(size, image_size=network.image)
    shapes = [(n.patch, n.width, n.depth, n.heads, n.mlp_width) for n in (wanted, network)]
    return "" if shapes[0] == shapes[1] else "another network"
