"""Tasks beside each other: in order, each on one thread, and as many at a time as were asked for."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from vitrail.runtime import in_order, threads_set


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
