"""`python -m vitrail` is the command line, for whoever has no `vitrail` on the path."""

import subprocess
import sys

import pytest

from tests.cli.command import environment


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["models", "--help"], 0), (["trian"], 2)])
def test_python_m_vitrail(words: list[str], code: int) -> None:
    both = [
        subprocess.run([sys.executable, *how, *words], env=environment(), capture_output=True, text=True, timeout=60)
        for how in (["-m", "vitrail"], ["-c", "from vitrail.cli import main; main()"])
    ]
    assert [done.returncode for done in both] == [code, code]
    assert both[0].stdout == both[1].stdout
    assert both[0].stderr == both[1].stderr
    assert both[0].stdout or both[0].stderr
