"""What can be typed after each verb: one dataclass a verb, whose fields are its options, each with its line of help.

Nothing here imports torch, so that a help text and a slip of the fingers are answered at once. `vitrail.cli.parse` says
how the type of a field decides what may be typed. What does not go together is refused here, before a verb is imported;
the docstring of a class is the help of its verb.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from vitrail.cli.parse import hidden, positional, several
from vitrail.data.readers import overview
from vitrail.errors import UsageError
from vitrail.training.options import DistillOptions, TrainOptions, option


def _check_least(name: str, given: int | None, least: int, example: int) -> None:
    """Refuse a number that was typed and is too small."""
    if given is not None and given < least:
        raise UsageError(f"--{name} must be at least {least}, got {given}", f"--{name} {example}")


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What other people's weights may not say of themselves."""

    mean: str | None = option(
        "Of other people's weights: what is taken off each channel, of values from 0 to 1: one number, or one for each "
        "channel with commas between."
    )
    std: str | None = option("Of other people's weights: what each channel is divided by, then.")
    class_names: Path | None = option("Of other people's weights: a text file with a name a line, in their order.")
    assume: str | None = option("Of other people's weights: what no tensor says, such as heads=6,norm_eps=1e-6.")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where a training writes, by how many processes, and what is printed of it."""

    out: Path | None = option("The run folder; a new one below runs/ when left out.")
    devices: int | None = option(
        "Processes of this machine that train together, each on a GPU of its own or on processor cores; on more "
        "machines torchrun starts the same command. The result is that of one process, up to rounding."
    )
    print_launch: Literal["slurm", "torchrun"] | None = option(
        "Print a script that trains on many machines, started by SLURM (sbatch) or on each machine by torchrun, and "
        "start nothing."
    )
    dry_run: bool = option("Say what would be trained, all parameters, and how long; write nothing.", False)
    json: bool = option("Print the result as one JSON object.", False)


@dataclass(frozen=True, kw_only=True)
class Train(Launch, Assumptions, TrainOptions):
    """Train a Vision Transformer on a set of images or texts. What is left out is decided by a recipe, and said.

    Example: vitrail train digits
    """

    data: str = positional(overview(), "")
    class_names: Path | None = hidden("the data, which names its classes")

    def __post_init__(self) -> None:
        """Refuse a training of nothing, and one that would go on with no run."""
        if not self.data and self.config is None:
            raise UsageError("no data given: what should be trained on?", "vitrail train digits")
        for name in ("assume", "mean", "std"):
            if getattr(self, name) is not None and self.init is None:
                problem = f"--{name} is for weights that a training starts from, and none are named"
                raise UsageError(problem, f"--init FILE --{name} {getattr(self, name)}")
        _check_out(self.out, self.resume, self.print_launch)


@dataclass(frozen=True, kw_only=True)
class Distill(Launch, Assumptions, DistillOptions):
    """Train a Vision Transformer from labels and a teacher, which it needs no more afterwards.

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
        """Refuse a training of nothing or by nobody, and one that would go on with no run."""
        if not self.data and self.config is None:
            raise UsageError("no data given: what should be learnt?", "vitrail distill digits --teacher runs/latest")
        if not self.teacher:
            raise UsageError("no teacher given", "--teacher runs/latest")
        _check_out(self.out, self.resume, self.print_launch)


def _check_out(out: Path | None, resume: str, launch: str | None) -> None:
    """Refuse what needs a run folder by name where none is given."""
    if resume != "never" and out is None:
        raise UsageError(f"--resume {resume} needs the run to go on with", "--out runs/latest")
    if launch is not None and out is None:
        raise UsageError(f"--print-launch {launch} needs a run that all processes name alike", "--out runs/many")


RUN = (
    "A run or model folder; or other people's weights: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file "
    "(.safetensors, .npz, .pth), a folder of a hub"
)


@dataclass(frozen=True, kw_only=True)
class Weights(Assumptions):
    """The same, and the size of images: of every verb that opens a model."""

    image_size: str | None = option("Side of the images in pixels, or HEIGHTxWIDTH; the model's own when left out.")
    channels: int | None = option("1 for a network of grey images made of one that reads colour.")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Who computes: of every verb whose work over many images can be divided."""

    ray: str | None = option(
        "Compute by workers of Ray: the address of a cluster, or local, which starts one here for the time."
    )
    workers: int | None = option(
        "With --ray, its workers, one for each processor when left out. Else processes that decode images ahead."
    )
    deadline: float | None = option(
        "With --ray: seconds after which a worker that has not done its range stands still and is started again; 10 "
        "times the slowest so far when left out."
    )

    def _check_job(self, out: Path | None, example: str) -> None:
        """Refuse what speaks of a job where there is none."""
        if self.ray is not None and out is None:
            raise UsageError(f"--ray {self.ray} keeps parts beside a file, and none is named", f"--out {example}")
        if self.deadline is not None and self.ray is None:
            problem = f"--deadline {self.deadline:g} is for workers of Ray, and --ray is not given"
            raise UsageError(problem, f"--ray local --deadline {self.deadline:g}")
        if self.deadline is not None and not 0 < self.deadline < math.inf:
            raise UsageError(f"--deadline must be above 0 and finite, got {self.deadline}", "--deadline 600")
        _check_least("workers", self.workers, 0 if self.ray is None else 1, 1)


@dataclass(frozen=True, kw_only=True)
class InPrecision:
    """In which precision: of every verb that asks a model about many images, or many times."""

    precision: Literal["auto", "fp32", "bf16"] = option(
        "Of matrix products, from 256 images on, and of the passes that test maps: auto is bf16 where that is faster "
        "and answers alike, else fp32; chosen once, and kept in the run or the user's cache.",
        "auto",
    )


@dataclass(frozen=True, kw_only=True)
class Evaluate(Weights, InPrecision):
    """Count how often a model is right; each sample counts once.

    Example: vitrail evaluate runs/latest
    """

    run: str = positional(RUN)
    data: str = positional(
        "A named set (digits, mnist, planted:2x3 ...), folder or manifest; the run's own data when left out", ""
    )
    split: str | None = option(
        "train, validation, test, all; of a run that chose choose, calibrate; the cleanest when left out."
    )
    neighbours: int | None = option(
        "Let so many training images vote, too, by cosine of each pooling: takes a pass over the training images."
    )
    data_root: Path | None = option("Where named sets lie.")
    strict: bool = option(
        "Exit with 3 when the data has classes that the model does not know, or unreadable images.", False
    )
    device: str = option("cpu, cuda, cuda:1, mps.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    json: bool = option("Print the result as one JSON object.", False)


@dataclass(frozen=True, kw_only=True)
class Predict(Weights, Job, InPrecision):
    """Say what is on images, or write a text for each.

    Example: vitrail predict runs/latest photo.jpg
    """

    run: str = positional(RUN)
    inputs: tuple[str, ...] = positional(
        "Image files, or folders of them; a pack; texts, for a model that reads texts; or planted images, such as "
        "planted:double, whose test images are taken",
        (),
    )
    count: int | None = option("How many planted images, evenly spread; all when left out.")
    data_root: Path | None = option("Where MNIST lies, of which planted:mnist is made.")
    beam: int | None = option("Of a model that writes: search with so many hypotheses; greedy when left out.")
    sample: bool = option("Of a model that writes: draw from its probabilities instead of searching.", False)
    temperature: float | None = option("Of --sample: below 1 bolder, above 1 more varied; 1 when left out.")
    seed: int | None = option("Of --sample; 0 when left out.")
    out: Path | None = option(
        "Write one row for each input to this file, .csv or .parquet; killed at any point, the same command goes on."
    )
    device: str = option("cpu, cuda, cuda:1, mps.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    json: bool = option(
        "Print a JSON list: file, label, probability, top; or input, text, probability, ended, notes, "
        "about_probabilities.",
        False,
    )

    def __post_init__(self) -> None:
        """Refuse to predict nothing, options that speak of two searches at once, and values that no search has."""
        if not self.inputs:
            raise UsageError("no image or text given", f"vitrail predict {self.run} photo.jpg")
        self._check_job(self.out, "predictions.csv")
        if self.workers is not None and self.out is None:
            problem = f"--workers {self.workers} is for many images, whose answers go to a file, and none is named"
            raise UsageError(problem, "--out predictions.csv")
        _check_least("count", self.count, 1, 4)
        if self.sample and self.beam is not None:
            raise UsageError("--beam searches and --sample draws", "one of the two")
        for name, value in (("--temperature", self.temperature), ("--seed", self.seed)):
            if value is not None and not self.sample:
                raise UsageError(f"{name} is for drawing, and --sample is not given", f"--sample {name} {value}")
        _check_least("beam", self.beam, 1, 4)
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise UsageError(
                f"--temperature must be above 0 and finite, got {self.temperature}",
                "--temperature 0.7; or leave --sample and --temperature out for the likeliest text",
            )
        _check_least("seed", self.seed, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Embed(Weights, Job, InPrecision):
    """Write what a network says of each image before its head. Killed at any point, the same command goes on.

    Example: vitrail embed ./photos --model runs/latest --out photos.npz
    """

    data: str = positional(f"{overview(texts=False)}; a folder of images without classes, or an image")
    model: str = option(RUN, "")
    out: Path | None = option("The file of features: .npz, or .parquet with pyarrow.")
    patches: bool = option("Every patch token, too: hundreds of times as many numbers.", False)
    split: str | None = option("Only this split; all when left out.")
    strict: bool = option("Exit with 3 when an image cannot be read; else it is left out and named.", False)
    data_root: Path | None = option("Where named sets lie.")
    device: str = option("cpu, cuda, cuda:1, mps.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    json: bool = option("Print one JSON object: what was written, of which images, by which model.", False)

    def __post_init__(self) -> None:
        """Refuse features by nobody, and those that would be written nowhere."""
        if not self.model:
            raise UsageError("no model given", f"vitrail embed {self.data} --model runs/latest --out features.npz")
        if self.out is None:
            problem = f"no file given for the features of {self.data}"
            raise UsageError(problem, "--out features.npz, or features.parquet")
        self._check_job(self.out, "features.npz")


@dataclass(frozen=True, kw_only=True)
class Similar(Weights):
    """Show the images that are most like one, how near they are, and where both agree, patch to patch.

    Example: vitrail similar photo.jpg ./photos --model runs/latest
    """

    images: str = positional("An image; or a folder, a set or a file of features, of which some are asked about")
    data: str = positional("Among which to look: a named set, folder, manifest, or a file that vitrail embed wrote")
    model: str = option(RUN, "")
    count: int = option("How many neighbours.", 5)
    pooling: str | None = option("Compare class, mean or pooled; what the head reads when left out.")
    queries: int = option("How many of many images are asked about, evenly spread.", 8)
    out: Path | None = option("The page (.html); similar.html here when left out.")
    data_root: Path | None = option("Where named sets lie.")
    device: str = option("cpu, cuda, cuda:1, mps.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    json: bool = option("Print one JSON object: for each image its neighbours, distances, and what agrees.", False)

    def __post_init__(self) -> None:
        """Refuse neighbours by nobody, and none."""
        if not self.model:
            raise UsageError("no model given", f"vitrail similar {self.images} {self.data} --model runs/latest")
        _check_least("count", self.count, 1, 5)
        _check_least("queries", self.queries, 1, 5)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Make data ready: pack writes its images into tar shards that webdataset reads, with an index for every verb.

    Example: vitrail data pack ./photos --out packed
    """

    action: str = positional("pack")
    data: str = positional("A named set, folder or manifest of images")
    out: Path | None = option("The folder for the shards. A command that was killed goes on there.")
    size: int | None = option("Scale images down whose shorter side is longer; others, or all, keep their bytes.")
    quality: int | None = option("Of JPEG, with --size: 1 to 100; 90 when left out.")
    shard_size: int | None = option("Megabytes of a shard; 128 when left out.")
    data_root: Path | None = option("Where named sets lie.")
    json: bool = option("Print one JSON object: what was written, and what was left out.", False)

    def __post_init__(self) -> None:
        """Refuse another action, and shards that go nowhere."""
        if self.action != "pack":
            problem = f"vitrail data has no action '{self.action}', it has pack"
            raise UsageError(problem, f"vitrail data pack {self.data} --out packed")
        if self.out is None:
            raise UsageError("no folder given for the shards", "--out packed")
        if self.quality is not None and self.size is None:
            raise UsageError("--quality is for images that are scaled, and --size is not given", "--size 256")


def methods() -> str:
    """What stands below the options of `vitrail explain`: all methods, as the files say that they are made of."""
    from vitrail.explain.methods.method import listed  # for this text alone

    lines = "\n".join(each.lines() for each in listed())
    return f"\nmethods, with what their options are when left out:\n{lines}\n"


@dataclass(frozen=True, kw_only=True)
class Explain(Weights, Job, InPrecision):
    """Show where on an image a prediction comes from.

    Example: vitrail explain runs/latest photo.jpg
    """

    run: str = positional(RUN)
    images: tuple[str, ...] = positional(
        "Image files or folders of them; or one named set, manifest or the run's own data, whose test images (or "
        "validation images, where there is no test) are taken. Planted images, whose evidence is known, may show "
        "no digit or two: planted:empty, planted:double, planted:mnist,double,2x3",
        (),
    )
    method: str | None = option(
        "How to explain, by a name of the list below, generic_attention when left out; a model that writes has "
        "cross_attention. Or a method of your own: MODULE:NAME, of a module that can be imported."
    )
    compare: bool = option("Several methods side by side, on one colour scale.", False)
    methods: str | None = option(
        "Which ones --compare shows, with commas between; all but those that take long when left out."
    )
    target: str | None = option("The class to explain, by name; each image's top class when left out.")
    similar_to: Path | None = option(
        "What makes an image like this one, by what the head reads; without classes --target N is one number."
    )
    contrast: str | None = option("The class that it is held against: why this one rather than that one.")
    no_trust: bool = option(
        "Only the maps, without the test on the model that says how far to trust each; far quicker.", False
    )
    full: bool = option("Test the maps of images without evidence, too; no verdict changes by it.", False)
    background: Path | None = option(
        "Images whose patches fill the masked ones in that test: a folder of them, or another run; the model's own "
        "when left out."
    )
    masks: Path | None = option(
        "A folder with a PNG for each image, of the same name, not black where the evidence lies."
    )
    count: int | None = option(
        "How many images of a set or folder, evenly spread over it; 8 when left out, and all with --out maps.jsonl."
    )
    out: Path | None = option(
        "The page (.html), or a folder for it; explanation.html here when left out. Of many images .jsonl, a line for "
        "each; killed at any point, the same command goes on. Images go into a folder of the same name beside it."
    )
    data_root: Path | None = option("Where named sets lie.")
    device: str = option("cpu, cuda, cuda:1, mps.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    json: bool = option("Print a JSON list with the values of every map.", False)
    option: tuple[str, ...] = several(  # the last one: from here on the word means this field
        "NAME=VALUE", "An option of the method, which the list below names; may be typed several times."
    )

    def __post_init__(self) -> None:
        """Refuse to explain nothing."""
        if not self.images:
            raise UsageError("no image given", f"vitrail explain {self.run} photo.jpg")
        lines = self.out if self.out is not None and self.out.suffix.lower() == ".jsonl" else None
        self._check_job(lines, "maps.jsonl")
        if self.workers is not None and self.ray is None:
            problem = f"--workers {self.workers} is for workers of Ray, and --ray is not given"
            raise UsageError(problem, f"--ray local --workers {self.workers}")
        _check_least("count", self.count, 1, 4)


@dataclass(frozen=True, kw_only=True)
class Models(Weights):
    """Sizes, parameters and FLOPs (2 per multiply-add, one image, forward); and what other people's weights are.

    Example: vitrail models S/16
    """

    size: str = positional(
        "A size such as S/16; a run or model folder, or other people's weights; all sizes when left out", ""
    )
    image_size: str | None = option("Side of the images in pixels, or HEIGHTxWIDTH; for a size 224 when left out.")
    channels: int | None = option("Channels of the images; for a size 3 when left out.")
    classes: int | None = option("Number of classes of a size; 1000 when left out.")
    json: bool = option("Print one JSON value.", False)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The same network by every library that is here, each in a process of its own, in turn, equal answers first.

    Example: vitrail bench --quick
    """

    size: str | None = positional("A size such as S/16; B/16 when left out, S/16 with --quick", None)
    quick: bool = option("S/16, inference as each library documents it, 3 rounds: some minutes on two cores.", False)
    tuned: bool = option("Inference in bf16, too: by autocast, and with weights in bf16.", False)
    train: bool = option("A step of training, too: fp32 as documented, and bf16 autocast.", False)
    peers: str | None = option("Only these libraries, with commas between: timm,torchvision,transformers,vit-pytorch.")
    rounds: int | None = option("Turns of each; 5 when left out, 3 with --quick.")
    batch_size: int = option("Images at a time.", 8)
    image_size: int = option("Side of the images in pixels.", 224)
    device: str = option("cpu or cuda.", "cpu")
    json: bool = option("Print one JSON object.", False)


@dataclass(frozen=True, kw_only=True)
class Doctor(Weights):
    """Versions, devices, and whether everything works here."""

    model: str | None = option(
        "A run or model folder, or other people's weights, whose explanations are checked: sums that must close, maps "
        "that must move with the image, weights and classes that must matter, and every method once more by hand."
    )
    json: bool = option("Print one JSON object.", False)

    def __post_init__(self) -> None:
        """Refuse assumptions about weights that are not named."""
        given = [one.name for one in fields(Weights) if getattr(self, one.name) is not None]
        if given and self.model is None:
            problem = f"--{given[0].replace('_', '-')} is said of a model, and none is named"
            raise UsageError(problem, "--model with a run, a folder or a file of weights")
