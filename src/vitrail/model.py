"""A model: a network together with what makes it usable, as one value and as one folder of plain files.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])[0].label

The folder holds `model.safetensors` (tensors), `config.json` (the network, the task, and the names of what it says),
`preprocessor_config.json` where images go in, the background that explanations are tested with where there is one, and
`README.md`. Nothing in it is a pickle. `config.json` comes last: with it the folder is a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from vitrail import weights
from vitrail.data.background_file import background_in, card_words, misfit, read_background, write_background
from vitrail.data.columns import Classes, Codec
from vitrail.data.decode import open_picture
from vitrail.data.hugging_face import from_hugging_face, to_hugging_face
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.tensor_files import read_tensors, with_checksum
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError, VitrailError, nearest
from vitrail.io import read_json, to_json, write_file
from vitrail.nn import (
    STANDARD,
    ImageToSequence,
    Parts,
    Search,
    ViT,
    evaluating,
    names_of,
    parts_of,
)
from vitrail.nn.networks import NETWORKS, build, config_from_dict, config_to_dict
from vitrail.own import OWN as OWN_PART, check_given, check_kind, python_call, typed
from vitrail.tasks import TASKS, Prediction, Result, Task
from vitrail.tasks.classify import Classification
from vitrail.tasks.task import Input, check_fit

OLD, FORMAT = 1, 2  # the first is read, by `weights/format1.py`, and never written
OWN = "own"  # the kind of a network that a person made
WEIGHTS, CONFIG, PREPROCESSOR, CARD = "model.safetensors", "config.json", "preprocessor_config.json", "README.md"
SAVED_AGAIN = "the folder of another run, or train again"
FIRST_RUN = "vitrail train digits, or for a model that writes: vitrail train sort-digits"

Source = str | Path | Image.Image
CLASSIFY = Classification()


@dataclass(frozen=True, eq=False)
class Model:
    """A network with all that makes it usable, whatever its task.

    Attributes:
        network: A module that gives logits.
        input: What turns a source into what the network expects: of an image, or the vocabulary of a text.
        output: The codec: class names in the order of the logits, a vocabulary, or that of a task of your own.
        task: What was learnt.
        background: Images that explanations are tested with, put together from patches of training images; see
            `vitrail.data.background`. None where there are none. Predictions do not need them.
        facts: What to know of its training and origin, by name, in plain values.
    """

    network: Any
    input: Input
    output: Codec
    task: Task = CLASSIFY
    background: UInt8[Tensor, "r c h w"] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        config = getattr(self.network, "config", None)
        check_fit(config, self.input, self.output)
        if self.background is not None:
            problem = misfit(self.background, self.preprocessing)
            if problem:
                raise UsageError(problem, "background=None, or images that preprocessing.to_uint8 made")

    @property
    def preprocessing(self) -> Preprocessing:
        """How an image becomes what the network expects.

        Raises:
            UsageError: The model reads texts.
        """
        if not isinstance(self.input, Preprocessing):
            raise UsageError("this model reads texts, which have no preprocessing", "model.input, its vocabulary")
        return self.input

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the logits.

        Raises:
            UsageError: The model tells something else.
        """
        if not isinstance(self.output, Classes):
            raise UsageError(f"the task {self.task.name} has no classes", "model.output, what it tells")
        return self.output.names

    @property
    def reads_text(self) -> bool:
        """Whether a source is a text; else it is an image."""
        return isinstance(self.input, Vocabulary)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    @property
    def about(self) -> str:
        """What to know of its probabilities, in a sentence; empty where there is nothing."""
        return self.task.about(self.output, self.facts)

    @property
    def example(self) -> str:
        """A source as it may be typed, for cards and hints."""
        if isinstance(self.input, Vocabulary):
            return self.input.separator.join(self.input.tokens[:4][::-1])
        return "image.png"

    @property
    def background_images(self) -> Float[Tensor, "r c h w"] | None:
        """The background as the network expects it, on its device."""
        if self.background is None:
            return None
        return self.preprocessing.normalise(self.background.to(self.device))

    def tensor(self, sources: Sequence[Source]) -> Tensor:
        """Sources as the network expects them, on its device: images (b, c, h, w), or ids (b, s).

        Raises:
            DataError: An image cannot be read, or a text is empty or has an unknown token; names it.
            UsageError: A source is of the wrong kind.
        """
        if isinstance(self.input, Preprocessing):
            pixels = torch.stack([self.input.to_uint8(opened(source)) for source in sources])
            return self.input.normalise(pixels.to(self.device))
        texts = []
        for source in sources:
            if not isinstance(source, str):
                raise UsageError(f"this model reads texts, got {type(source).__name__}", "a text, as str")
            texts.append(source)
        return torch.from_numpy(self.input.rows(texts, framed=False)).to(self.device)

    def predict(
        self,
        sources: Sequence[Source] | Source,
        *,
        search: Search | None = None,
        batch_size: int = 64,
        names: Sequence[str] = (),
    ) -> list[Prediction]:
        """What the model answers to each source.

        Args:
            sources: Files or opened images, or texts; or a single one.
            search: How the next token is chosen, of a model that writes; greedy when None.
            batch_size: How many go through the network at a time.
            names: What the sources are called in the answers; files and texts go by themselves when empty.

        Returns:
            One prediction for each source, in order: its class says what it is.

        Raises:
            DataError: A source cannot be read; names it, an empty text by its place.
            UsageError: There is a search, and the task knows none.
        """
        if search is not None and (not self.task.searches or not isinstance(search, Search)):
            what = f"got {type(search).__name__}" if self.task.searches else f"and the task {self.task.name} has none"
            raise UsageError(f"search says how a text is written, {what}", "model.predict(sources) without a search")
        if isinstance(sources, str | Path | Image.Image):
            sources = [sources]
        if isinstance(self.input, Vocabulary) and "" in sources:
            problem = f"text {list(sources).index('') + 1} of {len(sources)} is empty"
            raise DataError(problem, f"at least one of {self.input.describe()[1]}")
        predictions: list[Prediction] = []
        with evaluating(self.network):
            for first in range(0, len(sources), batch_size):
                some = sources[first : first + batch_size]
                own = [str(source) if isinstance(source, str | Path) else "image" for source in some]
                called = names[first : first + batch_size] or own
                here = None if search is None else search.from_row(first)
                inputs = self.tensor(some)
                predictions += self.task.predict(self.network, self.output, inputs, called, here, self.facts)
        return predictions

    @torch.no_grad()
    def probabilities(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b v"]:
        """Softmax of the network's logits, with the network in eval mode and left as it was."""
        with evaluating(self.network):
            return self.network(images).float().softmax(dim=-1)


def opened(image: object) -> Image.Image:
    """The image of a file, or the image itself.

    Raises:
        DataError: If the file cannot be read.
        UsageError: If it is neither a path nor an image.
    """
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | Path):
        return open_picture(Path(image))
    problem = f"an image must be a path or a PIL image, got {type(image).__name__}"
    raise UsageError(problem, "model.network(tensor) for a tensor that is normalised already")


def save(
    model: Model,
    folder: str | Path,
    *,
    result: Result | None = None,
    card: str = "",
    network: str = "",
) -> Path:
    """Write a model folder; `load` reads it again.

    Files are written beside their place and renamed, so an interrupted save leaves the former files whole.

    Args:
        model: What to save.
        folder: Where; made if missing.
        result: How well it does, for its card.
        card: Text of the README; made from the model when empty.
        network: The name of a network of one's own, which no configuration builds.

    Raises:
        UsageError: If the network is none of the library's and is not named, or its decoder has parts of its own.
    """
    if not network and type(model.network) not in [known for _, known in NETWORKS.values()]:
        raise UsageError(
            f"{type(model.network).__name__} is none of the library's networks ({', '.join(NETWORKS)})",
            f"save(model, folder, network='{type(model.network).__name__}'), and load(folder, network=...) later",
        )
    named = _named(model, network)
    if isinstance(model.network, ImageToSequence) and model.network.decoder_parts != STANDARD:
        raise UsageError(
            f"this decoder has parts of its own, which files do not hold: {names_of(model.network.decoder_parts)}",
            f"save(model, folder, network='{type(model.network).__name__}'), and load(folder, network=...) later",
        )
    folder = Path(folder)
    state = model.network.state_dict()  # what stands in two places of a network stands twice in the file
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
    write_file(folder / WEIGHTS, with_checksum(tensors))
    write_background(folder, model.background, None if model.background is None else _patch(model))
    config: dict[str, Any] = {
        "model_type": "vitrail",
        "format": FORMAT,
        **named,
        "input": model.input.to_dict() if isinstance(model.input, Vocabulary) else None,
        "output": model.output.to_dict(),
        "facts": dict(model.facts),
    }
    if isinstance(model.input, Preprocessing):
        write_file(folder / PREPROCESSOR, to_json(to_hugging_face(model.input)))
        if isinstance(model.network, ViT) and not named["parts"] and isinstance(model.output, Classes):
            config |= weights.timm_keys(model.network.config, model.input, model.classes)
    write_file(folder / CARD, card or card_of(model, result))
    write_file(folder / CONFIG, to_json(config))
    return folder


def _named(model: Model, network: str = "") -> dict[str, Any]:
    """Task, network and parts of a model, as its configuration names them; a network of one's own by `network`."""
    if type(model.network) not in [known for _, known in NETWORKS.values()]:
        network = network or type(model.network).__name__
    return {
        "task": model.task.name,
        **({} if model.task.name in TASKS else {"own_task": typed(model.task)}),
        "network": {"kind": OWN, "name": network} if network else config_to_dict(model.network.config),
        "parts": {} if network else names_of(model.network.parts),
    }


def load(
    path: str | Path,
    *,
    task: Task | None = None,
    network: nn.Module | None = None,
    parts: Parts | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """Read a model from a run folder or a model folder; the network is in eval mode.

    Args:
        path: A run folder (which holds `model/`) or a model folder.
        task: For a task of your own, the same value that it was trained with.
        network: For a network of your own, one of the same kind, into which the weights are read.
        parts: For a network with parts of your own, those that it was built with. Parts that bear a name in
            `vitrail.nn.parts` need not be given.
        device: Where the network goes.

    Raises:
        DataError: If the folder is missing, or a file in it is missing, damaged or does not fit the others.
        UsageError: If the model was saved with a task, network or parts of your own, and they are not given.
    """
    check_kind("task", task, Task, "task=MyTask()")
    folder, config = open_model(path)
    given = {"task": task, "network": network, "parts": parts}
    check_given(own_of(config), given, "load", [repr(str(path))])
    names, standard = config.get("parts") or {}, parts or STANDARD
    made = standard if isinstance(names, str) else parts_of(names, standard)
    learnt = _task_of(config, task)
    own = _own_network(config, network)
    try:
        network = own if own is not None else build(config_from_dict(config["network"]), made)
        network.eval()
        text = config["input"]
        reads = Vocabulary.from_dict(text) if text else from_hugging_face(read_json(folder / PREPROCESSOR, SAVED_AGAIN))
        model = Model(network, reads, learnt.codec_from_dict(config["output"]), learnt, facts=dict(config["facts"]))
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise _damaged(folder, error) from error
    _fill(network, folder / WEIGHTS)
    network.to(device)
    file = background_in(folder)
    return model if file is None else replace(model, background=read_background(file, model.preprocessing))


def _patch(model: Model) -> tuple[int, int]:
    """Height and width in pixels of the patches of a network that reads images; the whole image where it has none."""
    config = getattr(model.network, "config", None)
    patch = getattr(getattr(config, "encoder", config), "patch", None)
    return model.preprocessing.size if patch is None else patch


def open_model(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """The model folder of a run folder or a model folder, and its configuration in today's terms.

    Raises:
        DataError: If there is none, or it is damaged or of another format.
    """
    folder = Path(path)
    if (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    if not (folder / CONFIG).is_file():
        raise _not_a_model(Path(path))
    config = read_json(folder / CONFIG, SAVED_AGAIN)
    if config.get("model_type") != "vitrail" or config.get("format") not in (OLD, FORMAT):
        problem = f"{folder / CONFIG} is not of a vitrail model of format {OLD} or {FORMAT}"
        raise DataError(problem, "a folder written by `vitrail train`, or a newer vitrail")
    if config["format"] == FORMAT:
        return folder, config
    try:
        return folder, weights.model_config(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(folder, error) from error


def _damaged(folder: Path, error: Exception) -> DataError:
    """What is said of a configuration that cannot be used: one line, however many the exception has."""
    problem = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
    return DataError(f"{folder}: the configuration is damaged ({problem.partition(chr(10))[0]})", SAVED_AGAIN)


def own_of(config: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration says of objects of a person's own, which `load` takes: task, network, parts, by kind."""
    network, parts = config.get("network"), config.get("parts") or {}
    found = {} if config.get("task") in TASKS else {"task": str(config.get("own_task") or config.get("task"))}
    if isinstance(network, dict) and network.get("kind") == OWN:
        found["network"] = str(network.get("name"))
    if isinstance(parts, dict):  # in format 1 all of them had one name
        parts = ", ".join(f"{slot}={name}" for slot, name in parts.items() if str(name).startswith(OWN_PART))
    return {**found, "parts": str(parts)} if parts else found


def _task_of(config: Mapping[str, Any], given: Task | None) -> Task:
    """The task that a configuration names: one of the library, or the one that was given."""
    name = str(config.get("task"))
    if given is not None and given.name != name:
        raise UsageError(f"this model learnt the task {name}, and {given.name} is given", f"the task {name}, or none")
    return given or TASKS[name]


def _own_network(config: Mapping[str, Any], given: nn.Module | None) -> nn.Module | None:
    """The network that was given, where the configuration names one of a person's own; None where it builds one."""
    own = own_of(config).get("network")
    if given is None or type(given).__name__ == own:
        return given
    if own is None and getattr(given, "config", None) == config_from_dict(config["network"]):
        return given
    named = own or "one of the library, which its files build"
    raise UsageError(f"this model's network is {named}, and {type(given).__name__} is given", "its own, or none")


def _fill(network: nn.Module, file: Path) -> None:
    """Fill a network from a safetensors file; the network is untouched when the file does not fit.

    Raises:
        DataError: If the file is missing or damaged, or its tensors are not exactly the network's.
    """
    tensors = read_tensors(file, SAVED_AGAIN)
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        wrong = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        shown = ", ".join(f"{name} {found.get(name)} for {wanted.get(name)}" for name in wrong[:5])
        raise DataError(f"{file}: {len(wrong)} tensors do not fit the network: {shown}", SAVED_AGAIN)
    bad = [name for name, _ in network.named_parameters() if not bool(tensors[name].isfinite().all())]
    if bad:
        raise DataError(f"{file}: {len(bad)} tensors hold NaN or infinity, first {bad[0]}", SAVED_AGAIN)
    network.load_state_dict(tensors)


def _not_a_model(path: Path) -> DataError:
    if not path.exists():
        siblings = [p.name for p in path.parent.iterdir() if _is_model(p)] if path.parent.is_dir() else []
        close = nearest(path.name, siblings)
        some = f"one of {', '.join(sorted(siblings)[-4:])} in {path.parent}" if siblings else FIRST_RUN
        return DataError(f"there is no run or model at {path}", str(path.with_name(close)) if close else some)
    if (path / "config.yaml").is_file():
        return DataError(
            f"{path} is a run that has not come to its end, so it holds no model yet",
            f"the command in {path / 'command.txt'} with --out {path} --resume auto",
        )
    return DataError(f"{path} holds no model: neither {CONFIG} nor model/{CONFIG}", "the folder `vitrail train` wrote")


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or (folder / "model" / CONFIG).is_file()


def card_of(model: Model, result: Result | None = None) -> str:
    """The README of a saved model: what it is, what it learnt from, how well it does, how to use it.

    Args:
        model: What is saved; its facts are shown.
        result: How well it does, where that was counted.
    """
    name, holds = model.output.describe()
    facts = {
        **{fact.replace("_", " "): value for fact, value in model.facts.items()},
        name: holds,
        "parameters": f"{sum(parameter.numel() for parameter in model.network.parameters()):,}",
    }
    if isinstance(model.input, Vocabulary):
        reads = "a text"
        facts["reads"] = model.input.describe()[1]
    else:
        reads = "an image"
        facts["image size"] = " x ".join(str(side) for side in model.input.size) + " pixels"
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    kind, data = type(model.network).__name__, model.facts.get("data")
    title = f"# {kind} for {data}" if data else f"# {kind} made with vitrail"
    background = ""
    if model.background is not None:
        background = f"{card_words(model.background)}\n\n"
    about = f"{model.about}\n\n" if model.about else ""
    opens = python_call("load", ['"."'], own_of(_named(model)))
    return (
        f"{title}\n\nIt reads {reads} and gives {model.task.help}.{_result(result)}\n\n"
        f"| fact | value |\n|---|---|\n{rows}\n\n"
        f"```python\nimport vitrail\n\nmodel = {opens}\n"
        f"print(model.predict([{model.example!r}])[0])\n```\n\n{about}{background}"
        "The files hold tensors and plain text only. How inputs are read, and what answers are called, is part of the "
        "model.\n"
    )


def _result(result: Result | None) -> str:
    if result is None:
        return ""
    name, value = result.headline
    shown = result.metric.shown(value)
    return f" {name.capitalize()} {shown} {result.sentence}."
