"""An ONNX file that `vitrail export` wrote, as a model: its network asks onnxruntime, all else stands in the file.

    pixels (b, h, w, c) uint8, as resized images lie in memory  ->  outputs (b, v) fp32; with attribution also a map

All else is stated in its contract; see `contract`.
"""

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, VitrailError
from vitrail.model.contract import OUTPUTS, PIXELS, WRITTEN, open_session, read_contract, version_of
from vitrail.model.model import Model
from vitrail.nn.record import SILENT, AnyRecord
from vitrail.tasks import TASKS


class OnnxNetwork(nn.Module):
    """A network that is asked by onnxruntime; it has no parameters here, and nothing inside can be looked at.

    Args:
        file: The ONNX file.
        session: That is open on it.
        reads: What it does to pixels, which is undone here, since a network of vitrail gets what it makes of them.
        version: Of its weights.
    """

    config = None

    def __init__(self, file: Path, session: Any, reads: Preprocessing, version: str) -> None:
        super().__init__()
        self.session, self.reads, self.version = session, reads, version
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
    session = open_session(file, torch.get_num_threads())
    contract = read_contract(session.get_modelmeta().custom_metadata_map, file)
    try:
        reads = Preprocessing.from_dict(contract["input"])
        task = TASKS[contract["task"]]
        output = task.codec_from_dict(contract["output"])
        shapes = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
        if shapes[PIXELS][3] != reads.channels or shapes[OUTPUTS][1] != output.outputs:
            raise ValueError(f"its graph has {shapes}, for {reads.channels} channels and {output.outputs} outputs")
        return Model(
            OnnxNetwork(file, session, reads, version_of(contract, file)),
            reads,
            output,
            task,
            facts=dict(contract["facts"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = error.problem if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{file}: its metadata are damaged ({why})", WRITTEN) from error


def relative_gap(ours: Float[Tensor, "b v"], theirs: Float[Tensor, "b v"]) -> float:
    """The largest difference, beside the largest of ours; infinite where a number is none."""
    if ours.shape != theirs.shape or not bool(torch.isfinite(theirs).all()):
        return math.inf
    return float((ours.double() - theirs.double()).abs().max() / ours.double().abs().max().clamp(min=1e-30))
