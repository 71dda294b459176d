"""`vitrail explain RUN IMAGES`: where on an image a prediction comes from, as a page and as picture files."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from vitrail.cli.args import Explain
from vitrail.cli.explain.job import ENDING, run_job
from vitrail.cli.explain.maps import BATCH, Result, at_a_time, explain
from vitrail.cli.explain.page import check_writable, explained_json, page_at, write_pictures
from vitrail.cli.explain.pictures import find_lenders, read_pictures, with_masks
from vitrail.cli.explain.prepare import answer_of, borrows, lent_by, prepared, tell_lent
from vitrail.cli.output import print_json, print_table, say, warn
from vitrail.cli.sources import leave_out, load_on
from vitrail.data.background import FEW
from vitrail.errors import INTERRUPTED, DataError, UsageError, counted
from vitrail.model import Model
from vitrail.model.vouch import changes_of
from vitrail.pages.explanation_page import write_explanation_page
from vitrail.pages.views import ExplainedPicture, ExplanationPage
from vitrail.pages.words import fall_words, middle_of, parts_words, reach_of, several_words, shared_words, tests_of
from vitrail.tasks import FeaturePrediction, TextPrediction
from vitrail.text import percent


def run(typed: Explain, command: str) -> int:
    """Explain, write the page and the pictures, and say where they are."""
    if typed.out is not None and typed.out.suffix.lower() == ENDING:
        return run_job(typed)
    page = page_at(typed.out)
    check_writable(page)
    model = load_on(typed.run, typed.device, typed.threads, BATCH, typed, typed.images, typed.data_root)
    model, asked, answering = prepared(model, typed)
    problems: list[DataError] = []
    shown = read_pictures(model, typed.run, typed.images, typed.count, typed.data_root, problems)
    if not shown:
        raise DataError(problems[0].problem, "another picture")
    shown = with_masks(shown, typed.masks) if typed.masks is not None else shown
    lenders, results = None, list[Result]()
    if asked is not None and borrows(model, asked):
        if not model.borrows_background:
            together = at_a_time(model, len(asked.methods))
            lenders = find_lenders(model, typed.run, typed.images, typed.data_root, together)
        tell_lent(model, typed, lenders is not None)
    try:
        for result in explain(model, shown, asked, lenders, answering, run=typed.run):
            results.append(result)  # so that an interruption leaves what is there
    except KeyboardInterrupt:
        if not results:
            raise
        _write(model, typed, page, command, results)
        warn(f"interrupted: {counted(len(results), 'picture')} of {len(shown)} explained, and written")
        return INTERRUPTED
    if not results:
        problem = f"the model takes every picture for '{typed.rather_than}', which has nothing to be held against"
        others = [name for name in model.classes if name != typed.rather_than]
        other = shlex.quote(others[0]) if others else ""
        hint = f"--target {shlex.quote(str(typed.rather_than))} --rather-than {other}"
        raise UsageError(problem, hint if others else "leave --rather-than out")
    _write(model, typed, page, command, results)
    leave_out(problems)
    return 0


def _write(model: Model, typed: Explain, page: Path, command: str, results: Sequence[Result]) -> None:
    """The page, the pictures beside it, and on stdout JSON or sentences for people."""
    about = model.about
    if "vouched" in model.facts:
        run = str(model.facts.get("name") or (Path(typed.run).name if Path(typed.run).exists() else typed.run))
        about = " ".join(filter(None, (about, f"The weights: {model.facts['vouched']}.")))
        about += "".join(f" Changed, {change}." for change in changes_of(model.facts))
    else:
        run = Path(typed.run).resolve().name or typed.run  # the name of its folder, also where a link leads there
    fills = {view.trust.fill for _, one in results for view in one.heats if view.trust is not None}
    if model.background is None and typed.background is None and "donor" in fills:
        about = " ".join(filter(None, (about, f"Maps are tested with {lent_by(model)}.")))
    title = f"Where {run} looked" if model.task.searches else f"What {run} looked at"
    explained = [one for _, one in results]
    shown = ExplanationPage(title, typed.run, command, explained, about, one_scale=typed.compare)
    write_explanation_page(page, shown)
    written = write_pictures(page.with_suffix(""), shown)
    if typed.json:
        each = zip(results, written, strict=True)
        print_json([explained_json(answer_of(said, one), one, page, files) for (said, one), files in each])
        return
    _tell(model, typed, results)
    if model.about:
        say(model.about)
    say("")
    say(f"the page      {page}")
    say(f"the pictures  {page.with_suffix('')}")


def _tell(model: Model, typed: Explain, results: Sequence[Result]) -> None:
    """The answers and the verdicts: those of a comparison in a table, others as sentences below the answers."""
    explained = [one for _, one in results]
    rows, sentences = [], []
    for said, one in results:
        if isinstance(said, FeaturePrediction):
            label = f"(the model says {one.top[0][0]}, {percent(one.top[0][1])})" if one.top else ""
            rows.append((one.name, f"{one.heats[0].target}: {one.heats[0].logit:.4g}", label, ""))
        else:
            answer, shown = (said.text, said.shown) if isinstance(said, TextPrediction) else (said.label, said.label)
            truth = "" if one.true_label in (None, answer) else f"(it is {one.true_label})"
            rows.append((one.name, shown, percent(said.probability), truth))
        sentences += [f"{one.name}: {view.trust.sentence}" for view in one.heats if view.trust is not None]
    if typed.similar_to is None and (typed.target is not None or typed.rather_than is not None):
        against = "" if typed.rather_than is None else f" rather than {typed.rather_than}"
        say(f"explained: {typed.target or 'the class that the model chose'}{against}")
    several = several_words(explained[0].heats)
    if several:
        say(several)
    print_table(rows, left=2)
    if typed.compare:
        for one in explained:
            _tell_comparison(one)
    else:
        for sentence in ["", *sentences] if sentences else []:
            say(sentence)
    summed = [f"{one.name}: {parts_words(view)}" for one in explained for view in one.heats if view.parts]
    for sentence in ["", *summed] if summed else []:
        say(sentence)
    if any(view.trust is not None and view.trust.fill != "donor" for one in explained for view in one.heats):
        enough = FEW + at_a_time(model, len(explained[0].heats))
        warn(
            f"{typed.run} carries no background, so nothing can be told; --background DIR names images for one, and "
            f"{enough} images or more in one call serve each other"
        )


def _tell_comparison(one: ExplainedPicture) -> None:
    """The maps of one picture in a table, with what random orders of squares have, and what is told of all of them."""
    reach = reach_of(tests_of(one.heats))
    rows, head = [], ("", "", "verdict", "fall", "deletion", "insertion", "time")
    for view in one.heats:
        tested = ("", "") if view.trust is None else (view.trust.verdict, fall_words(view.trust.paired, reach))
        curves = ("", "") if view.areas is None else (f"{view.areas.deletion:.2f}", f"{view.areas.insertion:.2f}")
        seconds = "" if view.seconds is None else f"{view.seconds:.2g} s"
        rows.append((view.title, "" if view.class_specific else "class-blind", *tested, *curves, seconds))
    first = one.heats[0]
    if first.trust is not None and first.areas is not None:
        curves = (f"{first.areas.random_deletion:.2f}", f"{first.areas.random_insertion:.2f}")
        rows.append(("A random order", "", "", fall_words(middle_of(first.trust), reach), *curves, ""))
    if first.trust is None:
        rows, head = [(title, blind, seconds) for title, blind, *_, seconds in rows], ("", "", "time")
    say("")
    say(one.name)
    print_table(rows, head, left=3 if first.trust is not None else 2)
    for words in shared_words(one.heats):
        say(words)
