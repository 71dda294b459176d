"""What was asked of `vitrail explain`: which maps of which class, checked before anything is computed."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitrail.cli.args import Explain
from vitrail.cli.output import warn
from vitrail.data.background import FEW, open_background
from vitrail.data.columns import Classes, Codec
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError, counted, nearest
from vitrail.explain.methods import DEFAULT, METHODS, METHODS_OF_TEXTS, Method, nearest_method
from vitrail.explain.methods.options import read_options
from vitrail.explain.methods.own import own_method
from vitrail.explain.target import FUNCTION, OfLogits, number, similarity
from vitrail.model import Model
from vitrail.pages.views import Function
from vitrail.tasks import FeaturePrediction, Numbers

(WRITTEN,) = METHODS_OF_TEXTS  # the method of a model that writes
SQUARES = 256  # with more of them, a comparison leaves out what covers one square after another
SLOW_WITH_SQUARES = ("occlusion",)

Methods = tuple[Method, ...]


@dataclass(frozen=True)
class Asked:
    """What is explained, and how.

    Args:
        methods: Which maps.
        options: Those of the only method that were asked for.
        target: Index of the class; each picture's top class when None.
        rather_than: Index of the class that it is held against.
        references: What covers squares, as the network reads pictures; the model's own when None.
        scored: Whether each map is tested.
        full: Also those of pictures without evidence.
        precision: Of the passes that test maps: "fp32", "bf16", or "auto" for the faster.
        function: What is explained, where it is no class.
        explained: What that is, in words.
        kind: What it is.
        other: The image that it is held against.
    """

    methods: Methods
    options: Mapping[str, Any]
    target: int | None
    rather_than: int | None
    references: Tensor | None
    scored: bool
    full: bool = False
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    function: OfLogits | None = None
    explained: str = ""
    kind: Function | None = None
    other: Path | None = None

    def name_of(self, output: Codec, target: int) -> str:
        """What is explained, by its index."""
        if target == FUNCTION or not isinstance(output, Classes):
            return self.explained
        return output.names[target]


def check_asked(model: Model, typed: Explain) -> Asked | None:
    """What was asked for, checked before anything is computed; None for a model that writes, which leaves no choice.

    Raises:
        UsageError: If a method, class, layer or head is not there, or two options do not go together.
        DataError: If the reference pictures cannot be read or have another size than the model's.
    """
    if isinstance(model.output, Vocabulary):
        _check_written(model, typed)
        return None
    if not isinstance(model.output, Classes | Numbers):
        problem = f"the model in {typed.run} learnt {model.task.name}, and pages show classes and texts"
        raise UsageError(problem, "in Python: vitrail.explain.occlusion(model.network, model.tensor(images), 0)")
    tested = {
        "--full": typed.full,
        "--background": typed.background,
        "--masks": typed.masks,
        "--precision": typed.precision != "auto",
    }
    for option in (option for option, given in tested.items() if given and typed.no_trust):
        raise UsageError(f"{option} is for the test that --no-trust leaves out", "one of the two")
    contrast = typed.rather_than is not None
    methods = choose_methods(model, typed.method, typed.compare, typed.methods, contrast)
    _refuse_untrained(model, typed)
    target, function, explained, kind, rather_than = None, None, "", None, None
    if isinstance(model.output, Numbers):
        function, explained = _of_numbers(model, typed, model.output.count)
        kind = "number" if typed.similar_to is None else "similarity"
    else:
        target, rather_than = _of_classes(model, typed)
    return Asked(
        methods=methods,
        options=choose_options(methods, typed.option),
        target=target,
        rather_than=rather_than,
        references=_references(model, typed),
        scored=not typed.no_trust,
        full=typed.full,
        precision=typed.precision,
        function=function,
        explained=explained,
        kind=kind,
        other=typed.similar_to,
    )


def _refuse_untrained(model: Model, typed: Explain) -> None:
    """Refuse to explain classes that are all alike to a head of zeros.

    Raises:
        UsageError: It is one.
    """
    weight = getattr(getattr(model.network, "head", None), "weight", None)
    if isinstance(model.output, Classes) and weight is not None and not bool(weight.any()):
        problem = f"the head of {typed.run} has learnt nothing, so that all classes are alike and no map has a sense"
        raise UsageError(problem, f"vitrail train ./photos --init {shlex.quote(typed.run)}")


def _of_classes(model: Model, typed: Explain) -> tuple[int | None, int | None]:
    """The class that is explained, and the one that it is held against, by index.

    Raises:
        UsageError: If there is no such class, both are the same, or another model's target is named.
    """
    if typed.similar_to is not None:
        problem = "--similar-to explains what makes an image like another, and --target and --rather-than a class"
        raise UsageError(problem, "one of the two")
    target = class_index(model, typed.target, "--target")
    rather_than = class_index(model, typed.rather_than, "--rather-than")
    if rather_than is not None and target == rather_than:
        others = [each for each in model.classes if each != typed.rather_than]
        problem = f"--target and --rather-than are both '{typed.target}', which has nothing to be held against"
        raise UsageError(problem, f"--rather-than {shlex.quote(others[0])}" if others else "leave --rather-than out")
    return target, rather_than


def _of_numbers(model: Model, typed: Explain, count: int) -> tuple[OfLogits, str]:
    """What is explained of a model without classes, as a function of its numbers; and what it is called.

    Raises:
        UsageError: If nothing says it, or there is no such number.
        DataError: If the other image cannot be read.
    """
    similar = f"--similar-to {shlex.quote(str(typed.images[0]))}"
    example = "--target 0" if count == 1 else f"{similar}, another image; or --target 0, or another of its numbers"
    if typed.rather_than is not None:
        raise UsageError("--rather-than holds classes against each other, and this model has none", example)
    if count == 1 and typed.similar_to is not None:
        raise UsageError("--similar-to compares directions, and one number of an image has none", example)
    if count == 1 and typed.target in (None, "0"):
        return number(0), "the model's number"
    if (typed.target is None) == (typed.similar_to is None):
        problem = f"the model in {typed.run} describes images by {count} numbers and says no class"
        raise UsageError(f"{problem}: what is to be explained?", example)
    if typed.similar_to is not None:
        (other,) = model.predict([typed.similar_to])
        assert isinstance(other, FeaturePrediction)
        return similarity(other.features.to(model.device)), f"similarity to {typed.similar_to.name}"
    if not str(typed.target).isdecimal() or int(str(typed.target)) >= count:
        problem = f"--target must be one of the model's numbers, 0 to {count - 1}, got '{typed.target}'"
        raise UsageError(problem, "--target 0")
    return number(int(str(typed.target))), f"number {typed.target}"


def _check_written(model: Model, typed: Explain) -> None:
    """Refuse what only models that say classes have.

    Raises:
        UsageError: Names it.
    """
    if model.reads_text:
        problem = f"the model in {typed.run} reads texts, and only pictures are explained"
        raise UsageError(problem, f"vitrail predict {typed.run} {model.example}")
    if typed.method not in (None, WRITTEN):
        raise UsageError(f"method '{typed.method}' explains classes, and this model writes", f"--method {WRITTEN}")
    given = {
        "--similar-to": typed.similar_to is not None,
        "--compare": typed.compare,
        "--methods": typed.methods is not None,
        f"--target {typed.target}": typed.target is not None,
        f"--rather-than {typed.rather_than}": typed.rather_than is not None,
        "--option": bool(typed.option),
        "--background": typed.background is not None,
        "--masks": typed.masks is not None,
        "--no-trust": typed.no_trust,
        "--full": typed.full,
        "--precision": typed.precision != "auto",  # of a test that there is none of
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise UsageError(f"{option} is for models that say classes, and this model writes", f"leave {option} out")


def _references(model: Model, typed: Explain) -> Tensor | None:
    """The reference pictures that were named, where the model is; None for the model's own."""
    if typed.background is None:
        return None
    try:
        references = open_background(typed.background, model.preprocessing, warn)
    except DataError as error:  # its hint may be for the model's own references
        raise DataError(
            error.problem, "--background with a folder of pictures, or a run with pictures like the model's"
        ) from error
    if len(references) < FEW:
        has = counted(len(references), "reference picture")
        warn(f'{typed.background} has {has}, and a verdict needs {FEW}: every map will be "cannot tell"')
    return references.to(next(model.network.parameters()).device)


def choose_methods(model: Model, method: str | None, compare: bool, named: str | None, contrast: bool) -> Methods:
    """The methods that were asked for.

    Args:
        model: Whose number of squares decides what a comparison leaves out.
        method: The name of one.
        compare: Whether several are compared.
        named: Their names, with commas between them; the ones that a comparison has by itself when None.
        contrast: Whether a class is held against another, which not every method can say.

    Raises:
        UsageError: If a method is unknown; or cannot say why one class rather than another, and was named.
    """
    if named is not None and not compare:
        raise UsageError("--methods chooses what --compare shows", f"--compare --methods {named}")
    if compare and method is not None:
        problem = "--method names one method, and --compare shows several"
        raise UsageError(problem, f"--methods {named or method} in its place")
    if compare and named is None:
        return _compared_by_itself(model, contrast)
    names = [method or DEFAULT] if named is None else [part.strip() for part in named.split(",") if part.strip()]
    if not names:
        raise UsageError(f"--methods '{named}' names no method", "--methods generic_attention,rollout")
    return _named(names, "--methods" if compare else "--method", contrast)


def _named(names: Sequence[str], option: str, contrast: bool) -> Methods:
    """The methods of these names, each once."""
    for name in names:
        if name not in METHODS and ":" not in name:
            raise UsageError(
                f"unknown method '{name}', there are {', '.join(METHODS)}", f"{option} {nearest_method(name)}"
            )
    rows = [METHODS.get(name) or own_method(name) for name in names]
    chosen = tuple({each.name: each for each in rows}.values())
    blind = [each.name for each in chosen if not each.class_specific]
    if contrast and blind:
        able = [each.name for each in chosen if each.class_specific] or [DEFAULT]
        problem = f"{', '.join(blind)} cannot tell classes apart and so cannot say why one class rather than another"
        raise UsageError(problem, f"{option} {','.join(able)}")
    return chosen


def _compared_by_itself(model: Model, contrast: bool) -> Methods:
    """All methods but those that take long or cannot answer, which are named."""
    rows, columns = (
        side // patch for side, patch in zip(model.preprocessing.size, model.network.config.patch, strict=True)
    )
    slow = SLOW_WITH_SQUARES if rows * columns > SQUARES else ()
    costly = [each.name for each in METHODS.values() if each.costly or each.name in slow]
    named = {each.name: each.opt_in for each in METHODS.values() if each.opt_in}
    blind = [each.name for each in METHODS.values() if contrast and not each.class_specific]
    if costly:
        warn(f"left out, since they take long: {', '.join(costly)}; --methods {','.join(costly)} takes them")
    if blind:
        warn(f"left out, since they cannot tell classes apart: {', '.join(blind)}")
    for name, why in named.items():
        warn(f"left out, since {why}: {name}; --methods {DEFAULT},{name} takes it")
    return tuple(each for each in METHODS.values() if each.name not in {*costly, *blind, *named})


def choose_options(methods: Methods, words: Sequence[str]) -> dict[str, Any]:
    """The options of one method that were typed as NAME=VALUE, each of the kind that the method wants; the last counts.

    Raises:
        UsageError: If there are several methods, or this one does not have the option or wants another kind of value.
    """
    if words and len(methods) > 1:
        raise UsageError("--option is for one method, not for a comparison", "leave --option out")
    given = {name.replace("-", "_"): value for name, _, value in (word.partition("=") for word in words)}
    return read_options(methods[0], given)


def class_index(model: Model, name: str | None, option: str) -> int | None:
    """The index of a class, by any of its names.

    Raises:
        UsageError: If the model does not have it; names those that there are, or the nearest of many.
    """
    if name is None:
        return None
    known = model.output.number_of if isinstance(model.output, Classes) else {}
    if name not in known:
        numbered = name.isdecimal() and int(name) < len(model.classes)  # the number that a class has
        guess = model.classes[int(name)] if numbered else nearest(name, model.classes) or model.classes[0]
        few = f", it has {', '.join(model.classes)}" if len(model.classes) <= 10 else ""
        raise UsageError(f"the model has no class '{name}'{few}", f"{option} {shlex.quote(guess)}")
    return known[name]
