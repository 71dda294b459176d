"""Locks that other processes have left."""

import re
from pathlib import Path

from filelock import SoftFileLease

from vitrail import io


def leave_lock(lock: Path, host: str = "", pid: int = 0, start: int | None = None) -> None:
    """Leave the lock of another process: of another machine, of one that has ended, or that began at another time."""
    with SoftFileLease(lock, lease_duration=io.SILENT):
        left = lock.read_text()
    left = re.sub(r"host=.*", f"host={host}", left) if host else left
    left = re.sub(r"pid=.*", f"pid={pid}", left) if pid else left
    lock.write_text(left if start is None else re.sub(r"start=.*", f"start={start}", left))


def holder(lock: Path) -> int | None:
    """The process that a lock names."""
    return SoftFileLease(lock, lease_duration=io.SILENT).pid
