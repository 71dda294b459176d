"""`vitrail data`: what is wrong in data, and what a network sees of them, each on a page; and images in shards."""

import errno
import time
from dataclasses import fields
from pathlib import Path

from vitrail.check.check import DataReport, check_data
from vitrail.cli.args import Data
from vitrail.cli.output import duration, print_json, print_line, progress_bar, warn, warn_left_out
from vitrail.data.columns import ALL
from vitrail.data.layout import Layout
from vitrail.data.packing import QUALITY, SHARD_MB, pack
from vitrail.data.sources import check_outside
from vitrail.errors import DataError, RunError, UsageError, byte_size, counted
from vitrail.io import FULL, data_place, home_out, once, page_writer, show_place
from vitrail.model import load
from vitrail.options import TrainOptions

KEEPING_ALL = " --resize squash stretches it, --resize pad fits it in."


def run(options: Data, command: str) -> int:
    """The action that is named."""
    return {"check": _check, "show": _show, "pack": _pack}[options.action](options, command)


def _check(options: Data, command: str) -> int:
    """Look at data, write the page, and print what to do first.

    Raises:
        DataError: The data contradict themselves, which stands on the page, too.
    """
    began, write = time.perf_counter(), page_writer(data_place, options.out)
    check_outside(data_place(options.out), options.data)
    with progress_bar("reading images", "comparing them", "computing features") as progress:
        found = check_data(
            options.data,
            layout=Layout.of(options),
            data_root=options.data_root,
            model=options.model and load(options.model, device=options.device),
            fix_split=options.fix_split,
            crops=options.crops,
            progress=progress,
        )
    page = write(found.page(command))
    seconds = time.perf_counter() - began
    if options.json:
        print_json({**found.to_dict(), "page": str(page), "seconds": seconds})
    else:
        _print_report(found, seconds)
        print_line(f"the page  {page}")
    if found.contradictions:
        problem = f"{options.data} contradicts itself: {' '.join(each.sentence for each in found.contradictions)}"
        command = next((each.command for each in found.contradictions if each.command), "")
        hint = command.partition(" && ")[0] if command and options.fix_split is None else f"look at {page}"
        raise DataError(problem, hint)
    return 0


def _print_report(found: DataReport, seconds: float) -> None:
    """What to do first, and what to type."""
    for note in found.notes:
        warn(note)
    splits = ", ".join(f"{name} {count:,}" for name, count in found.splits.items())
    classes = f", {counted(len(found.classes), 'class', 'classes')}" if found.classes else ""
    divided = "" if ALL in found.splits else f" ({splits})"
    print_line(f"{counted(found.count, 'image')}{divided}{classes}, in {duration(seconds)}")
    print_line("")
    for number, each in enumerate(found.findings, 1):
        print_line(f"{number}. {'Contradiction: ' * each.contradiction}{each.sentence}")
        if each.command:
            print(f"   {each.command}")
    print_line("" if found.findings else "Nothing to do was found.")
    if found.fixed is not None:
        sides = ", ".join(f"{name} {count:,}" for name, count in found.fixed["splits"].items())
        moved = "" if ALL in found.splits else f"; {found.fixed['moved']:,} changed their split"
        print_line(f"the list  {found.fixed['out']}  {sides}{moved}")


def _show(options: Data, command: str) -> int:
    """Write the page of images as a network sees them, and say how much is cut away."""
    from vitrail.training.show import IMAGES, show_data  # with all that a training decides

    began, write = time.perf_counter(), page_writer(show_place, options.out)
    check_outside(show_place(options.out), options.data)
    given = {each.name: getattr(options, each.name, None) for each in fields(TrainOptions)}
    chosen = TrainOptions(**{name: value for name, value in given.items() if value is not None})
    with progress_bar("looking at sizes") as progress:
        found = show_data(options.data, chosen, images=options.count or IMAGES, progress=progress)
    page = write(found.page(command))
    if options.json:
        print_json({**found.to_dict(), "page": str(page), "seconds": time.perf_counter() - began})
    else:
        for note in found.notes:
            warn(note)
        print_line(found.sentence + KEEPING_ALL * bool(found.lost["tenth"]))
        print_line(f"the page  {page}")
    return 0


def _pack(options: Data, command: str) -> int:
    """Write the shards, and print what is in them."""
    began, out = time.perf_counter(), options.out
    assert out is not None  # which the options say
    try:
        with progress_bar("packing") as progress:
            packed = pack(
                options.data,
                out,
                shorter_side=options.shorter_side,
                quality=QUALITY if options.quality is None else options.quality,
                shard_size=SHARD_MB if options.shard_size is None else options.shard_size,
                layout=Layout.of(options),
                data_root=options.data_root,
                progress=progress,
            )
    except OSError as error:
        problem, out = f"{error.filename}: {error.strerror}", out.expanduser()
        named = Path(str(error.filename))
        of_out = named.is_relative_to(out) or out.is_relative_to(named)
        if of_out and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UsageError(problem, home_out(out)) from error
        if error.errno not in (*FULL, errno.EFBIG, errno.EIO):
            raise
        raise RunError(problem, f"{command}  # continues after the last complete shard, {once(error)}") from error
    seconds = time.perf_counter() - began
    if options.json:
        print_json({**packed.to_dict(), "seconds": seconds})
    else:
        for note in packed.notes:
            warn(note)
        warn_left_out(packed.left_out, "image")
        splits = ", ".join(f"{name} {count:,}" for name, count in packed.images.items())
        print_line(f"{counted(sum(packed.images.values()), 'image')} ({splits}), in {duration(seconds)}")
        print_line(f"{packed.out}  {counted(packed.shards, 'shard')}, {byte_size(packed.bytes)}")
    return 0
