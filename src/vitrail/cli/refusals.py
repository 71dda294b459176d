"""What is refused before a verb and torch are imported: what is not there, and values that are none."""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.cli import args
from vitrail.cli.output import warn
from vitrail.cli.parse import EXAMPLES
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
    DataError,
    Hint,
    UsageError,
    VitrailError,
    check_address,
    check_option,
    check_task,
    located,
    no_coverage,
    no_such_name,
    parse_device,
    parse_size,
    same_contrast,
)
from vitrail.io import audit_place, check_new, check_table, check_writable, evaluation_place, neighbours_place, page_at
from vitrail.options import LEARNT, parse_seconds
from vitrail.text import canonical
from vitrail.weights.places import check_inside, check_model, is_foreign, stated_by


def is_first() -> bool:
    """Whether this process is the first of those that do a command together, or the only one."""
    return os.environ.get("RANK", "0") == "0"


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


def check_run(options: Any, name: str) -> None:
    """Refuse a model that is not there, and for what looks into a network an export."""
    (check_model if isinstance(options, args.Predict | args.Evaluate) else check_inside)(name)


def check_served(words: Sequence[str]) -> None:
    """Refuse models that are not there; a name may stand before each."""
    for word in words:
        check_model(word if Path(word).exists() else word.partition("=")[2] or word)


def check_promise(options: Any, coverage: float) -> None:
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
    pages |= {args.AuditOptions: audit_place}
    if isinstance(options, args.Train | args.Distill):
        if options.resume != "never" or options.dry_run or not is_first():  # the first may have made it
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


def check_fail_under(text: str) -> None:
    """Refuse rules that cannot be read, or of figures that no audit has."""
    from vitrail.audit.rules import read_rules

    read_rules(text)


def check_network(size: str) -> None:
    """Refuse what is neither a size of a network, such as S/16, nor a model."""
    folder = Path(size).parent
    if is_foreign(size) or Path(size).exists() or (folder != Path() and folder.is_dir()):
        check_inside(size)
    else:
        parse_size(size, LETTERS)


NAMES = "data", "inputs", "images"  # options that name data
KINDS = {"classes", "labels", "numbers"}  # under which a model of ours states the names of its outputs
LETTERS = ("Ti", "S", "B", "L", "H", "g")
CHECKS: dict[str, Callable[[Any], object]] = {
    "teacher": located("the teacher")(check_model),
    "init": lambda name: name == "auto" or check_inside(name, Hint({"init": "auto"})),
    **dict.fromkeys(("class_names", "masks", "features", "token_file"), check_path),
    "config": partial(check_path, kind=UsageError),
    **dict.fromkeys(("similar_to", "background", "check"), check_images),
    "nearest": lambda name: name in ("auto", "none") or check_path(Path(name)),
    **{name: partial(check_methods, option=name) for name in ("method", "methods", "explain")},
    "student": check_network,
    "device": lambda name: name == "auto" or parse_device(name),
    "task": partial(check_task, known=LEARNT),
    "max_time": parse_seconds,
    "fail_under": check_fail_under,
    "against": check_path,
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
        "size": lambda size: isinstance(options, args.Export) or check_network(size),
        **dict.fromkeys(("run", "model"), partial(check_run, options)),
        "models": check_served,
        "coverage": partial(check_promise, options),
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
