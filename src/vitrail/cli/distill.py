"""`vitrail distill DATA --teacher T --student SIZE`: train a student from labels and a teacher."""

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace

from vitrail.cli.args import Distill
from vitrail.cli.parse import parse
from vitrail.errors import UsageError
from vitrail.training.options import DistillOptions

SAYS = (
    "Train a Vision Transformer from labels and a teacher, which it needs no more afterwards. "
    "Example: vitrail distill mnist --teacher runs/big --student Ti/7"
)


def run(words: Sequence[str]) -> int:
    """Train the student, and print where the result is."""
    typed = parse(Distill, "distill", words, SAYS)
    options = DistillOptions(**{field.name: getattr(typed, field.name) for field in fields(DistillOptions)})
    options = replace(options, size=typed.student)
    if not typed.data and options.config is None:
        raise UsageError("no data given: what should be learnt?", "vitrail distill digits --teacher runs/latest")
    if not typed.teacher:
        raise UsageError(
            "no teacher given", "--teacher with a run folder, torchvision:NAME or timm:NAME; or vitrail train"
        )
    if options.resume == "auto" and typed.out is None:
        raise UsageError("--resume auto needs the run to go on with", "--out with the folder of the run")

    from vitrail.cli.output import console
    from vitrail.cli.progress import TrainingProgress
    from vitrail.cli.train import show
    from vitrail.training.job import distill

    screen = console(to_stderr=typed.json)
    command = shlex.join(["vitrail", "distill", *words])
    with TrainingProgress(screen) as progress:
        finished = distill(typed.data, typed.teacher, typed.out, options, progress, command)
    return show(finished, screen, typed.json)
