"""The most memory that this process held, since a moment.

`getrusage` has the peak of the process that started this one as well, from before this program began, and so says
nothing below it: https://man7.org/linux/man-pages/man2/getrusage.2.html, ru_maxrss.
"""

import re
from pathlib import Path

PROCESS = Path("/proc/self")


def forget_peak() -> None:
    """From here on the peak counts; Linux alone can forget it."""
    if (PROCESS / "clear_refs").exists():
        (PROCESS / "clear_refs").write_text("5")


def peak_memory() -> int:
    """In bytes; 0 where the system does not say."""
    status = PROCESS / "status"
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0
