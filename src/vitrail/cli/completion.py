"""`vitrail completion SHELL`: the script by which a shell completes verbs, options, their words, data sets and files.

The library shtab writes it, from the parsers that write the help; when TAB is pressed, no Python is started.
"""

import argparse
from typing import Any

from vitrail.cli.args import Completion
from vitrail.cli.main import VERBS
from vitrail.cli.parse import parser_of
from vitrail.data.sources import NAMED
from vitrail.errors import UsageError

SETS = " ".join(NAMED)
DATA = {
    "bash": "_vitrail_files_or_sets",
    "zsh": f"{{_files; compadd {SETS}}}",
    "fish": f"{SETS} (__fish_complete_path (commandline -ct))",
    "preamble": {"bash": f'_vitrail_files_or_sets() {{ compgen -W "{SETS}" -- "$1"; compgen -f -- "$1"; }}'},
}


def run(options: Completion, command: str) -> int:
    """Print the script.

    Raises:
        UsageError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise UsageError("completion needs shtab, which is missing", 'pip install "vitrail[completion]"') from error
    whole = argparse.ArgumentParser("vitrail")
    verbs: Any = whole.add_subparsers()
    for name, verb in VERBS.items():
        made = parser_of(verb.options, name)
        verbs.add_parser(name, help=verb.line, description=verb.line, parents=[made], add_help=False)
        for each in made._actions:
            if not each.choices and (each.metavar in ("PATH", "WEIGHTS") or not each.option_strings):
                vars(each)["complete"] = DATA if each.dest in ("data", "images", "inputs") else shtab.FILE
    print(shtab.complete(whole, options.shell))
    return 0
