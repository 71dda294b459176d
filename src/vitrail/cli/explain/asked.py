"""What was typed for `vitrail explain`, as a request of the library: the flags held against each other."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from vitrail.cli.args import Explain
from vitrail.cli.output import warn
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import UsageError
from vitrail.explain.methods import DEFAULT, METHODS, Method, nearest_method
from vitrail.explain.methods.own import own_method
from vitrail.explain.reporting.others import borrows, fills_of
from vitrail.explain.reporting.request import ALL, BLIND, LONG, WRITTEN, Request, requested
from vitrail.model import Model


def asked_of(model: Model, typed: Explain) -> tuple[Model, Request]:
    """The request, and the model that it is asked of.

    Raises:
        UsageError: If a method, class, layer or head is not there, or two options do not go together.
        DataError: If the background cannot be read or has another size than the model's.
    """
    if isinstance(model.output, Vocabulary):
        _check_written(model, typed)
        return requested(model, options=options_typed(typed.option))
    tested = {
        "--full": typed.full,
        "--background": typed.background,
        "--masks": typed.masks,
        "--precision": typed.precision != "auto",
    }
    for option in (option for option, given in tested.items() if given and typed.no_trust):
        raise UsageError(f"{option} is for the test that --no-trust leaves out", "one of the two")
    model, request = requested(
        model,
        methods_asked(typed.method, typed.compare, typed.methods),
        typed.target,
        typed.contrast,
        similar_to=typed.similar_to,
        options=options_typed(typed.option),
        background=typed.background,
        trust=not typed.no_trust,
        full=typed.full,
        precision=typed.precision,
        example=str(typed.images[0]),
        run=typed.run,
    )
    for reason, names in request.left_out.items():
        warn(_left_out(reason, names))
    for note in request.notes:
        warn(note)
    return model, request


def options_typed(words: Sequence[str]) -> dict[str, str]:
    """Options of a method that were typed as NAME=VALUE; the last counts."""
    return {name.replace("-", "_"): value for name, _, value in (word.partition("=") for word in words)}


def methods_asked(method: str | None, compare: bool, named: str | None) -> str | Method | list[Method]:
    """The methods that were typed: one, several, or all; MODULE:NAME is a method of a person's own.

    Args:
        method: The name of one.
        compare: Whether several are compared.
        named: Their names, with commas between them; the ones that a comparison has by itself when None.

    Raises:
        UsageError: If one is unknown, or the flags do not go together.
    """
    if named is not None and not compare:
        raise UsageError("--methods chooses what --compare shows", f"--compare --methods {named}")
    if compare and method is not None:
        problem = "--method names one method, and --compare shows several"
        raise UsageError(problem, f"--methods {named or method} in its place")
    if compare and named is None:
        return ALL
    names = [method or DEFAULT] if named is None else [part.strip() for part in named.split(",") if part.strip()]
    if not names:
        raise UsageError(f"--methods '{named}' names no method", f"--methods {DEFAULT},rollout")
    for name in (name for name in names if name not in METHODS and ":" not in name):
        option, problem = "--methods" if compare else "--method", f"unknown method '{name}', there are"
        raise UsageError(f"{problem} {', '.join(METHODS)}", f"{option} {nearest_method(name)}")
    rows = [METHODS.get(name) or own_method(name) for name in names]
    return rows if compare else rows[0]


def _left_out(reason: str, names: Sequence[str]) -> str:
    """What a comparison leaves out, and how to have it."""
    if reason == BLIND:
        return f"left out, since {reason}: {', '.join(names)}"
    more, them = (",".join(names), "them") if reason == LONG else (",".join((DEFAULT, *names)), "it")
    return f"left out, since {reason}: {', '.join(names)}; --methods {more} takes {them}"


def _check_written(model: Model, typed: Explain) -> None:
    """Refuse what only models that say classes have.

    Raises:
        UsageError: Names it.
    """
    if model.reads_text:
        problem = f"the model in {typed.run} reads texts, and only images are explained"
        raise UsageError(problem, shlex.join(["vitrail", "predict", typed.run, model.example]))
    if typed.method not in (None, WRITTEN):
        raise UsageError(
            f"method '{typed.method}' explains classes, and this model generates text", f"--method {WRITTEN}"
        )
    given = {
        "--similar-to": typed.similar_to is not None,
        "--compare": typed.compare,
        "--methods": typed.methods is not None,
        f"--target {typed.target}": typed.target is not None,
        f"--contrast {typed.contrast}": typed.contrast is not None,
        "--background": typed.background is not None,
        "--masks": typed.masks is not None,
        "--no-trust": typed.no_trust,
        "--full": typed.full,
        "--precision": typed.precision != "auto",  # of a test that there is none of
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise UsageError(f"{option} is for classifiers, and this model generates text", f"leave {option} out")


def tell_fills(model: Model, request: Request, run: str | Path, others: bool) -> None:
    """Say what fills masked patches where a model carries no background.

    Args:
        model: What is explained.
        request: What was asked for.
        run: Where the model lies.
        others: Whether the images of the call serve each other.
    """
    if borrows(model, request) and (others or model.borrows_background):
        warn(f"{run} carries no background: maps are tested with {fills_of(model)}; --background DIR uses others")
