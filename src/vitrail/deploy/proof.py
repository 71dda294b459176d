"""The proof of an export: the file answers image files in the runtimes where it will run, as the model answers them.

The readers that lie beside the file get its path and those of images, and nothing else: decoding, resizing, classes,
thresholds and temperature come out of the file. What they answer is held against what vitrail answers to the same
files: every output, and every word and number of the prediction. A few images do not prove a table of names, so the
contract in the file is compared with that of the model value by value.
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from vitrail.data.images import FileImages, Images, evenly
from vitrail.data.sources import read_images
from vitrail.deploy.onnx import IR
from vitrail.errors import VitrailError, counted, some_of
from vitrail.explain.methods.table import METHODS
from vitrail.model import Model
from vitrail.model.contract import KEY, MAP, OUTPUTS, PIXELS, open_session, read_contract
from vitrail.model.model import resize_model
from vitrail.model.onnx_file import relative_gap
from vitrail.nn import evaluating
from vitrail.nn.twin import detached
from vitrail.runs.data import open_for, run_of
from vitrail.weights.published import GAP

MAPS = 1e-4  # of the largest number of the maps
FILES, MOST = 24, 8  # images that the readers answer, and at most so many at a time here
BATCHES = {FILES: FILES, 8: 8, 3: 6, 1: 2}  # images that are answered in batches of each size
ANSWERS = 1e-3  # by how much a number of a prediction may differ, beside its size or 1
SECONDS = 600  # after which a reader is given up
DRAWN = "drawn images, since no others are at hand"
NODE = "onnxruntime-node", "onnxruntime-web"  # of which one, and sharp
FIND = """
const [reader, ...names] = process.argv.slice(1), { resolve } = require;
const paths = [require("path").dirname(reader), process.cwd()];
const has = (name) => { try { return resolve(name, { paths }) } catch { return "" } };
console.log(has("sharp") ? names.find(has) ?? "" : "");
"""


@dataclass(frozen=True, eq=False)
class Proven:
    """What came of a proof.

    Attributes:
        gap: The largest difference of an output, relative to the largest output.
        flips: Of how many images the answer differs.
        images: How many were answered.
        of: What images they are.
        runtimes: By each runtime what it did.
        faults: What differs, in words; empty of a file that answers alike.
    """

    gap: float
    flips: int
    images: int
    of: str
    runtimes: Mapping[str, str]
    faults: tuple[str, ...]


def images_for(model: Model, check: str | Path | None) -> tuple[Images | None, str]:
    """Images to prove an export with: those that are named, else those of its run; None where there are none.

    Raises:
        VitrailError: Those that are named cannot be read.
    """
    if check is not None:
        (found, *_) = read_images([str(check)], flat=True).splits.values()
        return found.images, str(check)
    with suppress(VitrailError):
        split = open_for(model, run_of(model), None)
        return split.samples.images, f"the {split.split} images of its run"
    return None, DRAWN


@contextmanager
def as_files(images: Images | None, size: tuple[int, int], most: int = FILES) -> Iterator[list[Path]]:
    """Some of the images as files: their own, or copies in a folder that goes away; drawn ones of no images."""
    if isinstance(images, FileImages):
        yield [images.file(index) for index in evenly(range(len(images)), most)]
        return
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        files = list[Path]()
        for number, index in enumerate(range(most) if images is None else evenly(range(len(images)), most)):
            files.append(Path(folder) / f"{number:02}.png")
            image = _drawn(number, size) if images is None else images.open(index)
            image.save(files[-1])
        yield files


def _drawn(number: int, size: tuple[int, int]) -> Image.Image:
    """A coloured image of smooth spots, somewhat larger or smaller than the model's."""
    draw = np.random.default_rng(number)
    coarse = draw.integers(0, 256, (4 + number % 5, 5 + number % 3, 3), dtype=np.uint8)
    height, width = (max(8, int(side * scale)) for side, scale in zip(size, draw.uniform(0.7, 1.8, 2), strict=True))
    fine = draw.integers(-20, 21, (height, width, 3))
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int64)
    return Image.fromarray((smooth + fine).clip(0, 255).astype(np.uint8))


def prove_file(
    model: Model,
    network: nn.Module,
    contract: Mapping[str, Any],
    file: Path,
    images: Images | None,
    of: str,
) -> Proven:
    """Hold what an ONNX file answers against what a model answers; see the head of this file.

    Args:
        model: As it answers.
        network: The numbers that the file holds: the model's own, or stored in fewer bits.
        contract: What the file has to state.
        file: With its readers beside it.
        images: To answer; drawn where there are none.
        of: What they are, in words.
    """
    file, faults, runtimes, gap, flips = file.resolve(), list[str](), dict[str, str](), 0.0, 0
    stated = read_contract(open_session(file, 1).get_modelmeta().custom_metadata_map, file)
    wrong = [name for name in {**stated, **contract} if stated.get(name) != contract.get(name)]
    if wrong:
        faults.append(f"the file states another {some_of(sorted(wrong))} than the model")
    faults += _inspect(file, contract)
    with as_files(images, model.preprocessing.size) as files:
        for size in _sizes(model, contract):
            named = [] if size == model.preprocessing.size else ["--size", "x".join(map(str, size))]
            own = resize_model(replace(model, network=network), size)
            inputs = own.tensor(list(map(str, files)))
            with evaluating(own.network), torch.no_grad():
                outputs = torch.cat([own.network(some).cpu() for some in inputs.split(8)])
            answers = model.output.answer(outputs, list(map(str, files)), model.facts, inputs)
            wanted = [one.to_dict() for one in answers]
            if contract["explain"] is not None:
                maps = _maps(own, contract["explain"], inputs)
                wanted = [{**one, MAP: own_map} for one, own_map in zip(wanted, maps.tolist(), strict=True)]
            runs = [(_python, batch, count) for batch, count in BATCHES.items() if not named or batch == FILES]
            for runtime, batch, count in (*runs, (_node, MOST, MOST)):
                where, found, problem = runtime(file, files[:count], [*named, "--batch", str(batch)])
                words = [problem] * (found is not None and bool(problem))
                if found is not None and not problem:
                    here, differ, words = _compare(outputs[:count], wanted[:count], found)
                    gap, flips, problem = max(gap, here), max(flips, differ), "answered alike"
                runtimes[where] = "answered otherwise" if words else problem
                faults += [f"{where}, batches of {batch}{' '.join(['', *named])}: {each}" for each in words]
                if faults:  # which no other run takes back
                    return Proven(gap, flips, len(files), of, runtimes, tuple(faults))
    return Proven(gap, flips, len(files), of, runtimes, ())


def _inspect(file: Path, contract: Mapping[str, Any]) -> list[str]:
    """What is wrong in the file itself: its format, declared shapes, other texts than the contract, paths."""
    import onnx

    proto, faults = onnx.load(file), list[str]()
    opsets = {each.domain: each.version for each in proto.opset_import}
    if proto.ir_version > IR or opsets != {"": contract["opset"]}:
        formats = f"format {proto.ir_version} and opset {opsets}"
        faults.append(f"it is of {formats}, which {contract['runtimes']} may not read")
    if [entry.key for entry in proto.metadata_props] != [KEY] or proto.doc_string or proto.graph.doc_string:
        faults.append("it has other texts than one contract")
    height, width = contract["input"]["size"]
    sides = [str, str] if contract["any_size"] else [height, width]
    declared = [
        each.dim_param or each.dim_value
        for named in (*proto.graph.input, *proto.graph.output)
        for each in named.type.tensor_type.shape.dim
    ]
    count = sum(len(head["names"]) or head["count"] for head in contract["answer"])
    grid = [height // contract["patch"][0], width // contract["patch"][1]]
    wanted = [str, *sides, contract["input"]["channels"], str, count, *([str, *grid] if contract["explain"] else [])]
    fits = [type(one) is own if own is str else one == own for one, own in zip(declared, wanted, strict=False)]
    if len(declared) != len(wanted) or not all(fits):
        faults.append(f"it declares the shapes {declared}")
    content = file.read_bytes()
    places = {str(Path(__file__).parents[2]), str(Path(torch.__file__).parent), str(Path.home()), str(Path.cwd())}
    named = [place for place in places if len(place) > 4 and place.encode() in content]
    return [*faults, f"the path {named[0]} stands in it"] if named else faults


def _maps(model: Model, explained: Mapping[str, Any], inputs: Tensor) -> Float[Tensor, "b rows columns"]:
    """What the method itself gives, of the answers to these images."""
    held = replace(model, network=detached(model.network)) if explained["conservative"] else model
    function = METHODS[explained["method"]].function
    return torch.cat([function(held, some).values.detach().cpu() for some in inputs.split(MOST)])


def _sizes(model: Model, contract: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The model's size of images; of a file that takes any also another one, which is no square."""
    (height, width), (down, across) = model.preprocessing.size, contract["patch"]
    return [(height, width), *[(height + 2 * down, width + across)] * contract["any_size"]]


def _compare(
    outputs: Float[Tensor, "b v"], wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> tuple[float, int, list[str]]:
    """The gap of the outputs, how many answers differ, and what is wrong in words."""
    theirs = [each.get("outputs", []) for each in found]
    if len(found) != len(wanted) or {len(row) for row in theirs} != {outputs.shape[1]}:
        return math.inf, len(wanted), [f"{len(found)} answers came for {counted(len(wanted), 'image')}"]
    own, other = ([each[MAP] for each in rows if MAP in each] for rows in (wanted, found))
    apart = relative_gap(torch.tensor(own), torch.tensor(other)) if own or other else 0.0
    gap = relative_gap(outputs, torch.tensor([[math.nan if one is None else one for one in row] for row in theirs]))
    said = [{key: value for key, value in each.items() if key != MAP} for each in wanted]
    flips = [own["file"] for own, other in zip(said, found, strict=True) if not alike(own, other)]
    words = [f"maps differ by {apart:.1e} of the largest number (at most {MAPS:.0e})"] * (not apart <= MAPS)
    words += [f"outputs differ by {gap:.1e} of the largest (at most {GAP:.0e})"] * (not gap <= GAP)
    words += (
        [f"{counted(len(flips), 'answer differs', 'answers differ')}, first that of {Path(flips[0]).name}"]
        if flips
        else []
    )
    return gap, len(flips), words


def alike(own: Any, other: Any, within: float = ANSWERS) -> bool:
    """Whether what vitrail says stands in what another says: the same words, and numbers that are near.

    Args:
        own: Of vitrail, as JSON has it.
        other: Of another, which may say more.
        within: By how much a number may differ, beside its size or 1.
    """
    if isinstance(own, Mapping):
        said = {key: value for key, value in own.items() if key != "notes"}
        return isinstance(other, Mapping) and all(alike(value, other.get(key), within) for key, value in said.items())
    if isinstance(own, list | tuple):
        if not isinstance(other, list) or len(own) != len(other):
            return False
        return all(alike(one, two, within) for one, two in zip(own, other, strict=True))
    if isinstance(own, float):
        return isinstance(other, int | float) and abs(own - other) <= within * max(1.0, abs(own))
    return own == other


# ---- the runtimes


Asked = tuple[str, list[Any] | None, str]  # the runtime, what it answers if it is there, and why it does not


def _python(file: Path, images: Sequence[Path], more: Sequence[str]) -> Asked:
    """By predict.py, in a process that knows nothing of vitrail."""
    import onnxruntime

    command = [sys.executable, "-I", str(file.with_name("predict.py")), str(file), *map(str, images), *more]
    return f"onnxruntime {onnxruntime.__version__} in Python", *_run(command, file.parent)


def _node(file: Path, images: Sequence[Path], more: Sequence[str]) -> Asked:
    """By predict.js, where node has a runtime."""
    if (node := shutil.which("node")) is None:
        return "node", None, "not run: node is not installed"
    reader = str(file.with_name("predict.js"))
    words = [node, "-e", FIND, reader, *NODE]
    runtime = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False).stdout.strip()
    if not runtime:
        return "node", None, f"not run: it has no {NODE[0]} and sharp (npm install {NODE[0]} sharp)"
    return f"{runtime} in node", *_run([node, reader, str(file), *map(str, images), *more], file.parent)


def _run(command: Sequence[str], folder: Path) -> tuple[list[Any], str]:
    """The JSON list that a command prints, or in words why it prints none."""
    command = [*command, "--json", "--outputs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        return [], lines[0] if lines[-1].startswith("try:") else lines[-1]
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        return [], f"printed no JSON ({error})"
    return (found, "") if isinstance(found, list) else ([], "printed no list")


# ---- what fewer bits cost, and how fast the file is


def count_changes(model: Model, network: nn.Module, images: Images, most: int) -> tuple[int, int]:
    """In how many images another network answers otherwise than the model's own, and of how many."""
    changed, some = 0, evenly(range(len(images)), most)
    with evaluating(model.network), evaluating(network), torch.no_grad():
        for first in range(0, len(some), 32):
            reads = model.preprocessing
            pixels = torch.stack([reads.to_uint8(images.open(index)) for index in some[first : first + 32]])
            inputs = reads.normalise(pixels)
            same = model.output.agree(model.network(inputs), network(inputs)).same
            changed += int((~same).sum())
    return changed, len(some)


def time_file(file: Path, size: tuple[int, int], channels: int, passes: int = 9) -> float:
    """Milliseconds for one image in onnxruntime, the median; on as many threads as torch has."""
    session, pixels = open_session(file, torch.get_num_threads()), np.zeros((1, *size, channels), np.uint8)
    took = list[float]()
    for _ in range(passes):
        before = time.perf_counter()
        session.run([OUTPUTS], {PIXELS: pixels})
        took.append(1000 * (time.perf_counter() - before))
    return float(np.median(took))
