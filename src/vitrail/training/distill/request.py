"""From what was asked of a distillation to the objective of a run: the teacher opened, checked, fitted and stored.

`Request` is what a person asked for; `Distillation` in the settings is what the run stores. `hired` opens the teacher,
before any image is read; `with_teacher` turns a prepared classifier into a prepared student.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch, Batches
from vitrail.data.columns import Classes
from vitrail.data.dataset import Dataset
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.nn import ViTConfig
from vitrail.tasks.distill import Ask, distillation
from vitrail.training.distill.cost import teacher_cost
from vitrail.training.distill.head import TOGETHER, unchanged, with_new_head
from vitrail.training.distill.teacher import Teacher, open_features, open_teacher
from vitrail.training.execution import ALONE
from vitrail.training.options import DistillOptions
from vitrail.training.settings import Distillation, Settings

if TYPE_CHECKING:
    from vitrail.training.setup import Prepared

CACHED_BYTES = 2**30  # larger tables of answers are not kept unless that was asked for
SCORED = 2048  # validation images that the teacher's accuracy is counted on
STEADY = 1e-3  # how far an answer may differ between two batches, as a share of the largest logit
HANDED = "python:"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked of a distillation.

    Attributes:
        teacher: A folder, torchvision:NAME, timm:NAME, or python:NAME for one that was handed over.
        options: What to do differently.
        handed: The teacher itself, when it was handed over in Python.
    """

    teacher: str
    options: DistillOptions
    handed: Teacher | None = None

    def asked(self) -> dict[str, Any]:
        """The fields of `Distillation` that were asked for; paths without a reference to the current folder."""
        names = {field.name for field in fields(Distillation)} - {"teacher", "fit_head", "cache"}
        chosen = {name: getattr(self.options, name, None) for name in names}
        chosen = {name: value for name, value in chosen.items() if value not in (None, "auto")}
        if "teacher_weights" in chosen:
            chosen["teacher_weights"] = _anywhere(chosen["teacher_weights"])
        return {"teacher": _anywhere(self.teacher), **chosen}

    def applied(self, settings: Settings) -> Settings:
        """The settings of the student: its distillation, and its token where there is one."""
        _refuse_idle(self.teacher, self.options)
        before = {} if settings.distillation is None else _plain(settings.distillation)
        values: dict[str, Any] = {**before, "identity": "", **self.asked()}
        token, network = self.options.token, settings.network
        if not isinstance(network, ViTConfig):
            raise UsageError(f"a teacher of classes cannot teach the task {settings.task}", "vitrail train, alone")
        wanted = token == "yes" or (token == "auto" and network.class_token)
        return replace(
            settings, distillation=Distillation(**values), network=replace(network, distillation_token=wanted)
        )

    def differences(self, settings: Settings) -> list[str]:
        """What is asked for that a run which exists was not started with, as `name: old -> new`."""
        stored = settings.distillation
        if stored is None:
            return [f"teacher: none -> {self.teacher}"]
        token = "yes" if getattr(settings.network, "distillation_token", False) else "no"
        kept = {"fit_head": ("never", "always"), "cache": ("off", "on")}
        pairs = [(name, getattr(stored, name), new) for name, new in self.asked().items()]
        pairs += [(name, words[getattr(stored, name)], getattr(self.options, name)) for name, words in kept.items()]
        pairs.append(("token", token, self.options.token))
        return [f"{name}: {old} -> {new}" for name, old, new in pairs if new not in (old, "auto")]


@dataclass(frozen=True)
class Hired:
    """A teacher that was opened and may teach these classes.

    Attributes:
        teacher: As it was opened; without its head where it gets a new one.
        how: What the run stores of it.
    """

    teacher: Teacher
    how: Distillation


def hired(settings: Settings, request: Request | None, dataset: Dataset, new: bool) -> Hired | None:
    """The teacher that the settings name, opened; None where they name none.

    Args:
        settings: Of the student.
        request: What was asked for; None when only the settings say it (a configuration file, or a run that goes on).
        dataset: The student's.
        new: Whether the run begins; then the choice of a new head is made.

    Raises:
        DataError: If the teacher is missing, is another one than before, or does not know the classes.
        UsageError: If there is no teacher of that name.
    """
    how = settings.distillation
    if how is None:
        return None
    if not isinstance(dataset.codec, Classes):
        raise UsageError(f"a teacher of classes cannot teach the column {dataset.column}", "vitrail train, alone")
    classes = dataset.codec.names
    options = request.options if request is not None and new else None
    fit = options.fit_head if options is not None else ("always" if how.fit_head else "never")
    teacher, fit_head = _opened(how, None if request is None else request.handed, fit, classes)
    _check_identity(how, teacher)
    if not fit_head:
        teacher.matched(classes)
    return Hired(teacher, replace(how, identity=teacher.identity(), fit_head=fit_head))


def with_teacher(
    prepared: "Prepared", request: Request | None, found: Hired | None, new: bool, progress: Progress
) -> "Prepared":
    """The same run with a teacher, where there is one.

    Args:
        prepared: A classifier, prepared by its settings.
        request: As for `hired`.
        found: From `hired`.
        new: Whether the run begins; then the teacher is scored and the choices that were left open are made.
        progress: Gets what is done of the teacher's answers.

    Raises:
        DataError: If its answers are not finite.
        UsageError: If it cannot teach this student.
    """
    if found is None:
        return prepared
    how, data, classes = found.how, prepared.data, prepared.model.classes
    options = request.options if request is not None and new else None
    teacher = found.teacher.to(data.device)
    _check_answers(teacher, data)
    teacher = with_new_head(teacher, data, classes) if how.fit_head else teacher.matched(classes)
    kept = _keeps(options.cache if options is not None else ("on" if how.cache else "off"), data)
    how = replace(how, cache=kept)
    notes = _said(how, teacher, prepared) if new else []
    ask: Ask = stored_answers(teacher, data, progress) if kept else live_answers(teacher, data)
    token = vars(prepared.settings.network)["distillation_token"]
    return replace(
        prepared,
        settings=replace(prepared.settings, distillation=how),
        objective=distillation(ask, how.kind, how.temperature, how.weight, token),
        beside=ALONE if kept else teacher_cost(teacher, _shown(data), data.device),
        notes=(*prepared.notes, *notes),
    )


def live_answers(teacher: Teacher, data: Batches) -> Ask:
    """The teacher sees each image of a batch as the student does, with the same augmentation."""
    return lambda batch: teacher.answer(batch.inputs, _shown(data))


def stored_answers(teacher: Teacher, data: Batches, progress: Progress = lambda what, done, whole: None) -> Ask:
    """The teacher is asked once for each training image, unchanged; later its answers are looked up by id.

    They are computed in one fixed order, so that a run that goes on has the same ones.
    """
    table = torch.zeros(len(data), len(teacher.classes), device=data.device)
    done = 0
    for batch in unchanged(data).batches(0, TOGETHER):
        table[torch.from_numpy(batch.ids).to(data.device)] = teacher.answer(batch.inputs, _shown(data))
        done += len(batch)
        progress("asking the teacher", done, len(data))

    def looked_up(batch: Batch) -> Float[Tensor, "b v"]:
        return table[torch.from_numpy(batch.ids).to(table.device)]

    return looked_up


def teacher_accuracy(teacher: Teacher, prepared: "Prepared") -> tuple[float, int]:
    """Fraction of validation images whose first choice is right, and of how many."""
    held_out, count = prepared.validation, len(prepared.validation)
    everyone = np.linspace(0, count - 1, min(SCORED, count)).astype(np.int64)
    labels = held_out.codec.targets(held_out.column.take(np.arange(count)))
    groups = np.array_split(everyone, -(-len(everyone) // TOGETHER))
    right = count = 0
    student = prepared.model.preprocessing
    for ids, got in zip(groups, held_out.loader.fetch(groups), strict=True):
        images = student.normalise(got.pixels.to(prepared.data.device))
        chosen = teacher.answer(images, student).argmax(dim=1).cpu()
        right += int(((chosen == labels[ids]) & got.readable).sum())
        count += int(got.readable.sum())
    return right / max(1, count), count


def _opened(how: Distillation, handed: Teacher | None, fit: str, classes: tuple[str, ...]) -> tuple[Teacher, bool]:
    """The teacher, or its features where it gets a new head, and whether it does."""
    if how.teacher.startswith(HANDED):
        if handed is None:
            raise UsageError(
                f"this run learns from {how.teacher}, which was handed over in Python",
                "vitrail.distill(data, teacher, out, DistillOptions(resume='auto')) with the same teacher",
            )
        return handed, fit == "always"
    asked = (how.teacher, how.teacher_weights, how.teacher_size)
    if fit == "always":
        return open_features(*asked), True
    teacher = open_teacher(*asked)
    foreign = how.teacher.startswith(("torchvision:", "timm:"))
    if fit == "auto" and foreign and not set(classes) <= set(teacher.classes):
        return open_features(*asked), True
    return teacher, False


def _check_identity(how: Distillation, teacher: Teacher) -> None:
    if how.identity and how.identity != teacher.identity():
        raise DataError(
            f"the teacher {how.teacher} has changed since the run was started (its weights were {how.identity}, they "
            f"are {teacher.identity()})",
            "the teacher as it was, or another --out",
        )


def _check_answers(teacher: Teacher, data: Batches) -> None:
    """Refuse a teacher that cannot answer, or whose answer to a image depends on what else is in the batch."""
    images = next(unchanged(data).batches(0, 8)).inputs
    try:
        together, apart = (teacher.answer(some, _shown(data)) for some in (images, images[: len(images) // 2]))
    except VitrailError:
        raise
    except Exception as error:  # a function of strangers may raise anything
        raise UsageError(
            f"{teacher.name} cannot answer: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
            f"a Preprocessing that is its network's (now it is shown {_shape(teacher)}), and a network that takes such "
            "images and gives logits, such as lambda x: model(x).logits",
        ) from error
    if teacher.classes and tuple(together.shape) != (len(images), len(teacher.classes)):
        raise UsageError(
            f"{teacher.name} gives {tuple(together.shape)} for {len(images)} images and {len(teacher.classes)} class "
            "names",
            "one logit for each class name",
        )
    if not bool(together.isfinite().all()):
        raise DataError(f"{teacher.name} gives numbers that are not finite", "other weights")
    if float((together[: len(apart)] - apart).abs().max()) > STEADY * max(1.0, float(together.abs().max())):
        raise UsageError(
            f"{teacher.name} answers differently to the same image in another batch: is it in train mode?",
            "hand over the module itself, or a function of one in eval mode",
        )


def _keeps(asked: str, data: Batches) -> bool:
    """Whether answers are kept: where images never change, or where that was asked for."""
    a = data.augmentation
    if asked == "on" and (a.mixup or a.cutmix):
        raise UsageError(
            "stored answers are of single images, and here images are mixed (mixup or CutMix)",
            "--cache off, so that the teacher sees the mixture too",
        )
    still = replace(a, label_smoothing=0.0, fill=Augmentation().fill) == Augmentation()
    table = 4 * len(data) * data.codec.outputs
    return asked == "on" or (asked == "auto" and still and table <= CACHED_BYTES)


def _said(how: Distillation, teacher: Teacher, prepared: "Prepared") -> list[str]:
    """What is worth knowing of the teacher before it teaches."""
    accuracy, count = teacher_accuracy(teacher, prepared)
    head = f" with a new head for the {len(teacher.classes)} classes here" if how.fit_head else ""
    notes = [f"teacher {how.teacher}{head}: {accuracy:.2%} of {count:,} validation images right"]
    if how.teacher_weights == "random" and how.teacher.startswith(("torchvision:", "timm:")):
        notes.append("warning: the teacher has random weights, as asked for")
    part = f"temperature {how.temperature:g}" if how.kind == "soft" else "its first choice"
    where = (
        "the head of a distillation token"
        if vars(prepared.settings.network)["distillation_token"]
        else "the class head"
    )
    kept = "; its answers are stored, one for each unchanged image" if how.cache else ""
    own, student = teacher.preprocessing, prepared.model.preprocessing
    if max(own.size) > max(student.size):
        notes.append(
            f"the teacher is shown the student's images of {_size(student)}, enlarged to its {_size(own)}: it sees "
            "no more than the student does; --image-size makes them larger for both"
        )
    return [*notes, f"distillation: {how.kind} ({part}), weight {how.weight:g}, on {where}{kept}"]


def _refuse_idle(teacher: str, options: DistillOptions) -> None:
    """Refuse options of a distillation that would have no effect.

    Raises:
        UsageError: Names the option.
    """
    foreign = teacher.startswith(("torchvision:", "timm:"))
    idle = {
        f"--temperature {options.temperature}": options.temperature is not None and options.kind == "hard",
        f"--teacher-weights {options.teacher_weights}": options.teacher_weights is not None and not foreign,
    }
    why = {"--temperature": "divides probabilities, and a hard teacher gives its first choice only"}
    for name in (name for name, given in idle.items() if given):
        option = name.partition(" ")[0]
        reason = why.get(option, f"is for torchvision and timm, and {teacher} brings its own weights")
        raise UsageError(f"{name} {reason}", f"leave {option} out")


def teacher_facts(settings: Settings) -> dict[str, str]:
    """Who taught, and how; empty where only the labels did."""
    how = settings.distillation
    if how is None:
        return {}
    soft = f", temperature {how.temperature:g}" if how.kind == "soft" else ""
    student = settings.network
    token = isinstance(student, ViTConfig) and student.distillation_token
    where = "by a distillation token" if token else "on the class head"
    return {"teacher": how.teacher, "distillation": f"{how.kind}{soft}, weight {how.weight:g}, {where}"}


def _shown(data: Batches) -> Preprocessing:
    """What the student's images are normalised by."""
    assert isinstance(data.input, Preprocessing)
    return data.input


def _anywhere(path: str) -> str:
    """A path that means the same from any folder, also when nothing is there; names of networks as they are."""
    kind, colon, _ = path.partition(":")
    named = path in ("pretrained", "random") or (colon and len(kind) > 1)
    return path if named and not Path(path).exists() else str(Path(path).resolve())


def _plain(how: Distillation) -> dict[str, Any]:
    return {field.name: getattr(how, field.name) for field in fields(Distillation)}


def _shape(teacher: Teacher) -> str:
    return f"{teacher.preprocessing.channels} channel(s) of {_size(teacher.preprocessing)}"


def _size(preprocessing: Preprocessing) -> str:
    height, width = preprocessing.size
    return f"{height} x {width}"
