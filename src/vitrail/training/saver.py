"""Saving behind the loop's back: the loop waits for a copy of what is saved, and one thread writes the copies.

    saver.later(write)   the thread does it behind all that was asked for before
    saver.look()         raises what failed meanwhile; asked at every step
    saver.wait()         until all is on the disk

There is one thread, and it works in the order of asking: a state that is whole on the disk has everything behind it
that was written before it. After a failure nothing more is written, since it would stand on what is missing.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Saver:
    """One thread that writes, in order; a context, at whose end nothing is being written any more."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vitrail-save")
        self._asked = deque[Future[Any]]()
        self._failed = False

    def __enter__(self) -> "Saver":
        """The same."""
        return self

    def __exit__(self, *error: object) -> None:
        """What is being written is written to its end, also where the training has failed."""
        self._thread.shutdown(wait=True)

    def later(self, write: Callable[[], object]) -> None:
        """Have the thread do something behind all that it was asked for before."""
        self._asked.append(self._thread.submit(self._unless_failed, write))

    def look(self) -> None:
        """Raise what failed since the last look; waits for nothing."""
        while self._asked and self._asked[0].done():
            self._asked.popleft().result()

    def wait(self) -> None:
        """Wait until all that was asked for is done; raise what failed."""
        while self._asked:
            self._asked.popleft().result()

    def _unless_failed(self, write: Callable[[], object]) -> None:
        if self._failed:
            return
        self._failed = True  # until it is done
        write()
        self._failed = False
