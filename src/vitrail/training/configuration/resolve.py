"""From a request to the settings of a run: options before a configuration file, that before a recipe.

A recipe is a named set of choices, with its purpose and its measured result; all of them stand in `recipes.yaml`.
`choose` picks one by the name of the data set, or by the number of images and their size, and gives the reason. The
commands that measured the results are in `benchmarks/README.md`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image
from pydantic import TypeAdapter

from vitrail.arguments import contract
from vitrail.data.augmentation import Augmentation
from vitrail.data.columns import Texts
from vitrail.data.dataset import Counts, Dataset, read_vocabulary
from vitrail.data.images import DEPTHS, FORMATS as READ, Images, bits_of, evenly, what_to_try
from vitrail.data.sources import FORMATS, format_of
from vitrail.data.workers import of_each
from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.model import Model
from vitrail.nn import ViTConfig
from vitrail.nn.networks import config_to_dict, weights_hash
from vitrail.runs.settings import (
    Optimization,
    Settings,
    check_values,
    image_config,
    lay_over,
    read_given,
    settings_from_dict,
)
from vitrail.runtime import cores
from vitrail.tasks import Task
from vitrail.text import percent
from vitrail.training.configuration.rare import rare_words
from vitrail.training.configuration.recipes import FINE_TUNE, fitting_recipes, recipe_rows
from vitrail.training.configuration.refusals import check_request, check_settings
from vitrail.training.configuration.request import Request
from vitrail.training.execution import pick_execution
from vitrail.training.loop import steps_per_epoch
from vitrail.weights.adapt import check_memory

NOT_MEASURED = "not measured yet"
WHOLE = "squash"  # how images are read where a crop would change what is learnt
HALF = 0.5  # of an image: what a centre crop should keep at least
SAMPLED = 64  # images opened to see their size and channels
PROBED = 1024  # images whose header says whether they have 16 bits: others than JPEG, which never have
PROBED_FILES = 100_000  # the same of files of their own, of which a few bytes are read
PNG, PNG_DEPTH = b"\x89PNG\r\n\x1a\n", 24  # how it begins, and the byte that says how many bits
NEVER_DEEP = b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF"  # how JPEG, GIF, BMP and WebP begin
LINE_HEIGHT, LEAST_WIDTH, MOST_WIDTH = 32, 32, 512  # pixels of a line of text in the user's own images
READS_TEXT = ("Transformer",)  # kinds of networks whose input is text; the others read images


class Opened(NamedTuple):
    """Of an image its mode, width and height in pixels, and `bits_of` it."""

    mode: str
    size: tuple[int, int]
    bits: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named set of training choices.

    Attributes:
        help: What it is for.
        reached: Its result without changes, with hardware and seeds, or that there is none.
        network: Fields of the network's configuration that differ from its defaults, with its kind.
        decode_size: Height in pixels at which images are read for training, before random crops, with the width in the
            network's proportion; 0 for the network's.
        resize: How an image is brought to the size.
        pad_value: Grey value around a padded image.
        optimization: How the weights move.
        augmentation: What may happen to a training image; and label smoothing.
        counts: Samples of each split, of a set that is made.
    """

    help: str
    reached: str = NOT_MEASURED
    network: dict[str, Any]
    decode_size: int = 0
    resize: Literal["crop", "squash", "pad"] = "crop"
    pad_value: int = 128
    optimization: Optimization = field(default_factory=Optimization)
    augmentation: Augmentation = field(default_factory=Augmentation)
    counts: Counts = field(default_factory=Counts)

    @property
    def kind(self) -> str:
        """The kind of its network, such as ViT."""
        return self.network["kind"]

    @property
    def image_size(self) -> int:
        """Height in pixels that images are brought to; 0 where texts are read."""
        size = self.network.get("encoder", self.network).get("image_size", 0)
        return size if isinstance(size, int) else size[0]


RECIPES = TypeAdapter(dict[str, Recipe]).validate_python(recipe_rows())
"""Every recipe by its name."""


def announce(name: str, reason: str, reached: str) -> str:
    """The message on a run's recipe: the reason for it, and its result if it was measured."""
    result = reached if reached == NOT_MEASURED else f"without changes it reached {reached}"
    return f"recipe {name}: {reason}; {result}"


def choose(
    name: str, data: str, kinds: Sequence[str], count: int, side: int | None, init: bool = False
) -> tuple[Recipe, str, str]:
    """The recipe of this name, or the one that fits.

    Args:
        name: A recipe's name, or "auto".
        data: What is trained on: a named set, or anything else.
        kinds: Of networks that can learn the task from these inputs.
        count: Training samples.
        side: Typical shorter side of the images in pixels; None where texts are read.
        init: Whether the training starts from pretrained weights, which bring their network.

    Returns:
        The recipe, its name, and the reason in words.

    Raises:
        UsageError: If the name is unknown, or the recipe is for something else; offers the nearest.
    """
    fitting = fitting_recipes(name, data, kinds, init)
    if name != "auto":
        return _for_set(name, data), name, "as requested"
    if init:
        return RECIPES[FINE_TUNE], FINE_TUNE, f"for {RECIPES[FINE_TUNE].help}"
    row = format_of(data)
    if row is not None and row.recipe in fitting:
        recipe = _for_set(row.recipe, data)
        return recipe, row.recipe, f"made for this data set ({recipe.help})"
    if side is None:
        chosen = "texts"
    elif "ViT" not in kinds:
        chosen = "image-texts"
    elif side <= 16:
        chosen = "digits"
    elif side <= 40:
        chosen = "small-images"
    else:
        chosen = "few-photos" if count <= 5_000 else "photos" if count <= 100_000 else "many-photos"
    recipe = RECIPES[chosen]
    where = "" if side is None else f" of about {side} pixels"
    return recipe, chosen, f"{counted(count, 'training sample')}{where} ({recipe.help})"


def _for_set(name: str, data: str) -> Recipe:
    """The recipe of this name; for a set with options of its own, made for it, with the network that these decide.

    Raises:
        UsageError: If the name of the set is wrong.
    """
    recipe, row = RECIPES[name], format_of(data)
    if row is None or row.adapted is None or row.recipe != name or row.name == data:
        return recipe
    text, changes = row.adapted(data)
    return replace(recipe, help=text, reached=NOT_MEASURED, network={**recipe.network, **changes})


# ---- from a request to settings


def with_file(request: Request) -> Request:
    """The request with the content of its configuration file, and checked as far as it can be without the data.

    Raises:
        UsageError: The file is wrong, there is no data, or options, objects and the file contradict each other.
    """
    config = {} if request.options.config is None else read_given(request.options.config)
    data = str(request.data or config.get("data", ""))
    if not data:
        raise UsageError("no data are given", Hint(text="vitrail train digits", python="vitrail.train('digits')"))
    request = replace(request, data=data, config=config)
    check_values(request.overrides)
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
    kinds = [kind for kind in task.networks if (kind in READS_TEXT) == dataset.reads_text]
    if not kinds:
        what = "texts" if dataset.reads_text else "images"
        raise DataError(f"{data} contains {what}, from which the task {task.name} cannot be learnt", "other data")
    seen = _some(dataset.train.images) if dataset.train.has_images else []
    side, channels = look(seen) if seen else (None, 0)
    wanted = request.values.get("recipe", "auto")
    wanted = "auto" if wanted == "custom" else wanted
    recipe, name, reason = choose(wanted, dataset.name, kinds, len(dataset.train), side, source is not None)
    if options.recipe == "auto" and "network" in config:
        reason = "as in the configuration file"
    values = _from_recipe(recipe, name, channels, task, seen)
    if own.objective is not None and task.blend is None:  # nothing else smooths, so that the recipe's has no effect
        values["augmentation"]["label_smoothing"] = 0.0
    if source is not None:
        values |= _from_source(source, recipe, request) | ({} if task.invariant else {"resize": WHOLE})
        if values["initial"]["probe"]:  # which looks at images once, as an evaluation does
            values["augmentation"] = asdict(Augmentation())
        values = lay_over(values, {key: each for key, each in config.items() if key != "initial"})
    else:
        values = resize_settings(values, config.get("network", {}).get("image_size"))
        values = resize_settings(lay_over(values, config), options.image_size)
    values = lay_over(values, {key: each for key, each in request.overrides.items() if key != "initial"})
    depths = _depths([each.images for each in (dataset.train, dataset.validation)]) if seen else []
    if values.get("bits") is None and depths:
        values["bits"] = max(depths)
    if source is not None:
        values["initial"]["reads"] |= {} if values.get("bits") is None else {"bits": values["bits"]}
    if source is not None and values["resize"] != source.preprocessing.resize:
        values["initial"]["reads"] |= {"resize": values["resize"], "crop_pct": 1.0}
    if request.values.get("distillation"):
        values["distillation"] = request.values["distillation"]
        if dataset.codec.divergence is None:
            problem = f"nobody can teach the task {task.name}: its codec has no divergence from a teacher's outputs"
            raise UsageError(problem, "train, without a teacher")
    if options.epochs is not None and "warmup_epochs" not in config.get("optimization", {}):
        shorter = min(1.0, options.epochs / recipe.optimization.epochs)  # the warm-up keeps its fraction of a short run
        values["optimization"]["warmup_epochs"] = recipe.optimization.warmup_epochs * shorter
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
    settings = settings_from_dict(values, request.blamed)
    network = settings.network
    if request.teacher and isinstance(network, ViTConfig) and "distillation_token" not in request.section("network"):
        settings = replace(settings, network=replace(network, distillation_token=network.class_token))
    if (reader := image_config(settings.network)) is not None:
        check_memory(reader, reader.image, reader.channels, Hint(drop=["image_size"]))
    check_settings(request, settings, dataset, task, recipe.counts)
    steps = steps_per_epoch(len(dataset.train), settings.optimization) * settings.optimization.epochs
    chosen, read = request.section("execution"), longest_read(dataset)
    execution, notes = pick_execution(chosen, settings.network, settings.optimization, steps, read)
    used = Counter(depths)
    if used and min(used) < 16:
        many = ", ".join(f"{count} use {bits}" for bits, count in sorted(used.items()))
        notes = [*notes, f"images of 16 bits are read as of {settings.bits} bits, all alike ({many}); see --bits"]
    if reader is not None and settings.resize == "crop":
        notes = [*notes, *cut_away(seen, reader.image)]
    return replace(settings, execution=execution), [
        announce(name, reason, recipe.reached),
        *rare_words(settings, dataset),
        *notes,
    ]


def cut_away(opened: Sequence[Opened], size: tuple[int, int]) -> list[str]:
    """A sentence where the centre crop to a size (height, width) leaves less than half of a typical image."""
    ratios = [(image.size[0] * size[0]) / (image.size[1] * size[1]) for image in opened]
    kept = float(np.median([min(ratio, 1 / ratio) for ratio in ratios])) if ratios else 1.0
    if kept >= HALF:
        return []
    width, height = opened[len(opened) // 2].size
    seen = f"the centre crop keeps {percent(kept, 0)} of a typical image (such as {width} x {height} pixels)"
    return [f"{seen}: --resize squash or pad keeps all, as does an --image-size HEIGHTxWIDTH of such proportions"]


def _from_recipe(recipe: Recipe, name: str, channels: int, task: Task, opened: Sequence[Opened]) -> dict[str, Any]:
    values: dict[str, Any] = asdict(recipe)
    del values["help"], values["reached"]
    network = values["network"]
    if recipe.kind == "ViT":
        values["network"] = {"channels": channels, **network}
        values["decode_size"] = recipe.decode_size or recipe.image_size
    elif opened and all(name != row.recipe for row in FORMATS):
        # lines of text: a fixed height, and a width that most of them fit into
        widths = [LINE_HEIGHT * image.size[0] / image.size[1] for image in opened]
        width, across = float(np.quantile(widths, 0.9)), network["encoder"]["patch_size"][1]
        size = LINE_HEIGHT, -(-round(min(MOST_WIDTH, max(LEAST_WIDTH, width))) // across) * across
        network["encoder"] |= {"image_size": size, "channels": channels}
    if not task.invariant:
        values |= {"augmentation": asdict(Augmentation()), "resize": WHOLE}
    return {**values, "recipe": name, "background": task.background, "calibration": True}


def _from_source(source: Model, recipe: Recipe, request: Request) -> dict[str, Any]:
    """What the weights that a training starts from decide: the network, whose head has a bias, and how images are read.

    Images are read at the height from which random crops are cut: what evaluation sees, and its margin.
    """
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


def resize_settings(values: dict[str, Any], image_size: int | Sequence[int] | None) -> dict[str, Any]:
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


def look(opened: Sequence[Opened]) -> tuple[int, int]:
    """Typical shorter side of images in pixels, and channels (1 when every one is grey, else 3)."""
    grey = all(image.mode in ("L", "1", "I", "LA") or image.mode.startswith("I;16") for image in opened)
    return int(np.median([min(image.size) for image in opened])), 1 if grey else 3


def _some(images: Images) -> list[Opened]:
    """A few images that can be read, evenly spread."""
    some = np.linspace(0, len(images) - 1, min(SAMPLED, len(images))).astype(int).tolist()
    every = dict(of_each(partial(_see, images), images, some, cores()))
    found = [every[row] for row in some if isinstance(every[row], Opened)]
    if not found:
        raise DataError("none of the sampled images can be read", what_to_try(images))
    return found


def _depths(sets: Iterable[Images]) -> list[int]:
    """How many bits images of 16 use, of some of them; a single one among many others is found, too."""
    found = list[int]()
    for images in sets:
        names = () if images.renewed else images.names()
        rows = [row for row, name in enumerate(names) if not name.lower().endswith((".jpg", ".jpeg"))]
        most = PROBED if not rows or images.file(rows[0]) is None else PROBED_FILES
        rows = {*evenly(rows, most), *evenly(range(len(names)), SAMPLED)}  # the second of wrong endings
        deep = [row for row in sorted(rows) if _is_deep(images, row)]
        found += [each.bits for row in evenly(deep, SAMPLED) if (each := _see(images, row)) and each.bits]
    return found


def _is_deep(images: Images, index: int) -> bool:
    """Whether an image has 16 bits: of a file by its header alone; False where it cannot be read."""
    with suppress(Exception):  # which whoever reads it says
        if not images.encoded:
            return bits_of(images.open(index)) > 0
        if file := images.file(index):
            with file.open("rb") as handle:
                start = handle.read(PNG_DEPTH + 1)
            if start.startswith((PNG, *NEVER_DEEP)):
                return start.startswith(PNG) and start[PNG_DEPTH] == DEPTHS[-1]
        with Image.open(images.file(index) or BytesIO(images.content(index)), formats=READ) as image:
            return image.mode == "I" or ";16" in f"{image.mode} {getattr(image, 'tile', '')}"
    return False


def _see(images: Images, row: int) -> Opened | None:
    """What is decided by one of them; none where it cannot be read."""
    for _, image in open_readable(images, [row]):
        return Opened(image.mode, image.size, bits_of(image))
    return None


def open_readable(images: Images, rows: Iterable[int]) -> Iterator[tuple[int, Image.Image]]:
    """Those of some images that can be read, with their rows; the others are named where they are left out."""
    for row in rows:
        with suppress(DataError, OSError):
            yield row, images.open(row)
