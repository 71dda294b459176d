"""From what a person types to files on this disk: a path, or a name in a hub, whose own caches are asked first.

    timm:vit_tiny_patch16_224[.TAG]     huggingface_hub's cache, repository timm/...
    hf:OWNER/NAME[@REVISION]            the same
    torchvision:vit_b_16[.WEIGHTS]      torch hub's cache
    file, folder                        a folder as hubs lay it out, or one file

Nothing is fetched where the hub is told to stay offline (`HF_HUB_OFFLINE=1`); what was fetched bears its revision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.errors import DataError, UsageError, nearest
from vitrail.io import read_json
from vitrail.weights.files import ARRAYS, INDEX, PICKLES, SAFE
from vitrail.weights.tables import timm_table
from vitrail.weights.torchvision import preprocessing_of

HUBS = ("timm:", "hf:", "torchvision:")
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = (  # in a folder, the first that is there
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
WANTED = (CONFIG, PREPROCESSOR, "*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class Found:
    """Files of a network, and what lies beside them.

    Attributes:
        weights: The file, or the index of several.
        origin: What was asked for and where it was found, with the revision of a hub.
        config: The content of `config.json`; None where there is none.
        preprocessor: The same of `preprocessor_config.json`.
        facts: What a library's own table says of it: `licence`, `classes`, `preprocessing`, by name.
    """

    weights: Path
    origin: str
    config: Mapping[str, Any] | None = None
    preprocessor: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def is_foreign(name: str | Path) -> bool:
    """Whether this names weights of others: a hub's name, a file of weights, or a folder with such a file."""
    path = Path(name)
    if str(name).startswith(HUBS):
        return True
    if path.is_dir():
        return any((path / file).is_file() for file in WEIGHTS) and not is_ours(path)
    return path.suffix in (SAFE, ARRAYS, *PICKLES) or path.name.endswith(INDEX)


def is_ours(folder: Path) -> bool:
    """Whether vitrail wrote a model folder, of which a file may be lost; keys of other libraries stand beside ours."""
    files = [folder / name for name in (CONFIG, PREPROCESSOR)]
    contents = [read_json(file, "the file as it was written") for file in files if file.is_file()]
    return any("vitrail" in content or content.get("model_type") == "vitrail" for content in contents)


def find(name: str | Path) -> Found:
    """The files that a name means.

    Raises:
        UsageError: If a hub has no such name; offers the nearest.
        DataError: If the files are not there and cannot be fetched; says their size, their licence and where they go.
    """
    hub, _, rest = str(name).partition(":")
    if str(name).startswith(HUBS):
        return {"timm": _of_timm, "hf": _of_hub, "torchvision": _of_torchvision}[hub](rest)
    path = Path(name)
    if path.is_dir():
        return _of_folder(path, str(path))
    if path.name in WEIGHTS:
        return _of_folder(path.parent, str(path), path)
    return Found(path, str(path))


def _of_folder(folder: Path, origin: str, file: Path | None = None) -> Found:
    files = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if file is None and not files:
        raise DataError(f"{folder} holds no weights", f"one of {', '.join(WEIGHTS)}")
    config, preprocessor = (
        read_json(folder / name, "the hub's own file") if (folder / name).is_file() else None
        for name in (CONFIG, PREPROCESSOR)
    )
    return Found(file or files[0], origin, config, preprocessor)


def _of_hub(name: str) -> Found:
    """A repository of the Hugging Face hub, from its cache; fetched where it is not there."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, _, revision = name.partition("@")
    wanted: dict[str, Any] = {"repo_id": repository, "revision": revision or None, "allow_patterns": list(WANTED)}
    place = f"a folder with {CONFIG} and model.safetensors, in place of hf:{name}"
    try:
        try:
            folder = Path(snapshot_download(**wanted, local_files_only=True))
            if not any((folder / file).exists() for file in WEIGHTS):
                raise LocalEntryNotFoundError("no weights in the cache")
        except LocalEntryNotFoundError:
            if constants.HF_HUB_OFFLINE:
                raise
            folder = Path(snapshot_download(**wanted))
    except GatedRepoError as error:
        raise DataError(
            f"hf:{name} is gated: its owner gives it to those who accept its licence",
            f"accept it at huggingface.co/{repository}, then hf auth login",
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise UsageError(
            f"the hub has no hf:{name} ({type(error).__name__})", "hf:google/vit-base-patch16-224"
        ) from error
    except (LocalEntryNotFoundError, OSError, ValueError) as error:
        where = f"{constants.HF_HUB_CACHE} does not hold it, and the hub cannot be reached"
        raise DataError(f"hf:{name} is not on this machine: {where} ({type(error).__name__})", place) from error
    return _of_folder(folder, f"hf:{repository} at revision {folder.name}")


def _of_timm(name: str) -> Found:
    """One of timm's pretrained networks, from its repository on the hub."""
    architecture, _, tag = name.partition(".")
    known = timm_table()
    if architecture not in known:
        raise UsageError(
            f"timm:{name} is no plain ViT known here", f"timm:{nearest(architecture, known) or 'vit_tiny_patch16_224'}"
        )
    tags = known[architecture]["tags"]
    if tag and tag not in tags:
        raise UsageError(
            f"timm has no {architecture} called '{tag}'",
            f"timm:{architecture}.{nearest(tag, tags) or next(iter(tags))}",
        )
    tag = tag or next(iter(tags))
    about = tags[tag]
    size = 4 * known[architecture]["parameters"] / 2**20
    try:
        found = _of_hub(about["hub"])
    except DataError as error:
        licence = about.get("licence") or "not stated"
        raise DataError(
            f"timm:{architecture}.{tag} ({size:,.0f} MiB, licence {licence}) is not on this machine: {error.problem}",
            f"the folder of {about['hub']}, with {CONFIG} and model.safetensors, in place of the name",
        ) from error
    return replace(
        found, origin=f"timm:{architecture}.{tag} ({found.origin})", facts={"licence": about.get("licence", "")}
    )


def _of_torchvision(name: str) -> Found:
    """One of torchvision's published networks, from torch hub's cache."""
    import torch
    from torchvision import models

    architecture, _, version = name.partition(".")
    known = [each for each in models.list_models() if each.startswith("vit_")]
    if architecture not in known:
        raise UsageError(
            f"torchvision:{name} is no ViT of torchvision", f"torchvision:{nearest(architecture, known) or 'vit_b_16'}"
        )
    kinds: Any = models.get_model_weights(architecture)
    versions = list(kinds.__members__)
    if version and version not in versions:
        hint = f"torchvision:{architecture}.{nearest(version, versions) or versions[0]}"
        raise UsageError(f"torchvision has no {architecture} called '{version}'", hint)
    published = kinds[version] if version else kinds.DEFAULT
    file = Path(torch.hub.get_dir()) / "checkpoints" / published.url.rpartition("/")[2]
    licence = "CC-BY-NC-4.0" if "SWAG" in published.name else "BSD-3-Clause"
    full = f"torchvision:{architecture}.{published.name}"
    if not file.is_file():
        if offline():
            raise _not_here(full, published.meta["_file_size"], licence, file, "the hub is to stay offline")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(published.url, str(file), file.stem.rpartition("-")[2], progress=False)
        except (OSError, RuntimeError) as error:
            raise _not_here(full, published.meta["_file_size"], licence, file, str(error)) from error
    facts = {
        "licence": licence,
        "classes": tuple(published.meta["categories"]),
        "preprocessing": preprocessing_of(published.transforms()),
    }
    return Found(file, f"{full} ({file.name} of torch hub)", facts=facts)


def offline() -> bool:
    """Whether nothing may be fetched."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _not_here(name: str, size: float, licence: str, file: Path, why: str) -> DataError:
    problem = f"{name} ({size:,.0f} MB, licence {licence}) is not on this machine, and cannot be fetched: {why[:200]}"
    return DataError(problem, f"its file as {file}")
