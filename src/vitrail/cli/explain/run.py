"""`vitrail explain RUN PICTURES`: where on a picture a prediction comes from, as a page and as picture files."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.args import Explain
from vitrail.cli.explain.places import check_writable, folder_name, page_at
from vitrail.cli.parse import parse
from vitrail.cli.shown import leave_out
from vitrail.errors import INTERRUPTED, DataError, UsageError, counted

if TYPE_CHECKING:
    from vitrail.cli.explain.maps import Result


def run(words: Sequence[str]) -> int:
    """Explain, write the page and the pictures, and say where they are."""
    says = "Show where on a picture a prediction comes from. Example: vitrail explain runs/latest photo.jpg"
    typed = parse(Explain, "explain", words, says)
    if not typed.pictures:
        raise UsageError("no picture given", f"vitrail explain {typed.run} photo.jpg")
    if typed.count < 1:
        raise UsageError(f"--count must be at least 1, got {typed.count}", "--count 4")
    page, command = page_at(typed.out), shlex.join(["vitrail", "explain", *words])
    check_writable(page)

    from vitrail.cli.explain.maps import BATCH
    from vitrail.cli.models_on import load_on
    from vitrail.data.columns import Classes

    model = load_on(typed.run, typed.device, typed.threads, BATCH)
    if not isinstance(model.output, Classes):
        from vitrail.cli.explain.written import explain_written

        return explain_written(model, typed, page, command)

    from vitrail.cli.explain.asked import check_asked
    from vitrail.cli.explain.maps import explain
    from vitrail.cli.explain.pictures import read_pictures, with_masks
    from vitrail.cli.output import warn

    asked = check_asked(model, typed)
    problems: list[str] = []
    shown = read_pictures(model, typed.run, typed.pictures, typed.count, typed.data_root, problems)
    if not shown:
        raise DataError(problems[0], "another picture")
    shown = with_masks(shown, typed.masks) if typed.masks is not None else shown
    results: list[Result] = []
    try:
        for result in explain(model, shown, asked):
            results.append(result)  # so that an interruption leaves what is there
    except KeyboardInterrupt:
        if not results:
            raise
        _write(typed, page, command, results)
        warn(f"interrupted: {counted(len(results), 'picture')} of {len(shown)} explained, and written")
        return INTERRUPTED
    if not results:
        problem = f"the model takes every picture for '{typed.rather_than}', which has nothing to be held against"
        raise UsageError(problem, f"--target {typed.rather_than} --rather-than with another class")
    _write(typed, page, command, results)
    leave_out(problems)
    return 0


def _write(typed: Explain, page: Path, command: str, results: Sequence["Result"]) -> None:
    """The page and the pictures, and what is said of them."""
    from vitrail.cli.explain.telling import tell
    from vitrail.cli.explain.writing import write_all
    from vitrail.pages.views import ExplanationPage

    title, explained = f"What {folder_name(typed.run)} looked at", [one for _, one in results]
    shown = ExplanationPage(title, typed.run, command, explained, one_scale=typed.compare)
    answers = [
        {"label": said.label, "probability": said.probability, "true_label": one.true_label} for said, one in results
    ]
    write_all(shown, page, answers, typed.json, lambda: tell(typed, results))
