"""A model as a folder in another library's own layout, opened by that library on the spot.

    write_native(model, "transformers", "out")    `AutoModelForImageClassification.from_pretrained("out")`
    write_native(model, "timm", "out")            `timm.create_model("local-dir:out", pretrained=True)`
    write_native(model, "torchvision", "out")     `model.load_state_dict(load_file("out/model.safetensors"))`

The folder is written beside its place and renamed when the library has given the same logits for two drawn images, and
its image processor the same pixels; else nothing is left. What an answer needs beside that, and what the library has no
place for, stands in `README.md` and in the result. Training images never go along.
"""

import copy
import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.data.preprocessing import Preprocessing, to_hugging_face
from vitrail.data.tensor_files import write_tensors
from vitrail.errors import Hint, RunError, UsageError, check_choice, raised_as, some_of
from vitrail.io import check_new, to_json, write_file
from vitrail.model import CARD, CONFIG, PREPROCESSOR, WEIGHTS, Model, answer_words, card_of, save
from vitrail.model.saving import TIMM, UNPICKLED
from vitrail.nn import ViT, names_of
from vitrail.runtime import whole_fp32
from vitrail.text import short_paths
from vitrail.weights import native, timm_misfit
from vitrail.weights.convert import QUIET, redraw
from vitrail.weights.places import KEY
from vitrail.weights.published import GAP, drawn_images, logit_gap
from vitrail.weights.transformers import logits_of

LEVELS = 1.01  # of 255 by which a pixel may differ: one, since libraries round at another place
SAID = 3  # outputs that a note names; the card names all
SHAPES = (301, 447), (520, 333)  # (height, width) of drawn images
TALL = (
    'without backend="pil" transformers scales tall images along rows first, Pillow from 13 on along columns: some '
    "pixels are several levels of 255 beside"
)


@typed
@dataclass(frozen=True)
class NativeFolder:
    """A folder in the layout of another library.

    Attributes:
        target: The library.
        folder: Where it lies.
        files: Bytes of each file, by name.
        kind: The class of the library that opens it.
        opened_by: The library and its version, which opened it and gave the same logits; empty where it is missing.
        gap: The largest difference of logits, relative to the largest logit of an image; None where it was not opened.
        notes: What the library has no place for, one sentence each; of many names the first.
    """

    target: str
    folder: Path
    files: Mapping[str, int]
    kind: str
    opened_by: str
    gap: float | None
    notes: tuple[str, ...]


class OpenedFolder(NamedTuple):
    """A folder as its library opens it: logits of images as the network takes them, the pixels of an image file."""

    logits: Callable[[Tensor], Tensor]
    pixels: Callable[[Image.Image], Tensor] | None


# ---- what is written, by target: the class there, and notes


def _write_transformers(model: Model, folder: Path) -> tuple[str, tuple[str, ...]]:
    output, reads = model.output, model.preprocessing
    usual = "regression" if output.describes else "single_label_classification"
    problem = output.hub.problem if output.hub and output.hub.problem else usual
    found = native.as_transformers(model.network, () if output.describes else tuple(output.names), problem)
    keys = to_hugging_face(reads)
    del keys[KEY]
    if keys.get("do_center_crop"):
        keys["image_processor_type"] = "CLIPImageProcessor"  # which crops in older versions, too
    _write(folder, found, keys)
    grey = "images have to be opened in grey (`Image.open(file).convert('L')`): its pipelines open them in colour"
    return found.kind, found.notes + (grey,) * (reads.channels == 1) + (TALL,) * (reads.interpolation != "nearest")


def _write_timm(model: Model, folder: Path) -> tuple[str, tuple[str, ...]]:
    network = model.network
    if lacks := timm_misfit(network.config, names_of(network.parts)):
        raise UsageError(f"timm has no ViT with {lacks}", native.elsewhere(network, "timm"))
    save(model, folder)
    return json.loads((folder / CONFIG).read_text(encoding="utf-8"))["architecture"], ()


def _of_transformers(reads: Preprocessing) -> str:
    """Where its image processors make other pixels."""
    return _of_centre("down", reads)


def _of_torchvision(reads: Preprocessing) -> str:
    """Where its transforms make other pixels."""
    return _of_centre("even", reads)


def _of_timm(reads: Preprocessing) -> str:
    """Where timm's transforms make other pixels."""
    if reads.resize == "pad" and reads.pad_value != tuple(round(255 * mean) for mean in reads.mean):
        return "timm surrounds an image with the mean colour, vitrail with {}, {}, {}".format(*reads.pad_value)
    if reads.resize == "crop" and reads.size[0] != reads.size[1]:
        return "before timm crops a rectangle it scales an image by another rounding, up to one pixel beside"
    return _of_centre("even", reads)


def _of_centre(centre: str, reads: Preprocessing) -> str:
    """Where a library cuts at another pixel."""
    cuts = reads.resize == "crop" or reads.crop_pct < 1
    beside = "an image that is scaled to an odd number of pixels more than are kept is cut one pixel beside"
    return f"{beside}, so its probabilities differ" if cuts and reads.centre != centre else ""


def _write_torchvision(model: Model, folder: Path) -> tuple[str, tuple[str, ...]]:
    found = native.as_torchvision(model.network, tuple(model.output.names))
    keys = to_hugging_face(model.preprocessing)
    del keys[KEY]
    _write(folder, found, keys)
    return found.kind, found.notes


def _write(folder: Path, found: native.Native, preprocessor: Mapping[str, Any]) -> None:
    write_tensors(folder / WEIGHTS, found.tensors, metadata={"format": "pt"})
    write_file(folder / PREPROCESSOR, to_json(preprocessor))
    write_file(folder / CONFIG, to_json(found.config))


# ---- how it is opened, by target


def _open_transformers(folder: Path, kind: str) -> OpenedFolder:
    library: Any = importlib.import_module("transformers")
    with _quiet(library.utils.logging):
        opened = getattr(library, kind).from_pretrained(folder, output_loading_info=True, local_files_only=True)
        processor = library.AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    module, loading = opened
    if any(loading.values()):
        raise ValueError(f"its loading_info is not empty: {loading}")

    def pixels(image: Image.Image) -> Tensor:
        return processor(image, return_tensors="pt")["pixel_values"][0]

    return OpenedFolder(partial(logits_of, module.eval()), pixels)


def _open_timm(folder: Path, kind: str) -> OpenedFolder:
    timm, data = importlib.import_module("timm"), importlib.import_module("timm.data")
    module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return OpenedFolder(module, data.create_transform(**data.resolve_data_config({}, model=module)))


def _open_torchvision(folder: Path, kind: str) -> OpenedFolder:
    from torchvision.models import VisionTransformer

    arguments = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["torchvision"]
    norm = partial(nn.LayerNorm, eps=arguments.pop("norm_eps"))
    module = VisionTransformer(**arguments, norm_layer=norm).eval()
    module.load_state_dict(load_file(folder / WEIGHTS), strict=True)
    return OpenedFolder(module, None)


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """transformers' bars and remarks are off for the time."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# ---- how it is used, by target

USAGE = """import torch
from PIL import Image
{imports}

{model}
image = Image.open("image.png").convert("{mode}")
with torch.no_grad():
    print({call})"""


def _use_transformers(model: Model, kind: str) -> str:
    output = "image_embeds" if "Projection" in kind else "logits" if "Classification" in kind else "pooler_output"
    return _usage(
        model,
        f"from transformers import AutoImageProcessor, {kind}",
        f'model = {kind}.from_pretrained(".")\nprocessor = AutoImageProcessor.from_pretrained(".", backend="pil")',
        f'model(**processor(image, return_tensors="pt")).{output}',
    )


def _use_timm(model: Model, kind: str) -> str:
    made = 'model = timm.create_model("local-dir:.", pretrained=True).eval()'
    transform = "transform = create_transform(**resolve_data_config({}, model=model))"
    imports = "from timm.data import create_transform, resolve_data_config"
    return _usage(model, f"import timm\n{imports}", f"{made}\n{transform}", "model(transform(image)[None])")


def _use_torchvision(model: Model, kind: str) -> str:
    reads = model.preprocessing
    high, wide = (int(side / reads.crop_pct) for side in reads.size)
    size = f"{high}" if reads.resize == "crop" else f"({high}, {wide})"
    made = f"""arguments = json.loads(Path("{CONFIG}").read_text())["torchvision"]
norm = partial(torch.nn.LayerNorm, eps=arguments.pop("norm_eps"))
model = VisionTransformer(**arguments, norm_layer=norm).eval()
model.load_state_dict(load_file("{WEIGHTS}"))
transform = v2.Compose([
    v2.Resize({size}, v2.InterpolationMode.{reads.interpolation.upper()}),
    v2.CenterCrop({reads.size}),
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize({list(reads.mean)}, {list(reads.std)}),
])"""
    imports = "from safetensors.torch import load_file\nfrom torchvision.models import VisionTransformer"
    imports += "\nfrom torchvision.transforms import v2"
    call = _usage(model, imports, made, "model(transform(image)[None])")
    return f"import json\nfrom functools import partial\nfrom pathlib import Path\n\n{call}"


def _usage(model: Model, imports: str, made: str, call: str) -> str:
    mode = "L" if model.preprocessing.channels == 1 else "RGB"
    return USAGE.format(imports=imports, model=made, mode=mode, call=call)


# ---- one way for all


class Target(NamedTuple):
    """How a library's layout is written, opened and used; how its transforms resize, and where they cut."""

    write: Callable[[Model, Path], tuple[str, tuple[str, ...]]]
    open: Callable[[Path, str], OpenedFolder]
    usage: Callable[[Model, str], str]
    differs: Callable[[Preprocessing], str]
    resizes: tuple[str, ...] = ("crop", "squash")
    centre: Any = "even"


TARGETS: Mapping[str, Target] = {
    "transformers": Target(
        _write_transformers, _open_transformers, _use_transformers, partial(_of_centre, "down"), centre="down"
    ),
    "timm": Target(_write_timm, _open_timm, _use_timm, _of_timm, ("crop", "squash", "pad")),
    "torchvision": Target(_write_torchvision, _open_torchvision, _use_torchvision, partial(_of_centre, "even")),
}


@typed
def write_native(model: Model, to: str, folder: str | Path) -> NativeFolder:
    """Write a ViT in another library's own layout, and have that library open it.

    Args:
        model: With a ViT.
        to: One of `TARGETS`. transformers has ViT, DeiT, DINOv2 with and without registers, CLIP and SigLIP; timm's
            folder vitrail opens as its own; torchvision's holds a state dict and the arguments of its class.
        folder: A new one.

    Raises:
        UsageError: The library cannot express it: which part, and what can; or the folder is there.
        RunError: What the library opens gives other logits or pixels; nothing is left.
    """
    check_choice("to", to, Literal["transformers", "timm", "torchvision"])
    name, folder, target = to, Path(folder), TARGETS[to]
    _check(name, target, model)
    check_new(folder)
    bare, beside = _bare(model), folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        kind, notes = target.write(bare, beside)
        here, gap = find_spec(name) is not None, None
        if here:
            gap = _prove(name, target, bare, beside, kind)
        missing = (f"not opened by {name}, which is not installed",) * (not here)
        every = notes + _left_behind(target, model, ", ".join) + missing
        write_file(beside / CARD, card_of(bare, library=name, usage=target.usage(bare, kind), notes=every))
        notes += _left_behind(target, model, partial(some_of, most=SAID)) + missing
        files = {file.name: file.stat().st_size for file in sorted(beside.iterdir())}
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return NativeFolder(name, folder, files, kind, f"{name} {version(name)}" if here else "", gap, notes)


def _check(name: str, target: Target, model: Model) -> None:
    """Refuse what no native layout has.

    Raises:
        UsageError: It is no ViT, several answers at once, or images go in as that library cannot bring them.
    """
    onnx = Hint({"to": "onnx"}, text="which keeps every part")
    if not isinstance(model.network, ViT):
        raise UsageError(f"{name} gets ViTs, and this network is {type(model.network).__name__}", onnx)
    if model.output.hub is None:
        raise UsageError(f"{name} has no network for the task {model.task.name}", onnx)
    reads = model.preprocessing
    if reads.resize not in target.resizes:
        problem = f"{name} has no transform that brings images to their size by resize {reads.resize}"
        raise UsageError(problem, Hint({"to": "timm"}) if name != "timm" else onnx)
    if reads.resize == "crop" and reads.size[0] != reads.size[1] and name != "timm":
        size = "{} x {}".format(*reads.size)
        raise UsageError(f"{name} has no transform that crops images to {size} pixels, which is no square", onnx)


def _bare(model: Model) -> Model:
    """The model on the CPU without training images, and without facts and folders that hold for this disk alone."""
    known = {name: fact for name, fact in model.facts.items() if name not in (TIMM, UNPICKLED)}
    facts = {name: short_paths(fact) if isinstance(fact, str) else fact for name, fact in known.items()}
    network = model.network if model.device.type == "cpu" else copy.deepcopy(model.network).cpu()
    return replace(model, network=network, facts=facts, background=None, composites={}, familiar=None)


def _left_behind(target: Target, model: Model, joined: Callable[[list[str]], str]) -> tuple[str, ...]:
    """What an answer of vitrail needs beside the network, and another library has no place for, in sentences.

    Args:
        target: The library.
        model: What is written.
        joined: How a sentence names what each output has.
    """
    output, reads, found = model.output, model.preprocessing, ["no training image is in it"]
    if model.background is not None:
        found[0] += f"; the {len(model.background)} images of its background stay behind"
    found += answer_words(output, joined)
    if output.calibration is not None:
        found.append("what sets or intervals promise stays behind")
    if beside := target.differs(reads):
        found.append(beside)
    if reads.bits is not None:
        found.append(f"images of 16 bits use {reads.bits} of them, which only vitrail knows")
    return tuple(found)


def _prove(name: str, target: Target, model: Model, folder: Path, kind: str) -> float:
    """Open what was written by its library, and hold its logits and pixels against the model's.

    Args:
        name: Of the library.
        target: The same.
        model: What was written.
        folder: Where.
        kind: The class there.

    Returns:
        The largest difference of logits.

    Raises:
        RunError: It cannot be opened, or differs.
    """
    hint = f"another version than {name} {version(name)}, or report it with these lines; nothing was written"
    with raised_as(RunError, f"{name} cannot open what was written for it", hint, Exception):
        opened = target.open(folder, kind)
    images = drawn_images(model.preprocessing)
    with whole_fp32(), torch.no_grad():
        wanted, found = model.network(images), opened.logits(images)
    gap = logit_gap(found, wanted) if found.shape == wanted.shape else float("inf")
    if not gap <= GAP:
        raise RunError(f"{name} gives other logits: the gap is {gap:.1e}, allowed is {GAP:.0e}", hint)
    reads = replace(model.preprocessing, centre=target.centre)
    if opened.pixels is not None and not target.differs(reads):
        levels = max(_levels(reads, opened.pixels, shape) for shape in SHAPES)
        if not levels <= LEVELS:
            raise RunError(f"{name} makes other pixels of an image: by up to {levels:.3g} levels of 255", hint)
    if logit_gap(wanted[:1], wanted[1:]) < QUIET:  # a head of zeros hides whatever is wrong
        with tempfile.TemporaryDirectory() as place:
            loud = replace(model, network=redraw(model.network))
            kind, _ = target.write(loud, Path(place) / "loud")
            _prove(name, target, loud, Path(place) / "loud", kind)
    return gap


def _levels(reads: Preprocessing, pixels: Callable[[Image.Image], Tensor], shape: tuple[int, int]) -> float:
    """The largest difference between a library's pixels of a drawn image and ours, in levels of 255."""
    drawn = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (*shape, 3), dtype=np.uint8)
    image = Image.fromarray(drawn).convert("L" if reads.channels == 1 else "RGB")
    ours, theirs = reads(image), pixels(image)
    if ours.shape != theirs.shape:
        return float("inf")
    return float(((ours - theirs).abs() * torch.tensor(reads.std)[:, None, None]).max() * 255)
