"""`python -m vitrail` is the command line, for whoever has no `vitrail` on the path."""

import subprocess
import sys

from tests.cli.command import USAGE, call, environment


def test_python_m_vitrail() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vitrail", "trian"], env=environment(), capture_output=True, text=True, timeout=240
    )
    same = call("trian")
    assert (done.returncode, done.stdout, done.stderr) == (USAGE, same.out, same.err)
