"""What a report explains, and how: as a person states it (`ReportOptions`), and checked before anything is computed.

A `ReportPlan` is all that the work needs besides the images: the call in Python, the command line and the workers of a
job make one of the same `ReportOptions`.

Where neither the model nor the options have images that fill masked patches, a model of ImageNet's classes borrows ten
photographs that come with vitrail; of any other, the images of a call serve each other (`Others`): each is tested with
patches of those that it is not explained together with.
"""

import contextlib
import math
import operator
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.data.background import FEW, MOST, background_in, open_background
from vitrail.data.images import NamedImage, evenly, open_image
from vitrail.errors import DataError, Hint, UsageError, counted, same_contrast
from vitrail.explain.evidence import check_background
from vitrail.explain.forward import Gridded, with_grid
from vitrail.explain.methods import ALL, DEFAULT, METHODS_OF_TEXTS, USUAL, Method, MethodLike, methods_of
from vitrail.explain.methods.method import read_options
from vitrail.explain.target import by_index, similarity
from vitrail.features.poolings import answer_by_features
from vitrail.jobs.precision import PrecisionOption, check_precision
from vitrail.model import Model
from vitrail.model.model import Source
from vitrail.nn import ViT, evaluating
from vitrail.nn.embedding import Size
from vitrail.runs.beside import RunKnowledge
from vitrail.tasks.target import OfLogits

(WRITTEN,) = METHODS_OF_TEXTS  # the method of a model that generates text
OTHERS = "the other images of this call"
SHIPPED = "ten photographs that come with vitrail, since its classes are ImageNet's"
BATCH = 16
BATCH_OF_WIDE = 4  # images, so that one sees how far a wide network is, and an interruption loses little
WIDE = 192
LABELS = 5  # of several labels that an image has, so many are explained

Methods = tuple[Method, ...]
Class = str | SupportsIndex  # by name or index, also of numpy or torch
ImageLike = Source
TopLabels = int | Literal["all"]
Opener = tuple[str, Callable[[], Image.Image]]
"""The name of an image, and what opens it."""


@dataclass(frozen=True, eq=False)
class ReportOptions:
    """What is to be explained, and how, as a person states it; `report` documents each field."""

    methods: MethodLike | Sequence[MethodLike] = DEFAULT
    target: Class | Sequence[Class] | OfLogits | None = None
    contrast: Class | None = None
    top_labels: TopLabels | None = None
    similar_to: ImageLike | None = None
    options: Mapping[str, Any] | None = None
    background: str | Path | Float[Tensor, "r c h w"] | None = None
    trust: bool = True
    full: bool = False
    precision: PrecisionOption = "auto"


@dataclass(frozen=True, eq=False)
class Others:
    """The images of a call, which fill each other's masked patches.

    Args:
        names: Of the images, as `NamedImage` has them.
        images: (n, c, h, w), as the network reads them, on its device.
    """

    names: tuple[str, ...]
    images: Float[Tensor, "n c h w"]

    @property
    def fold(self) -> int:
        """How many are explained with the same others: half of them, or as many as leave enough for a verdict."""
        return min((len(self.names) + 1) // 2, len(self.names) - FEW)

    def besides(self, together: Sequence[NamedImage]) -> Float[Tensor, "r c h w"] | None:
        """Those that fill the patches of images that are explained together; None where too few for a verdict.

        They are all but the fold of these images, so that composites are computed once for a fold. Where these are of
        several folds, they are all but these themselves.
        """
        named = {one.name for one in together}
        own = [row for row, name in enumerate(self.names) if name in named]
        folds = {row // self.fold for row in own or [0]}
        rows = [row for row in range(len(self.names)) if row // self.fold not in folds]
        if len(rows) < FEW:
            rows = [row for row in range(len(self.names)) if row not in own]
        return self.images[rows] if len(rows) >= FEW else None


@dataclass(frozen=True, eq=False)
class ReportPlan:
    """What is explained, and how, once checked.

    Attributes:
        model: What explains itself: without its head where likeness by features is explained.
        methods: Which attributions; none for a model that generates text, which has a method of its own.
        run: What the run of the model knows of its answers.
        options: The options of the only method.
        target: What is explained, see `vitrail.explain.target`; a list has one index for each image.
        contrast: Index of the class that it is held against.
        top_labels: Of an image that may have several labels, so many of those that are predicted are explained, each by
            itself; None where one thing is explained.
        explained: What is explained, in words, where it is no class.
        other: The image that it is held against: its name, and its values 0..255 as the network reads them (c, h, w).
        answering: The same model with its head, where what is explained lies before that.
        background: What fills masked patches, (r, c, h, w) as the network reads images; the model's own when None.
        others: What fills them where neither the options nor the model have images for that.
        trust: Whether each attribution is tested.
        full: Also those of images without evidence, which else have no maps where several are explained.
        bump: Whether a bump in the middle, which looks at nothing, is tested beside them.
        precision: Of the passes that test attributions: "fp32", "bf16", or "auto" for the faster.
        notes: What a person should know before it is computed, in sentences.
    """

    model: Model
    methods: Methods
    run: RunKnowledge
    options: Mapping[str, Any] = field(default_factory=dict)
    target: int | list[int] | OfLogits | None = None
    contrast: int | None = None
    top_labels: int | None = None
    explained: str = ""
    other: tuple[str, UInt8[Tensor, "c h w"]] | None = None
    answering: Model | None = None
    background: Float[Tensor, "r c h w"] | None = None
    others: Others | None = None
    trust: bool = True
    full: bool = False
    bump: bool = False
    precision: PrecisionOption = "auto"
    notes: tuple[str, ...] = ()

    def nothing_against(self, what: str) -> str:
        """That an image, or several, is of the class that it would be held against."""
        name = self.model.output.name(self.contrast or 0)
        return f"the model classifies {what} as '{name}', for which no contrast is possible"

    def bound(self, names: Sequence[str]) -> Methods:
        """The methods with their options; where maps are stored, with those of the images of these names."""
        more = ({} if each.folder is None else {"names": names} for each in self.methods)
        pairs = zip(self.methods, more, strict=True)
        return tuple(replace(each, function=partial(each.function, **self.options, **own)) for each, own in pairs)

    @property
    def at_a_time(self) -> int:
        """How many images are explained together: fewer by several methods, or by a wide network."""
        network = self.model.network
        is_narrow = not isinstance(network, Gridded) and network.config.width < WIDE
        return max(1, (BATCH if is_narrow else BATCH_OF_WIDE) // max(1, len(self.methods)))

    @property
    def borrows(self) -> bool:
        """Whether masked patches are filled with images that neither the model nor the options have."""
        return self.trust and self.background is None and self.model.background is None

    @property
    def borrowed(self) -> str:
        """What fills them then, in words."""
        return f"patches of {SHIPPED if self.model.borrows_background else OTHERS}"


def patch_grid(model: Model) -> Size:
    """(rows, columns) of patches of the images that a model reads."""
    images = torch.empty((1, model.preprocessing.channels, *model.preprocessing.size), device="meta")
    return with_grid(model.network).grid(images)


def patch_of(model: Model) -> Size:
    """(height, width) of a patch in the images that a model reads, in pixels."""
    (height, width), (rows, columns) = model.preprocessing.size, patch_grid(model)
    return height // rows, width // columns


def plan_report(model: Model, wanted: ReportOptions) -> ReportPlan:
    """Check what is wanted of a model, and choose what is left open.

    Args:
        model: Any that `vitrail.load` opens.
        wanted: What is to be explained, and how.

    Raises:
        UsageError: If a method, class, layer or head is not there, or two fields do not go together.
        DataError: If the background cannot be read or has another size than the model's, or a file of the model's run
            is damaged.
    """
    wanted = replace(wanted, target=_to_plain(wanted.target), contrast=_to_plain(wanted.contrast))
    options = wanted.options or {}
    if model.output.generates:
        return _of_text(model, wanted)
    check_precision(wanted.precision, model.network)
    for name in () if wanted.trust else _find_stated(wanted, "full", "background", "precision"):
        problem = f"{name} (--{name}) is for the test, which trust=False (--no-trust) skips"
        raise UsageError(problem, Hint(drop=[name]))
    answering, is_class = None, wanted.target is not None or wanted.contrast is not None
    if wanted.similar_to is not None and not is_class and not model.output.describes:
        model, answering = answer_by_features(model), model
    if model.output.choose is None:
        problem = f"{called(model)} is a model of the task {model.task.name}, whose outputs have nothing to explain"
        raise UsageError(problem, "vitrail.explain.occlusion(model.network, model.tensor(images), 0)")
    patches = math.prod(model.preprocessing.size) // math.prod(patch_of(model))
    methods, left_out = methods_of(wanted.methods, wanted.contrast is not None, patches, isinstance(model.network, ViT))
    weight = getattr(getattr(model.network, "head", None), "weight", None)
    if weight is not None and not bool(weight.any()):
        problem = f"the head of {called(model)} is untrained: all outputs are the same, so no map means anything"
        words = shlex.join(["vitrail", "train", "./photos", "--init", model.loaded_from or "WEIGHTS"])
        raise UsageError(
            problem, Hint(text=words, python="vitrail.train(data, options=vitrail.TrainOptions(init=...))")
        )
    of_class = () if model.output.describes else ("target",)
    others = _find_stated(wanted, *of_class, "contrast", "top_labels", "similar_to")
    if others and (folders := [each.folder for each in methods if each.folder is not None]):
        problem = f"the maps in {folders[0]} are taken to be of the answer to each image, not of another {others[0]}"
        raise UsageError(problem, Hint(drop=others))
    if options and len(methods) > 1:
        problem = "options (--option) are for one method, not for a comparison"
        raise UsageError(problem, Hint(drop=["option"], python="no options"))
    test = {name: getattr(wanted, name) for name in ("trust", "full", "precision")}
    options, run = read_options(methods[0], options), RunKnowledge(answering or model)
    plan = ReportPlan(model, methods, run, options, answering=answering, notes=left_out, **test)
    return _with_background(_with_labels(_with_target(plan, wanted), wanted.top_labels), wanted.background)


def called(model: Model) -> str:
    """The model as a message names it: by where it was loaded from."""
    return f"the model in {model.loaded_from}" if model.loaded_from else "this model"


def _to_plain(target: Any) -> Any:
    """A target in Python's own values: also numbers of numpy and torch are an index, and several of them a list.

    Raises:
        UsageError: It is neither a class, nor a function, nor several classes.
    """
    if target is None or isinstance(target, str | bool) or callable(target):
        return target
    with contextlib.suppress(TypeError):
        return operator.index(target)
    if isinstance(target, Sequence | np.ndarray | Tensor) and getattr(target, "ndim", 1):
        return [_to_plain(each) for each in target]
    raise UsageError(
        f"a target is a class, by name or index, or one for each image, got {target!r}", Hint({"target": 0})
    )


def _find_stated(wanted: ReportOptions, *names: str) -> list[str]:
    """Those of these fields that are not as they are when left out."""
    both = {name: (getattr(wanted, name), getattr(ReportOptions(), name)) for name in names}
    return [name for name, (value, usual) in both.items() if not (isinstance(value, type(usual)) and value == usual)]


def _of_text(model: Model, wanted: ReportOptions) -> ReportPlan:
    """The plan of a model that generates text: where its decoder attends, and nothing that is for classes."""
    if model.reads_text:
        problem = f"{called(model)} reads texts, but only images can be explained"
        typed = shlex.join(["vitrail", "predict", model.loaded_from or "RUN", model.example])
        raise UsageError(problem, Hint(text=typed, python=f"model.predict([{model.example!r}])"))
    if wanted.methods == WRITTEN:
        wanted = replace(wanted, methods=DEFAULT)
    names = "methods", "target", "contrast", "top_labels", "similar_to", "background", "full", "precision"
    if stated := _find_stated(wanted, *names):
        value, words = getattr(wanted, stated[0]), "--" + stated[0].replace("_", "-")
        typed = ("method", "compare", *stated) if stated[0] == "methods" else stated
        if stated[0] == "methods":
            words = "--compare" if value in (ALL, USUAL) else "--method" if isinstance(value, str) else "--methods"
        shown = f"{words} {value}" if isinstance(value, str) and value not in (ALL, USUAL) else words
        hint = Hint(drop=typed, python=f"no {' and no '.join(stated)}")
        raise UsageError(f"{stated[0]} ({shown}) is for classifiers, but this model generates text", hint)
    options = read_options(METHODS_OF_TEXTS[WRITTEN], wanted.options or {})
    return ReportPlan(model, (), RunKnowledge(model), options, trust=False)


# ---- what is explained


def _with_target(plan: ReportPlan, wanted: ReportOptions) -> ReportPlan:
    """The plan with what is explained: a class or two, or another number."""
    target, contrast, model = wanted.target, wanted.contrast, plan.model
    if callable(target):
        if contrast is not None or wanted.similar_to is not None:
            raise UsageError(
                "a function of the logits cannot be combined with a contrast", "a function that computes the difference"
            )
        return replace(plan, target=target, explained="the function's number")
    if wanted.similar_to is not None and (others := _find_stated(wanted, "target", "contrast")):
        raise UsageError("similar_to (--similar-to) cannot be combined with target or contrast", Hint(drop=others))
    if model.output.describes and (named := _with_number(plan, wanted)) is not None:
        return named
    against = None if contrast is None else model.output.index(contrast, "contrast")
    index = by_index(target, model.output)
    if against is not None and against in (index if isinstance(index, list) else [index]):
        raise same_contrast(model.output.name(against), model.output.names)
    return replace(plan, target=index, contrast=against)


def _with_labels(plan: ReportPlan, top: TopLabels | None) -> ReportPlan:
    """The plan with how many labels of each image are explained, where it may have several and none is named."""
    several = plan.model.output.predicted is not None and plan.target is None and plan.contrast is None
    if top is not None and not several:
        problem = "top_labels (--top-labels) is for a model of several labels an image, where no target is named"
        raise UsageError(problem, Hint(drop=["top_labels"]))
    if top is not None and top != "all" and top < 1:
        raise UsageError(f"top_labels must be 1 or more, got {top}", Hint({"top_labels": LABELS}))
    usual = LABELS if all(each.folder is None for each in plan.methods) else 1  # a stored map is of one
    most = plan.model.output.outputs if top == "all" else top or usual
    return replace(plan, top_labels=most if several else None)


def _with_number(plan: ReportPlan, wanted: ReportOptions) -> ReportPlan | None:
    """The same of a model without classes: how like another image is, or its only number; None for one of several.

    Raises:
        UsageError: If nothing names it, or there is no such number.
        DataError: If the other image cannot be read.
    """
    model, target, similar_to = plan.model, wanted.target, wanted.similar_to
    count = model.output.outputs
    if wanted.contrast is not None:
        raise UsageError("a contrast compares classes, but this model has none", Hint(drop=["contrast"]))
    if count == 1 and similar_to is not None:
        problem = "similarity compares directions of feature vectors, but this model has one number per image"
        raise UsageError(problem, Hint(drop=["similar_to"]))
    if count == 1 and str(target) in ("None", "0"):
        return replace(plan, target=0, explained="the model's number")
    if target is None and similar_to is None:
        problem = f"{called(model)} returns {count} numbers per image and no class, so the target must be named"
        raise UsageError(problem, Hint({"target": 0}, text="another number, or what makes it similar to another image"))
    if similar_to is None:
        return None
    pixels = model.preprocessing.to_uint8(open_image(similar_to))
    with torch.no_grad(), evaluating(model.network):
        (features,) = model.network(model.preprocessing.normalise(pixels[None]).to(model.device))
    name = Path(similar_to).name if isinstance(similar_to, str | Path) else "the other image"
    return replace(plan, explained=f"similarity to {name}", other=(name, pixels), target=similarity(features))


# ---- what fills masked patches


def _with_background(plan: ReportPlan, background: str | Path | Float[Tensor, "r c h w"] | None) -> ReportPlan:
    """The plan with what fills masked patches where something was named, and what to know of it.

    Raises:
        UsageError: If it is a tensor that holds no images as the network reads them.
        DataError: If it cannot be read.
    """
    preprocessing, device = plan.model.preprocessing, plan.model.device
    if background is None:
        return plan
    if not isinstance(background, str | Path):
        check_background(background, (preprocessing.channels, *preprocessing.size))
        return replace(plan, background=background.to(device))
    notes = list[str]()
    try:
        images = open_background(Path(background), preprocessing, notes.append)
    except DataError as error:  # its hint may be for the model's own
        raise DataError(error.problem, "a folder of images, or a run with images like the model's") from error
    if len(images) < FEW:
        has = counted(len(images), "background image")
        notes.append(f'{background} has {has}, and a verdict needs {FEW}: every map will be "cannot tell"')
    return replace(plan, background=images.to(device), notes=(*plan.notes, *notes))


def with_others(plan: ReportPlan, openers: Sequence[Opener]) -> ReportPlan:
    """The plan with what fills masked patches where neither the options nor the model have images for that.

    Args:
        plan: What is explained, and how.
        openers: The images of the call.
    """
    if not plan.borrows:
        return plan
    others = None
    if not plan.model.borrows_background:
        others = read_others(plan.model, evenly(openers, MOST + plan.at_a_time))
        if others is None:  # every verdict is "cannot tell", with the reason
            return plan
    note = f"{without_background(plan.model)}: maps are tested with {plan.borrowed}; --background DIR uses others"
    return replace(plan, others=others, notes=(*plan.notes, note))


def without_background(model: Model) -> str:
    """That a model has no background for the images that it reads, in words."""
    name = model.loaded_from or "this model"
    if model.loaded_from and any(background_in(place) for place in (Path(name), Path(name) / "model")):
        return f"the background of {name} is for images of another size or with other channels"
    return f"{name} has no background"


def read_others(model: Model, openers: Sequence[Opener]) -> Others | None:
    """The images of a call; None where too few can be read."""
    found = []
    for name, opener in openers:
        with contextlib.suppress(DataError):  # whoever explains it refuses it; it is missed nowhere else
            found.append((name, model.preprocessing.to_uint8(opener())))
    if len(found) <= FEW:
        return None
    images = model.preprocessing.normalise(torch.stack([pixels for _, pixels in found]))
    return Others(tuple(name for name, _ in found), images.to(model.device))
