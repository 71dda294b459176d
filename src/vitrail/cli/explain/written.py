"""`vitrail explain` for a model that writes: for each written token, where on the picture the decoder looked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.cli.args import Explain
from vitrail.cli.explain.pictures import read_files
from vitrail.cli.explain.places import folder_name
from vitrail.cli.shown import Shown, leave_out, spread
from vitrail.errors import DataError, UsageError

if TYPE_CHECKING:
    from vitrail.model import Model
    from vitrail.pages.views import ExplainedPicture
    from vitrail.tasks import TextPrediction

    Result = tuple[TextPrediction, ExplainedPicture]

METHOD = "cross_attention"


def explain_written(model: "Model", typed: Explain, page: Path, command: str) -> int:
    """Explain, write the page and the pictures, and say where they are.

    Args:
        model: What explains itself.
        typed: What was typed.
        page: Where the page goes.
        command: The whole command line.

    Raises:
        UsageError: The model reads texts, or an option is for models that say classes.
        DataError: No picture can be read.
    """
    _refuse(model, typed)

    from vitrail.cli.explain.writing import write_all
    from vitrail.pages.views import ExplanationPage

    problems: list[str] = []
    shown = list(_pictures(model, typed, problems))
    if not shown:
        raise DataError(problems[0], "another picture")
    results = [_explain(model, one) for one in shown]
    title, about = f"Where {folder_name(typed.run)} looked", model.about
    whole = ExplanationPage(title, typed.run, command, [one for _, one in results], about)
    answers = [{"text": said.text, "probability": said.probability, "true_text": o.true_label} for said, o in results]
    write_all(whole, page, answers, typed.json, lambda: _tell(results, about))
    leave_out(problems)
    return 0


def _tell(results: Sequence["Result"], about: str) -> None:
    """The texts, and what to know of their probabilities."""
    from vitrail.cli.output import print_table, say
    from vitrail.text import percent

    truths = ["" if one.true_label in (None, said.text) else f"(it is {one.true_label})" for said, one in results]
    rows = [(one.name, s.shown, percent(s.probability), truth) for (s, one), truth in zip(results, truths, strict=True)]
    print_table(rows, left=2)
    if about:
        say(about)


def _refuse(model: "Model", typed: Explain) -> None:
    """Refuse what only models that say classes have.

    Raises:
        UsageError: Names it.
    """
    if model.reads_text:
        raise UsageError(
            f"the model in {typed.run} reads texts, and only pictures are explained",
            f"vitrail predict {typed.run} {model.example}",
        )
    if typed.method not in (None, METHOD):
        raise UsageError(f"method '{typed.method}' explains classes, and this model writes", f"--method {METHOD}")
    given = {
        "--compare": typed.compare,
        "--methods": typed.methods is not None,
        f"--target {typed.target}": typed.target is not None,
        f"--rather-than {typed.rather_than}": typed.rather_than is not None,
        "--layer": typed.layer is not None,
        "--head": typed.head is not None,
        "--reference": typed.reference is not None,
        "--masks": typed.masks is not None,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise UsageError(f"{option} is for models that say classes, and this model writes", f"leave {option} out")


def _pictures(model: "Model", typed: Explain, problems: list[str]) -> Iterator[Shown]:
    """The pictures asked for that can be read; the others are named in `problems`."""
    from vitrail.data.images import Images
    from vitrail.data.readers import MANIFESTS, is_named
    from vitrail.training.evaluate import is_own_data, open_for

    first = typed.pictures[0]
    if is_named(first) or is_own_data(typed.run, first) or Path(first).suffix.lower() in MANIFESTS:
        if len(typed.pictures) > 1:
            raise UsageError(f"{first} is a whole set, and stands alone", f"vitrail explain {typed.run} {first}")
        samples = open_for(model, typed.run, first, typed.data_root).samples
        assert isinstance(samples.inputs, Images)
        texts = samples.column(model.task.column).take(np.arange(len(samples)))
        for index in spread(range(len(samples)), typed.count):
            try:
                yield Shown(samples.name(index), samples.inputs.open(index), texts[index])
            except DataError as error:
                problems.append(error.problem)
        return
    yield from read_files(typed.pictures, typed.count, problems)


def _explain(model: "Model", shown: Shown) -> "Result":
    """What the model writes for a picture, and the picture with a map for each token."""
    import torch

    from vitrail.data.vocabulary import Vocabulary
    from vitrail.explain import cross_attention
    from vitrail.explain.readout import wide
    from vitrail.nn import ImageToSequence, evaluating
    from vitrail.pages.views import ExplainedPicture, HeatView
    from vitrail.tasks.sequences import write

    assert isinstance(model.network, ImageToSequence)
    images = model.tensor([shown.picture])
    assert isinstance(model.output, Vocabulary)
    with evaluating(model.network):
        (written,) = write(model.network, model.output, images, [shown.name])
    views = []
    if written.ids:
        heat = cross_attention(model.network, images, torch.tensor([written.ids], device=images.device))
        for place, number in enumerate(written.ids):
            token = model.output.decode([number])
            views.append(
                HeatView(
                    method=METHOD,
                    title=f"Token {place + 1}: {token}",
                    target=token,
                    logit=float(heat.logit[0, place]),
                    values=wide(heat.values[0, place]).cpu().numpy(),
                    signed=False,
                    class_specific=False,
                    notes=tuple(note for note in heat.notes[0] if note.startswith(f"token {place + 1}:")),
                )
            )
    picture = model.preprocessing.to_array(shown.picture)
    top = [(written.shown, written.probability)]
    return written, ExplainedPicture(shown.name, picture, shown.true_label, top, views)
