"""The end of a run, step by step: every file is written once, and `evaluation.json` last, with which it is finished.

chosen       the network that becomes the model: the best checkpoint, the last network, or the probe
saved        the model, before anything that may fail, so that no training is lost; and adapters
evaluated    it, and the network that was not chosen, on samples that chose neither
tested       the explanations of both, where verdicts are wanted
written      the card, the page and the evaluation
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from vitrail.explain.evidence import with_composites
from vitrail.io import write_file
from vitrail.model import CARD, Model, card_of, save
from vitrail.nn.networks import is_known, weights_hash
from vitrail.pages.views import SidesView
from vitrail.runs.data import mark_chosen
from vitrail.training.checkpoint import load_best
from vitrail.training.events import Finished
from vitrail.training.follow import Lead
from vitrail.training.loop import State
from vitrail.training.lora import write_adapter
from vitrail.training.report import MODEL, Journal, Verdicts, tested, write_page
from vitrail.training.transfer.comparison import NO_STEP, Chosen, choose_model, compare_sides, with_background


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
    chosen = _choose(journal, state)
    model = _save(journal, state, chosen)
    split, batches = prepared.final
    results = chosen.evaluate(model, split, batches, journal.log, partial(lead.evaluate, prepared.seen.trained))
    prepared.seen.write(journal.folder.hashes)
    journal.name_unreadable(batches)
    result = mark_chosen(next(iter(results.values())), chosen.halves)
    journal.note_once(*result.notes)
    if not (state.step or prepared.settings.fits_head):
        result = replace(result, notes=(*result.notes, NO_STEP))
    finished = Finished(journal.folder.path, model, result, elapsed(), weights_hash(model.network))
    sides = compare_sides(chosen, results, prepared)
    tests = tested(model, chosen.networks if sides else {}, split, prepared, verdicts, journal.log)
    _write(journal, chosen, finished, sides, tests)
    prepared.listen(finished)
    return finished


def _choose(journal: Journal, state: State) -> Chosen:
    """The network that becomes the model, with the number of epochs that it was trained for."""
    prepared, folder = journal.prepared, journal.folder
    chose = prepared.halves is not None and state.step > 0
    best = load_best(folder, state.averaged, prepared.model.task.metric, journal.log) if chose else None
    epochs = state.step / prepared.per_epoch
    facts = {**prepared.model.facts, "epochs": int(epochs) if epochs.is_integer() else round(epochs, 2)}
    trained = replace(prepared.model, network=state.best_network.eval(), facts=facts)
    return choose_model(folder, prepared, trained, best, state.step, journal.log)


def _save(journal: Journal, state: State, chosen: Chosen) -> Model:
    """The model as it is saved, with its background; beside it the adapters, where the chosen network has some."""
    folder, settings = journal.folder, journal.prepared.settings
    if settings.initial is not None and settings.optimization.lora:
        if chosen.found["kept"] == "tuned":
            write_adapter(folder.adapter, state.averaged, settings.initial.source)
        else:
            journal.log("no adapter is saved, since the model is the probe; --keep tuned would save one")
    samples = 0 if settings.optimization.max_time else state.step * settings.optimization.batch_size
    model = with_composites(with_background(chosen.model), folder.path, samples)
    save(model, folder.model, network="" if is_known(model.network) else settings.own["network"])
    return model


def _write(
    journal: Journal, chosen: Chosen, finished: Finished, sides: SidesView | None, tests: Mapping[str, Verdicts]
) -> None:
    """The card, the page and, last, the evaluation."""
    result, folder = finished.evaluated, journal.folder
    write_file(folder.model / CARD, card_of(finished.model, result))
    if sides and tests:
        sides = replace(sides, verdicts={name: one.rates.words for name, one in tests.items()})
    of_model = tests.get(sides.kept if sides else MODEL)
    page = "untrained" if NO_STEP in result.notes else "finished"
    write_page(journal, page, result, sides, chosen.words(result.split), of_model)
    folder.append_log("finished: {} {:.4f}, weights {}".format(*result.headline, finished.weights))
    evaluated = {**result.to_dict(), "weights": finished.weights, **chosen.found}
    if tests:
        evaluated["verdicts"] = {name: one.to_dict() for name, one in tests.items()}
    folder.write_json("evaluation.json", evaluated)
