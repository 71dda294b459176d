"""What the options and names of a command stand for: a model, images, workers."""

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitrail.cli.args import Assumptions, AuditOptions, Embed, Explain, Inference, Predict, WeightsOptions
from vitrail.cli.output import warn
from vitrail.data.images import Images
from vitrail.data.sources import read_images
from vitrail.errors import VitrailError
from vitrail.model import Model, load
from vitrail.model.facts import origin_words
from vitrail.nn import ViTConfig
from vitrail.runtime import pick_device, pick_threads
from vitrail.weights.places import of_others

if TYPE_CHECKING:  # with all that a job over many images needs
    from vitrail.jobs.cluster import Cluster

WRITTEN = 10.0  # tokens of a sample, about, where a model generates text


def load_model(
    name: str, options: Inference, batch_size: int, images: Sequence[str] = (), threads: int | None = None
) -> Model:
    """The model of a run or of another library's weights; sets torch's threads by the size of the work.

    Args:
        name: A run or model folder, or the name of another library's weights.
        options: What is assumed of weights, the size of images, device and threads.
        batch_size: How many samples go through it at a time.
        images: Files, folders or a data set that it will answer: where mean and standard deviation are not verified,
            some of them are answered with each of the usual pairs, and one that is clearly better is named.
        threads: Of torch, without --threads; by the size of the work when None.

    Raises:
        UsageError: The device is not there, `threads` is below 1, or weights leave something open.
        DataError: There is no model, or it is damaged.
    """
    threads = threads if options.threads is None else options.threads
    device, stated = pick_device(options.device), load_options(options)
    if Path(name).is_dir() and not of_others(Path(name)):
        model, warning = load(name, device=device, **stated), ""
    else:
        from vitrail.model.confidence import load_checked  # with all families, which a model of ours does not need

        model, warning = load_checked(name, partial(_images_of, images, options.data_root), device, **stated)
    if stated or "verified" in model.facts:  # also of a folder that vitrail saved
        for words in filter(None, (*origin_words(model.facts), warning)):
            warn(words)
    config = model.network.config
    tokens = config.tokens if isinstance(config, ViTConfig) else WRITTEN
    work = 2.0 * tokens * batch_size * sum(parameter.numel() for parameter in model.network.parameters())  # about
    torch.set_num_threads(threads if threads is not None else pick_threads(work)[0])
    return model


def _images_of(names: Sequence[str], data_root: Path | None) -> Images | None:
    """The images of files, folders or a set; None where they cannot be read, which is reported where they are used."""
    with contextlib.suppress(VitrailError):
        return read_images(names, data_root, flat=True).held_out.images if names else None
    return None


# ---- weights of other libraries


def load_options(options: WeightsOptions) -> dict[str, Any]:
    """What the options state of weights and of the size of images, as arguments of `vitrail.load`."""
    return _arguments(options, WeightsOptions)


def assumptions_of(options: Assumptions) -> dict[str, Any]:
    """What the options state of weights, as arguments of `vitrail.load`; empty where they state nothing.

    Raises:
        UsageError: A value cannot be read.
        DataError: The file of class names cannot.
    """
    return _arguments(options, Assumptions)


def _arguments(options: Assumptions, of: type) -> dict[str, Any]:
    given = {each.name: getattr(options, each.name) for each in fields(of)}
    if all(value is None for value in given.values()):
        return {}
    from vitrail.weights.assume import load_arguments  # which a model of vitrail's own does not need

    return load_arguments(given)


# ---- jobs over many images


def cluster_of(options: Predict | Explain | AuditOptions | Embed, model: Model) -> "Cluster | None":
    """The workers of --ray, and how they load the model that this process has loaded; None without it.

    Raises:
        UsageError: Ray is missing, or is another version; or there is no room for so many workers.
    """
    if options.ray is None:
        return None
    from vitrail.jobs.cluster import Cluster, check_ray
    from vitrail.jobs.precision import Opening, identity_of

    check_ray()
    path = Path(options.run).expanduser()
    where = str(path.resolve()) if path.exists() else options.run
    opening = Opening(where, model.device.type, load_options(options), identity_of(model))
    return Cluster(options.ray, options.workers, options.threads or 1, options.deadline, warn, opening)
