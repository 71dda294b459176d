"""`vitrail explain RUN IMAGES`: where on an image a prediction comes from, as a page and as image files."""

import contextlib
from collections.abc import Callable, Iterator

from vitrail.cli.args import Explain
from vitrail.cli.explain.asked import asked_of, tell_fills
from vitrail.cli.explain.inputs import find_others, read_images, with_masks
from vitrail.cli.explain.job import ENDING, run_job
from vitrail.cli.inputs import open_model
from vitrail.cli.output import console, print_json, print_table, raise_unreadable, say, warn
from vitrail.data.background import FEW
from vitrail.errors import INTERRUPTED, DataError, counted
from vitrail.explain.reporting.explained import BATCH, ExplainedImage, at_a_time, explained
from vitrail.explain.reporting.files import page_at
from vitrail.explain.reporting.others import borrows
from vitrail.explain.reporting.report import Report, made_report, nothing_left
from vitrail.io import check_writable
from vitrail.model import Model
from vitrail.pages.trust import fall_words, middle_of, parts_words, reach_of, several_words, shared_words, tests_of
from vitrail.tasks import FeaturePrediction, TextPrediction
from vitrail.text import percent


def run(typed: Explain, command: str) -> int:
    """Explain, write the page and the overlays, and say where they are."""
    if typed.out is not None and typed.out.suffix.lower() == ENDING:
        return run_job(typed)
    page = page_at(typed.out)
    check_writable(page)
    where = {"device": typed.device, "threads": typed.threads, "data_root": typed.data_root}
    model = open_model(typed.run, typed, BATCH, typed.images, **where)
    model, request = asked_of(model, typed)
    problems: list[DataError] = []
    images = read_images(model, typed.run, typed.images, typed.count, typed.data_root, problems)
    if not images:
        raise DataError(problems[0].problem, "another image")
    images = with_masks(images, typed.masks) if typed.masks is not None else images
    others = None
    if borrows(model, request):
        if not model.borrows_background:
            together = at_a_time(model, len(request.methods))
            others = find_others(model, typed.run, typed.images, typed.data_root, together)
        tell_fills(model, request, typed.run, others is not None)
    results = list[ExplainedImage]()
    try:
        with _waiting(request.trust) as progress:
            for one in explained(model, images, request, others, typed.run, progress, _left_out):
                results.append(one)  # so that an interruption leaves what is there
    except KeyboardInterrupt:
        if not results:
            raise
        _write(made_report(model, request, results, typed.run, command, typed.compare), model, typed)
        warn(f"interrupted: {counted(len(results), 'image')} of {len(images)} explained, and written")
        return INTERRUPTED
    if not results:
        raise nothing_left(model, typed.contrast)
    _write(made_report(model, request, results, typed.run, command, typed.compare), model, typed)
    raise_unreadable(problems, "")
    return 0


def _left_out(words: str) -> None:
    warn(f"left out: {words}")


@contextlib.contextmanager
def _waiting(scored: bool) -> Iterator[Callable[[int, int], None]]:
    """On a terminal, a line that says what takes so long and how far it is."""
    on = console(to_stderr=True)
    says = "explaining, and testing each map; --no-trust leaves the test out" if scored else "explaining"
    if not on.is_terminal:
        yield lambda done, of: None
        return
    with on.status(says) as line:
        yield lambda done, of: line.update(f"{done} of {of} images; {says}" if of > 1 else says)


def _write(report: Report, model: Model, typed: Explain) -> None:
    """The page, the overlays beside it, and on stdout JSON or sentences for people."""
    saved = report.save(page_at(typed.out))
    if typed.json:
        print_json([{**row, "page": str(saved.page)} for row in report.to_dict(saved)["images"]])
        return
    _tell(report, typed)
    if model.about:
        say(model.about)
    if any(each is not None and each.fill != "background" for one in report for each in one.trust):
        enough = FEW + at_a_time(model, len(report[0].attributions))
        warn(
            f"{typed.run} carries no background, so no verdict is possible; --background DIR uses images of a folder, "
            f"and {enough} images or more in one call serve each other"
        )
    say("")
    say(f"the page      {saved.page}")
    say(f"the overlays  {saved.page.with_suffix('')}")


def _tell(report: Report, typed: Explain) -> None:
    """The answers and the verdicts: those of a comparison in a table, others as sentences below the answers."""
    rows, sentences, summed = [], [], []
    for one in report:
        said, views, truth = one.prediction, one.view.attributions, one.view.true_label
        if isinstance(said, FeaturePrediction):
            top = one.view.top
            label = f"(the model says {top[0][0]}, {percent(top[0][1])})" if top else ""
            rows.append((one.name, f"{views[0].target}: {views[0].logit:.4g}", label, ""))
        else:
            answer, shown = (said.text, said.shown) if isinstance(said, TextPrediction) else (said.label, said.label)
            rows.append((one.name, shown, percent(said.probability), _truth(truth, answer)))
        sentences += [f"{one.name}: {view.trust.sentence}" for view in views if view.trust is not None]
        summed += [f"{one.name}: {parts_words(view)}" for view in views if view.parts]
    if typed.similar_to is None and (typed.target is not None or typed.contrast is not None):
        against = "" if typed.contrast is None else f" rather than {typed.contrast}"
        say(f"explained: {typed.target or 'the class that the model chose'}{against}")
    several = several_words(report[0].view.attributions)
    if several:
        say(several)
    print_table(rows, left=2)
    if typed.compare:
        for one in report:
            _tell_comparison(one)
    else:
        for sentence in ["", *sentences] if sentences else []:
            say(sentence)
    for sentence in ["", *summed] if summed else []:
        say(sentence)


def _truth(label: str | None, answer: str) -> str:
    return "" if label in (None, answer) else f"(it is {label})"


def _tell_comparison(one: ExplainedImage) -> None:
    """The attributions of one image in a table, with what random maps have, and what is told of all."""
    views = one.view.attributions
    reach = reach_of(tests_of(views))
    rows, head = [], ("", "", "verdict", "fall", "deletion", "insertion", "time")
    for view in views:
        tested = ("", "") if view.trust is None else (view.trust.verdict, fall_words(view.trust.paired, reach))
        curves = ("", "") if view.areas is None else (f"{view.areas.deletion:.2f}", f"{view.areas.insertion:.2f}")
        seconds = "" if view.seconds is None else f"{view.seconds:.2g} s"
        rows.append((view.title, "" if view.class_specific else "class-blind", *tested, *curves, seconds))
    first = views[0]
    if first.trust is not None and first.areas is not None:
        curves = (f"{first.areas.random_deletion:.2f}", f"{first.areas.random_insertion:.2f}")
        rows.append(("Random maps", "", "", fall_words(middle_of(first.trust), reach), *curves, ""))
    if first.trust is None:
        rows, head = [(title, blind, seconds) for title, blind, *_, seconds in rows], ("", "", "time")
    say("")
    say(one.name)
    print_table(rows, head, left=3 if first.trust is not None else 2)
    for words in shared_words(views):
        say(words)
