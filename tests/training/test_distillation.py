"""The objective of a student: by hand, by token, by stored answers; and runs that learn from a teacher."""

import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.training.ended import ended_at
from tests.training.lab import CHOICES, EXECUTION, LIVELY, PLAIN, TINY, fresh, tiny_set, weights
from tests.training.lab import same as same_bits
from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.nn import ViT, ViTConfig
from vitrail.training.distillation import Kind, distillation, teacher_loss
from vitrail.training.distilling import live_answers, stored_answers
from vitrail.training.events import Finished, Stopped
from vitrail.training.loop import StepDone, start, train_loop
from vitrail.training.objectives import classification
from vitrail.training.options import DistillOptions
from vitrail.training.settings import read_yaml, settings_from_dict
from vitrail.training.teacher import Teacher, of_model, open_teacher
from vitrail.training.teacher_head import unchanged

CLASSES = tuple("abc")
SHORT = DistillOptions(epochs=2, batch_size=200, threads=1, workers=1, device="cpu", seed=3)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def by_hand(heads: list[np.ndarray], teacher: np.ndarray, targets: np.ndarray, kind: Kind, t: float, w: float) -> float:
    """The loss of the two papers, with sums written out."""
    (by_labels, by_teacher), total = heads, 0.0
    for row, label in enumerate(targets):
        total -= (1 - w) * math.log(softmax(by_labels)[row, label])
        if kind == "hard":
            total -= w * math.log(softmax(by_teacher)[row, int(teacher[row].argmax())])
        else:
            p, q = softmax(teacher / t)[row], softmax(by_teacher / t)[row]
            total += w * t**2 * sum(p[i] * (math.log(p[i]) - math.log(q[i])) for i in range(len(p)))
    return total


def student(token: bool = False, seed: int = 0) -> ViT:
    torch.manual_seed(seed)
    network = ViT(replace(TINY, distillation_token=token)).double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def batch(count: int = 6) -> tuple[Batch, Tensor]:
    """Pictures with labels, and what a teacher says of them; float64."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    answers = 3 * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(count) % 3
    return Batch(images, labels, labels, np.arange(count), 0, 0, 0), answers


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize(("temperature", "weight"), [(3.0, 0.5), (1.0, 0.5), (7.5, 0.9), (2.0, 0.0), (2.0, 1.0)])
def test_the_loss_is_that_of_the_hand_calculation(kind: Kind, token: bool, temperature: float, weight: float) -> None:
    network, (some, answers) = student(token), batch()
    record = vitrail.Record()
    logits = network(some.images, record=record).detach().numpy()
    heads = [record[f"{name}_logits"].numpy() for name in ("class", "distillation")] if token else [logits, logits]
    objective = distillation(lambda _: answers, kind, temperature, weight, token)
    loss, count, measures = objective(network, some)
    expected = by_hand(heads, answers.numpy(), some.labels.numpy(), kind, temperature, weight)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    assert count == 6
    assert int(measures["correct"]) == int((logits.argmax(1) == some.labels.numpy()).sum())


def test_a_hand_calculation_without_the_square_of_the_temperature_would_be_seen() -> None:
    student_logits, answers = torch.randn(4, 3, dtype=torch.float64), batch(4)[1]
    ours = float(teacher_loss(student_logits, answers, "soft", 3.0))
    p, q = softmax(answers.numpy() / 3), softmax(student_logits.numpy() / 3)
    assert ours == pytest.approx(9 * float((p * np.log(p / q)).sum()), rel=1e-12)
    assert abs(ours - float((p * np.log(p / q)).sum())) > 0.1


def test_the_square_keeps_the_gradient_at_its_size() -> None:
    """With T^2 the gradient tends to (student - teacher) / classes for centred logits (2015, equation 4)."""
    answers = torch.tensor([[2.0, -1.0, -1.0]], dtype=torch.float64)
    logits = torch.tensor([[0.5, 0.25, -0.75]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(teacher_loss(logits, answers, "soft", 1000.0), logits)
    torch.testing.assert_close(gradient, (logits.detach() - answers) / 3, rtol=2e-3, atol=2e-3)


def test_without_weight_it_is_classification() -> None:
    network, (some, answers) = student(), batch()
    plain, _, measures = classification(network, some)
    loss, _, ours = distillation(lambda _: answers, weight=0.0)(network, some)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    assert float(ours["label_loss"]) == pytest.approx(float(plain.detach()), rel=1e-6)
    assert torch.equal(ours["correct"], measures["correct"])


def test_mixed_targets_are_learnt_as_shares() -> None:
    network, (some, answers) = student(), batch()
    shares = torch.full((6, 3), 1 / 3, dtype=torch.float64)
    loss, _, _ = distillation(lambda _: answers, weight=0.0)(network, replace(some, targets=shares))
    expected = -network(some.images).detach().log_softmax(1).mean(1).sum()
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("weight", "silent"), [(0.0, "head_dist"), (1.0, "head")])
def test_labels_teach_one_head_and_the_teacher_the_other(weight: float, silent: str) -> None:
    network, (some, answers) = student(token=True), batch()
    distillation(lambda _: answers, weight=weight, token=True)(network, some)[0].backward()
    norms = {name: float(getattr(network, name).weight.grad.abs().sum()) for name in ("head", "head_dist")}
    assert norms.pop(silent) == 0.0
    assert all(norm > 0 for norm in norms.values())


def test_nothing_flows_into_the_teacher() -> None:
    (some, answers), network = batch(), student()
    answers.requires_grad_()
    distillation(lambda _: answers)(network, some)[0].backward()
    assert answers.grad is None


def test_parts_of_a_batch_add_up() -> None:
    network, (some, answers) = student(), batch()
    objective = distillation(lambda asked: answers[asked.ids])
    whole = float(objective(network, some)[0].detach())
    parts = [
        replace(
            some, images=some.images[rows], targets=some.targets[rows], labels=some.labels[rows], ids=some.ids[rows]
        )
        for rows in (slice(0, 4), slice(4, 6))
    ]
    assert sum(float(objective(network, part)[0].detach()) for part in parts) == pytest.approx(whole, rel=1e-12)


# ---- stored answers


def tiny_teacher(seed: int = 5) -> Teacher:
    return Teacher(fresh(TINY, seed=seed).network, PLAIN, CLASSES, "tiny")


def test_stored_answers_are_what_the_teacher_says_live() -> None:
    data = tiny_set(augmentation=Augmentation(label_smoothing=0.1))
    stored, live = stored_answers(tiny_teacher(), data), live_answers(tiny_teacher(), data)
    seen = 0
    for epoch in range(2):
        for some in data.batches(epoch, 5):
            torch.testing.assert_close(stored(some), live(some), rtol=1e-5, atol=1e-6)
            seen += len(some)
    assert seen == 44


def test_stored_answers_do_not_follow_augmentation_and_live_ones_do() -> None:
    data = tiny_set(augmentation=replace(LIVELY, mixup=0.0, cutmix=0.0))
    stored, live = stored_answers(tiny_teacher(), data), live_answers(tiny_teacher(), data)
    (first, second) = (next(data.batches(epoch, 22)) for epoch in (0, 1))
    rows = [int(np.flatnonzero(second.ids == one)[0]) for one in first.ids]
    assert torch.equal(stored(first), stored(second)[rows])
    torch.testing.assert_close(stored(first), live(next(unchanged(data).batches(0, 22))), rtol=1e-5, atol=1e-6)
    assert float((live(first) - live(second)[rows]).abs().max()) > 1e-3


def test_a_training_with_stored_answers_is_the_training_with_live_ones() -> None:
    data, ends = tiny_set(augmentation=Augmentation()), []
    for answers in (stored_answers, live_answers):
        state = fresh()
        for _ in train_loop(state, data, distillation(answers(tiny_teacher(), data)), CHOICES, EXECUTION):
            pass
        ends.append(weights(state.network))
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=1e-4, atol=1e-5)


def test_pictures_that_cannot_be_read_are_left_out() -> None:
    data = tiny_set(augmentation=Augmentation(), bad=(3, 7))
    ask = stored_answers(tiny_teacher(), data)
    answers = torch.cat([ask(some) for some in data.batches(0, 6)])
    assert len(answers) == 20
    assert bool((answers.abs().sum(dim=1) > 0).all())


# ---- runs


@pytest.fixture(scope="module")
def teacher_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of the digits, hardly trained."""
    folder = tmp_path_factory.mktemp("teachers") / "teacher"
    vitrail.train("digits", folder, vitrail.TrainOptions(epochs=3, threads=1))
    return folder


@pytest.fixture(scope="module")
def finished(teacher_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The unbroken run that others must equal."""
    return vitrail.distill("digits", teacher_run, tmp_path_factory.mktemp("runs") / "whole", SHORT)


def test_a_run_stores_what_it_learnt_from(finished: Finished, teacher_run: Path) -> None:
    how = settings_from_dict(read_yaml(finished.folder / "config.yaml")).distillation
    assert how is not None
    assert (how.teacher, how.kind, how.temperature, how.weight) == (str(teacher_run.resolve()), "soft", 3.0, 0.5)
    assert (how.fit_head, how.cache) == (False, False)  # this recipe augments
    assert how.identity == open_teacher(teacher_run).identity()
    notes = json.loads((finished.folder / "data.json").read_text())["notes"]
    assert len([note for note in notes if note.startswith("teacher ")]) == 1
    assert "distillation: soft (temperature 3), weight 0.5, on the class head" in notes
    assert "soft, temperature 3, weight 0.5, on the class head" in (finished.folder / "model" / "README.md").read_text()


def test_the_same_seed_gives_the_same_bits_and_the_teacher_matters(
    finished: Finished, teacher_run: Path, tmp_path: Path
) -> None:
    again = vitrail.distill("digits", teacher_run, tmp_path / "again", SHORT)
    assert again.weights == finished.weights
    alone = vitrail.train(
        "digits", tmp_path / "alone", vitrail.TrainOptions(epochs=2, batch_size=200, threads=1, seed=3)
    )
    assert alone.weights != finished.weights


def test_the_configuration_of_a_run_makes_it_again(finished: Finished, tmp_path: Path) -> None:
    again = vitrail.train(out=tmp_path / "again", options=vitrail.TrainOptions(config=finished.folder / "config.yaml"))
    assert again.weights == finished.weights
    assert (again.folder / "config.yaml").read_text() == (finished.folder / "config.yaml").read_text()


@pytest.mark.parametrize("stop", [3, 9])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    stop: int, finished: Finished, teacher_run: Path, tmp_path: Path
) -> None:
    stopped = ended_at(stop, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Stopped):
        vitrail.distill("digits", teacher_run, tmp_path / "run", SHORT, stopped)
    again = vitrail.distill("digits", teacher_run, tmp_path / "run", DistillOptions(resume="auto"))
    assert again.weights == finished.weights


def test_the_student_needs_no_teacher_and_holds_none_of_it(teacher_run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(teacher_run, tmp_path / "teacher")
    classical = tmp_path / "classical.yaml"
    classical.write_text("network: {class_token: true, pooling: class}\n")
    options = replace(SHORT, epochs=1, batch_size=400, config=classical)
    folder = vitrail.distill("digits", copied, tmp_path / "run", options).folder
    shutil.rmtree(copied)
    model = vitrail.load(folder)
    assert model.network.config.distillation_token
    assert model.network.head_dist is not None
    alone = ViT(model.network.config)
    assert {name for name, _ in model.network.named_parameters()} == {name for name, _ in alone.named_parameters()}
    assert set(model.network.state_dict()) == set(alone.state_dict())
    record = vitrail.Record()
    answer = model.network(torch.randn(2, 1, 8, 8), record=record)
    both = (record["class_logits"] + record["distillation_logits"]) / 2
    torch.testing.assert_close(answer, both)
    assert model.predict(open_source("digits").validation.pictures.open(0))[0].label in model.classes


def test_a_run_goes_on_only_with_its_own_teacher(teacher_run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(teacher_run, tmp_path / "teacher")
    options = replace(SHORT, epochs=1)
    run = vitrail.distill("digits", copied, tmp_path / "run", options).folder
    again = DistillOptions(resume="auto")
    with pytest.raises(UsageError, match=r"weight: 0\.5 -> 0\.9"):
        vitrail.distill("digits", copied, run, replace(again, weight=0.9))
    with pytest.raises(UsageError, match="kind: soft -> hard"):
        vitrail.distill("digits", copied, run, replace(again, kind="hard"))
    with pytest.raises(UsageError, match="token: no -> yes"):
        vitrail.distill("digits", copied, run, replace(again, token="yes"))
    with pytest.raises(UsageError, match="teacher: "):
        vitrail.distill("digits", teacher_run, run, again)
    model = vitrail.load(copied)
    with torch.no_grad():
        model.network.head.weight[0, 0] += 1
    vitrail.save(model, copied / "model")
    with pytest.raises(DataError, match="has changed since the run was started"):
        vitrail.distill("digits", copied, run, again)
    shutil.rmtree(copied)
    with pytest.raises(DataError, match="teacher cannot be loaded"):
        vitrail.train("digits", run, vitrail.TrainOptions(resume="auto"))


def test_a_plain_run_gets_no_teacher_later(teacher_run: Path, tmp_path: Path) -> None:
    run = vitrail.train("digits", tmp_path / "run", vitrail.TrainOptions(epochs=1, threads=1)).folder
    with pytest.raises(UsageError, match="teacher: none -> "):
        vitrail.distill("digits", teacher_run, run, DistillOptions(resume="auto"))


def small_cnn(seed: int = 0) -> nn.Sequential:
    """With statistics of its own, for three-channel pictures of 12 x 12."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(64, 10)
    )


def rgb_teacher(network: nn.Module, names: str = "0123456789") -> Teacher:
    return Teacher(network, Preprocessing((12, 12), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)), tuple(names), "rgb")


def test_a_callable_teaches_and_its_buffers_stay(tmp_path: Path) -> None:
    """One-channel digits, a three-channel teacher of another size that somebody left in train mode."""
    network = small_cnn().train()
    before = weights(network)
    teacher = rgb_teacher(network)
    options = replace(SHORT, epochs=1)
    finished = vitrail.distill("digits", teacher, tmp_path / "run", options)
    assert same_bits(weights(network), before)
    assert network.training, "left in the mode it had"
    assert all(parameter.grad is None for parameter in network.parameters())
    assert (
        vitrail.distill("digits", teacher, finished.folder, DistillOptions(resume="auto")).weights == finished.weights
    )
    with pytest.raises(UsageError, match="handed over in Python"):
        vitrail.train("digits", finished.folder, vitrail.TrainOptions(resume="auto"))
    with pytest.raises(DataError, match="has changed"):
        vitrail.distill("digits", rgb_teacher(small_cnn(seed=1)), finished.folder, DistillOptions(resume="auto"))


def test_the_same_teacher_in_train_mode_would_drift() -> None:
    """The founding document's fault, planted: every forward pass moves the statistics."""
    network = small_cnn().train()
    before = weights(network)
    with torch.no_grad():
        network(torch.randn(4, 3, 12, 12))
    assert not same_bits(weights(network), before)


def test_names_decide_not_numbers(tmp_path: Path) -> None:
    """A teacher whose classes stand in another order teaches the same."""
    network = small_cnn()
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    permuted = small_cnn()
    tensors = network.state_dict()
    permuted.load_state_dict({n: t[order] if n in ("5.weight", "5.bias") else t for n, t in tensors.items()})
    options = replace(SHORT, epochs=1)
    straight = vitrail.distill("digits", rgb_teacher(network), tmp_path / "a", options)
    crossed = vitrail.distill("digits", rgb_teacher(permuted, "".join(map(str, order))), tmp_path / "b", options)
    wrong = vitrail.distill("digits", rgb_teacher(permuted), tmp_path / "c", options)
    for ours, theirs in zip(crossed.model.network.parameters(), straight.model.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)  # another order of columns moves last bits
    pairs = zip(wrong.model.network.parameters(), straight.model.network.parameters(), strict=True)
    assert max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs) > 1e-3


def test_answers_are_stored_where_nothing_is_augmented(teacher_run: Path, tmp_path: Path) -> None:
    still = tmp_path / "still.yaml"
    still.write_text("augmentation: {shift: 0.0, rotate: 0.0, zoom: [1.0, 1.0], mixup: 0.0}\n")
    options = replace(SHORT, epochs=1, config=still)
    finished = vitrail.distill("digits", teacher_run, tmp_path / "run", options)
    how = settings_from_dict(read_yaml(finished.folder / "config.yaml")).distillation
    assert how is not None
    assert how.cache
    live = vitrail.distill("digits", teacher_run, tmp_path / "live", replace(options, cache="off"))
    pairs = zip(finished.model.network.parameters(), live.model.network.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    with pytest.raises(UsageError, match="pictures are mixed"):
        vitrail.distill("digits", teacher_run, tmp_path / "mixed", replace(SHORT, cache="on"))


@pytest.mark.parametrize(
    ("kind", "token"), [("soft", True), ("hard", True), ("soft", False)], ids=["soft", "hard", "no-token"]
)
def test_the_founding_document_takes_a_step(kind: Kind, token: bool) -> None:
    """D2c: ResNet-50 teaches 256/32/1024/6/8 at temperature 3 with weight 0.5; its buffers stay, 159 of 159."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    resnet = torchvision.models.resnet50(weights=None).train()
    names = tuple(str(number) for number in range(1000))
    student_sees = Preprocessing((256, 256))
    teacher = Teacher(resnet, Preprocessing((256, 256)), names)
    before = {name: buffer.clone() for name, buffer in resnet.named_buffers()}
    config = ViTConfig(
        image_size=256, patch_size=32, width=1024, depth=6, heads=8, head_dim=64, mlp_dim=2048,
        dropout=0.1, distillation_token=token,
    )  # fmt: skip
    network = ViT(config)
    first = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    some = Batch(torch.randn(2, 3, 256, 256), torch.tensor([3, 7]), torch.tensor([3, 7]), np.arange(2), 0, 0, 0)

    class Once:
        seed, device = 0, torch.device("cpu")

        def __len__(self) -> int:
            return 2

        def batches(self, epoch: int, batch_size: int, start: int = 0, part_size: int | None = None):
            yield some

    objective = distillation(lambda asked: teacher.answer(asked.images, student_sees), kind, 3.0, 0.5, token)
    choices = replace(CHOICES, epochs=1, average=0.0, warmup_epochs=0.0)
    (step, _) = train_loop(start(network, choices), Once(), objective, choices, EXECUTION)
    assert isinstance(step, StepDone)
    assert math.isfinite(float(step.loss))
    moved = [name for name, parameter in network.named_parameters() if not torch.equal(parameter, first[name])]
    assert {"head.weight", *(["head_dist.weight", "head_dist.bias"] if token else [])} <= set(moved)
    assert len(before) == 159
    assert all(torch.equal(buffer, before[name]) for name, buffer in resnet.named_buffers())
    with torch.no_grad():
        assert network.eval()(some.images).shape == (2, 1000)


def test_a_model_is_a_teacher(teacher_run: Path) -> None:
    model = vitrail.load(teacher_run)
    teacher = of_model(model)
    images = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(teacher.answer(images, model.preprocessing), model.network(images), rtol=1e-4, atol=1e-4)
