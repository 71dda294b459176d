"""Which kind of training begins or goes on: one with classes, or one on sequences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.sequence_source import is_sequences, open_sequences, reopen_sequences
from vitrail.errors import DataError, UsageError
from vitrail.training.asked import check_same, run_differences
from vitrail.training.beginning import begin, go_on
from vitrail.training.distilling import Lesson
from vitrail.training.events import Listen, Reading
from vitrail.training.execution import pick_device
from vitrail.training.options import TrainOptions
from vitrail.training.preparation import Preparation
from vitrail.training.prepare import shortened
from vitrail.training.prepare_sequences import build_sequences, refuse_picture_options, resolve_sequences
from vitrail.training.run import RunFolder
from vitrail.training.sequence_settings import (
    check_given,
    counts_of,
    is_sequence_settings,
    sequence_settings_from_dict,
)
from vitrail.training.sequence_training import PreparedSequences
from vitrail.training.settings import read_given, read_yaml


def read_configuration(path: Path | None, data: str) -> dict[str, Any]:
    """A configuration file, checked as one of the kind that the data, or else the file itself, asks for.

    Args:
        path: The file; None for none.
        data: What is to be trained on; empty where the file says it.

    Raises:
        UsageError: The file cannot be read, or a key or value in it is not possible.
    """
    if path is None:
        return {}
    given = read_yaml(path)
    if is_sequence_settings(given) or is_sequences(data or str(given.get("data", ""))):
        check_given(given, str(path))
        return given
    return read_given(path)


def prepare_run(
    folder: RunFolder | None,
    data: str,
    options: TrainOptions,
    given: dict[str, Any],
    listen: Listen,
    lesson: Lesson | None = None,
) -> Preparation:
    """Everything that a run needs, which begins or goes on.

    Args:
        folder: The run that goes on; None for a new one.
        data: What to train on.
        options: What was asked for.
        given: Content of a configuration file, or empty.
        listen: Gets every choice in words.
        lesson: What a teacher brings, if there is one.

    Raises:
        UsageError: Something asked for does not fit.
        DataError: The data cannot be used, or has changed.
    """
    if folder is not None:
        stored = read_yaml(folder.config)
        if not is_sequence_settings(stored):
            return go_on(folder, data, options, listen, lesson)
        _refuse_teacher(lesson)
        return go_on_sequences(folder, stored, data, options, listen)
    if not is_sequences(data):
        return begin(data, options, given, listen, lesson)
    _refuse_teacher(lesson)
    return begin_sequences(data, options, given, listen)


def _refuse_teacher(lesson: Lesson | None) -> None:
    if lesson is not None:
        raise UsageError("a teacher of classes cannot teach sequences", "vitrail train, without a teacher")


def begin_sequences(data: str, options: TrainOptions, given: dict[str, Any], listen: Listen) -> PreparedSequences:
    """Everything that a new run on sequences needs; says each choice to `listen`."""
    refuse_picture_options(options)
    root = options.data_root or (Path(given["data_root"]) if given.get("data_root") else None)
    seed = given.get("split_seed", 0) if options.split_seed is None else options.split_seed
    source = open_sequences(data, root, int(seed), counts_of(data, options.recipe, given))
    settings, notes = resolve_sequences(data, options, given, source)
    for sentence in (*source.notes, *notes):
        listen(sentence)
    prepared = build_sequences(settings, source, lambda what, done, whole: listen(Reading(what, done, whole)))
    for sentence in shortened(prepared.notes):
        listen(sentence)
    return replace(prepared, notes=(*source.notes, *notes, *prepared.notes))


def go_on_sequences(
    folder: RunFolder, values: dict[str, Any], data: str, options: TrainOptions, listen: Listen
) -> PreparedSequences:
    """Everything that a run on sequences which exists needs to go on: its own settings, and the same data.

    Raises:
        UsageError: The options ask for anything else than the run was started with.
        DataError: The data has changed.
    """
    refuse_picture_options(options)
    settings = sequence_settings_from_dict(values, str(folder.config))
    stored = folder.read_data()
    check_same(run_differences(settings, data, options, stored["root"]), folder.path)
    pick_device(settings.execution.device)
    if options.workers is not None:  # the one choice that cannot change a bit of the result
        settings = replace(settings, execution=replace(settings.execution, workers=options.workers))
    source = reopen_sequences(settings.data, stored["root"], options.data_root, settings.split_seed, settings.counts)
    if stored.get("fingerprint") != source.fingerprint:
        raise DataError(
            f"{settings.data} has changed since {folder.path} was started", "the data as it was, or another --out"
        )
    prepared = build_sequences(settings, source, lambda what, done, whole: listen(Reading(what, done, whole)))
    return replace(prepared, notes=tuple(dict.fromkeys([*stored.get("notes", ()), *stored.get("skipped", ())])))
