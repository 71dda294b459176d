"""Stops a Ray cluster of this machine when its driver has ended in any way; run as a program of its own.

    python cluster_guard.py MARK

Ray's own processes end with the driver, its agents and workers up to a minute later. All of them have MARK in the
environment that they were started with, and nobody else has: those are killed, and no other process. Agents and workers
set a title, by which setproctitle overwrites their arguments and the environment behind these, in which the mark stands
somewhere: SPT_NOENV, which the driver sets, forbids that. Standard input is a pipe from the driver, which ends when the
driver does.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

NAME = "VITRAIL_CLUSTER"
PATIENT = 10.0  # seconds behind the driver's end in which processes may still be started


def marked_processes(mark: str) -> list[int]:
    """The processes that were started with this mark; handles, which never mean another process of the same number."""
    wanted, found = f"{NAME}={mark}".encode(), list[int]()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            handle = os.pidfd_open(int(folder.name))
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(handle)
            else:
                os.close(handle)
    return found


def guard_cluster(mark: str) -> None:
    """Wait for the end of the driver, then kill what is left until nothing is."""
    driver = os.getppid()
    while os.getppid() == driver and not select.select([sys.stdin], [], [], 0.5)[0]:
        pass
    began, quiet = time.monotonic(), 0
    while quiet < 3 and time.monotonic() - began < PATIENT:
        left = marked_processes(mark)
        for handle in left:
            with suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        quiet = 0 if left else quiet + 1
        time.sleep(0.1)


if __name__ == "__main__":
    guard_cluster(sys.argv[1])
