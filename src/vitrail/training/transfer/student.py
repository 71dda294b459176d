"""The objective of a student: "Distilling the knowledge in a neural network" (2015), and DeiT (2021), section 4.

The loss of an image is, with alpha, the teacher's fraction of it:

    soft   (1 - alpha) CE(labels) + alpha T^2 KL(softmax(teacher / T) || softmax(student / T))
    hard   (1 - alpha) CE(labels) + alpha CE(the teacher's first choice)

Why T^2: dividing both logits by T makes the gradient of KL with respect to the student's logits about T^2 times smaller
(one 1/T from the student's own division, another since the two softened distributions lie closer by 1/T; exact for
large T). Times T^2, alpha means the same at every temperature (2015, section 2).

With a distillation token (DeiT) the labels teach the class head and the teacher teaches the head of its own token; at
inference both are averaged, which the ViT does by itself. Without one, both teach the class head.

The teacher predicts live, or once per image and stored; with a new head if it needs one. That head is multinomial
logistic regression on the teacher's frozen features of training images without augmentation, standardised: one linear
map, fitted by L-BFGS. That is a convex problem, so there is nothing to tune and the same data give the same head.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.arguments import contract
from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch, Batches
from vitrail.data.columns import Texts
from vitrail.data.dataset import Dataset
from vitrail.data.images import Images
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, Hint, UsageError, counted
from vitrail.model.facts import CHANGES, origin_words
from vitrail.nn import Record
from vitrail.runs.evaluate import errors_of
from vitrail.runs.settings import Distillation, Settings
from vitrail.tasks import Codec
from vitrail.tasks.classify import cross_entropy, divergence
from vitrail.tasks.linear import linear_map
from vitrail.tasks.task import Measures, Network, Objective, at_least_fp32
from vitrail.training.configuration.request import OBJECT, Request
from vitrail.training.configuration.teacher import FOREIGN, Teacher, open_teacher, teacher_cost
from vitrail.training.events import Listen, Note, Reading
from vitrail.training.execution import NO_WORK
from vitrail.training.prepared import Prepared
from vitrail.weights.places import is_foreign

CACHED_BYTES = 2**30  # larger tables of predictions are stored only if that was requested
SCORED = 2048  # validation images on which the teacher's accuracy is measured
STEADY = 1e-3  # largest difference of a logit between two batches, as a fraction of the largest logit
TOGETHER = 256  # images per batch of the teacher
FITTED = 10_000  # most images on which a head is fitted
ORIGIN = ("origin", "licence", "verified", "assumed_by_user", "assumed", "trained_with", *CHANGES)  # a student's, too
DECAY = 1e-4  # on the squares of the weights, for standardised features

TeacherLogits = Callable[[Batch], Float[Tensor, "b v"]]  # the teacher's logits, in the order of the student's classes
Kind = Literal["soft", "hard"]

CLASS, DISTILLATION = "class_logits", "distillation_logits"  # as the ViT calls them in its record


def distillation(
    teacher: TeacherLogits,
    kind: Kind = "soft",
    temperature: float = 3.0,
    alpha: float = 0.5,
    token: bool = False,
    *,
    by_labels: Objective = cross_entropy,
    divergence: Callable[[Tensor, Tensor, str, float], Tensor] = divergence,
) -> Objective:
    """The objective of a student.

    Args:
        teacher: From a batch to logits (b, v); `Teacher` and its stored answers are such functions.
        kind: Learn the teacher's probabilities, or its first choice.
        temperature: T, above 0 (soft only).
        alpha: The teacher's fraction of the loss, from 0 to 1.
        token: Whether the student has a distillation token; else the class head learns from both.
        by_labels: The objective of the student's task.
        divergence: Of its codec.

    Returns:
        A function of network and batch: the summed loss in nats, the number of images, and the measures of the task (by
        what the student answers at inference) with `label_loss`, its summed loss by the labels.
    """

    def objective(network: Network, batch: Batch) -> tuple[Float[Tensor, ""], int, Measures]:
        labelled, taught, outputs = _heads(network, batch, token)
        label_loss, count, measures = by_labels(lambda inputs: labelled, batch)
        if outputs is not labelled:
            _, _, measures = by_labels(lambda inputs: outputs.detach(), batch)
        teacher_part = divergence(taught, teacher(batch).to(taught.dtype), kind, temperature)
        measures = {**measures, "label_loss": label_loss.detach()}
        return (1 - alpha) * label_loss + alpha * teacher_part, count, measures

    return objective


def _heads(network: Network, batch: Batch, token: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The logits that the labels teach, those that the teacher teaches, and the answer; at least in fp32."""
    if not token:
        logits = at_least_fp32(network(batch.inputs))
        return logits, logits, logits
    record = Record(CLASS, DISTILLATION, gradients=True)
    logits = network(batch.inputs, record=record)
    return at_least_fp32(record[CLASS]), at_least_fp32(record[DISTILLATION]), logits


def teacher_of(settings: Settings, request: Request, dataset: Dataset, new: bool) -> tuple[Settings, Teacher | None]:
    """The teacher that the settings name, opened, without its head where it gets a new one; None where they name none.

    Args:
        settings: Of the student.
        request: It may name no teacher where the settings do (a file, or a run that is resumed).
        dataset: The student's.
        new: Whether the run is new; then it is chosen whether the teacher gets a new head, and whether its predictions
            are stored.

    Returns:
        The settings, with these choices and the hash of the teacher, and the teacher.

    Raises:
        DataError: The teacher is missing, is another one than before, or does not know the classes.
        UsageError: There is no teacher of that name, or its predictions cannot be stored.
    """
    how, asked = settings.distillation, request.section("distillation")
    if how is None:
        return settings, None
    classes, images = dataset.codec.names, dataset.train.inputs if new else None
    fit, cache = (asked.get("fit_head"), asked.get("cache")) if new else (how.fit_head, how.cache)
    teacher, fit_head = _opened(how, request.teacher_object, fit, classes, images)
    identity = teacher.identity()
    if how.identity not in ("", identity):
        problem = f"the teacher {how.teacher} has other weights than at the start: {how.identity} -> {identity}"
        raise DataError(problem, "the teacher as it was, or another --out")
    if not fit_head:
        teacher.matched(classes)
    cache = _keeps(cache, settings.augmentation, 4 * len(dataset.train) * dataset.codec.outputs)
    return replace(settings, distillation=replace(how, identity=identity, fit_head=fit_head, cache=cache)), teacher


def _opened(
    how: Distillation, passed: Teacher | None, fit: bool | None, classes: tuple[str, ...], images: Images | Texts | None
) -> tuple[Teacher, bool]:
    """The teacher, or its features where it gets a new head, and whether it does; `fit` is None where that is open."""
    if how.teacher.startswith(OBJECT):
        if passed is None:
            again = "vitrail.distill(data, teacher, out, DistillOptions(resume='auto')) with the same teacher"
            raise UsageError(f"this run learns from {how.teacher}, which was passed in Python", again)
        return passed, not passed.classes if fit is None else fit
    known = {"assume": how.teacher_assume, "classes": how.teacher_classes}
    named = partial(open_teacher, how.teacher, how.teacher_weights, how.teacher_size, **known)
    teacher = named(head=not fit, images=images)
    if fit is None and is_foreign(how.teacher) and not teacher.knows(classes):
        return replace(named(head=False), warning=teacher.warning), True
    return teacher, bool(fit)


def teach(prepared: Prepared, teacher: Teacher | None, new: bool, note: Note) -> Prepared:
    """The run with its teacher, where there is one: its objective is that of a student.

    Args:
        prepared: A classifier, prepared by its settings.
        teacher: From `teacher_of`.
        new: Whether the run is new; then the teacher is evaluated.
        note: Gets sentences on it.

    Raises:
        DataError: The teacher's logits are not finite.
        UsageError: It cannot teach this student.
    """
    how, data = prepared.settings.distillation, prepared.data
    if teacher is None or how is None:
        return prepared
    teacher = teacher.to(data.device)
    _check_answers(teacher, data, len(teacher.classes) or (0 if how.fit_head else data.codec.outputs))
    classes = data.codec.names
    teacher = with_new_head(teacher, data, classes) if how.fit_head else teacher.matched(classes)
    if new:
        note(*_teacher_notes(how, teacher, prepared))
    ask = stored_answers(teacher, data, prepared.listen) if how.cache else live_answers(teacher, data)
    token = vars(prepared.settings.network)["distillation_token"]
    origin = {f"teacher_{name}": teacher.facts[name] for name in ORIGIN if name in teacher.facts}
    taught, by = (how.kind, how.temperature, how.alpha, token), data.codec.divergence
    objective = distillation(ask, *taught, by_labels=prepared.objective, divergence=by)
    beside = NO_WORK if how.cache else teacher_cost(teacher, _shown(data), data.device)
    model = replace(prepared.model, facts={**prepared.model.facts, **origin})
    return replace(prepared, model=model, objective=objective, beside=beside)


def live_answers(teacher: Teacher, data: Batches) -> TeacherLogits:
    """The teacher sees the images of a batch as the student does, with the same augmentation."""
    return lambda batch: teacher.answer(batch.inputs, _shown(data))


def stored_answers(teacher: Teacher, data: Batches, listen: Listen = lambda event: None) -> TeacherLogits:
    """The teacher predicts each training image once, without augmentation; later its logits are looked up by id.

    They are computed in one fixed order, so that a resumed run has the same ones.
    """
    table = torch.zeros(len(data), data.codec.outputs, device=data.device)
    done = 0
    for batch in without_augmentation(data).batches(0, TOGETHER):
        table[torch.from_numpy(batch.ids).to(data.device)] = teacher.answer(batch.inputs, _shown(data))
        done += len(batch)
        listen(Reading("predictions of the teacher", done, len(data)))
    return lambda batch: table[torch.from_numpy(batch.ids).to(table.device)]


def with_new_head(features: Teacher, data: Batches, classes: tuple[str, ...]) -> Teacher:
    """A teacher of these classes: its network before the head, and a linear map fitted on top.

    Args:
        features: Returns features, or logits of other classes.
        data: The student's training images and labels.
        classes: Of the labels.
    """
    answers, labels, count = [], [], 0
    for batch in without_augmentation(data).batches(0, TOGETHER):
        answers.append(features.answer(batch.inputs, _shown(data)).flatten(1))
        labels.append(batch.labels)
        count += len(batch)
        if count >= FITTED:
            break
    head = fit_new_head(torch.cat(answers), torch.cat(labels), data.codec)
    return replace(features, network=nn.Sequential(features.module, nn.Flatten(), head), classes=classes)


def without_augmentation(data: Batches) -> Batches:
    """The same images without augmentation, each once."""
    return replace(data, augmentation=Augmentation(), blend=None, units=None)


def fit_new_head(features: Float[Tensor, "n f"], labels: Tensor, codec: Codec) -> nn.Linear:
    """The linear map that fits the labels best, with a little weight decay."""
    mean, std = features.mean(dim=0), features.std(dim=0, correction=0).clamp_min(1e-6)
    standard = ((features - mean) / std).cpu()
    both = linear_map(codec, standard, labels.cpu(), 2 * DECAY).to(features)
    weight, bias = both[:, :-1], both[:, -1]
    head = nn.Linear(features.shape[1], codec.outputs, device="meta")  # no random numbers for what is known
    head.weight = nn.Parameter(weight / std, requires_grad=False)
    head.bias = nn.Parameter(bias - (weight / std) @ mean, requires_grad=False)
    return head


def teacher_accuracy(teacher: Teacher, prepared: Prepared) -> tuple[float, int]:
    """Accuracy on validation images, and their number."""
    held_out, student = prepared.validation, prepared.model.preprocessing
    some = np.linspace(0, len(held_out) - 1, min(SCORED, len(held_out))).astype(np.int64)
    codec = prepared.model.output
    errors = errors_of(codec, lambda images: teacher.answer(images, student), held_out.subset(some))
    return codec.score(errors), len(errors)


def _check_answers(teacher: Teacher, data: Batches, outputs: int) -> None:
    """Refuse a teacher that fails, has not so many outputs (0 for any), or whose answer depends on the batch."""
    images, reads = next(without_augmentation(data).batches(0, 8)).inputs, teacher.preprocessing
    takes = f"images of {_size(reads)} with {counted(reads.channels, 'channel')}, as its preprocessing says"
    with contract(f"the teacher {teacher.name}", f"{takes} -> logits, such as lambda x: model(x).logits"):
        together, apart = (teacher.answer(some, _shown(data)) for some in (images, images[: len(images) // 2]))
    shape, wanted = tuple(together.shape), (len(images), outputs)
    if outputs and shape != wanted:
        problem = f"{teacher.name} returns the shape {shape} for {len(images)} images, and not {wanted}"
        hint = Hint({"fit_head": "always"}, text="for a new head", python="one logit for each class name")
        raise UsageError(problem, hint)
    if not bool(together.isfinite().all()):
        raise DataError(f"{teacher.name} returns logits that are not finite", "other weights")
    if float((together[: len(apart)] - apart).abs().max()) > STEADY * max(1.0, float(together.abs().max())):
        problem = f"{teacher.name} returns other logits for the same image in another batch: is it in training mode?"
        raise UsageError(problem, "pass the module itself, or a function of a module in eval mode")


def _keeps(cache: bool | None, a: Augmentation, size: int) -> bool:
    """Whether predictions of so many bytes are stored: as chosen, else (None) where images never change."""
    if cache and (a.mixup or a.cutmix):
        problem = "predictions are stored for single images, but images are mixed here (mixup or CutMix)"
        raise UsageError(problem, Hint({"cache": "off"}, text="so that the teacher sees the mixture too"))
    still = replace(a, label_smoothing=0.0, fill=Augmentation().fill) == Augmentation()
    return still and size <= CACHED_BYTES if cache is None else cache


def _teacher_notes(how: Distillation, teacher: Teacher, prepared: Prepared) -> list[str]:
    """Notes on the teacher."""
    accuracy, count = teacher_accuracy(teacher, prepared)
    head = f" with a new head for the {len(teacher.classes)} classes here" if how.fit_head else ""
    notes = [f"teacher {how.teacher}{head}: {prepared.model.output.shown(accuracy)} of {count:,} validation images"]
    below, facts = ", below that head" if how.fit_head else "", origin_words(teacher.facts)
    notes += [f"the teacher{below}: {words}" for words in (*facts, *filter(None, [teacher.warning]))]
    if how.teacher_weights == "random" and how.teacher.startswith(FOREIGN):
        notes.append("warning: the teacher has random weights, as requested")
    kept = "; its predictions are stored, one for each image" if how.cache else ""
    own, student = teacher.preprocessing, prepared.model.preprocessing
    if max(own.size) > max(student.size):
        sees = f"the teacher sees the student's images of {_size(student)}, enlarged to {_size(own)}"
        notes.append(f"{sees}, with no more detail; --image-size makes the images of both larger")
    told = prepared.settings.distillation_facts(prepared.dataset.codec.confidence is not None)
    return [*notes, f"distillation: {told['distillation']}{kept}"]


def _shown(data: Batches) -> Preprocessing:
    """The preprocessing of the student's images."""
    assert isinstance(data.input, Preprocessing)
    return data.input


def _size(preprocessing: Preprocessing) -> str:
    height, width = preprocessing.size
    return f"{height} x {width}"
