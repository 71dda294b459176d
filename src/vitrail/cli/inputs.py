"""What every verb is given: a model, opened as the options say, and by whom many images are computed."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitrail import training
from vitrail.cli.args import Assumptions, Inference, Job, Weights
from vitrail.cli.output import warn
from vitrail.data import formats
from vitrail.data.images import FileImages, Images
from vitrail.errors import MODEL, UsageError, VitrailError
from vitrail.model import Model, load
from vitrail.model.model import origin_words
from vitrail.nn import ViTConfig
from vitrail.runtime import pick_device, pick_threads
from vitrail.weights.files import of_others

if TYPE_CHECKING:  # with all that a job over many images needs
    from vitrail.jobs.cluster import Cluster
    from vitrail.jobs.precision import Opening

WRITTEN = 10.0  # tokens of a sample, about, where a model generates text


def open_model(
    name: str, options: Inference, batch_size: int, images: Sequence[str] = (), threads: int | None = None
) -> Model:
    """The model of a run or of other people's weights; sets torch's threads by the size of the work.

    Args:
        name: A run or model folder, or what names other people's weights.
        options: What is assumed of weights, the size of images, device and threads.
        batch_size: How many samples go through it at a time.
        images: Files, folders or a set that it will be asked about: where mean and standard deviation are not
            verified, some of them are answered with each of the usual pairs, and one that is clearly better is named.
        threads: Of torch, where nothing was typed; by the size of the work when None.

    Raises:
        UsageError: The device is not there, `threads` is below 1, or weights leave something open.
        DataError: There is no model, or it is damaged.
    """
    threads = threads if options.threads is None else options.threads
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}", "--threads 1")
    where = pick_device(options.device)
    with hints_with(options):
        given = load_options(options)
        if Path(name).is_dir() and not of_others(Path(name)):
            model, doubt = load(name, device=where, **given), ""
        else:
            from vitrail.model.confidence import load_checked  # with all families, which a model of ours does not need

            model, doubt = load_checked(name, partial(_images_of, images, options.data_root), where, **given)
    if given or "verified" in model.facts:  # also of a folder that vitrail saved
        for words in filter(None, (*origin_words(model.facts), doubt)):
            warn(words)
    config = model.network.config
    tokens = config.tokens if isinstance(config, ViTConfig) else WRITTEN
    work = 2.0 * tokens * batch_size * sum(parameter.numel() for parameter in model.network.parameters())  # about
    torch.set_num_threads(threads if threads is not None else pick_threads(work)[0])
    return model


def _images_of(names: Sequence[str], data_root: Path | None) -> Images | None:
    """The images of files, folders or a set; None where they cannot be read, which is reported where they are used."""
    with contextlib.suppress(VitrailError):
        if len(names) != 1 or (Path(names[0]).is_dir() and not formats.is_packed(names[0])):
            return FileImages([file for file, _ in formats.named_files(names)])
        from vitrail.features.listing import list_images  # for weights that leave mean and deviation open

        listed = list_images(names[0], data_root)
        return listed.images("test" if "test" in listed.splits else next(iter(listed.splits)))
    return None


def planted_root(run: str, data_root: Path | None) -> Path | None:
    """Where MNIST lies, of which planted images are made: as it was typed, or where the run read it."""
    remembered = {} if data_root is not None else training.remembered_data(run)
    name, root = remembered.get("name", ""), Path(remembered.get("root", ""))
    return root if (name == "mnist" or formats.is_planted(name)) and root.is_dir() else data_root


# ---- options of other people's weights


def load_options(options: Weights) -> dict[str, Any]:
    """What was typed of weights and of the size of images, as arguments of `vitrail.load`."""
    found = assumptions_of(options)
    if options.image_size is not None:
        found["image_size"] = size_of(options.image_size)
    if options.channels is not None:
        found["channels"] = options.channels
    return found


def assumptions_of(options: Assumptions) -> dict[str, Any]:
    """What was typed of other people's weights, as arguments of `vitrail.load`; empty where nothing was.

    Raises:
        UsageError: A value cannot be read.
        DataError: The file of names cannot.
    """
    if not any(getattr(options, each.name) is not None for each in fields(Assumptions)):
        return {}
    from vitrail.weights.assume import names_in, parsed  # of which a model of ours has no need

    assume = {} if options.assume is None else parsed(options.assume)
    for name, text in (("mean", options.mean), ("std", options.std)):
        if text is not None:
            try:
                assume[name] = tuple(float(word) for word in text.split(","))
            except ValueError as error:
                problem = f"--{name} must be numbers separated by commas, got '{text}'"
                raise UsageError(problem, f"--{name} 0.5") from error
    classes = {} if options.class_names is None else {"classes": names_in(options.class_names)}
    return ({"assume": assume} if assume else {}) | classes


def size_of(text: str) -> tuple[int, int]:
    """Height and width of a side, or of HEIGHTxWIDTH.

    Raises:
        UsageError: It is neither.
    """
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isdecimal() and int(side) for side in sides):
        raise UsageError(
            f"--image-size must be one number or HEIGHTxWIDTH, in pixels, got '{text}'", "--image-size 224"
        )
    return int(sides[0]), int(sides[-1])


@contextlib.contextmanager
def hints_with(options: Assumptions) -> Iterator[None]:
    """Hints are completed by what was typed: the name of the model, and in `--assume` the values that it had before."""
    try:
        yield
    except VitrailError as error:
        hint = error.typed.replace(MODEL, shlex.join(["--model", getattr(options, "model", "MODEL")]))
        if hint.startswith("--assume"):
            from vitrail.weights.assume import completed  # for this hint alone

            hint = completed(hint, options.assume or "")
        if hint == error.typed:
            raise
        raise type(error)(error.problem, hint) from error


# ---- jobs over many images


def cluster_of(options: Job, threads: int | None) -> "Cluster | None":
    """The workers of Ray that were asked for; None where this process computes.

    Raises:
        UsageError: Ray is missing, or another version than is wanted.
    """
    if options.ray is None:
        return None
    from vitrail.jobs.cluster import Cluster, check_ray

    check_ray()
    return Cluster(options.ray, options.workers, threads or 1, options.deadline, warn)


def opening_of(name: str, options: Weights, model: Model) -> "Opening":
    """What workers load the model by that this process has loaded."""
    from vitrail.jobs.precision import Opening, identity_of

    path = Path(name).expanduser()
    where = str(path.resolve()) if path.exists() else name
    return Opening(where, model.device.type, load_options(options), identity_of(model))
