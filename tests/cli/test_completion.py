"""TAB in real shells: each is started, and asked what it offers for the last word of some lines."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.cli.command import USAGE, Cli, must_refuse
from tests.cli.test_output import read_terminal
from vitrail.cli.main import VERBS
from vitrail.data.sources import NAMED

CASES = {
    "vitrail tra": {"train"},
    "vitrail train fash": {"fashion-mnist"},
    "vitrail train pho": {"photo.jpg"},
    "vitrail train --resume an": {"anyway"},
    "vitrail train digits --epochs 3 --conf": {"--config"},
    "vitrail train digits --config my": {"my.yaml"},
    "vitrail train --init my": {"my.yaml"},
    "vitrail predict my.yaml photo.jpg --precision b": {"bf16"},
    "vitrail predict my": {"my.yaml"},
    "vitrail predict my.yaml --json pho": {"photo.jpg"},
    "vitrail data pa": {"pack"},
    "vitrail completion fi": {"fish"},
}


def in_bash(script: Path, lines: Sequence[str]) -> list[set[str]]:
    ask = ['COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _shtab_vitrail; echo "${{COMPREPLY[*]}}"']
    asked = "\n".join(ask[0].format(line if line[-1] != " " else line + "''") for line in lines)
    done = subprocess.run(["bash", "--norc", "-c", f"source {script}\n{asked}"], capture_output=True, text=True)
    return [set(answer.split()) for answer in done.stdout.splitlines()]


def in_fish(script: Path, lines: Sequence[str]) -> list[set[str]]:
    asked = "\n".join(f"echo (complete -C {shlex.quote(line)} | string split -f1 \\t)" for line in lines)
    done = subprocess.run(["fish", "--no-config", "-c", f"source {script}\n{asked}"], capture_output=True, text=True)
    return [set(answer.split()) for answer in done.stdout.splitlines()]


def in_zsh(script: Path, lines: Sequence[str]) -> list[set[str]]:
    """It completes on a terminal alone: there each line is typed, with TAB, and a key that prints what became of it."""
    import pty

    load = f"autoload -Uz compinit; compinit -u -D; eval \"$(cat {script})\"; bindkey '^I' complete-word; PROMPT="
    load += "; say() { print -r -- \"SAID $BUFFER\"; BUFFER= }; zle -N say; bindkey '^T' say; setopt no_beep\n"
    handle, theirs = pty.openpty()
    env, ends = {**os.environ, "TERM": "dumb"}, {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(["zsh", "-f", "-i"], env=env, start_new_session=True, **ends):
        os.close(theirs)
        os.write(handle, load.encode() + b"".join(f"{line}\t\x14".encode() for line in lines) + b"exit\n")
        received = b"".join(iter(lambda: read_terminal(handle), b"")).decode()
    os.close(handle)
    said = re.findall(r"SAID (\S.*)", received.replace("\r", ""))
    return [{answer.split()[-1]} for answer in said[1:]]  # the first is what was typed to set it up


SHELLS: dict[str, Callable[[Path, Sequence[str]], list[set[str]]]] = {"bash": in_bash, "fish": in_fish, "zsh": in_zsh}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_what_is_typed(shell: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs, sets, files, words of an option; and of each verb the options that its help has, and no other."""
    if os.name != "posix" or shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "written" / "script"
    script.parent.mkdir()
    script.write_text(cli("completion", shell).out)
    for name in ("photo.jpg", "my.yaml"):
        (tmp_path / name).touch()
    ask = partial(SHELLS[shell], script)
    assert ask(list(CASES)) == list(CASES.values())
    if shell == "zsh":  # which shows what there is as a list; and of several files completes the first
        return
    assert ask(["vitrail "])[0] >= VERBS.keys()
    assert ask(["vitrail train "])[0] >= {*NAMED, "photo.jpg", "my.yaml"}
    assert ask(["vitrail predict my.yaml photo.jpg --json pho"]) == [{"photo.jpg"}]
    for verb, found in zip(VERBS, ask([f"vitrail {verb} --" for verb in VERBS]), strict=True):
        helped = re.findall(r"^  (?:-h, )?(--[a-z-]+)", cli(verb, "--help").out, re.MULTILINE)
        assert found == {*helped}, verb


def test_other_shells_are_refused(cli: Cli) -> None:
    must_refuse(cli("completion", "basch"), USAGE, "basch")
    must_refuse(cli("completion"), USAGE, "completion")
