"""`vitrail explain RUN IMAGES`: maps of images on a page, or a line of JSON for each of many."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from vitrail.cli.args import LINES, Explain
from vitrail.cli.inputs import cluster_of, load_model
from vitrail.cli.output import print_json, print_line, print_table, progress_bar, raise_unreadable, warn
from vitrail.data.background import FEW
from vitrail.data.columns import EVIDENCE, Samples
from vitrail.data.images import NamedImage, evenly
from vitrail.data.layout import Layout
from vitrail.data.masks import add_masks
from vitrail.data.sources import read_images
from vitrail.errors import INTERRUPTED, DataError, Hint, UsageError, counted
from vitrail.explain.methods import ALL, DEFAULT, USUAL
from vitrail.explain.reporting.plan import (
    BATCH,
    WRITTEN,
    Opener,
    ReportOptions,
    ReportPlan,
    plan_report,
    without_background,
)
from vitrail.explain.reporting.report import Report, add_nearest, explain_images, named_image, open_named
from vitrail.io import check_writable, page_at, write_file
from vitrail.model import Model
from vitrail.pages.image_views import AttributionView, ImageView
from vitrail.pages.trust import (
    drop_words,
    parts_words,
    reach_of,
    several_words,
    shared_words,
    short_words,
    tested_words,
    tests_of,
)
from vitrail.runs.beside import AUTO, TrainingImages
from vitrail.runs.data import open_for, open_run
from vitrail.text import percent

ASKING = "looking for evidence in each image"  # before any map is made
WAITING = "computing and testing maps; --no-trust skips the tests"
SHOWN = 8  # images of a set, without a number

Notify = Callable[[str], object]


def run(options: Explain, command: str) -> int:
    """Explain, write the page and the overlays, and print where they are."""
    if options.out is not None and options.out.suffix.lower() == LINES:
        return _write_lines(options, options.out)
    page = page_at(options.out)
    check_writable(page)
    model = load_model(options.run, options, BATCH, options.images)
    wanted, stopped = _report_options(options, model), None
    samples, numbers = read_samples(model, options, warn)
    plan = dataclasses.replace(plan_report(model, wanted), bump=True)
    shown, problems, others = open_images(samples, numbers, model, plan, warn)
    if not shown:
        raise problems[0]
    shown = add_masks(shown, options.masks) if options.masks is not None else shown
    training = TrainingImages(model, options.nearest or AUTO, options.data_root)

    def show(so_far: Report) -> None:
        """Print what came last, and write the page of all so far, each time behind twice as many images."""
        if not options.json:
            _print_image(so_far, [one.name for one in shown], options)
        if len(so_far) < len(shown) and not len(so_far) & (len(so_far) - 1):
            with suppress(OSError):  # at the end it counts
                write_file(page, so_far.page())
            if len(so_far) == 1 and not options.json:
                print_line(f"so far on     {page}")

    try:
        with progress_bar(*((ASKING, WAITING) if plan.trust else ("explaining",))) as progress:
            unread = [error.problem for error in problems]
            found = explain_images(shown, plan, others, progress=progress, notify=warn, left_out=unread, show=show)
        with progress_bar("looking at training images") as progress:
            found = add_nearest(found, training, progress)
    except (Exception, KeyboardInterrupt) as error:
        if (found := getattr(error, "report", None)) is None:
            raise
        stopped = error
    found, saved = dataclasses.replace(found, command=command), None
    try:
        saved = found.save(page)
    finally:  # on a full disk, too
        if options.json:
            print_json(found.to_dict(saved))
        else:
            _print_all(found, model, options)
    if not options.json:
        print_line(f"the page      {saved.page}")
        if any(saved.overlays):  # images without evidence have none
            print_line(f"the overlays  {saved.page.with_suffix('')}")
    if stopped is not None:
        why = "interrupted" if isinstance(stopped, KeyboardInterrupt) else "stopped by an error"
        done = f"{counted(len(found), 'image')} of {len(shown)} explained and written"
        warn(f"{why}: {done}, the last of them {found[-1].name}")
        if isinstance(stopped, KeyboardInterrupt):
            return INTERRUPTED
        raise stopped
    raise_unreadable(problems, "")
    return 0


def _write_lines(options: Explain, out: Path) -> int:
    """Explain many images, without a page; masks are for pages."""
    from vitrail.explain.reporting.job import (  # with all that a job needs, which a page does not
        check_place,
        explain_all,
    )
    from vitrail.jobs.parts import job_entry

    for name in ("masks", "nearest"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for pages, and {out.name} is not a page", Hint({"out": "explanation.html"}))
    check_place(out)
    threads = job_entry(out, "torch_threads") or (None if options.ray is None else 1)  # they change the last bits
    model = load_model(options.run, options, BATCH, options.images, threads)
    wanted = _report_options(options, model)
    samples, numbers = read_samples(model, options, warn, None)
    with progress_bar() as progress:
        found = explain_all(
            samples.select(np.array(numbers, np.int64)),
            model,
            out,
            wanted,
            cluster=cluster_of(options, model),
            progress=progress,
            notify=warn,
        )
    if options.json:
        print_json([json.loads(line) for line in out.read_text("utf-8").split("\n")[:-1]])
    else:
        print_line(f"{counted(found.count, 'explanation')} in {out}")
        if out.with_suffix("").exists():
            print_line(f"the overlays  {out.with_suffix('')}")
        for each in found.rates if found.count > 1 else ():
            print_line(f"{each.title}: {each.words}")
    problems = [DataError(f"{name}: {why}", "other images") for name, why in found.problems]
    raise_unreadable(problems, f" ({counted(found.count, 'other image')} explained)")
    return 0


def read_samples(model: Model, options: Explain, notify: Notify, most: int | None = SHOWN) -> tuple[Samples, list[int]]:
    """What is named, and the numbers of those that are explained: images that are named themselves, and some others.

    Args:
        model: Will answer them.
        options: Name images and folders, or one set, list or pack, of which
            the test images are read, else the validation ones; and how many of them, evenly spread.
        notify: Called with a sentence about what is left aside, by its number or since it is no image.
        most: How many without `--count`; all when None.

    Raises:
        UsageError: A set stands beside other images, or there is nothing to count.
        DataError: There is no image at all.
    """
    names, count, run = options.images, options.count, open_run(options.run)
    first, typed = names[0], {Path(name).expanduser().as_posix() for name in names}
    if run.knows(first):
        if reader := run.reader:
            raise UsageError(
                f"{first} was read by a reader of your own, {reader}",
                f"in Python: model = vitrail.load({run.name!r}), then vitrail.explain.occlusion(model.network, "
                f"model.tensor(images), 0) with images of {reader}({first!r}, None)",
            )
        if len(names) > 1:
            problem = f"{first} is the data of the run, which cannot be combined with other images"
            raise UsageError(problem, f"vitrail explain {run.name} {first}")
        samples = open_for(model, run, first, options.data_root, layout=Layout.of(options)).samples
    else:
        raw = read_images(names, run.root_for(first, options.data_root), flat=True, layout=Layout.of(options))
        for note in raw.notes:
            notify(note)
        samples = raw.held_out
    loose = [number for number in range(len(samples)) if samples.name(number) not in typed]
    if count is not None and not loose:
        problem = f"--count {count} is for a data set or a folder, not for single images"
        raise UsageError(problem, Hint(drop=["count"]))
    wanted = count or most or len(loose)
    if len(loose) > wanted:
        notify(f"{wanted} of {len(loose):,} images; --count {len(loose)} for all")
    chosen = set(evenly(loose, wanted))
    return samples, [number for number in range(len(samples)) if number in chosen or samples.name(number) in typed]


def open_images(
    samples: Samples, numbers: Sequence[int], model: Model, plan: ReportPlan, notify: Notify
) -> tuple[list[NamedImage], list[DataError], list[Opener]]:
    """These images; why others of them cannot be read; and all samples, unopened, which may fill masked patches.

    Args:
        samples: All.
        numbers: Of those that are explained.
        model: Will answer them.
        plan: Of their explanation.
        notify: Called with a sentence where the known place of the evidence is lost.
    """
    found, unread = open_named([partial(named_image, samples, number, model) for number in numbers], plan)
    shown = list(found.values())
    sizes = [(model.preprocessing.size[1], model.preprocessing.size[0]), *(one.image.size for one in shown[:1])]
    if EVIDENCE in samples.columns and sizes[0] != sizes[-1]:
        reads, has = (f"{width} x {height}" for width, height in sizes)
        notify(f"{shown[0].name} has {has} pixels, but the model reads {reads}: where its evidence lies is not marked")
    images, decoded = samples.images, {one.name: one.image.copy for one in shown}
    every = [(n, decoded.get(n, partial(images.open, row))) for row, n in enumerate(images.names())]
    return shown, list(unread.values()), every


def _report_options(options: Explain, model: Model) -> ReportOptions:
    """What is explained, and how, in plain values.

    Raises:
        UsageError: Two options do not go together, or one has no effect for such a model.
    """
    if model.reads_text:
        plan_report(model, ReportOptions())  # refuses it
    named = None if options.methods is None else [part.strip() for part in options.methods.split(",") if part.strip()]
    if named == []:
        raise UsageError(f"--methods '{options.methods}' names no method", Hint({"methods": f"{DEFAULT},rollout"}))
    methods = named or (ALL if options.full else USUAL) if options.compare else options.method or DEFAULT
    if model.output.generates:
        for name, value in {"masks": options.masks, "no_trust": options.no_trust or None}.items():
            if value is not None:
                problem = f"--{name.replace('_', '-')} is for classifiers, but this model generates text"
                raise UsageError(problem, Hint(drop=[name]))
        if options.method == DEFAULT:
            problem = f"method '{DEFAULT}' explains classes, but this model generates text"
            raise UsageError(problem, Hint({"method": WRITTEN}))
    pairs = (word.partition("=") for word in options.option)
    return ReportOptions(
        methods=methods,
        target=options.target,
        contrast=options.contrast,
        top_labels=options.top_labels,
        similar_to=None if options.similar_to is None else str(options.similar_to),
        options={name.replace("-", "_"): value for name, _, value in pairs},
        background=None if options.background is None else str(options.background),
        trust=not options.no_trust,
        full=options.full,
        precision=options.precision,
    )


def _print_image(so_far: Report, names: Sequence[str], options: Explain) -> None:
    """The image that came last: the answer, and the verdict as a sentence, those of a comparison as a table."""
    one, label = so_far[-1], ""
    answer, views, truth = one.prediction, one.view.attributions, one.view.true_label
    if len(so_far) == 1 and options.similar_to is None and (options.target is not None or options.contrast is not None):
        against = "" if options.contrast is None else f" rather than {options.contrast}"
        print_line(f"explained: {options.target or 'the top class of each image'}{against}")
    several = [several_words(each.view.by_label[0].attributions) for each in so_far]
    if several[-1] and not any(several[:-1]):
        print_line(several[-1])
    if not answer.top:
        top = one.view.top
        row = one.name, _number_words(views[0])
        label = f"(predicted: {top[0][0]}, {percent(top[0][1])})" if top else ""
    else:
        row = (one.name, one.view.predicted, "" if one.view.answer else percent(answer.top[0][1]))
        label = f"(it is {truth})" if truth not in (None, next(iter(answer.brief().values()))) else ""
    said = [one.view.left] if one.view.left else []
    for part in one.view.by_label:
        said += _plain_words(part) or [
            " ".join([each.sentence, *short_words(each)[1:]]) for each in tests_of(part.attributions)
        ]
    in_row = not one.view.drawn and len(said) == 1
    if options.compare and one.view.drawn:
        print_line("")
    print_table([(*row, label, said[0] if in_row else "")], left=2, least=(max(names, key=len),))
    compared = options.compare and one.view.drawn
    for part in one.view.by_label if compared else ():
        if one.view.labels:
            print_line(f"{part.attributions[0].target}:")
        _print_comparison(part)
    for sentence in [*([] if compared or in_row else said), *(parts_words(view) for view in views if view.parts)]:
        print_line(f"{one.name}: {sentence}")


def _number_words(view: AttributionView) -> str:
    """The number that is explained, one of the data beside the mean of training."""
    if view.in_data is None:
        return f"{view.target}: {view.logit:.4g}"
    return f"{view.named}: {view.write(view.in_data)}, {view.beside_mean}"


def _plain_words(view: ImageView) -> list[str]:
    """What the summary says of maps of which none can be trusted, but for what follows; the page has all."""
    verdicts = {each.verdict for each in tests_of(view.attributions)}
    return [f"{verdicts.pop()}: {' '.join(view.summary[1:-1])}"] if verdicts == {"cannot tell"} else []


def _print_all(found: Report, model: Model, options: Explain) -> None:
    """What stands behind all images: the rates, and what to know of the model and of the verdicts."""
    rates = [f"{each.title}: {each.words}" for each in found.rates] if len(found) > 1 else []
    for sentence in ["", *rates] if rates else []:
        print_line(sentence)
    if not all(one.view.drawn for one in found):
        print_line("images without evidence have no maps; --full makes and tests them, and changes no verdict")
    if options.target is None and options.similar_to is None and model.output.besides:
        print_line(model.output.besides)
    if model.about:
        print_line(model.about)
    if any(each is not None and each.fill != "background" for one in found for each in one.trust):
        warn(
            f"{without_background(model)}, so no verdict is possible; use --background DIR, or explain at "
            f"least {FEW + 1} images in one call, which then serve as background for each other"
        )
    print_line("")


def _print_comparison(explained: ImageView) -> None:
    """The attributions of one image, or label, in a table, with those of random maps, and what holds for all."""
    views = explained.attributions
    trusts, drops = tests_of(views), reach_of(tests_of(views))
    rows, head = [], ("", "", "verdict", "drop", "random maps", "deletion", "insertion", "passes", "time")
    for view in views:
        test, curves = view.trust, ("", "")
        tested = ("", "", "")
        if test is not None:
            tested = (test.verdict, drop_words(test.score, drops), drop_words(test.random_mean, drops))
        if view.areas is not None:
            curves = (f"{view.areas.deletion:.2f}", f"{view.areas.insertion:.2f}")
        passes = "" if test is None else str(test.passes)
        seconds = "" if view.seconds is None else f"{view.seconds:.2g} s"
        kind = "" if view.class_specific else "class-agnostic"
        rows.append((view.title, kind, *tested, *curves, passes, seconds))
    areas = next((view.areas for view in views if view.areas is not None), None)
    if areas is not None:
        curves = (f"{areas.random_deletion:.2f}", f"{areas.random_insertion:.2f}")
        rows.append(("Random maps", "", "", "", "", *curves, "", ""))
    shown = [column for column in range(len(head)) if column < 2 or any(row[column] for row in rows)]
    rows = [[row[column] for column in shown] for row in rows]
    print_table(rows, [head[column] for column in shown], left=3 if trusts else 2)
    if compared := tested_words(trusts):
        print_line(f"tested with {compared}; passes are forward passes of the image for a verdict")
    for words in _plain_words(explained) or shared_words(views):
        print_line(words)
