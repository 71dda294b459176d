"""The journal of a run, its page `run.html`, and the verdicts on explanations of its network.

Two networks of the same accuracy may be right for different reasons. So at the end of a run the maps of
`generic_attention` for the network's own predictions are tested (`vitrail.explain.report`), and the images on which
they are supported are counted, in all and for each class; if there are two networks, for both.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from vitrail.data.batches import Batches
from vitrail.data.dataset import Split
from vitrail.data.images import NamedImage
from vitrail.data.loader import check_readable
from vitrail.data.sources import format_of
from vitrail.errors import counted
from vitrail.explain.evidence import COMPOSITES
from vitrail.explain.reporting.plan import ReportOptions, plan_report
from vitrail.explain.reporting.report import Report, explain_images
from vitrail.explain.verdict import Precision
from vitrail.io import other_out, read_json, write_file
from vitrail.model import Model
from vitrail.pages.render import run_page
from vitrail.pages.run_views import RunState, RunView, SidesView
from vitrail.runs.evaluate import with_images
from vitrail.runs.folder import RunFolder, clock
from vitrail.runs.settings import Settings, image_config, settings_to_dict
from vitrail.text import number
from vitrail.training.configuration.resolve import open_readable
from vitrail.training.events import Event, Finished, Listen, Started
from vitrail.training.lora import FACTORS
from vitrail.training.optimizer import Schedule, parameter_rules, rates_words
from vitrail.training.prepared import Prepared, shorten, unreadable_notes

MODEL = "model"  # name of the network of a run, if there is one
COUNT = 24  # images by default
LONG_FACT = 60  # characters of the names of outputs, from which on their number is shown instead
MOST_SECONDS = 60.0  # for verdicts that were not requested
PASSES = 200  # forward passes per image, about; composites are made once for each network


class Log:
    """Listens to a run and writes what is printed into its log, with the time of that, also before there is a log.

    Args:
        listen: Gets every event, too.
    """

    def __init__(self, listen: Listen) -> None:
        self.listen, self._early = listen, list[tuple[str, str]]()
        self._folder: RunFolder | None = None

    def __call__(self, event: Event) -> None:
        """Write a sentence, and that steps begin; hand every event on."""
        if isinstance(event, str | Started):
            words = event if isinstance(event, str) else f"training: steps {event.step} to {event.steps}"
            self._early.append((words, clock()))
            self.open(self._folder)
        self.listen(event)

    def open(self, folder: RunFolder | None) -> None:
        """Write what was printed so far; from now on every line at once."""
        self._folder = folder
        while folder is not None and self._early:
            folder.append_log(*self._early.pop(0))


@dataclass(frozen=True)
class Journal:
    """What a run tells as it goes: lines of its log, and notes, which `data.json` and the page keep.

    Attributes:
        folder: Where it writes.
        prepared: Data, network and settings.
        notes: All so far, one sentence each.
    """

    folder: RunFolder
    prepared: Prepared
    notes: list[str]

    def note(self, *sentences: str) -> None:
        """Keep those that are new, and announce them, so that they are logged (`Log`)."""
        if new := [sentence for sentence in sentences if sentence not in self.notes]:
            self.notes.extend(new)
            self.write_data()
        for sentence in shorten(new):
            self.prepared.listen(sentence)

    def write_data(self) -> None:
        """Write `data.json` with the notes so far."""
        self.folder.write_json("data.json", self.prepared.data_facts(self.notes))

    def name_unreadable(self, *sets: Batches) -> None:
        """Note each sample that cannot be read, once; too many of them end the run."""
        self.note(*unreadable_notes(*(each.unreadable for each in sets)))
        # they are other data then, for another run
        hint = other_out(self.folder.path, "when they are repaired or moved")
        for each in sets:
            check_readable(each.unreadable, len(each), hint, self.prepared.settings.unreadable)


def write_page(
    journal: Journal,
    state: RunState,
    done: Finished | None = None,
    sides: SidesView | None = None,
    about: str = "",
    verdicts: Report | None = None,
) -> None:
    """Write `run.html`.

    Args:
        journal: Of the run.
        state: Of the run.
        done: The model with its evaluation, once there is one.
        sides: The comparison of probe and tuned network, if there are both.
        about: Sentences on the choice of the network that is the model, or on why there is none.
        verdicts: Of the model, if they were requested.
    """
    folder, prepared = journal.folder, journal.prepared
    task, model, level = prepared.model.task, prepared.model, None
    probed = folder.path / "probe.json"
    if task.metric.fraction and model.output.is_wrong and probed.is_file():  # else its score is another figure
        found = read_json(probed, other_out(folder.path))
        some = "all" if found["images"] >= len(prepared.validation) else f"{found['images']:,}"
        level = f"linear probe ({some} of validation)", found["accuracy"]
    settings, row = settings_to_dict(prepared.settings), format_of(prepared.settings.data)
    if row is None or not row.made:
        del settings["counts"]  # of samples that are generated
    measured, own = [f"training_{name}" for name in task.measures.values()], f"training_{task.metric.key}"
    view = RunView(
        title=prepared.settings.data,
        state=state,
        badge=_badge(journal, state),
        facts=_facts(prepared),
        history=folder.history(),
        metric=task.metric.label,
        fraction=task.metric.fraction,
        curves=[*[("training", own)] * (own in measured), (prepared.scored_words, f"validation_{task.metric.key}")],
        measures=[key for key in measured if key != own],
        scored=prepared.scored_words,
        level=level,
        sides=sides,
        verdicts=verdicts,
        about=about,
        rates=rates_words(parameter_rules(prepared.network, prepared.settings.optimization)),
        evaluation=None if done is None else with_images(done.evaluated, model, prepared.final[0].samples),
        settings=settings,
        environment=read_json(folder.path / "env.json", other_out(folder.path)),
        notes=journal.notes,
        command=(folder.path / "command.txt").read_text(encoding="utf-8").strip(),
        changed=prepared.settings.augmentation.words,
        weighted=prepared.settings.rare.words,
        nothing=() if done is None else nothing_to_see(done.model),
        unit=prepared.unit,
        about_probabilities=model.about,
    )
    write_file(folder.page, run_page(view))


def _badge(journal: Journal, state: RunState) -> str:
    """What has happened to a run, in a few words."""
    folder, prepared, settings = journal.folder, journal.prepared, journal.prepared.settings
    if settings.fits_head or state == "untrained":
        return f"probe only: {'as requested' if settings.fits_head else 'no time for steps'}"
    epochs, done = settings.optimization.epochs, max((row["step"] for row in folder.history()), default=0)
    whole = end = epochs * prepared.per_epoch
    if folder.schedule.is_file():
        end = Schedule.read(folder.schedule, other_out(folder.path)).end
    early = "stopped by patience" if done < end else "ended by --max-time" if end < whole else state
    after = f"after {number(round(done / prepared.per_epoch, 1))} of {counted(epochs, 'epoch')}"
    return f"{early if state == 'finished' else state} {after}"


def nothing_to_see(model: Model) -> list[tuple[str, int, float, float]]:
    """What a model says of the composites that it carries, which show nothing; empty where it knows no probabilities.

    Returns:
        Each answer, how many composites get it, and the median and the highest probability; the most frequent first.
    """
    sure = defaultdict[str, list[float]](list)
    for logits in [*model.composites.values()][:1]:
        for one in model.output.answer(logits, [""] * len(logits), model.facts):
            for name, probability in one.top[:1]:
                sure[one.sentence() or name].append(probability)
    rows = [(name, len(some), float(np.median(some)), max(some)) for name, some in sure.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _facts(prepared: Prepared) -> list[tuple[str, str]]:
    """Facts of data and network, as name and value."""
    saved = [each for name, each in prepared.network.named_parameters() if not name.endswith(FACTORS)]  # as it is saved
    count, settings = sum(parameter.numel() for parameter in saved), prepared.settings
    name, holds = prepared.model.output.describe()
    sizes = ", ".join(f"{len(samples):,} {part}" for part, samples in prepared.dataset.splits.items())
    facts = [
        (f"{prepared.unit}s", sizes),
        (name, prepared.model.output.size if name == "classes" or len(holds) > LONG_FACT else holds),
        ("recipe", settings.recipe),
        ("network", f"{count:,} parameters, {_shape(settings)}"),
    ]
    if (reads := image_config(settings.network)) is not None:
        (height, width), (down, across) = reads.image, reads.patch
        facts.append(("image size", f"{height} x {width}, patches of {down} x {across}"))
    return [*facts, *settings.distillation_facts(prepared.dataset.codec.confidence is not None).items()]


def _shape(settings: Settings) -> str:
    """The shape of a network, for people."""
    if "network" in settings.own:
        return settings.own["network"]
    reads, writes = vars(image_config(settings.network) or settings.network), vars(settings.network)
    width, depth = reads["width"], reads.get("depth", writes.get("encoder_depth"))
    if "decoder_depth" not in writes:
        return f"{counted(depth, 'block')} of width {width}"
    reading = counted(depth, "block that reads", "blocks that read")
    return f"{reading} and {counted(writes['decoder_depth'], 'that writes', 'that write')}, width {width}"


def choose_count(prepared: Prepared, images: int | None) -> tuple[int, str]:
    """The number of images to explain by each network, and a sentence if that is none but could be more.

    Args:
        prepared: The run, with the seconds of a step.
        images: The requested number; None decides by the time, for runs from pretrained weights.
    """
    settings, model = prepared.settings, prepared.model
    if settings.fits_head or images == 0 or (images is None and settings.initial is None):
        return 0, ""
    if model.background is None or model.output.choose is None or model.output.describes:
        lacks = "background" if model.background is None else "usual target"
        return 0, "" if images is None else f"no explanation is tested: the model has no {lacks}"
    if images is not None:
        return images, ""
    each = prepared.sample_seconds / 3  # a forward pass is a third of a step
    seconds = 2 * (COUNT * PASSES + COMPOSITES) * each
    if seconds <= MOST_SECONDS and not settings.optimization.max_time:
        return COUNT, ""
    return 0, f"--verdicts {COUNT} would test {COUNT} explanations of each network, in about {seconds / 60:.0f} min"


def verdict_passes(prepared: Prepared, images: int | None) -> int:
    """Forward passes, about, of all verdicts on so many images; the arguments are those of `choose_count`."""
    count = choose_count(prepared, images)[0]
    return (1 if prepared.settings.initial is None else 2) * (count * PASSES + COMPOSITES) if count else 0


def verdicts_of(model: Model, split: Split, count: int, precision: Precision = "fp32") -> Report | None:
    """The explanations of a model's own predictions for some images, with their verdicts; None if none can be read.

    Args:
        model: With its background.
        split: Held-out images, over which they are evenly spread.
        count: Number of images; all if there are fewer.
        precision: Of the passes that test a map.
    """
    inputs = split.samples.images
    places = np.unique(np.linspace(0, len(inputs) - 1, min(count, len(inputs))).astype(int))
    images = [NamedImage(inputs.name(place), image) for place, image in open_readable(inputs, places.tolist())]
    return explain_images(images, plan_report(model, ReportOptions(precision=precision))) if images else None


def verdict_facts(report: Report) -> dict[str, Any]:
    """The verdicts on maps of one method, for `evaluation.json`."""
    first = [{"file": one.name, "verdict": one.verdicts[0]} for one in report.least_trusted_first]
    return {**report.rates[0].to_dict(), "least_trusted_first": first}


def give_verdicts(
    journal: Journal, model: Model, networks: Mapping[str, nn.Module], images: int | None
) -> dict[str, Report]:
    """The verdicts of each network on the same held-out images, by name; none if they are not wanted.

    The log has a sentence on each network, or on why nothing was tested.

    Args:
        journal: Of the run.
        model: Of the finished run.
        networks: By name: the model's, or the probe and the tuned network.
        images: Their requested number; None decides by the time.
    """
    prepared, found = journal.prepared, dict[str, Report]()
    count, words = choose_count(prepared, images)
    if words:
        prepared.listen(words)
    for name, network in networks.items() if count else ():
        own, precision = replace(model, network=network.eval()), prepared.settings.execution.precision
        if (report := verdicts_of(own, prepared.final[0], count, precision)) is not None:
            found[name] = report
            prepared.listen(f"{name}: {report.rates[0].words}")
    return found
