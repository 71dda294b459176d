"""The contract that an export states of itself, and the session that answers it; without torch.

It is one JSON object under the key `vitrail` of the metadata of an ONNX file: what a number of the outputs means, how
an image is decoded and resized, where the weights come from. `vitrail.deploy.onnx` writes it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import DataError, UsageError, raised_as

KEY, FORMAT = "vitrail", 1
PIXELS, OUTPUTS, MAP = "pixels", "outputs", "map"  # names of the input, and of the outputs
INSTALL = 'pip install "vitrail[onnx]"'
WRITTEN = "vitrail export RUN --to onnx  # which writes one"


def open_session(file: str | Path, threads: int) -> Any:
    """A session of onnxruntime on so many threads, which sleep while they wait for each other.

    Raises:
        UsageError: onnxruntime is not installed.
        DataError: The file is missing, or none that it opens.
    """
    if not Path(file).is_file():
        raise DataError(f"there is no file {file}", WRITTEN)
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"{file} needs onnxruntime (vitrail[onnx])", INSTALL) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
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


def version_of(contract: Mapping[str, Any], file: str | Path) -> str:
    """Short hash of the weights: of those that an export in fp32 was made of, else of the file, as of older exports."""
    stated = contract.get("weights_hash")
    return stated if isinstance(stated, str) else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
