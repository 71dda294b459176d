"""`vitrail export MODEL --to onnx`: what was written, and what it was seen to do."""

from vitrail.cli.args import Export
from vitrail.cli.inputs import load_options
from vitrail.cli.output import duration, print_json, print_line, print_table, show_waiting
from vitrail.deploy.export import ENOUGH, export
from vitrail.errors import byte_size, counted
from vitrail.model import load
from vitrail.statistics import wilson_interval
from vitrail.text import percent


def run(options: Export, command: str) -> int:
    """Export, and print the proof."""
    model = load(options.run, **load_options(options))
    size = (options.size, options.size) if isinstance(options.size, int) else options.size
    show_waiting("exporting and proving")
    found = export(
        model,
        to=options.to,
        out=options.out,
        size=size,
        weights=options.weights,
        explain=options.explain,
        conservative=options.conservative,
        check=options.check,
    )
    show_waiting("")
    if options.json:
        print_json({"model": options.run, **found.to_dict()})
        return 0
    print_table([(name, byte_size(size)) for name, size in found.files.items()])
    print_table(list(found.runtimes.items()))
    alike = f"{counted(found.images, 'image')} ({found.of}): {counted(found.flips, 'answer differs', 'answers differ')}"
    if found.gap is not None:
        print_line(f"{alike}; largest gap of an output {found.gap:.1e} of the largest")
    if found.changed is not None:
        changed, count = found.changed
        ends = wilson_interval(changed, count)[1]
        few = "" if count >= ENOUGH else f"; fewer than {ENOUGH:,} were at hand"
        print_line(f"{found.weights} changes {changed} of {counted(count, 'answer')} (at most {percent(ends, 2)}{few})")
    if found.milliseconds is not None:
        print_line(f"one image takes {found.milliseconds:.1f} ms; all of this took {duration(found.seconds)}")
    for note in found.notes:
        print_line(note)
    return 0
