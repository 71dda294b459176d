"""`vitrail <verb> ...`: finds the verb, runs it, and turns every error into two lines and an exit code."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from vitrail.cli.output import warn
from vitrail.errors import INTERRUPTED, UsageError, VitrailError, nearest

VERBS = {
    "train": "train a Vision Transformer on a set of images or texts",
    "distill": "train one with the help of a teacher",
    "evaluate": "count how often a model is right",
    "predict": "say what is on images, or write a text for each",
    "explain": "show where on an image a prediction comes from",
    "models": "sizes, parameters, FLOPs, and the layers of one size",
    "doctor": "versions, devices, and whether everything works here",
}

HELP = """\
vitrail: Vision Transformers that can be read, used and seen through

usage: vitrail <verb> [what] [--flags]     vitrail <verb> --help

{verbs}

  --json     one JSON value on stdout and nothing else there
  --debug    a traceback with every error

try: vitrail train digits"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code: 0 done, 1 failed, 2 usage, 3 data or weights, 130 interrupted."""
    if arguments is None:
        _wait_politely()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        code = run([word for word in given if word != "--debug"])
        sys.stdout.flush()
    except VitrailError as error:
        code = _complain(error.problem, error.hint, error.exit_code, debug)
    except KeyboardInterrupt:
        code = _interrupted(given, debug)
    except BrokenPipeError:  # the reader of our output has left, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        problem = f"{what}{error.strerror or error}"
        code = _complain(problem, "check that the path exists, may be written, and has space", 1, debug)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # in the middle of an import, Python wraps it
            sys.exit(_interrupted(given, debug))
        text = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "the same command with --debug, and report what it prints" if not debug else "report the lines above"
        code = _complain(f"vitrail failed where it should not: {text}", hint, 1, debug)
    sys.exit(code)


def _interrupted(given: list[str], debug: bool) -> int:
    more = "; with --out and --resume auto a run goes on" if given[:1] in (["train"], ["distill"]) else ""
    return _complain("interrupted", f"the same command again{more}", INTERRUPTED, debug)


def run(arguments: list[str]) -> int:
    """Run the verb that the arguments name."""
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:<10} {says}" for verb, says in VERBS.items())))
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"vitrail {version('vitrail')}")
        return 0
    verb = arguments[0]
    if verb not in VERBS:
        raise UsageError(f"unknown verb '{verb}'", f"vitrail {nearest(verb, VERBS) or '--help'}")
    return int(importlib.import_module(f"vitrail.cli.{verb}").run(arguments[1:]))


def _wait_politely() -> None:
    """Let threads of torch sleep while they wait for each other, unless the environment says otherwise.

    Otherwise they spin, and when others use the processors they spin for one that is not running: on 4 processors, 2
    of them busy, one picture through a Ti/16 took 1400 ms on 4 spinning threads and 19 ms on 4 sleeping ones.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _complain(problem: str, hint: str, code: int, debug: bool) -> int:
    """Two lines on stderr, whatever the texts hold."""
    if debug:
        traceback.print_exc()
    warn(f"vitrail: {' '.join(problem.split())}")
    warn(f"try: {' '.join(hint.split())}")
    return code
