"""`vitrail embed` and `vitrail similar`: images as vectors, in a file, and the nearest of them on a page."""

import time
from pathlib import Path

from vitrail.cli.args import Embed, Similar
from vitrail.cli.inputs import cluster_of, hints_with, open_model, opening_of
from vitrail.cli.output import (
    check_strict,
    duration,
    print_json,
    print_table,
    progress_bar,
    say,
    warn,
    warn_left_out,
)
from vitrail.data.formats import EXTENSIONS, named_files
from vitrail.errors import byte_size, counted
from vitrail.features.embed import embed
from vitrail.features.file import check_ending
from vitrail.features.similar import similar
from vitrail.io import check_writable, write_file
from vitrail.jobs.ranges import LARGE_BATCH
from vitrail.pages.similar_page import page_at


def run_embed(options: Embed, command: str) -> int:
    """Write the file of features, and print what is in it."""
    out = options.out
    assert out is not None
    check_ending(out)
    cluster = cluster_of(options, options.threads)
    model = open_model(options.model, options, LARGE_BATCH, [options.data])
    began = time.perf_counter()
    with progress_bar() as progress, hints_with(options):
        found = embed(
            options.data,
            model,
            out=out,
            patches=options.patches,
            split=options.split,
            data_root=options.data_root,
            workers=None if cluster is not None else options.workers,
            progress=progress,
            cluster=cluster,
            opening=None if cluster is None else opening_of(options.model, options, model),
            precision=options.precision,
            run=options.model,
            note=warn,
        )
    seconds, size = time.perf_counter() - began, out.stat().st_size
    if options.json:
        about = {"out": str(out), "model": options.model, **found.to_dict(), "bytes": size, "seconds": seconds}
        print_json(about)
    else:
        classes = f", {counted(len(set(found.labels)), 'class', 'classes')}" if found.labels is not None else ""
        say(f"{counted(len(found), 'image')}{classes}, in {duration(seconds)}")
        print_table([(name, " x ".join(map(str, shape))) for name, shape in found.about["columns"].items()])
        say(f"{out}  {byte_size(size)}")
    warn_left_out(found.unreadable, "image")
    check_strict(options.strict, len(found.unreadable), "image")
    return 0


def run_similar(options: Similar, command: str) -> int:
    """Look for neighbours, write the page, and print which they are."""
    page = page_at(options.out)
    check_writable(page)
    if Path(options.images).suffix.lower() in EXTENSIONS:
        named_files([options.images])  # names what is there where it is not
    folders = [name for name in (options.data, options.images) if Path(name).is_dir()]
    model = open_model(options.model, options, LARGE_BATCH, folders)
    with progress_bar() as progress, hints_with(options):
        found = similar(
            options.images,
            options.data,
            model,
            count=options.count,
            pooling=options.pooling,
            queries=options.queries,
            data_root=options.data_root,
            progress=progress,
        )
    write_file(page, found.page(options.model, options.data, command))
    if options.json:
        print_json({"model": options.model, "data": options.data, **found.to_dict(), "page": str(page)})
    else:
        for one in found.found:
            say(one.name if one.label is None else f"{one.name} ({one.label})")
            print_table([(each.name, each.label or "", f"{each.distance:.3f}") for each in one.neighbours], left=2)
        say("")
        say(f"the page  {page}")
    for note in found.notes:
        warn(note)
    return 0
