"""What weights are called: names in hubs, kinds of files, and whose a folder is. Nothing of them is read here."""

import re
import shlex
from difflib import get_close_matches
from pathlib import Path

from vitrail.io import read_json

HUBS = ("timm:", "hf:", "torchvision:")
LIVE = ("vit_pytorch:", "vit-pytorch:")  # networks whose weights nobody publishes by name
SAFE, ARRAYS, PICKLES, INDEX = ".safetensors", ".npz", (".pth", ".pt", ".bin", ".ckpt"), ".index.json"
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = (  # in a folder, the first that is there
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
ALIASES = dict.fromkeys(("hub", "huggingface", "huggingface_hub", "transformers"), "hf:")
CLOSE = 0.75  # of a misspelt hub to what is meant
REPOSITORY = re.compile(r"(?!runs/)[A-Za-z0-9][\w.-]+/[A-Za-z][\w.-]+(@[\w.-]+)?")  # and no size, such as S/16
HUB_PAGE = re.compile(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")


def is_foreign(name: str | Path) -> bool:
    """Whether this names weights of others: a hub's name, a file of weights, or a folder with such a file."""
    path = Path(name)
    if str(name).startswith(HUBS):
        return True
    if not path.exists() and (meant(str(name)) or str(name).startswith(LIVE)):
        return True
    if path.is_dir():
        return any((path / file).is_file() for file in WEIGHTS) and not is_ours(path)
    return path.suffix in (SAFE, ARRAYS, *PICKLES) or path.name.endswith(INDEX)


def is_ours(folder: Path) -> bool:
    """Whether vitrail wrote a model folder, of which a file may be lost; keys of other libraries stand beside ours."""
    files = [folder / name for name in (CONFIG, PREPROCESSOR)]
    contents = [read_json(file, "the file as it was written") for file in files if file.is_file()]
    return any("vitrail" in content or content.get("model_type") == "vitrail" for content in contents)


def is_pickle(path: Path) -> bool:
    """Whether a file, or those that an index names, are pickles by its name."""
    return Path(path.name.removesuffix(INDEX)).suffix in PICKLES


def meant(name: str) -> str:
    """The name in a hub that a name without one, or with one misspelt, may stand for; empty where there is none."""
    from vitrail.weights.published import timm_table  # only where a name is no path

    hub, colon, rest = name.partition(":")
    if name.partition(".")[0].lower() in timm_table():
        return f"timm:{name.lower()}"
    page = HUB_PAGE.match(name)
    if page:
        return f"hf:{page[1]}"
    named = colon and hub.isidentifier() and len(hub) > 1 and not rest.startswith("/")
    close = (
        ALIASES.get(hub.lower()) or next(iter(get_close_matches(hub.lower() + colon, HUBS, 1, CLOSE)), "")
        if named
        else ""
    )
    if close:
        return close + rest
    file = name.endswith((SAFE, ARRAYS, *PICKLES, INDEX))
    return f"hf:{name}" if REPOSITORY.fullmatch(name) and not file and not Path(name).parent.is_dir() else ""


def another_copy(path: str | Path) -> str:
    """What is typed where a file is damaged: a hub's is fetched once more, any other held against its publisher's."""
    repository = next((part for part in Path(path).parts if part.startswith("models--")), "")
    if repository:
        return f"hf download {repository.removeprefix('models--').replace('--', '/')} --force-download"
    return f"sha256sum {shlex.quote(str(path))}  # to be held against its publisher's"
