"""`vitrail audit RUN [DATA]`: whether a model looks at the right thing, over a whole set."""

from dataclasses import replace
from pathlib import Path

from vitrail.audit.changes import read_audit
from vitrail.audit.job import audit, classes_with_images
from vitrail.audit.result import Audit
from vitrail.audit.rules import check_rules_of_classes, read_rules
from vitrail.audit.sampling import open_split
from vitrail.cli.args import AuditOptions
from vitrail.cli.inputs import cluster_of, load_model
from vitrail.cli.output import print_json, print_line, print_table, progress_bar, warn
from vitrail.data.layout import Layout
from vitrail.data.sources import check_outside
from vitrail.errors import RunError, counted
from vitrail.explain.methods import DEFAULT
from vitrail.io import audit_place, check_writable
from vitrail.jobs.parts import job_entry
from vitrail.options import parse_seconds
from vitrail.text import percent, points, times_words

BATCH = 16
CLASSES = 20  # in a table; the page has all
STAGES = (
    "testing explanations",
    "trying every part",
    "testing what that proposes",
    "trying single patches",
    "measuring the best of them",
)


def run(options: AuditOptions, command: str) -> int:
    """Audit, write the page and its JSON, and print what was found.

    Raises:
        RunError: A rule of --fail-under does not hold.
    """
    rules = [] if options.fail_under is None else read_rules(options.fail_under, options.masks is not None)
    if options.against is not None:
        read_audit(options.against)  # before the work
    page = audit_place(options.out)
    check_writable(page)
    folder = page.with_suffix("")
    if options.data and Path(options.data).is_dir():
        check_outside(page, options.data)
    threads = job_entry(folder / "maps.jsonl", "torch_threads") or (None if options.ray is None else 1)
    model = load_model(options.run, options, BATCH, [options.data] if options.data else [], threads)
    layout, data = Layout.of(options), options.data or None
    if model.output.names and any(rule.of_class for rule in rules):
        check_rules_of_classes(rules, model.output.names)
        data = open_split(model, data, options.data_root, options.split, layout)
        check_rules_of_classes(rules, classes_with_images(model, data.samples), "which the data have an image")
    with progress_bar(*STAGES) as progress:
        found = audit(
            model,
            data,
            masks=options.masks,
            count=options.count,
            method=options.method or DEFAULT,
            data_root=options.data_root,
            layout=layout,
            split=options.split,
            background=options.background,
            precision=options.precision,
            max_seconds=None if options.max_time is None else parse_seconds(options.max_time),
            folder=folder,
            cluster=cluster_of(options, model),
            progress=progress,
        )
    found = found if options.against is None else found.since(options.against)
    asked = {rule.words: rule.failure(found.figures) for rule in rules}
    found = replace(found, command=command, rules=asked)
    saved = found.save(page)
    if options.json:
        print_json({**found.to_dict(), "page": str(saved)})
    else:
        _print_audit(found)
        print_line(f"the page  {saved}")
    for note in found.notes:
        warn(note)
    if failed := [why for why in asked.values() if why]:
        do = "does" if len(failed) == 1 else "do"
        problem = f"{len(failed)} of {counted(len(asked), 'rule')} {do} not hold: {'; '.join(failed)}"
        raise RunError(problem, f"look at {saved}")
    return 0


def _print_audit(found: Audit) -> None:
    """The three sentences, and tables of what stands behind them."""
    for sentence in found.sentences:
        print_line(sentence)
    if named := found.named:
        print_line("")
        rows = [
            (
                one.label,
                one.words,
                times_words(one.effect / one.moves),
                *("-" if part is None else percent(part, 0) for part in (one.recall, one.without, one.elsewhere)),
                f"{percent(one.taken_before, 0)} to {percent(one.taken, 0)}",
            )
            for one in named
        ]
        head = ("class", "part", "odds", "recognised", "without it", "without one elsewhere", "others taken for it")
        print_table(rows, head, left=2)
    if rates := found.verdicts.get("class"):
        print_line("")
        worst = sorted(rates, key=lambda one: (one.supported / one.images, one.name))[:CLASSES]
        rows = [(one.name, str(one.images), percent(one.supported / one.images, 0)) for one in worst]
        print_table(rows, ("class (worst first)", "images", "supported"))
    for change in found.changes:
        if change.clear:
            low, high = map(points, change.interval)
            both = f"{percent(change.before)} to {percent(change.now)}"
            print_line(f"changed: {change.name} {both}, {points(change.difference)} points (95 %: {low} to {high})")
    print_line("")
