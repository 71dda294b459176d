"""A teacher: a frozen classifier that predicts the student's images, by its own preprocessing.

    Teacher(network, preprocessing, classes)     any module or function that returns logits
    open_teacher("runs/big")                     anything that `vitrail.load` opens; any classifier of torchvision, timm

It is no part of the student, whose parameters, buffers and files have none of it. It always predicts in eval mode and
without a graph, so its running statistics never change. Its classes are matched to the student's by name. Its cost in
every step is measured, since it may be any function.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.arguments import typed
from vitrail.data.columns import Texts
from vitrail.data.images import Images
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, Hint, UsageError, VitrailError, some_of
from vitrail.model import Model
from vitrail.model.confidence import load_checked
from vitrail.model.loading import FLAGS
from vitrail.nn import ViT
from vitrail.nn.networks import evaluating, weights_hash
from vitrail.tasks.classify import Classes
from vitrail.text import ShortRepr
from vitrail.training.execution import Work
from vitrail.weights.assume import check_names, hint_for
from vitrail.weights.classifiers import open_classifier
from vitrail.weights.places import timm_table
from vitrail.weights.published import distinguish, wordnet_ids

NOTHING: Mapping[str, Any] = MappingProxyType({})
FOREIGN = ("torchvision:", "timm:")  # before the name of a network of another library, ViT or not
TRIED = 2  # images on which a teacher's cost is measured; some networks fail on a single one
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow turns colour into grey


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        """The result of the function."""
        return self.function(images)


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Teacher(ShortRepr):
    """A frozen classifier whose predictions a student learns.

    Args:
        network: A module, or a function of normalised images (b, c, h, w), that returns logits (b, classes). A module
            is put in eval mode for every prediction; a function has to do that itself.
        preprocessing: Size, channels, mean and standard deviation of the network's images.
        classes: Class names, in the order of the logits; empty if it returns features, for a new head.
        name: For messages.
        facts: On its origin, by name, for the student's card.
        warning: A sentence on what is doubtful of its preprocessing; empty without.
    """

    network: Callable[[Tensor], Tensor]
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    name: str = "teacher"
    facts: Mapping[str, Any] = field(default_factory=dict)
    warning: str = ""

    def __post_init__(self) -> None:
        """Hold the class names against what they must be."""
        object.__setattr__(self, "classes", check_names(self.classes))

    @property
    def module(self) -> nn.Module:
        """The network as a module."""
        return self.network if isinstance(self.network, nn.Module) else Function(self.network)

    @torch.no_grad()
    def answer(self, images: Float[Tensor, "b c h w"], student: Preprocessing) -> Float[Tensor, "b v"]:
        """The teacher's logits of images that are normalised for the student; in fp32, in eval mode, without a graph.

        Args:
            images: The images that the student sees, with their augmentation.
            student: The student's preprocessing, by which they were normalised.

        Raises:
            UsageError: It returns no tensor; the hint is a function that does.
        """
        with evaluating(self.module), torch.autocast(images.device.type, enabled=False):
            found: object = self.network(self.view(images.float(), student))
        if not isinstance(found, Tensor):
            problem = f"{self.name} returns {type(found).__name__}, which is no tensor of logits"
            raise UsageError(problem, 'lambda x: model(x).logits, or model(x)["logits"], with model in eval mode')
        return found.float()

    def view(self, images: Float[Tensor, "b c h w"], student: Preprocessing) -> Float[Tensor, "b e x y"]:
        """The student's images as the teacher expects them: its channels, its size, its mean and standard deviation.

        Grey becomes three equal channels, colour becomes grey by Pillow's weights. The whole image is brought to the
        teacher's size (bicubic, averaging where it gets smaller).
        """
        own = self.preprocessing
        values = images * _column(student.std, images) + _column(student.mean, images)
        if student.channels < own.channels:
            values = values.expand(-1, own.channels, -1, -1)
        elif student.channels > own.channels:
            values = (values * _column(LUMA, images)).sum(dim=1, keepdim=True)
        if tuple(values.shape[2:]) != tuple(own.size):
            values = F.interpolate(values, own.size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        return (values - _column(own.mean, images)) / _column(own.std, images)

    def identity(self) -> str:
        """Hash of the weights, and the number of classes; the weights of a function are unknown."""
        return f"{weights_hash(self.module)}-{len(self.classes)}"

    def to(self, device: torch.device) -> "Teacher":
        """The teacher on a device; a module is moved, not copied."""
        return replace(self, network=self.module.to(device))

    def knows(self, classes: Iterable[str]) -> bool:
        """Whether it has all these classes, by any of their names."""
        return set(classes) <= self._number_of().keys()

    def _number_of(self) -> dict[str, int]:
        """The column of each class by its names; without names that several classes have."""
        names = distinguish(self.classes)
        found = Classes(names, wordnet_ids(names)).number_of
        return {name: number for name, number in found.items() if name in names or name not in self.classes}

    def matched(self, classes: Sequence[str]) -> "Teacher":
        """A teacher whose logits are those of these classes, found by name, in this order.

        Raises:
            DataError: A class is not among the teacher's, or more than once.
        """
        if tuple(classes) == self.classes:
            return self
        number_of = self._number_of()
        missing = [name for name in classes if name not in number_of and name not in self.classes]
        hint = Hint({"fit_head": "always"}, text="which gives it a new head; or the same names of classes")
        if missing:
            lacks = f"it lacks {some_of(missing, 5)}; its classes are {some_of(self.classes, 5)}"
            shared = f"{len(classes) - len(missing)} of the {len(classes)} classes here"
            raise DataError(f"{self.name} has {shared}: {lacks}", hint)
        counts = Counter(self.classes)
        if twice := [name for name in classes if counts[name] > 1]:
            raise DataError(f"{self.name} has more than one class called {some_of(twice, 5)}", hint)
        columns = [number_of[name] for name in classes]
        network = nn.Sequential(self.module, Function(lambda logits: logits[:, columns]))
        return replace(self, network=network, classes=tuple(classes))


def open_teacher(
    what: str | Path,
    weights: str = "pretrained",
    size: int = 0,
    head: bool = True,
    assume: Mapping[str, Any] = NOTHING,
    classes: Sequence[str] = (),
    images: Images | Texts | None = None,
) -> Teacher:
    """A teacher by name: a plain ViT is converted, any other network of a library predicts as it is.

    Args:
        what: What `vitrail.load` opens: a run or model folder, `timm:NAME`, `hf:OWNER/NAME`, `torchvision:NAME`, a file
            or a folder of a hub; or a network of torchvision or timm that is no ViT.
        weights: Of a torchvision or timm network: pretrained, random, or a file with its state dict.
        size: Side of its images in pixels; 0 for its own.
        head: False for a teacher that returns features, for a new head, and has no class names.
        assume: What the weights do not say of themselves, as `vitrail.load` takes it. If that makes a new, untrained
            head, the teacher returns features.
        classes: Class names of the logits; those of the weights when empty.
        images: The student's, if the preprocessing is not verified; see `load_checked`.

    Raises:
        UsageError: There is no network of that name, it is no classifier of images, or a fact has to be stated, or is
            stated although the weights have it.
        DataError: The folder or the weights are missing or damaged, or do not fit.
    """
    kind, _, name = str(what).partition(":")
    known = {name: value for name, value in (("assume", assume), ("classes", classes)) if value}
    if str(what).startswith(FOREIGN) and (weights != "pretrained" or not _is_plain_vit(kind, name)):
        for word in known:
            problem = f"{what} is defined by {kind}, so {word} cannot be stated"
            raise UsageError(problem, Hint(drop=FLAGS[word], python=f"no {word}="))
        found = open_classifier(kind, name, weights, head=head)
        teacher = Teacher(found.network, found.preprocessing, found.classes, str(what))
    else:
        model, warning = _loaded(what, known, images)
        teacher = replace(of_model(model, str(what)), warning=warning)
        untrained = "classes" in assume and "head" in model.facts
        if (untrained or not head) and teacher.classes:
            teacher = replace(teacher, network=remove_head(model.network), classes=())
    return replace(teacher, preprocessing=replace(teacher.preprocessing, size=(size, size))) if size else teacher


def _is_plain_vit(library: str, name: str) -> bool:
    architecture = name.partition(".")[0]
    return architecture in timm_table() if library == "timm" else architecture.startswith("vit_")


def of_model(model: Model, name: str = "model") -> Teacher:
    """A vitrail model as a teacher: of its classes, or of none if it returns features, for a new head."""
    return Teacher(model.network, model.preprocessing, model.output.names, name, model.facts)


def remove_head(network: ViT) -> ViT:
    """A ViT that returns the input of its head; with a distillation token, the mean of both tokens."""
    network.head = nn.Identity()
    if network.head_dist is not None:
        network.head_dist = nn.Identity()
    return network


def teacher_cost(teacher: Teacher, student: Preprocessing, device: torch.device) -> Work:
    """Bytes of the weights, and FLOPs for an image, of a teacher that predicts in every step.

    It stores nothing for a backward pass, so that its activations are few beside the student's. The weights of a
    function are unknown.

    Args:
        teacher: Predicts some images.
        student: The preprocessing of the student's images.
        device: Of the teacher.
    """
    images = torch.zeros(TRIED, student.channels, *student.size, device=device)
    with FlopCounterMode(display=False) as counter:
        teacher.answer(images, student)
    weights = sum(tensor.nbytes for tensor in (*teacher.module.parameters(), *teacher.module.buffers()))
    return Work(weights=weights, flops=counter.get_total_flops() // TRIED)


def _loaded(what: str | Path, known: Mapping[str, Any], images: Images | Texts | None) -> tuple[Model, str]:
    try:
        model, warning = load_checked(what, lambda: images, **known)
    except UsageError as error:  # its hint is what the call that loads it lacks, that call, or another name
        hint, flags = error.hint, error.hint.flags
        values = {name: flags[name] for name in flags.keys() & {"image_size", "assume"}}
        if assume := {**values.pop("assume", {}), **{name: flags[name] for name in flags.keys() & {"mean", "std"}}}:
            values["assume"] = {**known.get("assume", {}), **assume}
        words = [repr(str(what)), *(f"{name}={value!r}" for name, value in {**known, **values}.items())]
        call = f"vitrail.load({', '.join(words)})" if values else str(hint)
        if "image_size" in flags:  # which is the student's on the command line
            hint = Hint()
        if call.startswith("vitrail.load("):
            more = hint.text if values else ""  # else it is the call
            hint = replace(hint, python=", ".join(filter(None, (f"vitrail.distill(data, {call})", more))))
        raise UsageError(f"the teacher cannot be loaded: {error.problem}", hint) from error
    except VitrailError as error:
        raise DataError(f"the teacher cannot be loaded: {error.problem}", error.hint) from error
    if model.output.divergence is None and not model.output.describes:
        raise UsageError(f"{what} is not an image classifier, so it cannot teach one", "the run of a classifier")
    if model.output.outputs == 1 and model.output.describes:
        hint = hint_for({"classes": 0}, "for the features that its head reads")
        raise UsageError(f"{what} returns one number per image, which cannot teach classes", hint)
    return model, warning


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]
