"""Tasks beside each other: in order, each on one thread, and as many at a time as were asked for."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from vitrail import runtime
from vitrail.runtime import in_order, multiplies_bf16, threads_set, time_bf16


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tasks_are_answered_in_order_on_one_thread_each(threads: int) -> None:
    """The first `threads` tasks end only when all of them run; so they run at the same time, and no more do."""
    together, running, most = threading.Barrier(threads), 0, 0
    counting = threading.Lock()

    def task(number: int) -> tuple[int, int]:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        if number < threads:
            together.wait(60)
        with counting:
            running -= 1
        return number, torch.get_num_threads()

    taken = 0

    def tasks() -> Iterator[Callable[[], tuple[int, int]]]:
        nonlocal taken
        for number in range(12):
            taken += 1
            yield lambda number=number: task(number)

    with threads_set(4):
        answers = []
        for answer in in_order(tasks(), threads):
            answers.append(answer)
            assert taken <= len(answers) + threads  # a few ahead, never all
        fresh: list[int] = []
        later = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert (torch.get_num_threads(), fresh) == (4, [4])  # nothing is left behind
    assert answers == [(number, 1) for number in range(12)]
    assert most == threads


@pytest.mark.parametrize("counted", [True, False])
def test_only_what_others_do_keeps_processors_busy(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten seconds others took three on one of two processors; this process took eight, which are no hindrance."""
    clock = iter([runtime.Spent(100.0, 50.0, 1.0), runtime.Spent(110.0, 61.0, 9.0)])
    monkeypatch.setattr(runtime, "_spent", lambda: next(clock) if counted else None)
    monkeypatch.setattr(runtime, "_last", runtime._spent())
    monkeypatch.setattr(runtime.os, "getloadavg", lambda: (1.9, 5.0, 5.0))
    assert runtime.busy_processors() == pytest.approx(0.3 if counted else 1.9)


def test_long_ago_says_nothing_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = iter([runtime.Spent(5000.0, 900.0, 9.0), runtime.Spent(5000.2, 900.4, 9.2)])
    monkeypatch.setattr(runtime, "_last", runtime.Spent(100.0, 50.0, 1.0))
    monkeypatch.setattr(runtime, "_spent", lambda: next(clock))
    monkeypatch.setattr(runtime.time, "sleep", slept.append)
    assert runtime.busy_processors() == pytest.approx(1.0)
    assert slept == [runtime.MOMENT]


def test_the_system_counts_what_this_process_takes() -> None:
    before = runtime._spent()
    assert (before is None) == (sys.platform != "linux")
    if before is not None:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        after = runtime._spent()
        assert after is not None
        assert after.own - before.own >= 0.3
        assert after.busy - before.busy >= 0.2  # counted in hundredths, and some late


def test_what_a_task_raises_arrives_in_its_place() -> None:
    def fails() -> int:
        raise ValueError("third")

    found, began = [], []

    def task(number: int) -> int:
        began.append(number)
        return number

    tasks = [lambda: task(0), lambda: task(1), fails, *(lambda number=number: task(number) for number in range(3, 40))]
    with threads_set(3):
        with pytest.raises(ValueError, match="third"):
            found.extend(in_order(iter(tasks), 2))
        assert torch.get_num_threads() == 3
    assert found == [0, 1]
    assert len(began) < 10  # those behind it are not begun


# ---- bf16


@pytest.mark.parametrize(
    ("machine", "units", "there"),
    [
        ("x86_64", (), False),
        ("AMD64", (), False),
        ("x86_64", ("_is_avx512_bf16_supported",), True),
        ("x86_64", ("_is_amx_tile_supported",), True),
        ("aarch64", (), True),
    ],
)
def test_the_processor_says_whether_bf16_can_pay(
    machine: str, units: tuple[str, ...], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.platform, "machine", lambda: machine)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in units)
    assert multiplies_bf16(torch.device("cpu")) == there
    assert multiplies_bf16(torch.device("cuda")), "asks no processor"


@pytest.mark.parametrize(
    ("fp32", "bf16", "asked"),
    [
        (0.01, 0.16, [2, 2]),  # 16 times slower, and all 64 would take 5 s
        (0.0001, 0.0016, [2, 2, 64, 64]),  # as slow, but quick to see with all
        (0.001, 0.0004, [2, 2, 64, 64]),  # 2.5 times as fast: one turn decides
        (0.001, 0.0009, [2, 2] + 6 * [64]),  # it might be either
        (0.01, 0.009, [2, 2, 64, 64]),  # it might, but a turn takes long
    ],
)
def test_a_trial_of_bf16_ends_when_it_is_decided(fp32: float, bf16: float, asked: list[int]) -> None:
    counts: list[int] = []

    def seconds(precision: str, count: int) -> float:
        counts.append(count)
        return count * {"fp32": fp32, "bf16": bf16}[precision]

    assert time_bf16(seconds, 64) == pytest.approx((64 * fp32, 64 * bf16))
    assert counts == asked
    assert time_bf16(seconds, 1) == pytest.approx((fp32, bf16)), "a single sample"


def test_where_all_samples_take_too_long_two_are_timed_three_times() -> None:
    """One of these looks is disturbed by others, and does not decide; without a limit all are timed."""
    counts: list[int] = []

    def seconds(precision: str, count: int) -> float:
        counts.append(count)
        return count * {"fp32": 0.2, "bf16": 0.4 if len(counts) == 2 else 0.1}[precision]

    assert time_bf16(seconds, 64, most=6.0) == pytest.approx((12.8, 6.4))
    assert counts == [2] * 6
    counts.clear()
    assert time_bf16(lambda precision, count: seconds("fp32", count), 64, most=20.0) == pytest.approx((12.8, 12.8))
    assert 64 in counts


def test_a_slow_fp32_is_not_timed_with_all_samples() -> None:
    counts: list[tuple[str, int]] = []

    def seconds(precision: str, count: int) -> float:
        counts.append((precision, count))
        return count * {"fp32": 0.05, "bf16": 0.01}[precision]

    assert time_bf16(seconds, 64) == pytest.approx((3.2, 0.64))
    assert counts == [("fp32", 2), ("bf16", 2), ("bf16", 64)]
