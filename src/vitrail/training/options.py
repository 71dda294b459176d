"""What a person may ask of a training; whatever is left open is decided by the recipe. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Precision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `vitrail train`; None leaves the choice to the recipe."""

    task: str = "auto"
    """What is learnt: classify (a column label) or sequences (a column text); auto takes what the columns allow."""
    recipe: str = "auto"
    """A named set of training choices: digits, mnist, planted, d0-mnist, mnist-m, d2-lab, d4-mnist-m,
    small-pictures, few-photos, photos, many-photos; auto picks by set and image size and says why. For sequences:
    sort-digits, mnist-strings, texts, picture-texts."""
    size: str | None = None
    """Network size with its patch in pixels, such as S/16 (Ti S B L H g)."""
    image_size: int | None = None
    """Side of the square that images are brought to, in pixels."""
    epochs: int | None = None
    """Passes over the training images."""
    batch_size: int | None = None
    """Pictures per optimizer step."""
    lr: float | None = None
    """Highest learning rate."""
    weight_decay: float | None = None
    """Weight decay on matrices (never on biases, norms, tokens, positions)."""
    accumulate: int | None = None
    """Parts that a batch is computed in, for less memory; the result is that of the whole batch."""
    seed: int | None = None
    """Decides initial weights, order, augmentation and dropout; 0 when left out. The same bits also need the same
    threads, precision and accumulate, which the run stores."""
    split_seed: int | None = None
    """Decides which images are held out where the data brings no split; 0 when left out."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes an accelerator when there is one."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    precision: Precision = "auto"
    """auto times bf16 against fp32 where it can pay, once, and keeps the faster."""
    compile: Compile = "auto"
    """torch.compile; auto uses it on CUDA for runs long enough to earn it back."""
    workers: int | None = None
    """Processes that decode images when the set does not fit in memory."""
    background: bool = True
    """Patches of training images, shuffled by position, travel with a model of classes, to test its explanations with;
    --no-background leaves them out."""
    data_root: Path | None = None
    """Where named sets lie (else $VITRAIL_DATA, else a cache folder)."""
    config: Path | None = None
    """A config.yaml of a former run, or part of one; flags go before it, it goes before the recipe."""
    resume: Literal["auto", "never"] = "never"
    """auto starts the run or goes on with it; never refuses a folder that exists."""


@dataclass(frozen=True, kw_only=True)
class DistillOptions(TrainOptions):
    """Options of `vitrail distill`; None leaves the choice to the configuration file, then to the default."""

    recipe: str = "auto"
    """A named set of training choices: digits, mnist, planted, d0-mnist, mnist-m, d2-lab, d4-mnist-m,
    small-pictures, few-photos, photos, many-photos; auto picks by set and image size and says why."""
    kind: Literal["auto", "soft", "hard"] = "auto"
    """soft learns the teacher's probabilities, hard its first choice; auto is soft."""
    temperature: float | None = None
    """What both logits are divided by before they are compared (soft); 3 when left out."""
    weight: float | None = None
    """Share of the teacher in the loss, 0 to 1, the labels have the rest; 0.5 when left out."""
    token: Literal["auto", "yes", "no"] = "auto"
    """A distillation token with a head of its own (DeiT); auto takes one where the student has a class token. Without
    one, the class head learns from both."""
    cache: Literal["auto", "on", "off"] = "auto"
    """Ask the teacher once for each unchanged image and keep its answers; auto does so where nothing is augmented.
    Otherwise it sees every image as the student does."""
    fit_head: Literal["auto", "always", "never"] = "auto"
    """A new head for the teacher, fitted on its frozen features; auto does so where a torchvision or timm network lacks
    a class."""
    teacher_weights: str | None = None
    """Of a torchvision or timm teacher: pretrained (the default), random, or a file with its state dict."""
    teacher_size: int | None = None
    """Side in pixels of the images that the teacher is shown; its own when left out. They are the student's images,
    brought to that size: where the student's are smaller, the teacher sees no more than they hold, and --image-size
    makes them larger for both."""
