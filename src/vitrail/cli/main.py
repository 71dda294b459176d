"""`vitrail <verb> ...`: finds the verb, runs it, and turns every error into two lines and an exit code."""

import errno
import importlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from vitrail.arguments import guesses
from vitrail.cli import args
from vitrail.cli.output import LOADING, show_waiting, warn
from vitrail.cli.parse import DASHES, EXAMPLES, command_of, data_of, names_images, parse
from vitrail.cli.refusals import is_first, name_folders, refuse_at_once
from vitrail.errors import INTERRUPTED, Hint, UsageError, VitrailError, nearest, out_of_memory, worker_ended
from vitrail.io import begin_command, once
from vitrail.weights.places import stated_by


class Verb(NamedTuple):
    """What `vitrail` can do.

    Attributes:
        line: In the list of verbs.
        options: Its dataclass in `vitrail.cli.args`.
        run: The module and function that do it; imported when all options are known to be right.
    """

    line: str
    options: type
    run: str


VERBS = {
    "train": Verb("train a Vision Transformer on images or texts", args.Train, "train.run"),
    "distill": Verb("train a student on labels and on a teacher's predictions", args.Distill, "train.run"),
    "evaluate": Verb("measure a model on labelled data", args.Evaluate, "evaluate.run"),
    "predict": Verb("predict the classes of images, or generate texts", args.Predict, "predict.run"),
    "explain": Verb("show which parts of an image a prediction depends on", args.Explain, "explain.run"),
    "audit": Verb("ask of a whole set whether a model looks at the right thing", args.AuditOptions, "audit.run"),
    "embed": Verb("write the features of images to a file", args.Embed, "images.run_embed"),
    "similar": Verb("find the nearest images, and show which patches match", args.SimilarOptions, "images.run_similar"),
    "export": Verb("write a model for another runtime, and see that it answers alike", args.Export, "export.run"),
    "serve": Verb("answer images over HTTP, or say at once that it cannot", args.Serve, "serve.run"),
    "data": Verb("check or show data before training, or pack them into tar shards", args.Data, "data.run"),
    "models": Verb(
        "sizes, parameters, FLOPs and layers; what pretrained weights hold", args.Models, "models.run_models"
    ),
    "doctor": Verb("check versions, devices, and the explanations of a model", args.Doctor, "doctor.run_doctor"),
    "completion": Verb("make bash, zsh or fish complete what you type", args.Completion, "completion.run"),
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
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug, words = "--debug" in given, [word for word in given if word != "--debug"]
    if arguments is None:
        _before_torch(given)
        begin_command()
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _leave)
    try:
        code = run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        code = _complain(error, words, debug)
    sys.exit(code)


def suggested(hint: Hint, words: Sequence[str], before: Sequence[Sequence[str]] = ()) -> str:
    """What to try after a command: of a command that would be refused at once the corrected one, and so on.

    A sentence, or a place where nothing is, ends that; and the help, where one leads back to another.

    Args:
        hint: Of the error.
        words: The command without `vitrail`.
        before: Those that led to it.
    """
    verb = VERBS.get(words[0]) if words else None
    line = hint.text or str(hint) if verb is None else command_of(hint, verb.options, words[0], words[1:])
    first, *again = shlex.split(line, comments=True) if line.startswith("vitrail ") else [""]
    if not first or again[0] not in VERBS or [*again] == [*words] or {"-h", "--help"} & {*again}:
        return line
    if again in before:
        return f"vitrail {again[0]} --help"
    error = _refusal_of(again)
    if error and (error.hint.flags or error.hint.drop or error.hint.instead):
        further = suggested(error.hint, again, [*before, [*words]])
        if further.startswith("vitrail ") and "--help" not in further:
            return further if "  # " in further else "  # ".join([further, *line.split("  # ")[1:]])
    return line


def _refusal_of(words: Sequence[str]) -> VitrailError | None:
    """Why a command would be refused at once."""
    if words[0] in VERBS and not {"-h", "--help"} & {*words}:
        try:
            refuse_at_once(parse(VERBS[words[0]].options, words[0], words[1:]))
        except VitrailError as error:
            return error
    return None


def _typed_as(way: str, words: Sequence[str]) -> list[str]:
    """The words of a command that is meant: RUN in it is the first that was typed, else these stand behind."""
    run, *more = words if words and words[0][:1] not in DASHES else [EXAMPLES["run"], *words]
    return [*(each.replace("RUN", run) for each in way.split()), *(more if "RUN" in way else words)]


def _leave(number: int, frame: object) -> None:
    """SIGINT or SIGTERM while a command imports, and has begun nothing: its line, and the end.

    An exception would come up in torch's C++, which aborts the process, or where somebody passes it over.
    """
    if is_first():
        _complain(KeyboardInterrupt(), sys.argv[1:])
    os._exit(INTERRUPTED)


def _complain(error: BaseException, words: Sequence[str], debug: bool = False) -> int:
    """Two lines on stderr, whatever the texts hold; the exit code."""
    ended = worker_ended(error) if isinstance(error, RuntimeError) else None
    error, code = ended or error, 1
    if isinstance(error, VitrailError):
        problem, code, hint = error.problem, error.exit_code, suggested(error.hint, words)
    elif isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):  # of an import
        more = "; with --out RUN --resume auto a run continues" if words and words[0] in ("train", "distill") else ""
        problem, hint, code = "interrupted", f"the same command again{more}", INTERRUPTED
    elif isinstance(error, OSError):
        problem = f"{error.filename}: " * bool(error.filename) + str(error.strerror or error)
        hint = "check that the path exists, that you may write there, and that there is free space"
        if error.errno == errno.EFBIG:
            hint = f"the same command again  # {once(error)}"
    elif out_of_memory(error):
        problem = f"no memory is left ({error})" if str(error) else "no memory is left"
        hint = "the same command with --threads 1, or where more memory is free"
    else:
        problem = f"vitrail failed unexpectedly: {type(error).__name__}: {error}"
        hint = "report the lines above" if debug else "the same command with --debug, and report its output"
    for line in (f"vitrail: {problem}", f"try: {hint}"):
        warn(" ".join(line.split()))
    return code


def run(arguments: list[str]) -> int:
    """Read the options, without torch; only then import the verb, and run it."""
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {name:<10} {verb.line}" for name, verb in VERBS.items())))
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"vitrail {version('vitrail')}")
        return 0
    name, *words = arguments
    if name not in VERBS:
        plain = name.lower().lstrip(DASHES)
        if page := guesses("missing").get(plain):
            run, *more = [word for word in words if word[:1] not in DASHES] or ["runs/latest"]
            hint = guesses("instead")[page]
            data = data_of(run) or (run if Path(run).is_dir() and not stated_by(run) else EXAMPLES["data"])
            if names_images(run):
                run, more = EXAMPLES["run"], [run, *more]
            said = {"'RUN'": repr(run), "RUN": shlex.quote(run), "IMAGES": shlex.join(more), "DATA": shlex.quote(data)}
            for word, typed in said.items():
                hint = hint.replace(word, typed)
            raise UsageError(f"vitrail has no verb '{name}', and nothing that does this (docs/limits.md)", hint)
        ways, place = guesses("verbs").get(plain), next((i for i, word in enumerate(words) if word in VERBS), None)
        if ways is None and place is not None:
            ways, words = words[place], [name, *words[:place], *words[place + 1 :]]
        ways = ways or nearest(plain, VERBS, 0.65)
        again = [_typed_as(way, words) for way in ways.split(" or ")] if ways else [["--help"]]
        meant = next((each for each in again if not _refusal_of(each)), again[0])
        raise UsageError(f"unknown verb '{name}'", shlex.join(["vitrail", *meant]))
    verb = VERBS[name]
    options = parse(verb.options, name, words)
    refuse_at_once(options)
    if is_first():
        name_folders(options)
    module, _, function = verb.run.partition(".")
    show_waiting(LOADING)
    called = getattr(importlib.import_module(f"vitrail.cli.{module}"), function)
    show_waiting("")
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) == _leave:  # from now on an exception: there is something to put away
            alike = number == signal.SIGINT or is_first()
            signal.signal(number, signal.default_int_handler if alike else signal.SIG_DFL)
    return int(called(options, shlex.join(["vitrail", *arguments])))


def _before_torch(given: Sequence[str]) -> None:
    """What torch reads once, when it is loaded, unless the environment says otherwise.

    Threads sleep while they wait for each other. Otherwise they spin, and when others use the processors they spin for
    one that is not running: on 4 processors, 2 of them busy, one image through a Ti/16 took 1400 ms on 4 spinning
    threads and 19 ms on 4 sleeping ones.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    many = "RANK" in os.environ or any(word.partition("=")[0] == "--devices" for word in given)
    if many:  # of a process or a launcher that is gone their own line comes first, not those of torch's sockets
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
