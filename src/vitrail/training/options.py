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
    recipe: str = option(
        f"{RECIPE} For sequences: sort-digits, mnist-strings, texts, image-texts.",
        "auto",
    )
    size: str | None = option("Network size with its patch in pixels, such as S/16 (Ti S B L H g).")
    image_size: int | None = option("Side of the square that images are brought to, in pixels.")
    init: str | None = option(
        "Weights to start from instead of nothing: timm:NAME, hf:OWNER/NAME, torchvision:NAME, a file, or a run; auto "
        "takes those of the hubs' caches whose features tell the training images apart best. What they are worth is "
        "said first; the recipe is fine-tune."
    )
    probe: bool = option("With --init: train the head alone, on features that are computed once.", False)
    lora: int | None = option(
        "With --init: train adapters of this rank in the attention, such as 8, and the head; all else is frozen. Less "
        "memory; the model that is saved is a plain one, the adapter lies beside it."
    )
    epochs: int | None = option("Passes over the training samples; a run that is finished goes on to more of them.")
    max_time: str | None = option(
        "Time that the whole run may take, such as 90s, 10m or 1h30m: fewer steps, where they do not fit, with a "
        "schedule that ends with them. How many is fixed after 20 steps; when something else slows them down, it ends "
        "earlier."
    )
    patience: int | None = option(
        "End when so many epochs have done no better on the validation samples that choose, and keep the best."
    )
    keep: Keep = option(
        "What becomes the model: best (of the networks behind the epochs; with --init or that of the probe), tuned "
        "(the network at the end; with --patience the best) or probe; auto is best with --init or --patience, else "
        "tuned.",
        "auto",
    )
    batch_size: int | None = option("Samples per optimizer step.")
    lr: float | None = option("Highest learning rate.")
    weight_decay: float | None = option("Weight decay on matrices (never on biases, norms, tokens, positions).")
    accumulate: int | None = option(
        "Parts that a batch is computed in, for less memory; the result is that of the whole batch."
    )
    seed: int | None = option(
        "Decides initial weights, order, augmentation and dropout; 0 when left out. The same bits also need the same "
        "threads, precision and accumulate, which the run stores."
    )
    split_seed: int | None = option(
        "Decides which images are held out where the data brings no split; 0 when left out."
    )
    device: str = option("cpu, cuda, cuda:1, mps; auto takes an accelerator when there is one.", "auto")
    threads: int | None = option("Processor threads; chosen by the size of the work when left out.")
    precision: Precision = option("auto times bf16 against fp32 where it can pay, once, and keeps the faster.", "auto")
    shard: bool = option(
        "With --devices or torchrun: divide the network, its gradients and moments among the processes (fully_shard), "
        "for one that is too large for each; the result is that of one process, up to rounding.",
        False,
    )
    compile: Compile = option("torch.compile; auto uses it on CUDA for runs long enough to earn it back.", "auto")
    workers: int | None = option("Processes that decode image files (threads, where the set fits in memory).")
    background: bool = option(
        "Patches of training images, shuffled by position, travel with a model of classes, to test its explanations "
        "with; --no-background leaves them out.",
        True,
    )
    data_root: Path | None = option("Where named sets lie (else $VITRAIL_DATA, else a cache folder).")
    config: Path | None = option(
        "A config.yaml of a former run, or part of one; flags go before it, it goes before the recipe."
    )
    verdicts: int | None = option(
        "How many held-out images are explained at the end, with --init by the probe and by the tuned network, each "
        "map with its test; when left out 24 with --init where that is quick, else none."
    )
    resume: Literal["auto", "never", "anyway"] = option(
        "auto starts the run or goes on with it, to the same bits; anyway does so, too, where another version of torch "
        "or its like may change them; never refuses a folder that exists.",
        "never",
    )


@dataclass(frozen=True, kw_only=True)
class DistillOptions(TrainOptions):
    """Options of `vitrail distill`; None leaves the choice to the configuration file, then to the default."""

    recipe: str = option(RECIPE, "auto")
    kind: Literal["auto", "soft", "hard"] = option(
        "soft learns the teacher's probabilities, hard its first choice; auto is soft.",
        "auto",
    )
    temperature: float | None = option(
        "What both logits are divided by before they are compared (soft); 3 when left out."
    )
    weight: float | None = option(
        "Fraction of the teacher in the loss, 0 to 1, the labels have the rest; 0.5 when left out."
    )
    token: Literal["auto", "yes", "no"] = option(
        "A distillation token with a head of its own (DeiT); auto takes one where the student has a class token. "
        "Without one, the class head learns from both.",
        "auto",
    )
    cache: Literal["auto", "on", "off"] = option(
        "Ask the teacher once for each unchanged image and keep its answers; auto does so where nothing is "
        "augmented. Otherwise it sees every image as the student does.",
        "auto",
    )
    fit_head: Literal["auto", "always", "never"] = option(
        "A new head for the teacher, fitted on its frozen features; auto does so where a network of another library "
        "lacks a class, or a teacher has none.",
        "auto",
    )
    teacher_weights: str | None = option(
        "Of a torchvision or timm teacher: pretrained (the default), random, or a file with its state dict."
    )
    teacher_size: int | None = option(
        "Side in pixels of the images that the teacher is shown; its own when left out. They are the student's "
        "images, brought to that size: where the student's are smaller, the teacher sees no more than they hold, and "
        "--image-size makes them larger for both."
    )
