"""Many images explained: a line of JSON for each, and overlays without a page. Killed at any point, it goes on.

    maps.jsonl       what `Report.to_dict` has of an image, in order; of one that cannot be read `file` and `problem`,
                     of one that is taken for what it would be held against `file` and `left_out`
    maps/000012/     overlays of the 13th range, which the lines name

Neither has times in it, so that the bytes are the same whoever computes them: this process or workers of Ray.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from vitrail.data.columns import Vocabulary
from vitrail.data.images import FileImages, NamedImage, open_image
from vitrail.errors import DataError, UsageError
from vitrail.explain.reporting.explained import BATCH, NOTHING_AGAINST, at_a_time, chosen_precision, explained
from vitrail.explain.reporting.files import overlays_of
from vitrail.explain.reporting.others import Others, borrows, notes_of, read_others, spread_over
from vitrail.explain.reporting.request import Question, Request, requested
from vitrail.io import check_writable, free_name, to_json, whole, write_file
from vitrail.jobs.cluster import Cluster
from vitrail.jobs.on_ray import by_workers
from vitrail.jobs.parts import (
    Lines,
    Progress,
    alone,
    choices,
    complete,
    folder_of,
    here,
    job_entry,
    open_parts,
    read_lines,
    writing,
)
from vitrail.jobs.precision import Opening, identity_of
from vitrail.jobs.ranges import Compute, Range, split_up
from vitrail.model import Model

ROWS = 16  # images of a range


class Explanations(NamedTuple):
    """What was written.

    Attributes:
        count: Images that were explained.
        problems: (file, why) of those that cannot be read.
    """

    count: int
    problems: list[tuple[str, str]]


def explain_all(
    files: Sequence[Path],
    model: Model,
    out: Path,
    asked: Mapping[str, Any],
    *,
    one_scale: bool = False,
    run: str | Path | None = None,
    cluster: Cluster | None = None,
    opening: Opening | None = None,
    progress: Progress = lambda done, total: None,
    tell: Callable[[str], object] = lambda sentence: None,
) -> Explanations:
    """Explain each image, and write a line for it.

    Args:
        files: Of the images, in order.
        model: That explains itself.
        out: A .jsonl file; overlays go into a folder of its name beside it.
        asked: Further arguments of `report`, from `methods` to `precision`, as plain values.
        one_scale: Whether all attributions of an image have one colour scale.
        run: Where the model came from.
        cluster: Where else to compute: by workers of Ray, which load the model by `opening`.
        opening: What the model was loaded by.
        progress: Called with images done, and all.
        tell: Called with a sentence about what is left out or borrowed, before it is computed.

    Raises:
        UsageError: As `report`; or something else is where it is written, or parts of another job.
        DataError: No image can be read, or the background cannot.
        RunError: The disk is full, what is done stays; or another process writes that file.
    """
    check_place(out)
    asked, loaded, threads = (
        _settled(asked, job_entry(out, "asked") or {}, model, files, run),
        model,
        torch.get_num_threads(),
    )
    model, request = requested(model, Question(**asked), str(files[0]), run)
    background, others = list[str](), None
    if borrows(model, request) and not model.borrows_background:
        background = [str(file) for file in spread_over(files, at_a_time(model, len(request.methods)))]
        others = _others(model, background)
    for note in notes_of(model, request, run, others):
        tell(note)
    job = {
        "verb": "explain",
        **identity_of(loaded),
        "asked": {**asked, "one_scale": one_scale},
        "images": FileImages(files).digest().hex(),
        "count": len(files),
        **choices(ROWS, model.device, threads, "bf16" if asked.get("precision") == "bf16" else "fp32"),
        "torch_threads": threads,
        "batch": at_a_time(model, len(request.methods)) if request.methods else BATCH,
    }
    ranges = split_up([FileImages(files)], ROWS)
    with writing(out), alone(out):
        parts = open_parts(out, Lines(), job)
        to = out.with_suffix("").absolute()
        carry = here(partial(lines_of, model, request, others, one_scale, to), parts)
        if cluster is not None:
            assert opening is not None
            work = Explaining(opening, asked, one_scale, tuple(background), to)
            carry = by_workers(replace(cluster, threads=threads), work, parts, model.device)
        complete(parts, ranges, carry, progress)
        count, problems = 0, list[tuple[str, str]]()
        with whole(out) as beside, open(beside, "wb") as handle:
            for each in ranges:
                for line in read_lines(parts.file(each.number)):
                    handle.write(to_json(line, indent=None).encode("utf-8", "surrogateescape"))
                    count += "attributions" in line
                    if "problem" in line:
                        problems.append((line["file"], line["problem"]))
        parts.remove()
    return Explanations(count, problems)


def check_place(out: Path) -> None:
    """Refuse a place where nothing can be written, and to write over anything.

    Raises:
        UsageError: Names it.
    """
    check_writable(out)
    for place in (out, out.with_suffix("")):
        if place.exists() and not folder_of(out).exists():
            free = free_name(out, lambda name: name.exists() or name.with_suffix("").exists())
            raise UsageError(f"{place} exists", shlex.join(["--out", str(free)]))


def _settled(
    asked: Mapping[str, Any], before: Mapping[str, Any], model: Model, files: Sequence[Path], run: str | Path | None
) -> dict[str, Any]:
    """What was asked for, with paths that are found from any folder, and with the precision that is chosen once."""
    found = dict(asked)
    for name in ("background", "similar_to"):
        if found.get(name) is not None:
            found[name] = str(Path(found[name]).expanduser().absolute())
    if (
        found.get("precision", "auto") == "auto"
        and found.get("trust", True)
        and not isinstance(model.output, Vocabulary)
    ):
        found["precision"] = before.get("precision") or chosen_precision(model, _first(files), "auto", run)
    return found


def _first(files: Sequence[Path]) -> Image.Image:
    """The first image that can be read.

    Raises:
        DataError: There is none.
    """
    problem = None
    for file in files:
        try:
            return open_image(file)
        except DataError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _others(model: Model, background: Sequence[str]) -> Others | None:
    return read_others(model, [(name, partial(open_image, Path(name))) for name in background]) if background else None


@dataclass(frozen=True)
class Explaining:
    """What a worker does.

    Args:
        opening: What it loads the model by.
        asked: See `explain_all`.
        one_scale: Likewise.
        background: The images that fill masked patches, where nothing else does.
        folder: Where overlays go.
        kind: How parts lie on disk.
    """

    opening: Opening
    asked: Mapping[str, Any]
    one_scale: bool
    background: tuple[str, ...]
    folder: Path
    kind: Lines = field(default_factory=Lines)

    def open(self) -> Compute:
        """Load the model."""
        model, request = requested(self.opening.load(), Question(**self.asked))
        return partial(lines_of, model, request, _others(model, self.background), self.one_scale, self.folder)


def lines_of(
    model: Model, request: Request, others: Others | None, one_scale: bool, folder: Path, ranges: Sequence[Range]
) -> Iterator[list[dict[str, Any]]]:
    """A line for each image of each range, in turn, when its overlays are written."""
    for each in ranges:
        assert isinstance(each.images, FileImages)
        names = [str(each.images.paths[row]) for row in each.ids.tolist()]
        images, problems = [], dict[str, str]()
        for name in names:
            try:
                images.append(NamedImage(name, open_image(Path(name))))
            except DataError as error:
                problems[name] = error.problem.removeprefix(f"{name}: ")
        found = {one.name: one for one in explained(model, images, request, others)} if images else {}
        lines = []
        for number, name in enumerate(names, start=each.first + 1):
            if name in problems:
                lines.append({"file": name, "problem": problems[name]})
                continue
            if name not in found:
                contrast = model.classes[request.contrast or 0]
                lines.append({"file": name, "left_out": f"the model classifies it as '{contrast}', {NOTHING_AGAINST}"})
                continue
            one, files = found[name], list[str]()
            for file, content in overlays_of(number, one.view, one_scale):
                files.append(f"{folder.name}/{each.number:06d}/{file}")
                write_file(folder.parent / files[-1], content)
            line = one.to_dict(files)
            for attribution in line["attributions"]:
                del attribution["seconds"]  # which differ from one time to the next
            lines.append(line)
        yield lines
