"""From a name to files on this disk: a path, or a name in a hub, whose own caches are searched first.

    timm:vit_tiny_patch16_224[.TAG]     huggingface_hub's cache, repository timm/...
    hf:OWNER/NAME[@REVISION]            the same
    torchvision:vit_b_16[.WEIGHTS]      torch hub's cache
    file, folder                        a folder as hubs lay it out, or one file

Nothing is downloaded under `HF_HUB_OFFLINE=1`; the origin of what was downloaded states its revision.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, Hint, UsageError, byte_size, nearest, raised_as
from vitrail.io import read_json
from vitrail.weights.family import instead_of, why_not
from vitrail.weights.files import cache_dir, is_pickle, sha256_of
from vitrail.weights.places import BESIDE, CONFIG, HUBS, INDEX, WEIGHTS, check_model, is_ours, timm_table, weights_in
from vitrail.weights.saved import find_contradiction, find_rewriter

CARD, CARDS = "README.md", 2**16  # bytes of it that are read
LICENCES = {"facebook/dinov3-": "dinov3-license"}  # of gated repositories, by how their names begin
LICENCE = r"[\w.+-]{1,60}"
EXAMPLE = "google/vit-base-patch16-224"


@dataclass(frozen=True)
class FoundWeights:
    """Files of a network, and what lies beside them.

    Attributes:
        weights: The file, or the index of several.
        origin: The requested name and where it was found, with the revision of a hub.
        config: The content of `config.json`; None where there is none.
        preprocessor: The same of `preprocessor_config.json`, or the image part of `processor_config.json`.
        facts: What a library's own table states: `licence`, `classes`, `preprocessing`, by name; `unpickled` of a
            pickle; and as `configuration` why what vitrail wrote beside it is ignored.
    """

    weights: Path
    origin: str
    config: Mapping[str, Any] | None = None
    preprocessor: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def public_origin(self) -> str:
        """The origin as a model carries it: of a file on this disk its name and SHA-256, and nothing of its folders."""
        if self.origin.startswith(HUBS) or not self.weights.is_file():
            return self.origin
        pickled = " (a pickle)" if "unpickled" in self.facts else ""
        return f"{self.weights.name}{pickled}, sha256 {sha256_of(self.weights)}"


def find_weights(name: str | Path) -> FoundWeights:
    """The files that a name means.

    Raises:
        UsageError: If a hub has no such name; offers the nearest.
        DataError: If the files are not there and cannot be downloaded; states their size, licence and place.
    """
    found = _find(name)
    if is_pickle(found.weights):
        origin = f"{found.origin} (a pickle: read in a separate process and cached as safetensors)"
        words = f"the pickle {found.weights} was read in a separate process; its tensors are cached in {cache_dir()}"
        return replace(found, origin=origin, facts={**found.facts, "unpickled": words})
    return found


def _find(name: str | Path) -> FoundWeights:
    hub, _, rest = str(name).partition(":")
    if str(name).startswith(HUBS):
        return {"timm": _of_timm, "hf": _of_hub, "torchvision": _of_torchvision}[hub](rest)
    path = Path(name)
    if path.is_dir():
        return _of_folder(path, str(path))
    variant = path.is_file() and f"{path.name.partition('.')[0]}{path.suffix}" in WEIGHTS and not is_ours(path.parent)
    if path.name in WEIGHTS or (variant and (path.parent / CONFIG).is_file()):  # such as model.fp16.safetensors
        return _of_folder(path.parent, str(path), path)
    check_model(name)
    return FoundWeights(path, str(path))


def _of_folder(folder: Path, origin: str, file: Path | None = None) -> FoundWeights:
    file = file or weights_in(folder)
    if file is None:
        raise DataError(f"{folder} contains no weights", f"one of {', '.join(WEIGHTS)}")
    files = [folder / name for name in BESIDE]
    config, preprocessor, both = (read_json(each, "the hub's own file") if each.is_file() else None for each in files)
    nested = (both or {}).get("image_processor")
    if isinstance(nested, Mapping):  # the newer file, which transformers reads first
        preprocessor = nested
    published = (config or {}).get("pretrained_cfg")
    stated = str(published.get("license") or "") if isinstance(published, Mapping) else ""
    facts = {"licence": _licence(folder / CARD) or (stated if re.fullmatch(LICENCE, stated) else "")}
    if ignored := find_rewriter(folder) or find_contradiction(folder):
        facts["configuration"] = ignored
        if config and "pretrained_cfg" in config:  # which states the preprocessing; the other file is older
            preprocessor = None
    return FoundWeights(file, origin, config, preprocessor, facts)


def _licence(card: Path) -> str:
    """The licence in the metadata of a model card; empty where it states none."""
    if not card.is_file():
        return ""
    with card.open("rb") as file:
        text = file.read(CARDS).decode("utf-8", "replace")
    top = text.partition("---")[2].partition("---")[0] if text.startswith("---") else ""
    stated = dict(re.findall(rf"^(license|license_name):\s*({LICENCE})\s*$", top, re.MULTILINE))
    return stated.get("license_name") or stated.get("license", "")


def _repositories_in(cache: Path) -> list[str]:
    """The repositories of which something is in the hub's cache."""
    return [each.name.removeprefix("models--").replace("--", "/") for each in cache.glob("models--*--*")]


def _parts(file: Path) -> set[str]:
    """The files that an index of weights lists; a damaged one lists none, and is refused when it is opened."""
    places = read_json(file, "the hub's own file").get("weight_map") if file.name.endswith(INDEX) else None
    return set(map(str, places.values())) if isinstance(places, Mapping) else set()


def _snapshot(repository: Mapping[str, Any]) -> Path | None:
    """The folder of a repository in the cache; None without its weights, or a file of them: a download may break off.

    Args:
        repository: `repo_id`, and `revision` where it is not the newest.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(**repository, allow_patterns=list(BESIDE), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    file = weights_in(folder)
    return folder if file and all((folder / name).is_file() for name in _parts(file)) else None


def _fetch(repository: Mapping[str, Any]) -> Path:
    """The folder of a repository in the cache, with the files that are opened: no adapters and no second copies.

    Args:
        repository: `repo_id` and `revision`.
    """
    from huggingface_hub import model_info, snapshot_download

    check_online()
    files = {file.rfilename for file in model_info(**repository).siblings or ()}
    wanted = [*BESIDE, CARD, *[name for name in WEIGHTS if name in files][:1]]
    folder = Path(snapshot_download(**repository, allow_patterns=wanted))
    if parts := sorted(files & _parts(folder / wanted[-1])):
        folder = Path(snapshot_download(**repository, allow_patterns=[*wanted, *parts]))
    return folder


def _repositories() -> dict[str, tuple[str, str]]:
    """timm's repositories: timm's name of the weights in each, and their size and licence."""
    return {
        about["hub"]: (
            f"timm:{architecture}.{tag}",
            f"{byte_size(4 * row['parameters'])}, licence {about.get('licence') or 'not stated'}",
        )
        for architecture, row in timm_table().items()
        for tag, about in row["tags"].items()
    }


def _of_hub(name: str, called: str = "") -> FoundWeights:
    """A repository of the Hugging Face hub, from its cache; downloaded where it is not there.

    Args:
        name: OWNER/NAME[@REVISION].
        called: The requested name, where it is another.
    """
    from huggingface_hub import constants, errors

    repository, _, revision = name.partition("@")
    called = called or f"hf:{name}"
    licence = next((f"licence {name}, " for begin, name in LICENCES.items() if repository.startswith(begin)), "")
    unknown = f"{licence}see huggingface.co/{repository} for size and licence"
    about = _repositories().get(repository, ("", unknown))[1]
    wanted = {"repo_id": repository, "revision": revision or None}
    place = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    command = f"{'HF_HUB_OFFLINE=0 ' * constants.HF_HUB_OFFLINE}hf download {name.replace('@', ' --revision ')}"
    absent = f"{called} ({about}) is not on this machine, where its place is {place}, and the hub cannot be reached"
    if licence:
        absent += "; access has to be asked for on its page, and a token is needed"
        command = f"hf auth login && {command}  # once access is given at huggingface.co/{repository}"
    with raised_as(DataError, absent, command, Exception):  # of the hub, of the network and of what is between
        try:
            folder = _snapshot(wanted)
            short = repository.removeprefix("timm/")
            tags = timm_table().get(short, {}).get("tags")
            if folder is None and repository.startswith("timm/") and tags and repository not in _repositories():
                problem = f"the hub has no {called}: the names of timm's repositories include the training"
                raise UsageError(problem, Hint(instead={called: f"timm:{short}.{next(iter(tags))}"}))
            folder = folder or _fetch(wanted)
        except errors.GatedRepoError as error:
            problem = f"{called} ({about}) is gated: its licence has to be accepted first; its place is {place}"
            raise DataError(problem, f"accept it at huggingface.co/{repository}, then hf auth login") from error
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
            here = _repositories_in(Path(constants.HF_HUB_CACHE))
            close = nearest(repository, [each for each in here if each != repository]) or EXAMPLE
            hint = Hint(instead={called: f"hf:{close}"})
            raise UsageError(f"the hub has no {called} ({type(error).__name__})", hint) from error
    return _of_folder(folder, f"hf:{repository} at revision {folder.name}")


def _of_timm(name: str) -> FoundWeights:
    """One of timm's pretrained networks, from its repository on the hub."""
    architecture, _, tag = name.partition(".")
    tags = timm_table().get(architecture, {}).get("tags", {})
    tag = tag or next(iter(tags), "")
    if tag not in tags:
        if why := why_not(architecture):
            raise UsageError(f"timm:{name} has {why}, so it is not a plain ViT", instead_of(why))
        problem = f"timm:{name} is not a plain ViT known here, and nothing else opens (see docs/weights.md)"
        known = [called for called, _ in _repositories().values()]
        known += [f"timm:{each}" for each in timm_table()]
        close = nearest(name.lower(), [each.removeprefix("timm:") for each in known]) or "vit_tiny_patch16_224"
        raise UsageError(problem, Hint(instead={f"timm:{name}": close if ":" in close else f"timm:{close}"}))
    about = tags[tag]
    called = f"timm:{architecture}.{tag}"
    found = _of_hub(about["hub"], called)
    facts = {"licence": about.get("licence") or found.facts.get("licence", "")}
    if found.config is None:  # a cache with the tensors alone
        reads = Preprocessing.from_dict(about["preprocessing"])
        published = {"tag": tag, "num_classes": about["classes"], "input_size": [reads.channels, *reads.size]}
        found = replace(found, config={"architecture": architecture, "pretrained_cfg": published})
        facts["preprocessing"] = reads
    return replace(found, origin=f"{called} ({found.origin})", facts=facts)


def _torchvision_weights() -> dict[str, tuple[str, Any]]:
    """torchvision's published ViTs, by architecture with and without version: the whole name, and the weights."""
    from torchvision import models

    kinds: dict[str, Any] = {each: models.get_model_weights(each) for each in models.list_models(include="vit_*")}
    each = {f"{name}.{one.name}": one for name, kind in kinds.items() for one in kind}
    usual = {name: (f"torchvision:{name}.{kind.DEFAULT.name}", kind.DEFAULT) for name, kind in kinds.items()}
    return usual | {name: (f"torchvision:{name}", one) for name, one in each.items()}


def _of_torchvision(name: str) -> FoundWeights:
    """One of torchvision's published networks, from torch hub's cache."""
    import torch

    from vitrail.weights.torchvision import preprocessing_of

    known = _torchvision_weights()
    if name not in known:
        problem = f"torchvision has no weights '{name}' of a ViT"
        hub = "torchvision:"
        raise UsageError(problem, Hint(instead={hub + name: hub + (nearest(name, known) or "vit_b_16")}))
    full, published = known[name]
    file = Path(torch.hub.get_dir()) / "checkpoints" / published.url.rpartition("/")[2]
    licence = "CC-BY-NC-4.0" if "SWAG" in published.name else "BSD-3-Clause"
    wanted = file.stem.rpartition("-")[2]  # the first digits of its SHA-256
    if not file.is_file():
        about = f"{byte_size(2**20 * published.meta['_file_size'])}, licence {licence}"
        problem = f"{full} ({about}) is not on this machine and cannot be downloaded"
        command = f"curl --create-dirs -Lo {shlex.quote(str(file))} {published.url}"
        with raised_as(DataError, problem, command, (OSError, RuntimeError)):
            check_online()
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(published.url, str(file), wanted, progress=False)
    if not (digest := sha256_of(file)).startswith(wanted):
        problem = f"{file} is damaged: its SHA-256 starts with {digest[: len(wanted)]}, but its name states {wanted}"
        raise DataError(problem, "delete it, so that it is downloaded again")
    facts = {
        "licence": licence,
        "classes": tuple(published.meta["categories"]),
        "preprocessing": preprocessing_of(published.transforms()),
    }
    return FoundWeights(file, f"{full} ({file.name} of torch hub)", facts=facts)


def check_online() -> None:
    """Raise OSError where nothing may be downloaded."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")


def caches() -> tuple[Path, Path]:
    """The folders of the hubs: huggingface_hub's, and that of torch hub's files."""
    import torch
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE), Path(torch.hub.get_dir()) / "checkpoints"


def list_cached() -> tuple[str, ...]:
    """Names of weights that are whole in the caches; only opening them shows which are of plain ViTs."""
    hub, torch_hub = caches()
    ours, here = _repositories(), sorted(_repositories_in(hub))
    names = [ours.get(each, (f"hf:{each}",))[0] for each in here if _snapshot({"repo_id": each})]
    if any(torch_hub.glob("vit_*")):  # torchvision's networks take a second to import
        files = {full: torch_hub / one.url.rpartition("/")[2] for full, one in _torchvision_weights().values()}
        names += [full for full, file in files.items() if file.is_file()]
    return tuple(names)
