"""The objective of a student: by hand, by token, by stored answers; and runs that learn from a teacher."""

import ast
import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.shared_runs import stored
from tests.training.lab import (
    CHOICES,
    EXECUTION,
    LIVELY,
    PLAIN,
    TINY,
    Batch,
    Kind,
    StepDone,
    batch_of_images,
    cross_entropy,
    distillation,
    divergence,
    fresh,
    live_answers,
    same as same_bits,
    some_of,
    start,
    stored_answers,
    tiny_set,
    train_loop,
    weights,
)
from tests.training.tiny import AGAIN, ended_at, options, photographs, student as student_run, student_options, whole
from tests.weights.redraw import redrawn
from vitrail.data.augmentation import Augmentation
from vitrail.data.dataset import Counts
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.nn import ViT, ViTConfig
from vitrail.runs.settings import Settings, changes, read_yaml, settings_to_dict
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import resolve
from vitrail.training.configuration.teacher import Teacher, of_model
from vitrail.training.events import Stopped
from vitrail.training.prepared import open_data
from vitrail.weights.assume import check_assume

pytestmark = pytest.mark.usefixtures("as_a_user")
CLASSES = tuple("abc")
STUDENT_AGAIN = vitrail.DistillOptions(resume="auto")


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
    """Images with labels, and what a teacher says of them; float64."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    answers = 3 * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(count) % 3
    return batch_of_images(images, labels), answers


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize(("temperature", "weight"), [(3.0, 0.5), (1.0, 0.5), (7.5, 0.9), (2.0, 0.0), (2.0, 1.0)])
def test_the_loss_is_that_of_the_hand_calculation(kind: Kind, token: bool, temperature: float, weight: float) -> None:
    network, (some, answers) = student(token), batch()
    record = vitrail.Record()
    logits = network(some.inputs, record=record).detach().numpy()
    heads = [record[f"{name}_logits"].numpy() for name in ("class", "distillation")] if token else [logits, logits]
    objective = distillation(lambda _: answers, kind, temperature, weight, token)
    loss, count, measures = objective(network, some)
    expected = by_hand(heads, answers.numpy(), some.labels.numpy(), kind, temperature, weight)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    assert count == 6
    assert int(measures["correct"]) == int((logits.argmax(1) == some.labels.numpy()).sum())


def test_a_hand_calculation_without_the_square_of_the_temperature_would_be_seen() -> None:
    student_logits, answers = torch.randn(4, 3, dtype=torch.float64), batch(4)[1]
    ours = float(divergence(student_logits, answers, "soft", 3.0))
    p, q = softmax(answers.numpy() / 3), softmax(student_logits.numpy() / 3)
    assert ours == pytest.approx(9 * float((p * np.log(p / q)).sum()), rel=1e-12)
    assert abs(ours - float((p * np.log(p / q)).sum())) > 0.1


def test_the_square_keeps_the_gradient_at_its_size() -> None:
    """With T^2 the gradient tends to (student - teacher) / classes for centred logits (2015, equation 4)."""
    answers = torch.tensor([[2.0, -1.0, -1.0]], dtype=torch.float64)
    logits = torch.tensor([[0.5, 0.25, -0.75]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(divergence(logits, answers, "soft", 1000.0), logits)
    torch.testing.assert_close(gradient, (logits.detach() - answers) / 3, rtol=2e-3, atol=2e-3)


def test_without_weight_it_is_classification() -> None:
    network, (some, answers) = student(), batch()
    plain, _, measures = cross_entropy(network, some)
    loss, _, ours = distillation(lambda _: answers, alpha=0.0)(network, some)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    assert float(ours["label_loss"]) == pytest.approx(float(plain.detach()), rel=1e-6)
    assert torch.equal(ours["correct"], measures["correct"])


def test_mixed_targets_are_learnt_as_shares() -> None:
    network, (some, answers) = student(), batch()
    shares = torch.full((6, 3), 1 / 3, dtype=torch.float64)
    loss, _, _ = distillation(lambda _: answers, alpha=0.0)(network, replace(some, targets=shares))
    expected = -network(some.inputs).detach().log_softmax(1).mean(1).sum()
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("weight", "silent"), [(0.0, "head_dist"), (1.0, "head")])
def test_labels_teach_one_head_and_the_teacher_the_other(weight: float, silent: str) -> None:
    network, (some, answers) = student(token=True), batch()
    distillation(lambda _: answers, alpha=weight, token=True)(network, some)[0].backward()
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
    parts = [some_of(some, rows) for rows in (slice(0, 4), slice(4, 6))]
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
    torch.testing.assert_close(
        stored(first), live(next(replace(data, augmentation=Augmentation()).batches(0, 22))), rtol=1e-5, atol=1e-6
    )
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


def test_images_that_cannot_be_read_are_left_out() -> None:
    data = tiny_set(augmentation=Augmentation(), bad=(3, 7))
    ask = stored_answers(tiny_teacher(), data)
    answers = torch.cat([ask(some) for some in data.batches(0, 6)])
    assert len(answers) == 20
    assert bool((answers.abs().sum(dim=1) > 0).all())


# ---- runs


def distilled(folder: Path, teacher: Any = None, **changes: Any) -> Any:
    """A student of the tiny run of digits, or of another teacher."""
    return vitrail.distill(
        "digits", whole("digits") if teacher is None else teacher, folder, student_options(**changes)
    )


def stored_distillation(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())["distillation"]


def test_a_run_stores_what_it_learnt_from() -> None:
    run = student_run()
    how = stored_distillation(run)
    assert how["teacher"] == str(whole("digits").resolve())
    assert (how["kind"], how["temperature"], how["alpha"]) == ("soft", 3.0, 0.5)
    assert (how["fit_head"], how["cache"]) == (False, False)  # this recipe augments
    assert how["identity"] == of_model(vitrail.load(whole("digits"))).identity()
    notes = json.loads((run / "data.json").read_text())["notes"]
    assert len([note for note in notes if note.startswith("teacher ")]) == 1
    assert str(how["teacher"]) in (run / "model" / "README.md").read_text()


def test_the_configuration_of_a_run_makes_it_again(tmp_path: Path) -> None:
    """The same seed is the same bits; and the teacher matters."""
    config = student_run() / "config.yaml"
    again = vitrail.train(out=tmp_path / "again", options=vitrail.TrainOptions(config=config))
    assert again.weights == stored(student_run())["weights"] != stored(whole("digits"))["weights"]
    assert (again.folder / "config.yaml").read_text() == config.read_text()


@pytest.mark.parametrize("stop", [3, 9])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(stop: int, tmp_path: Path) -> None:
    expected, teacher = stored(student_run())["weights"], whole("digits")
    stopped = ended_at(stop, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Stopped):
        vitrail.distill("digits", teacher, tmp_path / "run", student_options(), stopped)
    again = vitrail.distill("digits", teacher, tmp_path / "run", STUDENT_AGAIN)
    assert again.weights == expected


def test_the_student_needs_no_teacher_and_holds_none_of_it(tmp_path: Path) -> None:
    copied = shutil.copytree(whole("digits"), tmp_path / "teacher")
    classical = tmp_path / "classical.yaml"
    classical.write_text("network: {width: 8, depth: 1, heads: 2, mlp_dim: 16, class_token: true, pooling: class}\n")
    folder = distilled(tmp_path / "run", copied, epochs=1, config=classical).folder
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
    assert vitrail.evaluate(folder).to_dict()["images"] == 359


def test_a_run_goes_on_only_with_its_own_teacher(tmp_path: Path) -> None:
    copied = shutil.copytree(whole("digits"), tmp_path / "teacher")
    run = distilled(tmp_path / "run", copied, epochs=1).folder
    for changed, change in (
        ({"alpha": 0.9}, "alpha: 0.5 -> 0.9"),
        ({"distillation": "hard"}, "distillation: soft -> hard"),
        ({"distillation_token": "yes"}, "distillation_token: no -> yes"),
    ):
        with must_raise(UsageError) as caught:
            vitrail.distill("digits", copied, run, replace(STUDENT_AGAIN, **changed))
        assert change in caught.value.problem
    with must_raise(UsageError, "teacher: "):
        vitrail.distill("digits", whole("digits"), run, STUDENT_AGAIN)
    model = vitrail.load(copied)
    with torch.no_grad():
        model.network.head.weight[0, 0] += 1
    vitrail.save(model, copied / "model")
    with must_raise(DataError, "teacher"):
        vitrail.distill("digits", copied, run, STUDENT_AGAIN)
    shutil.rmtree(copied)
    with must_raise(DataError, "teacher"):
        vitrail.train("digits", run, AGAIN)


def test_a_plain_run_gets_no_teacher_later() -> None:
    with must_raise(UsageError, "teacher: none -> "):
        vitrail.distill("digits", whole("digits"), whole("digits"), STUDENT_AGAIN)


def small_cnn(seed: int = 0) -> nn.Sequential:
    """With statistics of its own, for three-channel images of 12 x 12."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(64, 10)
    )


def rgb_teacher(network: nn.Module, names: str = "0123456789") -> Teacher:
    return Teacher(network, Preprocessing((12, 12), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)), tuple(names), "rgb")


ASSUME = {"heads": 3, "mean": (0.4, 0.5, 0.6), "std": 0.25}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of others for two classes, by themselves."""
    arguments: Any = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 2}
    file = tmp_path_factory.mktemp("bare") / "weights.safetensors"
    save_file(redrawn(timm.create_model("vit_tiny_patch16_224", **arguments)).state_dict(), file)
    return file


def test_what_is_told_of_a_teacher_is_stored_and_replayed(bare: Path, tmp_path: Path) -> None:
    data, asked = str(photographs(tmp_path)), vitrail.DistillOptions(**vars(options("photos")))
    said: dict[str, Any] = {"assume": ASSUME, "classes": ["b", "a"]}
    run = vitrail.distill(data, bare, tmp_path / "run", asked, **said)
    handed = vitrail.distill(data, vitrail.load(bare, **said), tmp_path / "handed", asked)
    assert run.weights == handed.weights
    config = run.folder / "config.yaml"
    made = vitrail.train(out=tmp_path / "made", options=vitrail.TrainOptions(config=config))
    assert made.weights == run.weights
    assert (made.folder / "config.yaml").read_text() == config.read_text()

    how, assume = stored_distillation(run.folder), {"heads": 3, "mean": [0.4, 0.5, 0.6], "std": [0.25]}
    assert (how["teacher_assume"], how["teacher_classes"]) == (assume, ["b", "a"])
    call = ast.parse((run.folder / "command.txt").read_text(), mode="eval").body
    assert isinstance(call, ast.Call)
    typed = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert check_assume(typed["assume"]) == check_assume(said["assume"])
    assert list(typed["classes"]) == said["classes"]
    assert "heads=3" in (run.folder / "model" / "README.md").read_text()
    assert any("not verified" in note for note in json.loads((run.folder / "data.json").read_text())["notes"])

    again = vitrail.distill(data, bare, run.folder, STUDENT_AGAIN, assume={"mean": assume["mean"]})
    assert again.weights == run.weights
    others: list[dict[str, Any]] = [{"assume": {"heads": 4}}, {"assume": {"norm_eps": 1e-5}}, {"classes": ["a", "b"]}]
    for other in others:
        with must_raise(UsageError, f"teacher_{next(iter(other))}"):
            vitrail.distill(data, bare, run.folder, replace(STUDENT_AGAIN, config=config), **other)


def test_what_is_told_goes_before_a_file_and_belongs_to_one_teacher(bare: Path) -> None:
    dataset, task = open_data("digits", "classify", None, 0, Counts())

    def settled(config: dict[str, Any], teacher: str, **stated: Any) -> Settings:
        options = replace(student_options(), config=None)
        request = Request(data="digits", teacher=teacher, options=options, config=config, **stated)
        return resolve(request, dataset, task)[0]

    stored = read_yaml(student_run() / "config.yaml")
    first = settled(stored, str(bare), teacher_assume=ASSUME, classes=("b", "a"))
    config = settings_to_dict(first)
    more = settled(config, str(bare), teacher_assume={"heads": 4}).distillation
    other = settled(config, "runs/big").distillation
    assert more is not None
    assert other is not None
    assert more.teacher_assume == {**ASSUME, "std": (0.25,), "heads": 4}
    assert more.teacher_classes == ("b", "a")
    assert (other.teacher_assume, other.teacher_classes) == ({}, ())
    assert changes(first, {"distillation": {"teacher_assume": {"heads": 3, "mean": [0.4, 0.5, 0.6]}}}, "a file") == []
    (changed,) = changes(first, {"distillation": {"teacher_assume": {"heads": 4}}}, "a file")
    assert changed[0] == "teacher_assume"
    for wrong in ({"headz": 3}, {"heads": "three"}):
        with must_raise(UsageError, next(iter(wrong))):
            changes(first, {"distillation": {"teacher_assume": wrong}}, "a file")


def test_what_is_told_for_nothing_is_refused(bare: Path, tmp_path: Path) -> None:
    model = vitrail.load(bare, assume=ASSUME)
    for teacher, said in (
        (model, {"assume": ASSUME}),
        (of_model(model), {"classes": model.classes}),
        (whole("digits"), {"assume": {"mean": 0.5}}),
        (bare, {"assume": {**ASSUME, "headz": 3}}),
        (bare, {"assume": ASSUME, "classes": "0123456789"}),
    ):
        with must_raise(UsageError, "assume|classes"):
            vitrail.distill("digits", teacher, tmp_path / "run", student_options(), **said)
    with must_raise(UsageError, "fit_head"):
        fitted = student_options(fit_head="always")
        vitrail.distill("digits", bare, tmp_path / "run", fitted, assume=ASSUME, classes=model.classes)
    assert not (tmp_path / "run").exists()


def test_a_callable_teaches_and_its_buffers_stay(tmp_path: Path) -> None:
    """One-channel digits, a three-channel teacher of another size that somebody left in train mode."""
    network = small_cnn().train()
    before = weights(network)
    teacher = rgb_teacher(network)
    finished = distilled(tmp_path / "run", teacher, epochs=1)
    assert same_bits(weights(network), before)
    assert network.training, "left in the mode it had"
    assert all(parameter.grad is None for parameter in network.parameters())
    assert vitrail.distill("digits", teacher, finished.folder, STUDENT_AGAIN).weights == finished.weights
    with must_raise(UsageError):
        vitrail.train("digits", finished.folder, AGAIN)  # it was handed over in Python
    with must_raise(DataError):
        vitrail.distill("digits", rgb_teacher(small_cnn(seed=1)), finished.folder, STUDENT_AGAIN)


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
    straight = distilled(tmp_path / "a", rgb_teacher(network), epochs=1)
    crossed = distilled(tmp_path / "b", rgb_teacher(permuted, "".join(map(str, order))), epochs=1)
    wrong = distilled(tmp_path / "c", rgb_teacher(permuted), epochs=1)
    for ours, theirs in zip(crossed.model.network.parameters(), straight.model.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)  # another order of columns moves last bits
    pairs = zip(wrong.model.network.parameters(), straight.model.network.parameters(), strict=True)
    assert max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs) > 1e-3


def test_a_teacher_without_classes_gives_features_and_gets_a_head(tmp_path: Path) -> None:
    features = replace(rgb_teacher(small_cnn()[:-1]), classes=())
    finished = distilled(tmp_path / "run", features, epochs=1)
    assert stored_distillation(finished.folder)["fit_head"]
    assert finished.weights == distilled(tmp_path / "always", features, epochs=1, fit_head="always").weights
    assert vitrail.distill("digits", features, finished.folder, STUDENT_AGAIN).weights == finished.weights
    with must_raise(DataError):
        distilled(tmp_path / "never", features, epochs=1, fit_head="never")


def test_answers_are_stored_where_nothing_is_augmented(tmp_path: Path) -> None:
    still = tmp_path / "still.yaml"
    network = options("digits").config.read_text()
    still.write_text(f"{network}augmentation: {{shift: 0.0, rotate: 0.0, zoom: [1.0, 1.0], mixup: 0.0}}\n")
    finished = distilled(tmp_path / "run", epochs=1, config=still)
    assert stored_distillation(finished.folder)["cache"]
    live = distilled(tmp_path / "live", epochs=1, config=still, cache="off")
    pairs = zip(finished.model.network.parameters(), live.model.network.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    still.write_text(f"{still.read_text()}distillation: {{teacher: '', cache: false}}\n")  # a file goes before "auto"
    assert stored_distillation(distilled(tmp_path / "file", epochs=1, config=still).folder)["cache"] is False
    with must_raise(UsageError) as caught:
        distilled(tmp_path / "mixed", cache="on")
    assert caught.value.hint.flags == {"cache": "off"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "token"), [("soft", True), ("hard", True), ("soft", False)], ids=["soft", "hard", "no-token"]
)
def test_the_founding_document_takes_a_step(kind: Kind, token: bool) -> None:
    """D2c: ResNet-50 teaches 256/32/1024/6/8 at temperature 3 with weight 0.5; its buffers stay, 159 of 159."""
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
    some = batch_of_images(torch.randn(2, 3, 256, 256), torch.tensor([3, 7]))

    class Once:
        seed, device = 0, torch.device("cpu")

        def __len__(self) -> int:
            return 2

        def batches(self, *wanted: object):
            yield some

    objective = distillation(lambda asked: teacher.answer(asked.inputs, student_sees), kind, 3.0, 0.5, token)
    choices = replace(CHOICES, epochs=1, ema_decay=0.0, warmup_epochs=0.0)
    (step, _) = train_loop(start(network, choices), Once(), objective, choices, EXECUTION)
    assert isinstance(step, StepDone)
    assert math.isfinite(float(step.loss))
    moved = [name for name, parameter in network.named_parameters() if not torch.equal(parameter, first[name])]
    assert {"head.weight", *(["head_dist.weight", "head_dist.bias"] if token else [])} <= set(moved)
    assert len(before) == 159
    assert all(torch.equal(buffer, before[name]) for name, buffer in resnet.named_buffers())
    with torch.no_grad():
        assert network.eval()(some.inputs).shape == (2, 1000)


def test_a_model_is_a_teacher() -> None:
    model = vitrail.load(whole("digits"))
    teacher = of_model(model)
    images = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(teacher.answer(images, model.preprocessing), model.network(images), rtol=1e-4, atol=1e-4)
