"""`vitrail <verb> ...`: finds the verb, runs it, and turns every error into two lines and an exit code."""

import errno
import importlib
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.arguments import guesses
from vitrail.cli import args
from vitrail.cli.output import LOADING, show_waiting, warn
from vitrail.cli.parse import DASHES, EXAMPLES, command_of, data_of, names_images, parse
from vitrail.data.sources import (
    EXTENSIONS,
    FEATURES,
    UNLABELLED,
    check_images,
    check_path,
    files_of,
    format_of,
    is_named,
    known_format,
)
from vitrail.errors import (
    DEPTHS,
    INTERRUPTED,
    DataError,
    Hint,
    UsageError,
    VitrailError,
    check_address,
    check_option,
    check_task,
    located,
    nearest,
    no_coverage,
    no_such_name,
    out_of_memory,
    parse_device,
    parse_size,
    same_contrast,
    worker_ended,
)
from vitrail.io import (
    begin_command,
    check_new,
    check_table,
    check_writable,
    evaluation_place,
    neighbours_place,
    once,
    page_at,
)
from vitrail.options import LEARNT, parse_seconds
from vitrail.text import canonical
from vitrail.weights.places import check_model, is_foreign, stated_by


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
    "embed": Verb("write the features of images to a file", args.Embed, "images.run_embed"),
    "similar": Verb("find the nearest images, and show which patches match", args.SimilarOptions, "images.run_similar"),
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


def suggested(hint: Hint, words: Sequence[str]) -> str:
    """What to try after a command: of a command that would be refused at once the corrected one, and so on.

    A sentence, or a place where nothing is, ends that.
    """
    verb = VERBS.get(words[0]) if words else None
    line = str(hint) if verb is None else command_of(hint, verb.options, words[0], words[1:])
    first, *again = shlex.split(line, comments=True) if line.startswith("vitrail ") else [""]
    if not first or again[0] not in VERBS or [*again] == [*words] or {"-h", "--help"} & {*again}:
        return line
    error = _refusal_of(again)
    if error and (error.hint.flags or error.hint.drop or error.hint.instead):
        further = suggested(error.hint, again)
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
    if _is_first():
        _complain(KeyboardInterrupt(), sys.argv[1:])
    os._exit(INTERRUPTED)


def _is_first() -> bool:
    """Whether this process is the first of those that do a command together, or the only one."""
    return os.environ.get("RANK", "0") == "0"


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
    if _is_first():
        name_folders(options)
    module, _, function = verb.run.partition(".")
    show_waiting(LOADING)
    called = getattr(importlib.import_module(f"vitrail.cli.{module}"), function)
    show_waiting("")
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) == _leave:  # from now on an exception: there is something to put away
            alike = number == signal.SIGINT or _is_first()
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


# ---- what is refused before a verb and torch are imported


def check_methods(names: str, option: str) -> None:
    """Refuse a method that there is not; one of a person's own is imported later."""
    from vitrail.explain.methods.table import ALL, METHODS, METHODS_OF_TEXTS, USUAL, method_of

    typed = [name.strip() for name in names.split(",")]
    for name in typed:
        if name not in {"", ALL, USUAL, *METHODS, *METHODS_OF_TEXTS} and ":" not in name:
            method_of(name, option, typed)


def check_recipe(options: Any, name: str) -> None:
    """Refuse a recipe that there is not, or that is for something else, where the data are known by their name."""
    row, alone = format_of(options.data), options.config is None and options.task == "auto"
    if name not in ("auto", "custom") and alone and row is not None and (row.recipe or row.sorts):
        from vitrail.training.configuration.recipes import fitting_recipes, recipe_rows

        kind = recipe_rows()[row.recipe]["network"]["kind"] if row.recipe else "ViT"
        data = options.data if row.is_set else str(Path(options.data).expanduser().resolve())
        fitting_recipes(name, data, [kind], options.init is not None)


def check_samples(options: Any, what: str) -> None:
    """Refuse data to train on or to pack that are not there, and a run, of which the data are meant."""
    if is_named(what) or not stated_by(what):
        row, auto = known_format(what), isinstance(options, args.Train) and options.task == "auto"
        files = [*Path(what).expanduser().iterdir()] if auto and row.sorts and options.config is None else []
        if files and all(file.suffix.lower() in EXTENSIONS and file.is_file() for file in files):
            raise DataError(f"{what} has no labels", UNLABELLED)
        return
    config = Path(what) / "config.yaml"
    text = config.read_text("utf-8", "replace") if config.is_file() else ""
    data = re.search(r"^data: (.*\w.*)$", text, re.MULTILINE)
    meant = {"data": data[1].strip("'\"") if data else EXAMPLES["data"]}
    raise DataError(
        f"{what} is a model, and data are wanted",
        Hint(meant | ({"init": what} if isinstance(options, args.Train) else {})),
    )


def check_inputs(options: Any, words: str | Sequence[str]) -> None:
    """Refuse images that are not there; a word that looks like no path may be a text, if the model does not say."""
    check_images(words)
    if stated_by(options.run).get("input", "") is None:
        with located(f"the model in {options.run} reads images"):
            check_images(words, texts=False)


def check_class(options: Any, argument: str, word: str) -> None:
    """Refuse an output that a model of ours, whose folder states them, does not have, or that is both sides."""
    output = _outputs_of(options.run) if options.class_names is None else {}
    for kind in KINDS & output.keys() if word[:1] != "-" else ():
        if canonical(word) not in (*output[kind], *output.get("ids", ())):
            raise no_such_name(word, output[kind], kind, argument)
        if argument == "contrast" and canonical(word) == canonical(options.target or ""):
            raise same_contrast(word, output[kind])


def check_coverage(options: Any, coverage: float) -> None:
    """Refuse a coverage of a model of ours whose folder states that it gives labels."""
    if "labels" in _outputs_of(options.run):
        raise no_coverage("labels")


def _outputs_of(run: str) -> dict[str, Any]:
    """What the folder of a model of ours states of its outputs."""
    stated = stated_by(run).get("output")
    return stated if isinstance(stated, dict) else {}


def check_written(options: Any, out: Path) -> None:
    """Refuse a file that the verb could not write in the end."""
    pages = {args.SimilarOptions: neighbours_place, args.Evaluate: evaluation_place, args.Explain: page_at}
    if isinstance(options, args.Train | args.Distill):
        if options.resume != "never" or options.dry_run or not _is_first():  # the first may have made it
            return
        check_new(out)
    elif isinstance(options, args.Predict):
        check_table(out, out.suffix.lower(), "predictions", ".csv")
    elif isinstance(options, args.Embed):
        check_table(out, out.suffix, "features", FEATURES[0])
    elif type(options) in pages and out.suffix.lower() != args.LINES:
        out = pages[type(options)](out)
    check_writable(out)


def check_data_root(options: Any, root: Path) -> None:
    """Refuse a folder of named sets that is not there, where one of them is read."""
    from vitrail.data.roots import check_folder

    for word in _data_of(options):
        if known := files_of(word):
            check_folder(known, root)


def check_layout(options: Any) -> None:
    """Refuse a pattern of groups or fractions by which no data could be read."""
    from vitrail.data.layout import Layout  # with numpy, for who types one of them

    Layout.of(options)


def name_folders(options: Any) -> None:
    """Warn of a set that is read though a folder of its name is here."""
    for word in dict.fromkeys(_data_of(options)):
        folder = Path(word)
        if is_named(word) and folder.is_dir() and not ((folder / "config.yaml").is_file() or stated_by(word)):
            warn(f"{word} is the set of that name, and not the folder here, which is ./{word}")


def _data_of(options: Any) -> list[str]:
    """The words that name data."""
    named = (getattr(options, name, ()) for name in NAMES)
    return [word for words in named for word in ([words] if isinstance(words, str) else words)]


def check_network(size: str) -> None:
    """Refuse what is neither a size of a network, such as S/16, nor a model."""
    folder = Path(size).parent
    if is_foreign(size) or Path(size).exists() or (folder != Path() and folder.is_dir()):
        check_model(size)
    else:
        parse_size(size, LETTERS)


NAMES = "data", "inputs", "images"  # options that name data
KINDS = {"classes", "labels", "numbers"}  # under which a model of ours states the names of its outputs
LETTERS = ("Ti", "S", "B", "L", "H", "g")
CHECKS: dict[str, Callable[[Any], object]] = {
    "run": check_model,
    "teacher": located("the teacher")(check_model),
    "model": check_model,
    "init": lambda name: name == "auto" or check_model(name, Hint({"init": "auto"})),
    **dict.fromkeys(("class_names", "masks"), check_path),
    "config": partial(check_path, kind=UsageError),
    **dict.fromkeys(("similar_to", "background"), check_images),
    "nearest": lambda name: name in ("auto", "none") or check_path(Path(name)),
    **{name: partial(check_methods, option=name) for name in ("method", "methods")},
    **dict.fromkeys(("size", "student"), check_network),
    "device": lambda name: name == "auto" or parse_device(name),
    "task": partial(check_task, known=LEARNT),
    "max_time": parse_seconds,
    "class_weights": lambda name: name == "auto" or check_path(Path(name), kind=UsageError),
    "bits": lambda bits: check_option("bits", bits, bits in DEPTHS, f"one of {', '.join(map(str, DEPTHS))}", 12),
    "ray": check_address,
}
"""By the name of an option: what refuses a value, or one that names nothing that is there."""


def refuse_at_once(options: Any) -> None:
    """Refuse what can be refused at once, and read nothing.

    Raises:
        UsageError, DataError: As the verb would raise it later.
    """
    if getattr(options, "print_launch", None):  # for machines elsewhere
        return
    resumes = getattr(options, "resume", "never") != "never"  # which needs nothing of what the run started from
    of_several: dict[str, Callable[[Any], object]] = {
        "data": partial(check_samples if isinstance(options, args.Launch | args.Data) else check_inputs, options),
        **dict.fromkeys(("inputs", "images"), partial(check_inputs, options)),
        **{name: partial(check_class, options, name) for name in ("target", "contrast")},
        "coverage": partial(check_coverage, options),
        "out": partial(check_written, options),
        "recipe": partial(check_recipe, options),
        "data_root": partial(check_data_root, options),
        **dict.fromkeys(("fractions", "group_pattern"), lambda text: check_layout(options)),
    }
    for name, check in (CHECKS | of_several).items():
        value: Any = getattr(options, name, None)
        if isinstance(value, bool) or not (value or value == 0) or (resumes and name in ("init", "teacher", "recipe")):
            continue
        try:
            check(value)
        except VitrailError:
            if name not in (*NAMES, "data_root") or not _has_reader(options):
                raise


def _has_reader(options: Any) -> bool:
    """Whether a run or a configuration file that is named has a reader of the user's own, which opens anything."""
    folders = (getattr(options, name, None) for name in ("run", "out"))
    named = [Path(folder) / "config.yaml" for folder in folders if folder] + [getattr(options, "config", None)]
    found = [file.read_text("utf-8", "replace") for file in named if file and file.is_file()]
    return any(re.search(r"^  reader: ", text, re.MULTILINE) for text in found)
