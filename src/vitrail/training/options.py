"""What a person may ask of a training; whatever is left open is decided by the recipe. Imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Precision = Literal["auto", "fp32", "bf16"]
Keep = Literal["auto", "best", "tuned", "probe"]
Compile = Literal["auto", "on", "off"]
# the lists of names in help texts are held against their tables by tests/cli/test_flags.py, since nothing is imported
RECIPE = (
    "A named set of training choices: digits, mnist, planted, d0-mnist, mnist-m, d2-lab, d4-mnist-m, small-images, "
    "few-photos, photos, many-photos, fine-tune; auto picks by set and image size and says why."
)


def option(help: str, default: Any = None) -> Any:
    """A field with a line of help, of which the command line makes an option."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `vitrail train`; None leaves the choice to the recipe."""

    task: str = option(
        "What is learnt: classify (a column label) or sequences (a column text); auto takes what the columns allow.",
        "auto",
    )
    recipe: str = option(f"{RECIPE} For sequences: sort-digits, mnist-strings, texts, image-texts.", "auto")
    size: str | None = option("Network size with its patch in pixels, such as S/16 (Ti S B L H g).")
    image_size: int | None = option("Side of the square that images are brought to, in pixels.")
    init: str | None = option(
        "Pretrained weights to start from: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file, or a run; auto "
        "takes, of those in the hubs' caches, the ones whose features separate the training classes best. A "
        "linear probe is measured and printed first; the recipe is fine-tune."
    )
    probe: bool = option("With --init: train the head alone, on features that are computed once.", False)
    lora: int | None = option(
        "With --init: train LoRA adapters of this rank, such as 8, in the attention, and the head; the rest "
        "is frozen. Saves memory. They are merged into the model that is saved, and also saved beside it."
    )
    epochs: int | None = option("Passes over the training samples; a run that is finished goes on to more of them.")
    max_time: str | None = option(
        "Time that the whole run may take, such as 90s, 10m or 1h30m: if the steps do not fit, there are "
        "fewer, and the schedule ends with them. How many is fixed after 20 steps; if something slows these "
        "down later, the run ends earlier."
    )
    patience: int | None = option(
        "Stop after so many epochs without a better result on the validation samples that choose, and keep the best."
    )
    keep: Keep = option(
        "Which network becomes the model: best (of all epochs; with --init also of the probe), tuned (the "
        "last; with --patience the best) or probe; auto is best with --init or --patience, else tuned.",
        "auto",
    )
    batch_size: int | None = option("Samples per optimizer step.")
    lr: float | None = option("Highest learning rate.")
    weight_decay: float | None = option("Weight decay on matrices (never on biases, norms, tokens, positions).")
    accumulate: int | None = option(
        "Micro-batches that a batch is divided into, to save memory; the result is that of the whole batch."
    )
    seed: int | None = option(
        "Decides initial weights, order, augmentation and dropout; 0 when left out. The same bits also need the same "
        "threads, precision and accumulate, which the run stores."
    )
    split_seed: int | None = option(
        "Decides which images are held out where the data has no split of its own; 0 when left out."
    )
    device: str = option("cpu, cuda, cuda:1, mps; auto takes an accelerator when there is one.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    precision: Precision = option("auto times bf16 against fp32 where it can pay, once, and keeps the faster.", "auto")
    shard: bool = option(
        "With --devices or torchrun: divide parameters, gradients and optimizer state among the processes "
        "(fully_shard), for a network that is too large for one; the result is that of one process, up to "
        "rounding.",
        False,
    )
    compile: Compile = option("torch.compile; auto uses it on CUDA for runs long enough to earn it back.", "auto")
    workers: int | None = option("Processes that decode image files (threads, where the set fits in memory).")
    background: bool = option(
        "Leave out the patches of training images, shuffled by position, that a model of classes otherwise "
        "carries to test its explanations with.",
        True,
    )
    data_root: Path | None = option("Where named sets lie (else $VITRAIL_DATA, else a cache folder).")
    config: Path | None = option(
        "A config.yaml of a former run, or part of one. Options typed here override it, and it overrides the recipe."
    )
    verdicts: int | None = option(
        "How many held-out images are explained and tested at the end, with --init by the probe and by the "
        "tuned network; when left out 24 with --init if that is quick, else none."
    )
    resume: Literal["auto", "never", "anyway"] = option(
        "auto starts the run, or goes on with it to the same bits; anyway does so even if another version of "
        "torch or the like may change them; never refuses a folder that exists.",
        "never",
    )


@dataclass(frozen=True, kw_only=True)
class DistillOptions(TrainOptions):
    """Options of `vitrail distill`; None leaves the choice to the configuration file, then to the default."""

    recipe: str = option(RECIPE, "auto")
    kind: Literal["auto", "soft", "hard"] = option(
        "soft learns the teacher's probabilities, hard its top class; auto is soft.", "auto"
    )
    temperature: float | None = option("Of soft distillation: both logits are divided by it; 3 when left out.")
    weight: float | None = option(
        "Weight of the teacher's term in the loss, 0 to 1; the labels have the rest; 0.5 when left out."
    )
    token: Literal["auto", "yes", "no"] = option(
        "A distillation token with a head of its own (DeiT); auto takes one where the student has a class token. "
        "Without one, the class head learns from both.",
        "auto",
    )
    cache: Literal["auto", "on", "off"] = option(
        "Compute the teacher once for each image and keep its predictions; auto does so if nothing is "
        "augmented. Otherwise it sees each augmented image, as the student does.",
        "auto",
    )
    fit_head: Literal["auto", "always", "never"] = option(
        "Fit a new head for the teacher on its frozen features; auto does so if a network of another library "
        "lacks a class, or a teacher has no head.",
        "auto",
    )
    teacher_weights: str | None = option(
        "Of a torchvision or timm teacher: pretrained (the default), random, or a file with its state dict."
    )
    teacher_size: int | None = option(
        "Side in pixels of the teacher's images; its own when left out. They are the student's images, "
        "resized: if those are smaller, the teacher sees no more detail; --image-size enlarges both."
    )
