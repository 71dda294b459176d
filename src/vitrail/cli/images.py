"""`vitrail embed` and `similar`: images as vectors in a file, and the nearest on a page."""

import time
from pathlib import Path

from vitrail.cli.args import Embed, SimilarOptions
from vitrail.cli.inputs import cluster_of, load_model
from vitrail.cli.output import (
    check_strict,
    duration,
    print_json,
    print_line,
    print_table,
    progress_bar,
    warn,
    warn_left_out,
)
from vitrail.data.layout import Layout
from vitrail.errors import byte_size, counted
from vitrail.features.embed import embed
from vitrail.features.file import check_ending, is_features
from vitrail.features.similar import similar
from vitrail.io import neighbours_place, page_writer
from vitrail.jobs.parts import LARGE_BATCH


def run_embed(options: Embed, command: str) -> int:
    """Write the file of features, and print what is in it."""
    out = options.out
    check_ending(out)
    model = load_model(options.run, options, LARGE_BATCH, [options.data])
    cluster = cluster_of(options, model)
    began = time.perf_counter()
    with progress_bar("computing features") as progress:
        found = embed(
            model,
            options.data,
            out=out,
            patches=options.patches,
            split=options.split,
            layout=Layout.of(options),
            data_root=options.data_root,
            workers=None if cluster is not None else options.workers,
            progress=progress,
            cluster=cluster,
            precision=options.precision,
            note=warn,
        )
    seconds, size = time.perf_counter() - began, out.stat().st_size
    if options.json:
        about = {"out": str(out), "model": options.run, **found.to_dict(), "bytes": size, "seconds": seconds}
        print_json(about)
    else:
        classes = f", {counted(len(set(found.labels)), 'class', 'classes')}" if found.labels is not None else ""
        print_line(f"{counted(len(found), 'image')}{classes}, in {duration(seconds)}")
        print_table([(name, " x ".join(map(str, shape))) for name, shape in found.about["columns"].items()])
        print_line(f"{out}  {byte_size(size)}")
    warn_left_out(found.unreadable, "image")
    check_strict(options.strict, len(found.unreadable), "image")
    return 0


def run_similar(options: SimilarOptions, command: str) -> int:
    """Look for neighbours, write the page, and print which they are."""
    write = page_writer(neighbours_place, options.out)
    shown = options.images if is_features(Path(options.data)) else options.data
    model = load_model(options.run, options, LARGE_BATCH, [shown])
    with progress_bar("looking for neighbours") as progress:
        found = similar(
            model,
            options.images,
            options.data,
            neighbours=options.neighbours,
            pooling=options.pooling,
            queries=options.queries,
            layout=Layout.of(options),
            data_root=options.data_root,
            progress=progress,
        )
    page = write(found.page(options.run, options.data, command))
    if options.json:
        print_json({"model": options.run, "data": options.data, **found.to_dict(), "page": str(page)})
    else:
        for one in found.found:
            print_line(one.name if one.label is None else f"{one.name} ({one.label})")
            print_table([(each.name, each.label or "", f"{each.distance:.3f}") for each in one.neighbours], left=2)
            if one.among:
                print_line(f"  neighbours: {one.among}")
        print_line("")
        print_line(f"the page  {page}")
    for note in found.notes:
        warn(note)
    return 0
