"""The options of all verbs: one dataclass for each verb, one field with its line of help for each option.

Nothing here imports torch, so that a help text and a misspelt option are answered at once. `vitrail.cli.parse` reads
these classes: the type of a field decides what it takes, the docstring is the help of the verb and of its options,
`TITLE` heads the options that several verbs share, and `NEEDS` is what an option needs, where that is another's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

from vitrail.cli.parse import hidden, positional
from vitrail.data.sources import overview
from vitrail.errors import Hint, UsageError
from vitrail.options import (
    PER_CHANNEL,
    SIDES,
    ColumnOptions,
    Computing,
    DistillOptions,
    Engine,
    LayoutOptions,
    ServeOptions,
    TrainOptions,
    option,
)

RUN = (
    "A run or model folder; or pretrained weights: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file (.safetensors, "
    ".npz, .pth), or a folder as saved by transformers"
)


# ---- options that several verbs share


INITIAL = "vitrail train --help  # a student starts from random weights"
LINES = ".jsonl"  # of a file with a line for each explained image


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What pretrained weights of other libraries may not state.

    Attributes:
        mean: Mean subtracted from pixel values in [0, 1]: one number, or one per channel.
        std: Standard deviation to divide by: one number, or one per channel.
        class_names: A text file with one class name per line, in the order of the logits.
        assume: What tensors do not show: any field of ViTConfig, that is heads, norm_eps, activation, pooling,
            image_size, patch_size, position_resize, classes and so on; such as heads=6,norm_eps=1e-6.
    """

    TITLE: ClassVar[str] = "pretrained weights of other libraries: what their files do not state"

    mean: tuple[float, ...] | None = option(metavar=PER_CHANNEL)
    std: tuple[float, ...] | None = option(metavar=PER_CHANNEL, above=0, example=0.5)
    class_names: Path | None = None
    assume: str | None = option(metavar="NAME=VALUE,...")


@dataclass(frozen=True, kw_only=True)
class WeightsOptions(Assumptions):
    """The same, and the size of images: of every verb that opens a model.

    Attributes:
        image_size: Size of the images in pixels; default: the model's own.
        channels: Input channels: 1 converts a colour network to grey images.
        bits: How many of their bits 16-bit images use, such as 12 for most cameras and scanners; default: the model's
            own.
    """

    image_size: int | tuple[int, int] | None = option(metavar=SIDES, least=1)
    channels: int | None = option(least=1)
    bits: int | None = None


@dataclass(frozen=True, kw_only=True)
class Inference(WeightsOptions, Computing):
    """Of every verb by which a model answers images or texts."""


@dataclass(frozen=True, kw_only=True)
class InPrecision(Computing):
    """The same, and in which precision a model is computed on many images.

    Attributes:
        precision: Precision of matrix products, from 256 images on and for tests of maps. auto times bf16 and uses it
            if it is faster and gives the same predictions; the choice is stored in the run or in the user's cache.
    """

    precision: Literal["auto", "fp32", "bf16"] = "auto"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Which processes compute, for many images.

    Attributes:
        ray: Compute on Ray workers: the address of a cluster, or local to start a cluster on this machine.
        workers: With --ray: number of workers (default: one per CPU). Otherwise: number of processes that decode
            images.
        deadline: With --ray: seconds after which a worker that has not finished its range is restarted; default: 10
            times the slowest range so far.
    """

    TITLE: ClassVar[str] = "many images, written to --out"

    ray: str | None = option(metavar="ADDRESS|local", needs="out", example="local")
    workers: int | None = option(needs="out", least=0, example=2)
    deadline: float | None = option(needs="ray", above=0, example=600)

    def __post_init__(self) -> None:
        """Refuse no worker at all."""
        if self.ray is not None and self.workers == 0:
            raise UsageError("--workers must be at least 1 with --ray, got 0", Hint({"workers": 1}))


# ---- training


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where a training writes, by how many processes, and what is printed of it.

    Attributes:
        out: The run folder; default: a new folder in runs/.
        devices: Number of processes on this machine that train together, each on its own GPU or on CPU cores. The
            result is that of one process, up to rounding. For several machines, see --print-launch.
        print_launch: Print a script that starts this training on several machines, with SLURM (sbatch) or with torchrun
            on each machine; nothing is started.
        dry_run: Print what would be trained (parameters, steps, time) and write nothing.
        json: Print the result as one JSON object.
    """

    TITLE: ClassVar[str] = "output and processes"

    out: Path | None = None
    devices: int | None = option(least=1, example=2)
    print_launch: Literal["slurm", "torchrun"] | None = option(needs="out")
    dry_run: bool = False
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Train(Assumptions, Launch, TrainOptions):
    """Train a Vision Transformer on images or texts. What is left out is chosen by a recipe and printed.

    Example: vitrail train digits
    """

    NEEDS: ClassVar[Mapping[str, str]] = dict.fromkeys(("assume", "mean", "std"), "init config")

    data: str = positional("", help=overview(), example="digits", unless="config")
    class_names: Path | None = hidden("the data, which contain their class names")


@dataclass(frozen=True, kw_only=True)
class Distill(Assumptions, Launch, DistillOptions):
    """Train a Vision Transformer, the student, on labels and on the predictions of another network, the teacher.

    Example: vitrail distill mnist --teacher runs/big --student Ti/7

    Attributes:
        teacher: A run or model folder, timm:NAME, torchvision:NAME, hf:OWNER/NAME or a file of weights.
        student: Its size, such as Ti/4 (Ti S B L H g); default: the recipe's.
    """

    data: str = positional("", help=overview(texts=False), example="digits", unless="config")
    teacher: str = option(MISSING, metavar="WEIGHTS")
    student: str | None = option(metavar="SIZE")
    size: str | None = hidden("--student")
    init: str | None = hidden(INITIAL)
    probe: bool = hidden(INITIAL, False)
    lora: int | None = hidden(INITIAL)
    verdicts: int | None = hidden(INITIAL)
    keep: Literal["auto"] = hidden("--patience, which keeps the best", "auto")


# ---- predictions and explanations


@dataclass(frozen=True, kw_only=True)
class Evaluate(Inference, InPrecision, LayoutOptions):
    """Measure a model on labelled data: accuracy with its interval, or the metric of another task.

    Example: vitrail evaluate runs/latest

    Attributes:
        data: A named data set (digits, mnist, planted:2x3 ...), folder, list or shards; default: the run's own data
        split: train, validation or test, or all of data without splits; or select, calibrate or report, the parts of a
            run's validation samples (the model was selected on the first). Default: test; without it the samples that
            training used least.
        neighbours: Also classify each image by this many nearest training images (cosine of the features, for each
            pooling); needs a pass over all training images.
        out: Also a page with tables and examples: its file (.html) or a folder for it.
        strict: Exit with code 3 if images are unreadable or of classes unknown to the model.
        json: Print the result as one JSON object.
    """

    run: str = positional(help=RUN)
    data: str = positional("")
    split: str | None = None
    neighbours: int | None = option(least=1, example=5)
    out: Path | None = None
    strict: bool = False
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Predict(Inference, InPrecision, JobOptions, ColumnOptions):
    """Predict the class of images, or generate a text for each image or text.

    Example: vitrail predict runs/latest photo.jpg

    Attributes:
        inputs: Image files, folders, lists, shards or a named data set, of which all images are taken; or texts, for a
            model that reads texts
        beam: For models that generate text: beam search of this width; default: greedy search.
        sample: For models that generate text: sample tokens instead of searching.
        temperature: With --sample: logits are divided by this number; default: 1.
        seed: With --sample: seed of the random numbers; default: 0.
        top: Name so many of the most probable classes; in a table as label_2, p_2, .... all: of every class, in a table
            as p_CLASS.
        coverage: With each prediction a set of classes that holds the true one so often, such as 0.9; of numbers the
            coverage of their intervals. Needs a model that a training has calibrated (without --no-calibration).
        out: Write one row per input to this .csv or .parquet file. If interrupted, the same command continues.
        json: Print a JSON list with the keys file, label, probability, top, set, compute_dtype; or input, text,
            probability, ended, notes, about_probabilities, compute_dtype.
    """

    run: str = positional(help=RUN)
    inputs: tuple[str, ...] = positional()
    beam: int | None = option(apart="sample", least=1, example=4)
    sample: bool = False
    temperature: float | None = option(needs="sample", above=0, example=0.7)
    seed: int | None = option(needs="sample", least=0, most=2**63 - 1, example=0)
    top: int | Literal["all"] | None = option(metavar="N|all", least=1, example=5)
    coverage: float | None = option(above=0, below=1, example=0.9)
    out: Path | None = option(example="predictions.csv")
    json: bool = False


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
class Explain(Inference, InPrecision, JobOptions, ColumnOptions):
    """Show which parts of an image a prediction depends on, as maps with a test of how far to trust each.

    Example: vitrail explain runs/latest photo.jpg

    Attributes:
        images: Image files, folders, lists, shards, a named data set or the run's own data; of data the test images,
            else the validation images, else all. Planted images, made of digits of which all but one are shuffled, so
            that the evidence is known, may also show no whole digit, two or some: planted:empty, planted:double,
            planted:mnist,double,2x3
        method: A method from the list below (default: generic_attention; cross_attention for a model that generates
            text), or your own as MODULE:NAME, where MODULE can be imported; or a folder of maps, one .npy an image.
        compare: Show several methods side by side, on one colour scale.
        methods: Methods that --compare shows, separated by commas; default: usual, which are four of different kinds
            (generic_attention, rollout, attcat, saliency; where one cannot answer, another); all: all but the slow
            ones.
        target: The class to explain, by name (default: each image's top class); for a model without classes, the index
            of an output, with a minus for what lowers it.
        contrast: A second class: explain why the target and not this one.
        top_labels: Of an image that may have several labels, explain so many of those that are predicted, each by
            itself (default: 5).
        similar_to: Explain what makes an image similar to this one, by the features before the head.
        no_trust: Only maps, without the test of how far to trust each; much faster.
        full: Also map and test images without evidence; compare all methods. No verdict changes.
        background: What replaces masked patches in the test: a folder of images, or another run; default: the model's
            own background.
        masks: A folder of ground-truth masks: one PNG per image, same file name; non-black pixels are the evidence.
        nearest: Where the page's nearest training images are looked for: a file of their features, made by vitrail
            embed; or none, and no training image leaves the house with the page. Default: some of the run's own.
        count: Images of a data set or folder, evenly spread; default: 8, or all for .jsonl.
        out: The page (.html), or a folder for it; default: explanation.html. Or a .jsonl file for many images, with one
            line per image; if interrupted, the same command continues. Overlay images are written to a folder of the
            same name.
        json: Print one JSON object: the values and verdict of every map, and the rates of a set.
        option: An option of the method, see below; can be repeated.
    """

    MORE = staticmethod(methods)  # below the options in its help
    NEEDS: ClassVar[Mapping[str, str]] = {"workers": "ray"}

    run: str = positional(help=RUN)
    images: tuple[str, ...] = positional()
    method: str | None = option(apart="methods compare")
    compare: bool = False
    methods: str | None = option(metavar="NAME,...", needs="compare")
    target: str | None = option(metavar="CLASS")
    contrast: str | None = option(metavar="CLASS")
    top_labels: int | Literal["all"] | None = option(
        metavar="N|all", least=1, example=5, apart="target contrast similar_to"
    )
    similar_to: Path | None = None
    no_trust: bool = False
    full: bool = False
    background: Path | None = None
    masks: Path | None = option(apart="no_trust")
    nearest: str | None = option(metavar="FILE|none")
    count: int | None = option(least=1, example=8)
    out: Path | None = option(example=f"maps{LINES}")
    json: bool = False
    option: tuple[str, ...] = option((), metavar="NAME=VALUE")  # the last one: from here on the word means this field

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


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Inference, InPrecision, JobOptions, LayoutOptions):
    """Ask of a whole set whether a model looks at the right thing, and what else speaks for a class; on a page to sign.

    Example: vitrail audit runs/latest ./photos

    Attributes:
        data: A named data set, folder, list or shards; default: the run's own data
        masks: A folder with a mask of some images, of the same file name: where the thing is. Non-black pixels count.
        count: Images that are explained and tested, drawn class by class (default: 100).
        method: The method that explains them (default: generic_attention), or your own as MODULE:NAME, where MODULE can
            be imported; or a folder with maps of any tool, one .npy file an image.
        split: train, validation or test, or all of data without splits. Default: test; without it the samples that
            training used least.
        background: What replaces masked patches in the test: a folder of images, or another run; default: the model's
            own background.
        max_time: Time limit, such as 10m: fewer images and classes are asked.
        fail_under: Rules for a pipeline, such as "supported>=0.7,border<0.1,shortcuts<=0": the worse end of an interval
            decides, and the exit code is 1 if one fails.
        against: The audit.json of an earlier audit: what changed since.
        out: The page (.html), or a folder for it; default: audit.html. Its JSON and a folder of its parts are written
            beside it; if interrupted, the same command continues.
        json: Print the audit as one JSON object.
    """

    NEEDS: ClassVar[Mapping[str, str]] = {"workers": "ray"}

    run: str = positional(help=RUN)
    data: str = positional("")
    masks: Path | None = None
    count: int = option(100, least=1, example=100)
    method: str | None = None
    split: str | None = None
    background: Path | None = None
    max_time: str | None = option(metavar="DURATION", example="10m")
    fail_under: str | None = option(metavar="RULES", example="supported>=0.7")
    against: Path | None = option(metavar="FILE")
    out: Path | None = None
    json: bool = False


# ---- features


@dataclass(frozen=True, kw_only=True)
class Embed(Inference, InPrecision, JobOptions, ColumnOptions):
    """Write the features of images, the vectors before the head, to a file.

    Example: vitrail embed runs/latest ./photos --out photos.npz

    Attributes:
        out: The file: .npz, or .parquet (needs pyarrow). If interrupted, the same command continues.
        patches: Also write every patch token: hundreds of times as many numbers.
        split: Only this split; default: all.
        strict: Exit with code 3 if an image cannot be read; otherwise it is left out and listed.
        json: Print one JSON object: what was written, for which images, by which model.
    """

    run: str = positional(help=RUN)
    data: str = positional(help=f"{overview(texts=False)}; a folder of images without classes, or an image")
    out: Path = option(MISSING, example="features.npz")
    patches: bool = False
    split: str | None = None
    strict: bool = False
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class SimilarOptions(Inference, ColumnOptions):
    """Find the nearest images by cosine of their features, and show which patches of both agree.

    Example: vitrail similar runs/latest photo.jpg ./photos

    Attributes:
        images: The query: an image; or a folder, data set, list or feature file, of which --queries images are used
        data: Where to search: a named data set, a folder, a list, shards, or a file written by vitrail embed
        neighbours: Number of nearest images.
        pooling: Vector to compare: class, mean or pooled; default: what the head reads.
        queries: Number of query images of a folder or data set, evenly spread.
        out: The page (.html); default: similar.html.
        json: Print one JSON object: neighbours, distances and matching patches of each query.
    """

    run: str = positional(help=RUN)
    images: str = positional()
    data: str = positional()
    neighbours: int = option(5, least=1, example=5)
    pooling: str | None = None
    queries: int = option(8, least=1, example=8)
    out: Path | None = None
    json: bool = False


# ---- for other runtimes


@dataclass(frozen=True, kw_only=True)
class Export(WeightsOptions):
    """Write a model for another runtime or library, and see that it answers alike there.

    To ONNX this is one file, which has in it how images go in and what its outputs mean; predict.py and predict.js
    beside it answer images by the file alone, without vitrail. The file has its name only when it has answered images
    as the model does.

    Example: vitrail export runs/latest --to onnx

    Attributes:
        to: onnx; or a library that gets a folder in its own layout: transformers, timm, torchvision.
        out: The file (.onnx) or the folder; default: export/model.onnx or export/LIBRARY in the run, or here.
        size: Size of the images, in pixels; default: the model's own. any leaves it open, in ONNX.
        check: Images that it is proved with: a file, a folder, a list, a named set; default: those of the run, else
            drawn ones.
        weights: How numbers are stored: fp16 takes half of the bytes, int8 a quarter; they are computed in fp32, and
            what changes more than one answer in a hundred is refused.
        explain: A method whose map of the answer is a second output of the ONNX file.
        conservative: With --explain: the map of the network's conservative form.
        json: Print one JSON object: what was written, and what it was seen to do.
    """

    image_size: int | tuple[int, int] | None = hidden("--size")
    run: str = positional(help=RUN)
    to: Literal["onnx", "transformers", "timm", "torchvision"] = option(MISSING)
    out: Path | None = option(example="model.onnx")
    size: int | tuple[int, int] | Literal["any"] | None = option(metavar=f"{SIDES}|any", least=1)
    check: str | None = option(metavar="IMAGES")
    weights: Literal["fp32", "fp16", "int8"] = "fp32"
    explain: Literal["generic_attention", "attcat", "gradient_rollout"] | None = None
    conservative: bool = option(False, needs="explain")
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Serve(WeightsOptions, ServeOptions):
    """Answer images over HTTP: predictions, maps of what they depend on, features and similar images.

    POST /predict, /explain, /embed and /similar take images as a form, as JSON or as they are; GET /openapi.json says
    how. Too many requests are refused at once, with the time after which to ask again. On SIGTERM it ends when all
    that it took are answered; on SIGHUP it loads the models anew, and none is refused meanwhile. Leave TLS to a proxy
    in front of it.

    With --check it starts nothing: it sends images to a server that runs, compares its answers with those of the model
    here, and ends with exit code 1 if one differs. With --print it writes what another engine needs to serve the model.

    Example: vitrail serve runs/latest

    Attributes:
        models: Run or model folders, exports (.onnx) or pretrained weights; NAME=PATH gives one another name, by which
            ?model=NAME asks for it
        token_file: A file with the token that every request must bear, which nobody else can read; or $VITRAIL_TOKEN.
        check: The address of a server that runs; it must answer as MODELS do here, by default runs/latest.
        print: Print a Ray Serve application, a Dockerfile, a Kubernetes deployment or the configuration of a Triton
            repository, each with the commands to use it.
        out: With --print: a new folder into which that is written.
        json: With --check: print one JSON object of what was compared.
    """

    models: tuple[str, ...] = positional((), example="runs/latest", unless="check")
    token_file: Path | None = None
    check: str | None = option(
        metavar="URL",
        example="http://127.0.0.1:8000",
        apart="print features watch host port workers explainers queue timeout threads",
    )
    print: Engine | None = option(example="docker", apart="features watch token_file")
    out: Path | None = option(needs="print", example="deployed")
    json: bool = option(False, needs="check")


# ---- data, models, machines


@dataclass(frozen=True, kw_only=True)
class Data(LayoutOptions):
    """Prepare data: check them on a page, show what a network sees of them, or pack images into tar shards.

    The action check looks at all images, says what is wrong, what belongs together and what to do first, and ends with
    exit code 3 if the data contradict themselves. show puts images of each class on a page as a network sees them, in
    an evaluation and in a training, beside what they were. pack writes shards (webdataset), which every verb reads. No
    file of the data is touched.

    Example: vitrail data pack ./photos --out packed

    Attributes:
        action: pack, check or show
        data: A named data set, a folder, a list or shards
        out: Of pack the folder for the shards; if interrupted, the same command continues. Of check and show the page
            (.html); default: data.html, show.html.
        shorter_side: Scale larger images down to this, in pixels; default: every file as it is.
        quality: With --shorter-side: JPEG quality, 1 to 100; default: 90.
        shard_size: Largest size of a shard in megabytes; default: 128.
        model: Of check: a ViT by which wrong labels are found, images unlike those in training, and recordings that
            neither names nor folders show: a run or model folder, or pretrained weights, such as
            timm:vit_tiny_patch16_224.
        device: Where that ViT is computed: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one.
        fix_split: Of check: also write a list (.csv) with path, label, split and group, where groups and copies stand
            on one side of the split.
        crops: Of check: also look for images that are a part of another one, which takes minutes for some thousands.
        recipe: Of show, as the following: named training settings; default: those that a training chooses.
        image_size: Size that images are resized to, in pixels.
        resize: How images of other proportions get that size: crop (keeps the centre), squash or pad.
        init: Pretrained weights that a training starts from, which say how images are read.
        seed: Of what is changed at random; default: 0.
        config: The config.yaml of a run.
        task: What is learnt, where the columns allow more than one task; see vitrail train --help.
        count: Images of each class; default: 3.
        data_root: Folder of the named data sets; default: $VITRAIL_DATA, else a cache folder.
        json: Print one JSON object: what was written, and what was left out; or what was found.
    """

    OF: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("shorter_side", "quality", "shard_size"), "pack"),
        **dict.fromkeys(("model", "fix_split", "crops"), "check"),
        **dict.fromkeys(("recipe", "image_size", "resize", "init", "seed", "config", "task", "count"), "show"),
    }

    action: Literal["pack", "check", "show"] = positional()
    data: str = positional()
    out: Path | None = option(example="packed", unless="action=check action=show")
    shorter_side: int | None = option(least=1, most=65535, example=256)
    quality: int | None = option(needs="shorter_side", least=1, most=100, example=90)
    shard_size: int | None = option(least=1, most=10**6, example=128)
    model: str | None = option(metavar="WEIGHTS", example="runs/latest")
    device: str = option("auto", needs="model")
    fix_split: Path | None = option(example="split.csv")
    crops: bool = False
    recipe: str | None = option(metavar="NAME")
    image_size: int | tuple[int, int] | None = option(metavar=SIDES, least=1)
    resize: Literal["crop", "squash", "pad"] | None = None
    init: str | None = option(metavar="WEIGHTS")
    seed: int | None = option(most=2**63 - 1, example=0)
    config: Path | None = None
    task: str | None = option(metavar="NAME")
    count: int | None = option(least=1, example=3)
    data_root: Path | None = None
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what belongs to the other action."""
        if others := [name for name, action in self.OF.items() if self.action != action and getattr(self, name)]:
            problem = f"--{others[0].replace('_', '-')} is for vitrail data {self.OF[others[0]]}"
            raise UsageError(problem, Hint(drop=others))


@dataclass(frozen=True, kw_only=True)
class Models(WeightsOptions):
    """Print sizes, parameters, FLOPs (2 per multiply-add, one image, forward) and layers, also of pretrained weights.

    Example: vitrail models S/16

    Attributes:
        size: A size such as S/16, a run or model folder, or pretrained weights; default: a table of all sizes
        image_size: Size of the images in pixels; default: the model's, or 224.
        channels: Channels of the images; default: 3 for a size, else the model's own.
        classes: Number of classes, for a size; default: 1000.
        json: Print one JSON value.
    """

    size: str = positional("")
    image_size: int | tuple[int, int] | None = option(metavar=SIDES, least=1)
    channels: int | None = option(least=1, example=3)
    classes: int | None = option(least=0, example=1000)
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Print a script that makes a shell complete verbs, options and files at TAB; `source <(vitrail completion bash)`.

    Example: vitrail completion bash

    Attributes:
        shell: The shell
    """

    shell: Literal["bash", "zsh", "fish"] = positional()


@dataclass(frozen=True, kw_only=True)
class Doctor(WeightsOptions):
    """Print versions and devices, and check that a network runs; or check the explanations of a model.

    Example: vitrail doctor runs/latest

    Attributes:
        json: Print one JSON object.
    """

    NEEDS: ClassVar[Mapping[str, str]] = {each.name: "run" for each in fields(WeightsOptions)}

    run: str | None = positional(
        None,
        help="Check the explanations of this model: sums must add up, maps must change with the image, weights and "
        f"classes must matter. {RUN}.",
    )
    json: bool = False
