"""`vitrail explain RUN FOLDER --out maps.jsonl`: many images, a line of JSON for each, and overlays without a page.

    maps.jsonl       what `--json` has of an image, in order; of one that cannot be read `file` and `problem`, of one
                     that is taken for what it would be held against `file` and `left_out`
    maps/000012/     overlays of the 13th range, which the lines name

Neither has times in it, so that the bytes are the same whoever computes them: this process or workers of Ray. Killed at
any point, the same command goes on. Sets, masks and pages are not offered: a page is for images that somebody looks at.
"""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitrail.cli.args import Explain
from vitrail.cli.explain.asked import asked_of, tell_fills
from vitrail.cli.explain.inputs import is_a_set, some_files
from vitrail.cli.inputs import cluster_of, open_model, opening_of
from vitrail.cli.output import print_json, progress_bar, raise_unreadable, say
from vitrail.data.decode import open_image
from vitrail.data.images import FileImages, NamedImage
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError, counted
from vitrail.explain.reporting.explained import BATCH, NOTHING_AGAINST, at_a_time, chosen_precision, explained
from vitrail.explain.reporting.files import image_json, overlays_of
from vitrail.explain.reporting.others import Others, borrows, read_others, spread_over
from vitrail.explain.reporting.request import Request
from vitrail.io import check_writable, free_name, to_json, whole, write_file
from vitrail.jobs.lines import Lines, read_lines
from vitrail.jobs.opening import Opening, identity_of
from vitrail.jobs.parts import alone, begun, choices, complete, folder_of, here, noted, writing
from vitrail.jobs.ranges import Compute, Range, split_up
from vitrail.model import Model

ROWS = 16  # images of a range
ENDING = ".jsonl"
ASKED = (
    "method",
    "option",
    "compare",
    "methods",
    "target",
    "similar_to",
    "contrast",
    "no_trust",
    "full",
    "background",
    "precision",
)


def run_job(typed: Explain) -> int:
    """Explain every image, and say where the lines and the overlays are."""
    assert typed.out is not None
    out = typed.out
    _check(typed, out)
    cluster = cluster_of(typed, typed.threads)
    files = some_files(typed.images, typed.count)
    images = FileImages(files)
    threads = (
        typed.threads or noted(out, "torch_threads") or (None if cluster is None else 1)
    )  # they change the last bits
    loaded = open_model(typed.run, typed, BATCH, typed.images, device=typed.device, threads=threads)
    typed = _for_workers(typed, noted(out, "asked") or {}, loaded, files)
    model, request = asked_of(loaded, typed)
    background: list[str] = []
    if borrows(model, request):
        if not model.borrows_background:
            background = [str(file) for file in spread_over(files, at_a_time(model, len(request.methods)))]
        tell_fills(model, request, typed.run, bool(background))
    threads = torch.get_num_threads()
    job = {
        "verb": "explain",
        **identity_of(loaded),
        "asked": {name: _plain(getattr(typed, name)) for name in ASKED},
        "images": images.digest().hex(),
        "count": len(images),
        **choices(ROWS, model.device, threads, "bf16" if typed.precision == "bf16" else "fp32"),
        "torch_threads": threads,
        "batch": at_a_time(model, len(request.methods)) if request.methods else BATCH,
    }
    ranges = split_up([images], ROWS)
    with writing(out), alone(out):
        parts = begun(out, Lines(), job)
        to = out.with_suffix("").absolute()
        work = partial(lines_of, model, typed, request, _others(model, background), to)
        carry = here(work, parts)
        if cluster is not None:
            cluster = dataclasses.replace(cluster, threads=threads)
            opening = opening_of(typed.run, typed, loaded)
            carry = cluster.carry(Explaining(opening, typed, tuple(background), to), parts, model.device)
        with progress_bar() as progress:
            complete(parts, ranges, carry, progress)
        count, problems = 0, list[DataError]()
        with whole(out) as beside, open(beside, "wb") as handle:
            for each in ranges:
                for line in read_lines(parts.file(each.number)):
                    handle.write(to_json(line, indent=None).encode("utf-8", "surrogateescape"))
                    count += "attributions" in line
                    if "problem" in line:
                        problems.append(DataError(f"{line['file']}: {line['problem']}", "other images"))
        parts.remove()
    if typed.json:
        print_json([json.loads(line) for line in out.read_text("utf-8", "surrogateescape").split("\n")[:-1]])
    else:
        say(f"{counted(count, 'explanation')} in {out}")
        say(f"the overlays  {out.with_suffix('')}")
    raise_unreadable(problems, f" ({counted(count, 'other image')} explained)")
    return 0


def _check(typed: Explain, out: Path) -> None:
    """Refuse what pages have alone, and to write over anything.

    Raises:
        UsageError: Names it.
    """
    check_writable(out)
    first = typed.images[0]
    if is_a_set(typed.run, first):
        problem = f"{out.name} is for image files and folders of them, and {first} is a set"
        raise UsageError(problem, "--out explanation.html")
    if typed.masks is not None:
        raise UsageError(f"--masks is for pages, and {out.name} is none", "--out explanation.html")
    for place in (out, out.with_suffix("")):
        if place.exists() and not folder_of(out).exists():
            free = free_name(out, lambda name: name.exists() or name.with_suffix("").exists())
            raise UsageError(f"{place} exists", shlex.join(["--out", str(free)]))


def _for_workers(typed: Explain, before: dict[str, Any], model: Model, files: Sequence[Path]) -> Explain:
    """What was typed, with paths that are found from any folder, and with the precision that was chosen once."""

    def absolute(path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    background, similar = absolute(typed.background), absolute(typed.similar_to)
    precision = typed.precision
    if precision == "auto" and not typed.no_trust and not isinstance(model.output, Vocabulary):
        precision = before.get("precision") or chosen_precision(model, _first(files), "auto", typed.run)
    return dataclasses.replace(typed, background=background, similar_to=similar, precision=precision)


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


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def _others(model: Model, background: Sequence[str]) -> Others | None:
    return read_others(model, [(name, partial(open_image, Path(name))) for name in background]) if background else None


# ---- the work


@dataclass(frozen=True)
class Explaining:
    """What a worker does.

    Args:
        opening: What it loads the model by.
        typed: What was asked for.
        background: The images that fill masked patches, where nothing else does.
        folder: Where overlays go.
        kind: How parts lie on disk.
    """

    opening: Opening
    typed: Explain
    background: tuple[str, ...]
    folder: Path
    kind: Lines = field(default_factory=Lines)

    def open(self) -> Compute:
        """Load the model."""
        model, request = asked_of(self.opening.load(), self.typed)
        return partial(lines_of, model, self.typed, request, _others(model, self.background), self.folder)


def lines_of(
    model: Model,
    typed: Explain,
    request: Request,
    others: Others | None,
    folder: Path,
    ranges: Sequence[Range],
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
            if name not in found:
                against = {"left_out": f"the model takes it for '{typed.contrast}', {NOTHING_AGAINST}"}
                lines.append({"file": name, **({"problem": problems[name]} if name in problems else against)})
                continue
            one, files = found[name], list[str]()
            for file, content in overlays_of(number, one.view, typed.compare):
                files.append(f"{folder.name}/{each.number:06d}/{file}")
                write_file(folder.parent / files[-1], content)
            line = image_json(one.answer(), one.view, files)
            for attribution in line["attributions"]:
                del attribution["seconds"]  # which differ from one time to the next
            lines.append(line)
        yield lines
