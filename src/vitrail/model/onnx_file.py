"""An ONNX file that `vitrail export` wrote, as a model: its network asks onnxruntime, all else stands in the file.

    pixels (b, h, w, c) uint8, as resized images lie in memory  ->  outputs (b, v) fp32; with attribution also a map

What a number of the outputs means, how an image is decoded and resized, where the weights come from: all of that is one
JSON object under the key `vitrail` of the file's metadata, the contract. `vitrail.deploy.onnx` writes it.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError, VitrailError, raised_as
from vitrail.model.model import Model
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.tasks import TASKS

KEY, FORMAT = "vitrail", 1
PIXELS, OUTPUTS, MAP = "pixels", "outputs", "map"  # names of the input, and of the outputs
INSTALL = 'pip install "vitrail[onnx]"'
WRITTEN = "vitrail export RUN --to onnx  # which writes one"


def open_session(file: str | Path) -> Any:
    """A session of onnxruntime on as many threads as torch has, which sleep while they wait for each other.

    Raises:
        UsageError: onnxruntime is not installed.
        DataError: The file is none that it opens.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"{file} needs onnxruntime (vitrail[onnx])", INSTALL) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with raised_as(DataError, f"{file} is no ONNX file that onnxruntime opens", WRITTEN, Exception):
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def read_contract(texts: Mapping[str, str], file: str | Path) -> dict[str, Any]:
    """What the metadata of a file state of it.

    Raises:
        DataError: They state nothing of ours, or it is damaged or of another format.
    """
    if KEY not in texts:
        lacks = "how images go in, what its outputs are called and what they mean"
        raise DataError(f"{file} was not written by vitrail: {lacks} is missing in its metadata", WRITTEN)
    with raised_as(DataError, f"{file}: its metadata are damaged", WRITTEN, (ValueError, RecursionError)):
        found = json.loads(texts[KEY])
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{file} is not of the format {FORMAT}", "a newer vitrail, or the export written again")
    return found


class OnnxNetwork(nn.Module):
    """A network that is asked by onnxruntime; it has no parameters here, and nothing inside can be looked at.

    Args:
        file: The ONNX file.
        session: That is open on it.
        reads: What it does to pixels, which is undone here, since a network of vitrail gets what it makes of them.
    """

    config = None

    def __init__(self, file: Path, session: Any, reads: Preprocessing) -> None:
        super().__init__()
        self.session, self.reads = session, reads
        self.place = nn.Parameter(torch.empty(0))  # says on which device it is
        digest = hashlib.sha256(file.read_bytes()).digest()
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))

    def forward(self, images: Float[Tensor, "b c h w"], record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """Outputs of images as the preprocessing makes them."""
        pixels = self.reads.to_pixels(images).permute(0, 2, 3, 1).contiguous().cpu().numpy()
        (found,) = self.session.run([OUTPUTS], {PIXELS: pixels})
        return torch.from_numpy(found).to(images.device)


def open_onnx(file: str | Path) -> Model:
    """The model in an ONNX file of vitrail; see `vitrail.load`.

    Raises:
        UsageError: onnxruntime is not installed.
        DataError: The file is missing, damaged or somebody else's.
    """
    file = Path(file)
    if not file.is_file():
        raise DataError(f"there is no file {file}", WRITTEN)
    session = open_session(file)
    contract = read_contract(session.get_modelmeta().custom_metadata_map, file)
    try:
        reads = Preprocessing.from_dict(contract["input"])
        task = TASKS[contract["task"]]
        output = task.codec_from_dict(contract["output"])
        shapes = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
        if shapes[PIXELS][3] != reads.channels or shapes[OUTPUTS][1] != output.outputs:
            raise ValueError(f"its graph has {shapes}, for {reads.channels} channels and {output.outputs} outputs")
        return Model(OnnxNetwork(file, session, reads), reads, output, task, facts=dict(contract["facts"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{file}: its metadata are damaged ({why})", WRITTEN) from error


def relative_gap(ours: Float[Tensor, "b v"], theirs: Float[Tensor, "b v"]) -> float:
    """The largest difference, beside the largest of ours; infinite where a number is none."""
    if ours.shape != theirs.shape or not bool(torch.isfinite(theirs).all()):
        return math.inf
    return float((ours.double() - theirs.double()).abs().max() / ours.double().abs().max().clamp(min=1e-30))
