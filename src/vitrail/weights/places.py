"""What a name of a model may mean: told by names, folders, first bytes and small JSON files.

Nothing here imports torch, so that a name behind which nothing is gets its answer at once: `check_model`.
"""

import contextlib
import json
import mmap
import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.errors import DataError, Hint, UsageError, look_at, nearest, some_of
from vitrail.io import read_json, resume_command

SAFE, ARRAYS, INDEX = ".safetensors", ".npz", ".index.json"
ONNX = ".onnx"  # of an export, which is no weights
CONTRACT = b"\x0a\x07vitrail\x12"  # before what stands in its metadata under the key `vitrail`
TAR = ".tar"  # of torch's files by custom; of an archive as well
PICKLES = ".pth", ".pt", ".bin", ".ckpt", ".pth.tar", TAR
SUFFIXES = (SAFE, ARRAYS, *PICKLES, INDEX)
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
BESIDE = (CONFIG, PREPROCESSOR, "processor_config.json")  # the last of images and texts, as transformers 5 writes it
WEIGHTS = (  # in a folder, the first that is there
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MAGIC = b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"  # of torch's files, today's and older ones
KEY = "vitrail"  # in both configurations of all that is ours, beside the keys of other libraries

HUBS = ("timm:", "hf:", "torchvision:")
LIVE = ("vit_pytorch:", "vit-pytorch:")  # a library whose weights nobody publishes by name
ALIASES = dict.fromkeys(("hub", "huggingface", "huggingface_hub", "transformers"), "hf:")
CLOSE = 0.75  # of a misspelt hub to what is meant
REPOSITORY = re.compile(r"(?!runs/)[A-Za-z0-9][\w.-]+/[A-Za-z][\w.-]+(@[\w.-]+)?")  # and no size, such as S/16
HUB_PAGE = re.compile(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")
FIRST_RUN = Hint(text="vitrail train digits  # or a hub's, timm:NAME", python="vitrail.train('digits'), or timm:NAME")
WRITES_ONNX = Hint(text="vitrail export RUN --to onnx  # which writes one")


def weights_in(folder: Path) -> Path | None:
    """The weights file of a folder in the layout of a hub; None where there is none."""
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def suffix_of(path: Path) -> str:
    """The suffix for what is in a weights file: that of its name, else by its first bytes; empty for any other file."""
    named = [suffix for suffix in SUFFIXES if path.name.endswith(suffix)]
    if not path.is_file() or (named and not path.name.endswith(TAR)):
        return max(named, key=len, default="")
    with contextlib.suppress(OSError), path.open("rb") as file:
        first = file.read(9)
        if first.startswith(MAGIC):
            return PICKLES[0]
        if first[8:] == b"{" and int.from_bytes(first[:8], "little") < path.stat().st_size:
            return SAFE
    return ""


def is_onnx(name: str | Path) -> bool:
    """Whether this is the name of a file that was exported to ONNX."""
    return Path(name).suffix.lower() == ONNX and not Path(name).is_dir()


def of_others(path: Path) -> bool:
    """Whether a path is a folder with pretrained weights, or a weights file."""
    if path.is_dir():
        return weights_in(path) is not None and not is_ours(path)
    return bool(suffix_of(path))


def is_ours(folder: Path) -> bool:
    """Whether vitrail wrote this model folder, of which a file may be missing, and no other library wrote over it."""
    contents = contents_of(folder)
    return any(KEY in content for content in contents) and not author_of(contents[0])


def contents_of(folder: Path) -> list[dict[str, Any]]:
    """The contents of both configurations in a folder; empty where one is missing."""
    files = [folder / name for name in (CONFIG, PREPROCESSOR)]
    return [read_json(file, "the file as it was written") if file.is_file() else {} for file in files]


def stated_by(name: str | Path) -> Mapping[str, Any]:
    """What the folder of a run or model of ours states of its model; empty of all else, and of what is damaged."""
    for folder in (Path(name), Path(name) / "model"):
        with contextlib.suppress(DataError, OSError):
            if is_ours(folder) and isinstance(stated := contents_of(folder)[0].get(KEY), dict):
                return stated
    return {}


def author_of(config: Mapping[str, Any]) -> str:
    """The other library that wrote a `config.json`; empty where vitrail did, or nothing shows who."""
    if "model_type" in config:
        return "transformers"
    return "timm" if "architecture" in config and KEY not in config else ""


def is_foreign(name: str | Path) -> bool:
    """Whether this names pretrained weights: a hub's name, a weights file, or a folder with one."""
    text, path = str(name), Path(name)
    named = guess_name(text) or text.startswith(LIVE)
    return text.startswith(HUBS) or (bool(named) and not is_onnx(name) and not path.exists()) or of_others(path)


def guess_name(name: str) -> str:
    """The name in a hub that is meant where the hub is left out or misspelt; empty where there is none."""
    hub, colon, rest = name.partition(":")
    if name.partition(".")[0].lower() in timm_table():
        return f"timm:{name.lower()}"
    page = HUB_PAGE.match(name)
    if page:
        return f"hf:{page[1]}"
    is_hub = colon and hub.isidentifier() and len(hub) > 1 and not rest.startswith("/")
    if is_hub and (close := ALIASES.get(hub.lower()) or nearest(hub + colon, HUBS, CLOSE)):
        return close + rest
    repository = REPOSITORY.fullmatch(name) and not name.endswith(SUFFIXES) and not Path(name).parent.is_dir()
    return f"hf:{name}" if repository else ""


@cache
def timm_architectures() -> dict[str, Any]:
    """timm's plain ViTs by architecture; made by `benchmarks/timm_table.py` from timm itself."""
    return json.loads(Path(__file__).with_name("timm_table.json").read_text())


@cache
def timm_table() -> dict[str, Any]:
    """Those of them that somebody published weights of."""
    return {name: row for name, row in timm_architectures().items() if row["tags"]}


def check_model(name: str | Path, usual: Hint = FIRST_RUN) -> None:
    """Refuse the name of a model or of weights behind which nothing is; whether a hub has it, only the hub knows.

    Args:
        name: As it was typed.
        usual: What to try where nothing is like it.

    Raises:
        UsageError: It is a hub's name without the hub, or of a library that publishes none.
        DataError: There is no such folder or file; names the nearest.
    """
    text, path = str(name), Path(name)
    if text.startswith(HUBS) or any((path / inside / CONFIG).is_file() for inside in ("", "model")):
        return
    if path.exists():
        if of_others(path) or is_onnx(path):
            return
        raise not_a_model(path)
    if not is_onnx(path) and (close := guess_name(text)):
        raise UsageError(f"{name} is neither a file or folder nor a hub's name", Hint(instead={text: close}))
    if text.startswith(LIVE):
        hint = "vitrail.convert(module) with the live network, or the file of its state dict"
        raise UsageError(f"{name}: nobody publishes weights of vit-pytorch by name", hint)
    if suffix_of(path):
        raise missing_weights(path)
    if is_onnx(path):
        raise DataError(f"there is no file {path}", WRITES_ONNX)
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    marks = f"model/{CONFIG}", "config.yaml"
    siblings = [each.name for each in beside if any((each / mark).is_file() for mark in marks) or is_ours(each)]
    around = path.parent if is_ours(path.parent) or is_ours(path.parent / "model") else None
    last = sorted(siblings, key=lambda one: ((path.with_name(one) / "model").is_dir(), one))[-4:]
    if siblings and usual is FIRST_RUN:
        usual = Hint(instead={str(path): str(path.with_name(last.pop()))}, text=f"or {', '.join(last)}" if last else "")
    other = path.with_name(close) if (close := nearest(path.name, siblings)) else around
    hint = Hint(instead={str(path): str(other)}) if other else usual
    raise DataError(f"there is no run or model at {path}", hint)


def check_inside(name: str | Path, usual: Hint = FIRST_RUN) -> None:
    """`check_model` for what looks into a network or trains it, which an ONNX file does not have.

    Raises:
        UsageError: It is an export.
        DataError: It is another file of that ending, or there is nothing.
    """
    check_model(name, usual)
    if not is_onnx(name):
        return
    with Path(name).open("rb") as file:
        entry = os.fstat(file.fileno()).st_size and mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).rfind(CONTRACT)
    if entry <= 0:
        raise DataError(f"{name} is no ONNX file that vitrail wrote", WRITES_ONNX)
    problem = f"{name} is an export, which only answers: there is no network to look into or to train"
    raise UsageError(problem, "the run or weights that it was made from; or vitrail predict and evaluate")


def missing_weights(path: Path) -> DataError:
    """The error for a weights file that is not there, with the nearest that is."""
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    close = nearest(path.name, [one.name for one in beside if one.name.endswith(SUFFIXES)])
    hint = Hint(instead={str(path): str(path.with_name(close))}) if close else look_at(there)
    return DataError(f"there is no weights file {path}", hint)


def _other(path: Path, instead: Path) -> Hint:
    return Hint(instead={str(path): str(instead)})


def not_a_model(path: Path) -> DataError:
    """The error for a path at which neither a model is nor weights are."""
    around = _other(path, path.parent) if is_ours(path.parent) or is_ours(path.parent / "model") else None
    if path.is_file():
        with path.open("rb") as file:
            if file.read(512)[257:262] == b"ustar":
                problem = f"{path} is an archive of files, and no checkpoint of torch"
                return DataError(problem, f"tar -tf {shlex.quote(str(path))}  # the file in it, after tar -xf")
        problem = f"{path} is neither a folder nor a weights file"
        return DataError(problem, around or "the path of a .safetensors, .npz, .pth or .onnx file")
    if (path / "config.yaml").is_file():
        problem = f"{path} is an unfinished run, so it contains no model yet"
        command, typed = path / "command.txt", ""
        with contextlib.suppress(OSError, ValueError):
            typed = command.read_text("utf-8").splitlines()[-1]
        typed = (
            typed
            if typed.startswith("vitrail ")
            else shlex.join(["vitrail", "train", "--config", str(path / "config.yaml")])
        )
        return DataError(problem, resume_command(typed, path))
    if (path / "adapter_config.json").is_file():
        problem = f"{path} contains only an adapter, which needs the network that it was trained on"
        whole = path.parent / "model"
        return DataError(problem, _other(path, whole) if whole.is_dir() else "the whole model")
    opens = [one for one in path.iterdir() if (one / "model" / CONFIG).is_file() or is_ours(one) or weights_in(one)]
    if inside := sorted((each.name for each in opens), key=lambda name: (len(name), name)):  # checkpoint-1000 is last
        problem = f"{path} contains no model itself, but these folders in it do: {some_of(inside[::-1])}"
        return DataError(problem, _other(path, path / inside[-1]))
    if files := sorted(each for each in path.iterdir() if each.is_file() and of_others(each)):
        return DataError(f"{path} contains weights but no {CONFIG} that describes them", _other(path, files[0]))
    inside = f"neither {CONFIG} nor model/{CONFIG}" if any(path.iterdir()) else "it is empty"
    hint = f"a run or model folder, or a folder with {CONFIG} and model.safetensors, as on the hubs"
    return DataError(f"{path} contains no model and no weights: {inside}", hint)
