"""Many images explained: a line of JSON for each, and overlays without a page. Killed at any point, it goes on.

    maps.jsonl       what `Report.to_dict` has of an image, in order; of one that cannot be read `file` and `problem`,
                     of one that is taken for what it would be held against `file` and `left_out`
    maps/000012/     overlays of the 13th range, which the lines name; none of an image without evidence

Neither has times in it, so that the bytes are the same whoever computes them: this process or workers of Ray.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from vitrail.data.background import MOST
from vitrail.data.columns import EVIDENCE, Column, Samples
from vitrail.data.images import Images, NamedImage, evenly
from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.explain.methods.table import from_anywhere
from vitrail.explain.reporting.explained import explain_in_batches
from vitrail.explain.reporting.plan import Opener, ReportOptions, ReportPlan, patch_grid, plan_report, with_others
from vitrail.explain.reporting.report import named_image, nothing_left, open_named, rates, write_overlays
from vitrail.explain.reporting.stored_maps import check_maps, maps_entry
from vitrail.explain.verdict import precision_for
from vitrail.io import check_writable, free_name, to_json, writing
from vitrail.jobs.cluster import Cluster, carry_of
from vitrail.jobs.own_code import own_code
from vitrail.jobs.parts import LINES, Compute, IdRange, choices, complete_parts, folder_of, job_entry, split_up
from vitrail.jobs.precision import Opening, identity_of
from vitrail.model import Model
from vitrail.pages.image_views import Rates

ROWS = 16  # images of a range

Measure = Callable[[NamedImage, ReportPlan], dict[str, Any]]
"""What else is measured of an image that holds evidence, as plain values; sent to workers."""

NO_MEASURES: Mapping[str, Measure] = {}  # never changed


class Explanations(NamedTuple):
    """What a job found.

    Attributes:
        count: Images that were explained.
        problems: (file, why) of those that cannot be read.
        rates: Of how many images each method's attributions are supported; empty if not tested.
    """

    count: int
    problems: list[tuple[str, str]]
    rates: list[Rates]


def explain_all(
    samples: Samples,
    model: Model,
    out: Path,
    wanted: ReportOptions,
    *,
    measures: Mapping[str, Measure] = NO_MEASURES,
    cluster: Cluster | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    notify: Callable[[str], object] = lambda sentence: None,
) -> Explanations:
    """Explain each image, and write a line for it.

    Args:
        samples: The images, with the columns that say what is true of them.
        model: That explains itself.
        out: A .jsonl file; overlays go into a folder of its name beside it.
        wanted: What is to be explained, and how, in plain values.
        measures: What else stands in the line of an image that holds evidence, by its key.
        cluster: Where else to compute: by workers of Ray, which load the model by its `opening`.
        progress: Called with images done, and all.
        notify: Called with a sentence about what is left out or borrowed.

    Raises:
        UsageError: As `report`; or something else is where it is written, or parts of another job.
        DataError: No image can be read, or the background cannot.
        RunError: The disk is full, what is done stays; or another process writes that file.
    """
    check_place(out)
    threads = torch.get_num_threads()
    wanted = _settle(wanted, job_entry(out, "options") or {}, model, samples.images)
    plan, openers = plan_report(model, wanted), list[Opener]()
    if plan.methods:
        check_maps(plan.methods, samples.images.names(), model.preprocessing.size, patch_grid(model))
    if plan.borrows:
        some = samples.images.select(evenly(range(len(samples)), MOST + plan.at_a_time))
        openers = [(some.name(row), partial(some.open, row)) for row in range(len(some))]
        plan = with_others(plan, openers)
    for note in plan.notes:
        notify(note)
    columns = {name: samples.column(name) for name in (model.task.column, EVIDENCE) if name in samples.columns}
    told = (samples.images, *columns.values())
    job = {
        "verb": "explain",
        **identity_of(model),
        "options": {**vars(wanted), "methods": [each.name for each in plan.methods]},
        **known_by(plan),
        "images": hashlib.blake2b(b"".join(each.digest() for each in told), digest_size=16).hexdigest(),
        "count": len(samples),
        **choices(ROWS, model.device, "bf16" if wanted.precision == "bf16" else "fp32"),
        "torch_threads": threads,
        "batch": plan.at_a_time,
    }
    ranges = split_up([samples.images], ROWS)
    to = out.with_suffix("").absolute()
    problems, cluster = list[tuple[str, str]](), cluster and replace(cluster, threads=threads)
    work = partial(open_for_worker, wanted=wanted, openers=openers, columns=columns, folder=to, measures=measures)
    carry = carry_of(cluster, partial(lines_of, plan, columns, to, measures), work, "fp32")
    count, left_out, bounded, verdicts = 0, 0, True, [list[str]() for _ in plan.methods if plan.trust]
    parted = complete_parts(out, LINES, job, ranges, carry, progress)
    with parted as parts, writing(out) as handle:
        for each in ranges:
            for line in parts.read(each.number):
                handle.write(to_json(line, indent=None).encode())
                count += "attributions" in line
                left_out += "left_out" in line
                for place, attribution in enumerate(line.get("attributions", ()) if verdicts else ()):
                    trust = attribution["trust"]
                    verdicts[place % len(verdicts)].append(trust["verdict"])
                    bounded = bounded and bool(trust["evidence_p"]) and trust["minimum_effect"] is None
                if "problem" in line:
                    problems.append((line["file"], line["problem"]))
    if left_out and not count:
        out.unlink()
        raise nothing_left(plan)
    if left_out:
        notify(f"left out: {plan.nothing_against(counted(left_out, 'image'))}")
    tested = zip(plan.methods, verdicts, strict=False)
    return Explanations(count, problems, [rates(method.name, own, (), method.title, bounded) for method, own in tested])


def check_place(out: Path) -> None:
    """Refuse a place where nothing can be written, and to write over anything.

    Raises:
        UsageError: Names it.
    """
    check_writable(out)
    for place in (out, out.with_suffix("")):
        if place.exists() and not folder_of(out).exists():
            free = free_name(out, lambda name: name.exists() or name.with_suffix("").exists())
            overlays = ", the folder for the overlays," * (place != out)
            raise UsageError(f"{place}{overlays} exists", Hint({"out": str(free)}))


def known_by(plan: ReportPlan) -> dict[str, Any]:
    """What a job knows by its content: methods, stored maps, and the images that are named or come with the model."""
    own = plan.model.background if plan.background is None else plan.background
    named = {"background": own if plan.trust else None, "similar_to": None if plan.other is None else plan.other[1]}
    return {
        "method": [[each.name, "" if each.folder else own_code([each.function])] for each in plan.methods],
        **maps_entry(plan.methods),
        **{name: _hash_of(images) for name, images in named.items() if images is not None},
    }


def _hash_of(images: torch.Tensor) -> str:
    """A hash of values, in hexadecimal digits."""
    return hashlib.blake2b(images.cpu().numpy().tobytes(), digest_size=16).hexdigest()


def _settle(wanted: ReportOptions, before: Mapping[str, Any], model: Model, images: Images) -> ReportOptions:
    """The same options with paths that are found from any folder, and with the precision that is chosen once."""

    def absolute(path: Any) -> str | None:
        return None if path is None else str(Path(path).expanduser().absolute())

    wanted = replace(wanted, background=absolute(wanted.background), similar_to=absolute(wanted.similar_to))
    wanted = replace(wanted, methods=from_anywhere(wanted.methods))
    if wanted.precision != "auto" or not wanted.trust or model.output.generates:
        return wanted
    chosen = before.get("precision") or precision_for(model, model.tensor([_first(images)]))
    return replace(wanted, precision=chosen)


def _first(images: Images) -> Image.Image:
    """The first image that can be read.

    Raises:
        DataError: There is none.
    """
    for row in range(len(images)):
        with suppress(DataError):
            return images.open(row)
    return images.open(0)  # which says why


def open_for_worker(
    opening: Opening,
    wanted: ReportOptions,
    openers: Sequence[Opener],
    columns: Mapping[str, Column],
    folder: Path,
    measures: Mapping[str, Measure],
) -> Compute:
    """What a worker does: it loads the model by `opening`; the others are as for `plan_report` and `lines_of`."""
    return partial(lines_of, with_others(plan_report(opening.load(), wanted), openers), columns, folder, measures)


def lines_of(
    plan: ReportPlan,
    columns: Mapping[str, Column],
    folder: Path,
    measures: Mapping[str, Measure],
    ranges: Sequence[IdRange],
) -> Iterator[list[dict[str, Any]]]:
    """A line for each image of each range, in turn, when its overlays are written; the columns are of all images."""
    for each in ranges:
        places = np.arange(each.first, each.first + len(each.ids))
        samples = Samples(each.images.select(each.ids), {name: one.select(places) for name, one in columns.items()})
        openers = [partial(named_image, samples, row, plan.model) for row in range(len(samples))]
        images, unread = open_named(openers, plan)
        found = explain_in_batches(list(images.values()), plan, evident_only=True) if images else iter(())
        lines, one = list[dict[str, Any]](), next(found, None)
        for row in range(len(samples)):
            name = samples.name(row)
            if row in unread:
                lines.append({"file": name, "problem": unread[row].problem.removeprefix(f"{name}: ")})
                continue
            if one is None or one.name != name:  # they come in order; of equal names all come, or none
                lines.append({"file": name, "left_out": plan.nothing_against("it")})
                continue
            files = write_overlays(each.first + row + 1, one.view, folder / f"{each.number:06d}")
            line = one.to_dict([file.relative_to(folder.parent).as_posix() for file in files])
            for attribution in line["attributions"]:
                del attribution["seconds"]  # which differ from one time to the next
            more = {key: measure(images[row], plan) for key, measure in measures.items() if one.view.drawn}
            lines.append(line | more)
            one = next(found, None)
        yield lines
