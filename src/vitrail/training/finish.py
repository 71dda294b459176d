"""The end of a run, step by step: every file is written once, and `evaluation.json` last, with which it is finished.

choose_model   the network that becomes the model (`--keep`)
    best           the best checkpoint on *select*; with pretrained weights the better of it and the probe by the number
                   of correct images, significant or not; a tie keeps the probe, which changed less
    tuned          the last network; the best checkpoint if the run ends by its patience
    probe          the probe
save           the model, before anything that may fail, so that no training is lost; and adapters
evaluate       it, and the network that was not chosen, on samples that chose neither: the gain of tuning
test           the explanations of both, where verdicts are wanted
write          the card, the page and the evaluation
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.background import settle
from vitrail.data.batches import Batches
from vitrail.errors import counted
from vitrail.explain.evidence import with_composites, without_evidence
from vitrail.explain.reporting.report import Report
from vitrail.features.linear_probe import MeanGrey, thinned
from vitrail.io import other_out, read_json, write_file
from vitrail.model import CARD, Model, card_of, load, save
from vitrail.model.familiar import chosen_of, familiar_to
from vitrail.nn import ViT
from vitrail.nn.networks import is_known, weights_hash
from vitrail.pages.run_views import Confusion, Pair, SidesView
from vitrail.runs.data import REPORT, SELECT, chosen_words, mark_chosen
from vitrail.runs.evaluate import answered, batches_of, errors_of, evaluate_split
from vitrail.tasks import TASKS, Result, Task
from vitrail.tasks.calibration import FOR_SETS, calibration_from
from vitrail.tasks.codec import Gain, gain
from vitrail.training.checkpoint import load_best
from vitrail.training.events import Finished
from vitrail.training.follow import Lead
from vitrail.training.loop import State
from vitrail.training.lora import write_adapter
from vitrail.training.prepared import Prepared
from vitrail.training.report import MODEL, Journal, give_verdicts, verdict_facts, write_page

PROBE, TUNED = "probe", "tuned"
NO_STEP = "There was no time for a step of tuning: the model is the linear probe. A longer --max-time makes steps."
SHOWN = 12  # images that tuning won, and as many that it lost, on the page


def finish(journal: Journal, state: State, lead: Lead, verdicts: int | None, elapsed: Callable[[], float]) -> Finished:
    """Model, evaluation, card and page of a run whose steps are done.

    Args:
        journal: Of the run.
        state: Behind the last step.
        lead: Of the processes, which evaluate together.
        verdicts: The requested number of images whose explanations are tested; None decides by the time.
        elapsed: Gives the seconds of the run so far.
    """
    prepared = journal.prepared
    chosen = choose_model(journal, state)
    model = _save(journal, state, chosen)
    split, batches = prepared.final
    evaluate = partial(lead.evaluate, prepared.seen.trained, split=split, batches=batches)
    results = {name: evaluate(replace(model, network=network)) for name, network in chosen.networks.items()}
    won = gain_of(results, model.output.is_wrong)
    if won is not None:
        chosen.found[TUNED] = {"split": split.split, **vars(won)}
        mark = " (on images that chose)" if chosen_words(split.split, chosen.parts) else ""
        prepared.listen(f"{gain_words(won, f'{split.split} image', model.output.is_wrong)}{mark}")
    prepared.seen.write(journal.folder.hashes, batches.contents(np.arange(len(batches))))
    journal.name_unreadable(batches)
    result = mark_chosen(next(iter(results.values())), chosen.parts)
    if model.output.beside_grey:
        result = beside_grey(result, model, prepared)
    journal.note(*result.notes)
    if not (state.step or prepared.settings.fits_head):
        result = replace(result, notes=(*result.notes, NO_STEP))
    finished = Finished(journal.folder.path, model, result, elapsed(), weights_hash(model.network))
    tests = give_verdicts(journal, model, {MODEL: model.network} if won is None else chosen.networks, verdicts)
    sides = None if won is None else compare_sides(chosen, results, won, prepared, tests)
    _write(journal, chosen, finished, sides, tests)
    prepared.listen(finished)
    return finished


def beside_grey(result: Result, model: Model, prepared: Prepared) -> Result:
    """The same with a note of what a line through the mean grey value of training images reaches on its samples."""
    split, batches = prepared.final
    workers = prepared.settings.execution.workers
    line = MeanGrey(model.output, batches_of(model, prepared.dataset.train, workers, once=True))
    by_grey = evaluate_split(replace(model, network=line), split, thinned(batches))
    shown = f"{by_grey.metric.label} {by_grey.metric.shown(by_grey.value)} {by_grey.sentence}"
    details = {**result.details, "by_mean_grey": by_grey.details}
    better = ", which is better" * (by_grey.metric.rank(by_grey.value) > result.metric.rank(result.value))
    lead = f"The mean grey value of an image alone reaches {by_grey.metric.shown(by_grey.value)}{better}."
    about, note = (
        (result.about[0], f"{result.about[1]} {lead}"),
        f"The mean grey value of an image alone: {shown}{better}.",
    )
    return replace(result, details=details, about=about, notes=(*result.notes, note))


@dataclass(frozen=True)
class Chosen:
    """The choice of the network that becomes the model.

    Attributes:
        model: With the chosen network, in eval mode.
        networks: That of the model, under any name; behind it the other of `probe` and `tuned`, if there are both.
        found: For `evaluation.json`.
        parts: The cut in `data.json`; empty if nothing was chosen.
    """

    model: Model
    networks: dict[str, nn.Module]
    found: dict[str, Any]
    parts: Any

    def words(self, split: str) -> str:
        """Sentences on the network that is the model, and on the samples of its figure; empty if there was no choice.

        Args:
            split: Of the figure.
        """
        found, chosen, words = self.found, self.found.get("chosen_on"), list[str]()
        if found.get("kept") == PROBE:
            words.append("The model is the probe: the pretrained weights with a head on their features.")
        elif chosen is not None:
            epoch = found["best"]["epoch"]
            on = f"{chosen['split']}, {counted(chosen['images'], 'validation sample')} that chose it"
            words.append(f"The model is the network after epoch {epoch}, the best on {on}.")
        elif "kept" in found:
            words.append("The model is the network after the last step.")
        if choice := found.get("choice"):
            won = Gain(**{name: value for name, value in choice.items() if name != "split"})
            words.append(f"It was chosen on {choice['split']}: {choice_words(won, self.model.output.is_wrong)}.")
        if split == REPORT:
            clean, whole = self.parts[REPORT], sum(self.parts.values())
            words.append(f"Its figure is of {split}, the {clean} of {whole} validation samples that decided nothing.")
            if found.get("probe"):
                of_probe = f"The {self.model.output.shown(found['probe']['accuracy'])} of the linear probe below"
                probed, chose = found["probe"]["images"], self.parts.get(SELECT, 0)
                also = f", {chose} of which chose between the networks" * ("choice" in found and probed == whole)
                words.append(f"{of_probe} is of {'all ' if probed == whole else f'{probed} of these '}{whole}{also}.")
        return " ".join(words)


def choose_model(journal: Journal, state: State) -> Chosen:
    """Choose the network that becomes the model; without any step there is only the probe.

    Args:
        journal: Of the run, in whose folder the probe lies.
        state: Behind the last step; gets the best checkpoint, where there is one.
    """
    prepared, folder = journal.prepared, journal.folder
    settings, model = prepared.settings, prepared.model
    split, held_out = prepared.scored
    log, found = prepared.listen, dict[str, Any]()
    epochs = state.step / prepared.per_epoch
    facts = {**model.facts, "epochs": int(epochs) if epochs.is_integer() else round(epochs, 2)}
    chooses = settings.chooses and state.step > 0
    if chooses and (best := load_best(folder, state.averaged, model.task.metric, log)) is not None:
        epoch, many = best["epoch"], len(held_out)
        found |= {"best": {"epoch": epoch}, "chosen_on": {"split": split.split, "images": many}}
        facts |= {"epoch": epoch, "chosen_on": f"{counted(many, 'sample')} of the split {split.split}"}
        log(f"the network after epoch {epoch} is the best on {split.split}")
    cut, probed = None if prepared.cut is None else prepared.cut.to_dict(), folder.path / "probe.json"
    kept, networks, by_folds = TUNED, {TUNED: state.best_network.eval()}, None
    if probed.is_file():  # else the task has no probe, or the weights were random
        found["probe"] = read_json(probed, other_out(folder.path))
        by_folds = found["probe"].get("calibration")
        kept, networks[PROBE] = settings.selected, load(folder.probe, task=model.task, device=model.device).network
        if settings.fits_head or not state.step:
            del networks[TUNED]
            kept = PROBE
            if not settings.fits_head:
                log(NO_STEP)
        elif kept == "best":
            outputs, others = model.task.outputs, prepared.seen.others(held_out)
            answers = (partial(outputs, networks[name]) for name in (PROBE, TUNED))
            before, after = (errors_of(model.output, answer, others) for answer in answers)
            won = gain(before, after, model.output.is_wrong)
            kept = TUNED if won.better else PROBE
            found["choice"] = {"split": split.split, **vars(won)}
            which = "the tuned network" if kept == TUNED else "the probe"
            log(f"{which} is kept: on {split.split}, where that is chosen, {choice_words(won, model.output.is_wrong)}")
    if settings.initial is not None:
        found["kept"] = facts["kept"] = kept
    if kept == PROBE:  # which no epoch has changed
        facts.pop("epoch", None)
        facts["epochs"] = 0
    network = networks.pop(kept)
    model = settle_output(replace(model, network=network), prepared, by_folds if kept == PROBE else None)
    return Chosen(replace(model, facts=facts), {kept: network, **networks}, found, cut)


def settle_output(model: Model, prepared: Prepared, by_folds: Mapping[str, Any] | None) -> Model:
    """The model whose codec has decided what it decides on validation samples: thresholds, then its calibration.

    Args:
        model: With the chosen network.
        prepared: Of the run.
        by_folds: The calibration by training samples, which is used where there are few validation samples.
    """

    def read(batches: Batches) -> list[Tensor]:
        each = answered(partial(model.task.outputs, model.network), batches)
        return [*map(torch.cat, zip(*each, strict=True))]

    output, (split, held_out), found = model.output, prepared.scored, list[Tensor]()
    if output.settle is not None:
        found = read(held_out)
        output = output.settle(*found)
    if prepared.calibrates:
        on, batches = prepared.calibrating
        if by_folds and len(batches) < FOR_SETS:
            output = replace(output, calibration=calibration_from(by_folds))  # pyrefly: ignore[bad-specialization]
            prepared.listen(f"{counted(by_folds['images'], 'image')} of {by_folds['on']}: {output.calibrated}")
            return replace(model, output=output)
        same = found if found and on.split == split.split else read(batches)
        output = output.calibrate(*same, on.split)
        chose = ", which also chose the model" if on.split == split.split and prepared.selects else ""
        reported = ", which are also reported on" if on.split == prepared.final[0].split else ""
        prepared.listen(f"{counted(len(batches), 'image')} of {on.split}{chose or reported}: {output.calibrated}")
    if output.settle is not None:  # in probabilities, which a calibration moves
        prepared.listen(f"{counted(len(held_out), 'image')} of {split.split} decide: {output.settled}")
    return replace(model, output=output)


def _save(journal: Journal, state: State, chosen: Chosen) -> Model:
    """The model as it is saved, with its background; beside it the adapters, where the chosen network has some."""
    folder, settings = journal.folder, journal.prepared.settings
    if settings.initial is not None and settings.optimization.lora:
        if chosen.found["kept"] == TUNED:
            write_adapter(folder.adapter, state.averaged, settings.initial.source)
        else:
            journal.prepared.listen("no adapter is saved, since the model is the probe; --keep tuned would save one")
    samples = 0 if settings.optimization.max_time else state.step * settings.optimization.batch_size
    model = replace(with_background(chosen.model), loaded_from=str(folder.path))
    model = with_familiar(with_composites(model, samples), journal.prepared)
    save(model, folder.model, network="" if is_known(model.network) else settings.own["network"])
    return model


def compare_sides(
    chosen: Chosen, results: Mapping[str, Result], won: Gain, prepared: Prepared, tests: Mapping[str, Report]
) -> SidesView:
    """The comparison of probe and tuned network for the page."""
    before, after = results[PROBE], results[TUNED]
    samples = prepared.final[0].samples

    def pairs(less: Float[np.ndarray, " n"]) -> tuple[Pair, ...]:
        found, known = [], (before.ids, before.truths, before.answers, after.answers)
        if any(len(each) != len(before.errors) for each in known):  # a task of one's own may have errors alone
            return ()
        for row in [row for row in np.argsort(-less, kind="stable")[:SHOWN].tolist() if less[row] > 0]:
            place = int(before.ids[row])
            image = prepared.model.preprocessing.to_array(samples.images.open(place))
            answers = [str(each[row]) for each in (before.truths, before.answers, after.answers)]
            found.append(Pair(image, samples.name(place), *answers))
        return tuple(found)

    both = {PROBE: before, TUNED: after}
    confusions = {name: each for name, one in both.items() for each in one.tables if isinstance(each, Confusion)}
    about = chosen_words(before.split, chosen.parts)
    sentence = gain_words(won, f"{before.split} image", prepared.model.output.is_wrong)
    return SidesView(
        kept=chosen.found["kept"],
        sentence=f"{sentence}. {about.removesuffix('.')}" if about else sentence,
        values={name: one.metric.shown(one.value) for name, one in both.items()},
        confusions=confusions,
        won=pairs(before.errors - after.errors),
        lost=pairs(after.errors - before.errors),
        counts=(won.won, won.lost),
        is_wrong=prepared.model.output.is_wrong,
        verdicts={name: one.rates[0].words for name, one in tests.items()},
    )


def gain_of(results: Mapping[str, Result], is_wrong: bool) -> Gain | None:
    """The gain of the tuned network over the probe; None if there is only one of them, or the task has no errors."""
    if len(results) < 2:
        return None
    before, after = (torch.from_numpy(results[name].errors) for name in (PROBE, TUNED))
    return gain(before, after, is_wrong) if len(before) == len(after) > 0 else None


def choice_words(won: Gain, is_wrong: bool) -> str:
    """A sentence on the counts by which the network was chosen, or on the mean error, which then decides."""
    better = "the better one is kept" if is_wrong else "the one whose mean error is smaller is kept"
    by = "a tie keeps the probe" if won.difference == 0 else better
    close = "" if won.significant else f"; the 95 % interval includes 0: not significant, and {by}"
    return f"tuning won {won.won} and lost {won.lost} of {counted(won.images, 'image')}{close}"


def gain_words(won: Gain, unit: str, is_wrong: bool) -> str:
    """A sentence on the gain of tuning: in points of accuracy, or in the mean error."""
    low, high = won.interval
    of = counted(won.images, unit)
    values = f"{100 * won.difference:+.1f} points (95 %: {100 * low:+.1f} to {100 * high:+.1f})"
    if not is_wrong:
        values = f"mean error {-won.difference:+.3g} (95 %: {-high:+.3g} to {-low:+.3g})"
    close = "" if won.significant else ", which includes 0: not significant"
    minus = values.replace("-", "−")
    return f"tuning won {won.won} and lost {won.lost} of {of} against the probe: {minus}{close}"


def with_background(model: Model) -> Model:
    """A trained model whose background has no patches that are evidence for its own classes."""
    if model.background is None or model.background_images is None or not isinstance(model.network, ViT):
        return model
    pixels = without_evidence(model.network, model.background_images, model.background)
    return replace(model, background=settle(pixels, model.network.config.patch))


def with_familiar(model: Model, prepared: Prepared) -> Model:
    """The model that knows some of its training images by what its head reads, where it carries a background."""
    own, train = type(model.task), prepared.dataset.train
    fits = isinstance(model.network, ViT) and own in map(type, TASKS.values()) and own.outputs is Task.outputs
    if model.background is None or not fits:
        return replace(model, familiar=None)
    ids = chosen_of(np.array(train.units()), prepared.familiar)
    batches = batches_of(model, train.select(ids), prepared.settings.execution.workers)
    return replace(model, familiar=familiar_to(model.network, batches))


def _write(
    journal: Journal, chosen: Chosen, finished: Finished, sides: SidesView | None, tests: Mapping[str, Report]
) -> None:
    """The card, the page and, last, the evaluation."""
    result, folder = finished.evaluated, journal.folder
    write_file(folder.model / CARD, card_of(finished.model, result))
    of_model = tests.get(sides.kept if sides else MODEL)
    page = "untrained" if NO_STEP in result.notes else "finished"
    write_page(journal, page, finished, sides, chosen.words(result.split), of_model)
    folder.append_log("finished: {} {:.4f}, weights {}".format(*result.headline, finished.weights))
    evaluated = {**result.to_dict(), "calibration": result.calibration, "weights": finished.weights, **chosen.found}
    if tests:
        evaluated["verdicts"] = {name: verdict_facts(one) for name, one in tests.items()}
    folder.write_json("evaluation.json", evaluated)
