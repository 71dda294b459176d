"""What a training run refuses: options that contradict each other, or that would have no effect.

check_request      before anything is opened: options, objects and the configuration file
check_initial      the same, on what a new run starts from
check_known        what the data, the task or its networks have no use for, once these are known
check_settings     what a file has and the task or the data have no use for
check_same         a run that is resumed keeps its options
check_unedited     a run that is resumed keeps its configuration file
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vitrail.arguments import python_call
from vitrail.data.augmentation import Augmentation
from vitrail.data.dataset import Counts, Dataset
from vitrail.data.images import ArrayImages
from vitrail.data.sources import check_root, format_of
from vitrail.errors import Hint, UsageError
from vitrail.io import other_out
from vitrail.nn import ViTConfig
from vitrail.nn.embedding import height_and_width
from vitrail.nn.networks import NetworkConfig, kind_of
from vitrail.options import DistillOptions, switch_of
from vitrail.runs.folder import RunFolder
from vitrail.runs.settings import Settings, changes, differences, option_of, settings_from_dict, settings_to_dict
from vitrail.tasks import TASKS, Task
from vitrail.training.checkpoint import newest_manifest
from vitrail.training.configuration.rare import check_rare
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.teacher import FOREIGN
from vitrail.training.optimizer import Schedule
from vitrail.weights.assume import assume_words

OPEN = (None, "auto", "custom")  # values by which a file leaves a choice open
# options that are refused in a configuration file, too
FILED = {"keep", "patience", "lora", "init", "probe"}
# decided by the data or the teacher, whatever a file has; the number of workers changes no bit of the result
FREE = {"classes", "vocab_size", "source_vocab_size", "target_vocab_size", "identity", "workers"}
WORDS: dict[str, Callable[[Any], str]] = {
    "max_time": lambda seconds: f"{seconds:g} s" if seconds else "no limit",
    "assume": lambda values: assume_words(values) or "nothing",
    "teacher_assume": lambda values: assume_words(values) or "nothing",
    "teacher_classes": ", ".join,
}
"""Of settings, in messages."""
RAISED = {"epochs", "max_time", "patience"}  # of a finished run that continues


def check_effect(request: Request, facts: Mapping[str, Any], hint: Hint | None = None) -> None:
    """Refuse the first option that has no effect because of these facts, where it stands.

    Args:
        request: Which has the options; what makes them `idle` stands beside each (`vitrail.options`).
        facts: By name; a false one is none.
        hint: What gives the option an effect; else the hint is to leave it out.

    Raises:
        UsageError: Names the option, and why.
    """
    for each in fields(request.options):
        filed = request.setting(each.name) if each.name in FILED else None
        if getattr(request.options, each.name) != each.default or filed not in (*OPEN, 0):
            for why in (why for fact, why in each.metadata.get("idle", {}).items() if facts.get(fact)):
                shown, without = request.shown(each.name)
                raise UsageError(f"{shown} {why.format(**facts)}", hint or without)


def check_request(request: Request) -> None:
    """Refuse options, objects and a configuration file that contradict each other.

    Raises:
        UsageError: Names both.
    """
    own, options, config = request.own, request.options, request.config
    for name, value in (("task", options.task), ("recipe", options.recipe)):
        stored = config.get(name)
        if value not in ("auto", stored) and stored not in OPEN:
            problem = f"{options.config} has the {name} {stored}, but --{name} is {value}"
            raise UsageError(problem, f"one of the two: --config {options.config}, or --{name} {value}")
    if own.task is not None:
        name, task = own.task.name, request.values.get("task", own.task.name)
        if task != name:
            raise UsageError(f"task {name} is passed as an object, and {task} is chosen by name", "one of the two")
        if name in TASKS and type(own.task) is not type(TASKS[name]):
            problem = f"a task of your own has the name {name}, which is a task of the library"
            raise UsageError(problem, "another name")
    if own.network is not None:
        side, fits = options.image_size, getattr(own.config, "image", None)
        if own.parts is not None:
            problem = "parts are for a network that vitrail builds, but a network was passed"
            raise UsageError(problem, Hint(drop=["parts"]))
        other = side is not None and fits not in (None, height_and_width(side))
        check_effect(request, {"network": True, "other_size": other})
    objects = config.get("own") or {}
    if problem := other_objects(objects, {kind: name for kind, name in own.names().items() if kind in objects}):
        words = [repr(config.get("data", "...")), f"options=vitrail.TrainOptions(config=Path({str(options.config)!r}))"]
        problem = f"{options.config} is of a run with objects of your own: {problem}"
        raise UsageError(problem, python_call("train", words, objects))
    if request.teacher:
        _check_teacher(request)
    elif isinstance(options, DistillOptions) and not request.section("distillation").get("teacher"):
        raise UsageError("the options are of a distillation, but there is no teacher", "vitrail.distill(data, teacher)")


def _check_teacher(request: Request) -> None:
    chosen, teacher, classes = vars(request.options), request.teacher, request.classes
    brings = "" if teacher.startswith(FOREIGN) else teacher
    check_effect(request, {"hard": chosen.get("distillation") == "hard", "brings": brings})
    if request.teacher_object is not None and (request.teacher_assume or classes):
        problem = f"assume= and classes= are for a teacher given by name, but {teacher} is an object"
        raise UsageError(problem, "vitrail.load(name, assume=..., classes=...) as the teacher")
    if classes and chosen.get("fit_head") == "always":
        problem = "class names of the teacher have no effect if it gets a new head (fit_head always)"
        raise UsageError(problem, Hint(drop=["class_names"], python="no classes="))


def check_initial(request: Request) -> None:
    """Refuse what does not go together with the weights that a new run starts from, or with their absence.

    Raises:
        UsageError: Names the option.
    """
    initial, add = request.section("initial"), Hint({"init": "auto"})
    if (source := initial.get("source")) is not None:
        check_effect(request, {"init": source, "student": request.teacher, "probe": initial.get("probe")})
        return
    if request.assume:
        problem = "assume= (--assume, --mean, --std) is for pretrained weights, and --init is missing"
        raise UsageError(problem, add)
    check_effect(request, {"scratch": True, "no_probe": request.values.get("keep") == "probe"}, add)


def check_known(request: Request, dataset: Dataset, task: Task, background: bool, probe: bool) -> None:
    """Refuse options that have no effect for these data, this task and its networks, in a new run or a resumed one.

    Args:
        request: Of the run.
        dataset: Its data.
        task: Its task.
        background: Whether the model is to have one.
        probe: Whether only the head is trained.

    Raises:
        UsageError: Names the option.
    """
    own, options = request.own, request.options
    inputs, verdicts = dataset.train.inputs, bool(options.verdicts)
    facts = {
        "data": request.data,
        "split": options.split_seed not in (None, dataset.split_seed),
        "read_once": dataset.reads_text or inputs.renewed or isinstance(inputs, ArrayImages),
        "texts": dataset.reads_text,
        "task": task.name,
        "unsure": own.task is None and dataset.codec.confidence is None,
        "fixed": "ViT" not in task.networks,
        "parts": own.network is not None or own.parts is not None,
        "unexplained": not task.background,
        "writes": task.searches,
        "bare": verdicts and not background,
        "probe": probe,
        "untuned": verdicts and probe,
    }
    check_effect(request, facts)
    if own.reader is None:
        check_root(request.data, options.data_root)


def check_settings(request: Request, settings: Settings, dataset: Dataset, task: Task, counts: Counts) -> None:
    """Refuse settings, most of a configuration file, that the task or the data have no use for.

    Args:
        request: Of the run.
        settings: Resolved.
        dataset: Its data.
        task: Its task.
        counts: Of the recipe.

    Raises:
        UsageError: Names the key.
    """
    data, config, own, plain = request.data, request.config, request.own, vars(Augmentation())
    idle = {name: "is for images" for name in plain if dataset.reads_text and name != "label_smoothing"}
    if task.blend is None:
        idle |= dict.fromkeys(("mixup", "cutmix"), f"mixes samples, but targets of {task.name} cannot be mixed")
    if not task.smooths or (own.objective is not None and task.blend is None):
        idle["label_smoothing"] = "is for the labels of a task's own objective, which this run does not have"
    for name in (name for name, why in idle.items() if getattr(settings.augmentation, name) != plain[name]):
        problem = f"augmentation.{name} {getattr(settings.augmentation, name)} {idle[name]}"
        raise UsageError(problem, f"augmentation: {{{name}: {plain[name]}}}")
    texts = dataset.reads_text or dataset.codec.generates or own.task is not None
    if config.get("separator") and not texts:
        raise UsageError(f"separator {config['separator']!r} is for texts, and {data} has none", "no separator")
    check_rare(request, settings, dataset)
    row, usual = None if own.reader is not None else format_of(data), (asdict(Counts()), asdict(counts))
    if (row is None or not row.made) and {**usual[0], **config.get("counts", {})} not in usual:
        raise UsageError(f"counts are for generated samples, and those of {data} are not generated", "leave counts out")


def check_same(path: Path, settings: Settings, root: str, request: Request) -> None:
    """A run that is resumed keeps its options: what differs is listed, and refused.

    Args:
        path: The run.
        settings: What it stored.
        root: Where it read its data.
        request: What is requested now; its data is empty for those that the run was started with.

    Raises:
        UsageError: Lists what differs as `name: old -> new`; if objects differ, the hint is the call in Python.
    """
    data, options, own = request.data, request.options, request.own
    if objects := other_objects(settings.own, own.names()):
        words = [repr(settings.data), repr(str(path)), "vitrail.TrainOptions(resume='auto')"]
        hint = python_call("train", words, settings.own)
        raise UsageError(f"{path} was started with other objects: {objects}", hint)
    wanted = {key: each for key, each in request.values.items() if key not in ("data", "own") and each not in OPEN}
    if own.task is not None:
        wanted["task"] = own.task.name
    network, free = dict(wanted.get("network", {})), set(FREE)
    if options.size is not None or own.config is not None:  # which decides the rest of the network
        network = {key: value for key, value in network.items() if key in ("image_size", "distillation_token")}
    free |= {"decode_size"} if options.image_size is not None or own.config is not None else set()
    free |= {"data_root"} if options.data_root is not None else set()
    known = settings_to_dict(settings)["network"]
    changed: list[tuple[str, Any, Any]] = [(key, None, network.pop(key)) for key in network.keys() - known.keys()]
    wanted["network"] = network
    for section in ("initial", "distillation"):
        if getattr(settings, section) is None:
            changed += [(key, None, new) for key, new in wanted.pop(section, {}).items()]
    if data and data != settings.data and Path(data).resolve() != Path(root):
        changed.append(("data", settings.data, data))
    changed += [each for each in changes(settings, wanted, request.blamed) if each[0] not in free]
    if options.size is not None and (before := _other_shape(settings.network, options.size)):
        changed.append(("size", before, options.size))
    if changed:
        problem = f"{path} was started with other options: {_list_changes(changed)} (without them it continues)"
        raise UsageError(problem, other_out(path))


def check_unedited(folder: RunFolder, settings: Settings) -> None:
    """Refuse a configuration file that was edited after a state was saved by it; older states do not hold theirs.

    Args:
        folder: The run.
        settings: What its configuration file has now.

    Raises:
        UsageError: Lists what differs as `name: old -> new`.
    """
    state = newest_manifest(folder.resume)
    if "settings" not in state:
        return
    free = {"workers"}
    if folder.schedule.is_file():  # a finished run was continued, and no state has been saved since
        phases = Schedule.read(folder.schedule, other_out(folder.path)).phases
        free |= RAISED if phases[-1].first >= state["step"] else set()
    was = settings_to_dict(settings_from_dict(state["settings"], f"the last state of {folder.path}"))
    changed = [each for each in differences(was, settings_to_dict(settings)) if each[0] not in free]
    if changed:
        problem = f"{folder.config} was edited after the run was started: {_list_changes(changed)}"
        anew = Hint({"config": str(folder.config), **other_out(folder.path).flags})
        raise UsageError(f"{problem} (with the old values it continues)", anew)


def _list_changes(changed: Sequence[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{option_of(key)}: {_shown(key, old)} -> {_shown(key, new)}" for key, old, new in changed)


def _shown(key: str, value: Any) -> str:
    """The value of a setting in a message."""
    if value in (None, ""):
        return "none"
    name = option_of(key)
    if switch := switch_of(name):
        return switch[bool(value)]
    return WORDS.get(name, str)(value)


def _other_shape(network: NetworkConfig, size: str) -> str:
    """The kind of a network whose shape is not of this size; empty for one of this size."""
    if not isinstance(network, ViTConfig):
        return kind_of(network)
    wanted = ViTConfig.from_size(size, image_size=network.image)
    shapes = [(n.patch, n.width, n.depth, n.heads, n.mlp_width) for n in (wanted, network)]
    return "" if shapes[0] == shapes[1] else "another network"


def other_objects(stored: Mapping[str, str], passed: Mapping[str, str]) -> str:
    """Objects that differ from those of a run, in words; tasks are compared by their own name, elsewhere."""
    pairs = {kind: (stored.get(kind, "the library's"), passed.get(kind, "none")) for kind in {**stored, **passed}}
    if stored.keys() & passed.keys() & {"task"}:
        del pairs["task"]
    return "; ".join(f"{kind} {old}, got {new}" for kind, (old, new) in pairs.items() if old != new)
