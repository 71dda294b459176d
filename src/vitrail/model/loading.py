"""A model out of the folder that a run or `save` left.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])[0].label

Everything is read and compared before anything is returned: a folder whose files do not fit each other gives no model.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import weights
from vitrail.arguments import OWN_PART, check_kind, check_passed, python_call, type_misfit, typed
from vitrail.data.background import background_in, read_background
from vitrail.data.columns import Vocabulary
from vitrail.data.preprocessing import Preprocessing, from_hugging_face
from vitrail.data.tensor_files import read_tensors, seal_of
from vitrail.errors import DataError, Hint, UsageError, VitrailError, located
from vitrail.io import read_json
from vitrail.model.facts import WORDS
from vitrail.model.model import Model, refresh_facts, resize_model
from vitrail.nn import STANDARD, Parts, parts_of
from vitrail.nn.embedding import Size
from vitrail.nn.networks import build_network, config_from_dict, without_numbers
from vitrail.runtime import pick_device
from vitrail.tasks import TASKS, Task
from vitrail.weights.files import check_finite_tensors, check_tensors_fit
from vitrail.weights.places import CONFIG, KEY, PREPROCESSOR, check_model, is_foreign, is_onnx, is_ours, of_others
from vitrail.weights.saved import find_contradiction

FORMAT = 3
BROKEN = (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError, MemoryError)
DEPTHS = "depth", "encoder_depth", "decoder_depth"
SLACK = 2**20  # numbers that a network may have above twice those of its file
OWN_NETWORK = "own"  # the kind of a network that a person made
WEIGHTS = "model.safetensors"
COMPOSITES = "composites.safetensors"
FAMILIAR = "familiar.safetensors"
SEAL = "tensors"  # our key for that of the file: with it nothing need be hashed once more
WITHOUT_COMPOSITES = "delete the file: the first verdict computes it again"
SAVED_AGAIN = "the folder of another run, or train again"
KINDS: dict[str, Any] = {  # of our keys
    "task": str,
    "network": dict,
    "parts": Mapping[str, str],
    "input": dict | None,
    "output": dict,
    "facts": dict,
}
FEATURES = "features"  # how many, where that is what the network returns: then no task of one's own is needed
NUMBERS = "label_smoothing", "longest_source"  # facts that the library's tasks count with
FLAGS = {"assume": ("assume", "mean", "std"), "preprocessing": ("mean", "std"), "classes": ("class_names",)}


@typed
def load(
    path: str | Path,
    *,
    task: Task | None = None,
    network: nn.Module | None = None,
    parts: Parts | None = None,
    device: str | torch.device = "cpu",
    assume: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Size | None = None,
    channels: int | None = None,
    bits: int | None = None,
) -> Model:
    """Load a model from a run folder, a model folder or pretrained weights; the network is in eval mode.

    `task`, `network` and `parts` are for models with objects of your own; `assume`, `preprocessing` and `classes` are
    for pretrained weights only, since a model of vitrail states all of that itself; `image_size` and `channels` adapt
    any ViT.

    Args:
        path: A run folder (which contains `model/`) or a model folder; pretrained weights of a ViT: `timm:NAME`,
            `hf:OWNER/NAME`, `torchvision:NAME`, a file (.safetensors, .npz, .pth) or a folder in the layout of a hub;
            an export (.onnx), which answers and cannot be explained.
        task: For a task of your own, the same value that the model was trained with. Where what it learnt is features
            (its codec `describes`), the model opens without it, as any network of features.
        network: For a network of your own, one of the same kind, into which the weights are loaded.
        parts: For a network with parts of your own, those that it was built with; not those with a name in
            `vitrail.nn.parts`.
        device: Of the network.
        assume: What nothing beside the tensors states: fields of `ViTConfig` by name (such as `heads`), `pooling`, and
            `mean` and `std` of pixels from 0 to 1. Its `image_size` is that of the images the weights were trained on,
            and its `classes` the length of a new head.
        preprocessing: That of the weights when None.
        classes: Class names in the order of the logits; those of the weights when None.
        image_size: (height, width) in pixels, or one number for a square; positions are resized by the rule of their
            source.
        channels: 1 for grey images, of a network for three channels.
        bits: How many of their bits images of 16 bits use; what the model states when None.

    Raises:
        DataError: If the folder is missing, or a file in it is missing, damaged or does not fit the others.
        UsageError: If the model was saved with a task, network or parts of your own, and they are not passed; or
            something of pretrained weights has to be stated, or contradicts the tensors.
    """
    if not isinstance(path, str | Path):
        hint = "vitrail.convert(module)" if isinstance(path, nn.Module) else "vitrail.load('runs/latest')"
        raise UsageError(f"expected the path of a run or file, or the name of weights, got {type(path).__name__}", hint)
    device = pick_device(str(device))
    check_kind("task", task, Task, "task=MyTask()")
    check_kind("preprocessing", preprocessing, Preprocessing, "preprocessing=vitrail.data.Preprocessing((224, 224))")
    folder, named = Path(path).parent, str(path)
    if Path(path).name == WEIGHTS and is_ours(folder) and not find_contradiction(folder):  # which says the rest itself
        path = folder
    foreign = {"assume": assume, "preprocessing": preprocessing, "classes": classes}
    stated = [name for name, value in foreign.items() if value is not None]
    if is_onnx(path):
        given = {"task": task, "network": network, "parts": parts, "image_size": image_size, "channels": channels}
        model = _open_export(path, [*stated, *(name for name, value in given.items() if value is not None)])
    elif is_foreign(path):
        from vitrail.model.foreign import identify, model_of  # with all families, which a model of ours does not need

        model = model_of(identify(path, assume), preprocessing, classes, image_size, channels, device)
    else:
        found = open_model(path)  # which says of a file that is none of ours what it may be
        for name in stated:
            words = " and ".join(assume or ()) if name == "assume" else name
            problem = f"{path} is a vitrail model, whose configuration is complete, so {words} cannot be stated"
            raise UsageError(problem, Hint(drop=FLAGS[name], python=f"no {name}="))
        model = _open_own(path, *found, task, network, parts)
        if image_size is not None or channels is not None:  # which makes another network
            model = resize_model(model, image_size, channels)
        model.network.to(device)
    model = replace(model, loaded_from=named)
    return model if bits is None else replace(model, input=replace(model.preprocessing, bits=bits))


def _open_export(path: str | Path, stated: Sequence[str]) -> Model:
    """The model of an export.

    Raises:
        UsageError: Something is stated of it.
    """
    from vitrail.model.onnx_file import open_onnx

    model = open_onnx(path)
    if stated:
        problem = f"{path} is an export, in which all is fixed, so {stated[0]} cannot be stated"
        raise UsageError(problem, Hint(drop=FLAGS.get(stated[0], (stated[0],)), python=f"no {stated[0]}="))
    return model


def _open_own(
    path: str | Path,
    folder: Path,
    config: dict[str, Any],
    task: Task | None,
    network: nn.Module | None,
    parts: Parts | None,
) -> Model:
    """The model of a folder of vitrail with this configuration, on the CPU; see `load`."""
    passed = {"task": task, "network": network, "parts": parts}
    own, typed_path = own_objects_of(config), repr(str(path))
    check_passed(own, passed, typed_path, python_call("load", [typed_path], own))
    made = parts_of(config["parts"], parts or STANDARD)
    name, own = str(config.get("task")), _own_network(config, network)
    if task is not None and task.name != name:
        raise UsageError(f"this model is of the task {name}, but {task.name} was passed", f"the task {name}, or none")
    as_features = task is None and name not in TASKS  # which any network returns that learnt from images alone
    learnt, output = (TASKS[FEATURES], config) if as_features else (task or TASKS[name], config["output"])
    with _damage_in(folder):
        text = config["input"]
        reads = Vocabulary.from_dict(text) if text else from_hugging_face(read_json(folder / PREPROCESSOR, SAVED_AGAIN))
    tensors = read_tensors(folder / WEIGHTS, SAVED_AGAIN)
    with _damage_in(folder):
        if own is None and parts is None:
            _check_size(config["network"], made, tensors)
        network = own if own is not None else build_network(config_from_dict(config["network"]), made)
        network.eval()
        model = Model(network, reads, learnt.codec_from_dict(output), learnt, facts=dict(config["facts"]))
    if words := find_contradiction(folder):
        hint = f"{folder / WEIGHTS}, which is opened by the other keys of {CONFIG}"
        raise DataError(f"{folder / CONFIG} contradicts itself: {words}", hint)
    _fill(network, tensors, folder / WEIGHTS, config.get("timm", False))
    if "verified" in model.facts and config.get(SEAL) != seal_of(folder / WEIGHTS):  # else checked when it was saved
        model = replace(model, facts=refresh_facts(model.facts, network))
    return _with_background(model, folder)


def open_first(model: str | Path | Model, call: str) -> Model:
    """The model of a public function, which is its first argument: as it was loaded, or loaded now.

    Args:
        model: The argument.
        call: The function with all that it needs. Where no model opens the hint has it, since data came first before.

    Raises:
        DataError: As `load`.
    """
    try:
        return load(model) if isinstance(model, str | Path) else model
    except VitrailError as error:
        raise type(error)(error.problem, f"vitrail.{call}, the model first; or {error.hint}") from error


def _with_background(model: Model, folder: Path) -> Model:
    """With the background that lies in a folder, the logits of composites of it, and what it is familiar with.

    Raises:
        DataError: A file is damaged, or the logits are of another network.
    """
    background, file = background_in(folder), folder / COMPOSITES
    if background is None:
        return model
    found = read_tensors(file, WITHOUT_COMPOSITES) if file.exists() else {}
    for each in found.values():
        if not each.is_floating_point() or each.dim() != 2 or each.shape[1] != model.output.outputs:
            holds = f"{' x '.join(map(str, each.shape))} of {str(each.dtype).removeprefix('torch.')}"
            problem = f"{file} holds {holds}, and no logits of {model.output.outputs} outputs"
            raise DataError(problem, WITHOUT_COMPOSITES)
    file, familiar = folder / FAMILIAR, None
    if file.exists():
        hint = "delete the file: images that are unlike those in training are then not named"
        familiar = read_tensors(file, hint).get("pooled")
        if familiar is None or familiar.dim() != 2 or not familiar.is_floating_point():
            raise DataError(f"{file} holds no (images, width) numbers called pooled", hint)
    background = read_background(background, model.preprocessing)
    return replace(model, background=background, composites=found, familiar=familiar)


def open_model(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """The model folder of a run folder or a model folder, and what is ours in its configuration.

    `timm` in it says whether the tensors bear timm's names.

    Raises:
        DataError: If there is none, or it is damaged or of another format.
    """
    folder = Path(path)
    if (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    if not (folder / CONFIG).is_file():
        check_model(path)
    config = read_json(folder / CONFIG, SAVED_AGAIN)
    own: Any = config.get(KEY)
    if not is_ours(folder) and config.keys() & {"model_type", "architecture"}:
        kind = config.get("model_type") or config.get("architecture")
        theirs = of_others(folder)  # inside a run
        problem = f"{folder} holds the {CONFIG} of another library ({kind}){'' if theirs else ', and no weights'}"
        raise DataError(problem, str(folder) if theirs else f"{WEIGHTS} or {WEIGHTS}.index.json beside it")
    if not isinstance(own, dict) or own.get("format") != FORMAT:
        problem = f"{folder / CONFIG} is not of a vitrail model of format {FORMAT}"
        raise DataError(problem, "a folder written by `vitrail train`, or a newer vitrail")
    with _damage_in(folder):
        _check_kinds(own)
    return folder, {**own, "timm": "architecture" in config}


def _check_kinds(own: Mapping[str, Any]) -> None:
    """Check the kinds of what is ours in a configuration; raises TypeError."""

    def check(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
        for name, kind in kinds.items():
            if problem := type_misfit(name, values.get(name), kind):
                raise TypeError(problem)

    check(own, KINDS)
    check(own["facts"], {name: str for name in WORDS if {name, "verified"} <= own["facts"].keys()})
    check(own["facts"], {name: float | None for name in NUMBERS if own["task"] in TASKS})


@contextmanager
def _damage_in(folder: Path, kinds: Any = BROKEN) -> Iterator[None]:
    """Whatever breaks on what stands in a folder is a DataError of one line."""
    try:
        yield
    except kinds as error:
        problem = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        why = problem.partition("\n")[0]
        raise DataError(f"{folder}: the configuration is damaged ({why})", SAVED_AGAIN) from error


def own_objects_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The objects of your own (task, network, parts) that a configuration names and `load` takes, by kind."""
    network = config.get("network")
    opens = config.get("task") in TASKS or FEATURES in config
    found = {} if opens else {"task": str(config.get("own_task") or config.get("task"))}
    if isinstance(network, dict) and network.get("kind") == OWN_NETWORK:
        found["network"] = str(network.get("name"))
    named = config.get("parts") or {}
    parts = ", ".join(f"{slot}={name}" for slot, name in named.items() if name.startswith(OWN_PART))
    return {**found, "parts": parts} if parts else found


def _own_network(config: Mapping[str, Any], passed: nn.Module | None) -> nn.Module | None:
    """The network that was passed, where the configuration names one of your own; None where it builds one."""
    own = own_objects_of(config).get("network")
    if passed is None or type(passed).__name__ == own:
        return passed
    if own is None and getattr(passed, "config", None) == config_from_dict(config["network"]):
        return passed
    named = own or "one of the library, which is built from its files"
    raise UsageError(f"this model's network is {named}, but {type(passed).__name__} was passed", "its own, or none")


def _check_size(stored: Mapping[str, Any], parts: Parts, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a network much larger than its tensors, before memory and time are taken; raises ValueError."""
    each = [stored, *(part for part in stored.values() if isinstance(part, Mapping))]
    blocks = sum(value for part in each for name, value in part.items() if name in DEPTHS and isinstance(value, int))
    if blocks > len(tensors):
        raise ValueError(f"{blocks:,} blocks are configured, but there are {len(tensors):,} tensors")
    with without_numbers():
        numbers = sum(tensor.numel() for tensor in build_network(config_from_dict(stored), parts).state_dict().values())
    found = sum(tensor.numel() for tensor in tensors.values())
    if numbers > 2 * found + SLACK:
        raise ValueError(f"{numbers:,} parameters are configured, but there are {found:,}")


def _fill(network: Any, tensors: dict[str, Tensor], file: Path, timm: bool) -> None:
    """Fill a network with tensors, `timm` if under its names; it is untouched when they do not fit.

    Raises:
        DataError: If they are not exactly the network's.
    """
    wanted = network.state_dict()
    with located(file):
        if timm and tensors.keys() != wanted.keys():
            with _damage_in(file, RuntimeError):
                tensors = weights.of_timm(tensors, network.config)
        check_tensors_fit(tensors, wanted, SAVED_AGAIN)
        check_finite_tensors({name: tensors[name] for name, _ in network.named_parameters()}, SAVED_AGAIN)
    network.load_state_dict(tensors)
