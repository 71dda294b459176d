"""What can be typed after each verb: one dataclass a verb, whose fields are its options, each with its line of help.

Nothing here imports torch, so that a help text and a misspelt option are answered at once. `vitrail.cli.parse` says how
the type of a field decides what may be typed. What does not go together is refused here, before a verb is imported; the
docstring of a class is the help of its verb, and `TITLE` heads the options that several verbs share.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from vitrail.cli.parse import hidden, positional, several
from vitrail.data.readers import overview
from vitrail.errors import UsageError
from vitrail.training.options import DistillOptions, TrainOptions, option

RUN = (
    "A run or model folder; or pretrained weights: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file (.safetensors, "
    ".npz, .pth), or a folder as saved by transformers"
)


def _need(name: str, value: object, there: bool, wants: str, hint: str) -> None:
    """Refuse an option that has a value, and not what it needs."""
    if value is not None and not there:
        shown = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(f"--{name} {shown} {wants}", hint)


def _check_least(name: str, value: int | None, least: int, example: int) -> None:
    """Refuse a number that is too small."""
    if value is not None and value < least:
        raise UsageError(f"--{name} must be at least {least}, got {value}", f"--{name} {example}")


def _check_finite(name: str, value: float | None, hint: str) -> None:
    """Refuse what is not above 0 and finite."""
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"--{name} must be above 0 and finite, got {value}", hint)


# ---- options that several verbs share


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What pretrained weights of other libraries may lack."""

    TITLE: ClassVar[str] = "pretrained weights of other libraries: facts that do not come with them"

    mean: str | None = option(
        "Mean that is subtracted from each channel, of values from 0 to 1: one number, or one a channel, with commas."
    )
    std: str | None = option("Standard deviation that each channel is divided by.")
    class_names: Path | None = option("A text file with the name of a class on each line, in the order of the logits.")
    assume: str | None = option("Configuration that no tensor shows, such as heads=6,norm_eps=1e-6.")


@dataclass(frozen=True, kw_only=True)
class Weights(Assumptions):
    """The same, and the size of images: of every verb that opens a model."""

    image_size: str | None = option("Side of the images in pixels, or HEIGHTxWIDTH; the model's own when left out.")
    channels: int | None = option("1 makes a network that reads grey images out of one that reads colour.")


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Where a model is computed."""

    TITLE: ClassVar[str] = "device, data and precision"

    device: str = option("cpu, cuda, cuda:1, mps; auto takes an accelerator when there is one.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    data_root: Path | None = option("Where named sets lie (else $VITRAIL_DATA, else a cache folder).")


@dataclass(frozen=True, kw_only=True)
class Inference(Weights, Computing):
    """Of every verb that asks a model about images or texts."""


@dataclass(frozen=True, kw_only=True)
class InPrecision(Computing):
    """The same, and in which precision a model is computed on many images."""

    precision: Literal["auto", "fp32", "bf16"] = option(
        "Of matrix products, for 256 images or more and for tests of maps. auto times bf16, and takes it if it is "
        "faster and predicts the same; the choice is kept in the run or the user's cache.",
        "auto",
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """By whom work over many images is done."""

    TITLE: ClassVar[str] = "many images, written to --out"

    ray: str | None = option(
        "Compute by workers of Ray: the address of a cluster, or local, which starts one on this machine."
    )
    workers: int | None = option(
        "With --ray, the number of workers, one a processor when left out; else processes that decode images."
    )
    deadline: float | None = option(
        "With --ray: seconds after which a worker that has not finished its range is restarted; 10 times the slowest "
        "range so far when left out."
    )

    def _check_job(self, out: Path | None, example: str) -> None:
        """Refuse options of a job where there is none."""
        _need("ray", self.ray, out is not None, "keeps parts beside a file, and none is named", f"--out {example}")
        if self.deadline is not None:
            hint = f"--ray local --deadline {self.deadline:g}"
            _need("deadline", self.deadline, self.ray is not None, "is for workers of Ray, and --ray is missing", hint)
        _check_finite("deadline", self.deadline, "--deadline 600")
        _check_least("workers", self.workers, 0 if self.ray is None else 1, 1)


# ---- training


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where a training writes, by how many processes, and what is printed of it."""

    TITLE: ClassVar[str] = "output and processes"

    out: Path | None = option("The run folder; a new one below runs/ when left out.")
    devices: int | None = option(
        "Processes of this machine that train together, each on its own GPU or on processor cores. The result is that "
        "of one process, up to rounding. For several machines see --print-launch."
    )
    print_launch: Literal["slurm", "torchrun"] | None = option(
        "Print a script that starts this training on several machines, by SLURM (sbatch) or by torchrun on each of "
        "them; start nothing."
    )
    dry_run: bool = option("Print what would be trained: all parameters, steps and time; write nothing.", False)
    json: bool = option("Print the result as one JSON object.", False)

    def _check_out(self, resume: str) -> None:
        """Refuse what needs a run folder by name where none is."""
        if resume != "never":
            _need("resume", resume, self.out is not None, "needs the run to go on with", "--out runs/latest")
        wants = "needs a run folder that all processes know by name"
        _need("print-launch", self.print_launch, self.out is not None, wants, "--out runs/many")


@dataclass(frozen=True, kw_only=True)
class Train(Assumptions, Launch, TrainOptions):
    """Train a Vision Transformer on images or texts. What is left out is chosen by a recipe and printed.

    Example: vitrail train digits
    """

    data: str = positional(overview(), "")
    class_names: Path | None = hidden("the data, which names its classes")

    def __post_init__(self) -> None:
        """Refuse a training without data, assumptions without weights, and to go on with no run."""
        if not self.data and self.config is None:
            raise UsageError("no data given: what should be trained on?", "vitrail train digits")
        for name in ("assume", "mean", "std"):
            value, wants = getattr(self, name), "is for weights that a training starts from, and none are named"
            _need(name, value, self.init is not None, wants, f"--init FILE --{name} {value}")
        self._check_out(self.resume)


@dataclass(frozen=True, kw_only=True)
class Distill(Assumptions, Launch, DistillOptions):
    """Train a Vision Transformer, the student, on labels and on the predictions of another network, the teacher.

    Example: vitrail distill mnist --teacher runs/big --student Ti/7
    """

    data: str = positional(overview(texts=False), "")
    teacher: str = option("A run or model folder, timm:NAME, torchvision:NAME, hf:OWNER/NAME or a file of weights.", "")
    student: str | None = option("The student's size, such as Ti/4 (Ti S B L H g); the recipe's when left out.")
    size: str | None = hidden("--student")
    init: str | None = hidden("vitrail train --init")
    probe: bool = hidden("vitrail train --init", False)
    lora: int | None = hidden("vitrail train --init")
    verdicts: int | None = hidden("vitrail train --init")
    keep: Literal["auto"] = hidden("--patience, which keeps the best", "auto")

    def __post_init__(self) -> None:
        """Refuse a training without data or teacher, and to go on with no run."""
        if not self.data and self.config is None:
            raise UsageError("no data given: what should be learnt?", "vitrail distill digits --teacher runs/latest")
        if not self.teacher:
            raise UsageError("no teacher given", "--teacher runs/latest")
        self._check_out(self.resume)


# ---- predictions and explanations


@dataclass(frozen=True, kw_only=True)
class Evaluate(Inference, InPrecision):
    """Measure a model on labelled data: accuracy with its interval, or the metric of another task.

    Example: vitrail evaluate runs/latest
    """

    run: str = positional(RUN)
    data: str = positional(
        "A named set (digits, mnist, planted:2x3 ...), folder or manifest; the run's own data when left out", ""
    )
    split: str | None = option(
        "train, validation, test or all; choose or calibrate, the halves of a run's validation samples, where the "
        "first chose the model. When left out, the one that training has seen least of."
    )
    neighbours: int | None = option(
        "Also classify by so many nearest training images, by cosine of each pooling; computes all training images."
    )
    strict: bool = option("Exit with 3 if there are classes that the model does not know, or unreadable images.", False)
    json: bool = option("Print the result as one JSON object.", False)


@dataclass(frozen=True, kw_only=True)
class Predict(Inference, InPrecision, Job):
    """Predict the class of images, or generate a text for each image or text.

    Example: vitrail predict runs/latest photo.jpg
    """

    run: str = positional(RUN)
    inputs: tuple[str, ...] = positional(
        "Image files, or folders of them; a folder packed by vitrail data; texts, for a model that reads texts; or "
        "planted images, such as planted:double, of which the test images are taken",
        (),
    )
    count: int | None = option("How many planted images, evenly spread; all when left out.")
    beam: int | None = option("Of a model that generates text: beam search of this width; greedy when left out.")
    sample: bool = option("Of a model that generates text: sample tokens instead of searching.", False)
    temperature: float | None = option("With --sample: logits are divided by it; 1 when left out.")
    seed: int | None = option("With --sample; 0 when left out.")
    out: Path | None = option(
        "Write a row for each input to this .csv or .parquet file. A command that was killed goes on when repeated."
    )
    json: bool = option(
        "Print a JSON list: file, label, probability, top; or input, text, probability, ended, notes, "
        "about_probabilities.",
        False,
    )

    def __post_init__(self) -> None:
        """Refuse to predict nothing, options of two searches at once, and values that no search has."""
        if not self.inputs:
            raise UsageError("no image or text given", f"vitrail predict {self.run} photo.jpg")
        self._check_job(self.out, "predictions.csv")
        wants = "is for many images, whose answers go to a file, and none is named"
        _need("workers", self.workers, self.out is not None, wants, "--out predictions.csv")
        _check_least("count", self.count, 1, 4)
        if self.sample and self.beam is not None:
            raise UsageError("--beam searches and --sample samples", "one of the two")
        for name, value in (("temperature", self.temperature), ("seed", self.seed)):
            _need(name, value, self.sample, "is for sampling, and --sample is missing", f"--sample --{name} {value}")
        _check_least("beam", self.beam, 1, 4)
        _check_finite("temperature", self.temperature, "--temperature 0.7; or no --sample, for the likeliest text")
        _check_least("seed", self.seed, 0, 0)


def methods() -> str:
    """What stands below the options of `vitrail explain`: all methods, read from their files."""
    from vitrail.explain.methods.method import listed  # for this text alone

    lines = "\n".join(each.lines() for each in listed())
    return f"\nmethods, with the defaults of their options:\n{lines}\n"


@dataclass(frozen=True, kw_only=True)
class Explain(Inference, InPrecision, Job):
    """Show which parts of an image a prediction depends on, as maps with a test of how far to trust each.

    Example: vitrail explain runs/latest photo.jpg
    """

    run: str = positional(RUN)
    images: tuple[str, ...] = positional(
        "Image files or folders of them; or one named set, manifest or the run's own data, of which the test images "
        "(else the validation images) are taken. Planted images, whose evidence is known, may show no digit or two: "
        "planted:empty, planted:double, planted:mnist,double,2x3",
        (),
    )
    method: str | None = option(
        "A method of the list below; generic_attention when left out, cross_attention for a model that generates "
        "text. Or a method of your own as MODULE:NAME, of a module that can be imported."
    )
    compare: bool = option("Several methods side by side, on one colour scale.", False)
    methods: str | None = option("Which ones --compare shows, with commas; all but the slow ones when left out.")
    target: str | None = option(
        "The class to explain, by name; each image's top class when left out. Without classes, the number of an output."
    )
    contrast: str | None = option("A second class: explain why the target rather than this one.")
    similar_to: Path | None = option("Explain what makes an image similar to this one, by features before the head.")
    no_trust: bool = option("Maps alone, without the test of how far to trust each; much faster.", False)
    full: bool = option("Also test the maps of images without evidence; this changes no verdict.", False)
    background: Path | None = option(
        "What replaces masked patches in that test: a folder of images, or another run; the model's own when left out."
    )
    masks: Path | None = option("A folder with a PNG of the same name for each image, not black where evidence lies.")
    count: int | None = option(
        "How many images of a set or folder, evenly spread; 8 when left out, all with --out maps.jsonl."
    )
    out: Path | None = option(
        "The page (.html), or a folder for it; explanation.html when left out. Or .jsonl for many images, a line for "
        "each; a command that was killed goes on when repeated. Overlays go into a folder of the same name."
    )
    json: bool = option("Print a JSON list with the values of every map.", False)
    option: tuple[str, ...] = several(  # the last one: from here on the word means this field
        "NAME=VALUE", "An option of the method, see below; may be repeated."
    )

    def __post_init__(self) -> None:
        """Refuse to explain nothing, and options of a job for a page."""
        if not self.images:
            raise UsageError("no image given", f"vitrail explain {self.run} photo.jpg")
        lines = self.out if self.out is not None and self.out.suffix.lower() == ".jsonl" else None
        self._check_job(lines, "maps.jsonl")
        hint = f"--ray local --workers {self.workers}"
        _need("workers", self.workers, self.ray is not None, "is for workers of Ray, and --ray is missing", hint)
        _check_least("count", self.count, 1, 4)


# ---- features


@dataclass(frozen=True, kw_only=True)
class Embed(Inference, InPrecision, Job):
    """Write the features of images, the vectors before the head, to a file.

    Example: vitrail embed ./photos --model runs/latest --out photos.npz
    """

    data: str = positional(f"{overview(texts=False)}; a folder of images without classes, or an image")
    model: str = option(RUN, "")
    out: Path | None = option(
        "The file: .npz, or .parquet with pyarrow. A command that was killed goes on when repeated."
    )
    patches: bool = option("Every patch token, too: hundreds of times as many numbers.", False)
    split: str | None = option("Only this split; all when left out.")
    strict: bool = option("Exit with 3 when an image cannot be read; else it is left out and named.", False)
    json: bool = option("Print one JSON object: what was written, of which images, by which model.", False)

    def __post_init__(self) -> None:
        """Refuse features without a model or a file."""
        if not self.model:
            raise UsageError("no model given", f"vitrail embed {self.data} --model runs/latest --out features.npz")
        if self.out is None:
            problem = f"no file given for the features of {self.data}"
            raise UsageError(problem, "--out features.npz, or features.parquet")
        self._check_job(self.out, "features.npz")


@dataclass(frozen=True, kw_only=True)
class Similar(Inference):
    """Find the nearest images by cosine of their features, and show which patches of both agree.

    Example: vitrail similar photo.jpg ./photos --model runs/latest
    """

    images: str = positional("The query: an image; or a folder, a set or a file of features, of which some are taken")
    data: str = positional("Where to search: a named set, folder, manifest, or a file written by vitrail embed")
    model: str = option(RUN, "")
    count: int = option("How many neighbours.", 5)
    pooling: str | None = option("Compare class, mean or pooled; what the head reads when left out.")
    queries: int = option("How many of several query images, evenly spread.", 8)
    out: Path | None = option("The page (.html); similar.html when left out.")
    json: bool = option("Print one JSON object: for each query its neighbours, distances, and what agrees.", False)

    def __post_init__(self) -> None:
        """Refuse neighbours without a model, and no neighbours."""
        if not self.model:
            raise UsageError("no model given", f"vitrail similar {self.images} {self.data} --model runs/latest")
        _check_least("count", self.count, 1, 5)
        _check_least("queries", self.queries, 1, 5)


# ---- data, models, machines


@dataclass(frozen=True, kw_only=True)
class Data:
    """Prepare data. The action pack writes images into tar shards (webdataset) with an index that every verb reads.

    Example: vitrail data pack ./photos --out packed
    """

    action: str = positional("pack")
    data: str = positional("A named set, folder or manifest of images")
    out: Path | None = option("The folder for the shards. A command that was killed goes on when repeated.")
    size: int | None = option("Scale larger images down to this shorter side; all keep their bytes when left out.")
    quality: int | None = option("With --size: JPEG quality, 1 to 100; 90 when left out.")
    shard_size: int | None = option("Megabytes of a shard; 128 when left out.")
    data_root: Path | None = option("Where named sets lie (else $VITRAIL_DATA, else a cache folder).")
    json: bool = option("Print one JSON object: what was written, and what was left out.", False)

    def __post_init__(self) -> None:
        """Refuse another action, and shards without a folder."""
        if self.action != "pack":
            problem = f"vitrail data has no action '{self.action}', it has pack"
            raise UsageError(problem, f"vitrail data pack {self.data} --out packed")
        if self.out is None:
            raise UsageError("no folder given for the shards", "--out packed")
        wants = "is for images that are scaled, and --size is missing"
        _need("quality", self.quality, self.size is not None, wants, "--size 256")


@dataclass(frozen=True, kw_only=True)
class Models(Weights):
    """Sizes, parameters, FLOPs (2 per multiply-add, one image, forward) and layers; and what pretrained weights hold.

    Example: vitrail models S/16
    """

    size: str = positional("A size such as S/16; a run or model folder; or pretrained weights; all sizes if none", "")
    image_size: str | None = option("Side of the images in pixels, or HEIGHTxWIDTH; of a size 224 when left out.")
    channels: int | None = option("Channels of the images; of a size 3 when left out.")
    classes: int | None = option("Number of classes of a size; 1000 when left out.")
    json: bool = option("Print one JSON value.", False)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Time the same network in every installed library, in turn, after a check that all give equal outputs.

    Example: vitrail bench --quick
    """

    size: str | None = positional("A size such as S/16; B/16 when left out, S/16 with --quick", None)
    quick: bool = option("S/16, inference as each library documents it, 3 rounds: some minutes on two cores.", False)
    tuned: bool = option("Also inference in bf16: by autocast, and with weights in bf16.", False)
    train: bool = option("Also a training step: fp32 as documented, and bf16 by autocast.", False)
    peers: str | None = option("Only these libraries, with commas: timm,torchvision,transformers,vit-pytorch.")
    rounds: int | None = option("Turns of each; 5 when left out, 3 with --quick.")
    batch_size: int = option("Images at a time.", 8)
    image_size: int = option("Side of the images in pixels.", 224)
    device: str = option("cpu or cuda.", "cpu")
    json: bool = option("Print one JSON object.", False)

    def __post_init__(self) -> None:
        """Refuse to time nothing."""
        _check_least("batch-size", self.batch_size, 1, 1)
        _check_least("rounds", self.rounds, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Doctor(Weights):
    """Print versions and devices, and check that a network runs; with --model check the explanations of a model."""

    model: str | None = option(
        f"{RUN}. Checked are sums that must close, maps that must move with the image, weights and classes that must "
        "matter, and each method against a second computation."
    )
    json: bool = option("Print one JSON object.", False)

    def __post_init__(self) -> None:
        """Refuse assumptions about weights that are not named."""
        for name in (each.name for each in fields(Weights)):
            flag, wants = name.replace("_", "-"), "is for a model, and none is named"
            _need(flag, getattr(self, name), self.model is not None, wants, "--model with a run or weights")
