"""The options of all verbs: one dataclass for each verb, one field with its line of help for each option.

Nothing here imports torch, so that a help text and a misspelt option are answered at once. `vitrail.cli.parse` reads
these classes: the type of a field decides what it takes, `RULES` are what the verb refuses, the docstring is its help,
and `TITLE` heads the options that several verbs share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

from vitrail.cli.parse import Rules, hidden, positional
from vitrail.data.sources import overview
from vitrail.errors import Hint, UsageError
from vitrail.options import PER_CHANNEL, SIDES, Computing, DistillOptions, TrainOptions, option

RUN = (
    "A run or model folder; or pretrained weights: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file (.safetensors, "
    ".npz, .pth), or a folder as saved by transformers"
)


# ---- options that several verbs share


LAUNCH = {"resume": "out", "print_launch": "out"}  # what these need
INITIAL = "vitrail train --help  # a student starts from random weights"
LINES = ".jsonl"  # of a file with a line for each explained image


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What pretrained weights of other libraries may not state."""

    TITLE: ClassVar[str] = "pretrained weights of other libraries: what their files do not state"

    mean: tuple[float, ...] | None = option(
        "Mean subtracted from pixel values in [0, 1]: one number, or one per channel.", metavar=PER_CHANNEL
    )
    std: tuple[float, ...] | None = option(
        "Standard deviation to divide by: one number, or one per channel.", metavar=PER_CHANNEL
    )
    class_names: Path | None = option("A text file with one class name per line, in the order of the logits.")
    assume: str | None = option(
        "What tensors do not show: any field of ViTConfig, that is heads, norm_eps, activation, pooling, image_size, "
        "patch_size, position_resize, classes and so on; such as heads=6,norm_eps=1e-6.",
        metavar="NAME=VALUE,...",
    )


@dataclass(frozen=True, kw_only=True)
class WeightsOptions(Assumptions):
    """The same, and the size of images: of every verb that opens a model."""

    image_size: int | tuple[int, int] | None = option(
        "Size of the images in pixels; default: the model's own.", metavar=SIDES
    )
    channels: int | None = option("Input channels: 1 converts a colour network to grey images.")
    bits: int | None = option(
        "How many of their bits 16-bit images use, such as 12 for most cameras and scanners; default: the model's own."
    )


@dataclass(frozen=True, kw_only=True)
class Inference(WeightsOptions, Computing):
    """Of every verb by which a model answers images or texts."""


@dataclass(frozen=True, kw_only=True)
class InPrecision(Computing):
    """The same, and in which precision a model is computed on many images."""

    precision: Literal["auto", "fp32", "bf16"] = option(
        "Precision of matrix products, from 256 images on and for tests of maps. auto times bf16 and uses it if "
        "it is faster and gives the same predictions; the choice is stored in the run or in the user's cache.",
        "auto",
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Which processes compute, for many images."""

    TITLE: ClassVar[str] = "many images, written to --out"

    ray: str | None = option(
        "Compute on Ray workers: the address of a cluster, or local to start a cluster on this machine.",
        metavar="ADDRESS|local",
    )
    workers: int | None = option(
        "With --ray: number of workers (default: one per CPU). Otherwise: number of processes that decode images."
    )
    deadline: float | None = option(
        "With --ray: seconds after which a worker that has not finished its range is restarted; default: 10 times "
        "the slowest range so far."
    )

    def __post_init__(self) -> None:
        """Refuse no worker at all."""
        if self.ray is not None and self.workers == 0:
            raise UsageError("--workers must be at least 1 with --ray, got 0", Hint({"workers": 1}))


# ---- training


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where a training writes, by how many processes, and what is printed of it."""

    TITLE: ClassVar[str] = "output and processes"

    out: Path | None = option("The run folder; default: a new folder in runs/.")
    devices: int | None = option(
        "Number of processes on this machine that train together, each on its own GPU or on CPU cores. The result "
        "is that of one process, up to rounding. For several machines, see --print-launch."
    )
    print_launch: Literal["slurm", "torchrun"] | None = option(
        "Print a script that starts this training on several machines, with SLURM (sbatch) or with torchrun on "
        "each machine; nothing is started."
    )
    dry_run: bool = option("Print what would be trained (parameters, steps, time) and write nothing.", False)
    json: bool = option("Print the result as one JSON object.", False)


@dataclass(frozen=True, kw_only=True)
class Train(Assumptions, Launch, TrainOptions):
    """Train a Vision Transformer on images or texts. What is left out is chosen by a recipe and printed.

    Example: vitrail train digits
    """

    RULES = Rules(
        required=("data",),
        needs={**LAUNCH, **dict.fromkeys(("assume", "mean", "std"), "init")},
        unless=dict.fromkeys(("data", "assume", "mean", "std"), "config"),  # which may name data, and weights
        examples={"data": "digits"},
    )

    data: str = positional(overview(), "")
    class_names: Path | None = hidden("the data, which contain their class names")


@dataclass(frozen=True, kw_only=True)
class Distill(Assumptions, Launch, DistillOptions):
    """Train a Vision Transformer, the student, on labels and on the predictions of another network, the teacher.

    Example: vitrail distill mnist --teacher runs/big --student Ti/7
    """

    RULES = Rules(("data", "teacher"), LAUNCH, unless={"data": "config"}, examples={"data": "digits"})

    data: str = positional(overview(texts=False), "")
    teacher: str = option(
        "A run or model folder, timm:NAME, torchvision:NAME, hf:OWNER/NAME or a file of weights.", "", metavar="WEIGHTS"
    )
    student: str | None = option("Its size, such as Ti/4 (Ti S B L H g); default: the recipe's.", metavar="SIZE")
    size: str | None = hidden("--student")
    init: str | None = hidden(INITIAL)
    probe: bool = hidden(INITIAL, False)
    lora: int | None = hidden(INITIAL)
    verdicts: int | None = hidden(INITIAL)
    keep: Literal["auto"] = hidden("--patience, which keeps the best", "auto")


# ---- predictions and explanations


@dataclass(frozen=True, kw_only=True)
class Evaluate(Inference, InPrecision):
    """Measure a model on labelled data: accuracy with its interval, or the metric of another task.

    Example: vitrail evaluate runs/latest
    """

    RULES = Rules(("run",), examples={"out": "evaluation.html"})

    run: str = positional(RUN)
    data: str = positional(
        "A named data set (digits, mnist, planted:2x3 ...), folder, list or shards; default: the run's own data", ""
    )
    split: str | None = option(
        "train, validation or test, or all of data without splits; or select or report, the two halves of a run's "
        "validation samples (the model was selected on the first). Default: test; without it the samples that training "
        "used least."
    )
    neighbours: int | None = option(
        "Also classify each image by this many nearest training images (cosine of the features, for each "
        "pooling); needs a pass over all training images."
    )
    out: Path | None = option("Also a page with tables and examples: its file (.html) or a folder for it.")
    strict: bool = option("Exit with code 3 if images are unreadable or of classes unknown to the model.", False)
    json: bool = option("Print the result as one JSON object.", False)


@dataclass(frozen=True, kw_only=True)
class Predict(Inference, InPrecision, JobOptions):
    """Predict the class of images, or generate a text for each image or text.

    Example: vitrail predict runs/latest photo.jpg
    """

    RULES = Rules(
        required=("run", "inputs"),
        needs={"ray": "out", "deadline": "ray", "workers": "out", "temperature": "sample", "seed": "sample"},
        least={"beam": 1, "seed": 0, "workers": 0},
        positive=("deadline", "temperature"),
        apart=[("beam", "sample")],
        examples={"out": "predictions.csv"},
    )

    run: str = positional(RUN)
    inputs: tuple[str, ...] = positional(
        "Image files, folders, lists, shards or a named data set, of which all images are taken; or texts, for a model "
        "that reads texts",
        (),
    )
    beam: int | None = option("For models that generate text: beam search of this width; default: greedy search.")
    sample: bool = option("For models that generate text: sample tokens instead of searching.", False)
    temperature: float | None = option("With --sample: logits are divided by this number; default: 1.")
    seed: int | None = option("With --sample: seed of the random numbers; default: 0.")
    top: int | Literal["all"] | None = option(
        "Name so many of the most probable classes; in a table as label_2, p_2, .... all: of every class, in a table "
        "as p_CLASS.",
        metavar="N|all",
    )
    out: Path | None = option(
        "Write one row per input to this .csv or .parquet file. If interrupted, the same command continues."
    )
    json: bool = option(
        "Print a JSON list with the keys file, label, probability, top, compute_dtype; or input, text, probability, "
        "ended, notes, about_probabilities, compute_dtype.",
        False,
    )


def methods(words: Sequence[str]) -> str:
    """What stands below the options of `vitrail explain`: all methods, from their rows.

    Args:
        words: Behind the verb. A method that they name (--method rise, or a person's own as MODULE:NAME) is shown with
            its paragraph and its options; its module is imported for that.

    Raises:
        UsageError: There is no such method.
    """
    from vitrail.explain.methods.table import ALL, METHODS, METHODS_OF_TEXTS, USUAL, method_of  # for this text alone

    lines = [each.line() for each in (METHODS | METHODS_OF_TEXTS).values()]
    pairs = [word.partition("=")[::2] for word in words] + [*pairwise(words)]
    names = ",".join(value for flag, value in pairs if flag in ("--method", "--methods")).split(",")
    for name in map(str.strip, names):
        if name not in ("", ALL, USUAL):
            lines += ["", f"{name}:", (METHODS_OF_TEXTS.get(name) or method_of(name)).description()]
    return "\n".join(["\nmethods, with the defaults of their options:", *lines, ""])


@dataclass(frozen=True, kw_only=True)
class Explain(Inference, InPrecision, JobOptions):
    """Show which parts of an image a prediction depends on, as maps with a test of how far to trust each.

    Example: vitrail explain runs/latest photo.jpg
    """

    MORE = staticmethod(methods)  # below the options in its help
    RULES = Rules(
        required=("run", "images"),
        needs={"ray": "out", "deadline": "ray", "workers": "ray", "methods": "compare"},
        least={"count": 1, "workers": 0},
        positive=("deadline",),
        apart=[("masks", "no_trust"), ("method", "methods"), ("method", "compare")],
        examples={"out": f"maps{LINES}"},
    )

    run: str = positional(RUN)
    images: tuple[str, ...] = positional(
        "Image files, folders, lists, shards, a named data set or the run's own data; of data the test images, else "
        "the validation images, else all. Planted images, made of digits of which all but one are shuffled, so "
        "that the evidence is known, may also show no whole digit or two: "
        "planted:empty, planted:double, planted:mnist,double,2x3",
        (),
    )
    method: str | None = option(
        "A method from the list below (default: generic_attention; cross_attention for a model that generates "
        "text), or your own as MODULE:NAME, where MODULE can be imported."
    )
    compare: bool = option("Show several methods side by side, on one colour scale.", False)
    methods: str | None = option(
        "Methods that --compare shows, separated by commas; default: usual, which are four of different kinds "
        "(generic_attention, rollout, attcat, saliency; where one cannot answer, another); all: all but the slow ones.",
        metavar="NAME,...",
    )
    target: str | None = option(
        "The class to explain, by name (default: each image's top class); for a model without classes, the "
        "index of an output, with a minus for what lowers it.",
        metavar="CLASS",
    )
    contrast: str | None = option("A second class: explain why the target and not this one.", metavar="CLASS")
    similar_to: Path | None = option(
        "Explain what makes an image similar to this one, by the features before the head."
    )
    no_trust: bool = option("Only maps, without the test of how far to trust each; much faster.", False)
    full: bool = option("Also map and test images without evidence; compare all methods. No verdict changes.", False)
    background: Path | None = option(
        "What replaces masked patches in the test: a folder of images, or another run; default: the model's "
        "own background."
    )
    masks: Path | None = option(
        "A folder of ground-truth masks: one PNG per image, same file name; non-black pixels are the evidence."
    )
    nearest: str | None = option(
        "Where the page's nearest training images are looked for: a file of their features, made by vitrail embed; or "
        "none, and no training image leaves the house with the page. Default: some of the run's own.",
        metavar="FILE|none",
    )
    count: int | None = option("Images of a data set or folder, evenly spread; default: 8, or all for .jsonl.")
    out: Path | None = option(
        "The page (.html), or a folder for it; default: explanation.html. Or a .jsonl file for many images, with "
        "one line per image; if interrupted, the same command continues. Overlay images are written to a folder "
        "of the same name."
    )
    json: bool = option("Print one JSON object: the values and verdict of every map, and the rates of a set.", False)
    option: tuple[str, ...] = option(  # the last one: from here on the word means this field
        "An option of the method, see below; can be repeated.", (), metavar="NAME=VALUE"
    )

    def __post_init__(self) -> None:
        """Refuse several methods as one, and Ray for a page."""
        super().__post_init__()
        if self.method is not None and (self.method in ("all", "usual") or "," in self.method):
            hint = Hint({"compare": True, "methods": self.method}, drop=["method"])
            raise UsageError(f"--method names one method, but {self.method} are several", hint)
        if self.ray is not None and self.out is not None and self.out.suffix.lower() != LINES:
            raise UsageError(
                f"--ray {self.ray} needs a {LINES} file, but --out is {self.out}", Hint({"out": f"maps{LINES}"})
            )


# ---- features


@dataclass(frozen=True, kw_only=True)
class Embed(Inference, InPrecision, JobOptions):
    """Write the features of images, the vectors before the head, to a file.

    Example: vitrail embed runs/latest ./photos --out photos.npz
    """

    RULES = Rules(
        required=("run", "data", "out"),
        needs={"deadline": "ray"},
        least={"workers": 0},
        positive=("deadline",),
        examples={"out": "features.npz"},
    )

    run: str = positional(RUN)
    data: str = positional(f"{overview(texts=False)}; a folder of images without classes, or an image")
    out: Path | None = option(
        "The file: .npz, or .parquet (needs pyarrow). If interrupted, the same command continues."
    )
    patches: bool = option("Also write every patch token: hundreds of times as many numbers.", False)
    split: str | None = option("Only this split; default: all.")
    strict: bool = option("Exit with code 3 if an image cannot be read; otherwise it is left out and listed.", False)
    json: bool = option("Print one JSON object: what was written, for which images, by which model.", False)


@dataclass(frozen=True, kw_only=True)
class SimilarOptions(Inference):
    """Find the nearest images by cosine of their features, and show which patches of both agree.

    Example: vitrail similar runs/latest photo.jpg ./photos
    """

    RULES = Rules(("run", "images", "data"), least={"neighbours": 1, "queries": 1})

    run: str = positional(RUN)
    images: str = positional(
        "The query: an image; or a folder, data set, list or feature file, of which --queries images are used"
    )
    data: str = positional(
        "Where to search: a named data set, a folder, a list, shards, or a file written by vitrail embed"
    )
    neighbours: int = option("Number of nearest images.", 5)
    pooling: str | None = option("Vector to compare: class, mean or pooled; default: what the head reads.")
    queries: int = option("Number of query images of a folder or data set, evenly spread.", 8)
    out: Path | None = option("The page (.html); default: similar.html.")
    json: bool = option("Print one JSON object: neighbours, distances and matching patches of each query.", False)


# ---- data, models, machines


@dataclass(frozen=True, kw_only=True)
class Data:
    """Prepare data. The action pack writes images into tar shards (webdataset) with an index that every verb reads.

    Example: vitrail data pack ./photos --out packed
    """

    RULES = Rules(("action", "data", "out"), {"quality": "shorter_side"}, examples={"out": "packed"})

    action: Literal["pack"] = positional("pack")
    data: str = positional("A named data set, a folder, a list or shards")
    out: Path | None = option("The folder for the shards. If interrupted, the same command continues.")
    shorter_side: int | None = option("Scale larger images down to this, in pixels; default: every file as it is.")
    quality: int | None = option("With --shorter-side: JPEG quality, 1 to 100; default: 90.")
    shard_size: int | None = option("Largest size of a shard in megabytes; default: 128.")
    data_root: Path | None = option("Folder of the named data sets; default: $VITRAIL_DATA, else a cache folder.")
    json: bool = option("Print one JSON object: what was written, and what was left out.", False)


@dataclass(frozen=True, kw_only=True)
class Models(WeightsOptions):
    """Print sizes, parameters, FLOPs (2 per multiply-add, one image, forward) and layers, also of pretrained weights.

    Example: vitrail models S/16
    """

    size: str = positional(
        "A size such as S/16, a run or model folder, or pretrained weights; default: a table of all sizes", ""
    )
    image_size: int | tuple[int, int] | None = option(
        "Size of the images in pixels; default: the model's, or 224.", metavar=SIDES
    )
    channels: int | None = option("Channels of the images; default: 3 for a size, else the model's own.")
    classes: int | None = option("Number of classes, for a size; default: 1000.")
    json: bool = option("Print one JSON value.", False)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Print a script that makes a shell complete verbs, options and files at TAB; `source <(vitrail completion bash)`.

    Example: vitrail completion bash
    """

    RULES = Rules(("shell",), examples={"shell": "bash"})

    shell: Literal["bash", "zsh", "fish"] = positional("The shell")


@dataclass(frozen=True, kw_only=True)
class Doctor(WeightsOptions):
    """Print versions and devices, and check that a network runs; or check the explanations of a model.

    Example: vitrail doctor runs/latest
    """

    RULES = Rules(needs={each.name: "run" for each in fields(WeightsOptions)})

    run: str | None = positional(
        "Check the explanations of this model: sums must add up, maps must change with the image, weights and classes "
        f"must matter. {RUN}.",
        None,
    )
    json: bool = option("Print one JSON object.", False)
