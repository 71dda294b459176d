"""Which networks lie on this machine: the names that `vitrail.load` takes, of the hubs' caches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.weights.published import timm_table


def caches() -> tuple[Path, Path]:
    """The folders of the hubs: huggingface_hub's, and that of torch hub's files."""
    import torch
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE), Path(torch.hub.get_dir()) / "checkpoints"


def cached() -> tuple[str, ...]:
    """Names of plain ViTs whose files are in the caches, timm's first; whether they open, only opening them says."""
    hub, torch_hub = caches()
    ours = {
        about["hub"]: f"timm:{architecture}.{tag}"
        for architecture, row in timm_table().items()
        for tag, about in row["tags"].items()
    }
    here = sorted(each.name.removeprefix("models--").replace("--", "/") for each in hub.glob("models--*--*"))
    names = [ours.get(repository, f"hf:{repository}") for repository in here]
    names.sort(key=lambda name: not name.startswith("timm:"))
    return (*names, *_of_torchvision(torch_hub))


def _of_torchvision(folder: Path) -> list[str]:
    """Those of torchvision's ViTs whose file is there; none where torchvision is not installed."""
    if not any(folder.glob("vit_*")):
        return []
    try:
        from torchvision import models
    except ImportError:
        return []
    found = []
    for architecture in (each for each in models.list_models() if each.startswith("vit_")):
        for published in models.get_model_weights(architecture):
            if (folder / published.url.rpartition("/")[2]).is_file():
                found.append(f"torchvision:{architecture}.{published.name}")
    return found


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Within, names open from the caches alone, as under `HF_HUB_OFFLINE=1`."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
