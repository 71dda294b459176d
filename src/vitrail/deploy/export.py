"""`vitrail.export`: a model as a file of another runtime, or in the layout of another library, proved on the spot.

    onnx                                  one file with its readers beside it; see `onnx` and `proof`
    transformers, timm, torchvision       a folder or file that the library itself opens; see `layouts`

A file is called what was asked for only when it has answered as the model does. Until then, and after a proof that
failed, its name ends in `.failed`.
"""

import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from vitrail.arguments import typed
from vitrail.data.images import Images
from vitrail.deploy.attribution import check_method, with_map
from vitrail.deploy.layouts import write_native
from vitrail.deploy.onnx import (
    OPSET,
    RUNTIMES,
    Weights,
    build,
    check_installed,
    contract_of,
    store,
    stored_network,
    to_bytes,
)
from vitrail.deploy.positions import for_any_size
from vitrail.deploy.proof import count_changes, images_for, prove_file, time_file
from vitrail.errors import DataError, Hint, RunError, UsageError, check_choice, counted
from vitrail.explain.methods.table import DEFAULT
from vitrail.io import check_writable, write_file
from vitrail.model import Model, open_first
from vitrail.model.model import resize_model
from vitrail.model.onnx_file import open_onnx
from vitrail.nn import ViT
from vitrail.runs.data import run_of
from vitrail.text import ShortRepr

Target = Literal["onnx", "transformers", "timm", "torchvision"]
ENDING, FAILED = ".onnx", ".failed"
_TITLE = "an ONNX file that vitrail"  # stands in the first lines of both readers
READERS = {"predict.py": "predict.py.txt", "predict.js": "predict.js"}  # beside the file, by their names here
COUNTED, ENOUGH = 2000, 1000  # images by which fewer bits are judged, at most; from which on these are enough
MOST_CHANGED = 0.01  # of their answers


@dataclass(frozen=True, eq=False, repr=False)
class Exported(ShortRepr):
    """What was written, and what it was seen to do.

    Attributes:
        target: The runtime or library.
        file: What was written; of a library its folder.
        files: Bytes of each file by its path.
        gap: The largest difference of an output from the model's, relative to the largest output; None where nothing
            was run.
        flips: Of how many images the answer differs.
        images: How many were answered.
        of: What images they are.
        runtimes: By each runtime or library what it did.
        weights: How numbers are stored.
        changed: Of how many images fewer bits change the answer, and of how many; None where no bits were saved.
        milliseconds: For one image in the runtime; None where it was not timed.
        seconds: That all of it took.
        notes: What to know of it, in sentences.
    """

    target: str
    file: Path
    files: Mapping[str, int]
    gap: float | None
    flips: int
    images: int
    of: str
    runtimes: Mapping[str, str]
    weights: str = "fp32"
    changed: tuple[int, int] | None = None
    milliseconds: float | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "file": str(self.file)}


@typed
def export(
    model: str | Path | Model,
    *,
    to: Target = "onnx",
    out: str | Path | None = None,
    size: tuple[int, int] | Literal["any"] | None = None,
    weights: Weights = "fp32",
    explain: str | None = None,
    conservative: bool = False,
    check: str | Path | None = None,
) -> Exported:
    """Write a model for another runtime or library, and see that it answers alike there.

    Args:
        model: What `vitrail.load` opens, or a model.
        to: "onnx" writes one file, and beside it predict.py and predict.js, which read it without vitrail. A library
            gets a folder in its own layout: "transformers", "timm", "torchvision".
        out: The file (.onnx) or the folder; in a run `export/model.onnx` or `export/transformers`, else the same here.
        size: Height and width of the images in pixels, the model's own when None; to ONNX "any" leaves both open, for
            the readers and for who resizes otherwise: whatever patches divide.
        weights: To ONNX: how numbers are stored; they are computed in fp32 anyhow.
        explain: To ONNX: a method whose map of the answer is a second output, (b, rows, columns); None for none.
        conservative: Whether the map is of the network's detached form (`vitrail.nn.twin`).
        check: To ONNX: images to prove it with: a file, a folder, a list, a named set; those of the run when None, else
            drawn ones.

    Returns:
        What was written, and what it was seen to do.

    Raises:
        UsageError: What is asked for cannot be written, or a runtime is not installed.
        DataError: The model or the images cannot be read.
        RunError: What was written does not answer as the model does; an ONNX file is called `.failed` then.
    """
    check_choice("to", to, Target)
    check_choice("weights", weights, Weights)
    alone = {"size": size if size == "any" else None, "explain": explain, "check": check, "conservative": conservative}
    for name, value in {**alone, "weights": weights if weights != "fp32" else None}.items():
        if to != "onnx" and value:
            raise UsageError(f"{name}={value} is for ONNX, and this goes to {to}", Hint(drop=[name]))
    if explain is None and conservative:
        raise UsageError("conservative is of a map, and there is none", Hint({"explain": DEFAULT}))
    if explain is not None:
        check_method(explain)
        if size == "any":
            raise UsageError("a map is of one size of images, but the size is any", Hint(drop=["size"]))
    began = time.perf_counter()
    model = open_first(model, "export('runs/latest')")
    place = _place(model, to, out)
    check_writable(place)
    if isinstance(size, tuple):
        try:
            model = resize_model(model, size)
        except UsageError as error:
            nearest = error.hint.flags.get("image_size")
            raise UsageError(error.problem, Hint({"size": nearest}) if nearest else Hint(drop=["size"])) from error
    if to == "onnx":
        found = _to_onnx(model, place, size == "any", weights, explain, conservative, check)
    else:
        found = _to_library(model, to, place)
    return replace(found, seconds=time.perf_counter() - began)


def _to_library(model: Model, to: str, folder: Path) -> Exported:
    """In the layout of another library; see `layouts`."""
    found = write_native(model, to, folder)
    opened = {f"{found.opened_by or to}, {found.kind}": "answered alike" if found.opened_by else "not installed"}
    files = {str(folder / name): size for name, size in found.files.items()}
    images = 0 if found.gap is None else 2
    return Exported(to, folder, files, found.gap, 0, images, "drawn images", opened, notes=found.notes)


def _to_onnx(
    model: Model,
    file: Path,
    any_size: bool,
    weights: Weights,
    explain: str | None,
    conservative: bool,
    check: str | Path | None,
) -> Exported:
    """As one file with its readers beside it; see `onnx` and `proof`."""
    check_installed()
    contract_of(model)  # refuses what has no reader, before anything is computed
    model.network.to("cpu")
    network, (images, of) = stored_network(model, weights), images_for(model, check)
    changed = None if weights == "fp32" else _judge(model, network, images, of, weights)
    explained = None if explain is None else {"method": explain, "conservative": conservative}
    contract, traced = contract_of(model, weights, explained, any_size), network
    if explain is not None:
        traced = with_map(replace(model, network=network), explain, conservative)
    if any_size:
        if not isinstance(network, ViT):
            raise UsageError(f"only a ViT takes any size, not {type(network).__name__}", Hint(drop=["size"]))
        traced = for_any_size(network)
    proto = build(model, contract, traced)
    store(proto, weights)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{file.stem}-", dir=file.parent) as folder:
        place = Path(folder) / file.name
        write_file(place, to_bytes(proto))
        for name, text in READERS.items():
            write_file(place.with_name(name), _reader(text))
        proven = prove_file(model, network, contract, place, images, of)
        if proven.faults:
            failed = place.replace(file.with_name(file.name + FAILED))
            problem = f"{failed} does not answer as the model does: {'; '.join(proven.faults[:3])}"
            raise RunError(problem, "report it with these lines; no other file was written")
        took = time_file(place, model.preprocessing.size, model.preprocessing.channels)
        for name in (*READERS, file.name):  # the file itself comes last
            place.with_name(name).replace(file.with_name(name))
    files = {str(each): each.stat().st_size for each in (file, *map(file.with_name, READERS))}
    notes = (f"opset {OPSET}, for {RUNTIMES}; no training image is in it",)
    seen = proven.gap, proven.flips, proven.images, proven.of, proven.runtimes
    return Exported("onnx", file, files, *seen, weights, changed, took, notes=notes)


def _judge(model: Model, network: nn.Module, images: Images | None, of: str, weights: Weights) -> tuple[int, int]:
    """How many answers fewer bits change, and of how many images.

    Raises:
        UsageError: There are no images.
        RunError: More than one in a hundred.
    """
    if images is None:
        problem = f"what {weights} changes is counted on images, and none are at hand"
        raise UsageError(problem, Hint({"check": "./photos"}))
    changed, count = count_changes(model, network, images, COUNTED)
    if changed > MOST_CHANGED * count:
        problem = f"{weights} changes {changed} of {counted(count, 'answer')} to {of}, more than one in a hundred"
        raise RunError(problem, Hint({"weights": "fp16" if weights == "int8" else "fp32"}))
    return changed, count


def _place(model: Model, to: str, out: str | Path | None) -> Path:
    """The file or folder that is written.

    Raises:
        UsageError: The file has another ending, or is there and is no export.
    """
    run, name = run_of(model), f"model{ENDING}" if to == "onnx" else to
    inside = run.path if (run.path / "config.yaml").is_file() else Path()
    place = Path(out) if out is not None else inside / "export" / name
    if to != "onnx":
        return place
    if place.suffix != ENDING:
        raise UsageError(f"an ONNX file ends in {ENDING}, got {place}", Hint({"out": str(place.with_suffix(ENDING))}))
    ours = dict.fromkeys(READERS, lambda path: _TITLE in path.read_text("utf-8", "replace")) | {place.name: open_onnx}
    for name, opens in ours.items():
        beside = place.with_name(name)
        with suppress(DataError):
            if not beside.exists() or opens(beside):
                continue
        other = place.parent / "export" / place.name
        raise UsageError(f"{beside} exists, and is no export of vitrail", Hint({"out": str(other)}))
    return place


def _reader(name: str) -> str:
    """The text of a reader."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
