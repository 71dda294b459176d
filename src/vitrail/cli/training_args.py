"""What can be typed after the verbs that train, as `args.py` has it of all others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.cli.args import Told, hidden, positional
from vitrail.data.readers import overview
from vitrail.errors import UsageError
from vitrail.training.options import DistillOptions, TrainOptions, option


@dataclass(frozen=True, kw_only=True)
class Begun:
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
class Train(Begun, Told, TrainOptions):
    """Train a Vision Transformer on a set of images or texts. What is left out is decided by a recipe, and said.

    Example: vitrail train digits
    """

    data: str = positional(overview(), "")
    class_names: Path | None = hidden("the data, which names its classes")

    def __post_init__(self) -> None:
        """Refuse a training of nothing, and one that would go on with no run."""
        if not self.data and self.config is None:
            raise UsageError("no data given: what should be trained on?", "vitrail train digits")
        for name in ("told", "mean", "std"):
            if getattr(self, name) is not None and self.init is None:
                problem = f"--{name} is for weights that a training starts from, and none are named"
                raise UsageError(problem, f"--init FILE --{name} {getattr(self, name)}")
        _check_out(self.out, self.resume, self.print_launch)


@dataclass(frozen=True, kw_only=True)
class Distill(Begun, Told, DistillOptions):
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
