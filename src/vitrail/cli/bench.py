"""`vitrail bench`: how many images a second the same network has by every library that is here."""

import statistics
from collections.abc import Sequence

from vitrail.bench.sides import Bench, Side, bench
from vitrail.bench.turn import FORMS, MATRICES, TRAINED, Job
from vitrail.cli.args import Bench as Typed
from vitrail.cli.output import console, print_json, print_table, say
from vitrail.errors import UsageError
from vitrail.nn import ViTConfig
from vitrail.runtime import pick_device
from vitrail.text import percent

QUICK, USUAL = "S/16", "B/16"


def run(typed: Typed, command: str) -> int:
    """Have them run in turn, and print a table for each form."""
    screen = console(to_stderr=True)
    for name, value in (("--batch-size", typed.batch_size), ("--rounds", typed.rounds)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}", f"{name} 1")
    size = typed.size or (QUICK if typed.quick else USUAL)
    ViTConfig.from_size(size, image_size=typed.image_size)  # refused before a process is started
    job = Job("", "", size, typed.batch_size, typed.image_size, str(pick_device(typed.device)))
    forms = ["default", *["autocast", "bf16"] * typed.tuned, *TRAINED * typed.train]
    found = bench(
        job,
        forms,
        typed.rounds or (3 if typed.quick else 5),
        None if typed.peers is None else [name.strip() for name in typed.peers.split(",")],
        lambda sentence: screen.print(sentence, style="dim"),
    )
    if typed.json:
        print_json(found.to_dict())
        return 0
    say(found.machine)
    for form in forms:
        _print_form(found, form)
    return 0


def _print_form(found: Bench, form: str) -> None:
    job, sides = found.job, [side for side in found.sides if side.form == form]
    say(f"\n{job.size}, {job.batch} images of {job.image_size} at a time, {job.device}; {form}: {FORMS[form]}")
    rows = [_row(found, side) for side in sides]
    print_table(rows, ["", "version", "images/s", "", "n", "to the best other", "of the matrix rate", "gap"], left=2)


def _row(found: Bench, side: Side) -> Sequence[str]:
    name = {
        MATRICES: "matrices alone",
    }.get(side.name, side.name)
    if not side.rates:
        return name, "", side.problem
    ratio, fraction = found.ratio(side), found.fraction(side)
    return (
        name,
        side.version,
        f"{statistics.median(side.rates):,.3g}",
        f"{min(side.rates):,.3g} to {max(side.rates):,.3g}",
        str(len(side.rates)),
        "" if ratio is None or side.name == MATRICES else f"{ratio:.2f}x",
        "" if fraction is None or side.name == MATRICES else percent(fraction, 0),
        f"{side.gap:.0e}" if side.gap else "",
    )
