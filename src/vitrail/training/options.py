"""What a person may ask of a training; whatever is left open is decided by the recipe. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Precision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `vitrail train`; None leaves the choice to the recipe."""

    recipe: str = "auto"
    """A named set of training choices: digits, mnist, d0-mnist, small-pictures, few-photos, photos, many-photos; auto
    picks by set and picture size and says why."""
    size: str | None = None
    """Network size with its patch in pixels, such as S/16 (Ti S B L H g)."""
    image_size: int | None = None
    """Side of the square that pictures are brought to, in pixels."""
    epochs: int | None = None
    """Passes over the training pictures."""
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
    """Decides which pictures are held out where the data brings no split; 0 when left out."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes an accelerator when there is one."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    precision: Precision = "auto"
    """auto times bf16 against fp32 where it can pay, once, and keeps the faster."""
    compile: Compile = "auto"
    """torch.compile; auto uses it on CUDA for runs long enough to earn it back."""
    workers: int | None = None
    """Processes that decode pictures when the set does not fit in memory."""
    data_root: Path | None = None
    """Where named sets lie (else $VITRAIL_DATA, else a cache folder)."""
    config: Path | None = None
    """A config.yaml of a former run, or part of one; flags go before it, it goes before the recipe."""
    resume: Literal["auto", "never"] = "never"
    """auto starts the run or goes on with it; never refuses a folder that exists."""
