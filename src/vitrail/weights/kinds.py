"""What weights are called: names in hubs, kinds of files, and whose a folder is. Nothing of them is read here."""

import re
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vitrail.io import read_json

HUBS = ("timm:", "hf:", "torchvision:")
LIVE = ("vit_pytorch:", "vit-pytorch:")  # networks whose weights nobody publishes by name
SAFE, ARRAYS, PICKLES, INDEX = ".safetensors", ".npz", (".pth", ".pt", ".bin", ".ckpt"), ".index.json"
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
KEY = "vitrail"  # under which all that is ours stands in both, beside the keys of other libraries
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
ARGUMENTS = {  # of timm's networks: which field of ours each is; what tensors say, too, is held against them
    "num_heads": "heads",
    "img_size": "image_size",
    "patch_size": "patch_size",
    "embed_dim": "width",
    "depth": "depth",
    "in_chans": "channels",
    "num_classes": "classes",
    "class_token": "class_token",
    "reg_tokens": "registers",
    "qkv_bias": "qkv_bias",
}
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
    """Whether vitrail wrote a model folder, of which a file may be lost; keys of other libraries stand beside ours.

    Where another library wrote `config.json` since, the folder is that library's.
    """
    contents = _contents(folder)
    return any(map(_has_ours, contents)) and not _author(contents[0])


def rewritten(folder: Path) -> str:
    """Who wrote the `config.json` of a folder that vitrail saved, in words; empty where nobody else did.

    transformers carries our key along, and class names, too, whatever names a model was given; timm drops the key.
    """
    config, preprocessor = _contents(folder)
    author = _author(config)
    if not author or not (_has_ours(config) or _has_ours(preprocessor)):
        return ""
    words = f"{author} wrote {CONFIG} since vitrail saved the folder, and what vitrail said there no longer counts"
    names = _classes_of(config)
    kept = names and names == config.get("label_names") and len(names) == config.get("num_classes")
    return words + ("; the class names are still those of then" if kept else "")


def contradiction(folder: Path) -> str:
    """What `config.json` says to others and not to vitrail, in words; empty where all of it agrees.

    Both are written together, so one of them was changed since, and nothing says which is meant.
    """
    config = _contents(folder)[0]
    own = config.get(KEY)
    network = own.get("network") if isinstance(own, Mapping) else None
    if not isinstance(network, Mapping) or _author(config):
        return ""
    arguments = config.get("model_args")
    beside = {**arguments} if isinstance(arguments, Mapping) else {}
    beside |= {name: config[name] for name in ("num_classes", "num_labels") if name in config}
    for name, value in beside.items():
        field = "classes" if name == "num_labels" else ARGUMENTS.get(name)
        if field in network and _sides(field, network[field]) != _sides(field, value):
            return f"{name} is {value!r}, and under {KEY} {field} is {network[field]!r}"
    names = _classes_of(config)
    agree = not names or names == config.get("label_names", names)
    return "" if agree else f"label_names are not the classes under {KEY}"


def _contents(folder: Path) -> list[dict[str, Any]]:
    """What stands in both files of a folder; nothing where one is missing."""
    files = [folder / name for name in (CONFIG, PREPROCESSOR)]
    return [read_json(file, "the file as it was written") if file.is_file() else {} for file in files]


def _has_ours(content: Mapping[str, Any]) -> bool:
    return KEY in content or content.get("model_type") == KEY


def _author(config: Mapping[str, Any]) -> str:
    """The other library that wrote a `config.json`; empty where vitrail did, or nothing says who."""
    kind = config.get("model_type")
    if kind is None:
        return "timm" if "architecture" in config and KEY not in config else ""
    return "" if kind == KEY else "transformers"


def _classes_of(config: Mapping[str, Any]) -> list[Any]:
    """The class names under our key; none where it has none."""
    own = config.get(KEY)
    output = own.get("output") if isinstance(own, Mapping) else None
    names = output.get("classes") if isinstance(output, Mapping) else None
    return names if isinstance(names, list) else []


def _sides(field: str, value: Any) -> Any:
    """A value, where it is a size as its two sides."""
    return [value, value] if field.endswith("_size") and isinstance(value, int) else value


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
