"""A teacher that is asked in every step counts: its weights in the memory, its work in the trial."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.training.lab import PLAIN, TINY
from vitrail.data.preprocessing import Preprocessing
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.cost import flops
from vitrail.options import DistillOptions
from vitrail.runs.settings import Optimization
from vitrail.training import execution, setup
from vitrail.training.configuration.request import OBJECT, Request
from vitrail.training.configuration.teacher import Teacher, teacher_cost
from vitrail.training.execution import NO_WORK, Work
from vitrail.training.prepared import STEP_OVERHEAD, TRIAL_FLOPS, Prepared

GREY = Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,))
DIGITS = tuple("0123456789")
OPTIONS = DistillOptions(epochs=1, batch_size=256, threads=1, device="cpu")
WIDE = 2**9
SMALL = {"patch_size": 4, "width": 8, "depth": 1, "heads": 2, "mlp_dim": 16}
CPU = torch.device("cpu")


class Large(nn.Module):
    """A planted teacher: 10 logits by way of 512 channels at 64 places each, and 16 MiB of weights beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("more", torch.zeros(2**22))
        self.widen = nn.Conv2d(1, WIDE, 1)
        self.head = nn.Linear(WIDE, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.widen(images).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def large() -> Teacher:
    torch.manual_seed(0)
    return Teacher(Large(), GREY, DIGITS, "large")


def test_the_cost_is_measured(large: Teacher) -> None:
    cost = teacher_cost(large, GREY, CPU)
    assert cost.weights == 4 * (2**22 + 2 * WIDE + 10 * WIDE + 10)
    assert cost.flops == 2 * WIDE * 64 + 2 * WIDE * 10
    assert not any(module.training is False for module in large.module.modules()), "left as it was"


def test_a_function_and_a_vit_are_measured_too() -> None:
    network = ViT(replace(TINY, depth=3)).eval()
    cost = teacher_cost(Teacher(network, PLAIN, tuple("abc")), PLAIN, CPU)
    assert cost.weights == sum(4 * parameter.numel() for parameter in network.parameters())
    assert cost.flops == pytest.approx(flops(network.config), rel=0.3)  # torch counts not every fused attention
    function = teacher_cost(Teacher(lambda images: network(images), PLAIN, tuple("abc")), PLAIN, CPU)
    assert (function.weights, function.flops) == (0, cost.flops)


def test_micro_batches_count_what_works_beside() -> None:
    work, choices, memory = execution.work_of(ViTConfig.from_size("Ti/16")), Optimization(batch_size=64), 2**34
    alone, _ = execution.pick_micro_batches(work, choices, memory)
    heavy, notes = execution.pick_micro_batches(work, choices, memory, Work(weights=memory - 2**31))
    assert heavy == 4 * alone
    assert f"{heavy} micro-batches" in notes[0]
    assert execution.pick_micro_batches(work, choices, memory, Work(weights=memory))[0] == 64
    assert execution.pick_micro_batches(work, choices, memory, NO_WORK) == (alone, _)


def begun(teacher: Teacher, **changes: object) -> Prepared:
    options = replace(OPTIONS, **changes)
    config = {"augmentation": {"mixup": 0.0, "cutmix": 0.0}, "network": SMALL}
    request = Request(data="digits", options=options, config=config, teacher=f"{OBJECT}t", teacher_object=teacher)
    return setup.new_run(request, lambda event: None)


def test_a_large_teacher_divides_the_batch_unless_its_answers_are_kept(
    large: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "free_memory", lambda device: 2**24 + 2**18)
    small = Teacher(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), GREY, DIGITS, "small")
    assert begun(small, cache="off").settings.optimization.accumulate == 1
    asked = begun(large, cache="off")
    assert asked.settings.optimization.accumulate == 8  # 256 images in half of what the weights leave
    assert asked.beside.flops > 0
    assert any(" 8 micro-batches" in note for note in asked.notes)
    kept = begun(large, cache="on")
    assert (kept.settings.optimization.accumulate, kept.beside) == (1, NO_WORK)
    assert begun(large, cache="off", accumulate=2).settings.optimization.accumulate == 2, "as asked for"


def test_the_trial_is_smaller_beside_a_large_teacher(large: Teacher) -> None:
    prepared = begun(large, cache="on")
    heavy = replace(prepared, beside=Work(flops=int(TRIAL_FLOPS / 16)))
    assert [len(each.trial(each.settings.optimization)) for each in (prepared, heavy)] == [256, 15]
    assert replace(heavy, sample_seconds=1.0).step_seconds == pytest.approx(256 * STEP_OVERHEAD), "of the whole batch"
