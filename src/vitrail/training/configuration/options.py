"""The options of a training run; the recipe decides what they leave open. Imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Precision = Literal["auto", "fp32", "bf16"]
Keep = Literal["auto", "best", "tuned", "probe"]
Compile = Literal["auto", "on", "off"]
# tests/cli/test_flags.py compares the names in help texts with their tables, which are not imported here
RECIPE = (
    "Named training settings: digits, mnist, planted, d0-mnist, mnist-m, d2-lab, d4-mnist-m, small-images, "
    "few-photos, photos, many-photos, fine-tune; auto chooses by data set and image size, and prints the reason."
)


def option(help: str, default: Any = None) -> Any:
    """A field with a line of help, of which the command line makes an option."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training run; None, or "auto", leaves a choice to the configuration file, then to the recipe."""

    task: str = option(
        "The task: classify (a column label) or sequences (a column text); auto takes what the columns allow.",
        "auto",
    )
    recipe: str = option(f"{RECIPE} For sequences: sort-digits, mnist-strings, texts, image-texts.", "auto")
    size: str | None = option("Network size and patch size in pixels, such as S/16 (Ti S B L H g).")
    image_size: int | None = option("Side of the square that images are resized to, in pixels.")
    init: str | None = option(
        "Pretrained weights to start from: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file, or a run; auto "
        "takes, among those in the local caches of the hubs, the weights whose features separate the training "
        "classes best. A linear probe is evaluated and printed first; the recipe is fine-tune."
    )
    probe: bool = option("With --init: train only the head, on features that are computed once.", False)
    lora: int | None = option(
        "With --init: train only the head and LoRA adapters of this rank, such as 8, in attention; all else is "
        "frozen. Saves memory. The adapters are merged into the saved model, and also saved beside it."
    )
    epochs: int | None = option(
        "Number of passes over the training samples; with --resume auto a larger number continues a finished run."
    )
    max_time: str | None = option(
        "Time limit of the whole run, such as 90s, 10m or 1h30m: if not all steps fit, the run makes fewer, with "
        "a learning rate schedule that ends with them. Their number is fixed after 20 steps; if the machine "
        "becomes slower later, the run makes fewer still."
    )
    patience: int | None = option(
        "Stop after this many epochs without improvement on the validation samples of the half choose, and "
        "keep the best network."
    )
    keep: Keep = option(
        "Which network becomes the model: best (of all epochs; with --init also of the probe), tuned (the "
        "last; with --patience the best) or probe; auto is best with --init or --patience, else tuned.",
        "auto",
    )
    batch_size: int | None = option("Samples per optimizer step.")
    lr: float | None = option("Peak learning rate.")
    weight_decay: float | None = option("Weight decay of matrices (biases, norms, tokens and positions have none).")
    accumulate: int | None = option(
        "Number of micro-batches per batch, to save memory; the result is that of the whole batch."
    )
    seed: int | None = option(
        "Seed of initial weights, order, augmentation and dropout; default: 0. The same bits also need the same "
        "threads, precision and accumulate, which the run stores."
    )
    split_seed: int | None = option(
        "Seed of the choice of held-out images, where the data have no split of their own; default: 0."
    )
    device: str = option("cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one.", "auto")
    threads: int | None = option("Number of CPU threads; default: chosen by the size of the work.")
    precision: Precision = option(
        "auto times bf16 and fp32 once, where bf16 can be faster, and uses the faster one.", "auto"
    )
    shard: bool = option(
        "With --devices or torchrun: divide parameters, gradients and optimizer state among the processes "
        "(fully_shard), for a network that is too large for one process; the result is that of one process, up to "
        "rounding.",
        False,
    )
    compile: Compile = option(
        "Whether to use torch.compile; auto uses it on CUDA, for runs that are long enough to gain from it.", "auto"
    )
    workers: int | None = option(
        "Number of processes that decode image files (threads, if the data set fits in memory)."
    )
    background: bool = option(
        "Save no background: no shuffled patches of training images, which a classifier otherwise contains for "
        "tests of its explanations.",
        True,
    )
    data_root: Path | None = option("Folder of the named data sets; default: $VITRAIL_DATA, else a cache folder.")
    config: Path | None = option(
        "The config.yaml of an earlier run, or part of one. It overrides the recipe; command-line options override it."
    )
    verdicts: int | None = option(
        "Number of held-out images that are explained and tested at the end (with --init by the probe and by the "
        "tuned network); default: 24 with --init if that is quick, else none."
    )
    resume: Literal["auto", "never", "anyway"] = option(
        "auto starts the run or continues it, with the same bits as an uninterrupted run; anyway continues even "
        "with other library versions, which may change the last bits; never refuses an existing folder.",
        "never",
    )


@dataclass(frozen=True, kw_only=True)
class DistillOptions(TrainOptions):
    """Options of a distillation; those of the student's training are inherited."""

    recipe: str = option(RECIPE, "auto")
    kind: Literal["auto", "soft", "hard"] = option(
        "soft: learn the teacher's probabilities; hard: learn its top class; auto is soft.", "auto"
    )
    temperature: float | None = option(
        "For soft distillation: the logits of teacher and student are divided by this number; default: 3."
    )
    weight: float | None = option(
        "Weight of the teacher's term in the loss, 0 to 1 (the term of the labels has the rest); default: 0.5."
    )
    token: Literal["auto", "yes", "no"] = option(
        "Whether the student has a distillation token with a head of its own (DeiT); auto: yes, if it has a class "
        "token. Without it, the class head learns from both labels and teacher.",
        "auto",
    )
    cache: Literal["auto", "on", "off"] = option(
        "Whether to compute the teacher's predictions once per image and reuse them; auto does so if images are "
        "not augmented. Otherwise the teacher sees each augmented image, like the student.",
        "auto",
    )
    fit_head: Literal["auto", "always", "never"] = option(
        "Whether to fit a new head on the teacher's frozen features; auto does so if a network of another library "
        "lacks a class, or if a teacher has no head.",
        "auto",
    )
    teacher_weights: str | None = option(
        "For a torchvision or timm teacher: pretrained (the default), random, or a file with its state dict."
    )
    teacher_size: int | None = option(
        "Side of the teacher's images in pixels; default: the teacher's own. They are the student's images, "
        "resized, so enlarging them adds no detail; --image-size makes the images of both larger."
    )
