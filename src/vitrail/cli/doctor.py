"""`vitrail doctor` and `vitrail bench`: whether everything works on this machine, and how fast it is."""

import statistics
from dataclasses import asdict, fields

from vitrail.bench.machine import describe, examine
from vitrail.bench.sides import Bench as Benched, Side, bench
from vitrail.bench.turn import FORMS, MATRICES, TRAINED, Job
from vitrail.cli.args import Bench, Doctor, Inference, Weights
from vitrail.cli.inputs import open_model
from vitrail.cli.output import console, duration, print_json, print_table, say
from vitrail.data.columns import Classes
from vitrail.errors import UsageError
from vitrail.explain import selftest
from vitrail.nn import ViT, ViTConfig
from vitrail.runtime import pick_device
from vitrail.text import percent

QUICK, USUAL = "S/16", "B/16"


def run_doctor(options: Doctor, command: str) -> int:
    """Look, try, and print; exit code 1 when a device cannot run a network, or a model fails a check."""
    if options.model is not None:
        return _check_model(options.model, options)
    report = examine()
    if options.json:
        print_json(report)
    else:
        rows = [(name, str(value)) for name, value in report["environment"].items()]
        for name, there in report["extras"].items():
            rows.append((f"extra {name}", "installed" if there else f'not installed: pip install "vitrail[{name}]"'))
        rows.append(("data root", report["data_root"]))
        rows += [(device["name"], describe(device)) for device in report["devices"]]
        print_table(rows, left=2)
    return 0 if all(device["works"] for device in report["devices"]) else 1


def _check_model(name: str, options: Doctor) -> int:
    """Check the explanations of a model; exit code 1 when a check fails."""
    known = {each.name: getattr(options, each.name) for each in fields(Weights)}
    model = open_model(name, Inference(**known, device="cpu"), 4)
    if not isinstance(model.network, ViT) or not isinstance(model.output, Classes):
        raise UsageError(
            f"the model in {name} gives {model.task.help}; the checks need a classifier", "a model of classes"
        )
    report = selftest(model)
    if options.json:
        print_json({"model": name, "passed": report.passed, "checks": [asdict(check) for check in report.checks]})
    else:
        print_table([("pass" if one.passed else "FAIL", one.name, one.detail) for one in report.checks], left=3)
        say("")
        failed, count = sum(not check.passed for check in report.checks), len(report.checks)
        verdict = f"{failed} of {count} checks fail" if failed else f"all {count} checks pass"
        say(f"{verdict}, after {duration(report.seconds)}")
    return 0 if report.passed else 1


def run_bench(options: Bench, command: str) -> int:
    """Have the libraries run in turn, and print a table for each form."""
    screen = console(to_stderr=True)
    size = options.size or (QUICK if options.quick else USUAL)
    ViTConfig.from_size(size, image_size=options.image_size)  # refused before a process is started
    job = Job("", "", size, options.batch_size, options.image_size, str(pick_device(options.device)))
    forms = ["default", *["autocast", "bf16"] * options.tuned, *TRAINED * options.train]
    found = bench(
        job,
        forms,
        options.rounds or (3 if options.quick else 5),
        None if options.peers is None else [name.strip() for name in options.peers.split(",")],
        lambda sentence: screen.print(sentence, style="dim"),
    )
    if options.json:
        print_json(found.to_dict())
        return 0
    say(found.machine)
    for form in forms:
        say(f"\n{job.size}, {job.batch} images of {job.image_size} at a time, {job.device}; {form}: {FORMS[form]}")
        rows = [_row(found, side) for side in found.sides if side.form == form]
        header = ["", "version", "images/s", "", "n", "to the best other", "of the matrix rate", "gap"]
        print_table(rows, header, left=2)
    return 0


def _row(found: Benched, side: Side) -> tuple[str, ...]:
    """Of one library: its rates, the middle one first, and how they stand to the others."""
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
