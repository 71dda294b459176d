"""`vitrail explain RUN PICTURES`: where on a picture a prediction comes from, as a page and as picture files."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.explain.options import Explain
from vitrail.cli.explain.places import folder_name, page_at
from vitrail.cli.parse import parse
from vitrail.cli.shown import leave_out
from vitrail.errors import DataError, UsageError

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

    from vitrail.cli.explain.maps import BATCH
    from vitrail.cli.models_on import load_on
    from vitrail.sequence_model import SequenceModel

    model = load_on(typed.run, typed.device, typed.threads, BATCH)
    if isinstance(model, SequenceModel):
        from vitrail.cli.explain.written import explain_written

        return explain_written(model, typed, page, command)

    from vitrail.cli.explain.asked import check_asked
    from vitrail.cli.explain.maps import explain
    from vitrail.cli.explain.pictures import read_pictures, with_masks

    asked = check_asked(model, typed)
    problems: list[str] = []
    shown = read_pictures(model, typed.run, typed.pictures, typed.count, typed.data_root, problems)
    if not shown:
        raise DataError(problems[0], "another picture")
    shown = with_masks(shown, typed.masks) if typed.masks is not None else shown
    _write(typed, page, command, explain(model, shown, asked))
    leave_out(problems)
    return 0


def _write(typed: Explain, page: Path, command: str, results: Sequence["Result"]) -> None:
    """The page and the pictures, and what is said of them."""
    from vitrail.cli.explain.writing import write_all
    from vitrail.pages.views import ExplanationPage

    title, explained = f"What {folder_name(typed.run)} looked at", [one for _, one in results]
    shown = ExplanationPage(title, typed.run, command, explained, one_scale=typed.compare)
    answers = [
        {"label": said.label, "probability": said.probability, "true_label": one.true_label} for said, one in results
    ]
    write_all(shown, page, answers, typed.json, lambda: _tell(typed, results))


def _tell(typed: Explain, results: Sequence["Result"]) -> None:
    """The answers and the verdicts: those of a comparison in a table, others as sentences below it."""
    from vitrail.cli.output import print_table, say, warn
    from vitrail.pages.words import parts_words, several_words, shared_words
    from vitrail.shares import percent

    explained = [one for _, one in results]
    rows, sentences = [], []
    for prediction, one in results:
        truth = "" if one.true_label in (None, prediction.label) else f"(it is {one.true_label})"
        rows.append((one.name, prediction.label, percent(prediction.probability), truth))
        tested = [(view.title, view.trust) for view in one.heats if view.trust is not None]
        if typed.compare:
            rows += [("", title, trust.verdict) for title, trust in tested]
            sentences += [f"{one.name}: {words}" for words in shared_words(one.heats)]
        else:
            sentences += [f"{one.name}: {trust.sentence}" for _, trust in tested]
    if typed.target is not None or typed.rather_than is not None:
        against = "" if typed.rather_than is None else f" rather than {typed.rather_than}"
        say(f"explained: {typed.target or 'the class that the model chose'}{against}")
    several = several_words(explained[0].heats)
    if several:
        say(several)
    print_table(rows, left=3 if typed.compare else 2)
    for sentence in ["", *sentences] if sentences else []:
        say(sentence)
    summed = [f"{one.name}: {parts_words(view)}" for one in explained for view in one.heats if view.parts]
    for sentence in ["", *summed] if summed else []:
        say(sentence)
    if any(view.trust is not None and view.trust.fill != "donor" for one in explained for view in one.heats):
        warn(f"{typed.run} carries no reference pictures, so nothing can be told; --reference DIR names some")
