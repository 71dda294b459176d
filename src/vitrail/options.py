"""The options of a training run, in Python and on the command line; the recipe decides what they leave open.

They stand in groups: `TITLE` heads a group in help texts, and its docstring states what each option does. An option
decides the setting of its name, in whichever section that stands, but for a few (`runs.settings`).

Nothing here imports torch, so that a help text and a misspelt option are answered at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from vitrail.arguments import check_types, in_python, typed
from vitrail.errors import Hint, UsageError

PER_CHANNEL, SIDES = "X[,X,X]", "N|HEIGHTxWIDTH"
Keep = Literal["auto", "best", "tuned", "probe"]
Engine = Literal["ray", "docker", "k8s", "triton"]  # that can serve a model in place of our own server
# tests/cli/test_flags.py compares these names and those in help texts with their tables, which are not imported here
LEARNT = "classify", "multilabel", "attributes", "regression", "sequences"  # the tasks
RECIPE = (
    "Named training settings: digits, mnist, planted, d0-mnist, mnist-m, d2-lab, d4-mnist-m, small-images, "
    "few-photos, photos, many-photos, fine-tune; auto chooses by data set and image size, and prints the reason; "
    "d0-, d2- and d4- are those of the lessons."
)

DURATION = "".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in ("d", "h", "m(?:in)?", "s"))
UNITS = (86400.0, 3600.0, 60.0, 1.0)

# Where an option has no effect, and why.
_FIXED = {"fixed": "is for one class or value for each image; this network has the size of its recipe"}
_OF_IMAGES = {"texts": "is for images"}
_PASSED = "is for a network that vitrail builds, but a network was passed"
_PROBE = "has no effect with --probe, which trains only the head"
_PROBED = {"probe": _PROBE}
_UNSURE = {"unsure": "is for probabilities, which {task} does not have: a student learns the teacher's numbers"}
_SCRATCH = {"scratch": "is for pretrained weights, and --init is missing"}


def option(
    default: Any = None,
    *,
    help: str = "",
    switch: tuple[str, str] | None = None,
    metavar: str = "",
    idle: Mapping[str, str] | None = None,
    needs: str = "",
    apart: str = "",
    unless: str = "",
    least: int | float | None = None,
    above: int | float | None = None,
    most: int | float | None = None,
    below: int | float | None = None,
    example: Any = "",
) -> Any:
    """A field of which the command line makes an option, and what is to be known of it.

    Args:
        default: Decides nothing.
        help: What it does, where the docstring of the class does not state it.
        switch: Its words for False and True, if the setting that it decides is one of these.
        metavar: What stands for its value in a help text; by its type when empty.
        idle: Where it has no effect: facts of a run (`training.configuration.refusals`), and why, in which other facts
            may stand by their names.
        needs: Another option, or one of several, without which it has no effect, on the command line.
        apart: Options that cannot stand beside it there.
        unless: It is required there, but for options of these names, or some that have a value (NAME=VALUE).
        least: The smallest number that it takes; or that which it takes no more, as `above`.
        above: See `least`.
        most: The largest number that it takes; or that which it takes no more, as `below`.
        below: See `most`.
        example: What a hint types, instead of the usual word of `vitrail.cli.parse.EXAMPLES`.
    """
    shown = {"help": help, "metavar": metavar, "example": example, "switch": switch}
    rules = {"needs": needs, "apart": apart, "unless": unless, "idle": idle or {}}
    return field(
        default=default, metadata={**shown, **rules, "least": least, "above": above, "most": most, "below": below}
    )


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Where a network is computed; of most verbs.

    Attributes:
        device: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one.
        threads: Number of CPU threads; default: chosen by the size of the work.
        data_root: Folder of the named data sets; default: $VITRAIL_DATA, else a cache folder.
    """

    TITLE: ClassVar[str] = "device, data and precision"

    device: str = "auto"
    threads: int | None = option(least=1, example=1)
    data_root: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a server listens and answers.

    Attributes:
        host: Address that it listens on; 0.0.0.0 for other machines.
        port: Port; 0 for a free one.
        workers: Processes that answer, each one request at a time; default: one per CPU core, or one on an accelerator.
        explainers: Processes that explain; 0 for none.
        queue: Requests that wait at most; default: 2 for each process, at least 4.
        timeout: Seconds for an answer, and ten times as many for an explanation; then its process is restarted.
        features: A file of features, written by vitrail embed, in which /similar searches.
        watch: Load the models anew when their files change.
        device: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one.
        threads: Number of CPU threads of each process.
    """

    TITLE: ClassVar[str] = "the server"

    host: str = "127.0.0.1"
    port: int = option(8000, least=0, most=65535, example=8000)
    workers: int | None = option(least=1, example=2)
    explainers: int = option(1, least=0, example=1)
    queue: int | None = option(least=1, example=8)
    timeout: float = option(30.0, above=0, example=30)
    features: Path | None = option(example="features.npz")
    watch: bool = False
    device: str = "auto"
    threads: int = option(1, least=1, example=1)


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """The columns of a list or table; see `vitrail.data.layout.Layout`.

    Attributes:
        path_column: Of a list or table: the column of the images.
        label_column: The column of what is learnt; or several, with commas between: of 0 and 1, numbers, or classes.
        split_column: The column of the splits.
    """

    TITLE: ClassVar[str] = "columns and groups; default: found by what the data hold"

    path_column: str | None = option(metavar="NAME")
    label_column: str | None = option(metavar="NAME,...")
    split_column: str | None = option(metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(ColumnOptions):
    """How data are read; see `vitrail.data.layout.Layout`.

    Attributes:
        group_column: The column of the groups: images of one recording, patient or scene, which never stand on both
            sides of a split that is made here.
        group_pattern: The group of an image by its name: what stands in the brackets of this regular expression, such
            as '(.+)_[0-9]+'.
    """

    TITLE: ClassVar[str] = "columns and groups; default: found by what the data hold"

    group_column: str | None = option(metavar="NAME")
    group_pattern: str | None = option(metavar="REGEX")


@dataclass(frozen=True, kw_only=True)
class DataOptions(LayoutOptions):
    """What is learnt, from which data, and by which recipe.

    Attributes:
        task: The task: classify (a column label), multilabel (a column labels), attributes (a column attributes),
            regression (a column number) or sequences (a column text); auto takes what the columns allow.
        split_seed: Seed of the choice of held-out images, where the data have no split of their own; default: 0.
        fractions: How data without splits are divided: 80/10/10 for training, validation and test, or 90/10 without
            test; default: a tenth is held out for validation.
        calibration: Calibrate nothing: probabilities are those of the logits as they are, and no validation images are
            set apart for a temperature, sets of classes and intervals of numbers.
        bits: How many of their bits 16-bit images use: 8, 10, 12, 14 or 16; default: measured on some of the images.
        unreadable: Fraction of the images that may be unreadable before the run ends with an error; default: 0.01, and
            one image in any case.
    """

    TITLE: ClassVar[str] = "task, recipe and data"

    task: str = option("auto", metavar="NAME")
    recipe: str = option(
        "auto", help=f"{RECIPE} For sequences: sort-digits, mnist-strings, texts, image-texts.", metavar="NAME"
    )
    split_seed: int | None = option(
        most=2**63 - 1, example=0, idle={"split": "is for data without splits, but {data} has splits"}
    )
    fractions: str | None = option(metavar="80/10/10")
    calibration: bool = option(True, idle={"writes": "is for classes, labels and numbers, not for the task {task}"})
    bits: int | None = option(idle=_OF_IMAGES)
    unreadable: float | None = option(least=0, below=1, example=0.01, idle=_OF_IMAGES)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Size of a new network.

    Attributes:
        size: Network size and patch size in pixels, such as S/16 (Ti S B L H g).
        image_size: Size that images are resized to, in pixels.
        resize: How images of other proportions get that size: crop scales them to cover it and keeps the centre, squash
            stretches them, pad fits them in; default: crop, or that of --init.
    """

    TITLE: ClassVar[str] = "network"

    size: str | None = option(
        idle={"network": _PASSED, "init": "is for a new network, but --init {init} has its own size", **_FIXED}
    )
    image_size: int | tuple[int, int] | None = option(least=1, metavar=SIDES, idle={"other_size": _PASSED, **_FIXED})
    resize: Literal["crop", "squash", "pad"] | None = option(idle=_OF_IMAGES)


@dataclass(frozen=True, kw_only=True)
class InitialOptions:
    """Pretrained weights, and how much of them is trained.

    Attributes:
        init: Pretrained weights to start from: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file, or a run; auto
            takes, among those in the local caches of the hubs, the weights whose features separate the training classes
            best. A linear probe is evaluated and printed first; the recipe is fine-tune.
        probe: With --init: train only the head, on features that are computed once.
        lora: With --init: train only the head and LoRA adapters of this rank, such as 8, in attention; all else is
            frozen. Saves memory. The adapters are merged into the saved model, and also saved beside it.
    """

    TITLE: ClassVar[str] = "pretrained weights to start from"

    init: str | None = option(
        metavar="WEIGHTS",
        idle={
            "fixed": "is for a ViT with one answer per image, which the task {task} does not have",
            "parts": "has a network with its own parts, but other parts were passed",
            "student": "is not for a student, which starts from random weights",
        },
    )
    probe: bool = option(False, idle=_SCRATCH)
    lora: int | None = option(least=1, example=8, idle={**_SCRATCH, **_PROBED})


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions:
    """How the weights move, and for how long.

    Attributes:
        epochs: Number of passes over the training samples; with --resume auto a larger number continues a finished run.
        max_time: Time limit of the whole run, such as 90s, 10m or 1h30m: if not all steps fit, the run makes fewer,
            with a learning rate schedule that ends with them. Their number is fixed after 20 steps; if the machine
            becomes slower later, the run makes fewer still.
        patience: Stop after this many epochs without improvement on the validation samples of the part select, and keep
            the best network.
        batch_size: Samples per optimizer step.
        lr: Peak learning rate.
        weight_decay: Weight decay of matrices (biases, norms, tokens and positions have none).
        accumulate: Number of micro-batches per batch, to save memory; the result is that of the whole batch.
    """

    TITLE: ClassVar[str] = "optimization"

    epochs: int | None = option(least=1, example=20, idle=_PROBED)
    max_time: str | None = option(metavar="DURATION", example="10m")
    patience: int | None = option(least=1, example=3, idle=_PROBED)
    batch_size: int | None = option(least=1, example=128)
    lr: float | None = option(least=0, example=0.001, idle=_PROBED)
    weight_decay: float | None = option(least=0, example=0.05)
    accumulate: int | None = option(least=1, example=2)


@dataclass(frozen=True, kw_only=True)
class RareOptions:
    """What is done for rare classes: of the training loss or its samples alone, not of what is reported or chosen by.

    Attributes:
        class_weights: Weights in the training loss: auto for the inverse of each class's frequency, or a file with a
            weight for each class (.csv with lines class,weight; .json; .yaml), scaled to mean 1 over the training
            samples. Of several labels an image: how much more one with the label weighs than one without.
        balance: Draw every class equally often in an epoch of the same length; within a class the groups take turns.
            This is sampling: no sample weighs more than another in the loss.
        logit_adjustment: Add this times the logarithm of each class's frequency to its logit in the training loss
            (Menon et al., 2021), such as 1; predictions use the logits without it.
        asymmetric: Of several labels an image: the asymmetric loss (Ridnik et al., 2021) in place of the cross-entropy,
            by GAMMA- and GAMMA+, which focus on absent and present labels, and CLIP, such as 4,0,0.05.
    """

    TITLE: ClassVar[str] = "rare classes"

    class_weights: str | None = option(metavar="auto|FILE")
    balance: bool = False
    logit_adjustment: float | None = option(metavar="TAU", least=0, example=1)
    asymmetric: str | None = option(metavar="GAMMA-,GAMMA+,CLIP", idle=_PROBED, example="4,0,0.05")


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions(Computing):
    """Device and speed.

    Attributes:
        precision: auto times bf16 and fp32 once, where bf16 can be faster, and uses the faster one.
        compile: Whether to use torch.compile; auto uses it on CUDA, for runs that are long enough to gain from it.
        shard: With --devices or torchrun: divide parameters, gradients and optimizer state among the processes
            (fully_shard), for a network that is too large for one process; the result is that of one process, up to
            rounding.
        workers: Number of processes that decode image files (threads, if the data set fits in memory).
    """

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "on", "off"] = option("auto", switch=("off", "on"))
    shard: bool = False
    workers: int | None = option(least=0, example=2, idle={"read_once": "is for image files, and {data} has none"})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The run as a whole.

    Attributes:
        config: The config.yaml of an earlier run, or part of one. It overrides the recipe; command-line options
            override it.
        seed: Seed of initial weights, order, augmentation and dropout; default: 0. The same bits also need the same
            threads, precision and accumulate, which the run stores.
        keep: Which network becomes the model: best (of all epochs; with --init also of the probe), tuned (the last;
            with --patience the best) or probe; auto is best with --init or --patience, else tuned.
        background: Save no background: no shuffled patches of training images, which a model otherwise contains for
            tests of its explanations, nor what it sees of some, by which predict names images that are unlike them.
        verdicts: Number of held-out images that are explained and tested at the end (with --init by the probe and by
            the tuned network); default: 24 with --init if that is quick, else none.
        resume: auto starts the run or continues it, with the same bits as an uninterrupted run; anyway continues even
            with other library versions, which may change the last bits; never refuses an existing folder.
        check: Do not look at image files for leaks, copies and contradicting labels before a new run, which takes 5 s
            at most (see vitrail data check).
    """

    TITLE: ClassVar[str] = "run"

    config: Path | None = None
    seed: int | None = option(most=2**63 - 1, example=0)
    keep: Keep = option("auto", idle={"no_probe": _SCRATCH["scratch"], **_PROBED})
    background: bool = option(True, idle={"unexplained": "is for explanations, and the task {task} has none"})
    verdicts: int | None = option(
        least=0,
        example=24,
        idle={"bare": "needs a background, which this run of the task {task} does not have", "untuned": _PROBE},
    )
    resume: Literal["auto", "never", "anyway"] = option("never", needs="out")
    check: bool = option(True, idle=_OF_IMAGES)


@typed
@dataclass(frozen=True, kw_only=True)
class TrainOptions(
    RunOptions, ExecutionOptions, RareOptions, OptimizationOptions, InitialOptions, NetworkOptions, DataOptions
):
    """Options of a training run; None, or "auto", leaves a choice to the configuration file, then to the recipe."""

    def __post_init__(self) -> None:
        """Refuse a value of a wrong type; what it may be beyond that is decided with the data."""
        check_types(self)

    __repr__ = in_python


@typed
@dataclass(frozen=True, kw_only=True, repr=False)
class DistillOptions(TrainOptions):
    """Options of a distillation; those of the student's training are inherited.

    Attributes:
        distillation: soft: learn the teacher's probabilities; hard: learn its top class; auto is soft.
        temperature: For soft distillation: the logits of teacher and student are divided by this number; default: 3.
        alpha: Weight of the teacher's term in the loss, 0 to 1 (the term of the labels has the rest); default: 0.5.
        distillation_token: Whether the student has a distillation token with a head of its own (DeiT); auto: yes, if it
            has a class token. Without it, the class head learns from both labels and teacher.
        cache: Whether to compute the teacher's predictions once per image and reuse them; auto does so if images are
            not augmented. Otherwise the teacher sees each augmented image, like the student.
        fit_head: Whether to fit a new head on the teacher's frozen features; auto does so if a network of another
            library lacks a class, or if a teacher has no head.
        teacher_weights: For a torchvision or timm teacher: pretrained (the default), random, or a file with its state
            dict.
        teacher_size: Side of the teacher's images in pixels; default: the teacher's own. They are the student's images,
            resized, so enlarging them adds no detail; --image-size makes the images of both larger.
    """

    TITLE: ClassVar[str] = "distillation"

    recipe: str = option("auto", help=RECIPE, metavar="NAME")
    distillation: Literal["auto", "soft", "hard"] = option("auto", idle=_UNSURE)
    temperature: float | None = option(
        above=0,
        example=3,
        idle={"hard": "is for soft distillation; hard distillation uses only the teacher's top class", **_UNSURE},
    )
    alpha: float | None = option(least=0, most=1, example=0.5)
    distillation_token: Literal["auto", "yes", "no"] = option("auto", switch=("no", "yes"))
    cache: Literal["auto", "on", "off"] = option("auto", switch=("off", "on"))
    fit_head: Literal["auto", "always", "never"] = option("auto", switch=("never", "always"))
    teacher_weights: str | None = option(
        metavar="pretrained|random|FILE",
        idle={"brings": "is for torchvision and timm teachers, but {brings} has its own weights"},
    )
    teacher_size: int | None = option(least=0)


def parse_seconds(text: str) -> float:
    """Seconds of a duration: 90, 90s, 10m, 1h30m.

    Raises:
        UsageError: It is no duration, or not above 0.
    """
    word = text.replace(" ", "").lower()
    found = re.fullmatch(DURATION, f"{word}s" if word[-1:].isdigit() and not re.search("[a-z]", word) else word)
    seconds = sum(float(number or 0) * unit for number, unit in zip(found.groups(), UNITS, strict=True)) if found else 0
    if seconds <= 0:
        raise UsageError(f"--max-time must be a duration above 0, got {text!r}", Hint({"max_time": "10m"}))
    return seconds


def switch_of(name: str) -> tuple[str, str] | None:
    """The words of an option for a setting that is False or True; None for other options."""
    return next((each.metadata.get("switch") for each in fields(DistillOptions) if each.name == name), None)
