"""Time the same network in every installed library, in turn, after a check that all give equal outputs.

python -m benchmarks.libraries --quick        S/16 in fp32, 3 rounds: about 90 seconds on two cores
python -m benchmarks.libraries B/16 --tuned --train
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.libraries.sides import Bench, Side, bench
from benchmarks.libraries.turn import FORMS, MATRICES, PEERS, TRAINED, Job
from vitrail.cli.output import print_table
from vitrail.errors import VitrailError
from vitrail.nn import ViTConfig
from vitrail.runtime import pick_device
from vitrail.text import percent

QUICK, USUAL = "S/16", "B/16"
HEADER = ("", "version", "images/s", "", "n", "to the best other", "of the matrix rate", "gap")


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser("python -m benchmarks.libraries", description=str(__doc__).splitlines()[0])
    parser.add_argument("size", nargs="?", help=f"such as S/16; default: {USUAL}, or {QUICK} with --quick")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK}, inference as each library documents it")
    parser.add_argument("--tuned", action="store_true", help="also inference in bf16: by autocast, and bf16 weights")
    parser.add_argument("--train", action="store_true", help="also a training step: fp32, and bf16 by autocast")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help=f"only these of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help="default: 5, or 3 with --quick")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Have the libraries run in turn, and print a table for each form.

    Raises:
        UsageError: A size, library, device or number cannot be used.
        RunError: vitrail itself could not run.
    """
    given = options(words)
    size = given.size or (QUICK if given.quick else USUAL)
    ViTConfig.from_size(size, image_size=given.image_size)  # refused before a process is started
    job = Job("", "", size, given.batch_size, given.image_size, str(pick_device(given.device)))
    forms = ["default", *["autocast", "bf16"] * given.tuned, *TRAINED * given.train]
    rounds = (3 if given.quick else 5) if given.rounds is None else given.rounds
    found = bench(job, forms, rounds, given.peers, lambda sentence: print(sentence, file=sys.stderr))
    if given.json:
        print(json.dumps(found.to_dict()))
        return
    print(found.machine)
    for form in forms:
        print(f"{job.size}, {job.batch} images of {job.image_size} at a time, {job.device}; {form}: {FORMS[form]}")
        print_table([row(found, side) for side in found.sides if side.form == form], HEADER, left=2)


def row(found: Bench, side: Side) -> tuple[str, ...]:
    """Of one library: its rates, the median first, and how they compare with the others."""
    matrices = side.name == MATRICES
    name = "matrices alone" if matrices else side.name
    if not side.rates:
        return name, "", side.problem
    ratio, fraction = found.ratio(side), found.fraction(side)
    return (
        name,
        side.version,
        f"{statistics.median(side.rates):,.3g}",
        f"{min(side.rates):,.3g} to {max(side.rates):,.3g}",
        str(len(side.rates)),
        "" if ratio is None or matrices else f"{ratio:.2f}x",
        "" if fraction is None or matrices else percent(fraction, 0),
        f"{side.gap:.0e}" if side.gap else "",
    )


if __name__ == "__main__":
    try:
        main()
    except VitrailError as error:
        sys.exit(f"{error.problem}\ntry: {error.hint}")
